"""Runs in files: what is saved of one, what a file must say to go on with it, and where it goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from bayesmp.basics import persistence, typed
from bayesmp.basics.typed import Count, Measured, Positive
from bayesmp.belief.files import TINY
from bayesmp.diagnosis import RunSummary
from bayesmp.network.files import learn_from_file
from bayesmp.network.network import Network
from bayesmp.training import best_state
from bayesmp.training.checkpoints import Checkpoints
from bayesmp.training.history import Change, EpochRecord, History, check_history
from bayesmp.training.run import Run
from bayesmp.training.train_config import TrainConfig

POSITIVE = ("noise", "width", "damping", "smoothing", "step_length", "belief_scale")  # counters that scale something
NOT_IN_RESULT = ("site_store", "data_store", "debug")  # settings that a run may change between two checkpoints


def save(run: Run, path: persistence.PathLike) -> None:
    """Write a run to a safetensors file: the network, all sites, the history, which examples its rows are; not the
    data.
    """
    network = run.network
    header = {
        "network": network.description(),
        "run": {
            "config": asdict(run.config),
            "has_objective": run.has_objective,
            "history": run.history.to_json(),
            "counters": run.schedule.counters(),
            "refreshed_at": run._refreshed_at,
            "stopped": run.history.stopped,
            "device": network.device.type,
            "data": run._identify_data(),
            "batch_sizes": [len(rows) for rows in run.members],
            "batch_ids": run.batch_ids,
            "next_id": run.next_id,
            "next_batch_id": run.next_batch_id,
            "changed_at": run._changed_at,
            "changes": [asdict(change) for change in run.history.changes],
            "best_state": None if run._best is None else run._best.description(),
        },
    }
    tensors = {**network.state(), **run._state(), "members": torch.cat(run.members), "ids": run.ids}
    if run.labels is not None:
        tensors["labels"] = run.labels
    if run.sample_weight is not None:
        tensors["sample_weight"] = run.sample_weight
    if run._best is not None:
        tensors |= {f"best_state.{name}": part for name, part in run._best.tensors.items()}
    persistence.write(path, kind="run", header=header, tensors=tensors)


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
    changed_at: Count
    changes: list[Change]
    best_state: best_state.KeptHeader | None


def header_of(file: persistence.SavedFile) -> RunHeader:
    """What an open file says of its run."""
    found = file.entry(RunHeader, "run")
    with file.understood():
        if sorted(found.data) != ["x", "y"]:
            raise ValueError(f"run.data must be about x and y, got {sorted(found.data)}")
        if not found.batch_sizes or any(part.shape[:1] != [sum(found.batch_sizes)] for part in found.data.values()):
            raise ValueError(f"run.batch_sizes must add up to the examples of run.data, got {sum(found.batch_sizes)}")
        if file.shape("sites.slope")[:1] != (len(found.batch_sizes),):
            raise ValueError(f"'sites.slope' must have one row for each of {len(found.batch_sizes)} batches")
        if len(set(found.batch_ids)) != len(found.batch_sizes) or len(found.batch_ids) != len(found.batch_sizes):
            raise ValueError(f"its {len(found.batch_sizes)} batches have {len(set(found.batch_ids))} ids")
        if found.next_batch_id <= max(found.batch_ids):
            raise ValueError(f"next_batch_id must be beyond all of batch_ids, got {found.next_batch_id}")
        if max(found.batch_sizes) > found.config.batch_size:
            raise ValueError(f"batches must have {found.config.batch_size} examples at most")
        if max(found.refreshed_at, found.changed_at) > len(found.history):
            raise ValueError(f"refreshed_at and changed_at must be among {len(found.history)} epochs")
        check_history(found.history)
    return found


def take(run: Run, file: persistence.SavedFile) -> None:
    """Go on from an open file of a run of the same network, data and settings."""
    found, network = header_of(file), run.network
    for name, identity in run._identify_data().items():
        _check_same_data(name, identity, file.header["run"]["data"][name], file.path)
    with file.understood():
        _take_batches(run, found, file)
        check_counters(run.schedule.counters(), found.counters)
        run.schedule.make_room(found.counters)
        for name, target in run._state().items():
            file.fill(target, name, is_finite=not name.startswith("schedule."))  # whose limits may be infinite
        run.sites.recount()
        run.schedule.resume(found.counters)
        run.history = History(found.history, found.stopped, found.changes)
        run._refreshed_at, run._changed_at = found.refreshed_at, found.changed_at
        if run.history.changes and run._changed_at == run.n_epochs > 0:
            batches = enumerate(run.batch_ids)
            run._silent = {batch for row, batch in batches if not bool(run.sites.site(row).rho.any())}
        learn_from_file(network, file)
        run._flat_targets = network.flat_targets
        run._best = best_state.from_file(run, file, found.best_state)
        file.check_entries(["network", "run"])
        if network.has_belief:  # else the file was written in the middle of a run
            network.run_summary = RunSummary.of(run.history.snapshot(), run.x, run.y)


def _take_batches(run: Run, found: RunHeader, file: persistence.SavedFile) -> None:
    """Take the batches of an open file, and which examples its rows are."""
    rows = file.tensor("members", (len(run.x),), torch.int64, low=0)
    if sum(found.batch_sizes) != len(rows) or not torch.equal(rows.sort().values, torch.arange(len(rows))):
        raise ValueError(f"its batches are not those of {len(rows)} examples")
    run.ids = file.tensor("ids", (len(rows),), torch.int64, low=0, high=found.next_id - 1)
    if not bool((run.ids.diff() > 0).all()):
        raise ValueError("ids of examples must rise")
    run.labels = file.tensor("labels", (len(rows),), torch.int64) if "labels" in file.names() else None
    weight: Tensor | None = None
    if "sample_weight" in file.names():
        weight = file.tensor("sample_weight", (len(rows),), torch.float64, low=TINY)
    run._weigh(weight)
    run.next_id = found.next_id
    members = list(rows.to(run.network.device).split(found.batch_sizes))
    if [len(part) for part in members] != [len(part) for part in run.members]:  # data came or went
        run._arrange(members, found.batch_ids)
        run._start()
    run.members, run.batch_ids = members, found.batch_ids
    run.next_batch_id = found.next_batch_id


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


def _check_same_data(name: str, given: dict[str, Any], saved: dict[str, Any], path: str) -> None:
    """Raise unless these are the data of the saved run: a site belongs to its rows."""
    remedy = (
        "pass the data the run had when it was saved, in the same order and on the same scale (trainer.x, trainer.y); "
    )
    remedy += "for other data start a new Trainer"
    if given["shape"] != saved["shape"]:
        raise ValueError(
            f"{name} does not belong to the run in {path!r}: expected shape {tuple(saved['shape'])}, got "
            f"{tuple(given['shape'])}; {remedy}"
        )
    if given["fingerprint"] != saved["fingerprint"]:
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
