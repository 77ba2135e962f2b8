"""The equations on the fastest backend for their tensors. This file chooses; the files beside it are the fast forms.

Each function here has the arguments and the answer of its equation. Backend "torch" is the equation itself; backend
"fused" the same as one kernel, which saves dozens of passes over memory: on CUDA fused.py, on the CPU compiled.py,
pools.py, sums.py, rows.py, sites.py, metric.py, convs.py and chain.py, from one text. In float32 "fused" is used if it
works on this machine, else "torch"; in float64, and where someone differentiates, always "torch". Without a C++
compiler nothing is said; if one fails, there is one warning. `set_backend` or the variable BAYESMP_BACKEND
overrides it.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from bayesmp.kernels import build, chain, compiled, convs, fused, metric, pools, rows, sites, sums
from bayesmp.messages import activation, likelihood, linear, reach, tilted, weighted_sum
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.linear_maps import ConvMap, LinearMap, unit_axis
from bayesmp.messages.windows import Pair, gather_windows, scatter_windows

BACKENDS = ("auto", "torch", "fused")
_choice = "auto"
_broken: set[str] = set()  # types of devices on which fused kernels do not work
_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


def set_backend(name: str) -> None:
    """Choose the backend: "auto", "torch", or "fused" for all tensors in float32, whatever happens."""
    global _choice
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; available: {BACKENDS}")
    _choice = name


if named := os.environ.get("BAYESMP_BACKEND"):
    set_backend(named)


def backend_in_use() -> str:
    """What answers on the CPU: "fused" or "torch"."""
    one = torch.ones(1, dtype=torch.float32)
    return "torch" if _launch("weight_curvature", one, one) is None else "fused"


def leaky_relu_to_output(m_in: Moments, leak: float) -> activation.SlopedMoments:
    """messages.activation.leaky_relu_to_output on the fastest backend."""
    if found := _launch("leaky_relu_to_output", m_in.mean, m_in.var, leak=leak):
        return activation.SlopedMoments(*found)
    return activation.leaky_relu_to_output(m_in, leak)


def leaky_relu_to_input(m_in: Moments, m_back: Gaussian, leak: float) -> Gaussian:
    """messages.activation.leaky_relu_to_input on the fastest backend."""
    if found := _launch("leaky_relu_to_input", m_in.mean, m_in.var, m_back.tau, m_back.rho, leak=leak):
        return Gaussian(*found)
    return activation.leaky_relu_to_input(m_in, m_back, leak)


def residual(m_z: linear.SumMoments, m_back: Gaussian) -> linear.Residual:
    """messages.linear.residual on the fastest backend."""
    if found := _launch("residual", m_z.mean, m_z.var, m_z.input_var, m_back.tau, m_back.rho):
        return linear.Residual(*found)
    return linear.residual(m_z, m_back)


def weight_curvature(input_var: Tensor, rho: Tensor) -> Tensor:
    """messages.linear.weight_curvature on the fastest backend."""
    if found := _launch("weight_curvature", input_var, rho):
        return found[0]
    return linear.weight_curvature(input_var, rho)


def residual_sums(
    linear_map: LinearMap, bias_var: Tensor | None, m_z: linear.SumMoments, m_back: Gaussian
) -> tuple[linear.Residual, linear.UnitSums]:
    """`residual` and what the units' own sums over batch and positions are."""
    tensors = (m_back.rho, m_back.tau, m_z.mean, m_z.var, m_z.input_var)
    axis = unit_axis(linear_map, m_back.rho)
    shape = m_back.rho.shape
    assert all(part.shape == shape for part in tensors), (
        f"parts of a sum differ in shape: {[tuple(part.shape) for part in tensors]}"
    )
    n_units = None if bias_var is None else bias_var.shape[0]
    assert n_units in (None, shape[axis]), f"{n_units} units, but {shape[axis]} on axis {axis} of sums {tuple(shape)}"
    if found := _on_cpu(lambda: sums.residual_sums(bias_var, m_z, m_back, axis=axis), *tensors):
        return found
    back = residual(m_z, m_back)
    return back, linear.unit_sums(linear_map, bias_var, m_z, m_back, back.to_weight)


def count_rejected(message: Gaussian) -> Tensor:
    """messages.tilted.count_rejected on the fastest backend."""
    found = _on_cpu(lambda: sums.count_rejected(message), message.rho)
    return tilted.count_rejected(message) if found is None else found


def squared_reach(m_out: Moments, change: Tensor) -> Tensor:
    """messages.reach.squared_reach on the fastest backend."""
    found = _on_cpu(lambda: sums.squared_reach(m_out, change), change, m_out.mean, m_out.var)
    return reach.squared_reach(m_out, change) if found is None else found


