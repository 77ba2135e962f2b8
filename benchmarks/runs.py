"""A trained model and what its training cost: the one form in which all methods are compared."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

GIGABYTE = 1e9


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        name: of the method.
        predict: probabilities (n, c) for inputs (n, ...).
        seconds: of training, from untrained weights to trained ones, start-up and compilation included.
        epoch_seconds: of each epoch.
        peak_bytes: see timing.Cost.
        site_bytes: what of it are the sites, where they lie on the training device.
        history: one mapping per epoch.
    """

    name: str
    predict: Callable[[Tensor], Tensor]
    seconds: float
    epoch_seconds: Sequence[float]
    peak_bytes: int | None
    site_bytes: int
    history: Sequence[dict[str, Any]]

    def cost(self, reference: Run | None = None) -> dict[str, float | None]:
        """Columns of a table: time, time per settled epoch, their ratios to a reference, memory in GB."""
        settled = statistics.median(self.epoch_seconds)
        found: dict[str, float | None] = {"seconds": self.seconds, "s/epoch": settled}
        if reference is not None:
            found["time ratio"] = self.seconds / reference.seconds
            found["epoch ratio"] = settled / statistics.median(reference.epoch_seconds)
        peak = self.peak_bytes
        found["peak GB"] = None if peak is None else peak / GIGABYTE
        found["beside sites GB"] = None if peak is None else (peak - self.site_bytes) / GIGABYTE
        return found
