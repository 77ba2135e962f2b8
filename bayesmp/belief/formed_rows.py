"""Rows of slopes in shared weights, formed for a few examples at a time, and their products.

Where weights are shared over positions, a row J_x of slopes has as many numbers as there are weights, and products
along the anchors take most of the time of a prediction. On CUDA they go over tensor cores, in half precision (11 bits),
in a way that costs no accuracy where it counts. What counts is a small difference of two large products, J D^{-1} J^T
less what the data explain of it. So both must be products of the *same* row: it is rounded once, and sums are kept in
float32. That moves each slope by some 1e-4 of itself, at random, which is as good as another example next to this one.
The anchors must not move at all, since nearly parallel ones are combined with large weights; they come as a sum of two
halves, 22 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from bayesmp.layers.base import Gradient

ALIGNED = 8  # numbers in half precision that a tensor core takes at once


@dataclass(frozen=True)
class FormedRows:
    """J_x var^{1/2} for b examples: `values` (b, k, o i), or in half precision, to be multiplied with `size` (b,); then
    zeros stand behind the inputs, up to a multiple of 8.
    """

    values: Tensor
    size: Tensor | None
    n_inputs: int

    @classmethod
    def of(cls, gradient: Gradient, var: Tensor) -> FormedRows:
        """Under a variance per input (i,), which is put on these because it costs least, or per weight (o, i)."""
        n_inputs = gradient.inputs.shape[2]
        if var.ndim == 2:
            return cls(gradient.flat().transpose(0, 1) * var.sqrt().flatten(), None, n_inputs)
        if not has_wide_sums(gradient.slopes.device) or gradient.slopes.dtype != torch.float32:
            scaled = Gradient(gradient.inputs * var.sqrt(), gradient.slopes)
            return cls(scaled.flat().transpose(0, 1), None, n_inputs)
        inputs, input_size = _halved(gradient.inputs, var.sqrt(), n_behind=_missing(n_inputs))
        slopes, slope_size = _halved(gradient.slopes.permute(1, 0, 3, 2), room=inputs.shape[1] ** 0.5)  # (b, k, o, p)
        rows = slopes.flatten(1, 2) @ inputs  # (b, k o, i and zeros); sums over positions stay far below 65,504
        return cls(rows.view(*slopes.shape[:2], -1), slope_size * input_size, n_inputs)

    def along(self, anchors: Tensor) -> Tensor:
        """(b, k, m): products with the rows (m, o i) of anchors."""
        if self.size is None:
            return self.values @ anchors.T
        scale = anchors.abs().amax().clamp_min(torch.finfo(anchors.dtype).tiny)
        whole = functional.pad((anchors / scale).unflatten(1, (-1, self.n_inputs)), (0, _missing(self.n_inputs)))
        whole = whole.flatten(1)
        high = whole.half()
        low = ((whole - high) * 2.0**11).half()  # what rounding took, as large as the rest
        flat = self.values.flatten(0, 1)
        found = torch.mm(flat, low.T, out_dtype=torch.float32).mul_(2.0**-11)
        found += torch.mm(flat, high.T, out_dtype=torch.float32)
        return found.view(*self.values.shape[:2], -1).mul_((self.size * scale)[:, None, None])

    def own(self) -> Tensor:
        """(b, k, k): the rows' products among themselves."""
        if self.size is None:
            return self.values @ self.values.transpose(1, 2)
        found = torch.bmm(self.values, self.values.transpose(1, 2), out_dtype=torch.float32)
        return found.mul_(self.size.square()[:, None, None])


def _halved(
    rows: Tensor, factor: Tensor | None = None, *, room: float = 1.0, n_behind: int = 0
) -> tuple[Tensor, Tensor]:
    """Rows (b, ..., i), times a factor (i,), in half precision, none above 1 / room, with zeros behind them if asked;
    and what they were divided by, (b,).
    """
    factor = rows.new_ones(1) if factor is None else factor
    largest = torch.linalg.vector_norm(rows, math.inf, dim=tuple(range(1, rows.ndim)))
    size = (room * factor.amax() * largest).clamp_min(1e-30)
    found = torch.empty(*rows.shape[:-1], rows.shape[-1] + n_behind, dtype=torch.half, device=rows.device)
    torch.mul(rows, factor / size.view(-1, *[1] * (rows.ndim - 1)), out=found[..., : rows.shape[-1]])
    found[..., rows.shape[-1] :].zero_()
    return found, size


def _missing(n: int) -> int:
    return -n % ALIGNED


@cache
def has_wide_sums(device: torch.device) -> bool:
    """Whether products of matrices in half precision can be summed up and kept in float32 there."""
    if device.type != "cuda":
        return False
    try:
        small = torch.ones(1, 8, 8, dtype=torch.half, device=device)
        torch.bmm(small, small, out_dtype=torch.float32)
        torch.mm(small[0], small[0], out_dtype=torch.float32)
    except (TypeError, RuntimeError):
        return False
    return True
