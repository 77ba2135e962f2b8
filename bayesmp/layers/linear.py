"""Fully connected layer, and what it shares with convolutions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.basics import checks
from bayesmp.layers import priors
from bayesmp.layers.base import NO_MEMORY, Gradient, Layer, Local, Memory, Message, Shape, Weights
from bayesmp.messages import linear as equations
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.linear_maps import DenseMap, LinearMap
from bayesmp.messages.regime import MOMENTS, Regime


@dataclass(frozen=True)
class Sent:
    """What the last way back through a sum has found beside its messages: it is asked for again in the same visit."""

    m_back: Gaussian  # for which message
    slope: Tensor | None  # e_w of each example; not kept for images
    curvature: Tensor  # of the messages, per unit


@dataclass(frozen=True)
class SumLocal(Local):
    """A sweep through z = w * a + bias.

    Attributes:
        m_in: the input.
        m_out: moments of z, with the part of the variance that is noise to the weights.
        at_cavity: whether `weights` have not seen the example; then each term of a sum is treated apart.
    """

    linear_map: LinearMap
    m_in: Message
    m_out: equations.SumMoments
    weights: Weights
    at_cavity: bool
    _sent: list[Sent] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def mean_in(self) -> Tensor:
        return self.m_in.mean if isinstance(self.m_in, Moments) else self.m_in

    def without_own(self, pull: Tensor) -> SumLocal:
        """The same with z as the weights would have it without the example, whose last slope in z was `pull`."""
        mean = self.m_out.mean - (self.m_out.var - self.m_out.input_var) * pull
        # Now a cavity: all of its variance is that of others, and shrinks the residual that goes back.
        m_out = equations.SumMoments(mean, self.m_out.var, self.m_out.var)
        return self._with(m_out)

    def with_variance(self, var: Tensor) -> SumLocal:
        return self._with(equations.SumMoments(self.m_out.mean, var, torch.zeros_like(var)))

    def _with(self, m_out: equations.SumMoments) -> SumLocal:
        # `dataclasses.replace` takes as long as a product
        return SumLocal(self.linear_map, self.m_in, m_out, self.weights, self.at_cavity)

    def variance_under(self, covariances: Tensor) -> Tensor:
        inputs = self.linear_map.patches(self.mean_in, with_one="bias" in self.weights)  # (b, p, i)
        n_units, n_in, _ = covariances.shape
        mixed = inputs.flatten(0, 1) @ covariances.permute(1, 0, 2).reshape(n_in, n_units * n_in)
        var = (mixed.view(*inputs.shape[:2], n_units, n_in) * inputs[:, :, None, :]).sum(3)  # (b, p, o)
        return var.transpose(1, 2).reshape(self.m_out.mean.shape).clamp_min(0.0)

    def own_pull(self, m_back: Gaussian) -> Tensor:
        """Slope that each example now sends to its sums."""
        sent = self._sent_for(m_back)
        if sent is not None and sent.slope is not None:
            return sent.slope
        return kernels.residual(self.m_out, m_back).to_weight

    def _sent_for(self, m_back: Gaussian) -> Sent | None:
        return self._sent[0] if self._sent and self._sent[0].m_back is m_back else None

    def back(self, m_back: Gaussian) -> tuple[list[Gaussian | None], dict[str, Gaussian]]:
        weight, bias, linear_map = self.weights["weight"], self.weights.get("bias"), self.linear_map
        to_input: Gaussian | None = None
        to_weights: dict[str, Gaussian] = {}
        if self.at_cavity:
            to_weights["weight"], to_input = equations.exact_back(linear_map, self.m_in, weight, self.m_out, m_back)
            if bias is not None:
                to_weights["bias"] = equations.linear_to_bias(linear_map, bias, self.m_out, m_back)
            return [to_input], to_weights
        back, sums = kernels.residual_sums(linear_map, None if bias is None else bias.var, self.m_out, m_back)
        slope = back.to_weight if back.to_weight.ndim == 2 else None
        to_weights["weight"] = equations.linear_to_weight(linear_map, self.m_in, weight, back)
        if isinstance(self.m_in, Moments):
            to_input = equations.linear_to_input(linear_map, self.m_in, weight, back)
        if bias is not None:
            to_weights["bias"] = Gaussian(torch.addcmul(sums.slope, bias.mean, sums.rho), sums.rho)
        self._sent[:] = [Sent(m_back, slope, sums.curvature)]
        return [to_input], to_weights

    def tangent(self, d_ins: Sequence[Tensor | None], d_weights: dict[str, Tensor]) -> Tensor:
        change = self.linear_map.op(self.mean_in, d_weights["weight"], d_weights.get("bias"))
        return change if d_ins[0] is None else change.add_(self.linear_map.op(d_ins[0], self.weights["weight"].mean))

    def pullback(self, slope: Tensor) -> list[Tensor]:
        pulled = self.linear_map.op_input(slope.flatten(0, 1), self.weights["weight"].mean)
        return [pulled.view(*slope.shape[:2], *pulled.shape[1:])]

    def noise(self, below: Sequence[Tensor]) -> Tensor:
        return self.m_out.input_var

    def gradient(self, slope: Tensor, *, n_examples: int | None = None) -> Gradient:
        inputs = self.linear_map.patches(self.mean_in[:n_examples], with_one="bias" in self.weights)  # (b, p, i)
        slopes = self.linear_map.rows(slope.flatten(0, 1))
        return Gradient(inputs, slopes.view(*slope.shape[:2], *slopes.shape[1:]))

    def input_moments(self, *, n_examples: int) -> Tensor:
        return self.linear_map.second_moments(self.mean_in[:n_examples], with_one="bias" in self.weights)

    def slope_rows(self, slope: Tensor) -> Tensor:
        return self.linear_map.rows(slope[0]).flatten(0, 1)

    def message_curvature(self, m_back: Gaussian) -> tuple[Tensor, Tensor]:
        sent = self._sent_for(m_back)
        if sent is not None:
            per_row = sent.curvature
        else:
            per_row = self.linear_map.channel_sum(kernels.weight_curvature(self.m_out.input_var, m_back.rho))
        if not isinstance(self.m_in, Moments):
            return per_row, torch.zeros_like(per_row[0])
        return per_row, self.m_in.var.mean() * per_row.mean()


class WeightLayer(Layer):
    """z = w * a + bias for a linear map `*`; the map, the fan-in and the shapes come from the subclass."""

    def __init__(
        self,
        *,
        fan_in: int,
        bias: bool,
        weight_prior: priors.PriorLike | None,
        bias_prior: priors.PriorLike | None,
    ) -> None:
        self.fan_in = fan_in
        self.has_bias = bias
        self.weight_prior = weight_prior
        self.bias_prior = bias_prior

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
        found = {"weight": drawn}
        if self.weight_prior is not None:
            given = priors.given_prior(self.weight_prior, shapes["weight"], f"weight_prior of {self!r}")
            found["weight"] = replace(given, spread=drawn.spread)
        if self.has_bias:
            found["bias"] = priors.default_bias_prior(shapes["bias"])
            if self.bias_prior is not None:
                given = priors.given_prior(self.bias_prior, shapes["bias"], f"bias_prior of {self!r}")
                found["bias"] = replace(given, spread=found["bias"].spread)
        return found

    def to_matrix(self, tensors: dict[str, Tensor]) -> Tensor:
        """(o, i), the bias as the last column."""
        blocks = self.matrix_blocks(tensors)
        return torch.cat(blocks, 1) if self.has_bias else blocks[0]

    def matrix_blocks(self, tensors: dict[str, Tensor]) -> list[Tensor]:
        """The columns of `to_matrix` as views: those of the weight, and that of the bias."""
        blocks = [tensors["weight"].flatten(1)]
        return [*blocks, tensors["bias"][:, None]] if self.has_bias else blocks

    def from_matrix(self, matrix: Tensor) -> dict[str, Tensor]:
        shape = self.weight_shapes()["weight"]
        if not self.has_bias:
            return {"weight": matrix.reshape(shape)}
        return {"weight": matrix[:, :-1].reshape(shape), "bias": matrix[:, -1]}

    def sweep(
        self, m_ins: Sequence[Message], weights: Weights, regime: Regime = MOMENTS, memory: Memory = NO_MEMORY
    ) -> SumLocal:
        (m_in,) = m_ins
        if isinstance(m_in, Moments) and memory.at_input is not None:
            m_in = m_in * memory.at_input
        linear_map = self.linear_map(m_in)
        if regime.activations == "means":
            m_out = equations.linear_mean(linear_map, m_in, weights["weight"], weights.get("bias"))
        else:
            m_out = equations.linear_to_output(linear_map, m_in, weights["weight"], weights.get("bias"))
        return SumLocal(linear_map, m_in, m_out, weights, regime.sees == "cavity")


class Linear(WeightLayer):
    """Fully connected layer, n_in -> n_out; weight (o, i), bias (o).

    Args:
        n_in, n_out: numbers of inputs and outputs per example.
        bias: whether each output has a bias.
        weight_prior, bias_prior: (mean, var) in place of the default prior, numbers or broadcastable tensors.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        bias: bool = True,
        weight_prior: priors.PriorLike | None = None,
        bias_prior: priors.PriorLike | None = None,
    ) -> None:
        self.n_in = checks.check_positive_int(n_in, "n_in of Linear")
        self.n_out = checks.check_positive_int(n_out, "n_out of Linear")
        self.n_own_inputs = self.n_in
        super().__init__(fan_in=n_in, bias=bias, weight_prior=weight_prior, bias_prior=bias_prior)

    def config(self) -> dict[str, Any]:
        return {"n_in": self.n_in, "n_out": self.n_out, "bias": self.has_bias}

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


def all_dense(layers: Sequence[Layer]) -> bool:
    """Whether no weights are shared over positions: all layers that have any are dense."""
    return all(isinstance(layer, Linear) for layer in layers if layer.weight_shapes())
