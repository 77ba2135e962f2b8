"""Element-wise activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.equations.activation import SlopedMoments, leaky_relu_marginal_to_output
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.layers.base import Layer, Message, Shape, Weights


class LeakyReLU(Layer):
    """y = max(x, leak x), element by element; 0 <= leak < 1."""

    may_reject = True

    def __init__(self, leak: float = 0.1) -> None:
        if not 0.0 <= leak < 1.0:
            raise ValueError(f"leak must lie in [0, 1), got {leak}")
        self.leak = float(leak)

    def config(self) -> dict[str, Any]:
        return {"leak": self.leak}

    def output_shape(self, shape_in: Shape) -> Shape:
        return shape_in

    def to_output(self, m_in: Message, weights: Weights, m_back: Gaussian | None = None) -> Message:
        if not isinstance(m_in, Moments):
            return torch.maximum(m_in, self.leak * m_in)
        if m_back is None:
            return kernels.leaky_relu_to_output(m_in, self.leak)
        return leaky_relu_marginal_to_output(m_in, m_back, self.leak)

    def linearised(self, m_in: Message, weights: Weights) -> Message:
        if not isinstance(m_in, Moments):
            return self.to_output(m_in, weights)
        slope = torch.where(m_in.mean < 0, self.leak, 1.0).to(m_in.mean)
        return SlopedMoments(slope * m_in.mean, slope.square() * m_in.var, slope)

    def messages_back(
        self, m_in: Message, m_out: Moments, m_back: Gaussian, weights: Weights, *, at_cavity: bool = False
    ) -> tuple[Gaussian | None, dict[str, Gaussian]]:
        assert isinstance(m_in, Moments)
        return kernels.leaky_relu_to_input(m_in, m_back, self.leak), {}

    def tangent(
        self, m_in: Message, m_out: Moments, d_in: Tensor | None, weights: Weights, d_weights: dict[str, Tensor]
    ) -> Tensor | None:
        assert isinstance(m_out, SlopedMoments)
        return None if d_in is None else d_in * m_out.slope

    def pullback(self, m_in: Moments, m_out: Moments, slope: Tensor, weights: Weights) -> Tensor:
        assert isinstance(m_out, SlopedMoments)
        return slope * m_out.slope

    def __repr__(self) -> str:
        return f"LeakyReLU({self.leak:g})"


class ReLU(LeakyReLU):
    """y = max(x, 0): LeakyReLU with leak 0."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def config(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return "ReLU()"
