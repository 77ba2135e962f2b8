"""Sliding windows over images: gathering, and the adjoint that sums back."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

Pair = tuple[int, int]


def gather_windows(x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
    """(b, c, h, w) -> (b, c, n, oh, ow), n = entries of a window, row by row."""
    b, c, h, w = x.shape
    oh, ow = (h - kernel[0]) // stride[0] + 1, (w - kernel[1]) // stride[1] + 1
    if kernel == stride:  # disjoint windows: a view of the cropped image, which element-wise kernels can fuse with
        x = x[:, :, : oh * kernel[0], : ow * kernel[1]].reshape(b, c, oh, kernel[0], ow, kernel[1])
        return x.permute(0, 1, 3, 5, 2, 4).reshape(b, c, kernel[0] * kernel[1], oh, ow)
    return functional.unfold(x, kernel, stride=stride).view(b, c, kernel[0] * kernel[1], oh, ow)


def scatter_windows(per_window: Tensor, size: Pair, kernel: Pair, stride: Pair) -> Tensor:
    """Adjoint of gather_windows: (b, c, n, oh, ow) -> (b, c, h, w), summed where windows overlap, 0 where none
    reaches.
    """
    b, c, n, oh, ow = per_window.shape
    if kernel == stride:
        x = per_window.reshape(b, c, kernel[0], kernel[1], oh, ow).permute(0, 1, 4, 2, 5, 3)
        x = x.reshape(b, c, oh * kernel[0], ow * kernel[1])
        return functional.pad(x, (0, size[1] - x.shape[3], 0, size[0] - x.shape[2]))
    return functional.fold(per_window.reshape(b, c * n, oh * ow), size, kernel, stride=stride)
