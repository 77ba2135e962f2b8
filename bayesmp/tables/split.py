"""Which rows of a table are held out, to see how well the others predict them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayesmp.estimators.columns.dates import read_dates, tell_day
from bayesmp.estimators.columns.values import read_numbers
from bayesmp.estimators.columns.words import TableError, plural
from bayesmp.tables.target import Target

if TYPE_CHECKING:
    from pandas import Series


class Split(NamedTuple):
    """Numbers of the rows to train on and of those held out, in order; and what is to be said of them."""

    kept: NDArray[Any]
    held: NDArray[Any]
    told: str = ""


def hold_out(y: NDArray[Any], target: Target, share: float, *, seed: int) -> Split:
    """A share of the rows at random; of each class the same share."""
    draw = np.random.default_rng(seed).permutation(len(y))
    groups = [draw[y[draw] == label] for label in np.unique(y)] if target.task == "classification" else [draw]
    counts = [min(round(share * len(group)), len(group) - 1) for group in groups]
    held = np.concatenate([group[:count] for group, count in zip(groups, counts, strict=True)])
    kept = np.concatenate([group[count:] for group, count in zip(groups, counts, strict=True)])
    return Split(np.sort(kept), np.sort(held))


def hold_out_latest(values: Series, share: float) -> Split:
    """The latest rows by a column of dates or numbers, about this share; rows of one time stay together.

    Rows without a time are trained on.
    """
    name = str(values.name)
    dates = read_dates(values)
    numbers = read_numbers(values) if dates is None else None
    if dates is not None and dates.is_clock:
        raise TableError(f"column {name!r} has times of day, which come again every day; --time-column needs dates")
    if dates is None and numbers is None:
        raise TableError(f"column {name!r} has no dates or numbers, so no row of it is the latest")
    times = dates.values if dates is not None else numbers.values  # type: ignore[union-attr]
    order = np.sort(times[~np.isnan(times)])
    n_held = round(share * len(order))
    if n_held == 0:
        return Split(np.arange(len(times)), np.arange(0))
    cut = order[len(order) - n_held]
    if cut == order[0]:
        later = order[order > cut]
        if len(later) == 0:
            raise TableError(f"column {name!r} has the same time in all rows, so none is the latest")
        cut = later[0]
    is_held = np.nan_to_num(times, nan=-np.inf) >= cut
    last, end = order[order < cut][-1], order[-1]
    show = tell_day if dates is not None else "{:g}".format
    ahead = f"{plural(round(end - last), 'day')}" if dates is not None else f"{end - last:g}"
    rows = plural(int(is_held.sum()), "row")
    told = (
        f"held out are the latest {rows} by {name!r}, {show(cut)} to {show(end)}; training ends at {show(last)}. "
        f"This tests predictions up to {ahead} ahead, and says nothing of later ones"
    )
    if n_gaps := int(np.isnan(times).sum()):
        told += f". {plural(n_gaps, 'row')} without a time trained on"
    return Split(np.flatnonzero(~is_held), np.flatnonzero(is_held), told)
