"""The element-wise equations as C++ text, one source for CPUs (compiled.py) and CUDA (fused.py).

Each function follows its equation in bayesmp/equations line by line, and is tested against it; float32 only. All of it
is arithmetic, square roots and `expf`, so that a compiler can work on several elements at once: choices are written as
`a ? b : c` between values that exist anyway. Comparisons are written with `<`: torch's jiterator takes a `>` for the
end of the template's parameters. A NaN goes through, since it is never smaller than anything.
"""

from __future__ import annotations

from dataclasses import dataclass

_NORMAL = """
template <typename T> T at_least(T x, T bound) { return x < bound ? bound : x; }
template <typename T> T at_most(T x, T bound) { return bound < x ? bound : x; }
template <typename T> T clip(T x) { return at_most(at_least(x, -1e6f), 1e6f); }
template <typename T> T score(T mean, T var) { return clip(mean * rsqrtf(at_least(var, 1.17549435e-38f))); }
template <typename T> T normal_pdf(T x) { return 0.39894228f * expf(-0.5f * x * x); }
template <typename T> T excess(T u) {
  T top = 3.6009364766e-3f * u + 3.9224880953e-2f;
  top = top * u + 0.20110113659f;
  top = top * u + 0.56758284655f;
  top = top * u + 0.79788439804f;
  T bottom = 3.6009357416e-3f * u + 3.9225248114e-2f;
  bottom = bottom * u + 0.20827484130f;
  bottom = bottom * u + 0.64683909373f;
  bottom = bottom * u + 1.1667829468f;
  bottom = bottom * u + 1.0f;
  return top / bottom;
}
template <typename T> T cut_var(T u, T above) {
  T s = 1.0f / (u * u + 1e-30f);
  T far = s * (1.0f + s * (-6.0f + s * (50.0f + s * (-518.0f + s * (6354.0f - s * 89782.0f)))));
  return 12.0f < u ? far : 1.0f - (u + above) * above;
}
"""

_TO_OUTPUT = """
template <typename T> void leaky_relu_to_output(T mean, T var, T leak, T& out_mean, T& out_var, T& out_slope) {
  T a = score(mean, var), pdf = normal_pdf(a), u = fabsf(a), beyond = pdf / (u + excess(u));
  T cdf = a < 0.0f ? beyond : 1.0f - beyond, tail = a < 0.0f ? 1.0f - beyond : beyond, rest = 1.0f - leak;
  T rectified = at_least(sqrtf(var) * pdf + mean * cdf, 0.0f);
  T ratio = at_least(cdf + a * a * cdf * tail + a * pdf * (tail - cdf) - pdf * pdf, 0.0f);
  out_mean = leak * mean + rest * rectified;
  out_var = var * (leak * leak + rest * rest * ratio + 2.0f * leak * rest * cdf);
  out_slope = leak + rest * cdf;
}
"""

