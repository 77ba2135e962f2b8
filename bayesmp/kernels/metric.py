"""The inverse metric of a small layer in one C++ call instead of a dozen (metric.cpp); float32 on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from torch import Tensor

from bayesmp.kernels.compiled import entry_of, pointers

SMALL_SIDE = 32  # of a layer's matrix, bias included; larger ones are left to matrix products, as in metric.cpp


def fits(inverse: Tensor, blocks: Sequence[Tensor]) -> bool:
    """Whether the layer is small, and its blocks lie in memory as the loops read them."""
    return max(inverse.shape) <= SMALL_SIDE and all(block.is_contiguous() for block in blocks)


def solve_blocks(
    slope_vectors: Tensor,
    input_vectors: Tensor,
    inverse: Tensor,
    slopes: Sequence[Tensor],
    answers: Sequence[Tensor],
) -> bool:
    """schedules.metric.LayerMetric.solve_blocks; True says that the answers are there."""
    widths = (ctypes.c_int64 * len(slopes))(*[block.shape[1] for block in slopes])
    system = [part.contiguous() for part in (slope_vectors, input_vectors, inverse)]
    entry_of("solve_small")(*inverse.shape, len(slopes), widths, pointers([*system, *slopes]), pointers(answers))
    return True
