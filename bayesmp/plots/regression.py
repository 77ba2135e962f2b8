"""Pictures of real targets: bands over one input, predictions against the truth."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayesmp import metrics
from bayesmp.metrics import Array
from bayesmp.plots.style import BANDS, BLUE, INK, ORANGE, SOFT, column, diagonal, finish, legend, make_axes, tell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FRAME = 1.25  # how far bands may reach beyond the data, in heights of the data


def regression_bands(
    x: Array,
    mean: Array,
    std: Array,
    *,
    data: tuple[Array, Array] | None = None,
    truth: Callable[[NDArray[np.float64]], ArrayLike] | Array | None = None,
    noise_std: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The predictive mean over a one-dimensional input, with bands of one, two and three standard deviations.

    Args:
        x: inputs, (n,) or (n, 1), in any order.
        mean: predictive mean at x.
        std: predictive standard deviation at x. Give the epistemic one together with `noise_std`, or the whole alone.
        data: the training inputs and targets; the range of the inputs is marked, and bands that go far
            beyond the targets are cut.
        truth: the true function, or its values at x.
        noise_std: standard deviation of the noise, added to the bands (variances add).
        ax: where to draw; default: a new figure.
    """
    ax = make_axes(ax, size=(7.2, 4.0))
    grid, centre, spread = (column(values) for values in (x, mean, std))
    if not len(grid) == len(centre) == len(spread):
        raise ValueError(f"x, mean and std must match, got {len(grid)}, {len(centre)} and {len(spread)} values")
    order = np.argsort(grid)
    grid, centre, spread = grid[order], centre[order], spread[order]
    if noise_std is not None:
        spread = np.hypot(spread, noise_std)

    for width in (3, 2, 1):
        band = BANDS[width - 1]
        ax.fill_between(
            grid, centre - width * spread, centre + width * spread, color=band, linewidth=0, zorder=4 - width
        )
        ax.plot([], [], color=band, linewidth=7, label=f"±{width} std", solid_capstyle="butt")
    ax.plot(grid, centre, color=BLUE, linewidth=1.8, label="mean", zorder=6, solid_capstyle="round")
    if truth is not None:
        values = column(truth(grid)) if callable(truth) else column(truth)[order]
        ax.plot(grid, values, color=ORANGE, linewidth=1.4, dashes=(4, 2.5), label="truth", zorder=7)
    if data is not None:
        x_data, y_data = column(data[0]), column(data[1])
        ax.scatter(x_data, y_data, s=11, color=INK, alpha=0.55, linewidths=0, label="data", zorder=8)
        _mark_range(ax, float(x_data.min()), float(x_data.max()))
        _keep_in_frame(ax, y_data)
    ax.set_xlim(grid[0], grid[-1])
    ax.set_xlabel("x")
    ax.set_ylabel("y")
    parts = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    shown = [name for name in ("data", "truth", "mean", "±1 std", "±2 std", "±3 std") if name in parts]
    beside = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "handlelength": 1.6, "labelspacing": 0.7}
    legend(ax, handles=[parts[name] for name in shown], labels=shown, **beside)
    return finish(ax)


def predicted_against_true(
    mean: Any,
    std: Array,
    y: Array | None = None,
    ax: Axes | None = None,
    *,
    level: float = 0.9,
    interval: tuple[Array, Array] | None = None,
) -> Axes:
    """Predictions of real targets against the targets, with central intervals; those that miss the target are orange.

    Call it with a prediction and the targets, `predicted_against_true(prediction, y)`, or with arrays:

    Args:
        mean, std: of the predictive Gaussians, (n,).
        y: the targets, (n,).
        ax: where to draw; default: a new figure.
        level: probability that an interval is meant to hold its target with.
        interval: the ends of the intervals, `prediction.interval(level)`, where noise has other tails than a Gaussian.
    """
    is_prediction = hasattr(mean, "interval")
    if is_prediction == (y is not None):
        raise ValueError("give a prediction and the targets, or mean, std and the targets")
    if is_prediction:
        interval = mean.interval(level) if interval is None else interval
        mean, std, y = mean.mean, mean.std, std
    assert y is not None
    ax = make_axes(ax, size=(4.8, 4.6))
    centre, spread, truth = (column(values) for values in (mean, std, y))
    half = NormalDist().inv_cdf((1.0 + level) / 2.0) * spread
    if interval is not None:
        half = 0.5 * (column(interval[1]) - column(interval[0]))
    ends = [min(truth.min(), centre.min()), max(truth.max(), centre.max())]
    diagonal(ax, ends)
    missed = np.abs(truth - centre) > half
    share = 1.0 - float(missed.mean())
    for chosen, colour, alpha in ((~missed, BLUE, 0.5), (missed, ORANGE, 0.9)):
        ax.errorbar(
            truth[chosen], centre[chosen], yerr=half[chosen], fmt="o", markersize=3.2, markeredgewidth=0.0,
            color=colour, ecolor=colour, elinewidth=0.7, alpha=alpha, zorder=2,
        )  # fmt: skip
    error = metrics.rmse(centre, truth)
    held = f"{100 * share:.0f} % in their {100 * level:.0f} % interval"
    tell(ax, [held, f"RMSE {error:,.0f}" if error >= 10_000 else f"RMSE {error:.3g}"], in_corner=True)
    ax.set(xlabel="true", ylabel="predicted")
    ax.locator_params(axis="x", nbins=5)  # long numbers would overlap
    return finish(ax)


def _keep_in_frame(ax: Axes, y: NDArray[np.float64]) -> None:
    """Cut the view where bands leave the data too far on either side; the data stay readable."""
    reach = FRAME * max(float(np.ptp(y)), 1e-12)
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, float(y.min()) - reach), min(high, float(y.max()) + reach))


def _mark_range(ax: Axes, low: float, high: float) -> None:
    """A faint column behind the data's range, named at its foot."""
    ax.axvspan(low, high, color="#f7f5f1", linewidth=0, zorder=0)
    ax.text(
        (low + high) / 2, 0.015, "data range", transform=ax.get_xaxis_transform(), ha="center", va="bottom",
        color=SOFT, fontsize=8.5, zorder=9,
    )  # fmt: skip
