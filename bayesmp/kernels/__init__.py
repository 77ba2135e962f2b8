"""The element-wise equations on the fastest backend for their tensors.

Each function here has the arguments and the answer of its equation. Backend "torch" is the equation itself; backend
"fused" the same as one CUDA kernel (fused.py), which saves dozens of passes over memory. On CUDA in float32 "fused" is
used if it works on this machine, else "torch", with one warning; everywhere else "torch". `set_backend` overrides the
choice.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from bayesmp.equations import activation, linear, weighted_sum
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.kernels import fused

BACKENDS = ("auto", "torch", "fused")
_choice = "auto"
_broken = False


def set_backend(name: str) -> None:
    """Choose the backend: "auto", "torch", or "fused" for all CUDA tensors in float32, whatever happens."""
    global _choice
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; available: {BACKENDS}")
    _choice = name


def leaky_relu_to_output(m_in: Moments, leak: float) -> activation.SlopedMoments:
    if found := _launch("leaky_relu_to_output", m_in.mean, m_in.var, leak=leak):
        return activation.SlopedMoments(*found)
    return activation.leaky_relu_to_output(m_in, leak)


def leaky_relu_to_input(m_in: Moments, m_back: Gaussian, leak: float) -> Gaussian:
    if found := _launch("leaky_relu_to_input", m_in.mean, m_in.var, m_back.tau, m_back.rho, leak=leak):
        return Gaussian(*found)
    return activation.leaky_relu_to_input(m_in, m_back, leak)


def residual(m_z: linear.SumMoments, m_back: Gaussian) -> linear.Residual:
    if found := _launch("residual", m_z.mean, m_z.var, m_z.input_var, m_back.tau, m_back.rho):
        return linear.Residual(*found)
    return linear.residual(m_z, m_back)


def weight_curvature(input_var: Tensor, rho: Tensor) -> Tensor:
    if found := _launch("weight_curvature", input_var, rho):
        return found[0]
    return linear.weight_curvature(input_var, rho)


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


def _launch(name: str, *tensors: Tensor, **options: float) -> tuple[Tensor, ...] | None:
    """The answers of the fused kernel, or None where the equation itself is to be used."""
    global _broken
    usable = tensors[0].is_cuda and tensors[0].dtype == torch.float32
    if not usable or _choice == "torch" or (_broken and _choice == "auto"):
        return None
    try:
        return fused.launch(name, *tensors, **options)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # compilers fail in many ways; the equation itself is always there
        if _choice == "fused":
            raise
        _broken = True
        warnings.warn(f"fused kernels do not work here ({error}); using the plain equations", stacklevel=3)
        return None
