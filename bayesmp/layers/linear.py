"""Fully connected layer, and what it shares with convolutions."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from bayesmp import checks, kernels, priors
from bayesmp.equations import linear as equations
from bayesmp.equations.linear_maps import DenseMap, LinearMap
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.layers.base import Layer, Message, Shape, Weights


class WeightLayer(Layer):
    """z = w * a + bias for a linear map `*`; the map, the fan-in and the shapes come from the subclass."""

    takes_marginal = True

    def __init__(
        self,
        *,
        fan_in: int,
        bias: bool,
        exact: bool | None,
        weight_prior: priors.PriorLike | None,
        bias_prior: priors.PriorLike | None,
    ) -> None:
        self.fan_in = fan_in
        self.has_bias = bias
        self.exact = exact
        self.weight_prior = weight_prior
        self.bias_prior = bias_prior
        self.is_exact = equations.prefers_exact(fan_in, exact)

    @abstractmethod
    def linear_map(self, m_in: Message) -> LinearMap:
        """The three products of this layer for an input of this size."""

    def weight_priors(
        self, shape_in: Shape, *, is_first: bool, generator: torch.Generator, rule: str = "narrow"
    ) -> dict[str, priors.WeightPrior]:
        shapes = self.weight_shapes()
        n_out = _count(self.output_shape(shape_in))
        drawn = priors.default_weight_prior(
            shapes["weight"], self.fan_in, n_out, is_first=is_first, generator=generator, rule=rule
        )  # drawn even when not used, so that a prior given for one layer does not change another's
        found = {
            "weight": drawn
            if self.weight_prior is None
            else priors.given_prior(self.weight_prior, shapes["weight"], f"weight_prior of {self!r}")
        }
        if self.has_bias:
            found["bias"] = (
                priors.default_bias_prior(shapes["bias"])
                if self.bias_prior is None
                else priors.given_prior(self.bias_prior, shapes["bias"], f"bias_prior of {self!r}")
            )
        return found

    def to_output(self, m_in: Message, weights: Weights, m_back: Gaussian | None = None) -> equations.SumMoments:
        return equations.linear_to_output(self.linear_map(m_in), m_in, weights["weight"], weights.get("bias"))

    def messages_back(
        self, m_in: Message, m_out: Moments, m_back: Gaussian, weights: Weights, *, at_cavity: bool = False
    ) -> tuple[Gaussian | None, dict[str, Gaussian]]:
        if self.is_exact or at_cavity:
            return self._exact_messages(m_in, m_out, m_back, weights, at_cavity=at_cavity)
        weight, bias, linear_map = weights["weight"], weights.get("bias"), self.linear_map(m_in)
        assert isinstance(m_out, equations.SumMoments)
        back = kernels.residual(m_out, m_back)
        to_weights = {"weight": equations.linear_to_weight(linear_map, m_in, weight, back)}
        if bias is not None:
            to_weights["bias"] = equations.linear_to_bias(linear_map, bias, m_out, m_back, at_cavity=False)
        to_input = None
        if isinstance(m_in, Moments):
            to_input = equations.linear_to_input(linear_map, m_in, weight, back)
        return to_input, to_weights

    def _exact_messages(
        self, m_in: Message, m_out: Moments, m_back: Gaussian, weights: Weights, *, at_cavity: bool
    ) -> tuple[Gaussian | None, dict[str, Gaussian]]:
        assert isinstance(m_out, equations.SumMoments)
        weight, bias, linear_map = weights["weight"], weights.get("bias"), self.linear_map(m_in)
        terms = equations.exact_terms(linear_map, m_in, weight, m_out, m_back, at_cavity=at_cavity)
        to_weights = {"weight": equations.exact_to_weight(linear_map, m_in, weight, terms)}
        if bias is not None:
            to_weights["bias"] = equations.linear_to_bias(linear_map, bias, m_out, m_back, at_cavity=at_cavity)
        to_input = equations.exact_to_input(linear_map, weight, terms) if isinstance(m_in, Moments) else None
        return to_input, to_weights

    def tangent(
        self, m_in: Message, m_out: Moments, d_in: Tensor | None, weights: Weights, d_weights: dict[str, Tensor]
    ) -> Tensor:
        linear_map = self.linear_map(m_in)
        change = linear_map.op(m_in.mean if isinstance(m_in, Moments) else m_in, d_weights["weight"])
        if "bias" in d_weights:
            change = change + linear_map.spread(d_weights["bias"])
        return change if d_in is None else change + linear_map.op(d_in, weights["weight"].mean)

    def pullback(self, m_in: Moments, m_out: Moments, slope: Tensor, weights: Weights) -> Tensor:
        return self.linear_map(m_in).op_input(slope, weights["weight"].mean)


class Linear(WeightLayer):
    """Fully connected layer, n_in -> n_out; weight (o, i), bias (o).

    Args:
        n_in, n_out: numbers of inputs and outputs per example.
        bias: whether each output has a bias.
        exact: True for exact inner-product messages, False for the matrix form; None picks by fan-in.
        weight_prior, bias_prior: (mean, var) in place of the default prior, numbers or broadcastable tensors.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        bias: bool = True,
        exact: bool | None = None,
        weight_prior: priors.PriorLike | None = None,
        bias_prior: priors.PriorLike | None = None,
    ) -> None:
        self.n_in = checks.check_positive_int(n_in, "n_in of Linear")
        self.n_out = checks.check_positive_int(n_out, "n_out of Linear")
        super().__init__(fan_in=n_in, bias=bias, exact=exact, weight_prior=weight_prior, bias_prior=bias_prior)

    def config(self) -> dict[str, Any]:
        return {"n_in": self.n_in, "n_out": self.n_out, "bias": self.has_bias, "exact": self.exact}

    def weight_shapes(self) -> dict[str, Shape]:
        return {"weight": (self.n_out, self.n_in)} | ({"bias": (self.n_out,)} if self.has_bias else {})

    def output_shape(self, shape_in: Shape) -> Shape:
        if shape_in != (self.n_in,):
            hint = "; put a Flatten() before it" if len(shape_in) > 1 else ""
            raise ValueError(f"{self!r} takes inputs of shape ({self.n_in},) per example, got {shape_in}{hint}")
        return (self.n_out,)

    def linear_map(self, m_in: Message) -> DenseMap:
        return DenseMap()

    def __repr__(self) -> str:
        return f"Linear({self.n_in}, {self.n_out}{'' if self.has_bias else ', bias=False'})"


def _count(shape: Shape) -> int:
    return int(torch.Size(shape).numel())
