"""How tables are spoken about: the error that says what to do, and counts of things in words."""

from __future__ import annotations

from collections.abc import Sequence


class TableError(ValueError):
    """A table that cannot be used as it is; the message says what to do."""


def plural(n: int, noun: str) -> str:
    """A count and its noun."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def some_texts(texts: Sequence[str]) -> str:
    """How many texts, and one of them."""
    kinds = list(dict.fromkeys(texts))
    return f"{plural(len(texts), 'text')} such as {kinds[0]!r}"
