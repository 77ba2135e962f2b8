"""LeakyReLU y = max(x, leak x), leak in [0, 1): to its output and to its input; ReLU is leak = 0.

All functions share one picture: on each half-line s (slope 1 for x >= 0, slope `leak` for x < 0) the incoming
N(mean, var) times the message exp(tau y - rho y^2 / 2) at y = s x is a Gaussian with

    T_s = 1 + s^2 rho var,   x_s = (mean + s tau var) / sqrt(var T_s)      (its mean over its std)

and mass z_s = \\Phi(x_+) e^{x_+^2/2} / sqrt(T_+) (up to a common factor), for the other half-line with -x_-.
In this form nothing depends on 1 / rho, so a message that says nothing is an ordinary case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.normal import MAX_SCORE, CutNormal, cut_normal, normal_cdf, normal_pdf, score
from bayesmp.messages.tilted import message_from_parts

MIN_NORMALISER = 1e-8  # below it the marginal sits in both tails and its division by m_out is noise
STRONG = 0.5  # ratio of marginal to incoming variance below which the literal division is the stable form
NO_MESSAGE = 1e-7  # an m_out with less precision than this is treated as not yet known


@dataclass(frozen=True, slots=True)
class SlopedMoments(Moments):
    """Moments of an activation, with the derivative of its mean in the mean of its input."""

    slope: Tensor


def leaky_relu_to_output(m_in: Moments, leak: float) -> SlopedMoments:
    r"""Mean and variance of max(x, leak x) for x ~ m_in, and the slope d E[y] / d E[x] = leak + (1 - leak) \Phi.

    With a = mean / std, \bar\Phi = 1 - \Phi(a), R = \Phi + a^2 \Phi \bar\Phi + a \phi (\bar\Phi - \Phi) - \phi^2:
        E[y]       = leak mean + (1 - leak) std (a \Phi + \phi)
        Var[y]/var = leak^2 + (1 - leak)^2 R + 2 leak (1 - leak) \Phi

    Note:
        E[y^2] - E[y]^2 gives 0.6875 instead of 0.7 at mean 1000 in float32; this form does not cancel there.
    """
    a = score(m_in.mean, m_in.var)
    pdf, cdf, tail = normal_pdf(a), normal_cdf(a), normal_cdf(-a)
    rectified = (m_in.var.sqrt() * pdf + m_in.mean * cdf).clamp_min(0.0)
    ratio = (cdf + a * a * cdf * tail + a * pdf * (tail - cdf) - pdf * pdf).clamp_min(0.0)
    mean = leak * m_in.mean + (1.0 - leak) * rectified
    var = m_in.var * (leak**2 + (1.0 - leak) ** 2 * ratio + 2.0 * leak * (1.0 - leak) * cdf)
    return SlopedMoments(mean, var, leak + (1.0 - leak) * cdf)


def leaky_relu_mean(m_in: Moments, leak: float) -> SlopedMoments:
    """The same without the variance, which is told as 0: half the passes over memory."""
    a = score(m_in.mean, m_in.var)
    cdf = normal_cdf(a)
    rectified = (m_in.var.sqrt() * normal_pdf(a) + m_in.mean * cdf).clamp_min(0.0)
    nothing = torch.zeros((), dtype=cdf.dtype, device=cdf.device).expand_as(cdf)
    return SlopedMoments(leak * m_in.mean + (1.0 - leak) * rectified, nothing, leak + (1.0 - leak) * cdf)


def leaky_relu_to_input(m_in: Moments, m_out: Gaussian, leak: float) -> Gaussian:
    r"""Message to x: the marginal of x under m_in(x) m_out(max(x, leak x)), divided by m_in.

    With w_s = z_s / Z the mass of each half-line, g_s = s (tau - s rho mean) / T_s, c_s = s^2 rho / T_s,
    b = density of the marginal at 0, k = 1/T_+ - 1/T_-, g = w_+ g_+ + w_- g_-:
        first  = g + b k
        bend   = w_+ w_- (g_+ - g_-)^2 + b (g_+/T_+ - g_-/T_- - mean k / var - 2 g k - b k^2)
        den    = w_+/T_+ + w_-/T_- + var bend                      (= 1 + var * second)
        rho    = (w_+ c_+ + w_- c_- - bend) / den
        tau    = (tau (w_+/T_+ + leak w_-/T_-) + b k - mean bend) / den

    Args:
        m_in: forward message of x, any shape.
        m_out: message arriving at y; rho = 0 is allowed.

    Note:
        The literal division (tilted / incoming) is off by 3e6 at variance 1e-6 in float32; here the unit parts of
        1 + var * second are cancelled on paper. It is the other way round where m_out contradicts m_in by many stds:
        there the terms of den cancel, while the moments of the two cut Gaussians are sums of positive terms and their
        division loses nothing; so they take over below STRONG. Where the marginal is wider than m_in: slope only
        (see tilted.py).
    """
    mean, var = m_in.mean, m_in.var.clamp_min(torch.finfo(m_in.var.dtype).tiny)
    tau, rho = m_out.tau, m_out.rho
    lines = _half_lines(mean, var, tau, rho, leak)
    (inv_pos, inv_neg), (w_pos, w_neg) = lines.inv, lines.weight

    g_pos, g_neg = (tau - rho * mean) * inv_pos, leak * (tau - leak * rho * mean) * inv_neg
    k_per_var = (leak**2 - 1.0) * rho * inv_pos * inv_neg
    k = k_per_var * var
    kink = torch.exp(-lines.height) / lines.z * torch.rsqrt(2.0 * math.pi * var)
    g = w_pos * g_pos + w_neg * g_neg
    first = g + kink * k

    at_kink = g_pos * inv_pos - g_neg * inv_neg - mean * k_per_var - 2.0 * g * k - kink * k * k
    bend = w_pos * w_neg * (g_pos - g_neg) ** 2 + kink * at_kink
    shared_pos, shared_neg = w_pos * inv_pos, w_neg * inv_neg
    den = shared_pos + shared_neg + var * bend
    rho_den = rho * (shared_pos + leak**2 * shared_neg) - bend
    tau_den = tau * (shared_pos + leak * shared_neg) + kink * k - mean * bend

    half_pos, half_neg = lines.root * lines.cut.mean  # distance of each half-line's mean from 0, over the std of m_in
    rest_pos, rest_neg = lines.cut.var
    # den, from moments
    ratio = shared_pos * rest_pos + shared_neg * rest_neg + w_pos * w_neg * (half_pos + half_neg) ** 2
    is_strong = ratio < STRONG
    den = torch.where(is_strong, ratio, den)
    rho_den = torch.where(is_strong, (1.0 - ratio) / var, rho_den)
    marginal_score = w_pos * half_pos - w_neg * half_neg
    tau_den = torch.where(is_strong, marginal_score * torch.rsqrt(var) - mean / var * ratio, tau_den)
    return message_from_parts(tau_den, rho_den, den, first)


def leaky_relu_marginal_to_output(m_in: Moments, m_out: Gaussian, leak: float) -> Moments:
    r"""Message to y when m_out is known: moments of y under m_in(x) m_out(y), divided by m_out.

    With V = Var[y] under the marginal, the division is
        var = V / (1 - rho V),   mean = (E[y] - tau V) / (1 - rho V)                  (tau, rho: of m_out)
    On each half-line V_s = (s^2 var / T_s) (1 - k_s), E_s[y] = s (mean + s tau var) / T_s +- s std_s h_s, with (h, k)
    of `truncation`; what cancels where m_out is strong does so on paper, e.g. rho V_s = (1 - 1/T_s) (1 - k_s).

    Falls back to the direct moments (`leaky_relu_to_output`) where m_out is not known, where the result is not
    finite, where \int m_in m_out is below MIN_NORMALISER, or where the result would be wider than the direct one.
    """
    direct = leaky_relu_to_output(m_in, leak)
    mean, var = m_in.mean, m_in.var.clamp_min(torch.finfo(m_in.var.dtype).tiny)
    tau, rho = m_out.tau, m_out.rho
    lines = _half_lines(mean, var, tau, rho, leak)
    cut, log_z = lines.cut, lines.height + torch.log(lines.z)
    (inv_pos, inv_neg), (w_pos, w_neg), (above_pos, above_neg) = lines.inv, lines.weight, cut.mean
    (h_pos, h_neg), (k_pos, k_neg), (rest_pos, rest_neg) = cut.h, cut.k, cut.var
    var_pos, var_neg = var * inv_pos, leak**2 * var * inv_neg  # of y on each side, before the cut
    std_pos, std_neg = (var * inv_pos).sqrt(), leak * (var * inv_neg).sqrt()
    between = w_pos * w_neg * (std_pos * above_pos + std_neg * above_neg) ** 2
    marginal_var = w_pos * var_pos * rest_pos + w_neg * var_neg * rest_neg + between

    shift_pos = mean * inv_pos + tau * var_pos * k_pos + std_pos * h_pos
    shift_neg = leak * mean * inv_neg + tau * var_neg * k_neg - std_neg * h_neg
    tau_var = w_pos * shift_pos + w_neg * shift_neg - tau * between
    rho_var = w_pos * (k_pos + inv_pos * rest_pos) + w_neg * (k_neg + inv_neg * rest_neg) - rho * between
    out_mean, out_var = tau_var / rho_var, marginal_var / rho_var
    log_normaliser = log_z - 0.5 * (mean * mean / var + tau * tau / rho - torch.log(rho / (2.0 * math.pi)))
    ok = (rho > NO_MESSAGE) & (log_normaliser >= math.log(MIN_NORMALISER)) & (rho_var > 0) & (out_var <= direct.var)
    ok = ok & out_mean.isfinite()
    return Moments(torch.where(ok, out_mean, direct.mean), torch.where(ok, out_var, direct.var))


@dataclass(frozen=True, slots=True)
class _HalfLines:
    """Both half-lines of the module's docstring at once, stacked (2, ...), in directions away from 0.

    Attributes:
        inv, root: 1 / T and its square root.
        cut: the Gaussian on each, N(x_+, 1) and N(-x_-, 1), cut at 0.
        weight: share of the mass, w.
        z, height: Z = z e^height.
    """

    inv: Tensor
    root: Tensor
    cut: CutNormal
    weight: Tensor
    z: Tensor
    height: Tensor


def _half_lines(mean: Tensor, var: Tensor, tau: Tensor, rho: Tensor, leak: float) -> _HalfLines:
    inv = torch.stack([1.0 + rho * var, 1.0 + leak**2 * rho * var]).reciprocal()
    root = inv.sqrt()
    pulled = torch.stack([mean + tau * var, -(mean + leak * tau * var)])
    x = (pulled * torch.rsqrt(var) * root).clamp(-MAX_SCORE, MAX_SCORE)
    cut = cut_normal(x)
    pos, neg = x.clamp_min(0.0)
    gap = 0.5 * (pos - neg) * (pos + neg)  # of the exponents of the two masses
    mass = cut.mass * root * torch.exp(torch.stack([gap, -gap]).clamp_max(0.0))
    z = mass.sum(0)
    return _HalfLines(inv, root, cut, mass / z, z, 0.5 * torch.maximum(pos, neg).square())
