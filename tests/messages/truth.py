"""Truths by another road: quadrature on dense float64 panels, and comparison of messages with them.

Everything here is numpy in float64 and knows nothing of bayesmp's formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bayesmp.messages.gaussian import Gaussian, Moments

torch.set_num_threads(1)

DTYPES = [torch.float64, torch.float32]
RTOL = {torch.float64: 1e-6, torch.float32: 1e-3}
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


# --- quadrature ------------------------------------------------------------------------------------------------------


def panels(low, high, n_panels: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (..., n) of composite Gauss-Legendre rules on [low, high], one per entry of the two arrays."""
    low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
    edges = low[..., None] + (high - low)[..., None] * np.linspace(0.0, 1.0, n_panels + 1)
    half = 0.5 * np.diff(edges, axis=-1)[..., None]
    nodes = edges[..., :-1, None] + half * (1.0 + _NODES)
    return nodes.reshape(*low.shape, -1), (half * _WEIGHTS).reshape(*low.shape, -1)


def expectation(function: Callable, mean, var, *, kink: float | None = None, reach: float = 12.0) -> np.ndarray:
    """E[function(x)] for x ~ N(mean, var), arrays of one shape; at the kink the function is not smooth."""
    mean, var = np.broadcast_arrays(np.asarray(mean, float), np.asarray(var, float))
    std = np.sqrt(var)
    ends = np.full_like(mean, reach)
    cut = ends if kink is None else np.clip((kink - mean) / std, -reach, reach)
    total = np.zeros_like(mean)
    for low, high in ((-ends, cut), (cut, ends)):
        u, weight = panels(low, high)
        density = np.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi)
        total = total + (weight * density * function(mean[..., None] + std[..., None] * u)).sum(-1)
    return total


class Tilted:
    """Moments of N(x; mean, var) f(x), and f's message to x: these moments divided by N(mean, var).

    Integrates in u = (x - mean) / std. The message is the literal division where f is strong, else it follows from the
    derivatives of log Z in the mean, E[(log f)'] and Var[(log f)'] + E[(log f)'']: where the input is sharp or the
    factor weak, the difference 1 / tilted var - 1 / var has no digits left.

    Args:
        mean, var: the incoming Gaussian, arrays of one shape.
        log_factor: x -> (log f, (log f)', (log f)'') at nodes along a new last axis.
        pieces: intervals (low, high) in u that hold all the mass; f is smooth on each.
        jump: (x0, size), a step of (log f)' at x0.
    """

    def __init__(self, mean, var, log_factor: Callable, pieces, jump: tuple[float, np.ndarray] | None = None) -> None:
        self.mean, self.var = np.asarray(mean, float), np.asarray(var, float)
        self.std = np.sqrt(self.var)
        rules = [panels(low, high) for low, high in pieces]
        u = np.concatenate([nodes for nodes, _ in rules], -1)
        self.x = self.mean[..., None] + self.std[..., None] * u
        value, slope, curvature = log_factor(self.x)
        log_density = -0.5 * u * u + value
        top = log_density.max(-1, keepdims=True)
        weight = np.concatenate([weights for _, weights in rules], -1) * np.exp(log_density - top)
        mass = weight.sum(-1, keepdims=True)
        self.weight = weight / mass
        self.log_mass = (np.log(mass) + top)[..., 0] - 0.5 * math.log(2.0 * math.pi)

        shift = self.average(u)
        shrink = self.average((u - shift[..., None]) ** 2)
        self.first = np.where(np.abs(shift) > 0.5, shift / self.std, self.average(slope))
        second = self.average((slope - self.average(slope)[..., None]) ** 2) + self.average(curvature)
        if jump is not None:
            at = log_factor(np.full((*self.mean.shape, 1), jump[0]))[0][..., 0]
            log_density = at - 0.5 * ((jump[0] - self.mean) / self.std) ** 2 - top[..., 0]
            second = second + jump[1] * np.exp(log_density) / mass[..., 0] / self.std
        self.rho = np.where(np.abs(shrink - 1.0) > 0.1, (1.0 / shrink - 1.0) / self.var, -second / shrink)
        self.tau = self.first / shrink + self.mean * self.rho

    def average(self, values: np.ndarray) -> np.ndarray:
        return (self.weight * values).sum(-1)


def tilted_by_leaky_relu(mean, var, tau, rho, leak: float) -> Tilted:
    """N(x; mean, var) exp(-rho (y - tau / rho)^2 / 2), or N(x; mean, var) exp(tau y) if rho = 0, y = max(x, leak x)."""
    mean, var, tau, rho = np.broadcast_arrays(*(np.asarray(part, float) for part in (mean, var, tau, rho)))
    std, kink = np.sqrt(var), -mean / np.sqrt(var)

    def log_factor(x):
        slope = np.where(x >= 0, 1.0, leak)
        t, r = tau[..., None], rho[..., None]
        message_mean = t / np.where(r > 0, r, 1.0)
        value = np.where(r > 0, -0.5 * r * (slope * x - message_mean) ** 2, t * slope * x)
        return value, slope * (t - r * slope * x), -(slope**2) * r

    def piece(slope, is_positive):
        # On this half-line the product is a cut Gaussian; that serves only to place the panels.
        width = 1.0 / np.sqrt(1.0 + slope**2 * rho * var)
        centre = slope * (tau - slope * rho * mean) * std * width**2
        depth = (kink - centre) / width if is_positive else (centre - kink) / width  # widths cut off
        reach = np.minimum(13.0, 45.0 / np.maximum(depth, 1.0)) * width
        mode = np.where(depth > 0, kink, centre)
        low, high = mode - reach, mode + reach
        if is_positive:
            return np.maximum(low, kink), np.maximum(high, kink)
        return np.minimum(low, kink), np.minimum(high, kink)

    return Tilted(mean, var, log_factor, [piece(leak, False), piece(1.0, True)], jump=(0.0, (1.0 - leak) * tau))