def solve_blocks(
    slope_vectors: Tensor,
    input_vectors: Tensor,
    inverse: Tensor,
    slopes: Sequence[Tensor],
    answers: Sequence[Tensor],
) -> bool:
    """LayerMetric.solve_blocks for a small layer; False where it is to be done by matrix products."""
    if not metric.fits(inverse, [*slopes, *answers]):
        return False
    parts = (slope_vectors, input_vectors, inverse, slopes, answers)
    return bool(_on_cpu(lambda: metric.solve_blocks(*parts), inverse, *slopes, *answers))


def take_site(
    fresh: Gaussian,
    site: tuple[Tensor, Tensor],
    origin: Tensor,
    shift: Tensor,
    offset: Tensor,
    rho: Tensor,
    *,
    factor: float,
) -> Tensor | None:
    """training.schedules.site_step.take_site in one pass, or None where it is to be done by tensors."""
    tensors = (origin, rho, fresh.tau, fresh.rho, *site)
    return _on_cpu(lambda: sites.take_site(fresh, site, origin, shift, offset, rho, factor=factor), *tensors)


def move_means(
    origin: Tensor,
    shift: Tensor,
    offset: Tensor,
    marginal: Gaussian,
    direction: Tensor,
    step: Tensor,
    innovation: Tensor,
    prior_rho: Tensor,
    *,
    n_sites: int,
) -> Tensor | None:
    """training.schedules.site_step.move_means in one pass, or None where it is to be done by tensors."""
    tensors = (origin, marginal.tau, marginal.rho, direction, step, innovation, prior_rho)
    rest = (marginal, direction, step, innovation, prior_rho)
    return _on_cpu(lambda: sites.move_means(origin, shift, offset, *rest, n_sites=n_sites), *tensors)


def chain_room(visit: chain.Visit, tensors: Sequence[Tensor]) -> int | None:
    """How many numbers a visit in two calls needs to work in; None where these tensors are to be visited by layers."""
    return _on_cpu(lambda: chain.room(visit), *tensors)


def argmax_to_latent(
    m_in: Moments,
    y: Tensor,
    *,
    noise: float | Tensor,
    target: float,
    target_var: float | Tensor,
    centre: float | Tensor = 0.0,
) -> Gaussian:
    """messages.likelihood.argmax_to_latent on the fastest backend."""
    found = _on_cpu(
        lambda: rows.argmax_to_latent(
            m_in, y, noise=float(noise), target=target, target_var=float(target_var), centre=centre
        ),
        *(m_in.mean, m_in.var),
    )
    if found is not None:
        return found
    return likelihood.argmax_to_latent(m_in, y, noise=noise, target=target, target_var=target_var, centre=centre)


def max_of_windows(windows: Moments, *, noise: float, dim: int) -> tuple[Tensor, Moments]:
    """Each entry's probability of being the largest along dim, and the moments of the sum with these weights."""
    if windows.mean.shape[dim] == 4 and (  # 2 x 2: the one size worth a kernel of its own
        found := _launch("max_of_four", *windows.mean.unbind(dim), *windows.var.unbind(dim), noise=noise)
    ):
        return torch.stack(found[:4], dim), Moments(*found[4:])
    share = weighted_sum.largest_probabilities(windows, noise=noise, dim=dim)
    return share, weighted_sum.weighted_sum_to_output(share, windows, dim=dim)


def weighted_sum_to_input(share: Tensor, windows: Moments, m_sum: Moments, m_back: Gaussian, *, dim: int) -> Gaussian:
    """Message to each term of a sum whose moments m_sum are known already."""
    whole = [part.unsqueeze(dim) for part in (m_sum.mean, m_sum.var, m_back.tau, m_back.rho)]
    if found := _launch("weighted_sum_to_input", share, windows.mean, windows.var, *whole):
        return Gaussian(*found)
    return weighted_sum.weighted_sum_to_input(share, windows, m_back, dim=dim)


# --- pools: sums over windows of images, with shares (b, c, n, oh, ow) -----------------------------------------------


def max_pool(m_in: Moments, kernel: Pair, stride: Pair, *, noise: float) -> tuple[Tensor, Moments]:
    """`max_of_windows` for the windows of images (b, c, h, w)."""
    if kernel == stride == (2, 2) and (
        found := _on_cpu(lambda: pools.max_pool(m_in.mean, m_in.var, noise=noise), m_in.mean, m_in.var)
    ):
        return found[0], Moments(*found[1:])
    windows = m_in.map(lambda part: gather_windows(part, kernel, stride))
    return max_of_windows(windows, noise=noise, dim=2)


