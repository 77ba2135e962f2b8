"""Layers that only move numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmp.layers.base import NO_MEMORY, Layer, Local, Memory, Message, Shape, Weights
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.regime import MOMENTS, Regime


@dataclass(frozen=True)
class FlattenLocal(Local):
    """A sweep through a reshape, from images of this shape (with the batch)."""

    m_out: Message
    shape_in: Shape
    is_known: bool

    def back(self, m_back: Gaussian) -> tuple[list[Gaussian | None], dict[str, Gaussian]]:
        return [None if self.is_known else m_back.map(lambda part: part.view(self.shape_in))], {}

    def tangent(self, d_ins: Sequence[Tensor | None], d_weights: dict[str, Tensor]) -> Tensor | None:
        return None if d_ins[0] is None else d_ins[0].flatten(1)

    def pullback(self, slope: Tensor) -> list[Tensor]:
        return [slope.view(len(slope), *self.shape_in)]

    def noise(self, below: Sequence[Tensor]) -> Tensor:
        return below[0].flatten(1)


class Flatten(Layer):
    """(c, h, w) -> (c h w), in that order."""

    def config(self) -> dict[str, Any]:
        return {}

    def output_shape(self, shape_in: Shape) -> Shape:
        return (int(torch.Size(shape_in).numel()),)

    def sweep(
        self, m_ins: Sequence[Message], weights: Weights, regime: Regime = MOMENTS, memory: Memory = NO_MEMORY
    ) -> FlattenLocal:
        (m_in,) = m_ins
        if isinstance(m_in, Moments):
            return FlattenLocal(m_in.map(lambda part: part.flatten(1)), tuple(m_in.shape), is_known=False)
        return FlattenLocal(m_in.flatten(1), tuple(m_in.shape), is_known=True)

    def __repr__(self) -> str:
        return "Flatten()"
