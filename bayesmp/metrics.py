r"""How good and how honest predictions are: arrays or tensors in, a float out.

Shapes: `probs` (b, c) holds one probability vector per example, `y` (b,) the true classes as whole numbers; `mean`,
`var`, `std` and the `y` of a regression have one shape, whatever it is. Everything is computed in float64.
"""

from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Array: TypeAlias = ArrayLike | Tensor
Floats: TypeAlias = NDArray[np.float64]

SUM_TOLERANCE = 1e-2  # how far from 1 a probability vector may sum: bfloat16 rounds by up to 4e-3


# Regression


def rmse(mean: Array, y: Array) -> float:
    """Root of the mean squared error."""
    mean, y = _same_shape(mean=mean, y=y)
    return float(np.sqrt(np.mean(np.square(y - mean))))


def gaussian_nll(mean: Array, var: Array, y: Array) -> float:
    r"""Mean negative log-density of y: 1/2 log(2 \pi var) + (y - mean)^2 / (2 var).

    `var` is the variance of y, noise included.
    """
    mean, var, y = _same_shape(mean=mean, var=var, y=y)
    if not (var > 0).all():
        raise ValueError(f"var must be positive, its least value is {var.min()}")
    return float(np.mean(0.5 * np.log(2 * np.pi * var) + 0.5 * np.square(y - mean) / var))


def coverage(mean: Array, std: Array, y: Array, level: float = 0.9) -> float:
    r"""Fraction of y inside the central interval mean ± \Phi^{-1}((1 + level) / 2) std; calibrated: close to level.

    That is the interval of a Gaussian; for noise with tails there is `interval_coverage`.
    """
    mean, std, y = _same_shape(mean=mean, std=std, y=y)
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is a probability between 0 and 1, got {level}")
    half_width = NormalDist().inv_cdf((1.0 + level) / 2.0) * std
    return float(np.mean(np.abs(y - mean) <= half_width))


def interval_coverage(low: Array, high: Array, y: Array) -> float:
    """Fraction of y inside intervals with these ends, as `prediction.interval(level)` gives them."""
    low, high, y = _same_shape(low=low, high=high, y=y)
    return float(np.mean((low <= y) & (y <= high)))


# Classification


def accuracy(probs: Array, y: Array) -> float:
    """Fraction of examples whose most probable class is the true one."""
    return top_k_accuracy(probs, y, k=1)


def top_k_accuracy(probs: Array, y: Array, k: int = 5) -> float:
    """Fraction of examples whose true class is among the k most probable; of equals, the lower class comes first."""
    probs, y = _check_classes(probs, y)
    if not 1 <= k <= probs.shape[1]:
        raise ValueError(f"k must lie between 1 and the number of classes, {probs.shape[1]}, got {k}")
    best = np.argsort(-probs, axis=1, kind="stable")[:, :k]
    return float(np.mean((best == y[:, None]).any(axis=1)))


def nll(probs: Array, y: Array, *, floor: float = 0.0) -> float:
    """Mean negative log-probability of the true class.

    Args:
        probs: (b, c).
        y: (b,).
        floor: probabilities below it count as it. With the default, a true class of probability 0 gives infinity.
    """
    probs, y = _check_classes(probs, y)
    with np.errstate(divide="ignore"):
        return float(-np.mean(np.log(np.maximum(probs[np.arange(len(y)), y], floor))))


def brier(probs: Array, y: Array) -> float:
    r"""Mean squared distance of the probability vector from the true class, \sum_j (p_j - [j = y])^2, from 0 to 2."""
    probs, y = _check_classes(probs, y)
    return float(np.mean(np.square(probs - _one_hot(y, probs.shape[1])).sum(axis=1)))


def entropy(probs: Array) -> Floats:
    r"""Entropy -\sum_j p_j log p_j of each probability vector, in nats: (b, c) -> (b,)."""
    probs = _check_probs(probs)
    positive = np.where(probs > 0, probs, 1.0)  # p log p -> 0
    return np.asarray(-np.sum(probs * np.log(positive), axis=1))


# Calibration


