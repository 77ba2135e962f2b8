"""Pictures of training: the history of a run, and what it has left of each layer's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bayesmp.plots.style import SERIES, finish, make_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def training_history(
    history: Mapping[str, Sequence[float]] | Sequence[Mapping[str, float]],
    ax: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
) -> Axes:
    """Each number of the history against the epoch, its name and last value written at the end of the line.

    What was not measured in every epoch is drawn as points with a thin line.

    Args:
        history: a list of values per name, or one mapping from names to values per epoch.
        ax: where to draw; default: a new figure.
        names: which to draw, in this order; default: all that hold numbers, but for "epoch".
    """
    ax = make_axes(ax, size=(6.4, 3.6))
    columns = _columns(history)
    epochs = columns.pop("epoch", None)
    chosen = (
        list(names) if names is not None else [name for name, values in columns.items() if np.isfinite(values).any()]
    )
    unknown = [name for name in chosen if name not in columns]
    if unknown:
        raise ValueError(f"the history has no {', '.join(unknown)}; it has {', '.join(columns) or 'nothing'}")
    ends = []
    for i, name in enumerate(chosen):
        values = columns[name]
        steps = epochs if epochs is not None and len(epochs) == len(values) else np.arange(1, len(values) + 1)
        colour = SERIES[i % len(SERIES)]
        marker = "o" if len(values) == 1 else None
        ax.plot(steps, values, color=colour, linewidth=1.8, solid_capstyle="round", marker=marker, markersize=4)
        finite = np.flatnonzero(np.isfinite(values))
        if len(finite) < len(values):  # single values between gaps would not be seen
            ax.plot(steps[finite], values[finite], color=colour, linewidth=1.0, alpha=0.6, marker=".", markersize=5)
        if len(finite) > 0:
            last = finite[-1]
            ends.append((float(steps[last]), float(values[last]), f"{name}  {values[last]:.3g}", colour))
    ax.set_xlabel("epoch")
    ax.locator_params(axis="x", integer=True)  # no half epochs
    finish(ax)
    _label_ends(ax, ends)
    return ax


def _label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write each text to the right of its line's end, moved apart where they would overlap."""
    if not ends:
        return
    low, high = ax.get_ylim()
    to_axes = ax.transAxes.inverted().transform
    heights = np.array([to_axes(ax.transData.transform((x, y)))[1] for x, y, _, _ in ends])
    order = np.argsort(heights, kind="stable")
    for (_, _, text, colour), height in zip([ends[i] for i in order], _spread(heights[order]), strict=True):
        ax.text(1.02, height, text, transform=ax.transAxes, va="center", color=colour, fontsize=9)
    ax.set_ylim(low, high)


def _spread(heights: NDArray[np.float64], gap: float = 0.075) -> NDArray[np.float64]:
    """The sorted heights with neighbours at least about `gap` apart, pushed equally up and down."""
    spread = heights.copy()
    for _ in range(200):
        push = np.clip(gap - np.diff(spread), 0.0, None) / 2
        if push.max(initial=0.0) < 1e-3:
            break
        spread[:-1] -= push
        spread[1:] += push
    return spread


def _columns(history: Any) -> dict[str, NDArray[np.float64]]:
    """One array per name that holds numbers, whichever way the history is laid out."""
    if callable(getattr(history, "columns", None)):
        history = history.columns()  # of a run
    if not isinstance(history, Mapping):
        rows = list(history)
        keys = list(dict.fromkeys(key for row in rows for key in row))
        history = {key: [row.get(key, np.nan) for row in rows] for key in keys}
    columns = {}
    for name, values in history.items():
        try:
            columns[str(name)] = np.asarray([np.nan if v is None else v for v in values], dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            continue  # texts and the like have no place in a plot
    return columns
