r"""Inner product z_o = sum_i w_oi a_i + bias_o: to z, to a, to w, to bias; exact, and as matrix products.

Exact form, with v_i = Var[a_i] E[w_i]^2 + E[a_i^2] Var[w_i] the share of term i in Var[z]:
    den_i = 1 + rho_z (var - v_i),  t_i = (tau_z - rho_z (mean - E[a_i] E[w_i])) / den_i,  r_i = rho_z / den_i
    to w_i: tau = t_i E[a_i], rho = r_i E[a_i^2];   to a_i: tau = t_i E[w_i], rho = r_i E[w_i^2]
It needs a (b, p, o, i) array. Matrix form: the term's own share stays in, D = 1 + rho_z var for every i, so that with
    q = rho_z / D,  e = (tau_z - rho_z mean) / D
everything is a product of the map. Its error is O(1 / fan-in).

Cavity and marginal. The exact form belongs to beliefs that have not seen the example, as the sequential schedule has
them. The parallel schedule has marginals only, which have, and takes the matrix form at any fan-in. For known inputs,
where z is an exact weighted sum of the weights, the step from one to the other is closed: with
g = tau_z - rho_z E[z] at the *marginal* mean,
    tau_w = a g + mean_w rho_w
holds identically, because E[w] - E_cavity[w] = var_cavity a g (the Onsager term of approximate message passing). So the
variance that the weights themselves put into z must not shrink the residual that goes back to them; only what
uncertain inputs put there may. At marginals, weights receive e_w = (tau_z - rho_z mean) / (1 + rho_z
var_from_inputs), inputs e as above. A linear-Gaussian model then has the means of the closed form; dividing by D
would fit it with inflated noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.linear_maps import LinearMap


@dataclass(frozen=True, slots=True)
class SumMoments(Moments):
    """Moments of an inner product, with the part of the variance that comes from uncertain inputs (0 if known)."""

    input_var: Tensor


# --- to the output ---------------------------------------------------------------------------------------------------


def linear_to_output(
    linear_map: LinearMap, m_in: Moments | Tensor, weight: Moments, bias: Moments | None
) -> SumMoments:
    """Mean and variance of z; `m_in` as a plain tensor is a known input. The variance is a sum of positive terms."""
    bias_mean, bias_var = (None, None) if bias is None else (bias.mean, bias.var)
    mean_in = m_in.mean if isinstance(m_in, Moments) else m_in
    mean = linear_map.op(mean_in, weight.mean, bias_mean)
    var = linear_map.op(mean_in.square(), weight.var, bias_var)
    if not isinstance(m_in, Moments):
        return SumMoments(mean, var, torch.zeros((), dtype=var.dtype, device=var.device).expand_as(var))
    input_var = linear_map.op(m_in.var, weight.mean.square() + weight.var)
    return SumMoments(mean, var.add_(input_var), input_var)


def linear_mean(linear_map: LinearMap, m_in: Moments | Tensor, weight: Moments, bias: Moments | None) -> SumMoments:
    """The same where nothing is uncertain, or variances come from elsewhere: these are told as 0."""
    mean_in = m_in.mean if isinstance(m_in, Moments) else m_in
    mean = linear_map.op(mean_in, weight.mean, None if bias is None else bias.mean)
    nothing = torch.zeros((), dtype=mean.dtype, device=mean.device).expand_as(mean)
    return SumMoments(mean, nothing, nothing)


# --- matrix form -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Residual:
    """What an output tells its terms in the matrix form, each of the shape of z."""

    to_input: Tensor  # e
    to_weight: Tensor  # e_w
    q: Tensor


def residual(m_z: SumMoments, m_back: Gaussian) -> Residual:
    """e, e_w and q of the module's docstring from the forward moments of z and the message arriving at it."""
    inv_den = 1.0 / (1.0 + m_back.rho * m_z.var)
    slope = m_back.tau - m_back.rho * m_z.mean
    return Residual(slope * inv_den, slope / (1.0 + m_back.rho * m_z.input_var), m_back.rho * inv_den)


def weight_curvature(input_var: Tensor, rho: Tensor) -> Tensor:
    """Minus the derivative of e_w in the mean of z: the curvature that weights see, rho_z / (1 + rho_z
    var_from_inputs).
    """
    return rho / (1.0 + rho * input_var)


def linear_to_input(linear_map: LinearMap, m_in: Moments, weight: Moments, back: Residual) -> Gaussian:
    """tau = op_input(e, Wm) + Am op_input(q, Wm^2), rho = op_input(q, Wm^2 + Wv)."""
    from_mean = linear_map.op_input(back.q, weight.mean.square())
    tau = linear_map.op_input(back.to_input, weight.mean).addcmul_(m_in.mean, from_mean)
    return Gaussian(tau, from_mean.add_(linear_map.op_input(back.q, weight.var)))


def linear_to_weight(linear_map: LinearMap, m_in: Moments | Tensor, weight: Moments, back: Residual) -> Gaussian:
    """tau = op_weight(Am, e_w) + Wm op_weight(Am^2, q), rho = op_weight(Am^2 + Av, q); over batch and positions."""
    mean = m_in.mean if isinstance(m_in, Moments) else m_in
    from_mean = linear_map.op_weight(mean.square(), back.q)
    rho = from_mean
    if isinstance(m_in, Moments):
        rho = from_mean + linear_map.op_weight(m_in.var, back.q)
    return Gaussian(linear_map.op_weight(mean, back.to_weight).addcmul_(weight.mean, from_mean), rho)


