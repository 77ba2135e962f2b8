"""Pooling: weighted sums of the entries of each window, with known weights. Fast forms: kernels/pools.py on the CPU for
2 x 2 windows, the texts `max_of_four` and `weighted_sum_to_input` of kernels/text.py for all else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.layers.base import NO_MEMORY, Layer, Local, Memory, Message, Shape, Weights
from bayesmp.layers.windows import pair, short, window_count
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.regime import MOMENTS, Regime
from bayesmp.messages.weighted_sum import weighted_sum_to_output
from bayesmp.messages.windows import Pair, gather_windows


@dataclass(frozen=True, slots=True)
class PooledMoments(Moments):
    """Moments of a pool, with the weight of each entry of its windows."""

    share: Tensor  # broadcastable to (b, c, n, oh, ow)


@dataclass(frozen=True)
class PoolLocal(Local):
    """A sweep through a pool: a weighted sum over each window; its weights, `share`, are held fixed on the way back."""

    m_in: Message
    m_out: Message
    share: Tensor
    kernel: Pair
    stride: Pair

    def back(self, m_back: Gaussian) -> tuple[list[Gaussian | None], dict[str, Gaussian]]:
        if not (isinstance(self.m_in, Moments) and isinstance(self.m_out, Moments)):
            return [None], {}
        return [kernels.pool_to_input(self.share, self.m_in, self.m_out, m_back, self.kernel, self.stride)], {}

    def tangent(self, d_ins: Sequence[Tensor | None], d_weights: dict[str, Tensor]) -> Tensor | None:
        return None if d_ins[0] is None else kernels.pool_sum(self.share, d_ins[0], self.kernel, self.stride)

    def pullback(self, slope: Tensor) -> list[Tensor]:
        like = self.m_in.mean if isinstance(self.m_in, Moments) else self.m_in
        return [kernels.pool_spread(self.share, slope, like, self.kernel, self.stride)]

    def noise(self, below: Sequence[Tensor]) -> Tensor:
        return kernels.pool_sum(self.share.square(), below[0], self.kernel, self.stride)


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
    def pool(self, m_in: Moments, kernel: Pair, stride: Pair) -> PooledMoments:
        """The weighted sum over the entries of each window of the images (b, c, h, w), and its weights."""

    @abstractmethod
    def known_to_output(self, windows: Tensor) -> Tensor:
        """The pool of known values (b, c, n, oh, ow) -> (b, c, oh, ow)."""

    @abstractmethod
    def known_share(self, windows: Tensor) -> Tensor:
        """Weight of each known entry in the pool."""

    def output_shape(self, shape_in: Shape) -> Shape:
        if len(shape_in) != 3:
            raise ValueError(f"{self!r} takes images of shape (channels, height, width), got {shape_in}")
        kernel, stride = self._window(shape_in)
        return (shape_in[0], *window_count(shape_in[1:], kernel, stride, (0, 0), repr(self)))

    def sweep(
        self, m_ins: Sequence[Message], weights: Weights, regime: Regime = MOMENTS, memory: Memory = NO_MEMORY
    ) -> PoolLocal:
        (m_in,) = m_ins
        kernel, stride = self._window(m_in.shape)
        if not isinstance(m_in, Moments):
            windows = gather_windows(m_in, kernel, stride)
            return PoolLocal(m_in, self.known_to_output(windows), self.known_share(windows), kernel, stride)
        m_out = self.pool(m_in, kernel, stride)
        return PoolLocal(m_in, Moments(m_out.mean, m_out.var), m_out.share, kernel, stride)

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

    def pool(self, m_in: Moments, kernel: Pair, stride: Pair) -> PooledMoments:
        share, m_out = kernels.max_pool(m_in, kernel, stride, noise=self.noise)
        return PooledMoments(m_out.mean, m_out.var, share)

    def known_to_output(self, windows: Tensor) -> Tensor:
        return windows.amax(2)

    def known_share(self, windows: Tensor) -> Tensor:
        is_largest = torch.zeros_like(windows)
        return is_largest.scatter_(2, windows.argmax(2, keepdim=True), 1.0)


class AvgPool2d(Pool2d):
    """Mean of each window, exact in both directions."""

    def pool(self, m_in: Moments, kernel: Pair, stride: Pair) -> PooledMoments:
        windows = m_in.map(lambda part: gather_windows(part, kernel, stride))
        share = self.known_share(windows.mean)
        m_out = weighted_sum_to_output(share, windows, dim=2)
        return PooledMoments(m_out.mean, m_out.var, share)

    def known_to_output(self, windows: Tensor) -> Tensor:
        return windows.mean(2)

    def known_share(self, windows: Tensor) -> Tensor:
        return torch.full((), 1.0 / windows.shape[2], dtype=windows.dtype, device=windows.device)
