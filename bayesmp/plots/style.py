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


def finish(ax: Axes) -> Axes:
    """Quiet axes."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(SOFT)
    ax.tick_params(colors=SOFT, labelcolor=INK, labelsize=9, length=3)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set(color=INK, fontsize=10)
    return ax


def legend(ax: Axes, **options: Any) -> None:
    """A quiet legend."""
    ax.legend(frameon=False, fontsize=9, labelcolor=INK, **options)


def shares(ax: Axes, xlabel: str, ylabel: str) -> Axes:
    """Quiet axes for two shares, from 0 to 1."""
    ax.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel=xlabel, ylabel=ylabel)
    ax.set_aspect("equal")
    return finish(ax)


def diagonal(
    ax: Axes, ends: Sequence[float] = (0, 1), *, text: str = "", at: tuple[float, float] = (0.03, 0.07)
) -> None:
    """A line from corner to corner, and what it means."""
    ax.plot(ends, ends, color=SOFT, linewidth=1.0, dashes=(4, 2.5), zorder=1)
    if text:
        ax.text(*at, text, color=SOFT, fontsize=8.5, rotation=45, rotation_mode="anchor")


def tell(ax: Axes, lines: Sequence[str], *, in_corner: bool = False) -> None:
    """Write lines at the lower right, or in the upper left corner."""
    x, y, side, end = (0.03, 0.97, "left", "top") if in_corner else (0.97, 0.05, "right", "bottom")
    style: dict[str, Any] = {"color": INK, "fontsize": 9.5, "linespacing": 1.5}
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}  # so that no line runs through it
    ax.text(x, y, "\n".join(lines), transform=ax.transAxes, ha=side, va=end, zorder=5, bbox=behind, **style)


def plain(text: object) -> str:
    """A text as it stands: between two dollar signs Matplotlib would look for a formula."""
    return str(text).replace("$", r"\$")


def column(values: Any) -> NDArray[np.float64]:
    """One number per point in float64, from (n,) or (n, 1)."""
    array = metrics.as_array(values).astype(np.float64)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"expected one number per point, shape (n,) or (n, 1), got {array.shape}")
    return array
