"""Scores of predictions, under the names that all tables use."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesmp import metrics
from bayesmp.heads import RegressionPrediction
from bayesmp.metrics import Array

DEFINITIONS = """\
NLL: mean -log p(true class). Brier: sum over classes of the squared distance, 0 to 2. ECE: top label, 15 bins of equal
width, absolute gap. ECE2: the paper's variant, whole vector, median-variance bins, squared distance."""


def class_scores(probs: Array, y: Array) -> dict[str, float]:
    """Accuracy, top-5, NLL, Brier score and both calibration errors; NaN for all if a probability is not finite."""
    if not torch.as_tensor(probs).isfinite().all():
        return dict.fromkeys(("accuracy", "top-5", "NLL", "Brier", "ECE", "ECE2"), math.nan)
    return {
        "accuracy": metrics.accuracy(probs, y),
        "top-5": metrics.top_k_accuracy(probs, y, k=5),
        "NLL": metrics.nll(probs, y),
        "Brier": metrics.brier(probs, y),
        "ECE": metrics.ece(probs, y),
        "ECE2": metrics.ece_median_variance(probs, y),
    }


def regression_scores(prediction: RegressionPrediction, y: Array) -> dict[str, float]:
    """RMSE and NLL of one output; NaN if a prediction is not finite."""
    mean, var = prediction.mean[:, 0], prediction.var[:, 0]
    if not (mean.isfinite().all() and var.isfinite().all()):
        return {"RMSE": math.nan, "NLL": math.nan}
    return {"RMSE": metrics.rmse(mean, y), "NLL": metrics.gaussian_nll(mean, var, y)}


def all_finite(tensors: Sequence[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
