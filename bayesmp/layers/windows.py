"""Sliding windows over images: sizes, gathering, and the adjoint that sums back."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

Pair = tuple[int, int]


def pair(value: int | Pair, name: str, *, least: int) -> Pair:
    """An int or a pair of ints as a pair, or a ValueError."""
    both = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(both) != 2 or not all(isinstance(part, int) and part >= least for part in both):
        raise ValueError(f"{name} must be an int >= {least} or a pair of them, got {value!r}")
    return (both[0], both[1])


def short(value: Pair) -> str:
    """A pair as a user would write it: one number if both are equal."""
    return f"{value[0]}" if value[0] == value[1] else f"{value}"


def window_count(size: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair, who: str) -> Pair:
    """How many windows fit in each direction, or a ValueError if none does."""
    counts = tuple((s + 2 * p - k) // d + 1 for s, k, d, p in zip(size, kernel, stride, padding, strict=True))
    if min(counts) < 1:
        raise ValueError(f"{who}: window {kernel} does not fit an image of {size} with padding {padding}")
    return (counts[0], counts[1])


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
