"""How tables are spoken about: the error that says what to do, and counts of things in words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

NUMBER = re.compile(r"[+-]?\d*[.,]?\d+([eE][+-]?\d+)?")


class TableError(ValueError):
    """A table that cannot be used as it is; the message says what to do."""


def plural(n: int, noun: str) -> str:
    """A count and its noun."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def some_texts(texts: Sequence[str]) -> str:
    """How many texts, and one of them."""
    kinds = list(dict.fromkeys(texts))
    return f"{plural(len(texts), 'text')} such as {kinds[0]!r}"


def check_column(name: str, columns: Iterable[str]) -> None:
    """Raise unless there is a column of this name; names that are nearly the same are suggested."""
    known = list(columns)
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=3) or [c for c in known if c.lower() == name.lower()]
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(map(repr, known[:20]))}"
    if any(NUMBER.fullmatch(one) for one in known):
        hint += "; if the file has no line with names, give --no-header"
    raise TableError(f"there is no column {name!r}; {hint}")
