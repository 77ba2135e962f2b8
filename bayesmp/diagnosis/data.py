"""Whether inputs and targets are on the scale that priors expect, and like those of training."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bayesmp.basics import checks
from bayesmp.diagnosis.faces import Face
from bayesmp.diagnosis.findings import HINT, PROBLEM, Finding
from bayesmp.diagnosis.told import Told, moments

FAR = 1.0  # stds by which the mean of a column may move, beside what chance does
WIDER = 3.0  # times by which its std may grow
CHANCE = 4.0  # standard errors that chance does not explain
FEW_COLUMNS = 50  # up to which a single column that has moved counts
MANY_COLUMNS = 0.1  # share of more columns that must have moved: some pixels always do
LEAST_STD = 0.1  # of a column, in stds of all: one that was constant in training may vary a little
OTHER_UNITS = 4.0  # factor or stds by which targets in other units differ


def judge_inputs(x: Tensor, told: Told | None, face: Face) -> Iterator[Finding]:
    """Scale of the inputs; and of those given, against those of training where they are known."""
    is_known = told is not None
    mean, std = moments(x)
    own = (told.x_mean, told.x_std) if told is not None else (mean, std)
    size = (own[0].square() + own[1].square()).sqrt()
    largest = float(size.max())
    whose = "the training inputs" if is_known else "the inputs"
    remedy = "scale them with bayesmp.data.standardise and train again, or use MPRegressor or MPClassifier, which do it"
    if largest > checks.LARGEST_SIZE:
        column = int(size.argmax())
        yield Finding(
            "inputs_not_scaled",
            PROBLEM,
            f"{whose} are not of order one: {_column(column, x)} has mean {own[0][column]:.3g} and std "
            f"{own[1][column]:.3g}; {remedy}.",
            {"column": column, "mean": float(own[0][column]), "std": float(own[1][column])},
        )
    elif largest < 1.0 / checks.LARGEST_SIZE:
        yield Finding(
            "inputs_not_scaled",
            PROBLEM,
            f"{whose} are far below order one: no column has a root mean square above {largest:.3g}; {remedy}.",
            {"largest": largest},
        )
    if told is not None:
        yield from _judge_likeness(x, mean, std, told, face)


def _judge_likeness(x: Tensor, mean: Tensor, std: Tensor, told: Told, face: Face) -> Iterator[Finding]:
    """Columns whose mean or spread is not that of training."""
    typical = float(told.x_std.square().mean().sqrt())
    scale = told.x_std.clamp_min(LEAST_STD * typical + 1e-12)
    moved = (mean - told.x_mean).abs() / scale
    wider = std / scale
    enough = len(x) > 1
    is_off = (moved > FAR + CHANCE / len(x) ** 0.5) | (enough & (wider > WIDER))
    needed = 1 if len(mean) <= FEW_COLUMNS else MANY_COLUMNS * len(mean)
    if int(is_off.sum()) < needed:
        return
    column = int(torch.where(is_off, torch.maximum(moved, wider), -1.0).argmax())
    yield Finding(
        "inputs_unlike_training",
        PROBLEM,
        f"{int(is_off.sum())} of {len(mean)} inputs are not as they were in training: {_column(column, x)} has mean "
        f"{mean[column]:.3g} and std {std[column]:.3g}, where training had {told.x_mean[column]:.3g} and "
        f"{told.x_std[column]:.3g}; {face.unlike_training}",
        {
            "n_columns": int(is_off.sum()),
            "column": column,
            "mean": float(mean[column]),
            "std": float(std[column]),
            "training_mean": float(told.x_mean[column]),
            "training_std": float(told.x_std[column]),
        },
    )


def judge_targets(y: Tensor, told: Told | None, face: Face) -> Iterator[Finding]:
    """Scale of real targets; and of those given, against those of training."""
    if not y.is_floating_point():
        return
    mean, std = moments(y)
    is_known = told is not None and told.y_mean is not None and told.y_std is not None
    own_mean, own_std = mean, std
    if told is not None and told.y_mean is not None and told.y_std is not None:
        own_mean, own_std = told.y_mean, told.y_std
    size = (own_mean.square() + own_std.square()).sqrt()
    worst = int((size.log().abs() if bool((size > 0).all()) else -size).argmax())
    if float(size.max()) > checks.LARGEST_SIZE or 0.0 < float(size.max()) < 1.0 / checks.LARGEST_SIZE:
        whose = "the training targets" if is_known else "the targets"
        yield Finding(
            "targets_not_scaled",
            PROBLEM,
            f"{whose} are not of order one: mean {own_mean[worst]:.3g}, std {own_std[worst]:.3g}; scale them "
            "(scaling = bayesmp.data.Scaling.fit(y)), train again, and bring predictions back with .undo(scaling).",
            {"mean": float(own_mean[worst]), "std": float(own_std[worst])},
        )
        return
    if not is_known or len(y) < 2:
        return
    scale = own_std.clamp_min(1e-12)
    moved, ratio = (mean - own_mean).abs() / scale, std / scale
    off = torch.maximum(moved, ratio)
    if float(off.max()) > OTHER_UNITS:
        column = int(off.argmax())
        yield Finding(
            "targets_not_scaled",
            PROBLEM,
            f"the targets given are not in the units of training: mean {mean[column]:.3g} and std {std[column]:.3g}, "
            f"where training had {own_mean[column]:.3g} and {own_std[column]:.3g}; {face.other_units}",
            {
                "mean": float(mean[column]),
                "std": float(std[column]),
                "training_mean": float(own_mean[column]),
                "training_std": float(own_std[column]),
            },
        )


def judge_missing_classes(y: Tensor, n_classes: int) -> Iterator[Finding]:
    """Given labels that are all of one class tell nothing about calibration."""
    found = torch.unique(y)
    if not y.is_floating_point() and n_classes > 1 and len(found) == 1 and len(y) >= 20:
        yield Finding(
            "one_class_only",
            HINT,
            f"all {len(y):,} labels given are class {int(found[0])} of {n_classes}; give rows of all classes, or "
            "calibration "
            "and accuracy say little.",
            {"label": int(found[0])},
        )


def _column(column: int, x: Tensor) -> str:
    return f"column {column}" if x.ndim == 2 else "a pixel"
