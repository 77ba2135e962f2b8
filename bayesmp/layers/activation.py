"""What all activations share, element by element, and LeakyReLU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.layers.base import NO_MEMORY, Layer, Local, Memory, Message, Shape, Weights
from bayesmp.messages.activation import SlopedMoments, leaky_relu_marginal_to_output, leaky_relu_mean
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.regime import MOMENTS, Regime


@dataclass(frozen=True)
class ActivationLocal(Local):
    """A sweep through an activation; `slope` is the derivative of the output's mean in the input's. Its message to the
    input comes from the subclass.
    """

    m_in: Message
    m_out: Message
    slope: Tensor

    def tangent(self, d_ins: Sequence[Tensor | None], d_weights: dict[str, Tensor]) -> Tensor | None:
        return None if d_ins[0] is None else d_ins[0] * self.slope

    def pullback(self, slope: Tensor) -> list[Tensor]:
        return [slope * self.slope]

    def noise(self, below: Sequence[Tensor]) -> Tensor:
        return below[0] * self.slope.square()


@dataclass(frozen=True)
class LeakyReLULocal(ActivationLocal):
    """A sweep through a LeakyReLU."""

    leak: float

    def back(self, m_back: Gaussian) -> tuple[list[Gaussian | None], dict[str, Gaussian]]:
        if not isinstance(self.m_in, Moments):
            return [None], {}
        return [kernels.leaky_relu_to_input(self.m_in, m_back, self.leak)], {}


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

    def sweep(
        self, m_ins: Sequence[Message], weights: Weights, regime: Regime = MOMENTS, memory: Memory = NO_MEMORY
    ) -> LeakyReLULocal:
        (m_in,) = m_ins
        if not isinstance(m_in, Moments):
            return LeakyReLULocal(m_in, torch.maximum(m_in, self.leak * m_in), self._side(m_in), self.leak)
        if regime.activations == "means":
            found = leaky_relu_mean(m_in, self.leak)
            return LeakyReLULocal(m_in, Moments(found.mean, found.var), found.slope, self.leak)
        direct: SlopedMoments = kernels.leaky_relu_to_output(m_in, self.leak)
        m_out: Moments = direct
        if memory.at_output is not None:
            m_out = leaky_relu_marginal_to_output(m_in, memory.at_output, self.leak)
        return LeakyReLULocal(m_in, m_out, direct.slope, self.leak)

    def _side(self, mean: Tensor) -> Tensor:
        return torch.where(mean < 0, self.leak, 1.0).to(mean)

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
