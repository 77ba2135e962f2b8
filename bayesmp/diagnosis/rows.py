"""Whether rows are on the scale that priors expect and like those of training, and predicted as well as promised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmp import metrics
from bayesmp.basics.checks import LARGEST_SIZE
from bayesmp.diagnosis.advice import Found, finding
from bayesmp.diagnosis.run_summary import RunSummary, moments

FAR, WIDER = 1.0, 3.0  # stds by which the mean of a column may move, beside what chance does; times its std may grow
FEW_COLUMNS, MANY_COLUMNS = 50, 0.1  # up to which a single column that has moved counts; share of more that must have
LEAST_STD = 0.1  # of a column, in stds of all: one that was constant in training may vary a little
OTHER_UNITS = 4.0  # factor or stds by which targets in other units differ
CHANCE = 3.0  # standard errors that chance does not explain; 4 for the many columns of a table
LEVEL, COVERAGE_GAP = 0.9, 0.05  # of intervals, and by which their coverage must be off to be worth a word
ECE_GAP = 0.03  # the same for the calibration error of classes, beyond what chance gives a calibrated model
N_DRAWS = 200  # of labels, to see what calibrated models score
LOO_GAP = 0.3  # nats between leave-one-out and given data: its own error may be a tenth or two (docs/lab-notes.md)
FEW_ROWS = 20  # below which nothing is said about calibration


def judge_inputs(x: Tensor, summary: RunSummary | None) -> Found:
    """Scale of the inputs, of those of training where they are known; then whether the given ones are like them."""
    mean, std = moments(x) if summary is None else (summary.x_mean, summary.x_std)
    whose, size = "the inputs" if summary is None else "the training inputs", (mean.square() + std.square()).sqrt()
    k, largest, column = int(size.argmax()), float(size.max()), "column {}" if x.ndim == 2 else "a pixel"
    if largest > LARGEST_SIZE:
        seen = f"{column.format(k)} has mean {mean[k]:.3g} and std {std[k]:.3g}"
        yield finding("inputs_not_scaled", column=k, mean=float(mean[k]), std=float(std[k]), whose=whose, seen=seen)
    elif largest < 1.0 / LARGEST_SIZE:
        seen = f"no column has a root mean square above {largest:.3g}"
        yield finding("inputs_not_scaled", largest=largest, whose=whose, seen=seen)
    if summary is None:
        return
    (given_mean, given_std), n = moments(x), len(mean)
    scale = std.clamp_min(LEAST_STD * float(std.square().mean().sqrt()) + 1e-12)
    moved, wider = (given_mean - mean).abs() / scale, given_std / scale
    is_off = (moved > FAR + (CHANCE + 1.0) / len(x) ** 0.5) | ((len(x) > 1) & (wider > WIDER))
    if (n_off := int(is_off.sum())) >= (1 if n <= FEW_COLUMNS else MANY_COLUMNS * n):
        k = int(torch.where(is_off, torch.maximum(moved, wider), -1.0).argmax())
        numbers = {"n_columns": n_off, "column": k, **_figures(k, given_mean, given_std, mean, std)}
        yield finding("inputs_unlike_training", n=str(n), where=column.format(k), **numbers)


def judge_targets(y: Tensor, summary: RunSummary | None) -> Found:
    """Scale of real targets; and of those given, against those of training."""
    if not y.is_floating_point():
        return
    (given_mean, given_std), whose = moments(y), "the targets"
    mean, std = given_mean, given_std
    if summary is not None and summary.y_mean is not None and summary.y_std is not None:
        mean, std, whose = summary.y_mean, summary.y_std, "the training targets"
    size = (mean.square() + std.square()).sqrt()
    off = torch.maximum((given_mean - mean).abs(), given_std) / std.clamp_min(1e-12)
    if float(size.max()) > LARGEST_SIZE or 0.0 < float(size.max()) < 1.0 / LARGEST_SIZE:
        k = int((size.log().abs() if bool((size > 0).all()) else -size).argmax())
        yield finding("targets_not_scaled", mean=float(mean[k]), std=float(std[k]), whose=whose)
    elif mean is not given_mean and len(y) > 1 and float(off.max()) > OTHER_UNITS:
        yield finding("targets_not_scaled units", **_figures(int(off.argmax()), given_mean, given_std, mean, std))


def judge_signal(prediction: Any) -> Found:
    """Outputs that vary less over the data than they are uncertain, unless they tell classes apart all the same."""
    if len(prediction) < FEW_ROWS:
        return
    if hasattr(prediction, "probs"):  # what inputs say of the label, and what is unknown of it with the weights: nats
        shares = prediction.probs.double().mean(0)
        told = -float(torch.special.xlogy(shares, shares).sum()) - float(prediction.entropy.double().mean())
        if told > float(prediction.epistemic.double().mean()):
            return
    mean = prediction.mean.double().reshape(len(prediction), -1)
    signal, noise = float(mean.var(0).mean()), float(prediction.epistemic_var.double().mean())
    if signal < noise:
        yield finding("no_signal", signal_std=signal**0.5, epistemic_std=noise**0.5)


def judge_calibration(prediction: Any, y: Tensor) -> Found:
    """Coverage of intervals or ECE of classes, against what chance explains."""
    if len(y) >= FEW_ROWS:
        yield from (_judge_classes if hasattr(prediction, "probs") else _judge_intervals)(prediction, y)


def _judge_intervals(prediction: Any, y: Tensor) -> Found:
    y, n = y.to(prediction.mean).reshape(prediction.mean.shape), y.numel()
    low, high = prediction.interval(LEVEL)
    held, error = metrics.interval_coverage(low, high, y), math.sqrt(LEVEL * (1.0 - LEVEL) / n)
    if abs(held - LEVEL) >= max(COVERAGE_GAP, CHANCE * error):
        missed = float(((y - prediction.mean) / prediction.std).square().mean().sqrt())
        share = float((prediction.epistemic_var / prediction.var).mean())
        usual = f"a calibrated model: {LEVEL - 2 * error:.0%} to {min(1.0, LEVEL + 2 * error):.0%}"
        seen = f"90 % intervals hold {held:.0%} of {n:,} targets ({usual}); errors "
        seen += f"are {missed:.2g} times as large as promised, and {share:.0%} of the promised variance is epistemic."
        numbers = {"coverage": held, "standard_error": error, "error_ratio": missed, "epistemic_share": share, "n": n}
        yield finding("too_sure" if held < LEVEL else "too_unsure", seen=seen, **numbers)


def _judge_classes(prediction: Any, y: Tensor) -> Found:
    probs, labels = metrics.as_array(prediction.probs).astype(np.float64), metrics.as_array(y)
    if len(np.unique(labels)) == 1 and probs.shape[1] > 1:
        yield finding("one_class_only", label=int(y[0]), n=f"{len(y):,}", n_classes=str(probs.shape[1]))
    sure, guess, ece = probs.max(axis=1), probs.argmax(axis=1), metrics.ece(probs, labels)
    rng, other = np.random.default_rng(0), (guess + 1) % probs.shape[1]
    draws = (np.where(rng.uniform(size=len(sure)) < sure, guess, other) for _ in range(N_DRAWS))  # a calibrated model's
    scores = [metrics.ece(probs, drawn) for drawn in draws]
    by_chance, spread = float(np.mean(scores)), float(np.std(scores))
    if ece >= by_chance + max(ECE_GAP, CHANCE * spread):
        promised, right = float(sure.mean()), float((guess == labels).mean())
        seen = f"on {len(y):,} rows the labels have a mean probability of {promised:.3f}, and {right:.3f} of them are "
        seen += f"right (ECE {ece:.3f}; a calibrated model: {by_chance:.3f} ± {spread:.3f})."
        numbers = {"ece": ece, "ece_by_chance": by_chance, "confidence": promised, "accuracy": right, "n": len(y)}
        yield finding("too_sure labels" if promised > right else "too_unsure labels", seen=seen, **numbers)


def judge_leave_one_out(prediction: Any, y: Tensor, summary: RunSummary) -> Found:
    """Given rows that are predicted worse than training rows were when they were left out."""
    if not summary.loo_nll or len(y) < FEW_ROWS:
        return
    y = y.to(prediction.mean.device)
    log_prob = prediction.log_prob(y.reshape(prediction.mean.shape) if y.is_floating_point() else y)
    per_row, known = log_prob.double().reshape(len(y), -1).mean(1), summary.loo_nll[-1]
    found, error = -float(per_row.mean()), float(per_row.std()) * math.sqrt(1.0 / len(y) + 1.0 / summary.n_rows)
    if found - known > max(LOO_GAP, CHANCE * error):
        words = {"chance": f"{CHANCE * error:.2g}"}
        yield finding("worse_than_leave_one_out", nll=found, loo_nll=known, standard_error=error, **words)


def _figures(k: int, mean: Tensor, std: Tensor, own_mean: Tensor, own_std: Tensor) -> dict[str, float]:
    found = {"mean": mean, "std": std, "training_mean": own_mean, "training_std": own_std}
    return {name: float(values[k]) for name, values in found.items()}
