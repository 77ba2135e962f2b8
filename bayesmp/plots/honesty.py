"""Whether predictions are as sure as they are right: calibration of classes and of intervals, confidence."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesmp import metrics
from bayesmp.metrics import Array
from bayesmp.plots.style import BLUE, CHANCE, ORANGE, SOFT, diagonal, finish, legend, make_axes, shares, tell
from bayesmp.plots.taken import Floats, as_probs, central_levels, is_classes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVELS = np.linspace(0.02, 0.98, 49)  # of the intervals whose coverage is drawn
BAR_HEIGHT = 0.22  # of the bin with the most examples, in heights of the picture
FEW = 10  # examples in a bin below which chance explains nearly everything, and is not drawn
CHANCE_STDS = NormalDist().inv_cdf(0.975)  # 95 % of what chance does lies within


def calibration_curve(prediction: Any, y: Array, ax: Axes | None = None, *, n_bins: int = 15) -> Axes:
    """Whether predictions are as sure as they are right: on the diagonal they are.

    Of classes it is `reliability`. Of real targets it is the share of targets that central intervals hold against the
    share they promise; below the diagonal the model is too sure. The grey area is where 95 % of calibrated models would
    lie with as many targets.

    Args:
        prediction: what `network.predict(x)` returns; or probabilities (n, c); or a pair (mean, std) of arrays, as
            `MPRegressor.predict(X, return_std=True)` returns them.
        y: true targets, or classes numbered from 0.
        ax: where to draw; default: a new figure.
        n_bins: for classes.
    """
    if is_classes(prediction):
        return reliability(prediction, y, ax, n_bins=n_bins)
    truth = metrics.as_array(y).astype(np.float64).reshape(-1)
    needed = central_levels(prediction, truth)
    held = [float(np.mean(needed <= level)) for level in LEVELS]
    ax = make_axes(ax, size=(4.4, 4.4))
    ax.fill_between(LEVELS, *_by_chance(LEVELS, len(truth)), color=CHANCE, linewidth=0, zorder=0)
    diagonal(ax, text="as sure as right")
    ax.plot(LEVELS, held, color=BLUE, linewidth=1.8, zorder=3, solid_capstyle="round")
    lines = [f"{100 * np.mean(needed <= p):.1f} % in {100 * p:.0f} % intervals" for p in (0.5, 0.9)]
    tell(ax, [*lines, f"{len(truth):,} targets"])
    return shares(ax, "promised share", "held share")


def reliability(probs: Any, y: Array, ax: Axes | None = None, *, n_bins: int = 15) -> Axes:
    """Accuracy against confidence in bins of equal width; on the diagonal the model is as sure as it is right.

    The area of a point is the share of examples in its bin, the vertical line its gap, faint where there are few
    examples; the bars at the bottom count them. The grey mark on the diagonal is where 95 % of the points of calibrated
    models would lie, with as many examples in the bin. Arguments as for `metrics.ece`; `probs` may be a prediction.
    """
    values = as_probs(probs)
    confidence, right, n_in_bin = metrics.reliability_bins(values, y, n_bins=n_bins)
    used = n_in_bin > 0
    confidence, right, counts = confidence[used], right[used], n_in_bin[used]
    share = counts / counts.sum()
    ax = make_axes(ax, size=(4.4, 4.4))
    centres = (np.flatnonzero(used) + 0.5) / n_bins
    heights = BAR_HEIGHT * counts / counts.max()
    ax.bar(centres, heights, width=0.86 / n_bins, color="#f1efeb", zorder=0)
    for centre, height, count in zip(centres, heights, counts, strict=True):
        ax.text(centre, height + 0.008, _short(int(count)), ha="center", va="bottom", color=SOFT, fontsize=6)
    low, high = _by_chance(confidence, counts)
    is_told = counts >= FEW
    ax.bar(confidence[is_told], (high - low)[is_told], bottom=low[is_told], width=0.016, color="#dddad4", zorder=1)
    diagonal(ax, text="as sure as right")
    strength = np.clip(0.15 + share * len(share), 0.0, 0.9)
    ax.vlines(confidence, confidence, right, color=[(ORANGE, a) for a in strength], linewidth=1.6, zorder=2)
    ax.scatter(confidence, right, s=18 + 420 * share, color=BLUE, edgecolor="white", linewidth=0.8, zorder=3)
    lines = [f"accuracy {metrics.accuracy(values, y):.3f}", f"ECE {metrics.ece(values, y, n_bins=n_bins):.3f}"]
    tell(ax, lines, in_corner=True)
    return shares(ax, "confidence", "accuracy")


def confidence_histogram(prediction: Any, y: Array, ax: Axes | None = None, *, n_bins: int = 20) -> Axes:
    """How sure the model is where it is right and where it is wrong: the probability of its label, as shares of each.

    A model that knows when it errs has the wrong ones on the left.

    Args:
        prediction: what `network.predict(x)` returns for classes, or probabilities (n, c).
        y: true classes, numbered from 0.
        ax: where to draw; default: a new figure.
        n_bins: of equal width, from one over the number of classes to 1.
    """
    if not is_classes(prediction):
        raise ValueError("confidence is that of a label: pass a prediction of classes, or probabilities (n, classes)")
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, got {n_bins}")
    probs = as_probs(prediction)
    metrics.accuracy(probs, y)  # says what is wrong with them
    sure = probs.max(axis=1)
    is_right = probs.argmax(axis=1) == metrics.as_array(y)
    ax = make_axes(ax, size=(5.2, 3.4))
    edges = np.linspace(1.0 / probs.shape[1], 1.0 + 1e-9, n_bins + 1)
    for chosen, colour, name, side in ((is_right, BLUE, "right", 0.25), (~is_right, ORANGE, "wrong", 0.75)):
        counts = np.histogram(np.maximum(sure[chosen], edges[0]), edges)[0]
        width = edges[1] - edges[0]
        middle = f", mean {sure[chosen].mean():.2f}" if chosen.any() else ""
        ax.bar(
            edges[:-1] + side * width, counts / max(1, counts.sum()), width=0.46 * width, color=colour,
            label=f"{name}: {int(chosen.sum()):,}{middle}",
        )  # fmt: skip
    ax.set(xlim=(edges[0], 1.0), xlabel="confidence", ylabel="share of each kind")
    legend(ax, loc="upper left", handlelength=1.0)
    return finish(ax)


def _by_chance(share: Floats, n: Any) -> tuple[Floats, Floats]:
    """Between which a held share lies in 95 % of samples of n."""
    chance = CHANCE_STDS * np.sqrt(share * (1.0 - share) / n)
    return np.maximum(share - chance, 0.0), np.minimum(share + chance, 1.0)


def _short(count: int) -> str:
    """A number in at most four signs."""
    return f"{count}" if count < 1000 else f"{count / 1000:.1f}k" if count < 9950 else f"{count / 1000:.0f}k"
