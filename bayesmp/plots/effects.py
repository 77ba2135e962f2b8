"""How predictions follow one column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bayesmp import metrics
from bayesmp.metrics import Array
from bayesmp.plots.style import SERIES, finish, legend, make_axes, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def partial_dependence(
    at: Array,
    mean: Array,
    low: Array,
    high: Array,
    ax: Axes | None = None,
    *,
    labels: Sequence[str] = (),
    names: Sequence[str] = ("",),
) -> Axes:
    """An average prediction over the values of one column, with its band; points with bars if these are categories.

    Args:
        at: the values of the column, (g,).
        mean, low, high: the average and the ends of its band, (g,), or (g, k) for k curves.
        ax: where to draw; default: a new figure.
        labels: names of the values where they are categories.
        names: of the curves.
    """
    ax = make_axes(ax, size=(4.4, 3.2))
    where = np.arange(len(labels)) if labels else metrics.as_array(at).astype(np.float64)
    parts = (metrics.as_array(part).astype(np.float64) for part in (mean, low, high))
    centre, bottom, top = (part.reshape(len(where), -1) for part in parts)
    for k, name in enumerate(names):
        colour, shift = SERIES[k % len(SERIES)], 0.12 * (k - 0.5 * (len(names) - 1))
        if labels:
            ends = np.stack([centre[:, k] - bottom[:, k], top[:, k] - centre[:, k]]).clip(0.0)
            ax.errorbar(
                where + shift, centre[:, k], yerr=ends, fmt="o", color=colour, markersize=5, elinewidth=1.6,
                label=plain(name),
            )  # fmt: skip
        else:
            ax.fill_between(where, bottom[:, k], top[:, k], color=colour, alpha=0.18, linewidth=0)
            ax.plot(where, centre[:, k], color=colour, linewidth=1.8, label=plain(name))
    if labels:
        texts = [plain(text if len(text) <= 14 else f"{text[:13]}…") for text in labels]
        ax.set_xticks(where, texts, rotation=30, ha="right", rotation_mode="anchor")
        ax.set_xlim(-0.5, len(labels) - 0.5)
    if any(names):
        legend(ax)
    return finish(ax)
