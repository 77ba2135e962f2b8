"""Whether a network has learned its targets by heart, and what others would find in data that it makes nothing of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bayesmp.diagnosis.findings import HINT, PROBLEM, Finding
from bayesmp.diagnosis.layers import mean_leverage
from bayesmp.diagnosis.told import Told
from bayesmp.heads import Regression

AS_BAD = 0.9  # share of the error of one guess for all from which rows left out count as not predicted
BY_HEART = 0.7  # share of the error of rows left out below which that of training rows is by heart
HOLDS_OWN = (0.8, 0.5)  # mean leverage, for real targets and labels, from which leave-one-out errors are too small
LEAST_GUESS = 0.2  # share of labels that the most frequent class must leave open for any of this
FEW_ROWS = 20  # below which given rows do not count
NEIGHBOURS, COMPARED = 5, 500  # rows that are averaged, and compared, to see whether like inputs have like targets


def judge_memory(network: Any, told: Told, prediction: Any, y: Tensor, *, is_training: bool) -> Iterator[Finding]:
    """Training rows that are met far better than rows left out, which are met no better than by one guess for all.

    Args:
        network, told: what was trained, and what training left behind.
        prediction, y: for given rows; those of training if `is_training`, which then do not count.
    """
    left_out = [error for error in told.history.loo_error if not math.isnan(error)]
    if not left_out:
        return
    is_real = y.is_floating_point()
    metrics, error = told.history[-1].metrics, left_out[-1]
    in_training = metrics["rmse"] if is_real else 1.0 - metrics["accuracy"]
    guess = error_of_one_guess(told, y)
    holds_own = mean_leverage(network, told) > HOLDS_OWN[0 if is_real else 1]
    has_rows = not is_training and len(y) >= FEW_ROWS
    if has_rows:
        if error < AS_BAD * guess and not holds_own:
            return  # rows of another kind
        error = error_of(prediction, y)
    if error < AS_BAD * guess or in_training > BY_HEART * error or (not is_real and guess < LEAST_GUESS):
        return
    head = network.head
    remedy = "Use fewer inputs or weights, or more rows; or there is nothing to find."
    if isinstance(head, Regression) and not head.is_learned:
        given = float(head.in_training(network.head_log_weights))
        remedy = f"The noise that was given, {given:.2g}, is too small: give more, or let it be learned."
    whose = "the rows given" if has_rows else "rows left out"
    unit = "are off by" if is_real else "are wrong in a share of"
    yield Finding(
        "memorised_noise",
        PROBLEM if has_rows else HINT,  # leave-one-out alone may be too harsh where rows hold their own outputs
        f"targets of training {unit} {in_training:.2g}, those of {whose} {error:.2g}, no better than with one guess "
        f"for all ({guess:.2g}): the network has learned its targets by heart, noise included. {remedy}",
        {"training_error": in_training, "error": error, "guess_error": guess},
    )


def error_of_one_guess(told: Told, y: Tensor) -> float:
    """Of the mean of the training targets, or of the most frequent of these labels."""
    if told.y_std is not None:
        return float(told.y_std.square().mean().sqrt())
    return 1.0 - float(torch.bincount(y.flatten()).max()) / len(y)


def error_of(prediction: Any, y: Tensor) -> float:
    """Root mean square error, or share of wrong labels, on given rows."""
    if y.is_floating_point():
        return float((prediction.mean - y.to(prediction.mean).reshape(prediction.mean.shape)).square().mean().sqrt())
    return float((prediction.probs.argmax(1) != y.to(prediction.probs.device)).double().mean())


def explained_otherwise(x: Tensor, y: Tensor) -> float:
    """R2 of real targets, each predicted without itself: by its nearest neighbours or a straight line, the better.

    Args:
        x, y: (n, ...) and (n, o); the first rows of them.

    Note:
        Targets that have nothing to do with the inputs have about -1 / NEIGHBOURS, and below 0.
    """
    inputs, targets = (part[:COMPARED].detach().cpu().double().flatten(1) for part in (x, y))
    n = len(inputs)
    if n < FEW_ROWS:
        return 0.0
    inputs = (inputs - inputs.mean(0)) / inputs.std(0).clamp_min(1e-12)
    targets = (targets - targets.mean(0)) / targets.std(0).clamp_min(1e-12)
    apart = torch.cdist(inputs, inputs).fill_diagonal_(math.inf)
    by_neighbours = targets[apart.topk(NEIGHBOURS, largest=False).indices].mean(1)
    rows = torch.cat([inputs, torch.ones(n, 1, dtype=torch.float64)], 1)
    ridge = rows.t() @ rows + 1e-3 * n * torch.eye(rows.shape[1], dtype=torch.float64)
    hat = rows @ torch.linalg.solve(ridge, rows.t())
    missed_by_line = (targets - hat @ targets) / (1.0 - hat.diagonal()[:, None]).clamp_min(0.01)
    missed = [(targets - by_neighbours).square().mean(0), missed_by_line.square().mean(0)]
    return float(torch.stack([1.0 - part.mean() for part in missed]).max())