@dataclass(frozen=True, slots=True)
class UnitSums:
    """Sums (o) over batch and positions of what arrives at the sums z of each unit."""

    slope: Tensor  # of e_w
    rho: Tensor  # of r, see unit_sums
    curvature: Tensor  # of weight_curvature


def unit_sums(
    linear_map: LinearMap, bias_var: Tensor | None, m_z: SumMoments, m_back: Gaussian, to_weight: Tensor
) -> UnitSums:
    """Sums of e_w, of r = rho_z / (1 + rho_z (var - bias_var)), and of the curvature that weights see.

    The first two make the message to each bias, tau = sum e_w + E[bias] sum r, rho = sum r, at marginals. A bias is a
    term with weight 1 whose share of Var[z] does not shrink with fan-in, so it is left out of the variance in this
    form, too.
    """
    rho, var = m_back.rho, m_z.var if bias_var is None else m_z.var - linear_map.spread(bias_var)
    r = rho / (1.0 + rho * var.clamp_min(0.0))
    curvature = weight_curvature(m_z.input_var, rho)
    return UnitSums(*(linear_map.channel_sum(part) for part in (to_weight, r, curvature)))


# --- exact form, at cavities ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExactTerms:
    """Per-term messages before they are weighted, shape (b, p, o, i) with p positions."""

    t: Tensor
    r: Tensor


def exact_terms(
    linear_map: LinearMap, m_in: Moments | Tensor, weight: Moments, m_z: SumMoments, m_back: Gaussian
) -> ExactTerms:
    """t_i and r_i of the module's docstring; m_z holds the whole sum, bias included."""
    weight_mean = linear_map.flat_weight(weight.mean)  # (o, i)
    weight_var = linear_map.flat_weight(weight.var)
    if isinstance(m_in, Moments):
        mean = linear_map.patches(m_in.mean)[:, :, None, :]  # (b, p, 1, i)
        var = linear_map.patches(m_in.var)[:, :, None, :]
        share = var * weight_mean.square() + (mean.square() + var) * weight_var
    else:
        mean = linear_map.patches(m_in)[:, :, None, :]
        share = mean.square() * weight_var
    z_mean, z_var = linear_map.rows(m_z.mean)[..., None], linear_map.rows(m_z.var)[..., None]  # (b, p, o, 1)
    tau, rho = linear_map.rows(m_back.tau)[..., None], linear_map.rows(m_back.rho)[..., None]
    inv_den = 1.0 / (1.0 + rho * (z_var - share).clamp_min(0.0))
    return ExactTerms((tau - rho * (z_mean - mean * weight_mean)) * inv_den, rho * inv_den)


def exact_to_weight(linear_map: LinearMap, m_in: Moments | Tensor, weight: Moments, terms: ExactTerms) -> Gaussian:
    """Message to each weight, multiplied over batch and positions."""
    if isinstance(m_in, Moments):
        mean = linear_map.patches(m_in.mean)[:, :, None, :]
        second = mean.square() + linear_map.patches(m_in.var)[:, :, None, :]
    else:
        mean = linear_map.patches(m_in)[:, :, None, :]
        second = mean.square()
    tau, rho = (terms.t * mean).sum((0, 1)), (terms.r * second).sum((0, 1))  # (o, i)
    return Gaussian(tau.view(weight.shape), rho.view(weight.shape))


def exact_to_input(linear_map: LinearMap, weight: Moments, terms: ExactTerms) -> Gaussian:
    """Message to each input, multiplied over the outputs and windows that use it."""
    weight_mean = linear_map.flat_weight(weight.mean)
    second = weight_mean.square() + linear_map.flat_weight(weight.var)
    tau, rho = (terms.t * weight_mean).sum(2), (terms.r * second).sum(2)  # (b, p, i)
    return Gaussian(linear_map.fold(tau), linear_map.fold(rho))


def exact_back(
    linear_map: LinearMap, m_in: Moments | Tensor, weight: Moments, m_z: SumMoments, m_back: Gaussian
) -> tuple[Gaussian, Gaussian | None]:
    """Messages to the weights, and to the inputs unless they are known."""
    terms = exact_terms(linear_map, m_in, weight, m_z, m_back)
    to_weight = exact_to_weight(linear_map, m_in, weight, terms)
    return to_weight, exact_to_input(linear_map, weight, terms) if isinstance(m_in, Moments) else None


def linear_to_bias(linear_map: LinearMap, bias: Moments, m_z: SumMoments, m_back: Gaussian) -> Gaussian:
    """Message to each bias: a weighted sum with weight 1, multiplied over batch and positions."""
    mean, var = linear_map.spread(bias.mean), linear_map.spread(bias.var)
    r = m_back.rho / (1.0 + m_back.rho * (m_z.var - var).clamp_min(0.0))
    tau = (m_back.tau - m_back.rho * (m_z.mean - mean)) / (1.0 + m_back.rho * (m_z.var - var).clamp_min(0.0))
    return Gaussian(linear_map.channel_sum(tau), linear_map.channel_sum(r))
