"""Products on the way back through convolutions in C++ loops (convs.cpp), without patches; float32 on the CPU.

torch's own products with all positions, for the weights of a convolution, take half as long again and have ten times
the rounding; those for its inputs take a tenth longer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from bayesmp.kernels.compiled import entry_of, share_out
from bayesmp.messages.linear_maps import ConvMap

IN_STEP = 16  # numbers that the loops take at a time, of a row of a patch
LEAST_PRODUCTS = 2**22  # multiplications for each thread


class Window(ctypes.Structure):
    """Sizes of input, output and window (convs.cpp)."""

    _fields_ = [(name, ctypes.c_int64) for name in ("h", "w", "c", "oh", "ow", "o", "kh", "kw")]


def fits(conv: ConvMap, n_channels: int) -> bool:
    """Whether there are loops for this convolution and so many channels of its input."""
    return conv.stride == (1, 1) and conv.padding == (0, 0) and conv.kernel[1] * n_channels % IN_STEP == 0


def in_step(conv: ConvMap, n_channels: int) -> bool:
    """The same where the channels of single pixels are taken."""
    return n_channels % IN_STEP == 0 and fits(conv, n_channels)


def op_weight(conv: ConvMap, x: Tensor, z: Tensor) -> Tensor:
    """messages.linear_maps.ConvMap.op_weight: (b, c, h, w), (b, o, oh, ow) -> (o, c, kh, kw)."""
    x, z = (part.contiguous(memory_format=torch.channels_last) for part in (x, z))
    o, c, (kh, kw) = z.shape[1], x.shape[1], conv.kernel
    window = Window(*conv.size_in, c, *conv.size_out, o, kh, kw)
    entry, where = entry_of("conv_to_weight"), ctypes.byref(window)

    def work(begin: int, end: int, out: Tensor) -> None:
        entry(where, begin, end, z.data_ptr(), x.data_ptr(), out.data_ptr())

    return _summed(len(x), conv.size_out, o * kh * kw * c, (o, kh, kw, c), work).permute(0, 3, 1, 2)


def op_input(conv: ConvMap, z: Tensor, w: Tensor) -> Tensor:
    """messages.linear_maps.ConvMap.op_input: (b, o, oh, ow), (o, c, kh, kw) -> (b, c, h, w)."""
    z, weight = z.contiguous(memory_format=torch.channels_last), w.permute(2, 3, 0, 1).contiguous()
    (height, width), (kh, kw, o, c) = conv.size_out, weight.shape
    out = torch.empty((len(z), c, *conv.size_in), dtype=torch.float32, memory_format=torch.channels_last)
    window = Window(*conv.size_in, c, height, width, o, kh, kw)
    entry, where = entry_of("conv_to_input"), ctypes.byref(window)

    def work(begin: int, end: int) -> None:
        room = torch.zeros(height, width + 2 * (kw - 1), o, dtype=torch.float32)
        entry(where, begin, end, z.data_ptr(), weight.data_ptr(), room.data_ptr(), out.data_ptr())

    share_out(len(z), max(1, LEAST_PRODUCTS // max(1, height * width * w.numel())), work)
    return out


def has_products(conv: ConvMap, n_channels: int) -> bool:
    """Whether there are loops for `patch_products`, too: not for images of hardly more than a patch."""
    is_wide = conv.size_out[0] >= conv.kernel[0] and conv.size_out[1] >= conv.kernel[1]
    return is_wide and in_step(conv, n_channels)


def patch_products(conv: ConvMap, x: Tensor) -> Tensor:
    """messages.linear_maps.ConvMap.patch_products: (b, c, h, w) -> (kh kw c, kh kw c)."""
    x = x.contiguous(memory_format=torch.channels_last)
    n_images, c, (kh, kw) = len(x), x.shape[1], conv.kernel
    window = Window(*conv.size_in, c, *conv.size_out, 0, kh, kw)
    entry, where = entry_of("patch_products"), ctypes.byref(window)
    found = torch.empty(kh * kw * c, kh * kw * c, dtype=torch.float32)

    def work(begin: int, end: int) -> None:
        room = torch.empty(2 * kh - 1, 2 * kw - 1, c, c, dtype=torch.float32)
        entry(where, begin, end, n_images, x.data_ptr(), room.data_ptr(), found.data_ptr())

    n_shifts = (kh - 1) * (2 * kw - 1) + kw  # of one half: the other is the same turned round
    share_out(n_shifts, max(1, LEAST_PRODUCTS // max(1, x.numel() * c)), work)
    return found


def _summed(
    n_images: int,
    positions: tuple[int, int],
    n_products: int,
    shape: tuple[int, ...],
    work: Callable[[int, int, Tensor], None],
) -> Tensor:
    """What threads have added up, each over some of the images; so many products at each position."""
    sums: dict[int, Tensor] = {}

    def part(begin: int, end: int) -> None:
        sums[begin] = torch.zeros(shape, dtype=torch.float32)
        work(begin, end, sums[begin])

    share_out(n_images, max(1, LEAST_PRODUCTS // max(1, positions[0] * positions[1] * n_products)), part)
    first, *others = (sums[k] for k in sorted(sums))  # in order, so that every run has the same
    for other in others:
        first += other
    return first
