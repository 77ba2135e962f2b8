"""Numbers that stand for what is missing, such as -999: reported, and left as they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

REPEATED = 2  # times that such a number must be there


def find_sentinels(x: NDArray[np.float64]) -> dict[float, int]:
    """Numbers of a column, (n,), that may stand for missing ones, and how often each is there; gaps are passed over.

    They consist of nines, at least two, are the smallest or the largest and repeat, and lie as far from the others as
    these from each other, or alone below zero.
    """
    if not any(_has_nines(end) for end in (np.nanmin(x), np.nanmax(x))):
        return {}
    kinds, counts = np.unique(x[~np.isnan(x)], return_counts=True)
    low, high = 0, len(kinds)
    while low < high and counts[low] >= REPEATED and _has_nines(kinds[low]):
        low += 1
    while high > low and counts[high - 1] >= REPEATED and _has_nines(kinds[high - 1]):
        high -= 1
    if high - low < 2:
        return {}
    first, last = kinds[low], kinds[high - 1]
    found = {}
    for k in (*range(low), *range(high, len(kinds))):
        gap = max(first - kinds[k], kinds[k] - last)
        if gap >= last - first or kinds[k] < 0.0 <= first:
            found[float(kinds[k])] = int(counts[k])
    return found


def tell_sentinels(name: str, x: NDArray[np.float64]) -> str:
    """What `find_sentinels` finds, in words; nothing where there is nothing."""
    found = find_sentinels(x)
    if not found:
        return ""
    told = " and ".join(f"{value:g} in {count:,} rows" for value, count in found.items())
    return f"{name} has {told}, far from all other values: where that means a missing one, leave the cell empty (NaN)"


def _has_nines(value: float) -> bool:
    digits = f"{abs(value):.0f}"
    return f"{abs(value):.17g}" == digits and len(digits) > 1 and set(digits) == {"9"}
