"""The three products of a bilinear map z = w * a: to z, back to a, back to w. Dense and convolution differ only here.

`op(x, w)`, `op_input(z, w)` and `op_weight(x, z)` take plain tensors; the message equations in `linear.py` are
written with them once and serve both. `op` adds a number per unit if it is given one. `patches` and `fold` give the
explicit (b, p, i) view of the inputs of each output position, for the exact element-wise form; behind each of them a 1
stands if asked, the input of a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

SMALL_GRAM = 200  # columns below which half a product is not faster than a whole one


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

    def patches(self, x: Tensor, *, with_one: bool = False) -> Tensor:
        return (functional.pad(x, (0, 1), value=1.0) if with_one else x)[:, None, :]  # (b, 1, i)

    def second_moments(self, x: Tensor, *, with_one: bool) -> Tensor:
        """E[a a^T] (i, i) over the rows of `patches`, behind each of which a 1 stands if asked."""
        return _second_moments(x, with_one=with_one)

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
        z, w = _channels_last(z, w)
        return self._backward(z, self._any_input(z, w.shape[1]), w, (True, False, False))[0]

    def op_weight(self, x: Tensor, z: Tensor) -> Tensor:
        shape = (z.shape[1], x.shape[1], *self.kernel)
        x, z = _channels_last(x, z)
        return self._backward(z, x, x.new_empty(1).expand(shape), (False, True, False))[1]

    def _any_input(self, z: Tensor, n_channels: int) -> Tensor:
        """Something of the shape of x, whose values do not matter; on the CPU it would be copied unless in order."""
        shape = (z.shape[0], n_channels, *self.size_in)
        if z.is_cuda:
            return z.new_empty(1).expand(shape)
        return torch.empty(shape, dtype=z.dtype, memory_format=torch.channels_last)

    def _backward(self, z: Tensor, x: Tensor, w: Tensor, mask: Sequence[bool]) -> Sequence[Tensor]:
        return torch.ops.aten.convolution_backward(
            z, x, w, None, self.stride, self.padding, (1, 1), False, (0, 0), 1, list(mask)
        )

    def channel_sum(self, z: Tensor) -> Tensor:
        return z.sum((0, 2, 3))

    def spread(self, per_unit: Tensor) -> Tensor:
        return per_unit[:, None, None]

    def patches(self, x: Tensor, *, with_one: bool = False) -> Tensor:
        windows = self._windows(x).permute(0, 2, 3, 1, 4, 5)  # (b, oh, ow, c, k, k)
        shape = windows.shape[3:]
        found = x.new_empty(*windows.shape[:3], shape.numel() + with_one)
        found[..., : shape.numel()].unflatten(3, shape).copy_(windows)
        if with_one:
            found[..., -1].fill_(1.0)
        return found.flatten(1, 2)  # (b, p, i)

    def second_moments(self, x: Tensor, *, with_one: bool) -> Tensor:
        products, n_rows = self.patch_products(x), len(x) * self.size_out[0] * self.size_out[1]
        n = len(products)
        found = products.new_empty(n + with_one, n + with_one)
        order = torch.arange(n, device=x.device).view(*self.kernel, -1).permute(2, 0, 1).flatten()
        found[:n, :n] = products.index_select(0, order).index_select(1, order)
        if with_one:
            found[n, :n] = found[:n, n] = self._windows(x.sum(0, keepdim=True)).sum((0, 2, 3)).flatten()
            found[n, n].fill_(n_rows)  # without a number from the host, so that it can be recorded
        return found.div_(n_rows)

    def patch_products(self, x: Tensor) -> Tensor:
        """The sum of a a^T over all patches a, (k k c, k k c), with the channels of a pixel side by side: as in memory,
        so that patches are copied ten times faster.
        """
        rows = self._windows(x).permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(0, 2)  # (b p, k k c)
        found = rows.new_empty(rows.shape[1], rows.shape[1])
        _gram(rows, found)
        return found

    def _windows(self, x: Tensor) -> Tensor:
        height, width = self.padding
        windows = functional.pad(x, (width, width, height, height)) if height or width else x
        for dim, size, step in zip((2, 3), self.kernel, self.stride, strict=True):
            windows = windows.unfold(dim, size, step)
        return windows  # (b, c, oh, ow, k, k), a view

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


def _second_moments(rows: Tensor, *, with_one: bool) -> Tensor:
    """The mean of a a^T over rows a, or over rows (a, 1)."""
    n = rows.shape[1]
    if n < SMALL_GRAM:
        rows = functional.pad(rows, (0, 1), value=1.0) if with_one else rows
        return (rows.t() @ rows).div_(len(rows))
    found = rows.new_empty(n + with_one, n + with_one)
    _gram(rows, found[:n, :n])
    if with_one:
        found[n, :n] = found[:n, n] = rows.t().mv(rows.new_ones(len(rows)))
        found[n, n].fill_(len(rows))  # without a number from the host, so that it can be recorded
    return found.div_(len(rows))


def _gram(rows: Tensor, out: Tensor) -> None:
    """rows^T rows; of a large one on the CPU the lower half is not computed but copied."""
    n = rows.shape[1]
    if rows.is_cuda or n < SMALL_GRAM:
        torch.mm(rows.t(), rows, out=out)
        return
    left, right = rows[:, : n // 2], rows[:, n // 2 :]
    _gram(left, out[: n // 2, : n // 2])
    _gram(right, out[n // 2 :, n // 2 :])
    torch.mm(left.t(), right, out=out[: n // 2, n // 2 :])
    out[n // 2 :, : n // 2] = out[: n // 2, n // 2 :].t()


LinearMap = DenseMap | ConvMap


def unit_axis(linear_map: LinearMap, z: Tensor) -> int:
    """The axis of the sums z on which a map has its units, counted from the last, -1: the one along which it spreads
    numbers per unit.
    """
    shape = linear_map.spread(z.new_empty(2)).shape
    assert shape.numel() == 2 and len(shape) < z.ndim, (
        f"two units spread to {tuple(shape)}, which leaves no axis of examples in sums {tuple(z.shape)}"
    )
    return shape.index(2) - len(shape)
