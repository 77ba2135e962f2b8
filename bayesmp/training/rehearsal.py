"""Rehearsals: the same training without some of the rows, which then say how well it predicts what it has not seen.

Where messages train on labels, the belief does not know how features follow single labels, and a formula that leaves
examples out tells little: by it, a deep network that has learned noise by heart may look perfect. So rehearsals tell
the score, how wide the belief is (evidence/unseen.py), and whether a narrower prior learns less noise.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.evidence.groups import first_of_copies
from bayesmp.evidence.unseen import JudgedLabels, belief_scale

if TYPE_CHECKING:
    from bayesmp.training.trainer import Trainer

FEWEST = 10  # rows, of which some can be left to judge
MOST_JUDGING = 1000  # rows
NARROWER = 0.25  # factor on the variances of the prior that is tried beside the present one
CLEAR = 2.0  # standard errors by which it must predict better


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


def is_called_for(trainer: Trainer, *, settings: Settings = SETTINGS) -> bool:
    """Whether a run is about labels, which messages have trained on, and not about too many rows to train again."""
    network, data = trainer.network, trainer.data
    has_own_judges = trainer.has_objective or network.head.has_noise
    is_exact = network.graph.is_linear or network.past is not None
    return not (has_own_judges or is_exact or data.unheard_batches) and FEWEST <= len(data) <= settings.rehearsed_rows


def may_narrow(trainer: Trainer, *, settings: Settings = SETTINGS) -> bool:
    """Whether the prior may be too wide: most examples hold most of their own outputs, and no user has given it."""
    is_given = trainer.network.has_given_prior or trainer.config.learn_prior is False
    clipped = [record.loo["clipped"] for record in trainer.history if "clipped" in record.loo]
    return not is_given and bool(clipped) and clipped[-1] > settings.most_clipped


def rehearse(
    trainer: Trainer, width: float, n_epochs: int, *, progress: bool | None = False, settings: Settings = SETTINGS
) -> Rehearsal | None:
    """What fresh networks of the same kind say after so many epochs; None if no rows can be left out."""
    data = trainer.data
    generator = torch.Generator().manual_seed(trainer.config.seed)
    order = torch.argsort(torch.randperm(int(data.groups.max()) + 1, generator=generator)[data.groups], stable=True)
    n_late = min(MOST_JUDGING, math.ceil(settings.late_share * len(data)))
    n_parts = min(settings.most_rehearsals, len(data) // n_late, math.ceil(settings.judging_rows / n_late))
    parts = [_rehearse_without(trainer, width, n_epochs, late, progress) for late in order.split(n_late)[:n_parts]]
    judged = [part for part in parts if part is not None]
    if sum(len(unseen.y) for unseen, _ in judged) < 2:
        return None
    unseen = JudgedLabels.joined([unseen for unseen, _ in judged])
    is_wrong = torch.cat([wrong for _, wrong in judged])
    scale = belief_scale(unseen, settings=settings)
    return Rehearsal(width, scale, unseen.nll(scale).cpu(), float(is_wrong.double().mean()))


def _rehearse_without(
    trainer: Trainer, width: float, n_epochs: int, late: Tensor, progress: bool | None
) -> tuple[JudgedLabels, Tensor] | None:
    """Predictions for these rows and their groups without them, and which ones are wrong."""
    data = trainer.data
    is_late = torch.isin(data.groups, data.groups[late])
    late, seen = is_late.nonzero()[:, 0], (~is_late).nonzero()[:, 0]
    late = late[first_of_copies(data.x[late.to(data.x.device)].cpu(), data.y[late.to(data.y.device)].cpu())]
    if len(seen) == 0:
        return None
    network = copy.deepcopy(trainer.network)
    x, y = data.x[seen.to(data.x.device)], data.y[seen.to(data.y.device)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its end, which the run itself has told
        other = type(trainer).on_known_data(network, x, y, trainer.config, with_objective=False, width=width)
        other.run(n_epochs, progress=progress)
    inputs, labels = data.x[late.to(data.x.device)], data.y[late.to(data.y.device)]
    parts = list(network.linearised.output_beliefs(inputs, network.belief))
    mean = torch.cat([moments.mean for moments, _ in parts])
    covariance = torch.cat([torch.diag_embed(part.var) if joint is None else joint for part, joint in parts])
    unseen = JudgedLabels.of(network.head, network.head_log_weights, mean, covariance, labels)
    return unseen, network.predict(inputs).label != labels
