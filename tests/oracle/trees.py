"""Nested structures of messages: dicts and lists inside, None for "no parameters here", anything else is a leaf.

Outside the oracle a leaf is the plain tuple (tau, rho).
"""

from collections.abc import Callable, Iterator
from typing import Any


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree with function(leaf, other leaves...) at each leaf; all trees have the same structure."""
    if tree is None:
        assert all(other is None for other in others), "one tree has parameters where another has None"
        return None
    if isinstance(tree, dict):
        return {key: tree_map(function, tree[key], *(other.get(key) for other in others)) for key in tree}
    if isinstance(tree, list):
        assert all(len(other) == len(tree) for other in others), "the trees differ in shape"
        return [tree_map(function, *branches) for branches in zip(tree, *others, strict=True)]
    return function(tree, *others)


def leaves(tree: Any) -> Iterator[Any]:
    """All leaves of a tree, depth first."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from leaves(branch)
    elif tree is not None:
        yield tree


def nest(flat: list, shape: tuple[int, ...]) -> list:
    """A flat list, last index fastest, as nested lists of the given shape."""
    if len(shape) <= 1:
        return list(flat)
    step = len(flat) // shape[0]
    return [nest(flat[k * step : (k + 1) * step], shape[1:]) for k in range(shape[0])]


def shape_of(nested: Any) -> tuple[int, ...]:
    """The shape of nested lists, read along the first entries."""
    return (len(nested), *shape_of(nested[0])) if isinstance(nested, list) else ()


def pair(tau: Any, rho: Any) -> Any:
    """The tree of (tau, rho) tuples, from two nested structures of numbers such as `tensor.tolist()`."""
    return tree_map(lambda t, r: (float(t), float(r)), tau, rho)


def split(tree: Any) -> tuple[Any, Any]:
    """The inverse of `pair`: two nested structures, the first and the second entries of the tuples."""
    return tree_map(lambda leaf: leaf[0], tree), tree_map(lambda leaf: leaf[1], tree)
