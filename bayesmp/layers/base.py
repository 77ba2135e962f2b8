"""The Layer contract on one page.

A layer is stateless: it knows sizes and options, and turns messages into messages. Beliefs about weights are passed
in, so that the same layer serves marginals, cavities and proposals. Shapes below are per example, without the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from bayesmp.gaussian import Gaussian, Moments
from bayesmp.priors import WeightPrior

Shape = tuple[int, ...]
Weights = dict[str, Moments]
Message = Moments | Tensor  # a forward message, or a known value


class Layer(ABC):
    """One factor of the network between an input and an output edge."""

    may_reject = False  # whether its message to the input may lack precision, and is counted then (tilted.py)
    takes_marginal = False  # whether forward sweeps feed it the input's marginal (product factors) or its message

    def weight_shapes(self) -> dict[str, Shape]:
        """Name and shape of each weight tensor; empty for layers without weights."""
        return {}

    def weight_priors(
        self, shape_in: Shape, *, is_first: bool, generator: torch.Generator, rule: str = "narrow"
    ) -> dict[str, WeightPrior]:
        """Prior and starting means of each weight tensor, given the shape of one input and a rule of priors.py."""
        return {}

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
    def to_output(self, m_in: Message, weights: Weights, m_back: Gaussian | None = None) -> Message:
        """Forward message; m_back, if given, is the message that arrived at the output earlier in the same visit.

        A layer may return a subclass of Moments that remembers what the way back needs (see SumMoments).
        """

    def linearised(self, m_in: Message, weights: Weights) -> Message:
        """Forward message with the layer taken as linear around the mean of its input; the same for linear layers."""
        return self.to_output(m_in, weights)

    @abstractmethod
    def messages_back(
        self, m_in: Message, m_out: Moments, m_back: Gaussian, weights: Weights, *, at_cavity: bool = False
    ) -> tuple[Gaussian | None, dict[str, Gaussian]]:
        """Message to the input (None if it is known) and to the weights, the latter multiplied over the batch.

        Args:
            m_in: what `to_output` received.
            m_out: what it returned.
            m_back: message arriving at the output.
            weights: the beliefs used in `to_output`.
            at_cavity: exact per-term form with cavities in `weights` (sequential schedule), else the layer's own
                choice of form with marginals (parallel schedule).
        """

    @abstractmethod
    def tangent(
        self, m_in: Message, m_out: Moments, d_in: Tensor | None, weights: Weights, d_weights: dict[str, Tensor]
    ) -> Tensor | None:
        """First-order change of the output's mean when the input's mean moves by d_in and the weights' by d_weights.

        d_in is None where nothing below has moved; the answer is None if the output then does not move either. Weights
        that a pool gives its entries are held fixed.
        """

    @abstractmethod
    def pullback(self, m_in: Moments, m_out: Moments, slope: Tensor, weights: Weights) -> Tensor:
        """Adjoint of `tangent` in the input: slope in the input's mean of something with this slope in the output's."""
