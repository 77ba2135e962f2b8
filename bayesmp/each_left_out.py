"""Every training example left out of what was learned from all of them, where there are few enough to look at all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.balance import find_balance
from bayesmp.belief import Belief
from bayesmp.evidence import plan_belief
from bayesmp.gaussian import Moments
from bayesmp.leave_one_out import TakenOut, outputs_without, outside_share, pull_of, with_own, without_own
from bayesmp.network import Network
from bayesmp.settings import SETTINGS, Settings


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


def can_leave_each_out(network: Network, x: Tensor, *, settings: Settings = SETTINGS) -> bool:
    """Whether `leave_each_out` answers for a network with these training data, all of them.

    Not where sweeps count the variance of activations as noise: their rest is not the posterior mean of the linearised
    network. With noisy targets only where every refresh in training looks at all examples, and where an exact belief
    knows all leverages.
    """
    head = network.head
    if len(x) > (settings.refresh_examples if head.has_noise else settings.judged_examples):
        return False
    if head.has_noise and not plan_belief(network, len(x)).is_exact:
        return False
    return not bool(network.gradients_and_noise(x[:1].to(network.device))[2].any())


def turning_of(network: Network, settings: Settings = SETTINGS) -> float:
    """How much more of its outputs an example would lose because the network would be another one (leave_one_out.py).

    Labels are judged without: their leave-one-out scores are right as they are. Weights of one layer have no features
    that could turn.
    """
    return settings.turning if network.head.has_noise and len(network.graph.weight_nodes) > 1 else 0.0


def leave_each_out(
    network: Network, belief: Belief, x: Tensor, y: Tensor, log_weights: Tensor, *, settings: Settings = SETTINGS
) -> EachLeftOut:
    """Every training example left out of the belief.

    Leverages of an exact belief are exact. One that is not knows what an example holds of the span of its coordinates;
    what it holds outside follows from sums of leverages, which conjugate gradients tell (balance.py). They are formed
    over examples that pull alike: of those that pull hard, others know less.

    Args:
        network, belief: as trained on x and y.
        x, y: all training data.
        log_weights: belief about the head's constant.
    """
    means, insides, outsides = [], [], []
    for rows in x.split(network.rows_at_once(network.n_outputs)):
        m_out, gradients = network.gradients(rows.to(network.device))
        inside, outside = belief.split_covariance(gradients)
        means.append(m_out.mean)
        insides.append(inside.to(m_out.mean))
        outsides.append(m_out.mean.new_zeros(0) if outside is None else outside.to(m_out.mean))
    mean, inside, outside = torch.cat(means), torch.cat(insides), torch.cat(outsides)
    covariance = inside if belief.is_exact else inside + outside
    slope, precision = pull_of(network.head, mean, covariance, torch.zeros_like(mean), y, log_weights)
    balance = find_balance(network, belief, x, slope, precision, settings=settings)
    slope = slope - precision * balance.steps
    without, n_clipped = without_own(inside, precision, limit=settings.max_leverage[0])
    if balance.leverage is not None:
        var = (without + outside).diagonal(dim1=1, dim2=2)
        for rows in slope.square().sum(1).argsort().tensor_split(min(settings.leverage_groups, len(x))):
            leverage = float(balance.leverage[rows].sum())
            share = outside_share(without[rows], outside[rows], precision[rows], leverage)
            without[rows] += share * outside[rows]
        covariance = with_own(without, precision)
    taken = TakenOut(covariance, without, slope, precision, n_clipped)
    outputs = outputs_without(mean, taken, turning=turning_of(network, settings))
    if balance.leverage is not None:
        outputs = Moments(outputs.mean, var)
    return EachLeftOut(mean, taken, outputs)
