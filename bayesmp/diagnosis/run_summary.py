"""What training leaves behind, beside the beliefs, that a later look at the network can judge by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MOST_ROWS = 20_000  # of which moments are taken; more would cost a pass over large data
SAME = 1e-4  # relative difference of moments that rounding explains


@dataclass(frozen=True, eq=False)
class RunSummary:
    """The history of the last run, and moments of its data.

    Attributes:
        history: of the run.
        n_rows: number of training examples.
        x_mean, x_std: of each input, flat (d,), in float64.
        y_mean, y_std: of each target (o,), in float64; None for classes.
        heard: the noise, or variance of labels, that training has heard, where it ended before it could hear all of it.
    """

    history: Any
    n_rows: int
    x_mean: Tensor
    x_std: Tensor
    y_mean: Tensor | None
    y_std: Tensor | None
    heard: float | None = None

    @classmethod
    def of(cls, history: Any, x: Tensor, y: Tensor, *, heard: float | None = None) -> RunSummary:
        """From the training data (n, ...), on any device."""
        y_mean, y_std = moments(y) if y.is_floating_point() else (None, None)
        return cls(history, len(x), *moments(x), y_mean, y_std, heard)

    @property
    def loo_nll(self) -> list[float]:
        """The leave-one-out scores of the run."""
        return [score for score in self.history.loo_nll if not math.isnan(score)]

    @property
    def loo_error(self) -> float | None:
        """The last leave-one-out error: RMSE, or share of wrong labels."""
        return next((error for error in reversed(self.history.loo_error) if not math.isnan(error)), None)

    def is_about(self, x: Tensor, y: Tensor) -> bool:
        """Whether these are, as far as their moments tell, the training data themselves."""
        parts, own = [*moments(x)], [self.x_mean, self.x_std]
        if self.y_mean is not None and self.y_std is not None:
            parts, own = [*parts, *moments(y)], [*own, self.y_mean, self.y_std]
        found, known = torch.cat(parts), torch.cat(own)
        return len(x) == self.n_rows and bool(((found - known).abs() <= SAME * (1.0 + known.abs())).all())


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and std of each column of (n, ...), flat, in float64 on the CPU."""
    rows = values[:MOST_ROWS].flatten(1)
    std, mean = torch.std_mean(rows if rows.is_floating_point() else rows.float(), dim=0, correction=0)
    return mean.double().cpu(), std.double().cpu()
