"""What training has left of each layer's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bayesmp import metrics
from bayesmp.plots.style import BLUE, INK, SOFT, finish, make_axes
from bayesmp.plots.taken import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
LEAST = 1e-3  # ratios below it are drawn as it: a weight of mean 0 has no place on a logarithmic axis


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
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    return finish(ax)


def _ratios(network: Any, belief: Any, layer: int) -> Floats:
    """|mean| / std of all weights of a layer; tau / sqrt(rho) is that, and divides by nothing that is small."""
    slots = [slot for slot in network.slots if slot.layer == layer]
    rows = slice(slots[0].start, slots[-1].stop)
    tau, rho = (metrics.as_array(part[rows]).astype(np.float64) for part in (belief.tau, belief.rho))
    return np.asarray(np.abs(tau) / np.sqrt(rho))
