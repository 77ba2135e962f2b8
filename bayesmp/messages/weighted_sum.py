"""Weighted sum z = sum_i a_i x_i with known weights a: exact in both directions. Pools are made of this."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.normal import log_normal_cdf, score


def weighted_sum_to_output(a: Tensor, m_in: Moments, *, dim: int) -> Moments:
    """Mean sum a mean_i and variance sum a^2 var_i over dimension dim."""
    return Moments((a * m_in.mean).sum(dim), (a * a * m_in.var).sum(dim))


def weighted_sum_to_input(a: Tensor, m_in: Moments, m_out: Gaussian, *, dim: int) -> Gaussian:
    r"""Message to each x_d of the sum, given the others.

    den = 1 + rho_z (var - a_d^2 var_d),  tau = a_d (tau_z - rho_z (mean - a_d mean_d)) / den,  rho = a_d^2 rho_z / den

    Args:
        a: known weights, broadcastable to m_in.
        m_in: forward messages of the terms, with the terms along `dim`.
        m_out: message arriving at the sum, shape of m_in without `dim`.
    """
    term_mean, term_var = a * m_in.mean, a * a * m_in.var
    rest_mean = term_mean.sum(dim, keepdim=True) - term_mean
    rest_var = (term_var.sum(dim, keepdim=True) - term_var).clamp_min(0.0)
    tau, rho = m_out.tau.unsqueeze(dim), m_out.rho.unsqueeze(dim)
    den = 1.0 + rho * rest_var
    return Gaussian(a * (tau - rho * rest_mean) / den, a * a * rho / den)


def largest_probabilities(m_in: Moments, *, noise: float, dim: int) -> Tensor:
    r"""Probability that each entry along dim is the largest: p_i \propto \prod_j \Phi((m_i - m_j)/\sqrt{v_i + v_j +
    noise}).

    Pairs are treated as independent and the products normalised; in log space, so that far losers stay finite.
    """
    means, variances = m_in.mean.unbind(dim), m_in.var.unbind(dim)
    log_p = [torch.zeros_like(mean) for mean in means]
    for i in range(len(means)):
        for j in range(i):
            x = score(means[i] - means[j], variances[i] + variances[j] + noise)
            log_p[i] += log_normal_cdf(x)
            log_p[j] += log_normal_cdf(-x)
    return torch.softmax(torch.stack(log_p, dim), dim)
