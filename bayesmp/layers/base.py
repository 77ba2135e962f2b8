"""The Layer contract on one page.

A layer is stateless: it knows sizes and options. `sweep` takes what arrives at its inputs and the beliefs about its
weights, and leaves a `Local`: the message that goes on, and everything that the way back, first-order changes and
gradients need. So the same layer serves marginals, cavities and proposals, and nothing of one sweep is kept in it.
Shapes below are per example, without the batch; k counts things that are pulled back at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmp.layers.priors import WeightPrior
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.regime import MOMENTS, Regime

Shape = tuple[int, ...]
Weights = dict[str, Moments]
Message = Moments | Tensor  # a forward message, or a known value


@dataclass(frozen=True)
class Memory:
    """What an earlier sweep of the same example left at a layer: the messages that arrived at its input and output."""

    at_input: Gaussian | None = None
    at_output: Gaussian | None = None


NO_MEMORY = Memory()


@dataclass(frozen=True)
class Gradient:
    """Slopes of k quantities in a layer's weights, as a matrix (o, i): sum_p slopes[k, b, p] (x) inputs[b, p].

    Attributes:
        inputs: (b, p, i), with a 1 last where there is a bias.
        slopes: (k, b, p, o).
    """

    inputs: Tensor
    slopes: Tensor

    def flat(self) -> Tensor:
        """(k, b, o i): row by row, as `Layer.to_matrix` lays weights out."""
        if self.inputs.shape[1] == 1:
            return (self.slopes[:, :, 0, :, None] * self.inputs[:, 0, None, :]).flatten(2)
        k, b = self.slopes.shape[:2]
        products = self.slopes.permute(1, 0, 3, 2).flatten(1, 2) @ self.inputs  # (b, k o, p) (b, p, i)
        return products.view(b, k, -1).transpose(0, 1)

    def to(self, dtype: torch.dtype) -> Gradient:
        """The same in another precision."""
        return Gradient(self.inputs.to(dtype), self.slopes.to(dtype))


class Local(ABC):
    """What one sweep leaves at a node: `m_out`, the message that goes on, and the ways back and along."""

    m_out: Message

    @abstractmethod
    def back(self, m_back: Gaussian) -> tuple[list[Gaussian | None], dict[str, Gaussian]]:
        """Messages to the inputs (None for a known one) and to the weights, the latter multiplied over the batch."""

    @abstractmethod
    def tangent(self, d_ins: Sequence[Tensor | None], d_weights: dict[str, Tensor]) -> Tensor | None:
        """First-order change of the output's mean when the inputs' means move by d_ins and the weights' by d_weights.

        An entry of d_ins is None where nothing below has moved; the answer is None if the output then does not move
        either. Weights that a pool gives its entries are held fixed.
        """

    @abstractmethod
    def pullback(self, slope: Tensor) -> list[Tensor]:
        """Adjoint of `tangent` in the inputs: slopes (k, b, ...) of k quantities in the output's mean become slopes
        in the inputs' means.
        """

    @abstractmethod
    def noise(self, below: Sequence[Tensor]) -> Tensor:
        """The part of the output's variance that is noise to the last weights: for a layer with weights what does not
        come from them; else the inputs' such parts (`below`, one per input), carried on.
        """

    def gradient(self, slope: Tensor, *, n_examples: int | None = None) -> Gradient:
        """Slopes in the own weights of k quantities with slopes (k, b, ...) in the output's mean; of the first
        n_examples, if given, for the inputs alone. Only with weights.
        """
        raise NotImplementedError(
            f"{type(self).__name__} belongs to a layer with weights but has no method gradient(slope), which the "
            "parallel schedule and the joint belief need; write it (CONTRIBUTING.md shows how), or train with "
            "schedule='sequential'"
        )

    def with_variance(self, var: Tensor) -> Local:
        """The same with this variance of the output, for activations above to be averaged over; a layer without such
        an output stays as it is.
        """
        return self

    def variance_under(self, covariances: Tensor) -> Tensor:
        """Variance of the output where the own weights of each unit have these covariances, (o, i, i), and inputs are
        at their means.
        """
        assert isinstance(self.m_out, Moments)
        return torch.zeros_like(self.m_out.mean)

    def input_moments(self, *, n_examples: int) -> Tensor:
        """What the metric is made of: E[a a^T] (i, i) of the `Gradient.inputs` a of the first n_examples."""
        assert isinstance(self.m_out, Moments)
        rows = self.gradient(torch.zeros_like(self.m_out.mean)[None], n_examples=n_examples).inputs.flatten(0, 1)
        return rows.t() @ rows / len(rows)

    def slope_rows(self, slope: Tensor) -> Tensor:
        """And slopes (b p, o) of one quantity, `Gradient.slopes` of a slope (1, b, ...)."""
        return self.gradient(slope, n_examples=1).slopes[0].flatten(0, 1)

    def message_curvature(self, m_back: Gaussian) -> tuple[Tensor, Tensor]:
        """What the messages' own precisions add to the metric: per row (o,) of the weights' matrix, and per weight."""
        zero = torch.zeros((), dtype=m_back.rho.dtype, device=m_back.rho.device)
        return zero, zero


class Layer(ABC):
    """One factor of the network between its input edges and an output edge."""

    may_reject = False  # whether its message to the input may lack precision, and is counted then (tilted.py)
    n_own_inputs = 0  # inputs with weights of their own, the first columns of `to_matrix`; none if weights are shared

    def weight_shapes(self) -> dict[str, Shape]:
        """Name and shape of each weight tensor; empty for layers without weights."""
        return {}

    def weight_priors(
        self, shape_in: Shape, *, is_first: bool, generator: torch.Generator, rule: str = "narrow"
    ) -> dict[str, WeightPrior]:
        """Prior and starting means of each weight tensor, given the shape of one input and a rule of priors.py."""
        return {}

    def to_matrix(self, tensors: dict[str, Tensor]) -> Tensor:
        """All weights as the matrix (o, i) of `Gradient`: one row, unless the layer knows better."""
        return torch.cat([part.reshape(1, -1) for part in tensors.values()], 1)

    def from_matrix(self, matrix: Tensor) -> dict[str, Tensor]:
        """Inverse of `to_matrix`."""
        shapes = self.weight_shapes()
        parts = matrix[0].split([int(torch.Size(shape).numel()) for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def config(self) -> dict[str, Any]:
        """Constructor arguments that make this layer again, as JSON holds them; priors are saved apart."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot be saved: give it a method config() that returns the arguments of its "
            "constructor, a dict of numbers, strings and lists"
        )

    @abstractmethod
    def output_shape(self, shape_in: Shape) -> Shape:
        """Shape of one output for an input of this shape, or a ValueError that says what fits."""

    @abstractmethod
    def sweep(
        self, m_ins: Sequence[Message], weights: Weights, regime: Regime = MOMENTS, memory: Memory = NO_MEMORY
    ) -> Local:
        """What one sweep leaves here.

        Args:
            m_ins: what arrives at the inputs, one entry for most layers; known values stay plain tensors.
            weights: beliefs about the own weights.
            regime: how sweeps are done.
            memory: messages of an earlier sweep of the same example; a product factor forms its input's marginal with
                them, an activation its output's.
        """
