"""All judgements about a network, in one place."""

from __future__ import annotations

from typing import Any

import torch

from bayesmp.basics import checks, examples
from bayesmp.diagnosis import rows, training
from bayesmp.diagnosis.advice import PROBLEM, Diagnosis
from bayesmp.diagnosis.run_summary import RunSummary

MOST_ROWS = 5000  # of the data given that are predicted
CONSEQUENCES = {  # of a finding, which would only lead astray beside it
    "memorised_noise": ("prior_too_narrow", "prior_too_wide", "no_signal", "ended_in_a_jump", "link_far_off"),
    "stuck_at_noise": ("prior_too_narrow", "no_signal", "too_unsure"),
}


def diagnose(network: Any, x: Any, y: Any = None, *, trainer: Any = None, has_batches: bool = True) -> Diagnosis:
    """What looks wrong with a trained network, judged on rows that it was not trained on.

    Args:
        network, trainer: what was trained, and what trained it, if it still exists.
        x, y: inputs and targets as for training, or a torch Dataset of both as x; of more than 5,000 rows a random
            part. With the training data themselves nothing is said about calibration.
        has_batches: whether those who ask know of batches; else nothing is said of their shares.
    """
    x, y = examples.as_arrays(x, y)
    x = checks.check_inputs(x, network.input_shape, network.dtype)
    y = network.head.check_more_targets(y, network.n_outputs)
    checks.check_lengths(x, y)
    if not network.has_learned or (trainer is not None and trainer.history.stopped == ""):
        raise ValueError("there is nothing to diagnose yet: this network has not been trained (bayesmp.fit)")
    summary: RunSummary | None = network.run_summary
    if summary is None and trainer is not None:  # its run was interrupted
        summary = RunSummary.of(trainer.history, trainer.x, trainer.y)
    is_training, n_rows = summary is not None and summary.is_about(x, y), len(x)
    if n_rows > MOST_ROWS:
        chosen = torch.randperm(n_rows, generator=torch.Generator().manual_seed(0))[:MOST_ROWS]
        x, y = x[chosen.to(x.device)], y[chosen.to(y.device)]

    found = [*rows.judge_inputs(x, summary), *rows.judge_targets(y, summary)]
    # with targets in other units, all that predictions say would repeat that
    prediction = None if any(finding.kind == "targets_not_scaled" for finding in found) else network.predict(x)
    of_others = None if is_training else prediction
    found += [*training.judge_units(network, x), *training.judge_weights(network, summary)]
    found += [] if summary is None else training.judge_convergence(summary)
    found += [] if trainer is None else training.judge_batches(trainer)
    found += training.judge_constant(network, summary, of_others, x, y)
    found += [] if prediction is None else rows.judge_signal(prediction)
    if summary is not None and prediction is not None:
        found += training.judge_memory(network, summary, of_others, y)
    if of_others is not None and n_rows >= rows.FEW_ROWS:
        found += rows.judge_calibration(of_others, y)
        found += [] if summary is None else rows.judge_leave_one_out(of_others, y, summary)
    not_judged = {
        "convergence, leave-one-out, likeness to training (not known: this network was loaded)": summary is None,
        "shares of batches (needs the Trainer: trainer.diagnose())": trainer is None and has_batches,
        "calibration (these are the training data: give others)": is_training,
        f"calibration (needs {rows.FEW_ROWS} rows)": not is_training and n_rows < rows.FEW_ROWS,
    }
    dropped = {kind for finding in found for kind in CONSEQUENCES.get(finding.kind, ())}
    kept = sorted((each for each in found if each.kind not in dropped), key=lambda each: each.severity != PROBLEM)
    return Diagnosis(kept, n_rows, [what for what, is_so in not_judged.items() if is_so])
