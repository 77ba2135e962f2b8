"""What training leaves behind, beside the beliefs, that a later look at the network can judge by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MOST_ROWS = 20_000  # of which moments are taken; more would cost a pass over large data
SAME = 1e-4  # relative difference of moments that rounding explains


@dataclass(frozen=True, eq=False)
class Told:
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
    def of(cls, history: Any, x: Tensor, y: Tensor, *, heard: float | None = None) -> Told:
        """From the training data (n, ...), on any device."""
        x_mean, x_std = moments(x)
        y_mean, y_std = moments(y) if y.is_floating_point() else (None, None)
        return cls(history, len(x), x_mean, x_std, y_mean, y_std, heard)

    def is_about(self, x: Tensor, y: Tensor) -> bool:
        """Whether these are, as far as their moments tell, the training data themselves."""
        if len(x) != self.n_rows:
            return False
        pairs = [(moments(x), (self.x_mean, self.x_std))]
        if self.y_mean is not None and self.y_std is not None:
            pairs.append((moments(y), (self.y_mean, self.y_std)))
        return all(
            len(given) == len(known) and bool(((given - known).abs() <= SAME * (1.0 + known.abs())).all())
            for found, told in pairs
            for given, known in zip(found, told, strict=True)
        )


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and std of each column of (n, ...), flat, in float64 on the CPU."""
    rows = values[:MOST_ROWS].flatten(1)
    std, mean = torch.std_mean(rows if rows.is_floating_point() else rows.float(), dim=0, correction=0)
    return mean.double().cpu(), std.double().cpu()
