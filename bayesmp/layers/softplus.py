"""A smooth activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmp.layers.activation import ActivationLocal
from bayesmp.layers.base import NO_MEMORY, Layer, Memory, Message, Shape, Weights
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.line import line_to_input
from bayesmp.messages.regime import MOMENTS, Regime
from bayesmp.messages.softplus import softplus, softplus_mean, softplus_to_output


@dataclass(frozen=True)
class SoftplusLocal(ActivationLocal):
    """A sweep through a softplus; `rest` is the variance of the output around the line nearest to it."""

    rest: Tensor

    def back(self, m_back: Gaussian) -> tuple[list[Gaussian | None], dict[str, Gaussian]]:
        if not (isinstance(self.m_in, Moments) and isinstance(self.m_out, Moments)):
            return [None], {}
        offset = self.m_out.mean - self.slope * self.m_in.mean
        return [line_to_input(m_back, self.slope, offset, self.rest)], {}


class Softplus(Layer):
    """y = log(1 + exp(beta x)) / beta, element by element: a ReLU without a kink, which bends over about 4 / beta.

    Args:
        beta: how sharp the bend is, > 0.
    """

    def __init__(self, beta: float = 1.0) -> None:
        if not 0.0 < beta < float("inf"):
            raise ValueError(f"beta must be positive and finite, got {beta}")
        self.beta = float(beta)

    def config(self) -> dict[str, Any]:
        return {"beta": self.beta}

    def output_shape(self, shape_in: Shape) -> Shape:
        return shape_in

    def sweep(
        self, m_ins: Sequence[Message], weights: Weights, regime: Regime = MOMENTS, memory: Memory = NO_MEMORY
    ) -> SoftplusLocal:
        (m_in,) = m_ins
        beta = self.beta
        if not isinstance(m_in, Moments):
            return SoftplusLocal(m_in, softplus(beta * m_in) / beta, torch.sigmoid(beta * m_in), torch.zeros_like(m_in))
        scaled = Moments(beta * m_in.mean, beta**2 * m_in.var)
        if regime.activations == "means":
            found = softplus_mean(scaled)
            rest = found.var
        else:
            found, rest = softplus_to_output(scaled)
        m_out = Moments(found.mean / beta, found.var / beta**2)
        return SoftplusLocal(m_in, m_out, found.slope, rest / beta**2)

    def __repr__(self) -> str:
        return "Softplus()" if self.beta == 1.0 else f"Softplus({self.beta:g})"
