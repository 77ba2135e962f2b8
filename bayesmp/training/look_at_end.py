"""What a run with an objective says at its end, or when it is asked: the joint belief, scores without each example, the
head's constant. The counterpart of evidence/refresh.py, which says so where messages are passed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp.evidence.groups import first_of_copies
from bayesmp.evidence.refresh import Refreshed, scores_of
from bayesmp.heads import Head
from bayesmp.messages.gaussian import Moments
from bayesmp.training.schedules import LeftOut, ObjectiveSchedule


def look_at_end(
    schedule: ObjectiveSchedule,
    x: Tensor,
    y: Tensor,
    groups: Tensor,
    measurements: Tensor,
    *,
    with_belief: bool,
) -> Refreshed:
    """What a schedule has come to with its objective, for all data; of many some are judged.

    Args:
        groups, measurements: which examples scores leave out together, and which ones tell of one noise (groups.py).
    """
    head = schedule.network.head
    with torch.inference_mode(False), torch.no_grad():
        descent = schedule.descent(x, y)
        look, objective = descent.look(), descent.objective
        rows = schedule.judged_rows(descent, groups)
        left_out, alone = schedule.left_out(descent, look, rows, groups, measurements)
        if bool((objective.weight[rows] < 1.0).any()):
            once = first_of_copies(objective.x[rows], objective.loss.y[rows])
            rows, left_out, alone = rows[once], left_out.some(once), alone.some(once)
        targets, log_weights = objective.loss.y[rows], schedule.certain(descent.state.noise)
        constant, fresh = None, None
        if not head.has_noise:
            constant = log_weights.double() - schedule.head_prior.double()
            unseen = schedule.labels_as_unseen(left_out, objective.loss.outputs(look.latent[rows]))
            scores = _scores_of_labels(head, unseen, targets, log_weights.to(left_out.mean))
        else:
            if head.is_learned:
                parts = (part.split(1024) for part in (alone.moments.mean, alone.moments.var, targets))
                told = [head.to_constant(Moments(mean, var), y).double() for mean, var, y in zip(*parts, strict=True)]
                constant = torch.stack(told).sum(0) * float(objective.weight.sum() / len(rows))
                total = schedule.head_prior.to(constant) + constant
                log_weights = (total - total.max()).to(log_weights)
            fresh = schedule.as_unseen(left_out.moments, targets)
            scores = scores_of(head, fresh, targets, log_weights.to(targets))
        judged = x[rows.to(x.device)], targets, alone.moments
        fitted = schedule.fitted(descent.state, look)
        evidence = schedule.evidence(x, descent, look) if with_belief else None
        outputs = objective.loss.outputs(look.latent[rows])
        return Refreshed(evidence, constant, scores, outputs, left_out.n_clipped, judged, fitted=fitted, left_out=fresh)


def _scores_of_labels(head: Head, left_out: LeftOut, y: Tensor, log_weights: Tensor) -> dict[str, float]:
    """Of predictions that average over all of the outputs' covariances."""
    found = head.predict(left_out.moments, log_weights, left_out.covariance)
    error = float((found.label != y).double().mean())
    return {"nll": -float(found.log_prob(y).mean()), "error": error}
