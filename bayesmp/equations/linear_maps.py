"""The three products of a bilinear map z = w * a: to z, back to a, back to w. Dense and convolution differ only here.

`op(x, w)`, `op_input(z, w)` and `op_weight(x, z)` take plain tensors; the message equations in `linear.py` are
written with them once and serve both. `op` adds a number per unit if it is given one. `patches` and `fold` give the
explicit (b, p, i) view of the inputs of each output position, for the exact element-wise form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class DenseMap:
    """z_o = sum_i w_oi a_i, a: (b, i), w: (o, i), z: (b, o)."""

    def op(self, x: Tensor, w: Tensor, per_unit: Tensor | None = None) -> Tensor:
        return functional.linear(x, w, per_unit)

    def op_input(self, z: Tensor, w: Tensor) -> Tensor:
        return z @ w

    def op_weight(self, x: Tensor, z: Tensor) -> Tensor:
        return z.t() @ x

    def channel_sum(self, z: Tensor) -> Tensor:
        """Sum over everything but the output units: (b, o) -> (o)."""
        return z.sum(0)

    def spread(self, per_unit: Tensor) -> Tensor:
        """(o) shaped to broadcast against z."""
        return per_unit

    def patches(self, x: Tensor) -> Tensor:
        return x[:, None, :]  # (b, 1, i)

    def fold(self, per_patch: Tensor) -> Tensor:
        return per_patch[:, 0, :]

    def rows(self, z: Tensor) -> Tensor:
        return z[:, None, :]  # (b, 1, o)

    def flat_weight(self, w: Tensor) -> Tensor:
        return w


@dataclass(frozen=True)
class ConvMap:
    """z = conv2d(a, w), a: (b, c, h, w), w: (o, c, k, k); zero padding contributes nothing and gets no messages."""

    size_in: tuple[int, int]
    size_out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def op(self, x: Tensor, w: Tensor, per_unit: Tensor | None = None) -> Tensor:
        x, w = _channels_last(x, w)
        return functional.conv2d(x, w, per_unit, stride=self.stride, padding=self.padding)

    def op_input(self, z: Tensor, w: Tensor) -> Tensor:
        shape = (z.shape[0], w.shape[1], *self.size_in)
        z, w = _channels_last(z, w)
        return self._backward(z, z.new_empty(1).expand(shape), w, (True, False, False))[0]

    def op_weight(self, x: Tensor, z: Tensor) -> Tensor:
        shape = (z.shape[1], x.shape[1], *self.kernel)
        x, z = _channels_last(x, z)
        return self._backward(z, x, x.new_empty(1).expand(shape), (False, True, False))[1]

    def _backward(self, z: Tensor, x: Tensor, w: Tensor, mask: Sequence[bool]) -> Sequence[Tensor]:
        return torch.ops.aten.convolution_backward(
            z, x, w, None, self.stride, self.padding, (1, 1), False, (0, 0), 1, list(mask)
        )

    def channel_sum(self, z: Tensor) -> Tensor:
        return z.sum((0, 2, 3))

    def spread(self, per_unit: Tensor) -> Tensor:
        return per_unit[:, None, None]

    def patches(self, x: Tensor) -> Tensor:
        height, width = self.padding
        windows = functional.pad(x, (width, width, height, height)) if height or width else x
        for dim, size, step in zip((2, 3), self.kernel, self.stride, strict=True):
            windows = windows.unfold(dim, size, step)  # (b, c, oh, ow, k, k), a view
        return windows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)  # (b, p, i)

    def fold(self, per_patch: Tensor) -> Tensor:
        return functional.fold(
            per_patch.transpose(1, 2), self.size_in, self.kernel, padding=self.padding, stride=self.stride
        )

    def rows(self, z: Tensor) -> Tensor:
        return z.flatten(2).transpose(1, 2)  # (b, p, o)

    def flat_weight(self, w: Tensor) -> Tensor:
        return w.flatten(1)


def _channels_last(*tensors: Tensor) -> list[Tensor]:
    """On the CPU in the order of memory in which its convolutions are fast (up to 6 times for few channels); what comes
    out of them is in the same order, so that in a chain of layers only the first input is copied.
    """
    if tensors[0].is_cuda:
        return list(tensors)
    return [part.to(memory_format=torch.channels_last) for part in tensors]


LinearMap = DenseMap | ConvMap
