"""Pictures of training: the history of a run, and what it has left of each layer's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesmp import metrics
from bayesmp.plots.style import BLUE, SERIES, SOFT, finish, legend, make_axes
from bayesmp.plots.taken import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
LEAST = 1e-3  # ratios below it are drawn as it: a weight of mean 0 has no place on a logarithmic axis


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


def _spread(heights: Floats, gap: float = 0.075) -> Floats:
    """The sorted heights with neighbours at least about `gap` apart, pushed equally up and down."""
    spread = heights.copy()
    for _ in range(200):
        push = np.clip(gap - np.diff(spread), 0.0, None) / 2
        if push.max(initial=0.0) < 1e-3:
            break
        spread[:-1] -= push
        spread[1:] += push
    return spread


def _columns(history: Any) -> dict[str, Floats]:
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


def signal_to_noise(network: Any, ax: Axes | None = None) -> Axes:
    """|mean| / std of the weights of each layer, the first layer on top; grey, what the prior had.

    Points are medians, thick lines the middle half of the weights, thin ones nine tenths of them. Weights at
    the right are needed and known; those left of 1 could as well be zero. A layer that lies where its prior does has
    learned nothing.

    Args:
        network: a Network, or an estimator that was fitted.
        ax: where to draw; default: a new figure.
    """
    network = getattr(network, "network_", network)
    if not hasattr(network, "marginal") or not hasattr(network, "slots"):
        raise ValueError(f"expected a bayesmp network or a fitted estimator, got {type(network).__name__}")
    if not network.has_learned:
        raise ValueError("this network has not been trained yet: its weights are those of the prior; call bayesmp.fit")
    layers = sorted({slot.layer for slot in network.slots})
    ax = make_axes(ax, size=(5.6, 1.2 + 0.42 * len(layers)))
    for height, layer in enumerate(layers):
        for belief, colour, shift in ((network.prior, SOFT, 0.24), (network.marginal, BLUE, 0.0)):
            low, left, middle, right, high = np.maximum(np.quantile(_ratios(network, belief, layer), QUANTILES), LEAST)
            faint = 0.45 if colour == SOFT else 1.0
            at = [height + shift] * 2
            ax.plot([low, high], at, color=colour, linewidth=1.0, alpha=faint)
            ax.plot([left, right], at, color=colour, linewidth=4.0 * faint, alpha=faint, solid_capstyle="butt")
            dot: dict[str, Any] = {"markersize": 5.5 * faint, "markeredgecolor": "white", "markeredgewidth": 0.7}
            ax.plot([middle], at[:1], "o", color=colour, **dot)
    ax.axvline(1.0, color=SOFT, linewidth=1.0, dashes=(4, 2.5), zorder=0)
    ax.set_xscale("log")
    ax.set_yticks(range(len(layers)), [f"{layer}  {network.layers[layer]!r}" for layer in layers])
    ax.set_ylim(len(layers) - 0.5, -0.5)
    ax.set_xlabel("|mean| / std of a weight")
    ax.plot([], [], color=BLUE, linewidth=3.0, label="trained")
    ax.plot([], [], color=SOFT, linewidth=2.0, alpha=0.45, label="prior")
    legend(ax, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return finish(ax)


def _ratios(network: Any, belief: Any, layer: int) -> Floats:
    """|mean| / std of all weights of a layer; tau / sqrt(rho) is that, and divides by nothing that is small."""
    slots = [slot for slot in network.slots if slot.layer == layer]
    rows = slice(slots[0].start, slots[-1].stop)
    tau, rho = (metrics.as_array(part[rows]).astype(np.float64) for part in (belief.tau, belief.rho))
    return np.asarray(np.abs(tau) / np.sqrt(rho))
