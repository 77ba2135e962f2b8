"""Sums per unit over batch and positions in C++ loops (sums.cpp), in one pass; float32 on the CPU."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from bayesmp.kernels import compiled
from bayesmp.kernels.compiled import entry_of, is_one_number, pointers, share_out
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.linear import Residual, SumMoments, UnitSums
from bayesmp.messages.tilted import MIN_RHO


def residual_sums(
    bias_var: Tensor | None, m_z: SumMoments, m_back: Gaussian, *, axis: int
) -> tuple[Residual, UnitSums]:
    """messages.linear.residual and unit_sums for sums z of any shape, with the units on this axis."""
    rho, n = m_back.rho, m_back.rho.shape[axis]
    is_constant = is_one_number(m_z.input_var)
    parts = [m_z.mean, m_z.var, m_z.input_var, m_back.tau, rho]
    parts = [part if k == 2 and is_constant else _units_last(part, axis) for k, part in enumerate(parts)]
    parts.append(rho.new_zeros(n) if bias_var is None else bias_var.contiguous())
    answers = [torch.empty_like(parts[0]) for _ in range(3)]
    arrays = pointers(parts), pointers(answers)
    entry, sums = entry_of("residual_sums"), dict[int, Tensor]()

    def work(begin: int, end: int) -> None:
        sums[begin] = torch.zeros(3, n, dtype=torch.float64)
        entry(begin, end, n, is_constant, *arrays, sums[begin].data_ptr())

    share_out(rho.numel() // max(1, n), max(1, compiled.LEAST_WORK // max(1, n)), work)
    whole = sum((sums[k] for k in sorted(sums)[1:]), start=sums[0])  # in order, so that every run has the same
    return Residual(*answers), UnitSums(*whole.to(rho.dtype).unbind())


def squared_reach(m_out: Moments, change: Tensor) -> Tensor:
    """messages.reach.squared_reach."""
    parts = [m_out.mean, m_out.var, change]
    if not (parts[0].stride() == parts[1].stride() == parts[2].stride() and compiled.is_dense(change)):
        parts = [part.contiguous() for part in parts]
    entry, arrays, n = entry_of("spread_sums"), pointers(parts), change.numel()
    sums: dict[int, ctypes.Array[ctypes.c_double]] = {}

    def work(begin: int, end: int) -> None:
        sums[begin] = (ctypes.c_double * 4)()
        entry(begin, end, arrays, sums[begin])

    share_out(n, compiled.LEAST_WORK, work)
    mean, second, var, square = (sum(parts) / n for parts in zip(*(sums[k] for k in sorted(sums)), strict=True))
    spread = max(second - mean * mean, 0.0) + var
    return torch.tensor(square / (spread + torch.finfo(change.dtype).tiny), dtype=torch.float32)


def count_rejected(message: Gaussian) -> Tensor:
    """messages.tilted.count_rejected."""
    rho = message.rho if compiled.is_dense(message.rho) else message.rho.contiguous()
    return torch.tensor(entry_of("count_below")(rho.numel(), rho.data_ptr(), MIN_RHO))


def _units_last(z: Tensor, axis: int) -> Tensor:
    """With all units of a position side by side in memory; a copy where it is not."""
    return z.movedim(axis, -1).contiguous().movedim(-1, axis)
