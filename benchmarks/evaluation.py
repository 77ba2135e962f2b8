"""Scores of predictions, under the names that all tables use, and what they are computed on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from bayesmp import metrics
from bayesmp.data import Scaling
from bayesmp.heads import RegressionPrediction
from bayesmp.metrics import Array
from benchmarks.datasets import Images

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
    mean, var = prediction.mean, prediction.var
    if not (mean.isfinite().all() and var.isfinite().all()):
        return {"RMSE": math.nan, "NLL": math.nan}
    return {"RMSE": metrics.rmse(mean, y), "NLL": -float(prediction.log_prob(y).double().mean())}


def entropy(probs: Tensor) -> Tensor:
    """Entropy of each row in nats, in float64: (n, c) -> (n,)."""
    probs = probs.double()
    return -torch.special.xlogy(probs, probs).sum(1)


def mixture(members: Iterable[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor]:
    r"""Mean of the members' probabilities (n, c), and its epistemic uncertainty (n,), in float64.

    The latter is the mutual information of label and member, H(mean p) - mean H(p). A member that tells its own
    epistemic uncertainty counts with H(p) less that, so that what is unknown inside of members adds up with what
    differs between them.

    Args:
        members: probabilities (n, c) and epistemic uncertainty (n,) or None, one pair at a time.
    """
    n_members, total, aleatoric = 0, torch.zeros(()), torch.zeros(())
    for probs, epistemic in members:
        n_members += 1
        total = total.to(probs.device) + probs.double()
        aleatoric = aleatoric.to(probs.device) + entropy(probs) - (0.0 if epistemic is None else epistemic)
    mean = total / n_members
    return mean, entropy(mean) - aleatoric / n_members


def separation(familiar: Tensor, unfamiliar: Tensor) -> float:
    """AUROC of a score, (n,) and (m,), that should be higher for unfamiliar inputs; NaN if a score is not finite."""
    score = torch.cat([familiar, unfamiliar])
    if not score.isfinite().all():
        return math.nan
    return metrics.auroc(score, torch.arange(len(score)) >= len(familiar))


def hold_out(images: Images, n_held_out: int, *, limit: int | None = None) -> Images:
    """The last training images in place of the test set, and the first ones (all others without limit) to train on.

    All are scaled anew, by the mean and std of those that are left to train on.
    """
    n_left = len(images.x_train) - n_held_out
    if n_held_out < 1 or n_left < 1:
        raise ValueError(f"can hold out 1 to {len(images.x_train) - 1} training images here, got {n_held_out}")
    x_train, x_test = images.x_train[:n_left][:limit], images.x_train[n_left:].cpu()
    mean = x_train.mean(dtype=torch.float64).item()
    std = (x_train - mean).square().mean(dtype=torch.float64).sqrt().item()
    old = images.scaling
    return Images(
        (x_train - mean) / std,
        images.y_train[:n_left][:limit].clone(),
        (x_test - mean) / std,
        images.y_train[n_left:].cpu(),
        Scaling(old.mean + old.std * mean, old.std * std),
    )


def all_finite(tensors: Sequence[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
