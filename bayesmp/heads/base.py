"""The Head contract, and the grid belief about a head's one learned constant.

A head may learn one positive constant (the noise variance of a regression, the link scale of a classifier). Its
belief is a discrete distribution over a fixed grid of values. Each batch sends a message to it, one log-likelihood
per grid value, and the message is a site like any other: a visit replaces it, so data is not counted twice here
either. A head whose constant is given has a grid of that one value, and every belief about it is certain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from bayesmp.gaussian import Gaussian, Moments
from bayesmp.layers.base import Shape


class Head(ABC):
    """The factor between the network's outputs and the targets."""

    grid: Tensor  # (k,) candidate values of the constant, float64

    @property
    def is_learned(self) -> bool:
        """Whether the constant is inferred from data."""
        return len(self.grid) > 1

    def n_outputs(self, shape_out: Shape) -> int:
        """Number of outputs, or a ValueError if the last layer's output does not fit this head."""
        if len(shape_out) != 1:
            raise ValueError(
                f"{self!r} needs a last layer with a flat output (n_outputs,), got shape {shape_out}; "
                "end the network with Flatten() or a Linear layer"
            )
        return shape_out[0]

    def prior_log_weights(self) -> Tensor:
        """Log-prior over the grid: flat in the logarithm of the constant."""
        return torch.zeros_like(self.grid)

    @abstractmethod
    def check_targets(self, y: Any, n_outputs: int) -> Tensor:
        """Targets as a tensor this head understands, or a ValueError."""

    @abstractmethod
    def initial_message(self, y: Tensor) -> Tensor:
        """The (k,) pseudo-message all data start with, before any batch has been visited."""

    @abstractmethod
    def to_latent(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> Gaussian:
        """Message to the outputs (b, o), given the belief about the constant."""

    @abstractmethod
    def to_constant(self, m_out: Moments, m_back: Gaussian, y: Tensor) -> Tensor:
        """Message to the constant: one log-likelihood per grid value, summed over the batch, (k,)."""

    @abstractmethod
    def predict(self, m_out: Moments, log_weights: Tensor) -> Any:
        """Predictions from the moments of the outputs."""

    @abstractmethod
    def train_metrics(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> dict[str, Tensor]:
        """Per-example quantities, summed over the batch, that `History` averages."""

    def expected(self, log_weights: Tensor, power: float = 1.0) -> Tensor:
        """E[constant^power] under a belief over the grid."""
        grid = self.grid.to(log_weights)
        return (torch.softmax(log_weights, 0) * grid**power).sum()


def without_own_message(m_out: Moments, m_back: Gaussian) -> Moments:
    r"""Moments of the outputs as if the example's own message had not been seen.

    Its weights' beliefs contain the example, so the forward sweep gives the marginal of the output, not the cavity.
    Dividing the message out leaves mean - var (tau - rho mean) to first order in the example's share of the posterior,
    the leave-one-out formula of a linear model with function-space variance var.

    Note:
        The correction is capped at the literal division's reach (rho var < 1): an example never explains more than all.
    """
    share = (m_back.rho * m_out.var).clamp_max(0.5)
    scale = 1.0 / (1.0 - share)
    slope = (m_back.tau - m_back.rho * m_out.mean) / (1.0 + m_back.rho * m_out.var)
    return Moments(m_out.mean - m_out.var * slope * scale, m_out.var * scale)


def certain_grid(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def log_grid(low: float, high: float, n: int) -> Tensor:
    """n values from low to high, evenly spaced in the logarithm."""
    return torch.logspace(torch.tensor(low).log10().item(), torch.tensor(high).log10().item(), n, dtype=torch.float64)
