"""Values from JSON as annotations say: exact names, types and ranges, or a ValueError that says what was expected.

A dataclass is read from an object that has its fields, all of them and no others. Numbers must be finite, unless they
are `Measured`.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
LARGEST = 2**63 - 1  # an int that tensors can hold


@dataclass(frozen=True)
class Range:
    """Which numbers may come, both ends included."""

    low: float
    high: float = math.inf


@dataclass(frozen=True)
class OneOf:
    """Which texts may come."""

    choices: tuple[str, ...]


ANY = "or not finite"
Count = Annotated[int, Range(0)]
Positive = Annotated[int, Range(1)]
PositiveFloat = Annotated[float, Range(math.ulp(0.0))]
Share = Annotated[float, Range(0.0, 1.0)]
Measured = Annotated[float, ANY]  # what a run that diverged may have measured


def read(kind: type[T], value: Any, where: str) -> T:
    """A value of this kind.

    Args:
        kind: a dataclass, or another annotation: int, float, str, bool, None, Any, Literal, list, tuple, dict, a
            union, or Annotated with a `Range`.
        value: as json.loads gives it.
        where: its name in errors.
    """
    found: T = _read(kind, value, where)
    return found


def arguments(function: Callable[..., Any], given: Any, where: str) -> dict[str, Any]:
    """Arguments for a function by the names and annotations of its own."""
    kinds = get_type_hints(function, include_extras=True)
    own = {name: part for name, part in inspect.signature(function).parameters.items() if name in kinds}
    required = [name for name, part in own.items() if part.default is part.empty]
    return _read_fields({name: kinds[name] for name in own}, required, given, where)


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        if ANY in args[1:] and isinstance(value, float):
            return value
        found = _read(args[0], value, where)
        for rule in args[1:]:
            if isinstance(rule, Range) and not rule.low <= found <= rule.high:
                raise _refusal(where, f"a number from {rule.low:g} to {rule.high:g}", value)
            if isinstance(rule, OneOf) and found not in rule.choices:
                raise _refusal(where, f"one of {', '.join(map(repr, rule.choices))}", value)
        return found
    if origin in (Union, types.UnionType):
        return _read_one_of(args, value, where)
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in args):
            raise _refusal(where, f"one of {', '.join(map(repr, args))}", value)
        return value
    if origin in (list, tuple):
        if not isinstance(value, list):
            raise _refusal(where, "a list", value)
        if origin is list or args[-1] is ...:
            args = (args[0],) * len(value)
        if len(args) != len(value):
            raise _refusal(where, f"a list of {len(args)}", value)
        return origin(_read(own, part, f"{where}[{k}]") for k, (own, part) in enumerate(zip(args, value, strict=True)))
    if origin is dict:
        if not isinstance(value, dict):
            raise _refusal(where, "an object", value)
        return {_read(args[0], name, where): _read(args[1], part, f"{where}.{name}") for name, part in value.items()}
    if is_dataclass(kind):
        kinds = get_type_hints(kind, include_extras=True)
        made = [part for part in fields(kind) if part.init]
        required = [part.name for part in made]
        assert all(part.default is MISSING or part.name in required for part in made)  # files say everything
        found = _read_fields({part.name: kinds[part.name] for part in made}, required, value, where)
        return kind(**found)  # type: ignore[operator]
    return _read_plain(kind, value, where)


def _read_fields(kinds: dict[str, Any], required: list[str], value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refusal(where, "an object", value)
    for name in required:
        if name not in value:
            raise ValueError(f"{where} says nothing of {name!r}")
    for name in value:
        if name not in kinds:
            raise ValueError(f"{where} has an entry {name!r}, which is not known; known are {', '.join(kinds)}")
    return {name: _read(kinds[name], part, f"{where}.{name}") for name, part in value.items()}


def _read_one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    errors = []
    for kind in kinds:
        try:
            return _read(kind, value, where)
        except ValueError as error:
            errors.append(error)
    others = [error for kind, error in zip(kinds, errors, strict=True) if kind is not type(None)]
    if len(others) == 1 and value is not None:
        raise others[0]
    raise ValueError(" or ".join(dict.fromkeys(map(str, others))))


def _read_plain(kind: Any, value: Any, where: str) -> Any:
    if kind is type(None):
        fits, expected = value is None, "null"
    elif kind is bool:
        fits, expected = isinstance(value, bool), "true or false"
    elif kind is str:
        fits, expected = isinstance(value, str), "a text"
    elif kind is int:
        fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST
        expected = "a whole number"
    elif kind is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
        fits, expected = fits and abs(value) <= LARGEST if isinstance(value, int) else fits, "a finite number"
    else:
        raise TypeError(f"{where}: values of the type {kind!r} cannot be read from a file")
    if not fits:
        raise _refusal(where, expected, value)
    return value


def _refusal(where: str, expected: str, value: Any) -> ValueError:
    shown = repr(value)
    return ValueError(f"{where} must be {expected}, got {shown if len(shown) < 60 else shown[:57] + '...'}")
