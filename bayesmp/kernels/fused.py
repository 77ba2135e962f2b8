"""The element-wise equations as CUDA source, each one pass over memory instead of dozens.

torch.cuda.jiterator builds them with the driver's compiler in about a second, takes tensors of any strides and
broadcasts; torch.compile did the same work as fast, but needed 8 to 11 seconds per function to build it. float32 only.
The text of each function follows its equation in bayesmp/equations line by line, and is tested against it.
Comparisons are written with `<`: jiterator takes a `>` for the end of the template's parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_NORMAL = """
template <typename T> T normal_cdf(T x) { return 0.5f * erfcf(-0.70710678f * x); }
template <typename T> T clip(T x) { return fminf(fmaxf(x, -1e6f), 1e6f); }
template <typename T> T score(T mean, T var) { return clip(mean * rsqrtf(fmaxf(var, 1.17549435e-38f))); }
template <typename T> T log_normal_cdf(T x) {
  return x < -1.0f ? logf(0.5f * erfcxf(-0.70710678f * x)) - 0.5f * x * x : log1pf(-0.5f * erfcf(0.70710678f * x));
}
template <typename T> T log_scaled_cdf(T x) {
  return 5.0f < x ? 0.5f * x * x + log1pf(-normal_cdf(-x)) : logf(erfcxf(-0.70710678f * x)) - 0.69314718f;
}
template <typename T> T log_sum(T a, T b) { return fmaxf(a, b) + log1pf(expf(-fabsf(a - b))); }
template <typename T> void truncation(T x, T& h, T& rest) {
  if (x < -7.0f) {
    T u = -x, c = 0.0f;
    for (int term = 10; 1 < term; --term) c = term / (u + c);
    T d = 1.0f / (u + c);
    h = u + d;
    rest = (c - d) / (u + c);
  } else {
    h = 0.79788456f / erfcxf(-0.70710678f * x);
    rest = 1.0f - h * (h + x);
  }
}
"""

_TO_OUTPUT = """
template <typename T> void leaky_relu_to_output(T mean, T var, T leak, T& out_mean, T& out_var, T& out_slope) {
  T a = score(mean, var), pdf = 0.39894228f * expf(-0.5f * a * a);
  T cdf = normal_cdf(a), tail = normal_cdf(-a), rest = 1.0f - leak;
  T rectified = fmaxf(sqrtf(var) * pdf + mean * cdf, 0.0f);
  T ratio = fmaxf(cdf + a * a * cdf * tail + a * pdf * (tail - cdf) - pdf * pdf, 0.0f);
  out_mean = leak * mean + rest * rectified;
  out_var = var * (leak * leak + rest * rest * ratio + 2.0f * leak * rest * cdf);
  out_slope = leak + rest * cdf;
}
"""

_TO_INPUT = """
template <typename T>
void leaky_relu_to_input(T mean, T var_in, T tau, T rho, T leak, T& out_tau, T& out_rho) {
  T var = fmaxf(var_in, 1.17549435e-38f), leak2 = leak * leak, std_inv = rsqrtf(var);
  T inv_pos = 1.0f / (1.0f + rho * var), inv_neg = 1.0f / (1.0f + leak2 * rho * var);
  T x_pos = clip((mean + tau * var) * std_inv * sqrtf(inv_pos));
  T x_neg = clip(-(mean + leak * tau * var) * std_inv * sqrtf(inv_neg));
  T l_pos = log_scaled_cdf(x_pos) + 0.5f * logf(inv_pos), l_neg = log_scaled_cdf(x_neg) + 0.5f * logf(inv_neg);
  T log_z = log_sum(l_pos, l_neg), w_pos = expf(l_pos - log_z), w_neg = expf(l_neg - log_z);

  T g_pos = (tau - rho * mean) * inv_pos, g_neg = leak * (tau - leak * rho * mean) * inv_neg;
  T k_per_var = (leak2 - 1.0f) * rho * inv_pos * inv_neg, k = k_per_var * var;
  T kink = expf(-log_z) * rsqrtf(6.2831853f * var);
  T g = w_pos * g_pos + w_neg * g_neg, first = g + kink * k;

  T at_kink = g_pos * inv_pos - g_neg * inv_neg - mean * k_per_var - 2.0f * g * k - kink * k * k;
  T bend = w_pos * w_neg * (g_pos - g_neg) * (g_pos - g_neg) + kink * at_kink;
  T shared_pos = w_pos * inv_pos, shared_neg = w_neg * inv_neg;
  T den = shared_pos + shared_neg + var * bend;
  T rho_den = rho * (shared_pos + leak2 * shared_neg) - bend;
  T tau_den = tau * (shared_pos + leak * shared_neg) + kink * k - mean * bend;

  T h_pos, rest_pos, h_neg, rest_neg;
  truncation(x_pos, h_pos, rest_pos);
  truncation(x_neg, h_neg, rest_neg);
  T half_pos = sqrtf(inv_pos) * (x_pos + h_pos), half_neg = sqrtf(inv_neg) * (x_neg + h_neg);
  T both = half_pos + half_neg;
  T ratio = shared_pos * rest_pos + shared_neg * rest_neg + w_pos * w_neg * both * both;
  if (ratio < 0.5f) {
    den = ratio;
    rho_den = (1.0f - ratio) / var;
    tau_den = (w_pos * half_pos - w_neg * half_neg) * std_inv - mean / var * ratio;
  }
  T found_rho = rho_den / den, found_tau = tau_den / den;
  bool proper = 0.0f < den && 1e-8f < found_rho && found_rho < 1e15f && fabsf(found_tau) < 3.4e38f;
  out_rho = proper ? found_rho : 1e-8f;
  out_tau = proper ? found_tau : (fabsf(first) < 3.4e38f ? first : 0.0f);
}
"""

_RESIDUAL = """
template <typename T>
void residual(T mean, T var, T input_var, T tau, T rho, T& to_input, T& to_weight, T& q) {
  T inv_den = 1.0f / (1.0f + rho * var), slope = tau - rho * mean;
  to_input = slope * inv_den;
  to_weight = slope / (1.0f + rho * input_var);
  q = rho * inv_den;
}
"""

_CURVATURE = """
template <typename T> void weight_curvature(T input_var, T rho, T& out) { out = rho / (1.0f + rho * input_var); }
"""

_MAX_POOL = """
template <typename T> T wins(T mean, T var, T other_mean, T other_var, T noise) {
  return log_normal_cdf(score(mean - other_mean, var + other_var + noise));
}
template <typename T>
void max_of_four(T m0, T m1, T m2, T m3, T v0, T v1, T v2, T v3, T noise, T& p0, T& p1, T& p2, T& p3, T& mean, T& var) {
  T l0 = wins(m0, v0, m1, v1, noise) + wins(m0, v0, m2, v2, noise) + wins(m0, v0, m3, v3, noise);
  T l1 = wins(m1, v1, m0, v0, noise) + wins(m1, v1, m2, v2, noise) + wins(m1, v1, m3, v3, noise);
  T l2 = wins(m2, v2, m0, v0, noise) + wins(m2, v2, m1, v1, noise) + wins(m2, v2, m3, v3, noise);
  T l3 = wins(m3, v3, m0, v0, noise) + wins(m3, v3, m1, v1, noise) + wins(m3, v3, m2, v2, noise);
  T top = fmaxf(fmaxf(l0, l1), fmaxf(l2, l3));
  p0 = expf(l0 - top); p1 = expf(l1 - top); p2 = expf(l2 - top); p3 = expf(l3 - top);
  T scale = 1.0f / (p0 + p1 + p2 + p3);
  p0 = p0 * scale; p1 = p1 * scale; p2 = p2 * scale; p3 = p3 * scale;
  mean = p0 * m0 + p1 * m1 + p2 * m2 + p3 * m3;
  var = p0 * p0 * v0 + p1 * p1 * v1 + p2 * p2 * v2 + p3 * p3 * v3;
}
"""

_SUM_TO_INPUT = """
template <typename T>
void weighted_sum_to_input(T a, T mean, T var, T sum_mean, T sum_var, T tau, T rho, T& out_tau, T& out_rho) {
  T inv_den = 1.0f / (1.0f + rho * fmaxf(sum_var - a * a * var, 0.0f));
  out_tau = a * (tau - rho * (sum_mean - a * mean)) * inv_den;
  out_rho = a * a * rho * inv_den;
}
"""

SOURCES = {  # name: (source, number of outputs, scalar options)
    "leaky_relu_to_output": (_NORMAL + _TO_OUTPUT, 3, ("leak",)),
    "leaky_relu_to_input": (_NORMAL + _TO_INPUT, 2, ("leak",)),
    "residual": (_RESIDUAL, 3, ()),
    "weight_curvature": (_CURVATURE, 1, ()),
    "max_of_four": (_NORMAL + _MAX_POOL, 6, ("noise",)),
    "weighted_sum_to_input": (_SUM_TO_INPUT, 2, ()),
}
_built: dict[str, Callable[..., Any]] = {}


def launch(name: str, *tensors: Tensor, **options: float) -> tuple[Tensor, ...]:
    """One pass of a function of SOURCES over CUDA tensors that broadcast against each other."""
    if name not in _built:
        source, n_outputs, names = SOURCES[name]
        declared = dict.fromkeys(names, 0.0)
        _built[name] = torch.cuda.jiterator._create_multi_output_jit_fn(source, n_outputs, **declared)
    answers = _built[name](*tensors, **options)
    return (answers,) if isinstance(answers, Tensor) else tuple(answers)
