"""A trained model and what its training cost: the one form in which all methods are compared."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from benchmarks.evaluation import mixture

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
        epistemic: what the method does not know about each input, (n,); None where it does not say.
        both: probabilities and `epistemic` from one pass, where that is cheaper than one after the other.
        variance: of the outputs under what the weights may be, added up, (n,); None where a method does not say.
        repeats: calls when prediction is timed; fewer where one is dear.
    """

    name: str
    predict: Callable[[Tensor], Tensor]
    seconds: float
    epoch_seconds: Sequence[float]
    peak_bytes: int | None
    site_bytes: int
    history: Sequence[dict[str, Any]]
    epistemic: Callable[[Tensor], Tensor | None] | None = None
    both: Callable[[Tensor], tuple[Tensor, Tensor | None]] | None = None
    variance: Callable[[Tensor], Tensor] | None = None
    repeats: int = 3

    def predict_both(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Probabilities, and the epistemic uncertainty or None."""
        if self.both is not None:
            return self.both(x)
        return self.predict(x), None if self.epistemic is None else self.epistemic(x)

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


def ensemble(name: str, members: Sequence[Run]) -> Run:
    """The members' probabilities averaged; it costs what they cost together, one trained after the other."""

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return mixture(member.predict_both(x) for member in members)

    largest = max(members, key=lambda run: run.peak_bytes or 0)
    return Run(
        name=name,
        predict=lambda x: both(x)[0],
        seconds=sum(run.seconds for run in members),
        epoch_seconds=[sum(parts) for parts in zip(*(run.epoch_seconds for run in members), strict=True)],
        peak_bytes=largest.peak_bytes,
        site_bytes=largest.site_bytes,
        history=[{"member": k, **record} for k, run in enumerate(members) for record in run.history],
        epistemic=lambda x: both(x)[1],
        both=both,
        repeats=min(run.repeats for run in members),
    )
