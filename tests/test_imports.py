"""The rule of docs/architecture.md: calls go one way, and each module imports only from its right."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bayesmp

PACKAGE = Path(bayesmp.__file__).parent

# The line of rooms, from left to right. A room imports only from its right.
LINE = [
    "cli",
    "tables",
    "estimators",
    "training",
    "evidence",
    "network",
    "diagnosis",
    "belief",
    "heads",
    "layers",
    "kernels",
    "messages",
]

# Beside the line: everybody may use them, and they use no more than this.
BESIDE = {
    "basics": set(),
    "data": set(),
    "metrics": set(),
    "plots": {"metrics"},
    "sites": {"messages"},
}

FACES = {"__init__", "__main__"}  # public names, and `python -m bayesmp`

PLACE = {name: k for k, name in enumerate(LINE)}


def modules() -> dict[str, Path]:
    """Every module, by its dotted name inside the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    """Modules of the package that a file imports, wherever in it, by their dotted names inside the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {inside(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports are absolute here, so that they can be read"
            for alias in node.names:  # a name may be a module of a package, or something in a module
                whole = inside(f"{node.module}.{alias.name}")
                found.add(whole if whole in MODULES else inside(str(node.module)))
    return {name for name in found if name in MODULES}


def inside(name: str) -> str:
    return name.removeprefix("bayesmp.") if name.startswith("bayesmp.") else f"outside {name}"


def part(module: str) -> str:
    """The module or subpackage directly under bayesmp."""
    return module.split(".")[0]


def test_every_module_has_a_place():
    """A new one must be put on the line or beside it, here and in docs/architecture.md."""
    assert {part(name) for name in MODULES} - FACES == set(PLACE) | set(BESIDE)
    assert not set(PLACE) & set(BESIDE)


@pytest.mark.parametrize("module", sorted(set(MODULES) - FACES))
def test_a_module_imports_only_from_its_right(module):
    own = part(module)
    others = {part(name) for name in imports(MODULES[module])} - {own}
    if own in BESIDE:
        assert others <= BESIDE[own], f"{module} stands beside the line and imports {sorted(others - BESIDE[own])}"
        return
    wrong = {name for name in others if name in PLACE and PLACE[name] <= PLACE[own]}
    assert not wrong, f"{module} imports {sorted(wrong)}, which stand at its left or beside it on the line"


def test_no_module_imports_itself_through_others():
    """Inside subpackages, too."""
    seen, path = set(), []

    def walk(module):
        assert module not in path, f"a cycle: {' -> '.join([*path[path.index(module) :], module])}"
        if module in seen:
            return
        path.append(module)
        for name in sorted(imports(MODULES[module]) - {module}):
            walk(name)
        path.pop()
        seen.add(module)

    for module in sorted(set(MODULES) - FACES):
        walk(module)


def test_equations_know_no_files_and_no_logs():
    """Mathematics on tensors, and nothing else."""
    allowed = {"__future__", "collections", "dataclasses", "functools", "math", "numpy", "torch", "bayesmp", "typing"}
    for module, path in MODULES.items():
        if part(module) == "messages":
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
                assert {name.split(".")[0] for name in names} <= allowed, f"{module} imports {names}"


def test_the_package_does_not_import_its_tests_or_experiments():
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert part(str(node.module)) not in ("tests", "benchmarks", "experiments")


def test_the_documents_show_this_line():
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert f"`{' → '.join(LINE)}`" in page
    assert ", ".join(f"`{name}`" for name in sorted(BESIDE)) in page


def test_dir_shows_public_names_only_and_imports_none_of_them():
    """It showed rooms, Any, TYPE_CHECKING and importlib. In a process of its own, where nothing was used before."""
    code = (
        "import sys, bayesmp; names = dir(bayesmp); assert names == sorted([*bayesmp.__all__, '__version__']), names;"
        "late = [name for name in ('sklearn', 'matplotlib', 'pandas') if name in sys.modules]; assert not late, late;"
        "assert all(getattr(bayesmp, name) is not None for name in names)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)