def reliability_bins(probs: Array, y: Array, *, n_bins: int = 15) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Mean confidence, accuracy and number of examples, each (n_bins,), by the probability of the top class.

    The bins ((k-1)/n_bins, k/n_bins] have equal width; an empty one has NaN for its two means.
    """
    probs, y = _check_classes(probs, y)
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, got {n_bins}")
    confidence = probs.max(axis=1)
    is_right = probs.argmax(axis=1) == y
    index = np.clip(np.ceil(confidence * n_bins).astype(np.int64) - 1, 0, n_bins - 1)
    n_in_bin = np.bincount(index, minlength=n_bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(index, weights=confidence, minlength=n_bins) / n_in_bin
        mean_accuracy = np.bincount(index, weights=is_right, minlength=n_bins) / n_in_bin
    return mean_confidence, mean_accuracy, n_in_bin


def ece(probs: Array, y: Array, *, n_bins: int = 15) -> float:
    r"""Expected calibration error of the top class: \sum_k (n_k / n) |accuracy_k - confidence_k| over equal-width bins.

    Source: Guo et al., "On Calibration of Modern Neural Networks", 2017.
    """
    confidence, right, n_in_bin = reliability_bins(probs, y, n_bins=n_bins)
    used = n_in_bin > 0
    return float(np.sum(n_in_bin[used] * np.abs(right[used] - confidence[used])) / n_in_bin.sum())


def ece_median_variance(probs: Array, y: Array, *, min_size: int = 20) -> float:
    r"""Calibration error of the whole probability vector: \sum_k (n_k / n) ||mean p in k - class frequencies in k||^2.

    The bins come from splitting the examples again and again: take the class whose probability varies most among
    the examples of the bin, and split at its median into "below" and "not below"; keep the bin whole when either
    part would have fewer than `min_size` examples.

    This is our reading of the ECE that the message-passing paper reports. It is a squared distance, so its numbers
    cannot be compared with those of `ece`: report both.

    Note:
        The class frequencies of a bin of m examples carry sampling noise of about (1 - \sum_j p_j^2) / m, which does
        not cancel: even a perfectly calibrated model scores above 0.

    Source: binning of Widmann, Lindsten and Zachariah, "Calibration tests in multi-class classification", 2019.
    """
    probs, y = _check_classes(probs, y)
    if not 1 <= min_size <= len(y):
        raise ValueError(f"min_size must lie between 1 and the number of examples, {len(y)}, got {min_size}")
    gap = probs - _one_hot(y, probs.shape[1])
    total = 0.0
    open_bins = [np.arange(len(y))]
    while open_bins:
        rows = open_bins.pop()
        values = probs[rows, probs[rows].var(axis=0).argmax()]
        is_below = values < np.median(values)
        n_below = int(is_below.sum())
        if min(n_below, len(rows) - n_below) < min_size:
            total += len(rows) * float(np.square(gap[rows].mean(axis=0)).sum())
        else:
            open_bins += [rows[is_below], rows[~is_below]]
    return total / len(y)


# Telling familiar data from unfamiliar


def auroc(score: Array, is_positive: Array) -> float:
    """Probability that a random positive example has a higher score than a random negative one; ties count half."""
    from sklearn.metrics import auc

    return float(auc(*roc(score, is_positive)))


def roc(score: Array, is_positive: Array) -> tuple[Floats, Floats]:
    """Shares of negative and of positive examples that score at least as high as a limit, (k,) each, from 0 to 1.

    There is one limit per score, from the highest one down, equal ones together; the area below is `auroc`.
    """
    from sklearn.metrics import roc_curve  # scikit-learn takes a second to import

    score, is_positive = _same_shape(score=score, is_positive=is_positive)
    positive = is_positive.reshape(-1) > 0.5
    if positive.all() or not positive.any():
        raise ValueError(f"need examples of both kinds, got {positive.sum()} positive and {(~positive).sum()} negative")
    ranks = np.unique(score, return_inverse=True)[1].reshape(-1)  # scores may be infinite
    false_alarms, hits, _ = roc_curve(positive, ranks, drop_intermediate=False)
    return false_alarms, hits


def ood_auroc(probs_in: Array, probs_out: Array) -> float:
    """AUROC of the predictive entropy for telling unfamiliar examples (b', c) from familiar ones (b, c)."""
    score = np.concatenate([entropy(probs_in), entropy(probs_out)])
    is_out = np.arange(len(score)) >= len(as_array(probs_in))
    return auroc(score, is_out)


# What comes in


def as_array(values: Array) -> NDArray[Any]:
    """A numpy array of the values, whichever device, type or list they come from."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.double() if values.dtype is torch.bfloat16 else values).numpy()
    return np.asarray(values)


def _same_shape(**named: Array) -> tuple[Floats, ...]:
    """The values as float64, after a check that nothing is broadcast silently; (b, 1) counts as (b,)."""
    arrays = {name: as_array(values).astype(np.float64) for name, values in named.items()}
    arrays = {name: array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array for name, array in arrays.items()}
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"all shapes must be equal, got {shapes}")
    for name, array in arrays.items():
        if array.size == 0:
            raise ValueError(f"{name} is empty")
        if np.isnan(array).any():
            raise ValueError(f"{name} has NaN values")
    return tuple(arrays.values())


def _check_probs(probs: Array) -> Floats:
    checked = as_array(probs).astype(np.float64)
    if checked.ndim != 2 or checked.size == 0:
        raise ValueError(f"probs must have shape (examples, classes), got {checked.shape}")
    if not (checked >= 0).all():
        raise ValueError("probs has negative or NaN values; pass probabilities, not logits")
    worst = float(np.abs(checked.sum(axis=1) - 1.0).max())
    if worst > SUM_TOLERANCE:
        raise ValueError(f"each row of probs must sum to 1, the worst is off by {worst:.3g}")
    return checked


def _check_classes(probs: Array, y: Array) -> tuple[Floats, NDArray[np.int64]]:
    checked, labels = _check_probs(probs), as_array(y)
    if labels.shape != (len(checked),):
        raise ValueError(f"y must have shape ({len(checked)},) to match probs {checked.shape}, got {labels.shape}")
    if np.issubdtype(labels.dtype, np.floating) and bool((labels == np.floor(labels)).all()):
        labels = labels.astype(np.int64)  # a column of a table often holds whole numbers so
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"y must hold whole numbers, got {labels.dtype}; for labels of other kinds: "
            "classes, y = np.unique(labels, return_inverse=True)"
        )
    if labels.min() < 0 or labels.max() >= checked.shape[1]:
        raise ValueError(f"y must lie in 0 to {checked.shape[1] - 1}, got {labels.min()} to {labels.max()}")
    return checked, labels.astype(np.int64)


def _one_hot(y: NDArray[np.int64], n_classes: int) -> Floats:
    return np.eye(n_classes)[y]
