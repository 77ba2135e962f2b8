"""Pooling: weighted sums of the entries of each window, with known weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.equations.weighted_sum import weighted_sum_to_output
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.layers.base import NO_MEMORY, Layer, Local, Memory, Message, Shape, Weights
from bayesmp.layers.windows import Pair, gather_windows, pair, scatter_windows, short, window_count
from bayesmp.regime import MOMENTS, Regime


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
        windows = self.m_in.map(self._gather)
        message = kernels.weighted_sum_to_input(self.share, windows, self.m_out, m_back, dim=2)
        return [message.map(self._scatter)], {}

    def tangent(self, d_ins: Sequence[Tensor | None], d_weights: dict[str, Tensor]) -> Tensor | None:
        return None if d_ins[0] is None else (self.share * self._gather(d_ins[0])).sum(2)

    def pullback(self, slope: Tensor) -> list[Tensor]:
        per_window = self.share * slope.unsqueeze(3)  # (k, b, c, n, oh, ow)
        if self.share.ndim == 0:  # one weight for all entries
            k, b, c, oh, ow = slope.shape
            per_window = per_window.expand(k, b, c, self.kernel[0] * self.kernel[1], oh, ow)
        pulled = self._scatter(per_window.flatten(0, 1))
        return [pulled.view(*slope.shape[:2], *pulled.shape[1:])]

    def noise(self, below: Sequence[Tensor]) -> Tensor:
        return (self.share.square() * self._gather(below[0])).sum(2)

    def _gather(self, x: Tensor) -> Tensor:
        return gather_windows(x, self.kernel, self.stride)

    def _scatter(self, per_window: Tensor) -> Tensor:
        return scatter_windows(per_window, (self.m_in.shape[2], self.m_in.shape[3]), self.kernel, self.stride)


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
        m_out = self.pool(m_in.map(lambda part: gather_windows(part, kernel, stride)))
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

    def pool(self, windows: Moments) -> PooledMoments:
        share, m_out = kernels.max_of_windows(windows, noise=self.noise, dim=2)
        return PooledMoments(m_out.mean, m_out.var, share)

    def known_to_output(self, windows: Tensor) -> Tensor:
        return windows.amax(2)

    def known_share(self, windows: Tensor) -> Tensor:
        is_largest = torch.zeros_like(windows)
        return is_largest.scatter_(2, windows.argmax(2, keepdim=True), 1.0)


class AvgPool2d(Pool2d):
    """Mean of each window, exact in both directions."""

    def pool(self, windows: Moments) -> PooledMoments:
        share = self.known_share(windows.mean)
        m_out = weighted_sum_to_output(share, windows, dim=2)
        return PooledMoments(m_out.mean, m_out.var, share)

    def known_to_output(self, windows: Tensor) -> Tensor:
        return windows.mean(2)

    def known_share(self, windows: Tensor) -> Tensor:
        return torch.full((), 1.0 / windows.shape[2], dtype=windows.dtype, device=windows.device)
