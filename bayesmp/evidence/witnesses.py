r"""Which rows tell the curvature, where there are more of them than it takes, and for how many each of them stands.

A row is drawn with a probability that grows with its leverage in ridge regression on the inputs,

    l_n = a_n^T (A^T A / n + I)^{-1} a_n,   p_n = min(1, c (1 / n + l_n / sum l) / 2),

and stands for 1 / p_n rows. So a row that stands alone, with a rare category for one, is there for sure.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MOST_COLUMNS = 256  # of random mixtures that stand for the columns, where there are more


@dataclass(frozen=True)
class Witnesses:
    """Some rows, in rising order, (m,); and for how many each of them stands, (m,)."""

    rows: Tensor
    weight: Tensor

    def within(self, rows: slice, n: int) -> tuple[Tensor, Tensor]:
        """Those of a part of n rows, counted from its start."""
        start, stop, _ = rows.indices(n)
        here = (self.rows >= start) & (self.rows < stop)
        return self.rows[here] - start, self.weight[here]


def draw_witnesses(x: Tensor, n: int) -> Witnesses:
    """About n of the rows of x (N, ...), not more; always the same for the same rows."""
    generator = torch.Generator().manual_seed(0)
    share = 0.5 / len(x) + 0.5 * _leverages(x, generator)
    probability = _scaled(share, n)
    # systematic: one uniform draw decides all, and the count is right to within one
    order = torch.randperm(len(x), generator=generator).to(x.device)
    start = torch.rand((), generator=generator, dtype=torch.float64)
    steps = torch.floor(probability[order].cumsum(0) - start.to(x.device))
    taken = order[steps > torch.cat([steps.new_full((1,), -1.0), steps[:-1]])][:n]
    rows = taken.sort().values
    return Witnesses(rows, 1.0 / probability[rows])


def _leverages(x: Tensor, generator: torch.Generator) -> Tensor:
    """l_n / sum l, (N,) in float64."""
    flat = x.flatten(1).double()
    if flat.shape[1] > MOST_COLUMNS:
        mix = torch.randn(flat.shape[1], MOST_COLUMNS, generator=generator, dtype=torch.float64).to(flat)
        flat = flat @ (mix / MOST_COLUMNS**0.5)
    second = flat.T @ flat / len(flat)
    second.diagonal().add_(1e-3 * second.diagonal().mean() + torch.finfo(torch.float64).tiny)
    found = (flat * torch.linalg.solve(second, flat.T).T).sum(1).clamp_min(0.0)
    return found / found.sum().clamp_min(torch.finfo(torch.float64).tiny)


def _scaled(share: Tensor, n: int) -> Tensor:
    """min(1, c share) with the c that makes them add up to n."""
    ordered = share.sort(descending=True).values
    left = ordered.flip(0).cumsum(0).flip(0)  # what the k largest leave
    k = torch.arange(len(share), device=share.device)
    factor = (n - k) / left  # if the k largest are there for sure
    sure = int((factor * ordered >= 1.0).sum().clamp_max(n - 1))
    return (share * factor[sure]).clamp_max(1.0)
