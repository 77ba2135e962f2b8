"""Inputs of the element-wise functions, and each function as a call on them: the public one, which picks a backend."""

import torch

from bayesmp import kernels
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.linear import SumMoments


def messages(shape):
    """(mean, var, input_var, tau, rho) in float32 with sharp and broad entries, contradictions, and silence."""
    generator = torch.Generator().manual_seed(0)

    def normal():
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    mean, var, share = 2.0 * normal(), (2.0 * normal()).exp(), torch.sigmoid(normal())
    rho = (2.0 * normal()).exp() * (normal() > -1.0)
    return [part.float() for part in (mean, var, share * var, normal() * (rho + 0.1), rho)]


def _to_output(mean, var, input_var, tau, rho):
    m_out = kernels.leaky_relu_to_output(Moments(mean, var), 0.1)
    return m_out.mean, m_out.var, m_out.slope


def _to_input(mean, var, input_var, tau, rho):
    message = kernels.leaky_relu_to_input(Moments(mean, var), Gaussian(tau, rho), 0.1)
    return message.tau, message.rho


def _relu_to_input(mean, var, input_var, tau, rho):
    message = kernels.leaky_relu_to_input(Moments(mean, var), Gaussian(tau, rho), 0.0)
    return message.tau, message.rho


def _residual(mean, var, input_var, tau, rho):
    back = kernels.residual(SumMoments(mean, var, input_var), Gaussian(tau, rho))
    return back.to_input, back.to_weight, back.q


def _max_of_windows(mean, var, input_var, tau, rho):
    windows = Moments(torch.stack([mean, tau, -mean, mean + tau]), torch.stack([var, var, input_var, input_var]))
    share, m_out = kernels.max_of_windows(windows, noise=0.3, dim=0)
    return share, m_out.mean, m_out.var


def _sum_to_input(mean, var, input_var, tau, rho):
    windows = Moments(torch.stack([mean, tau, -mean, mean + tau]), torch.stack([var, var, input_var, input_var]))
    share, m_out = kernels.max_of_windows(windows, noise=0.3, dim=0)
    message = kernels.weighted_sum_to_input(share, windows, m_out, Gaussian(tau, rho), dim=0)
    return message.tau, message.rho


CALLS = {
    "to_output": _to_output,
    "to_input": _to_input,
    "relu_to_input": _relu_to_input,
    "residual": _residual,
    "weight_curvature": lambda mean, var, input_var, tau, rho: (kernels.weight_curvature(input_var, rho),),
    "max_of_windows": _max_of_windows,
    "sum_to_input": _sum_to_input,
}
