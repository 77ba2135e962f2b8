"""The standard normal in forms that survive float32: scaled log-cdf, hazard, truncation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MAX_SCORE = 1e6  # |mean / std| is cut here: its square must stay finite in float32, and the cdf has long saturated
TAIL = -7.0  # below this score 1 - hazard (hazard + x) cancels in float32 and the continued fraction takes over
_FRACTION_DEPTH = 10  # terms of the continued fraction; at score -7 its error is 3e-9


def normal_pdf(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))


def normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * torch.special.erfc(x * -math.sqrt(0.5))  # torch.special.ndtr is (1 + erf) / 2: noise below score -5


def log_normal_cdf(x: Tensor) -> Tensor:
    return torch.special.log_ndtr(x)


def score(mean: Tensor, var: Tensor) -> Tensor:
    """mean / std, cut to a range whose square is finite; var = 0 gives the end of that range on the mean's side."""
    tiny = torch.finfo(var.dtype).tiny
    return (mean * torch.rsqrt(var.clamp_min(tiny))).clamp(-MAX_SCORE, MAX_SCORE)


def log_scaled_cdf(x: Tensor) -> Tensor:
    r"""log(\Phi(x) e^{x^2 / 2}): the log-cdf without its own Gaussian decay.

    Note:
        log erfcx(-x / \sqrt 2) - log 2 has no cancellation for negative x and overflows for large positive x,
        where \Phi is 1 to rounding and x^2 / 2 is the whole answer.
    """
    bulk = x.clamp_max(5.0)
    positive = x.clamp_min(5.0)
    scaled = torch.log(torch.special.erfcx(bulk * -math.sqrt(0.5))) - math.log(2.0)
    return torch.where(x > 5.0, 0.5 * positive * positive + torch.log1p(-normal_cdf(-positive)), scaled)


def hazard(x: Tensor) -> Tensor:
    r"""\phi(x) / \Phi(x), the mean of a standard normal cut to >= -x; about -x for very negative x, 0 for large x."""
    return math.sqrt(2.0 / math.pi) / torch.special.erfcx(x * -math.sqrt(0.5))


def truncation(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""(h, k, 1 - k) for y ~ N(x, 1) cut to y >= 0: E[y] = x + h and Var[y] = 1 - k, k = h (h + x).

    Note:
        For x -> -inf, k -> 1 - 1/x^2: 1 - k is then taken from the continued fraction of the Mills ratio,
        h = u + d, d = 1 / (u + c), c = 2 / (u + 3 / (u + ...)), u = -x, which gives 1 - k = (c - d) / (u + c).
    """
    h = hazard(x)
    k_bulk = h * (h + x)

    u = (-x).clamp_min(-TAIL)
    c = torch.zeros_like(u)
    for term in range(_FRACTION_DEPTH, 1, -1):
        c = term * torch.reciprocal(u + c)
    d = torch.reciprocal(u + c)
    rest_tail = (c - d) / (u + c)

    is_tail = x < TAIL
    h = torch.where(is_tail, u + d, h)
    k = torch.where(is_tail, 1.0 - rest_tail, k_bulk)
    rest = torch.where(is_tail, rest_tail, 1.0 - k_bulk)
    return h, k, rest
