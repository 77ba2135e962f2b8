"""Sums over disjoint 2 x 2 windows in C++ loops (pools.cpp), with no copies of the windows; float32 on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesmp.kernels.compiled import LEAST_WORK, channels_come_last, entry_of, layout_of, pointers, share_out


class Windows(ctypes.Structure):
    """Where the 2 x 2 windows of an image lie (pools.cpp)."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("n_outer", "n_rows", "n_columns", "n_inner"),
            *("outer", "row", "column", "next_x", "next_y", "size"),
        )
    ]


def max_pool(mean: Tensor, var: Tensor, *, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """Shares (b, c, 4, oh, ow) of the entries of 2 x 2 windows, and mean and variance of the sums (b, c, oh, ow)."""
    images, windows = _images(mean, var)
    share, (out_mean, out_var) = _new_share(images[0]), (_new_pooled(images[0]) for _ in range(2))
    _pool("max_pool", windows, images, [share, out_mean, out_var], noise)
    return share.movedim(0, 2), out_mean, out_var


def pool_to_input(
    mean: Tensor, var: Tensor, share: Tensor, sum_mean: Tensor, sum_var: Tensor, tau: Tensor, rho: Tensor
) -> tuple[Tensor, Tensor]:
    """Messages to the images (b, c, h, w); to what no window holds, one that says nothing."""
    images, windows = _images(mean, var)
    pooled = [part.contiguous(memory_format=layout_of(images[0])) for part in (sum_mean, sum_var, tau, rho)]
    out_tau, out_rho = (_new_image(images[0]) for _ in range(2))
    _pool("pool_to_input", windows, [*images, _shares(share, images[0]), *pooled], [out_tau, out_rho])
    return out_tau, out_rho


def pool_sum(image: Tensor, share: Tensor) -> Tensor:
    """(b, c, h, w) -> (b, c, oh, ow): the sum of share * entry over each window."""
    images, windows = _images(image)
    out = _new_pooled(images[0])
    _pool("pool_sum", windows, [*images, _shares(share, images[0])], [out])
    return out


def pool_spread(slope: Tensor, share: Tensor, like: Tensor) -> Tensor:
    """(k, b, c, oh, ow) -> (k, b, c, h, w): the adjoint of `pool_sum`, for images of the size and layout of `like`."""
    images, windows = _images(like)
    order, shares = layout_of(images[0]), _shares(share, images[0])
    found = _new_image(images[0], len(slope)).view(len(slope), *like.shape)
    for one, out in zip(slope, found, strict=True):
        _pool("pool_spread", windows, [one.contiguous(memory_format=order), shares], [out])
    return found


def _images(*images: Tensor) -> tuple[list[Tensor], Windows]:
    """The images in one order of memory, and where their windows are in it."""
    layout = layout_of(images[0])
    found = [part.contiguous(memory_format=layout) for part in images]
    b, c, h, w = found[0].shape
    oh, ow = h // 2, w // 2
    if layout is torch.channels_last:
        steps = (h * w * c, 2 * w * c, 2 * c, c, w * c)
        return found, Windows(b, oh, ow, c, *steps, b * c * oh * ow)
    return found, Windows(b * c, oh, 1, ow, h * w, 2 * w, 0, 1, w, b * c * oh * ow)


def _new_share(image: Tensor) -> Tensor:
    """(4, b, c, oh, ow), each of the four laid out as the pooled image."""
    b, c, h, w = image.shape
    if channels_come_last(image):
        return image.new_empty(4, b, h // 2, w // 2, c).permute(0, 1, 4, 2, 3)
    return image.new_empty(4, b, c, h // 2, w // 2)


def _shares(share: Tensor, image: Tensor) -> Tensor:
    """(b, c, 4, oh, ow) as `_new_share` lays it out; a copy unless it was made there for such an image."""
    share, like = share.movedim(2, 0), _new_share(image)
    return share if share.stride() == like.stride() else like.copy_(share)


def _new_pooled(image: Tensor) -> Tensor:
    b, c, h, w = image.shape
    return torch.empty((b, c, h // 2, w // 2), dtype=image.dtype, memory_format=layout_of(image))


def _new_image(image: Tensor, k: int = 1) -> Tensor:
    """k times as many images of this layout, (k b, c, h, w); 0 where no window reaches."""
    b, c, h, w = image.shape
    found = torch.empty((k * b, c, h, w), dtype=image.dtype, memory_format=layout_of(image))
    return found if h % 2 == 0 and w % 2 == 0 else found.zero_()


def _pool(
    name: str, windows: Windows, inputs: Sequence[Tensor], outputs: Sequence[Tensor], option: float = 0.0
) -> None:
    entry, where, tensors = entry_of(name), ctypes.byref(windows), (pointers(inputs), pointers(outputs))
    per_run = max(1, windows.size // max(1, windows.n_outer))
    least = max(1, LEAST_WORK // 4 // per_run)
    share_out(windows.n_outer, least, lambda begin, end: entry(where, begin, end, *tensors, option))
