"""Every training example left out of what was learned from all of them, where there are few enough to look at all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.belief import Belief
from bayesmp.evidence.balance import find_balance
from bayesmp.evidence.leave_one_out import TakenOut, outputs_without, outside_share, pull_of, with_own, without_own
from bayesmp.evidence.pass_over_data import plan_belief
from bayesmp.layers.linear import all_dense
from bayesmp.messages.gaussian import Moments
from bayesmp.network.network import Network

SWEPT_AT_ONCE = 2048  # examples that are not judged


@dataclass(frozen=True)
class EachLeftOut:
    """All training examples, each without itself.

    Attributes:
        mean: outputs with the example, (n, o).
        taken: each example taken out of the belief.
        outputs: without the example, as uncertain as predictions for new examples are.
    """

    mean: Tensor
    taken: TakenOut
    outputs: Moments


def can_leave_each_out(
    network: Network, x: Tensor, *, weight: float = 1.0, may_take_long: bool = False, settings: Settings = SETTINGS
) -> bool:
    """Whether `leave_each_out` answers for a network with these training data.

    With noisy targets only where every refresh in training looks at all examples, and where an exact belief knows all
    leverages. Labels of many examples, or behind shared weights, take long.

    Args:
        weight: for how many of the data each of x stands; an example that stands for many would hold too much.
        may_take_long: as at the end of a run.
    """
    head = network.head
    has_sweep_noise = bool(network.gradients_and_noise(x[:1].to(network.device))[2].any())
    if head.has_noise:
        is_exact = plan_belief(network, len(x)).is_exact
        return weight == 1.0 and len(x) <= settings.refresh_examples and is_exact and not has_sweep_noise
    if may_take_long:
        return weight <= settings.most_stood_for
    return weight == 1.0 and len(x) <= settings.judged_examples and not has_sweep_noise


def turning_of(network: Network, settings: Settings = SETTINGS) -> float:
    """How much more of its outputs an example would lose because the network would be another one (leave_one_out.py).

    Labels behind dense layers are judged without: their leave-one-out scores are right as they are. Weights of one
    layer have no features that could turn.
    """
    has_features = len(network.graph.weight_nodes) > 1
    return settings.turning if has_features and (network.head.has_noise or not all_dense(network.layers)) else 0.0


def leave_each_out(
    network: Network,
    belief: Belief,
    x: Tensor,
    y: Tensor,
    log_weights: Tensor,
    *,
    weight: float = 1.0,
    n_judged: int | None = None,
    settings: Settings = SETTINGS,
) -> EachLeftOut:
    """Training examples, each left out of the belief.

    Leverages of an exact belief are exact. One that is not knows what an example holds of the span of its coordinates;
    what it holds outside follows from sums of leverages, which conjugate gradients tell (balance.py). They are formed
    over examples that pull alike: of those that pull hard, others know less.

    Args:
        network, belief: as trained on all data.
        x, y: all training data, or a part that stands for them.
        log_weights: belief about the head's constant.
        weight: for how many of the data each of x stands.
        n_judged: how many of x, the first ones, are left out; all if None.
    """
    n = len(x) if n_judged is None else min(n_judged, len(x))
    judged = _Judged.of(network, belief, x[:n], y[:n], log_weights)
    slopes, precisions = [judged.slope], [judged.precision]
    if n < len(x):
        for rows, targets in zip(x[n:].split(SWEPT_AT_ONCE), y[n:].split(SWEPT_AT_ONCE), strict=True):
            outputs, noise = network.linearised.outputs_and_noise(rows.to(network.device))
            own = torch.diag_embed(outputs.var)
            pulls = pull_of(network.head, outputs.mean, own, noise, targets.to(network.device), log_weights)
            slopes.append(pulls[0])
            precisions.append(pulls[1])
    balance = find_balance(
        network, belief, x, torch.cat(slopes), torch.cat(precisions), weight=weight, settings=settings
    )
    inside, outside, precision = judged.inside, judged.outside, judged.precision
    slope = judged.slope - precision * balance.steps[:n]
    covariance = judged.covariance
    without, n_clipped = without_own(inside, precision, limit=settings.max_leverage[0])
    var = None
    if balance.leverage is not None and outside is not None:
        var = (without + outside).diagonal(dim1=1, dim2=2)
        for rows in slope.square().sum(1).argsort().tensor_split(min(settings.leverage_groups, n)):
            leverage = float(balance.leverage[:n][rows].sum())
            share = outside_share(without[rows], outside[rows], precision[rows], leverage)
            without[rows] += share * outside[rows]
        covariance = with_own(without, precision)
    taken = TakenOut(covariance, without, slope, precision, n_clipped)
    outputs = outputs_without(judged.mean, taken, turning=turning_of(network, settings))
    if var is not None:
        outputs = Moments(outputs.mean, var)
    return EachLeftOut(judged.mean, taken, outputs)


@dataclass(frozen=True)
class _Judged:
    """Examples that are to be left out: means of their outputs (b, o), covariances (b, o, o) in the span of the belief
    and outside of it, slopes and precisions with which they pull (b, o).
    """

    mean: Tensor
    inside: Tensor
    outside: Tensor | None  # None where the belief is exact
    slope: Tensor
    precision: Tensor

    @property
    def covariance(self) -> Tensor:
        return self.inside if self.outside is None else self.inside + self.outside

    @classmethod
    def of(cls, network: Network, belief: Belief, x: Tensor, y: Tensor, log_weights: Tensor) -> _Judged:
        means, noises, insides, outsides = [], [], [], []
        for rows in x.split(network.rows_at_once(network.n_outputs)):
            m_out, gradients, noise = network.gradients_and_noise(rows.to(network.device))
            inside, outside = belief.split_covariance(gradients)
            means.append(m_out.mean)
            noises.append(noise)
            insides.append(inside.to(m_out.mean))
            if outside is not None:
                outsides.append(outside.to(m_out.mean))
        mean, inside = torch.cat(means), torch.cat(insides)
        outside = torch.cat(outsides) if outsides else None
        covariance = inside if outside is None else inside + outside
        pulls = pull_of(network.head, mean, covariance, torch.cat(noises), y.to(network.device), log_weights)
        return cls(mean, inside, outside, *pulls)
