"""What a training run tells about itself, one row per epoch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from bayesmp.basics.typed import Count, Measured, OneOf, Positive
from bayesmp.training.schedules.base import VisitInfo


@dataclass(frozen=True)
class EpochRecord:
    """One epoch: how far it went, what it rejected, how well the batches were predicted before each visit.

    Whether training has come to rest is said by `history.stopped` and by the bar, not by any of these alone.

    Attributes:
        epoch: counted from 1.
        steps: mean share of the proposed change that was taken, per layer with weights; near 1 is calm.
        n_rejected: messages of which only the slope was used, because they had no positive precision.
        rejected_share: of all messages on the network's edges; .05 to .3 are usual, and no sign of anything wrong.
        max_change: largest change of a weight's mean in one visit, in posterior std. It jumps now and then in healthy
            runs; `loo["moved"]`, over all weights, tells more.
        metrics: means over the training data, each batch predicted just before its visit.
        seconds: with the refresh of the belief, if there was one.
        refresh_seconds: those of the refresh.
        loo: where the belief was refreshed: leave-one-out "nll", and "rmse" or "error"; "clipped", the share of
            examples with a leverage that was cut; "moved", how far means went since the refresh before (root mean
            square, posterior std).
        objective: where the epoch's step began, if training has one (evidence/): the negative log evidence, in nats.
        is_taken_back: the epoch had diverged, or was worse than an earlier one: the run went back to the state that it
            had kept.
    """

    epoch: Positive
    steps: tuple[Measured, ...]
    n_rejected: Count
    rejected_share: Measured
    max_change: Measured
    metrics: dict[str, Measured]
    seconds: float
    loo: dict[str, Measured] = field(default_factory=dict)
    objective: Measured | None = None
    is_taken_back: bool = False
    refresh_seconds: float = 0.0


@dataclass(frozen=True)
class Change:
    """A change of the data of a run; or the run has started again with a narrower prior."""

    epoch: Count  # after which it was made; 0: before the first
    what: Annotated[str, OneOf(("added", "removed", "replaced", "merged", "narrowed"))]
    n_changed: Count  # examples that came, went or have new values
    n_examples: Count  # how many there were then


@dataclass(repr=False)
class History:
    """All epochs of a run; iterates over its records, and `column(name)` gives one quantity over the epochs."""

    records: list[EpochRecord] = field(default_factory=list)
    stopped: str = ""  # why the last run ended
    changes: list[Change] = field(default_factory=list)  # of the data; scores before and after are of other examples

    @property
    def loo_nll(self) -> list[float]:
        """Leave-one-out NLL in nats after every epoch: validation without validation data. NaN where the belief was not
        refreshed (it is after epochs 1, 2, 3, 4, 5, 6, 8, 10, 13, ... if visits pay for it, and at the end of a run).
        """
        return [record.loo.get("nll", math.nan) for record in self.records]

    @property
    def loo_error(self) -> list[float]:
        """Leave-one-out RMSE, or share of wrong classes, after every epoch; NaN as in `loo_nll`."""
        return [record.loo.get("rmse", record.loo.get("error", math.nan)) for record in self.records]

    @property
    def changed_at(self) -> int:
        """The epoch after which the data were changed last; 0 if they never were."""
        return self.changes[-1].epoch if self.changes else 0

    def __repr__(self) -> str:
        if not self.records:
            return "History(no epochs yet)"
        last = ", ".join(f"{name} {value:.4g}" for name, value in self.records[-1].metrics.items())
        known = [value for value in self.loo_nll if not math.isnan(value)]
        loo = f", leave-one-out nll {known[-1]:.4g}" if known else ""
        why = f"; {self.stopped}" if self.stopped else ""
        return f"History({len(self)} epochs, {sum(self.column('seconds')):.1f} s; last: {last}{loo}{why})"

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[EpochRecord]:
        return iter(self.records)

    def __getitem__(self, index: int) -> EpochRecord:
        return self.records[index]

    def column(self, name: str) -> list[float]:
        """A field of the records or one of their metrics, over the epochs."""
        if name in ("loo_nll", "loo_error"):
            return self.loo_nll if name == "loo_nll" else self.loo_error
        if name == "step":
            return [sum(record.steps) / len(record.steps) for record in self.records]
        if name == "objective" and any(record.objective is not None for record in self.records):
            return [math.nan if record.objective is None else record.objective for record in self.records]
        if self.records and name in self.records[0].metrics:
            return [record.metrics[name] for record in self.records]
        known = ["epoch", "step", "n_rejected", "rejected_share", "max_change", "seconds", "loo_nll", "loo_error"]
        if name not in known:
            known += list(self.records[0].metrics) if self.records else []
            raise ValueError(f"unknown column {name!r}; available: {known}")
        return [float(getattr(record, name)) for record in self.records]

    def columns(self) -> dict[str, list[float]]:
        """Every metric, the mean step and the leave-one-out NLL over the epochs, ready to plot."""
        if not self.records:
            return {}
        found = {name: self.column(name) for name in self.records[0].metrics}
        found["step"] = self.column("step")
        if any(record.loo for record in self.records):
            found["loo_nll"] = self.loo_nll
        return found

    def to_rows(self) -> list[dict[str, float]]:
        """One flat dictionary per epoch, e.g. for a data frame: "epoch", every metric, and the other columns."""
        if not self.records:
            return []
        names = ["epoch", *self.records[0].metrics, "loo_nll", "loo_error"]
        names += ["objective"] * (self.records[0].objective is not None)
        names += ["step", "rejected_share", "n_rejected", "max_change", "seconds"]
        columns = [self.column(name) for name in names]
        rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        return [{**row, "epoch": record.epoch} for row, record in zip(rows, self.records, strict=True)]

    def snapshot(self) -> History:
        """The history so far, which no later epoch changes."""
        return History(list(self.records), self.stopped, list(self.changes))

    def plot(self, ax: Any = None, *, names: Sequence[str] | None = None) -> Any:
        """Draw it (`plots.training_history`); needs matplotlib."""
        from bayesmp import plots

        return plots.training_history(self.columns(), ax, names=names)

    def to_json(self) -> list[dict[str, Any]]:
        """The records as a file holds them; `from_json` reads them."""
        return [asdict(record) for record in self.records]

    @classmethod
    def from_json(
        cls, records: list[dict[str, Any]], stopped: str = "", changes: Sequence[dict[str, Any]] = ()
    ) -> History:
        """What `to_json` gave, and why the run ended; `changes` are those of the data, each as a dictionary."""
        found = [EpochRecord(**{**record, "steps": tuple(record["steps"])}) for record in records]
        return cls(found, stopped, [Change(**change) for change in changes])

    @classmethod
    def from_rows(cls, rows: list[dict[str, Any]], stopped: str = "") -> History:
        """The former name of `from_json`, which goes in 0.3."""
        warnings.warn(
            "History.from_rows is deprecated and goes in 0.3; use History.from_json, which reads what to_json gives",
            DeprecationWarning,
            stacklevel=2,
        )
        if rows and "steps" not in rows[0]:
            raise ValueError("these rows are flat, as to_rows gives them since 0.2; from_json reads those of to_json")
        return cls.from_json(rows, stopped)


def check_history(records: Sequence[EpochRecord]) -> None:
    """Raise unless these are the records of epochs 1, 2, ... of one run."""
    if [record.epoch for record in records] != list(range(1, len(records) + 1)):
        raise ValueError("epochs of the history must be 1, 2, 3, ...")
    if any("nll" not in record.metrics or record.metrics.keys() != records[0].metrics.keys() for record in records):
        raise ValueError("every epoch of the history must have the same metrics, 'nll' among them")


class EpochTally:
    """Sums what visits tell, on the device; read once, at the end of the epoch."""

    def __init__(self) -> None:
        self.n_visits = 0
        self.n_messages = 0
        self._sums: dict[str, Tensor] = {}
        self._max_change: Tensor | None = None

    def add(self, info: VisitInfo) -> None:
        """Count a visit; nothing waits for the device."""
        self.n_visits += 1
        self.n_messages += info.n_messages
        parts = {"step": info.step, "n_rejected": info.n_rejected}
        parts |= {f"metric {name}": value for name, value in info.metrics.items()}
        for name, value in parts.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
        change = info.max_change
        self._max_change = change.clone() if self._max_change is None else torch.maximum(self._max_change, change)

    def record(self, epoch: int, n_examples: int, seconds: float) -> EpochRecord:
        """The epoch's record, for which the device is waited for."""
        assert self._max_change is not None
        n_rejected = int(self._sums["n_rejected"])
        metrics = {
            name.removeprefix("metric "): float(value) / n_examples
            for name, value in self._sums.items()
            if name.startswith("metric ")
        }
        if "mse" in metrics:
            metrics = {"rmse": math.sqrt(metrics.pop("mse")), **metrics}
        return EpochRecord(
            epoch=epoch,
            steps=tuple((self._sums["step"] / self.n_visits).tolist()),
            n_rejected=n_rejected,
            rejected_share=n_rejected / max(1, self.n_messages),
            max_change=float(self._max_change),
            metrics=metrics,
            seconds=seconds,
        )
