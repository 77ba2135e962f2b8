"""Heads as equations: Gaussian noise, softmax, argmax; to the latent outputs, and the predictive."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.normal import normal_cdf, score, truncation
from bayesmp.messages.tilted import message_from_parts
from bayesmp.messages.weighted_sum import largest_probabilities

SOFTMAX_REACH = 10.0  # stds of the logit on either side of the tilted density's centre
SOFTMAX_BEND = 20.0  # logits on either side of the sigmoid's middle where it is neither 0 nor 1 nor an exponential
STRONG = 0.5  # ratio of tilted to incoming variance below which the tilted moments are the stable form
PROBIT_SLOPE = 1.702  # Phi(x) is nearest to the logistic function of this times x
PANEL_NODES = 24  # per panel, 5 panels: error 1e-6 at a logit std of 100


def gaussian_to_latent(y: Tensor, noise_var: Tensor) -> Gaussian:
    """N(y, noise_var) as a message."""
    rho = (1.0 / noise_var).expand_as(y)
    return Gaussian(y * rho, rho)


def softmax_to_latent(m_in: Moments, y: Tensor) -> Gaussian:
    r"""Message to each logit: moments of N(a_d; m_in) softmax(t_1, .., a_d, .., t_C)_c, divided by m_in.

    The other logits enter as t_j = mean_j / sqrt(1 + pi/8 var_j), so with l_d = log sum_{j != d} e^{t_j} the factor is
    sigmoid(a_d - l_d) for the true class and sigmoid(l_d - a_d) for the others. Under the tilted density, with
    s the sigmoid: first = +-E[1 - s], second = Var[s] - E[s (1 - s)].

    Args:
        m_in: logits (b, c).
        y: true classes (b), integers.

    Note:
        Gauss-Legendre on five panels that follow the sigmoid's bend and the tilted density of each scalar, all at once:
        a fixed grid misses the bend of a broad logit (std 20: off by 14 times) and the bulk of a hopeless one. The two
        terms of `second` are both small where the factor says little, so nothing of order one cancels; where it says
        much, the tilted variance itself is the stable form.
    """
    mean, var = m_in.mean, m_in.var
    n_classes = mean.shape[1]
    t = probit_scaled(m_in)
    eye = torch.eye(n_classes, dtype=torch.bool, device=mean.device)
    others = torch.logsumexp(t[:, None, :].masked_fill(eye, -math.inf), dim=2)  # (b, c): l_d
    sign = torch.where(torch.nn.functional.one_hot(y, n_classes).bool(), 1.0, -1.0).to(mean.dtype)

    # In v = sign (a - mean) / std the factor is sigmoid(std v + margin) for all.
    std, inv_std = var.sqrt(), torch.rsqrt(var.clamp_min(torch.finfo(var.dtype).tiny))
    margin = sign * (mean - others)
    v, weight = _sigmoid_panels(std, score(-margin, var), inv_std)  # (b, c, nodes)
    logit = std[..., None] * v + margin[..., None]
    log_density = -0.5 * v * v + torch.nn.functional.logsigmoid(logit)
    weight = weight * torch.exp(log_density - log_density.amax(-1, keepdim=True))
    weight = weight / weight.sum(-1, keepdim=True)

    s, rest = torch.sigmoid(logit), torch.sigmoid(-logit)
    mean_rest = (weight * rest).sum(-1)
    spread = (weight * (rest - mean_rest[..., None]).square()).sum(-1)
    second = (spread - (weight * s * rest).sum(-1)).clamp_max(0.0)
    shift = (weight * v).sum(-1)
    ratio = (weight * (v - shift[..., None]).square()).sum(-1)  # tilted over incoming variance
    is_strong = ratio < STRONG
    den = torch.where(is_strong, ratio, 1.0 + var * second)
    second = torch.where(is_strong, (ratio - 1.0) * inv_std * inv_std, second)
    first = sign * torch.where(is_strong, shift * inv_std, mean_rest)
    return message_from_parts(first - mean * second, -second, den, first)


def argmax_to_latent(
    m_in: Moments,
    y: Tensor,
    *,
    noise: float | Tensor,
    target: float,
    target_var: float | Tensor,
    centre: float | Tensor = 0.0,
) -> Gaussian:
    r"""Message to each output: the true class c must beat each other i, a_c - a_i + N(0, noise) >= 0.

    With x = (mean_c - mean_i) / s, s^2 = var_c + var_i + noise, and (h, k) of `truncation(x)`, each pair has
    first = +-h / s and second = -k / s^2 in its two outputs. The true class collects all pairs; the message to a
    loser i has its precision scaled by Pr[z_i < 0] at unchanged mean. The regulariser multiplies
    N(a_c; centre_c + target, target_var) and N(a_i; centre_i - target, target_var).

    Args:
        m_in: outputs (b, c).
        y: true classes (b), integers.
        noise, target, target_var: constants of comparisons and regulariser.
        centre: between the two targets of each class, (c,) or one for all (`centres_of_shares`).

    Note:
        1 + var second = (s^2 - var + var (1 - k)) / s^2, a sum of positive terms: exact also for hopeless pairs.
    """
    mean, var = m_in.mean, m_in.var
    is_true = torch.nn.functional.one_hot(y, mean.shape[1]).bool()
    true_mean = mean.gather(1, y[:, None])
    true_var = var.gather(1, y[:, None])
    pair_var = true_var + var + noise
    x = score(true_mean - mean, pair_var)
    h, k, rest = truncation(x)
    first, curvature = h * torch.rsqrt(pair_var), k / pair_var

    to_true = _pair_message(true_mean, true_var, var + noise, first, curvature, rest, pair_var)
    to_other = _pair_message(mean, var, true_var + noise, -first, curvature, rest, pair_var) ** normal_cdf(-x)
    collected = to_true.map(lambda part: part.masked_fill(is_true, 0.0).sum(1, keepdim=True))
    tau = torch.where(is_true, collected.tau, to_other.tau)
    rho = torch.where(is_true, collected.rho, to_other.rho)
    pull = (torch.where(is_true, target, -target).to(mean.dtype) + centre) / target_var
    return Gaussian(tau + pull, rho + 1.0 / target_var)


def centres_of_shares(shares: Tensor, *, noise: float | Tensor, target: float) -> Tensor:
    r"""Centres (.., c) with which regulariser and comparisons agree about outputs that know no more than the shares of
    classes.

    Comparisons with this noise rest where softmax(s a) are the shares p, s = PROBIT_SLOPE / sqrt(noise). The
    regulariser rests at the mean of its targets, centre + target (2 p - 1). So, but for a constant that none feels,

        centre_c = log(p_c) / s - 2 target p_c + const,   sum_c p_c centre_c = 0

    and it is 0 where all classes are equally frequent.

    Args:
        shares: of the classes, (c,), positive, with the sum 1.
        noise: a number, or one per row of the answer, (k, 1).
        target: of the regulariser.
    """
    slope = PROBIT_SLOPE * noise**-0.5
    centre = torch.log(shares) / slope - 2.0 * target * shares
    return centre - (shares * centre).sum(-1, keepdim=True)


def probit_scaled(m_in: Moments) -> Tensor:
    r"""mean / sqrt(1 + pi/8 var): the logit whose sigmoid is closest to the expected one."""
    return m_in.mean * torch.rsqrt(1.0 + (math.pi / 8.0) * m_in.var)


def softmax_predictive(m_in: Moments) -> Tensor:
    """Class probabilities (..., c): softmax of the probit-scaled logits."""
    return torch.softmax(probit_scaled(m_in), dim=-1)


def argmax_predictive(m_in: Moments, *, noise: float) -> Tensor:
    """Class probabilities (b, c): chance of each class to beat every other, normalised."""
    return largest_probabilities(m_in, noise=noise, dim=1)


def _pair_message(
    mean: Tensor, var: Tensor, other_var: Tensor, first: Tensor, curvature: Tensor, rest: Tensor, pair_var: Tensor
) -> Gaussian:
    den = (other_var + var * rest) / pair_var
    return Gaussian((first + mean * curvature) / den, curvature / den)


@cache
def _legendre(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [-1, 1], moved to a device once."""
    nodes, weights = np.polynomial.legendre.leggauss(PANEL_NODES)
    return torch.as_tensor(nodes, dtype=dtype, device=device), torch.as_tensor(weights, dtype=dtype, device=device)


def _sigmoid_panels(std: Tensor, middle: Tensor, inv_std: Tensor) -> tuple[Tensor, Tensor]:
    r"""Nodes and weights (..., n) for N(v; 0, 1) sigmoid(std (v - middle)), per entry.

    Left of its middle the sigmoid is an exponential, which moves the Gaussian's centre up by as much as std.
    """
    centre = torch.minimum(middle.clamp_min(0.0), std)
    low, high, bend = centre - SOFTMAX_REACH, centre + SOFTMAX_REACH, SOFTMAX_BEND * inv_std
    edges = torch.stack([low, middle - bend, middle, middle + bend, centre, high], -1)
    edges = torch.minimum(torch.maximum(edges, low[..., None]), high[..., None]).sort(-1).values
    nodes, weights = _legendre(std.dtype, std.device)
    half = 0.5 * edges.diff(dim=-1)[..., None]
    return (edges[..., :-1, None] + half * (1.0 + nodes)).flatten(-2), (half * weights).flatten(-2)
