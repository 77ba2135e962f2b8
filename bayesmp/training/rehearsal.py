"""Rehearsals: the same training without some of the rows, which then say how well it predicts what it has not seen.

Where messages train on labels, the belief does not know how features follow single labels, and a formula that leaves
examples out tells little: by it, a deep network that has learned noise by heart may look perfect. So rehearsals tell
the score, how wide the belief is (evidence/unseen.py), and whether a narrower prior learns less noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.evidence.groups import first_of_copies
from bayesmp.evidence.unseen import JudgedLabels, belief_scale
from bayesmp.network.network import Network
from bayesmp.training.run import Run
from bayesmp.training.train_config import TrainConfig

FEWEST = 10  # rows, of which some can be left to judge
MOST_JUDGING = 1000  # rows
NARROWER = 0.25  # factor on the variances of the prior that is tried beside the present one
CLEAR = 2.0  # standard errors by which it must predict better


class Rehearsed(Run, Protocol):
    """A run that can be rehearsed: a Trainer, by these of its public names."""

    config: TrainConfig

    @property
    def has_objective(self) -> bool:
        """Whether training has an objective."""

    def trained_on(self, rows: Tensor, *, width: float, n_epochs: int, progress: bool | None) -> Network[Any]:
        """A fresh network of the same kind, trained on some of the rows alone."""


@dataclass(frozen=True)
class Rehearsal:
    """What was predicted for rows that took no part.

    Attributes:
        width: of the prior, over its rule's.
        belief_scale: factor on the variances of outputs with which their labels are most probable.
        surprise: NLL of each of them, with that, (n,).
        error: share of them that have another label.
    """

    width: float
    belief_scale: float
    surprise: Tensor
    error: float

    @property
    def scores(self) -> dict[str, float]:
        """As a history has them."""
        return {"nll": float(self.surprise.mean()), "error": self.error, "n_unseen": float(len(self.surprise))}

    def is_clearly_better_than(self, other: Rehearsal) -> bool:
        """By more than chance, on the same rows."""
        gains = other.surprise - self.surprise
        return float(gains.mean()) > CLEAR * float(gains.std()) / math.sqrt(len(gains))


def is_called_for(run: Rehearsed, *, settings: Settings = SETTINGS) -> bool:
    """Whether a run is about labels, which messages have trained on, and not about too many rows to train again."""
    network, data = run.network, run.data
    has_own_judges = run.has_objective or network.head.has_noise
    is_exact = network.graph.is_linear or network.past is not None
    if has_own_judges or is_exact or data.unheard_batches:
        return False
    return len(data) >= FEWEST and len(data) * network.n_outputs <= settings.rehearsed_numbers


def may_narrow(run: Rehearsed, *, settings: Settings = SETTINGS) -> bool:
    """Whether the prior may be too wide: most examples hold most of their own outputs, and no user has given it."""
    is_given = run.network.has_given_prior or run.config.learn_prior is False
    clipped = [record.loo["clipped"] for record in run.history if "clipped" in record.loo]
    return not is_given and bool(clipped) and clipped[-1] > settings.most_clipped


def rehearse(
    run: Rehearsed, width: float, n_epochs: int, *, progress: bool | None = False, settings: Settings = SETTINGS
) -> Rehearsal | None:
    """What fresh networks of the same kind say after so many epochs; None if no rows can be left out."""
    data = run.data
    generator = torch.Generator().manual_seed(run.config.seed)
    order = torch.argsort(torch.randperm(int(data.groups.max()) + 1, generator=generator)[data.groups], stable=True)
    n_late = min(MOST_JUDGING, math.ceil(settings.late_share * len(data)))
    n_parts = min(settings.most_rehearsals, len(data) // n_late, math.ceil(settings.judging_rows / n_late))
    parts = [_rehearse_without(run, width, n_epochs, late, progress) for late in order.split(n_late)[:n_parts]]
    judged = [part for part in parts if part is not None]
    if sum(len(unseen.y) for unseen, _ in judged) < 2:
        return None
    unseen = JudgedLabels.joined([unseen for unseen, _ in judged])
    is_wrong = torch.cat([wrong for _, wrong in judged])
    scale = belief_scale(unseen, settings=settings)
    return Rehearsal(width, scale, unseen.nll(scale).cpu(), float(is_wrong.double().mean()))


def _rehearse_without(
    run: Rehearsed, width: float, n_epochs: int, late: Tensor, progress: bool | None
) -> tuple[JudgedLabels, Tensor] | None:
    """Predictions for these rows and their groups without them, and which ones are wrong."""
    data = run.data
    is_late = torch.isin(data.groups, data.groups[late])
    late, seen = is_late.nonzero()[:, 0], (~is_late).nonzero()[:, 0]
    late = late[first_of_copies(data.x[late.to(data.x.device)].cpu(), data.y[late.to(data.y.device)].cpu())]
    if len(seen) == 0:
        return None
    network = run.trained_on(seen, width=width, n_epochs=n_epochs, progress=progress)
    inputs, labels = data.x[late.to(data.x.device)], data.y[late.to(data.y.device)]
    parts = list(network.linearised.output_beliefs(inputs, network.belief))
    mean = torch.cat([moments.mean for moments, _ in parts])
    covariance = torch.cat([torch.diag_embed(part.var) if joint is None else joint for part, joint in parts])
    unseen = JudgedLabels.of(network.head, network.head_log_weights, mean, covariance, labels)
    return unseen, network.predict(inputs).label != labels
