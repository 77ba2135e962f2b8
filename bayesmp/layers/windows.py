"""Sizes of sliding windows over images."""

from __future__ import annotations

from bayesmp.messages.windows import Pair


def pair(value: int | Pair, name: str, *, least: int) -> Pair:
    """An int or a pair of ints as a pair, or a ValueError."""
    both = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(both) != 2 or not all(isinstance(part, int) and part >= least for part in both):
        raise ValueError(f"{name} must be an int >= {least} or a pair of them, got {value!r}")
    return (both[0], both[1])


def short(value: Pair) -> str:
    """A pair as a user would write it: one number if both are equal."""
    return f"{value[0]}" if value[0] == value[1] else f"{value}"


def window_count(size: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair, who: str) -> Pair:
    """How many windows fit in each direction, or a ValueError if none does."""
    counts = tuple((s + 2 * p - k) // d + 1 for s, k, d, p in zip(size, kernel, stride, padding, strict=True))
    if min(counts) < 1:
        raise ValueError(f"{who}: window {kernel} does not fit an image of {size} with padding {padding}")
    return (counts[0], counts[1])
