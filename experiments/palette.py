"""One colour and one name per method, in every picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bayesmp.plots import BLUE, INK, ORANGE, SOFT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "ours": BLUE,
    "ours, ensemble": "#6fa8dc",
    "ours, 3 networks": "#6fa8dc",
    "ours, mended": "#0b2e59",
    "ours, counting twice": "#b0413e",
    "sequential": "#3b8f5a",
    "sequential, counting twice": "#5a1a18",
    "scalar graph": "#3f2a73",
    "NUTS": SOFT,
    "truth": INK,
    "AdamW": ORANGE,
    "AdamW, temperature": "#f0b36b",
    "AdamW, best epoch": "#a65c0a",
    "AdamW, ensemble": "#d9a400",
    "MC dropout": "#7a5230",
    "dropout, plain": "#c2a48c",
    "IVON": "#8c5fa8",
    "IVON at the mean": "#c3a6d6",
    "Laplace": "#1b9e9e",
    "Laplace, last layer": "#84cfcf",
    "TAGI": "#c2478c",
    "PBP": "#6b7a2f",
    "deep ensembles": "#d9a400",
}


def colour(method: str) -> str:
    """The colour of a method; names may go on behind a comma: "ours, ensemble of 3"."""
    for known in sorted(COLOURS, key=len, reverse=True):
        if method == known or method.startswith(known):
            return COLOURS[known]
    raise ValueError(f"no colour for {method!r}; give it one in experiments/palette.py")


def new_figure(width: float = 7.2, height: float = 3.4) -> Figure:
    """A figure that is readable at half a page."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def tidy(ax: Axes, **labels: Any) -> Axes:
    """Labels, a light grid, no frame above and at the right."""
    ax.set(**labels)
    ax.grid(alpha=0.22)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax
