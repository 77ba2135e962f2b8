"""Sums per unit over batch and positions in C++ loops (sums.cpp), with no array on the way; float32 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp.kernels.compiled import channels_come_last, entry_of, is_one_number, pointers


def units_come_last(z: Tensor) -> bool:
    """Whether an array of units, (b, o) or (b, o, h, w), lies in memory with all units of a position side by side."""
    return z.is_contiguous() if z.ndim == 2 else channels_come_last(z)


def bias_sums(bias_var: Tensor, var: Tensor, rho: Tensor, to_weight: Tensor) -> tuple[Tensor, Tensor]:
    """equations.linear.bias_sums for arrays in which units come last."""
    n, found = rho.shape[1], torch.zeros(2, rho.shape[1], dtype=torch.float64)
    parts = [part if part.stride() == rho.stride() else _like(part, rho) for part in (to_weight, var, rho)]
    bias_var = bias_var.contiguous()
    entry_of("bias_sums")(rho.numel() // max(1, n), n, pointers([*parts, bias_var]), found.data_ptr())
    slope, precision = found.to(rho.dtype)
    return slope, precision


def curvature_sums(input_var: Tensor, rho: Tensor) -> Tensor:
    """Sums of equations.linear.weight_curvature for arrays in which units come last."""
    n, found = rho.shape[1], torch.zeros(rho.shape[1], dtype=torch.float64)
    is_constant = is_one_number(input_var)
    if not is_constant and input_var.stride() != rho.stride():
        input_var = _like(input_var, rho)
    parts = pointers([input_var, rho])
    entry_of("curvature_sums")(rho.numel() // max(1, n), n, is_constant, parts, found.data_ptr())
    return found.to(rho.dtype)


def _like(part: Tensor, other: Tensor) -> Tensor:
    """A copy, laid out as the other."""
    return torch.empty_like(other).copy_(part)
