"""The standard normal in forms that survive float32: one side of it, cut at a point."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_SCORE = 1e6  # |mean / std| is cut here: its square must stay finite in float32, and the cdf has long saturated
TAIL = 7.0  # stds behind which, in float64, the continued fraction takes over from a difference that cancels
FAR = 12.0  # and in float32, for the variance alone, the series in 1 / u^2
_FRACTION_DEPTH = 10  # terms of the continued fraction; at 7 stds its error is 3e-9
_TOP = (3.6009364766e-3, 3.9224880953e-2, 0.20110113659, 0.56758284655, 0.79788439804)  # of `excess` in float32, in
_BOTTOM = (3.6009357416e-3, 3.9225248114e-2, 0.20827484130, 0.64683909373, 1.1667829468, 1.0)  # falling powers of u
_SERIES = (-89782.0, 6354.0, -518.0, 50.0, -6.0, 1.0)  # of the variance in 1 / u^2, but for one such factor
_ROOT = math.sqrt(2.0 * math.pi)


def normal_pdf(x: Tensor) -> Tensor:
    r"""The density \phi(x) of a standard normal."""
    return torch.exp(-0.5 * x * x) * (1.0 / _ROOT)


def normal_cdf(x: Tensor) -> Tensor:
    r"""Its distribution function \Phi(x)."""
    return 0.5 * torch.special.erfc(x * -math.sqrt(0.5))  # torch.special.ndtr is (1 + erf) / 2: noise below score -5


def log_normal_cdf(x: Tensor) -> Tensor:
    r"""log \Phi(x)."""
    if x.dtype != torch.float32:
        return torch.special.log_ndtr(x)
    u, pdf = x.abs(), normal_pdf(x)
    mills = torch.reciprocal(u + excess(u))
    return torch.where(x < 0, torch.log(mills) - 0.5 * u * u - math.log(_ROOT), torch.log1p(-pdf * mills))


def score(mean: Tensor, var: Tensor) -> Tensor:
    """mean / std, cut to a range whose square is finite; var = 0 gives the end of that range on the mean's side."""
    tiny = torch.finfo(var.dtype).tiny
    return (mean * torch.rsqrt(var.clamp_min(tiny))).clamp(-MAX_SCORE, MAX_SCORE)


def excess(u: Tensor) -> Tensor:
    r"""E[y] for y ~ N(-u, 1) cut to y >= 0, u >= 0: \phi(u) / \Phi(-u) - u, from \sqrt{2 / \pi} at 0 to 1 / u.

    Everything else about one side of a normal is arithmetic with it: the Mills ratio is 1 / (u + excess).

    Note:
        float32: a ratio of polynomials with positive coefficients, whose relative error is 2e-7 in exact arithmetic and
        5e-7 with rounding, up to MAX_SCORE. (torch's erfcx works on one number at a time.)
    """
    if u.dtype == torch.float32:
        return _horner(_TOP, u) / _horner(_BOTTOM, u)
    bulk = u.clamp_max(TAIL)
    near = math.sqrt(2.0 / math.pi) / torch.special.erfcx(bulk * math.sqrt(0.5)) - bulk
    return torch.where(u > TAIL, _fractions(u)[1], near)


def scaled_cdf(x: Tensor) -> Tensor:
    r"""\Phi(x) without its Gaussian decay: \Phi(x) e^{x^2 / 2} for x < 0, \Phi(x) for x >= 0."""
    u = x.abs()
    mills = torch.reciprocal(u + excess(u))
    return torch.where(x < 0, mills * (1.0 / _ROOT), 1.0 - normal_pdf(x) * mills)


@dataclass(frozen=True, slots=True)
class CutNormal:
    r"""y ~ N(x, 1) cut to y >= 0.

    Attributes:
        mass: `scaled_cdf`, the part that is left.
        h: \phi(x) / \Phi(x).
        mean: E[y] = x + h.
        k, var: Var[y] = 1 - k, k = h (h + x).
    """

    mass: Tensor
    h: Tensor
    mean: Tensor
    k: Tensor
    var: Tensor


def cut_normal(x: Tensor) -> CutNormal:
    r"""Mass and moments of y ~ N(x, 1) cut to y >= 0, with no difference of nearly equal numbers.

    Note:
        Left of 0, h = u + d, u = -x, and Var[y] = 1 - (u + d) d, d = `excess(u)`. For large u it is about 1 / u^2, and
        taken from the series 1 / u^2 - 6 / u^4 + ..., or in float64 from the continued fraction d = 1 / (u + c),
        c = 2 / (u + 3 / (u + ...)), which gives (c - d) / (u + c).
    """
    u, is_left = x.abs(), x < 0
    d, pdf = excess(u), normal_pdf(x)
    h_left = u + d
    mills = torch.reciprocal(h_left)
    cdf = 1.0 - pdf * mills
    h_right = pdf / cdf
    right = x + h_right
    k_right = h_right * right
    if x.dtype == torch.float32:
        s = torch.reciprocal(u.clamp_min(FAR).square())
        far = s * _horner(_SERIES, s)
        is_far = u > FAR
    else:
        c, d_far = _fractions(u)
        far = (c - d_far) * d_far
        is_far = u > TAIL
    var_left = torch.where(is_far, far, 1.0 - h_left * d)
    return CutNormal(
        mass=torch.where(is_left, mills * (1.0 / _ROOT), cdf),
        h=torch.where(is_left, h_left, h_right),
        mean=torch.where(is_left, d, right),
        k=torch.where(is_left, 1.0 - var_left, k_right),
        var=torch.where(is_left, var_left, 1.0 - k_right),
    )


def truncation(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""(h, k, 1 - k) for y ~ N(x, 1) cut to y >= 0: E[y] = x + h and Var[y] = 1 - k, k = h (h + x)."""
    cut = cut_normal(x)
    return cut.h, cut.k, cut.var


def _fractions(u: Tensor) -> tuple[Tensor, Tensor]:
    """c and d of `cut_normal`, good for u > TAIL."""
    u = u.clamp_min(TAIL)
    c = torch.zeros_like(u)
    for term in range(_FRACTION_DEPTH, 1, -1):
        c = term * torch.reciprocal(u + c)
    return c, torch.reciprocal(u + c)


def _horner(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """The polynomial with these coefficients, highest power first."""
    found = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        found = found.mul_(x).add_(coefficient)
    return found
