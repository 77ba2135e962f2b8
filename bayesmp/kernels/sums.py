"""Sums per unit over batch and positions in C++ loops (sums.cpp), in one pass; float32 on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesmp.equations.linear import Residual, SumMoments, UnitSums
from bayesmp.equations.tilted import MIN_RHO
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.kernels import compiled
from bayesmp.kernels.compiled import entry_of, is_one_number, pointers, share_out


def residual_sums(bias_var: Tensor | None, m_z: SumMoments, m_back: Gaussian) -> tuple[Residual, UnitSums]:
    """equations.linear.residual and unit_sums for arrays of units (b, o) or (b, o, h, w)."""
    rho, n = m_back.rho, m_back.rho.shape[1]
    is_constant = is_one_number(m_z.input_var)
    parts = [m_z.mean, m_z.var, m_z.input_var, m_back.tau, rho]
    parts = [part if k == 2 and is_constant else _units_last(part) for k, part in enumerate(parts)]
    parts.append(rho.new_zeros(n) if bias_var is None else bias_var.contiguous())
    answers = [torch.empty_like(parts[0]) for _ in range(3)]
    arrays = pointers(parts), pointers(answers)
    entry = entry_of("residual_sums")

    def work(begin: int, end: int, found: Tensor) -> None:
        entry(begin, end, n, is_constant, *arrays, found.data_ptr())

    least = max(1, compiled.LEAST_WORK // max(1, n))
    whole = _sum_of_parts(rho.numel() // max(1, n), least, (3, n), work)
    return Residual(*answers), UnitSums(*whole.to(rho.dtype))


def squared_reach(m_out: Moments, change: Tensor) -> Tensor:
    """equations.reach.squared_reach."""
    parts = [m_out.mean, m_out.var, change]
    if not (parts[0].stride() == parts[1].stride() == parts[2].stride() and compiled.is_dense(change)):
        parts = [part.contiguous() for part in parts]
    entry, arrays, n = entry_of("spread_sums"), pointers(parts), change.numel()

    def work(begin: int, end: int, found: Tensor) -> None:
        entry(begin, end, arrays, found.data_ptr())

    mean, second, var, square = (_sum_of_parts(n, compiled.LEAST_WORK, (4,), work) / n).tolist()
    spread = max(second - mean * mean, 0.0) + var
    return change.new_tensor(square / (spread + torch.finfo(change.dtype).tiny))


def count_rejected(message: Gaussian) -> Tensor:
    """equations.tilted.count_rejected."""
    rho = message.rho if compiled.is_dense(message.rho) else message.rho.contiguous()
    return torch.tensor(entry_of("count_below")(rho.numel(), rho.data_ptr(), MIN_RHO))


def _sum_of_parts(n: int, least: int, shape: tuple[int, ...], work: Callable[[int, int, Tensor], None]) -> Tensor:
    """What work(begin, end, found) adds to `found`, in double precision, over 0 to n, shared out among threads; summed
    in order, so that it is the same in every run.
    """
    parts: dict[int, Tensor] = {}

    def part(begin: int, end: int) -> None:
        parts[begin] = torch.zeros(shape, dtype=torch.float64)
        work(begin, end, parts[begin])

    share_out(n, least, part)
    return sum((parts[begin] for begin in sorted(parts)[1:]), start=parts[0])


def _units_last(z: Tensor) -> Tensor:
    """With all units of a position side by side in memory; a copy where it is not."""
    return z.contiguous(memory_format=torch.channels_last) if z.ndim == 4 else z.contiguous()
