"""From the derivatives of a log-normaliser to a message: the one trick behind every non-Gaussian factor.

For a factor f and an incoming N(mean, var), let log Z(mean) = log E[f(x)], first = d log Z / d mean and
second = d^2 log Z / d mean^2. The tilted distribution has mean + var * first and var * (1 + var * second), and

    rho = -second / (1 + var second),   tau = (first - mean second) / (1 + var second)

is the tilted Gaussian divided by the incoming one, with no division of nearly equal numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp.messages.gaussian import Gaussian

MIN_RHO = 1e-8  # stands for "no precision": where a factor widens its input, only its slope is passed on
MAX_RHO = 1e15  # a factor may pin its input exactly; sums of such messages over a batch must stay finite in float32


def message_from_parts(tau_den: Tensor, rho_den: Tensor, den: Tensor, first: Tensor) -> Gaussian:
    """The message (tau_den / den, rho_den / den) where it is proper, else slope only: rho = MIN_RHO, tau = first.

    Args:
        tau_den, rho_den: natural parameters times den.
        den: ratio of tilted to incoming variance; positive for a proper message.
        first: derivative of the log-normaliser, used where the factor gives no positive precision.
    """
    rho, tau = rho_den / den, tau_den / den
    is_proper = (den > 0) & (rho > MIN_RHO) & (rho < MAX_RHO) & tau.isfinite()
    slope = torch.where(first.isfinite(), first, torch.zeros_like(first))
    return Gaussian(torch.where(is_proper, tau, slope), torch.where(is_proper, rho, torch.full_like(rho, MIN_RHO)))


def count_rejected(message: Gaussian) -> Tensor:
    """How many entries carry no precision, i.e. where the tilted distribution was not narrower than its input."""
    return (message.rho <= MIN_RHO).sum()
