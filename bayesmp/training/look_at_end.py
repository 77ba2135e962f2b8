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
    seen: Tensor | None = None,
    *,
    with_belief: bool,
) -> Refreshed:
    """What a schedule has come to with its objective, for all data; of many some are judged.

    Args:
        groups, measurements: which examples scores leave out together, and which ones tell of one noise (groups.py).
        seen: which of all examples these are; None: all of them.
    """
    head = schedule.network.head
    with torch.inference_mode(False), torch.no_grad():
        descent = schedule.descent(x, y, seen)
        look, objective = descent.look(), descent.objective
        rows = schedule.judged_rows(descent, groups)
        left_out, alone = schedule.left_out(descent, look, rows, groups, measurements)
        weight: Tensor | None = None
        if schedule.sample_weight is not None:
            weight = objective.weight[rows] if bool((objective.weight != 1.0).any()) else None
        elif bool((objective.weight[rows] < 1.0).any()):
            once = first_of_copies(objective.x[rows], objective.loss.y[rows])
            rows, left_out, alone = rows[once], left_out.some(once), alone.some(once)
        targets, log_weights = objective.loss.y[rows], schedule.certain(descent.state.noise)
        constant, fresh = None, None
        if not head.has_noise:
            constant = log_weights.double() - schedule.head_prior.double()
            unseen = schedule.labels_as_unseen(left_out, objective.loss.outputs(look.latent[rows]))
            scores = _scores_of_labels(head, unseen, targets, log_weights.to(left_out.mean), weight)
        else:
            if head.is_learned:
                counted = torch.ones(len(rows), dtype=torch.float64) if weight is None else weight
                known = alone.moments.mean, alone.moments.var, targets, counted.to(targets.device)
                told = []
                for mean, var, y_part, often in zip(*(part.split(1024) for part in known), strict=True):
                    options = () if weight is None else (often,)
                    told.append(head.to_constant(Moments(mean, var), y_part, *options).double())
                constant = torch.stack(told).sum(0) * float(objective.weight.sum() / counted.sum())
                total = schedule.head_prior.to(constant) + constant
                log_weights = (total - total.max()).to(log_weights)
            fresh = schedule.as_unseen(left_out.moments, targets)
            scores = scores_of(head, fresh, targets, log_weights.to(targets), weight)
        judged = x[rows.to(x.device)], targets, alone.moments
        fitted = schedule.fitted(descent.state, look)
        evidence = schedule.evidence(x, descent, look) if with_belief else None
        outputs = objective.loss.outputs(look.latent[rows])
        found = evidence, constant, scores, outputs, left_out.n_clipped, judged
        return Refreshed(*found, fitted=fitted, left_out=fresh, weight=weight)


def _scores_of_labels(
    head: Head, left_out: LeftOut, y: Tensor, log_weights: Tensor, weight: Tensor | None
) -> dict[str, float]:
    """Of predictions that average over all of the outputs' covariances."""
    found = head.predict(left_out.moments, log_weights, left_out.covariance)
    is_wrong, surprise = (found.label != y).double(), -found.log_prob(y)
    if weight is None:
        return {"nll": float(surprise.mean()), "error": float(is_wrong.mean())}
    share = (weight / weight.sum()).to(is_wrong)
    return {"nll": float(share @ surprise.double()), "error": float(share @ is_wrong)}
