"""What all pictures share: colours, a new axes where none is given, quiet frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bayesmp import metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#22262b"  # text and axes
SOFT = "#8a9099"  # secondary lines and text
BLUE = "#1f5fa6"  # the model
BANDS = ("#9fc0e3", "#c6dbf0", "#e4eef8")  # 1, 2, 3 standard deviations
ORANGE = "#d9730d"  # the truth, or what contradicts the model
GREEN, PURPLE = "#3b8f5a", "#8c5fa8"
CHANCE = "#e9e7e2"  # what chance alone explains
SERIES = (BLUE, ORANGE, GREEN, PURPLE, "#b0413e", SOFT)


def require_matplotlib() -> None:
    """Raise an ImportError that says what to install unless Matplotlib is there."""
    try:
        import matplotlib.pyplot  # noqa: F401
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'bayesmp[plots]'") from error


def make_axes(ax: Axes | None, *, size: tuple[float, float]) -> Axes:
    """The axes given, or those of a new figure of this size in inches."""
    if ax is not None:
        return ax
    require_matplotlib()
    import matplotlib.pyplot as plt

    _, new = plt.subplots(figsize=size, layout="constrained", dpi=150)
    return new


def finish(ax: Axes, *, legend_order: Sequence[str] = ()) -> Axes:
    """Quiet axes, and the legend beside the data, never on it."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(SOFT)
    ax.tick_params(colors=SOFT, labelcolor=INK, labelsize=9, length=3)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set(color=INK, fontsize=10)
    if legend_order:
        handles, labels = ax.get_legend_handles_labels()
        by_label = dict(zip(labels, handles, strict=True))
        shown = [name for name in legend_order if name in by_label]
        ax.legend(
            [by_label[name] for name in shown],
            shown,
            loc="center left",
            bbox_to_anchor=(1.01, 0.5),
            frameon=False,
            fontsize=9,
            labelcolor=INK,
            handlelength=1.6,
            labelspacing=0.7,
        )
    return ax


def column(values: Any) -> NDArray[np.float64]:
    """One number per point in float64, from (n,) or (n, 1)."""
    array = metrics.as_array(values).astype(np.float64)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"expected one number per point, shape (n,) or (n, 1), got {array.shape}")
    return array
