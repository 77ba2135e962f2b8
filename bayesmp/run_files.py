"""Runs in files: what is saved of one, what a file must say to go on with it, and where it goes on."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from bayesmp import best_state, persistence
from bayesmp.checkpoints import Checkpoints
from bayesmp.diagnosis import Told
from bayesmp.history import History
from bayesmp.network import Network
from bayesmp.network_files import learn_from_file
from bayesmp.run import Run
from bayesmp.train_config import TrainConfig

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
    if run._best is not None:
        tensors |= {f"best_state.{name}": part for name, part in run._best.tensors.items()}
    persistence.write(path, kind="run", header=header, tensors=tensors)


def take(run: Run, file: persistence.SavedFile) -> None:
    """Go on from an open file of a run of the same network, data and settings."""
    saved, network = file.header["run"], run.network
    for name, identity in run._identify_data().items():
        _check_same_data(name, identity, saved["data"][name], file.path)
    rows = torch.cat(run.members)
    file.fill(rows, "members")
    if sum(saved["batch_sizes"]) != len(rows):
        raise ValueError(f"{file.path!r} does not fit: its batches are not those of {len(rows)} examples")
    _take_batches(run, list(rows.split(saved["batch_sizes"])), file)
    run.schedule.make_room(saved["counters"])
    for name, target in run._state().items():
        if name != "sites.offset" or name in file.names():  # 0 in files from before there was one
            file.fill(target, name)
    run.sites.recount()
    run.schedule.resume(saved["counters"])
    run.history = History.from_json(saved["history"], saved["stopped"], saved.get("changes", []))
    run._refreshed_at = saved["refreshed_at"]
    run._changed_at = saved.get("changed_at", 0)
    if run.history.changes and run._changed_at == run.n_epochs > 0:
        batches = enumerate(run.batch_ids)
        run._silent = {batch for row, batch in batches if not bool(run.sites.site(row).rho.any())}
    learn_from_file(network, file)
    run._flat_targets = network.flat_targets
    run._best = best_state.from_file(run, file)
    if network.has_belief:  # else the file was written in the middle of a run
        network.told = Told.of(run.history.snapshot(), run.x, run.y)


def _take_batches(run: Run, members: list[Tensor], file: persistence.SavedFile) -> None:
    """Take the batches of an open file, and which examples its rows are; files from before data could change do not
    say it.
    """
    saved = file.header["run"]
    if "ids" in file.names():
        file.fill(run.ids, "ids")
        run.labels = file.tensor("labels").clone() if "labels" in file.names() else None
        run.next_id = saved["next_id"]
    batch_ids = saved.get("batch_ids", list(range(len(members))))
    if len(batch_ids) != len(members) or min(saved["batch_sizes"]) < 1:
        raise ValueError(f"{file.path!r} does not fit: its {len(members)} batches have {len(batch_ids)} ids")
    if [len(rows) for rows in members] != [len(rows) for rows in run.members]:  # data came or went
        run._arrange(members, batch_ids)
        run._start()
    run.members, run.batch_ids = members, batch_ids
    run.next_batch_id = saved.get("next_batch_id", len(members))


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


def config_of(file: persistence.SavedFile) -> TrainConfig:
    """The settings of the run in an open file."""
    try:
        return TrainConfig(**file.header["run"]["config"])
    except TypeError as error:
        raise ValueError(f"{file.path!r} does not fit this version of bayesmp: {error}") from error


def check_same_config(config: TrainConfig, file: persistence.SavedFile, remedy: str) -> None:
    """Raise unless a run in an open file has the settings that decide its result."""
    saved = config_of(file)
    names = [entry.name for entry in fields(TrainConfig) if entry.name not in NOT_IN_RESULT]
    values = [(name, getattr(saved, name), getattr(config, name)) for name in names]
    if different := [f"{name} was {then!r}, now {now!r}" for name, then, now in values if then != now]:
        raise ValueError(f"{file.path!r} holds a run with other settings: {', '.join(different)}{remedy}")


def find_device(given: str | torch.device | None, file: persistence.SavedFile) -> torch.device:
    """Where the run in an open file goes on."""
    saved = file.header["run"]["device"]
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
