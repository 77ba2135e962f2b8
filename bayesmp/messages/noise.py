r"""Noise with tails: Gaussian, but with a variance that differs from target to target.

The variance of a target's noise is log-normal: noise_var c(z) with z ~ N(0, 1) and log c = spread z, up to the constant
that makes E[c] = 1. So noise_var is the variance of the noise whatever its tails, spread = 0 is Gaussian noise, and
spread = 1 has the tails of a Student t with about 4 degrees of freedom. In place of all z stand the whole numbers from
-4 to 4, weighted by e^{-z^2 / 2}, which makes it a mixture of nine Gaussians. Around an uncertain output it stays one:
density, cdf, quantiles and draws are exact.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from bayesmp.messages.normal import normal_cdf

REACH = 4  # nodes lie at -REACH .. REACH
MAX_SPREAD = 3.0  # beyond it the nodes lie so far apart that the density has steps
HALVINGS = 60  # of the bracket of a quantile: from a factor of e^24 to rounding


@cache
def _nodes(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes z and their shares, each (9,)."""
    z = torch.arange(-REACH, REACH + 1, dtype=torch.float64)
    shares = torch.exp(-0.5 * z.square())
    return z.to(device=device, dtype=dtype), (shares / shares.sum()).to(device=device, dtype=dtype)


def noise_mixture(spread: Tensor) -> tuple[Tensor, Tensor]:
    """Variances of the parts of the noise, relative to that of all, (..., 9), and their shares (9,)."""
    z, shares = _nodes(spread.dtype, spread.device)
    ratios = torch.exp(spread[..., None] * z)
    return ratios / (ratios * shares).sum(-1, keepdim=True), shares


def part_vars(var: Tensor, noise_var: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Variances of the parts of the predictive, (..., 9), and their shares (9,)."""
    ratios, shares = noise_mixture(spread)
    return var[..., None] + noise_var[..., None] * ratios, shares


def noisy_log_density(gap: Tensor, var: Tensor, noise_var: Tensor, spread: Tensor) -> Tensor:
    """Log-density of a target that lies this far from the mean of its output.

    Args:
        gap: target - mean.
        var: variance of the output, of the same shape.
        noise_var, spread: of the noise, broadcastable to it.
    """
    parts, shares = part_vars(var, noise_var, spread)
    each = torch.log(shares) - 0.5 * (gap.square()[..., None] / parts + torch.log(2.0 * math.pi * parts))
    return torch.logsumexp(each, -1)


def noisy_slopes(gap: Tensor, var: Tensor, noise_var: Tensor, spread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Log-density as above, with its first and its second derivative in log noise_var.

    A part of variance p = var + n, n its noise, has the slope g = u (q - 1) / 2 with u = n / p, q = gap^2 / p. Over the
    parts, weighted by what they have to do with the target,

        L' = E[g],   L'' = E[g' + g^2] - E[g]^2   with   g' = u ((1 - u) (q - 1) - u q) / 2
    """
    ratios, shares = noise_mixture(spread)
    own = noise_var[..., None] * ratios
    parts = var[..., None] + own
    share, score = own / parts, gap.square()[..., None] / parts
    each = torch.log(shares) - 0.5 * (score + torch.log(2.0 * math.pi * parts))
    total = torch.logsumexp(each, -1)
    weights = torch.exp(each - total[..., None])
    slopes = 0.5 * share * (score - 1.0)
    bends = 0.5 * share * ((1.0 - share) * (score - 1.0) - share * score)
    slope = (weights * slopes).sum(-1)
    return total, slope, (weights * (bends + slopes.square())).sum(-1) - slope.square()


def noisy_cdf(gap: Tensor, var: Tensor, noise_var: Tensor, spread: Tensor) -> Tensor:
    """Probability that a target lies no further above the mean of its output than gap; arguments as above."""
    parts, shares = part_vars(var, noise_var, spread)
    return (shares * normal_cdf(gap[..., None] * torch.rsqrt(parts))).sum(-1)


def noisy_reach(tail: float, var: Tensor, noise_var: Tensor, spread: Tensor) -> Tensor:
    """How far from the mean a target lies with probability `tail`, 0 < tail <= 1/2, on either side.

    Note:
        It lies between the reaches of the narrowest and the widest part, and halving the logarithm of that bracket
        cannot fail. In double precision, by the probability of the tail itself, which does not cancel.
    """
    parts, shares = (part.double() for part in part_vars(var, noise_var, spread))
    score = -float(torch.special.ndtri(torch.tensor(tail, dtype=torch.float64)))
    if score <= 0.0:
        return torch.zeros_like(var)
    inverse_std = torch.rsqrt(parts)
    low, high = (torch.log(score / end) for end in (inverse_std.amax(-1), inverse_std.amin(-1)))
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        beyond = (shares * normal_cdf(-middle.exp()[..., None] * inverse_std)).sum(-1)
        is_short = beyond > tail
        low, high = torch.where(is_short, middle, low), torch.where(is_short, high, middle)
    return torch.exp(0.5 * (low + high)).to(var)


def draw_noise(shape: tuple[int, ...], spread: Tensor, generator: torch.Generator) -> Tensor:
    """Relative variances of the noise of independent targets, of this shape, drawn in double precision on the CPU;
    spread must be broadcastable to it.
    """
    ratios, shares = noise_mixture(spread.double().cpu())
    drawn = torch.multinomial(shares, math.prod(shape), replacement=True, generator=generator).reshape(*shape, 1)
    return ratios.expand(*shape, -1).gather(-1, drawn)[..., 0]
