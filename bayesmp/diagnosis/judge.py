"""All judgements about a network, in one place."""

from __future__ import annotations

from typing import Any

import torch

from bayesmp.basics import checks, examples
from bayesmp.diagnosis import data, fits, layers, predictions, runs
from bayesmp.diagnosis.faces import NETWORK, Face
from bayesmp.diagnosis.findings import PROBLEM, Diagnosis, Finding
from bayesmp.diagnosis.told import Told

MOST_ROWS = 5000  # of the data given that are predicted

CONSEQUENCES = {  # of a finding, which would only lead astray beside it
    "memorised_noise": ("prior_too_narrow", "prior_too_wide", "no_signal", "ended_in_a_jump", "link_far_off"),
    "stuck_at_noise": ("prior_too_narrow", "no_signal", "too_unsure"),
}


def diagnose(network: Any, x: Any, y: Any = None, *, trainer: Any = None, face: Face = NETWORK) -> Diagnosis:
    """What looks wrong with a trained network, judged on rows that it was not trained on.

    Args:
        network: trained.
        x, y: inputs and targets as for training, or a torch Dataset of both as x; of more than 5,000 rows a random
            part. With the training data themselves nothing is said about calibration.
        trainer: of the network, if it still exists.
        face: words of those who ask.
    """
    x, y = examples.as_arrays(x, y)
    x = checks.check_inputs(x, network.input_shape, network.dtype)
    y = network.head.check_more_targets(y, network.n_outputs)
    checks.check_lengths(x, y)
    has_begun = trainer is None or trainer.history.stopped != ""
    if not network.has_learned or not has_begun:
        raise ValueError("there is nothing to diagnose yet: this network has not been trained (bayesmp.fit)")
    told: Told | None = network.told
    if told is None and trainer is not None:  # its run was interrupted
        told = Told.of(trainer.history, trainer.x, trainer.y)
    is_training = told is not None and told.is_about(x, y)
    n_rows = len(x)
    if n_rows > MOST_ROWS:
        chosen = torch.randperm(n_rows, generator=torch.Generator().manual_seed(0))[:MOST_ROWS]
        x, y = x[chosen.to(x.device)], y[chosen.to(y.device)]

    learned = layers.learned_by(network)
    found: list[Finding] = [
        *data.judge_inputs(x, told, face),
        *data.judge_targets(y, told, face),
        *layers.judge_units(network, x),
        *layers.judge_weights(learned),
        *layers.judge_prior(learned, network, told, face),
    ]
    not_judged = []
    if told is None:
        not_judged.append(
            "convergence, leave-one-out and likeness to the training data (not known: this network was loaded)"
        )
    else:
        found += runs.judge_convergence(told, face)
    if trainer is not None:
        found += runs.judge_batches(trainer)
    elif face.batches:
        not_judged.append(face.batches)
    has_units = not any(finding.kind == "targets_not_scaled" for finding in found)
    prediction = network.predict(x) if has_units else None  # else all of it would repeat that
    found += runs.judge_constant(network, told, x, y, None if is_training else prediction, face)
    if prediction is not None:
        found += predictions.judge_signal(prediction, learned)
        if told is not None:
            found += fits.judge_memory(network, told, prediction, y, is_training=is_training)
    if is_training:
        not_judged.append("calibration (these are the training data: give others)")
    elif n_rows < predictions.FEW_ROWS:
        not_judged.append(f"calibration (needs {predictions.FEW_ROWS} rows)")
    elif prediction is not None:
        y = y.to(prediction.mean.device)
        y = y.reshape(prediction.mean.shape) if y.is_floating_point() else y
        found += data.judge_missing_classes(y, network.n_outputs)
        found += predictions.judge_calibration(prediction, y, face)
        if told is not None:
            found += predictions.judge_leave_one_out(prediction, y, told)
    found = _without_consequences(found)
    found.sort(key=lambda finding: finding.severity != PROBLEM)
    return Diagnosis(found, n_rows, not_judged)


def _without_consequences(found: list[Finding]) -> list[Finding]:
    kinds = {finding.kind for finding in found}
    dropped = {kind for cause in kinds for kind in CONSEQUENCES.get(cause, ())}
    return [finding for finding in found if finding.kind not in dropped]
