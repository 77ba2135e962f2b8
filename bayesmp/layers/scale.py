"""One learned weight per channel or feature, which multiplies its input: a product of two uncertain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesmp.basics import checks
from bayesmp.layers import priors
from bayesmp.layers.base import NO_MEMORY, Gradient, Layer, Local, Memory, Message, Shape, Weights
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.line import line_to_input
from bayesmp.messages.linear import SumMoments, weight_curvature
from bayesmp.messages.regime import MOMENTS, Regime

PRIOR = (1.0, 0.25)  # mean and variance: as it came, within a factor of two
LEAST_SIZE = 1e-12  # squared; of a channel that is 0 at all positions, by which slopes are divided


@dataclass(frozen=True)
class ScaleLocal(Local):
    r"""A sweep through z = w x, by `line_to_input` on the way back: to x, z = E[w] x with a rest of Var[w] E[x^2]; to
    w, z = E[x] w with a rest of Var[x] E[w^2], which is 0 for known inputs and then the exact message.

    Attributes:
        m_out: moments of z, with the part of the variance that is noise to w.
        weight: shaped to broadcast against x.
    """

    m_in: Message
    m_out: SumMoments
    weight: Moments

    @property
    def mean_in(self) -> Tensor:
        return self.m_in.mean if isinstance(self.m_in, Moments) else self.m_in

    def back(self, m_back: Gaussian) -> tuple[list[Gaussian | None], dict[str, Gaussian]]:
        each = line_to_input(m_back, self.mean_in, 0.0, self.m_out.input_var)
        to_weights = {"weight": each.map(lambda part: _by_channel(part).sum((0, 2)))}
        if not isinstance(self.m_in, Moments):
            return [None], to_weights
        rest = self.weight.var * (self.m_in.mean.square() + self.m_in.var)
        return [line_to_input(m_back, self.weight.mean, 0.0, rest)], to_weights

    def tangent(self, d_ins: Sequence[Tensor | None], d_weights: dict[str, Tensor]) -> Tensor:
        change = self.mean_in * d_weights["weight"].view(self.weight.shape)
        return change if d_ins[0] is None else change + self.weight.mean * d_ins[0]

    def pullback(self, slope: Tensor) -> list[Tensor]:
        return [slope * self.weight.mean]

    def noise(self, below: Sequence[Tensor]) -> Tensor:
        return self.m_out.input_var

    def gradient(self, slope: Tensor, *, n_examples: int | None = None) -> Gradient:
        """One position per channel: its size as the one input that is not 0, and the sum of slope x over the size."""
        x = _by_channel(self.mean_in)
        size = (x.square().mean(2) + LEAST_SIZE).sqrt()  # (b, c)
        slopes = (_by_channel(slope.flatten(0, 1)).unflatten(0, slope.shape[:2]) * x).sum(3) / size
        return Gradient(size[:n_examples].diag_embed(), slopes[..., None])

    def with_variance(self, var: Tensor) -> ScaleLocal:
        return replace(self, m_out=SumMoments(self.m_out.mean, var, torch.zeros_like(var)))

    def variance_under(self, covariances: Tensor) -> Tensor:
        """Of the own weights and, at their means, of the inputs: a layer with weights below may have left some."""
        own = covariances[0].diagonal().view(self.weight.shape)
        var = self.mean_in.square() * own
        return var + self.weight.mean.square() * self.m_in.var if isinstance(self.m_in, Moments) else var

    def message_curvature(self, m_back: Gaussian) -> tuple[Tensor, Tensor]:
        total = weight_curvature(self.m_out.input_var, m_back.rho).sum()
        if not isinstance(self.m_in, Moments):
            return total[None], torch.zeros_like(total)
        return total[None], self.m_in.var.mean() * total / self.weight.mean.numel()


class Scale(Layer):
    """z = w x with one weight w per feature of a vector, or per channel of an image.

    Args:
        n_channels: channels, or features of a vector.
        weight_prior: (mean, var) in place of the default prior N(1, 1/4), numbers or broadcastable tensors.
    """

    def __init__(self, n_channels: int, *, weight_prior: priors.PriorLike | None = None) -> None:
        self.n_channels = checks.check_positive_int(n_channels, "n_channels of Scale")
        self.weight_prior = weight_prior

    def config(self) -> dict[str, Any]:
        return {"n_channels": self.n_channels}

    def weight_shapes(self) -> dict[str, Shape]:
        return {"weight": (self.n_channels,)}

    def weight_priors(
        self, shape_in: Shape, *, is_first: bool, generator: torch.Generator, rule: str = "narrow"
    ) -> dict[str, priors.WeightPrior]:
        prior = PRIOR if self.weight_prior is None else self.weight_prior
        return {"weight": priors.given_prior(prior, (self.n_channels,), f"weight_prior of {self!r}")}

    def output_shape(self, shape_in: Shape) -> Shape:
        if len(shape_in) not in (1, 3) or shape_in[0] != self.n_channels:
            raise ValueError(
                f"{self!r} takes vectors of {self.n_channels} features, or images of shape ({self.n_channels}, height, "
                f"width), got {shape_in}"
            )
        return shape_in

    def sweep(
        self, m_ins: Sequence[Message], weights: Weights, regime: Regime = MOMENTS, memory: Memory = NO_MEMORY
    ) -> ScaleLocal:
        (m_in,) = m_ins
        n_positions = len(m_in.shape) - 2
        weight = weights["weight"].map(lambda part: part.view(-1, *(1,) * n_positions))
        if not isinstance(m_in, Moments):
            m_out = SumMoments(m_in * weight.mean, m_in.square() * weight.var, torch.zeros_like(m_in))
            return ScaleLocal(m_in, m_out, weight)
        from_input = m_in.var * (weight.mean.square() + weight.var)
        var = m_in.mean.square() * weight.var + from_input
        return ScaleLocal(m_in, SumMoments(m_in.mean * weight.mean, var, from_input), weight)

    def __repr__(self) -> str:
        return f"Scale({self.n_channels})"


def _by_channel(images: Tensor) -> Tensor:
    """(b, c, ...) -> (b, c, p)."""
    return images.reshape(*images.shape[:2], -1)
