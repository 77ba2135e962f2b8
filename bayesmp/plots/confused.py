"""Which classes are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesmp import metrics
from bayesmp.metrics import Array
from bayesmp.plots.style import INK, finish, make_axes, plain
from bayesmp.plots.taken import as_probs

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def confusion(probs: Any, y: Array, classes: Sequence[object], ax: Axes | None = None) -> Axes:
    """How often each true class (rows) is taken for each class (columns): numbers of examples, shaded by their share of
    the row. Arguments as for `metrics.accuracy` (or a prediction of classes for `probs`), and the names of the classes.
    """
    n = len(classes)
    ax = make_axes(ax, size=(1.6 + 0.42 * n, 1.4 + 0.42 * n))
    guess, truth = as_probs(probs).argmax(axis=1), metrics.as_array(y)
    counts = np.zeros((n, n), dtype=np.int64)
    np.add.at(counts, (truth, guess), 1)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    ax.imshow(share, cmap="Blues", vmin=0.0, vmax=1.3)
    if n <= 20:  # more would not be legible
        for i, j in zip(*np.nonzero(counts), strict=True):
            ink = "white" if share[i, j] > 0.6 else INK
            ax.text(j, i, f"{counts[i, j]}", ha="center", va="center", fontsize=8.5, color=ink)
    names = [plain(text if len(text) <= 14 else f"{text[:13]}…") for text in map(str, classes)]
    steps = range(0, n, max(1, n // 20))
    ax.set_xticks(list(steps), [names[k] for k in steps], rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(list(steps), [names[k] for k in steps])
    ax.set(xlabel="predicted", ylabel="true")
    return finish(ax)