# --- conditioning ----------------------------------------------------------------------------------------------------


def condition_on_sum(a, mean, var, tau, rho) -> tuple[np.ndarray, np.ndarray]:
    """(tau, rho) sent to each x_i ~ N(mean_i, var_i) by the message exp(tau z - rho z^2 / 2) at z = a^T x.

    The joint posterior has precision diag(1 / var) + rho a a^T; each marginal of it is divided by its N(mean, var).
    """
    den = 1.0 + rho * (a**2 @ var)
    var_post = np.diag(joint_posterior(a, mean, var, tau, rho)[1])
    shift, lost = var * a * (tau - rho * (a @ mean)) / den, (var * a) ** 2 * rho / den  # of mean and variance
    rho_message = lost / (var * var_post)
    return shift / var_post + mean * rho_message, rho_message


def joint_posterior(a, mean, var, tau, rho) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of x ~ N(mean, diag var) given the message (tau, rho) at a^T x."""
    gain = var * a  # cov(x, z)
    cov = np.diag(var) - rho * np.outer(gain, gain) / (1.0 + rho * (a @ gain))
    return mean + gain * (tau - rho * (a @ mean)) / (1.0 + rho * (a @ gain)), cov


def inner_product_messages(a_mean, a_var, w_mean, w_var, rest_mean, rest_var, tau, rho):
    """Messages of z = sum_i a_i w_i + rest, all uncertain, by the definition: ((tau, rho) to a, (tau, rho) to w).

    Every other product enters as a Gaussian with its true mean and variance; what remains for term i is a message to
    the product a_i w_i, and a variational message to each of its factors.
    """
    to_a, to_w = np.zeros((2, len(a_mean))), np.zeros((2, len(a_mean)))
    for i in range(len(a_mean)):
        others = [j for j in range(len(a_mean)) if j != i]
        mean = rest_mean + sum(a_mean[j] * w_mean[j] for j in others)
        second = [(a_mean[j] ** 2 + a_var[j]) * (w_mean[j] ** 2 + w_var[j]) for j in others]
        var = rest_var + sum(s - (a_mean[j] * w_mean[j]) ** 2 for s, j in zip(second, others, strict=True))
        product_rho = rho / (1.0 + rho * var)  # z's message, widened by the others' variance and moved by their mean
        product_tau = (tau - rho * mean) / (1.0 + rho * var)
        to_a[:, i] = product_tau * w_mean[i], product_rho * (w_mean[i] ** 2 + w_var[i])
        to_w[:, i] = product_tau * a_mean[i], product_rho * (a_mean[i] ** 2 + a_var[i])
    return to_a, to_w


# --- comparison ------------------------------------------------------------------------------------------------------


def numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def rounded(dtype: torch.dtype, *values) -> list[Tensor]:
    """The values, broadcast against each other, as tensors of dtype; truths are then taken at what rounding left."""
    arrays = np.broadcast_arrays(*(np.asarray(value, float) for value in values))
    return [torch.from_numpy(np.array(array)).to(dtype) for array in arrays]


def assert_close(actual, expected, *, rtol: float, scale=0.0, what: str = "value", where=True) -> None:
    """|actual - expected| <= rtol max(|expected|, scale) wherever asked; scale is the size below which it is noise."""
    actual, expected = (numbers(x) if isinstance(x, Tensor) else np.asarray(x, float) for x in (actual, expected))
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    error = np.abs(actual - expected) / np.maximum(np.maximum(np.abs(expected), scale), 1e-300)
    error = np.where(where, np.where(np.isnan(error), np.inf, error), 0.0)
    worst = np.unravel_index(np.argmax(error), error.shape)
    assert error[worst] <= rtol, f"{what}: error {error[worst]:.2e} at {worst}: {actual[worst]} for {expected[worst]}"


def assert_message(message: Gaussian, tau, rho, *, rtol: float, where=True) -> None:
    """Precision to rtol; mean to rtol of itself or of the message's own std, whichever is larger."""
    assert_close(message.rho, rho, rtol=rtol, what="rho", where=where)
    rho = numbers(rho) if isinstance(rho, Tensor) else np.asarray(rho)
    assert_close(message.tau, tau, rtol=rtol, scale=np.sqrt(np.abs(rho)), what="tau", where=where)


def assert_proper(message: Gaussian | Moments) -> None:
    """No NaN, no inf, no negative precision or variance."""
    parts = (message.tau, message.rho) if isinstance(message, Gaussian) else (message.mean, message.var)
    assert parts[0].isfinite().all() and parts[1].isfinite().all(), f"not finite: {message}"
    assert (parts[1] >= 0).all(), f"negative: {message}"
