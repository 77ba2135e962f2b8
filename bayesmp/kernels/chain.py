"""A visit to a chain of dense layers in two C++ calls instead of hundreds of operations (chain.cpp); float32, CPU.

Products of matrices are made by the BLAS that torch carries, found by name in its libraries and tried once. Where it is
not found, or numbers are wrong, there are no such visits, and nothing is said.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesmp.kernels.compiled import entry_of

MAX_LAYERS = 16  # as in chain.cpp
PRODUCT = "sgemm_"
LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib")

_NUMBER, _REAL, _POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


class Dense(ctypes.Structure):
    """One layer, the activation behind it, and its metric (chain.cpp)."""

    _fields_ = [
        *((name, _NUMBER) for name in ("i", "o", "start", "has_bias", "knows_inputs")),
        *((name, _REAL) for name in ("leak", "share", "prior_rest")),
        *((name, _POINTER) for name in ("own_pull", "inputs", "slopes", "rest")),
        *((name, _POINTER) for name in ("input_vectors", "slope_vectors", "inverse")),
    ]


class Visit(ctypes.Structure):
    """All that a visit reads and changes (chain.cpp). It holds addresses only: tensors must live as long as it does."""

    _fields_ = [
        *((name, _NUMBER) for name in ("n_layers", "n", "n_weights", "listens", "n_sites")),
        *((name, _NUMBER) for name in ("moment_rows", "n_data")),
        *((name, _REAL) for name in ("metric_share", "factor", "stretch", "max_reach", "step_length")),
        ("product", _POINTER),
        ("layers", ctypes.POINTER(Dense)),
        *((name, _POINTER) for name in ("x", "tau", "rho", "slope", "own_rho", "origin", "shift", "offset")),
        *((name, _POINTER) for name in ("prior_rho", "signs", "head_tau", "head_rho")),
        *((name, _POINTER) for name in ("outputs", "room", "answers")),
    ]


def room(visit: Visit) -> int:
    """How many numbers of float32 a visit needs to work in."""
    return int(entry_of("chain_room")(ctypes.byref(visit)))


def out(visit: Visit) -> None:
    """The sweep out: outputs are filled."""
    entry_of("chain_out")(ctypes.byref(visit))


def back(visit: Visit) -> None:
    """All that follows the head's message: sites, metric and means are changed in place."""
    entry_of("chain_back")(ctypes.byref(visit))


def address(tensor: Tensor) -> int:
    """Where a tensor lies, which must be without gaps."""
    assert tensor.is_contiguous()
    return tensor.data_ptr()


@cache
def product() -> int | None:
    """The address of BLAS's product of matrices in float32, or None."""
    folder = Path(torch.__file__).parent / "lib"
    for path in (folder / name for name in LIBRARIES):
        try:
            entry = getattr(ctypes.CDLL(str(path)), PRODUCT)
        except (OSError, AttributeError):
            continue
        if _is_right(entry):
            return ctypes.cast(entry, ctypes.c_void_p).value
    return None


def _is_right(entry: Any) -> bool:
    """Whether it multiplies, on a sample. Sizes are of 64 bits, of which a BLAS for 32 reads the lower half."""
    left, right = (torch.arange(n, dtype=torch.float32).view(-1, k) for n, k in ((6, 3), (12, 4)))
    found = torch.ones(2, 4, dtype=torch.float32)
    sizes = [ctypes.byref(ctypes.c_int64(size)) for size in (4, 2, 3, 4, 3, 4)]  # by columns: found^T = right^T left^T
    one, m, n, k, *widths = ctypes.byref(ctypes.c_float(1.0)), *sizes
    parts = [ctypes.c_void_p(part.data_ptr()) for part in (right, left, found)]
    entry.restype = None
    entry(b"N", b"N", m, n, k, one, parts[0], widths[0], parts[1], widths[1], one, parts[2], widths[2])
    return torch.equal(found, left @ right + 1.0)
