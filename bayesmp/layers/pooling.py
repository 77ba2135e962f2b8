"""Pooling: weighted sums of the entries of each window, with known weights."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.equations.weighted_sum import weighted_sum_to_output
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.layers.base import Layer, Message, Shape, Weights
from bayesmp.layers.windows import Pair, gather_windows, pair, scatter_windows, short, window_count


@dataclass(frozen=True, slots=True)
class PooledMoments(Moments):
    """Moments of a pool, with the weight of each entry of its windows."""

    share: Tensor  # broadcastable to (b, c, n, oh, ow)


class Pool2d(Layer):
    """A weighted sum over windows; the subclass says with which weights.

    Args:
        kernel: window size, an int or a pair; None pools over the whole image.
        stride: distance between windows; the window size if not given.
    """

    def __init__(self, kernel: int | Pair | None = None, *, stride: int | Pair | None = None) -> None:
        if kernel is None and stride is not None:
            raise ValueError("a global pool (kernel=None) has one window per image and takes no stride")
        self.kernel = None if kernel is None else pair(kernel, "kernel", least=1)
        self.stride = self.kernel if stride is None else pair(stride, "stride", least=1)

    def config(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "stride": self.stride}

    @abstractmethod
    def pool(self, windows: Moments) -> PooledMoments:
        """The weighted sum over the entries (b, c, n, oh, ow) of each window, and its weights."""

    @abstractmethod
    def known_to_output(self, windows: Tensor) -> Tensor:
        """The pool of known values (b, c, n, oh, ow) -> (b, c, oh, ow)."""

    def output_shape(self, shape_in: Shape) -> Shape:
        if len(shape_in) != 3:
            raise ValueError(f"{self!r} takes images of shape (channels, height, width), got {shape_in}")
        kernel, stride = self._window(shape_in)
        return (shape_in[0], *window_count(shape_in[1:], kernel, stride, (0, 0), repr(self)))

    def to_output(self, m_in: Message, weights: Weights, m_back: Gaussian | None = None) -> Message:
        kernel, stride = self._window(m_in.shape)
        if not isinstance(m_in, Moments):
            return self.known_to_output(gather_windows(m_in, kernel, stride))
        return self.pool(m_in.map(lambda part: gather_windows(part, kernel, stride)))

    def messages_back(
        self, m_in: Message, m_out: Moments, m_back: Gaussian, weights: Weights, *, at_cavity: bool = False
    ) -> tuple[Gaussian | None, dict[str, Gaussian]]:
        assert isinstance(m_in, Moments) and isinstance(m_out, PooledMoments)
        kernel, stride = self._window(m_in.shape)
        size = (m_in.shape[2], m_in.shape[3])
        windows = m_in.map(lambda part: gather_windows(part, kernel, stride))
        message = kernels.weighted_sum_to_input(m_out.share, windows, m_out, m_back, dim=2)
        return message.map(lambda part: scatter_windows(part, size, kernel, stride)), {}

    def tangent(
        self, m_in: Message, m_out: Moments, d_in: Tensor | None, weights: Weights, d_weights: dict[str, Tensor]
    ) -> Tensor | None:
        assert isinstance(m_out, PooledMoments)
        if d_in is None:
            return None
        return (m_out.share * gather_windows(d_in, *self._window(m_in.shape))).sum(2)

    def pullback(self, m_in: Moments, m_out: Moments, slope: Tensor, weights: Weights) -> Tensor:
        assert isinstance(m_out, PooledMoments)
        kernel, stride = self._window(m_in.shape)
        per_window = m_out.share * slope.unsqueeze(2)
        if m_out.share.ndim == 0:  # one weight for all entries
            b, c, oh, ow = slope.shape
            per_window = per_window.expand(b, c, kernel[0] * kernel[1], oh, ow)
        return scatter_windows(per_window, (m_in.shape[2], m_in.shape[3]), kernel, stride)

    def _window(self, shape: Shape) -> tuple[Pair, Pair]:
        whole = (shape[-2], shape[-1])
        return (whole, whole) if self.kernel is None or self.stride is None else (self.kernel, self.stride)

    def __repr__(self) -> str:
        size = "" if self.kernel is None else short(self.kernel)
        options = f", stride={short(self.stride)}" if self.stride is not None and self.stride != self.kernel else ""
        return f"{type(self).__name__}({size}{options})"


class MaxPool2d(Pool2d):
    """Largest entry of each window: a sum weighted by each entry's probability of being the largest.

    Args:
        kernel, stride: see Pool2d.
        noise: variance added when two entries are compared.
    """

    def __init__(
        self, kernel: int | Pair | None = None, *, stride: int | Pair | None = None, noise: float = 0.3
    ) -> None:
        super().__init__(kernel, stride=stride)
        if not 0 <= noise < float("inf"):
            raise ValueError(f"noise is a variance and must be finite and >= 0, got {noise}")
        self.noise = noise

    def config(self) -> dict[str, Any]:
        return {**super().config(), "noise": self.noise}

    def pool(self, windows: Moments) -> PooledMoments:
        share, m_out = kernels.max_of_windows(windows, noise=self.noise, dim=2)
        return PooledMoments(m_out.mean, m_out.var, share)

    def known_to_output(self, windows: Tensor) -> Tensor:
        return windows.amax(2)


class AvgPool2d(Pool2d):
    """Mean of each window, exact in both directions."""

    def pool(self, windows: Moments) -> PooledMoments:
        share = torch.full((), 1.0 / windows.shape[2], dtype=windows.mean.dtype, device=windows.mean.device)
        m_out = weighted_sum_to_output(share, windows, dim=2)
        return PooledMoments(m_out.mean, m_out.var, share)

    def known_to_output(self, windows: Tensor) -> Tensor:
        return windows.mean(2)