_TO_INPUT = """
template <typename T>
void half_line(T x, T drop, T& mass, T& above, T& rest) {
  T u = fabsf(x), d = excess(u), pdf = 0.39894228f * drop, mills = 1.0f / (u + d);
  T cdf = 1.0f - pdf * mills, h = pdf / cdf;
  mass = x < 0.0f ? 0.39894228f * mills : cdf;
  above = x < 0.0f ? d : x + h;
  rest = x < 0.0f ? cut_var(u, d) : 1.0f - h * above;
}
template <typename T>
void leaky_relu_to_input(T mean, T var_in, T tau, T rho, T leak, T& out_tau, T& out_rho) {
  T var = at_least(var_in, 1.17549435e-38f), leak2 = leak * leak, std_inv = rsqrtf(var);
  T inv_pos = 1.0f / (1.0f + rho * var), inv_neg = 1.0f / (1.0f + leak2 * rho * var);
  T root_pos = sqrtf(inv_pos), root_neg = sqrtf(inv_neg);
  T x_pos = clip((mean + tau * var) * std_inv * root_pos);
  T x_neg = clip(-(mean + leak * tau * var) * std_inv * root_neg);

  T up_pos = at_least(x_pos, 0.0f), up_neg = at_least(x_neg, 0.0f);
  T drop_pos = expf(-0.5f * up_pos * up_pos), drop_neg = expf(-0.5f * up_neg * up_neg);
  T mass_pos, above_pos, rest_pos, mass_neg, above_neg, rest_neg;
  half_line(x_pos, drop_pos, mass_pos, above_pos, rest_pos);
  half_line(x_neg, drop_neg, mass_neg, above_neg, rest_neg);
  T gap = 0.5f * (up_pos - up_neg) * (up_pos + up_neg), lower = expf(-fabsf(gap));
  T z_pos = mass_pos * root_pos * (gap < 0.0f ? lower : 1.0f);
  T z_neg = mass_neg * root_neg * (gap < 0.0f ? 1.0f : lower);
  T inv_z = 1.0f / (z_pos + z_neg), w_pos = z_pos * inv_z, w_neg = z_neg * inv_z;

  T g_pos = (tau - rho * mean) * inv_pos, g_neg = leak * (tau - leak * rho * mean) * inv_neg;
  T k_per_var = (leak2 - 1.0f) * rho * inv_pos * inv_neg, k = k_per_var * var;
  T kink = (gap < 0.0f ? drop_neg : drop_pos) * inv_z * std_inv * 0.39894228f;
  T g = w_pos * g_pos + w_neg * g_neg, first = g + kink * k;

  T at_kink = g_pos * inv_pos - g_neg * inv_neg - mean * k_per_var - 2.0f * g * k - kink * k * k;
  T bend = w_pos * w_neg * (g_pos - g_neg) * (g_pos - g_neg) + kink * at_kink;
  T shared_pos = w_pos * inv_pos, shared_neg = w_neg * inv_neg;
  T den = shared_pos + shared_neg + var * bend;
  T rho_den = rho * (shared_pos + leak2 * shared_neg) - bend;
  T tau_den = tau * (shared_pos + leak * shared_neg) + kink * k - mean * bend;

  T half_pos = root_pos * above_pos, half_neg = root_neg * above_neg, both = half_pos + half_neg;
  T ratio = shared_pos * rest_pos + shared_neg * rest_neg + w_pos * w_neg * both * both;
  bool strong = ratio < 0.5f;
  T inv_var = std_inv * std_inv;
  den = strong ? ratio : den;
  rho_den = strong ? (1.0f - ratio) * inv_var : rho_den;
  tau_den = strong ? (w_pos * half_pos - w_neg * half_neg) * std_inv - mean * inv_var * ratio : tau_den;

  T inv_den = 1.0f / den, found_rho = rho_den * inv_den, found_tau = tau_den * inv_den;
  bool proper = (0.0f < den) & (1e-8f < found_rho) & (found_rho < 1e15f) & (fabsf(found_tau) < 3.4e38f);
  T slope = fabsf(first) < 3.4e38f ? first : 0.0f;
  out_rho = proper ? found_rho : 1e-8f;
  out_tau = proper ? found_tau : slope;
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
template <typename T>
void compare(T mean, T var, T other_mean, T other_var, T noise, T& wins, T& height, T& other_wins, T& other_height) {
  T x = score(mean - other_mean, var + other_var + noise), u = fabsf(x), half = 0.5f * u * u;
  T small = 0.39894228f / (u + excess(u)), large = 1.0f - small * expf(-half);
  wins = wins * (x < 0.0f ? small : large);
  other_wins = other_wins * (x < 0.0f ? large : small);
  height = height - (x < 0.0f ? half : 0.0f);
  other_height = other_height - (x < 0.0f ? 0.0f : half);
}
template <typename T>
void max_of_four(T m0, T m1, T m2, T m3, T v0, T v1, T v2, T v3, T noise, T& p0, T& p1, T& p2, T& p3, T& mean, T& var) {
  T h0 = 0.0f, h1 = 0.0f, h2 = 0.0f, h3 = 0.0f;
  p0 = 1.0f; p1 = 1.0f; p2 = 1.0f; p3 = 1.0f;
  compare(m0, v0, m1, v1, noise, p0, h0, p1, h1);
  compare(m0, v0, m2, v2, noise, p0, h0, p2, h2);
  compare(m0, v0, m3, v3, noise, p0, h0, p3, h3);
  compare(m1, v1, m2, v2, noise, p1, h1, p2, h2);
  compare(m1, v1, m3, v3, noise, p1, h1, p3, h3);
  compare(m2, v2, m3, v3, noise, p2, h2, p3, h3);
  T top = at_least(at_least(h0, h1), at_least(h2, h3));
  p0 = p0 * expf(h0 - top); p1 = p1 * expf(h1 - top); p2 = p2 * expf(h2 - top); p3 = p3 * expf(h3 - top);
  T scale = 1.0f / (p0 + p1 + p2 + p3);
  p0 = p0 * scale; p1 = p1 * scale; p2 = p2 * scale; p3 = p3 * scale;
  mean = p0 * m0 + p1 * m1 + p2 * m2 + p3 * m3;
  var = p0 * p0 * v0 + p1 * p1 * v1 + p2 * p2 * v2 + p3 * p3 * v3;
}
"""

_SUM_TO_INPUT = """
template <typename T>
void weighted_sum_to_input(T a, T mean, T var, T sum_mean, T sum_var, T tau, T rho, T& out_tau, T& out_rho) {
  T inv_den = 1.0f / (1.0f + rho * at_least(sum_var - a * a * var, 0.0f));
  out_tau = a * (tau - rho * (sum_mean - a * mean)) * inv_den;
  out_rho = a * a * rho * inv_den;
}
"""


@dataclass(frozen=True)
class Function:
    """One element-wise function: the text that ends with it, and how it is called."""

    source: str
    n_inputs: int
    n_outputs: int
    options: tuple[str, ...] = ()  # names of its scalar arguments, between inputs and outputs


_AT_LEAST = _NORMAL.strip().splitlines()[0]
FUNCTIONS = {
    "leaky_relu_to_output": Function(_NORMAL + _TO_OUTPUT, 2, 3, ("leak",)),
    "leaky_relu_to_input": Function(_NORMAL + _TO_INPUT, 4, 2, ("leak",)),
    "residual": Function(_RESIDUAL, 5, 3),
    "weight_curvature": Function(_CURVATURE, 2, 1),
    "max_of_four": Function(_NORMAL + _MAX_POOL, 8, 6, ("noise",)),
    "weighted_sum_to_input": Function(_AT_LEAST + _SUM_TO_INPUT, 7, 2),
}
EVERYTHING = _NORMAL + _TO_OUTPUT + _TO_INPUT + _RESIDUAL + _CURVATURE + _MAX_POOL + _SUM_TO_INPUT
