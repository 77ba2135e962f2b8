"""Pictures of results: each function takes results and an axes, draws, and returns the axes.

Matplotlib is imported when a function is called: `pip install bayesmp[plots]`. Without an axes the functions make a
figure of their own; save it with `ax.figure.savefig(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayesmp import metrics
from bayesmp.metrics import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#22262b"  # text and axes
SOFT = "#8a9099"  # secondary lines and text
BLUE = "#1f5fa6"  # the model
BANDS = ("#9fc0e3", "#c6dbf0", "#e4eef8")  # 1, 2, 3 standard deviations
ORANGE = "#d9730d"  # the truth, or what contradicts the model
FRAME = 1.25  # how far bands may reach beyond the data, in heights of the data
SERIES = (BLUE, ORANGE, "#3b8f5a", "#8c5fa8", "#b0413e", SOFT)


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
    ax = _axes(ax, size=(7.2, 4.0))
    grid, centre, spread = (_column(values) for values in (x, mean, std))
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
        values = _column(truth(grid)) if callable(truth) else _column(truth)[order]
        ax.plot(grid, values, color=ORANGE, linewidth=1.4, dashes=(4, 2.5), label="truth", zorder=7)
    if data is not None:
        x_data, y_data = _column(data[0]), _column(data[1])
        ax.scatter(x_data, y_data, s=11, color=INK, alpha=0.55, linewidths=0, label="data", zorder=8)
        _mark_range(ax, float(x_data.min()), float(x_data.max()))
        _keep_in_frame(ax, y_data)
    ax.set_xlim(grid[0], grid[-1])
    ax.set_xlabel("x")
    ax.set_ylabel("y")
    return _finish(ax, legend_order=["data", "truth", "mean", "±1 std", "±2 std", "±3 std"])


def training_history(
    history: Mapping[str, Sequence[float]] | Sequence[Mapping[str, float]],
    ax: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
) -> Axes:
    """Each number of the history against the epoch, its name and last value written at the end of the line.

    Args:
        history: a list of values per name, or one mapping from names to values per epoch.
        ax: where to draw; default: a new figure.
        names: which to draw, in this order; default: all that hold numbers, but for "epoch".
    """
    ax = _axes(ax, size=(6.4, 3.6))
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
        if len(finite) > 0:
            last = finite[-1]
            ends.append((float(steps[last]), float(values[last]), f"{name}  {values[last]:.3g}", colour))
    ax.set_xlabel("epoch")
    ax.locator_params(axis="x", integer=True)  # no half epochs
    _finish(ax)
    _label_ends(ax, ends)
    return ax


def reliability(probs: Array, y: Array, ax: Axes | None = None, *, n_bins: int = 15) -> Axes:
    """Accuracy against confidence in bins of equal width; on the diagonal the model is as sure as it is right.

    The area of a point is the share of examples in its bin, the vertical line its gap, faint where there are few
    examples. Arguments as for `metrics.ece`.
    """
    ax = _axes(ax, size=(4.4, 4.4))
    confidence, right, n_in_bin = metrics.reliability_bins(probs, y, n_bins=n_bins)
    used = n_in_bin > 0
    confidence, right, share = confidence[used], right[used], n_in_bin[used] / n_in_bin.sum()
    ax.plot([0, 1], [0, 1], color=SOFT, linewidth=1.0, dashes=(4, 2.5), zorder=1)
    ax.text(0.03, 0.07, "as sure as right", color=SOFT, fontsize=8.5, rotation=45, rotation_mode="anchor")
    strength = np.clip(0.15 + share * len(share), 0.0, 0.9)
    ax.vlines(confidence, confidence, right, color=[(ORANGE, a) for a in strength], linewidth=1.6, zorder=2)
    ax.scatter(confidence, right, s=18 + 420 * share, color=BLUE, edgecolor="white", linewidth=0.8, zorder=3)
    lines = [f"accuracy {metrics.accuracy(probs, y):.3f}", f"ECE {metrics.ece(probs, y, n_bins=n_bins):.3f}"]
    ax.text(0.97, 0.05, "\n".join(lines), transform=ax.transAxes, ha="right", color=INK, fontsize=9.5, linespacing=1.5)
    ax.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="confidence", ylabel="accuracy")
    ax.set_aspect("equal")
    return _finish(ax)


def predicted_against_true(mean: Array, std: Array, y: Array, ax: Axes | None = None, *, level: float = 0.9) -> Axes:
    """Predictions of real targets against the targets, with central intervals; those that miss the target are orange.

    Args:
        mean, std: of the predictive Gaussians, (n,).
        y: the targets, (n,).
        ax: where to draw; default: a new figure.
        level: probability that an interval is meant to hold its target with.
    """
    ax = _axes(ax, size=(4.8, 4.6))
    centre, spread, truth = (_column(values) for values in (mean, std, y))
    share = metrics.coverage(centre, spread, truth, level)
    half = NormalDist().inv_cdf((1.0 + level) / 2.0) * spread
    ends = [min(truth.min(), centre.min()), max(truth.max(), centre.max())]
    ax.plot(ends, ends, color=SOFT, linewidth=1.0, dashes=(4, 2.5), zorder=1)
    missed = np.abs(truth - centre) > half
    for chosen, colour, alpha in ((~missed, BLUE, 0.5), (missed, ORANGE, 0.9)):
        ax.errorbar(
            truth[chosen], centre[chosen], yerr=half[chosen], fmt="o", markersize=3.2, markeredgewidth=0.0,
            color=colour, ecolor=colour, elinewidth=0.7, alpha=alpha, zorder=2,
        )  # fmt: skip
    error = metrics.rmse(centre, truth)
    text = f"{100 * share:.0f} % in their {100 * level:.0f} % interval\nRMSE " + (
        f"{error:,.0f}" if error >= 10_000 else f"{error:.3g}"
    )
    ax.text(0.03, 0.97, text, transform=ax.transAxes, va="top", color=INK, fontsize=9.5, linespacing=1.5)
    ax.set(xlabel="true", ylabel="predicted")
    ax.locator_params(axis="x", nbins=5)  # long numbers would overlap
    return _finish(ax)


def confusion(probs: Array, y: Array, classes: Sequence[object], ax: Axes | None = None) -> Axes:
    """How often each true class (rows) is taken for each class (columns): numbers of examples, shaded by their share of
    the row. Arguments as for `metrics.accuracy`, and the names of the classes.
    """
    n = len(classes)
    ax = _axes(ax, size=(1.6 + 0.42 * n, 1.4 + 0.42 * n))
    guess, truth = metrics.as_array(probs).argmax(axis=1), metrics.as_array(y)
    counts = np.zeros((n, n), dtype=np.int64)
    np.add.at(counts, (truth, guess), 1)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    ax.imshow(share, cmap="Blues", vmin=0.0, vmax=1.3)
    if n <= 20:  # more would not be legible
        for i, j in zip(*np.nonzero(counts), strict=True):
            ink = "white" if share[i, j] > 0.6 else INK
            ax.text(j, i, f"{counts[i, j]}", ha="center", va="center", fontsize=8.5, color=ink)
    names = [text if len(text) <= 14 else f"{text[:13]}…" for text in map(str, classes)]
    steps = range(0, n, max(1, n // 20))
    ax.set_xticks(list(steps), [names[k] for k in steps], rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(list(steps), [names[k] for k in steps])
    ax.set(xlabel="predicted", ylabel="true")
    return _finish(ax)


def require_matplotlib() -> None:
    """Raise an ImportError that says what to install unless Matplotlib is there."""
    try:
        import matplotlib.pyplot  # noqa: F401
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'bayesmp[plots]'") from error


def _axes(ax: Axes | None, *, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    require_matplotlib()
    import matplotlib.pyplot as plt

    _, new = plt.subplots(figsize=size, layout="constrained", dpi=150)
    return new


def _finish(ax: Axes, *, legend_order: Sequence[str] = ()) -> Axes:
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


def _column(values: Any) -> NDArray[np.float64]:
    array = metrics.as_array(values).astype(np.float64)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"expected one number per point, shape (n,) or (n, 1), got {array.shape}")
    return array
