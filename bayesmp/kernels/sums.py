"""Sums per unit over batch and positions in C++ loops (sums.cpp), with no array on the way; float32 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp.kernels.compiled import entry_of, is_one_number, pointers


def bias_sums(bias_var: Tensor, var: Tensor, rho: Tensor, to_weight: Tensor) -> tuple[Tensor, Tensor]:
    """equations.linear.bias_sums for arrays of units (b, o) or (b, o, h, w)."""
    n, found = rho.shape[1], torch.zeros(2, rho.shape[1], dtype=torch.float64)
    parts = [_units_last(to_weight), _units_last(var), _units_last(rho), bias_var.contiguous()]
    entry_of("bias_sums")(rho.numel() // max(1, n), n, pointers(parts), found.data_ptr())
    slope, precision = found.to(rho.dtype)
    return slope, precision


def curvature_sums(input_var: Tensor, rho: Tensor) -> Tensor:
    """Sums of equations.linear.weight_curvature for arrays of units (b, o) or (b, o, h, w)."""
    n, found = rho.shape[1], torch.zeros(rho.shape[1], dtype=torch.float64)
    is_constant = is_one_number(input_var)
    parts = [input_var if is_constant else _units_last(input_var), _units_last(rho)]
    entry_of("curvature_sums")(rho.numel() // max(1, n), n, is_constant, pointers(parts), found.data_ptr())
    return found.to(rho.dtype)


def _units_last(z: Tensor) -> Tensor:
    """With all units of a position side by side in memory; a copy where it is not."""
    return z.contiguous(memory_format=torch.channels_last) if z.ndim == 4 else z.contiguous()
