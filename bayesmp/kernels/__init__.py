"""The element-wise equations on the fastest backend for their tensors' device.

Each function here has the name, the arguments and the answer of its equation. Backend "torch" is the equation itself;
backend "compiled" is the same function through torch.compile, which fuses its dozens of passes over memory into one.
On CUDA "compiled" is used if it works on this machine, else "torch", with one warning; on the CPU, where compiling
takes longer than it saves, always "torch". `set_backend` overrides the choice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from bayesmp.equations import activation, linear
from bayesmp.gaussian import Gaussian, Moments

BACKENDS = ("auto", "torch", "compiled")
_choice = "auto"
_compiled: dict[Callable[..., tuple[Tensor, ...]], Callable[..., tuple[Tensor, ...]]] = {}
_broken = False


def set_backend(name: str) -> None:
    """Choose the backend for all devices: "auto", "torch" or "compiled"."""
    global _choice
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; available: {BACKENDS}")
    _choice = name


def leaky_relu_to_output(m_in: Moments, leak: float) -> activation.SlopedMoments:
    return activation.SlopedMoments(*_run(_leaky_relu_to_output, (m_in.mean, m_in.var), leak))


def leaky_relu_to_input(m_in: Moments, m_out: Gaussian, leak: float) -> Gaussian:
    return Gaussian(*_run(_leaky_relu_to_input, (m_in.mean, m_in.var, m_out.tau, m_out.rho), leak))


def residual(m_z: linear.SumMoments, m_back: Gaussian) -> linear.Residual:
    return linear.Residual(*_run(_residual, (m_z.mean, m_z.var, m_z.input_var, m_back.tau, m_back.rho)))


def weight_curvature(input_var: Tensor, rho: Tensor) -> Tensor:
    return _run(_weight_curvature, (input_var, rho))[0]


# --- the same on plain tensors, which is what compiles well ----------------------------------------------------------


def _leaky_relu_to_output(mean: Tensor, var: Tensor, leak: float) -> tuple[Tensor, ...]:
    m_out = activation.leaky_relu_to_output(Moments(mean, var), leak)
    return m_out.mean, m_out.var, m_out.slope


def _leaky_relu_to_input(mean: Tensor, var: Tensor, tau: Tensor, rho: Tensor, leak: float) -> tuple[Tensor, ...]:
    message = activation.leaky_relu_to_input(Moments(mean, var), Gaussian(tau, rho), leak)
    return message.tau, message.rho


def _residual(mean: Tensor, var: Tensor, input_var: Tensor, tau: Tensor, rho: Tensor) -> tuple[Tensor, ...]:
    back = linear.residual(linear.SumMoments(mean, var, input_var), Gaussian(tau, rho))
    return back.to_input, back.to_weight, back.q


def _weight_curvature(input_var: Tensor, rho: Tensor) -> tuple[Tensor, ...]:
    return (linear.weight_curvature(input_var, rho),)


Function = Callable[..., tuple[Tensor, ...]]


def _run(function: Function, tensors: tuple[Tensor, ...], *options: float) -> tuple[Tensor, ...]:
    """An element-wise function of tensors of one shape, on the backend in force.

    The compiler sees vectors of unknown length, so that one compilation serves all layers and batch sizes.
    """
    global _broken
    if _choice == "torch" or (_choice == "auto" and (_broken or not tensors[0].is_cuda)):
        return function(*tensors, *options)
    try:
        if function not in _compiled:
            _compiled[function] = torch.compile(function, dynamic=True)
        answers = _compiled[function](*(part.reshape(-1) for part in tensors), *options)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # compilers fail in many ways; the equation itself is always there
        if _choice == "compiled":
            raise
        _broken = True
        warnings.warn(f"torch.compile does not work here ({error}); using the plain equations", stacklevel=2)
        return function(*tensors, *options)
    return tuple(answer.view(tensors[0].shape) for answer in answers)
