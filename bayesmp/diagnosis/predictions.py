"""Whether predictions for given data are as sure as they are right, and as good as leave-one-out promises."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmp import metrics
from bayesmp.diagnosis.faces import Face
from bayesmp.diagnosis.findings import HINT, PROBLEM, Finding
from bayesmp.diagnosis.layers import Learned
from bayesmp.diagnosis.told import Told

LEVEL = 0.9
CHANCE = 3.0  # standard errors that chance does not explain
COVERAGE_GAP = 0.05  # and by which coverage must be off to be worth a word
ECE_GAP = 0.03  # the same for the calibration error of classes, beyond what chance gives a calibrated model
N_DRAWS = 200  # of labels, to see what calibrated models score
LOO_GAP = 0.3  # nats between leave-one-out and given data: it may be off by .2 (lab notes, "judged both ways")
FEW_ROWS = 20  # below which nothing is said about calibration


def judge_signal(prediction: Any, layers: Sequence[Learned]) -> Iterator[Finding]:
    """Outputs that vary less over the data than they are uncertain: a signal-to-noise ratio of nil. Not where they tell
    classes apart all the same: what all outputs have in common is uncertain, and no matter there.
    """
    if len(prediction) < FEW_ROWS or _tells_classes(prediction):
        return
    mean = prediction.mean.double().reshape(len(prediction), -1)
    signal, noise = float(mean.var(0).mean()), float(prediction.epistemic_var.double().mean())
    if signal >= noise:
        return
    weakest = min(layers, key=lambda layer: layer.strength)
    yield Finding(
        "no_signal",
        HINT,
        f"over these rows the outputs vary by {math.sqrt(signal):.2g} (std), less than the {math.sqrt(noise):.2g} by "
        "which they "
        f"are uncertain: what was learned is hard to tell from nothing. The weakest is {weakest.name}: nine tenths "
        "of its "
        f"weights have |mean| below {weakest.strength:.2g} std. Check that rows of x and y belong together; else it "
        "takes more "
        "data, fewer inputs, or a simpler model.",
        {"signal_std": math.sqrt(signal), "epistemic_std": math.sqrt(noise), "weakest_ratio": weakest.strength},
    )


def _tells_classes(prediction: Any) -> bool:
    """Whether inputs say more of the label, in nats, than is not known of it because the weights are not."""
    if not hasattr(prediction, "probs"):
        return False
    mean = prediction.probs.double().mean(0)
    told = -float(torch.special.xlogy(mean, mean).sum()) - float(prediction.entropy.double().mean())
    return told > float(prediction.epistemic.double().mean())


def judge_calibration(prediction: Any, y: Tensor, face: Face) -> Iterator[Finding]:
    """Coverage of intervals or ECE of classes, against what chance explains."""
    if len(y) < FEW_ROWS:
        return
    if hasattr(prediction, "probs"):
        yield from _judge_classes(metrics.as_array(prediction.probs).astype(np.float64), metrics.as_array(y))
    else:
        yield from _judge_intervals(prediction, y.reshape(prediction.mean.shape), face)


def _judge_intervals(prediction: Any, y: Tensor, face: Face) -> Iterator[Finding]:
    n = y.numel()
    low, high = prediction.interval(LEVEL)
    held = metrics.interval_coverage(low, high, y)
    error = math.sqrt(LEVEL * (1.0 - LEVEL) / n)
    gap = held - LEVEL
    if abs(gap) < max(COVERAGE_GAP, CHANCE * error):
        return
    missed = float(((y.to(prediction.mean) - prediction.mean) / prediction.std).square().mean().sqrt())
    share = float((prediction.epistemic_var / prediction.var).mean())
    seen = (
        f"{100 * LEVEL:.0f} % intervals hold {100 * held:.0f} % of {n:,} targets (a calibrated model: "
        f"{100 * (LEVEL - 2 * error):.0f} to {min(100.0, 100 * (LEVEL + 2 * error)):.0f} %); errors are {missed:.2g} "
        "times as large as "
        f"promised, and {100 * share:.0f} % of the promised variance is epistemic."
    )
    numbers = {"coverage": held, "standard_error": error, "error_ratio": missed, "epistemic_share": share, "n": n}
    if gap < 0:
        yield Finding("too_sure", PROBLEM, f"{seen} {face.too_sure}", numbers)
    else:
        yield Finding("too_unsure", HINT, f"{seen} {face.too_unsure}", numbers)


def _judge_classes(probs: np.ndarray, y: np.ndarray) -> Iterator[Finding]:
    n, sure = len(y), probs.max(axis=1)
    right = float((probs.argmax(axis=1) == y).mean())
    ece = metrics.ece(probs, y)
    by_chance, spread = _ece_by_chance(probs)
    if ece < by_chance + max(ECE_GAP, CHANCE * spread):
        return
    gap = float(sure.mean()) - right
    seen = (
        f"on {n:,} rows the labels have a mean probability of {sure.mean():.3f}, and {right:.3f} of them are right "
        "(ECE "
        f"{ece:.3f}; a calibrated model: {by_chance:.3f} ± {spread:.3f})."
    )
    numbers = {"ece": ece, "ece_by_chance": by_chance, "confidence": float(sure.mean()), "accuracy": right, "n": n}
    if gap > 0:
        remedy = "These rows may be of another kind than the training data; else train longer, or on more rows."
        yield Finding("too_sure", PROBLEM, f"{seen} {remedy}", numbers)
    else:
        remedy = (
            "Labels are better than promised: train longer, until it is at rest; with few rows the link stays careful."
        )
        yield Finding("too_unsure", HINT, f"{seen} {remedy}", numbers)


def _ece_by_chance(probs: np.ndarray) -> tuple[float, float]:
    """Mean and std of the ECE if each label were right with the probability that it has."""
    rng = np.random.default_rng(0)
    sure, guess = probs.max(axis=1), probs.argmax(axis=1)
    other = (guess + 1) % probs.shape[1]
    scores = [metrics.ece(probs, np.where(rng.uniform(size=len(sure)) < sure, guess, other)) for _ in range(N_DRAWS)]
    return float(np.mean(scores)), float(np.std(scores))


def judge_leave_one_out(prediction: Any, y: Tensor, told: Told) -> Iterator[Finding]:
    """Given rows that are predicted worse than training rows were when they were left out."""
    known = [score for score in told.history.loo_nll if not math.isnan(score)]
    if not known or len(y) < FEW_ROWS:
        return
    log_prob = prediction.log_prob(y).double()
    per_row = log_prob.mean(1) if log_prob.ndim == 2 else log_prob
    found, spread = -float(per_row.mean()), float(per_row.std())
    error = spread * math.sqrt(1.0 / len(per_row) + 1.0 / told.n_rows)
    gap = found - known[-1]
    if gap > max(LOO_GAP, CHANCE * error):
        yield Finding(
            "worse_than_leave_one_out",
            PROBLEM,
            f"the NLL is {found:.3g} on the rows given and was {known[-1]:.3g} on training rows left out; chance "
            "explains a gap "
            f"of {CHANCE * error:.2g}. These rows are of another kind (other units, another time or place), or rows of "
            "the training data are near copies of each other.",
            {"nll": found, "loo_nll": known[-1], "standard_error": error},
        )
