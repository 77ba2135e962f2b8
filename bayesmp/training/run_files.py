"""Runs in files: what a file must say to go on with a run, and where it goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from bayesmp.basics import persistence, typed
from bayesmp.basics.typed import Count, Measured, Positive
from bayesmp.belief.files import TINY
from bayesmp.network.network import Network
from bayesmp.training import best_state
from bayesmp.training.checkpoints import Checkpoints
from bayesmp.training.history import Change, EpochRecord, check_history
from bayesmp.training.run_data import RunData
from bayesmp.training.train_config import TrainConfig

POSITIVE = ("noise", "width", "damping", "smoothing", "step_length", "belief_scale")  # counters that scale something
NOT_IN_RESULT = ("site_store", "data_store", "debug")  # settings that a run may change between two checkpoints


@dataclass(frozen=True)
class DataHeader:
    """What tells data from others."""

    shape: list[Count]
    fingerprint: str


@dataclass(frozen=True)
class RunHeader:
    """What a file says of a run beside its network."""

    config: TrainConfig
    has_objective: bool
    history: list[EpochRecord]
    counters: dict[str, Any]
    refreshed_at: Count
    stopped: str
    device: Literal["cpu", "cuda"]
    data: dict[Literal["x", "y"], DataHeader]
    batch_sizes: list[Positive]
    batch_ids: list[Count]
    next_id: Count
    next_batch_id: Count
    changes: list[Change]
    best_state: best_state.KeptHeader | None


def header_of(file: persistence.SavedFile) -> RunHeader:
    """What an open file says of its run."""
    header = file.entry(RunHeader, "run")
    with file.understood():
        if sorted(header.data) != ["x", "y"]:
            raise ValueError(f"run.data must be about x and y, got {sorted(header.data)}")
        if not header.batch_sizes or any(part.shape[:1] != [sum(header.batch_sizes)] for part in header.data.values()):
            raise ValueError(f"run.batch_sizes must add up to the examples of run.data, got {sum(header.batch_sizes)}")
        if file.shape("sites.slope")[:1] != (len(header.batch_sizes),):
            raise ValueError(f"'sites.slope' must have one row for each of {len(header.batch_sizes)} batches")
        if len(set(header.batch_ids)) != len(header.batch_sizes) or len(header.batch_ids) != len(header.batch_sizes):
            raise ValueError(f"its {len(header.batch_sizes)} batches have {len(set(header.batch_ids))} ids")
        if header.next_batch_id <= max(header.batch_ids):
            raise ValueError(f"next_batch_id must be beyond all of batch_ids, got {header.next_batch_id}")
        if max(header.batch_sizes) > header.config.batch_size:
            raise ValueError(f"batches must have {header.config.batch_size} examples at most")
        if max(header.refreshed_at, *(change.epoch for change in header.changes), 0) > len(header.history):
            raise ValueError(f"refreshed_at and changes must be among {len(header.history)} epochs")
        check_history(header.history)
    return header


def batches_of(file: persistence.SavedFile, header: RunHeader, data: RunData) -> RunData:
    """The same examples in the batches of an open file, which also says which examples these are."""
    rows = file.tensor("members", (len(data),), torch.int64, low=0)
    if sum(header.batch_sizes) != len(rows) or not torch.equal(rows.sort().values, torch.arange(len(rows))):
        raise ValueError(f"its batches are not those of {len(rows)} examples")
    ids = file.tensor("ids", (len(rows),), torch.int64, low=0, high=header.next_id - 1)
    if not bool((ids.diff() > 0).all()):
        raise ValueError("ids of examples must rise")
    weight: Tensor | None = None
    if "sample_weight" in file.names():
        weight = file.tensor("sample_weight", (len(rows),), torch.float64, low=TINY)
    return replace(
        data,
        ids=ids,
        labels=file.tensor("labels", (len(rows),), torch.int64) if "labels" in file.names() else None,
        sample_weight=weight,
        members=list(rows.to(data.y.device).split(header.batch_sizes)),
        batch_ids=header.batch_ids,
        next_id=header.next_id,
        next_batch_id=header.next_batch_id,
    )


def check_counters(own: Mapping[str, float], saved: Mapping[str, Any]) -> None:
    """Raise unless saved counters have the names and types of a schedule's own."""
    if own.keys() != saved.keys():
        raise ValueError(f"counters must be {sorted(own)}, got {sorted(saved)}")
    for name, value in own.items():
        number = saved[name]
        kind = bool if isinstance(value, bool) else Count if isinstance(value, int) else Measured
        typed.read(kind, number, f"counters.{name}")
        if math.isnan(number) or (name in POSITIVE and not 0.0 < number < math.inf):
            raise ValueError(f"counters.{name} must be a number above 0, got {number!r}")


def check_same_data(data: RunData, header: RunHeader, path: str) -> None:
    """Raise unless these are the data of the saved run: a site belongs to its rows."""
    remedy = (
        "pass the data the run had when it was saved, in the same order and on the same scale (trainer.x, trainer.y); "
    )
    remedy += "for other data start a new Trainer"
    for name, given in data.identity.items():
        saved = header.data["x" if name == "x" else "y"]
        if given["shape"] != saved.shape:
            raise ValueError(
                f"{name} does not belong to the run in {path!r}: expected shape {tuple(saved.shape)}, got "
                f"{tuple(given['shape'])}; {remedy}"
            )
        if given["fingerprint"] != saved.fingerprint:
            raise ValueError(
                f"{name} does not belong to the run in {path!r}: the shape fits, but the values differ; {remedy}"
            )


def check_same_config(config: TrainConfig, file: persistence.SavedFile, remedy: str) -> None:
    """Raise unless a run in an open file has the settings that decide its result."""
    saved = header_of(file).config
    names = [entry.name for entry in fields(TrainConfig) if entry.name not in NOT_IN_RESULT]
    values = [(name, getattr(saved, name), getattr(config, name)) for name in names]
    if different := [f"{name} was {then!r}, now {now!r}" for name, then, now in values if then != now]:
        raise ValueError(f"{file.path!r} holds a run with other settings: {', '.join(different)}{remedy}")


def find_device(given: str | torch.device | None, file: persistence.SavedFile) -> torch.device:
    """Where the run in an open file goes on."""
    saved = header_of(file).device
    if given is None and saved == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"{file.path!r} was saved on a CUDA device, and there is none here; pass device='cpu' to go on there"
        )
    return torch.device(saved if given is None else given)


def new_checkpoints(network: Network, folder: persistence.PathLike, every: int, keep: int) -> Checkpoints:
    """A folder for a new run; what would make its first checkpoint fail is said now."""
    checkpoints = Checkpoints(folder, every=every, keep=keep)
    if found := checkpoints.paths():
        raise ValueError(
            f"the folder {str(folder)!r} holds checkpoints already, {found[0].name} the newest: go on with them, "
            "Trainer.resume(folder, x, y), or choose another folder for a new run"
        )
    network.description()
    return checkpoints
