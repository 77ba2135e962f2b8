"""A name with a leading underscore belongs to its file: no other file of the package reads, sets or overrides it."""

import ast
from pathlib import Path

import bayesmp

PACKAGE = Path(bayesmp.__file__).parent
FILES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
NAMEDTUPLE = {"_replace", "_fields", "_asdict"}  # public in all but their names
OUTSIDE = {  # of Python and PyTorch, which have no other door
    "kernels/compiled.py": {"_C", "_functorch"},
    "kernels/fused.py": {"_create_multi_output_jit_fn"},
    "network/torch_bridge.py": {"_modules", "_forward_hooks", "_forward_pre_hooks", "_tensor_name"},
    "training/many.py": {"_exit"},
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name.strip("_") != "" and name not in NAMEDTUPLE


def is_stored(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


def own_names(tree: ast.Module) -> set[str]:
    """Private names that a file makes: functions, classes, variables, and attributes of its own objects."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and is_stored(node):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and is_stored(node) and is_own(node):
            names.add(node.attr)
    return {name for name in names if is_private(name)}


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def foreign_names(tree: ast.Module) -> set[str]:
    """Private names that a file takes from somewhere else."""
    own, names = own_names(tree), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names}
    return {name for name in names if is_private(name)} - own


def names_of_class(node: ast.ClassDef) -> set[str]:
    """Private names that the body of a class makes, on the class or on self."""
    return own_names(ast.Module(list(node.body), []))


def classes() -> dict[str, tuple[str, ast.ClassDef]]:
    """Every class of the package by its name: the file, and the class."""
    return {
        node.name: (file, node) for file, tree in FILES.items() for node in tree.body if isinstance(node, ast.ClassDef)
    }


def bases(node: ast.ClassDef, known: dict[str, tuple[str, ast.ClassDef]]) -> list[tuple[str, ast.ClassDef]]:
    """The classes of the package that a class inherits from, near or far."""
    names = [getattr(base.value if isinstance(base, ast.Subscript) else base, "id", "") for base in node.bases]
    near = [known[name] for name in names if name in known]
    return near + [far for _, base in near for far in bases(base, known)]


def test_no_file_takes_private_names_of_another():
    taken = {file: sorted(foreign_names(tree) - OUTSIDE.get(file, set())) for file, tree in FILES.items()}
    assert {file: names for file, names in taken.items() if names} == {}


def test_no_class_makes_a_private_name_of_a_base_in_another_file():
    known = classes()
    shared = {
        f"{name}({base.name})": sorted(names_of_class(node) & names_of_class(base))
        for name, (file, node) in known.items()
        for other, base in bases(node, known)
        if other != file
    }
    assert {pair: names for pair, names in shared.items() if names} == {}


def test_what_is_taken_from_outside_is_still_taken():
    for file, names in OUTSIDE.items():
        assert names <= foreign_names(FILES[file])


def test_the_search_finds_them():
    """On a made-up file, so that an empty answer above means something."""
    tree = ast.parse(
        "from other import _helper, public\n"
        "class A(Base):\n"
        "    def __init__(self, run):\n"
        "        self._mine = run._best\n"
        "        self._mine, self._base_state, __ = self._of_base(), 1, tuple._replace\n"
    )
    assert own_names(tree) == {"_mine", "_base_state"}
    assert foreign_names(tree) == {"_helper", "_best", "_of_base"}
