"""Whether a run has ended worse than a constant: the targets' mean and variance, or the shares of the classes.

A network that is worse than that has not been trained, whatever else looks right, and nobody should use it unwarned.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesmp.basics.telling import warn_user
from bayesmp.training.history import EpochRecord
from bayesmp.training.run import Run

WORSE = "worse than a constant"
MARGIN = 0.1  # nats by which a score must be worse, and this many examples' own parts in a constant's:
EXAMPLES = 2.0
FIRST_JUDGED = 4  # epochs from which a run is judged
WHAT_TO_DO = (
    "Do not use its predictions. Let a short run go on; else look for outliers and for columns that are rare or nearly "
    "the same, bring x and y to order one, and try larger batches or another seed"
)


def constant_nll(run: Run) -> float:
    """NLL of the best constant, per example and output; -inf if targets do not vary, where it has no error."""
    head, y = run.network.head, run.data.y
    is_given = y.is_floating_point() and not head.is_learned
    noise = float(head.expected(run.network.head_log_weights)) if is_given else 0.0
    return nll_of_one_guess(y, run.data.sample_weight, noise)  # a constant is told of the same noise


def nll_of_one_guess(y: Tensor, weight: Tensor | None, least_var: float = 0.0) -> float:
    """The same for targets (n, o) or labels (n,), weighted (n,)."""
    often = torch.ones(len(y), dtype=torch.float64) if weight is None else weight
    often = (often / often.sum()).to(y.device)
    if not y.is_floating_point():
        shares = torch.bincount(y.flatten(), weights=often)
        return -float(torch.special.xlogy(shares, shares).sum())
    mean = often @ y.double()
    var = often @ (y.double() - mean).square()
    if bool((y == y[:1]).all(0).any()):
        return -math.inf
    return float((0.5 * (2.0 * math.pi * math.e * var.clamp_min(least_var)).log()).mean())


def is_worse(run: Run) -> bool:
    """Whether the last epoch's score is not finite, or worse than a constant's, left out or in training.

    A run's first few epochs are not judged: it has just begun, and in training batches are predicted before their
    visits. A constant of targets that do not vary is not to be beaten. Examples that are all left out together, as
    those with equal inputs are, leave no data: their score is the prior's, and says nothing of the run.
    """
    constant = constant_nll(run)
    if run.n_epochs - run.history.changed_at < FIRST_JUDGED or constant == -math.inf:
        return False
    bound = constant + MARGIN + EXAMPLES / len(run.data)
    loo = run.history[-1].loo if bool(run.data.groups.any()) else {}
    scores = [_standing(run).metrics["nll"], *([loo["nll"]] if "nll" in loo else [])]
    return any(not score <= bound for score in scores)


def _standing(run: Run) -> EpochRecord:
    """The last epoch that was not taken back, or the last one if there is none."""
    return next((record for record in reversed(run.history.records) if not record.is_taken_back), run.history[-1])


def warn(run: Run) -> None:
    """Say what happened, and what to do."""
    kind = "the shares of the classes" if not run.data.y.is_floating_point() else "the targets' mean and variance"
    left_out = run.history[-1].loo.get("nll", math.nan)
    warn_user(
        f"training ended {WORSE}: NLL {_standing(run).metrics['nll']:.3g} in training and {left_out:.3g} left out, "
        f"where {kind} alone have {constant_nll(run):.3g}. {WHAT_TO_DO}",
        category(WORSE),
    )


def category(message: str) -> type[Warning]:
    """Of a warning with this text; scikit-learn's own where it is there."""
    if WORSE not in message:
        return UserWarning
    try:
        from sklearn.exceptions import ConvergenceWarning  # takes a second to import
    except ImportError:
        return UserWarning
    return ConvergenceWarning
