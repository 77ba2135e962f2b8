"""What pictures are made of, in the forms that users hold: predictions, probabilities, means with their stds."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesmp import metrics

Floats = NDArray[np.float64]


def as_probs(prediction: Any) -> Floats:
    """Probabilities (n, c) of a prediction of classes, or of what holds them already."""
    return metrics.as_array(getattr(prediction, "probs", prediction)).astype(np.float64)


def is_classes(prediction: Any) -> bool:
    """Whether this is about classes (a ClassPrediction, or probabilities (n, c)) and not about real targets (a
    RegressionPrediction, or a pair of means and stds); a ValueError if it is neither.
    """
    if hasattr(prediction, "probs"):
        return True
    if all(hasattr(prediction, name) for name in ("epistemic_var", "noise_var")):
        return False
    if _is_pair(prediction):
        return False
    array = metrics.as_array(prediction)
    if array.dtype.kind == "f" and array.ndim == 2 and array.shape[1] > 1:
        return True
    raise ValueError(
        "expected what network.predict(x) returns, probabilities of shape (n, classes), or a pair (mean, std); got "
        f"{type(prediction).__name__} of shape {array.shape}"
    )


def _is_pair(prediction: Any) -> bool:
    """Whether this is a pair of means and stds; a list of two may also be two rows of probabilities, which sum to 1."""
    if not isinstance(prediction, (tuple, list)) or len(prediction) != 2:
        return False
    if isinstance(prediction, tuple):
        return True
    try:
        rows = np.stack([metrics.as_array(part) for part in prediction])
    except ValueError:  # not of one shape
        return True
    is_sure = rows.ndim == 2 and rows.dtype.kind == "f" and bool((rows >= 0.0).all())
    return rows.dtype.kind in "iuf" and not (is_sure and np.allclose(rows.sum(1), 1.0, atol=1e-3))


def central_levels(prediction: Any, y: Floats) -> Floats:
    """The level of the narrowest central interval that holds each target y (n,); prediction as for `is_classes`."""
    mean, std = as_gaussian(prediction)
    if len(y) != len(mean):
        raise ValueError(f"y must hold one target per prediction: expected {len(mean)}, got {len(y)}")
    if hasattr(prediction, "cdf"):
        below = metrics.as_array(prediction.cdf(y.reshape(tuple(prediction.mean.shape)))).astype(np.float64).reshape(-1)
    else:
        below = np.array([NormalDist().cdf(score) for score in (y - mean) / std])
    return np.abs(2.0 * below - 1.0)


def as_gaussian(prediction: Any) -> tuple[Floats, Floats]:
    """Mean and std of new targets, flat, of a RegressionPrediction or a pair."""
    mean, std = prediction if isinstance(prediction, (tuple, list)) else (prediction.mean, prediction.std)
    mean, std = (metrics.as_array(part).astype(np.float64) for part in (mean, std))
    if mean.shape != std.shape:
        raise ValueError(f"mean and std must have one shape, got {mean.shape} and {std.shape}")
    if not (std > 0.0).all():
        raise ValueError(f"std must be positive, got {std.min():.3g} as the smallest; the pair is (mean, std)")
    return mean.reshape(-1), std.reshape(-1)