def pool_to_input(
    share: Tensor, m_in: Moments, m_sum: Moments, m_back: Gaussian, kernel: Pair, stride: Pair
) -> Gaussian:
    """`weighted_sum_to_input` for the windows of images, summed where windows overlap."""
    images, pooled = (m_in.mean, m_in.var), (m_sum.mean, m_sum.var, m_back.tau, m_back.rho)
    if _fits(share, kernel, stride) and (
        found := _on_cpu(lambda: pools.pool_to_input(*images, share, *pooled), *images, share, *pooled)
    ):
        return Gaussian(*found)
    windows = m_in.map(lambda part: gather_windows(part, kernel, stride))
    message = weighted_sum_to_input(share, windows, m_sum, m_back, dim=2)
    size = (m_in.shape[2], m_in.shape[3])
    return message.map(lambda part: scatter_windows(part, size, kernel, stride))


def pool_sum(share: Tensor, image: Tensor, kernel: Pair, stride: Pair) -> Tensor:
    """The sum of share * entry over each window: (b, c, h, w) -> (b, c, oh, ow)."""
    if _fits(share, kernel, stride):
        found = _on_cpu(lambda: pools.pool_sum(image, share), image, share)
        if found is not None:
            return found
    return (share * gather_windows(image, kernel, stride)).sum(2)


def pool_spread(share: Tensor, slope: Tensor, like: Tensor, kernel: Pair, stride: Pair) -> Tensor:
    """Adjoint of `pool_sum` for k images (k, b, c, oh, ow) -> (k, b, c, h, w), of the size and layout of `like`."""
    if _fits(share, kernel, stride):
        found = _on_cpu(lambda: pools.pool_spread(slope, share, like), slope, share, like)
        if found is not None:
            return found
    k, b, c, oh, ow = slope.shape
    per_window = (share * slope.unsqueeze(3)).expand(k, b, c, kernel[0] * kernel[1], oh, ow)
    pulled = scatter_windows(per_window.flatten(0, 1), (like.shape[2], like.shape[3]), kernel, stride)
    return pulled.view(k, b, *pulled.shape[1:])


def _fits(share: Tensor, kernel: Pair, stride: Pair) -> bool:
    """Whether there are compiled loops for these windows; a pool with one weight for all entries has none."""
    return kernel == stride == (2, 2) and share.ndim == 5


# --- convolutions ----------------------------------------------------------------------------------------------------


class FastConvMap(ConvMap):
    """The products of a convolution; those of the way back by compiled loops."""

    def op_input(self, z: Tensor, w: Tensor) -> Tensor:
        found = _on_cpu(lambda: convs.op_input(self, z, w), z, w) if convs.in_step(self, w.shape[1]) else None
        return super().op_input(z, w) if found is None else found

    def op_weight(self, x: Tensor, z: Tensor) -> Tensor:
        found = _on_cpu(lambda: convs.op_weight(self, x, z), x, z) if convs.fits(self, x.shape[1]) else None
        return super().op_weight(x, z) if found is None else found

    def patch_products(self, x: Tensor) -> Tensor:
        found = _on_cpu(lambda: convs.patch_products(self, x), x) if convs.has_products(self, x.shape[1]) else None
        return super().patch_products(x) if found is None else found


# --- the choice ------------------------------------------------------------------------------------------------------


def _launch(name: str, *tensors: Tensor, **options: float) -> tuple[Tensor, ...] | None:
    """The answers of the fused kernel, or None where the equation itself is to be used."""
    if not tensors[0].is_cuda:
        return _on_cpu(lambda: compiled.launch(name, *tensors, **options), *tensors)
    if not _is_used("cuda") or tensors[0].dtype != torch.float32:
        return None
    return _attempt(lambda: fused.launch(name, *tensors, **options), "cuda")


def _on_cpu(call: Callable[[], Answer], *tensors: Tensor) -> Answer | None:
    """The answer of compiled loops, or None where the equation itself is to be used."""
    if not _is_used("cpu") or not compiled.can_take(tensors):
        return None
    return _attempt(call, "cpu")


def _is_used(device: str) -> bool:
    return _choice == "fused" or (_choice == "auto" and device not in _broken)


def _attempt(call: Callable[[], Answer], device: str) -> Answer | None:
    try:
        return call()
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # compilers fail in many ways; the equation itself is always there
        if _choice == "fused":
            raise
        _broken.add(device)
        if isinstance(error, build.NoCompilerError):
            _log.debug("%s; using the plain equations", error)
            return None
        warnings.warn(f"fused kernels do not work here ({error}); using the plain equations", stacklevel=4)
        return None
