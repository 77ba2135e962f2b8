"""Layers that only move numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesmp.gaussian import Gaussian, Moments
from bayesmp.layers.base import Layer, Message, Shape, Weights


class Flatten(Layer):
    """(c, h, w) -> (c h w), in that order."""

    def config(self) -> dict[str, Any]:
        return {}

    def output_shape(self, shape_in: Shape) -> Shape:
        return (int(torch.Size(shape_in).numel()),)

    def to_output(self, m_in: Message, weights: Weights, m_back: Gaussian | None = None) -> Message:
        return m_in.map(lambda part: part.flatten(1)) if isinstance(m_in, Moments) else m_in.flatten(1)

    def messages_back(
        self, m_in: Message, m_out: Moments, m_back: Gaussian, weights: Weights, *, at_cavity: bool = False
    ) -> tuple[Gaussian | None, dict[str, Gaussian]]:
        return m_back.map(lambda part: part.view(m_in.shape)), {}

    def tangent(
        self, m_in: Message, m_out: Moments, d_in: Tensor | None, weights: Weights, d_weights: dict[str, Tensor]
    ) -> Tensor | None:
        return None if d_in is None else d_in.flatten(1)

    def pullback(self, m_in: Moments, m_out: Moments, slope: Tensor, weights: Weights) -> Tensor:
        return slope.view(m_in.shape)

    def __repr__(self) -> str:
        return "Flatten()"
