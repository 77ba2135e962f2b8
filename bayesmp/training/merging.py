"""Runs on different data made one: natural parameters add, so the posterior of all data is prior x all their sites."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesmp.basics import persistence
from bayesmp.network.files import BESIDE_LAYERS
from bayesmp.training.history import Change, History
from bayesmp.training.trainer import Trainer

MERGED = "merged"  # what the history says until the first epoch


@torch.no_grad()
def merge(trainers: Sequence[Trainer], *, shared: bool = False) -> Trainer:
    """A run on the data of all these runs, with all their sites: nothing is trained again, nothing counted twice.

    Its posterior is prior x all sites. Weights are taken as independent in that product, which is rough, as means of
    networks that were trained apart are; some epochs of `run` settle it. Runs should come from one network (same seed,
    perhaps from one saved file): hidden units of networks that started elsewhere do not correspond. The runs given stay
    as they are.

    Args:
        trainers: two or more runs of networks with the same layers, head, prior and start, by the same schedule, in the
            same dtype on the same device, on different data.
        shared: accept examples that two runs have in common, as different ones that happen to be equal. If not, they
            are an error, because an example would count twice.

    Returns:
        A new Trainer with a network of its own, `trainer.network`. Its examples are those of the first run, then those
        of the second and so on, in their order; their ids are counted from 0 anew. Its history begins here.
    """
    runs = list(trainers)
    _check_runs(runs)
    if not shared:
        _check_disjoint(runs)
    first = runs[0]
    network = copy.deepcopy(first.network)
    network.reset()
    x, y = torch.cat([run.x for run in runs]), torch.cat([run.y for run in runs])
    with_objective = all(run.has_objective for run in runs)
    starts = torch.tensor([0, *(len(run.y) for run in runs)]).cumsum(0).tolist()
    members = [rows + start for run, start in zip(runs, starts, strict=False) for rows in run.members]
    weight: Tensor | None = None
    if any(run.data.sample_weight is not None for run in runs):
        weight = torch.cat([run.counted() for run in runs])
    merged = Trainer.on_known_data(
        network, x, y, first.config, with_objective=with_objective, members=members, sample_weight=weight
    )
    network.flat_targets = first.network.flat_targets
    network.widen_prior(*_widths_of(runs))
    if len({run.has_objective for run in runs}) == 1:  # else they know different things, and visits tell them anew
        merged.schedule.join([run.schedule for run in runs])
    _take_sites(merged, runs)
    merged.schedule.refresh()
    notes = [Change(0, MERGED, len(run.y), len(merged.y)) for run in runs]
    is_unheard = [batch in run.data.unheard_batches for run in runs for batch in run.data.batch_ids]
    unheard = {batch for batch, unheard in zip(merged.data.batch_ids, is_unheard, strict=True) if unheard}
    merged.go_on_from(History(stopped=MERGED, changes=notes), unheard_batches=unheard)
    return merged


def _take_sites(merged: Trainer, runs: list[Trainer]) -> None:
    """All sites of all runs, as natural parameters, in this order; told from the posterior mean that they make up,
    unless the schedule has its origin at zero.
    """
    sites, prior = merged.sites, merged.network.exact_prior.map(lambda part: part.to(merged.network.device))
    origins = [(run.sites, row) for run in runs for row in range(len(run.sites))]
    if any(bool(run.sites.origin.any()) for run in runs):
        total = prior
        for store, row in origins:
            total = total * store.natural(row)
        sites.origin.copy_(total.mean)
    sites.shift.zero_()
    sites.offset.zero_()
    for k, (store, row) in enumerate(origins):
        site = store.natural(row)
        sites.slope[k].copy_(site.tau - site.rho * sites.origin.double())
        sites.rho[k].copy_(site.rho)
    sites.head.copy_(torch.cat([run.sites.head for run in runs]))
    sites.recount()


def _widths_of(runs: list[Trainer]) -> tuple[float, list[Tensor]]:
    """How wide a prior suits all of them: geometric means of what they have chosen, by their examples."""
    n = sum(len(run.y) for run in runs)
    width = math.exp(sum(len(run.y) / n * math.log(run.network.prior_width) for run in runs))
    if not all(run.network.relevances for run in runs):
        return width, []
    by_layer = zip(*(run.network.relevances for run in runs), strict=True)
    shares = [len(run.y) / n for run in runs]
    means = [sum(s * part.log() for s, part in zip(shares, parts, strict=True)) for parts in by_layer]
    return width, [torch.as_tensor(mean).exp() for mean in means]


def _check_runs(runs: list[Trainer]) -> None:
    """Raise unless these are two or more runs that can be one."""
    if len(runs) < 2 or not all(isinstance(run, Trainer) for run in runs):
        kinds = ", ".join(type(run).__name__ for run in runs)
        raise ValueError(f"merge takes a list of two or more Trainers, got [{kinds}]")
    first = runs[0]
    for k, run in enumerate(runs):
        if not run.has_begun:
            raise ValueError(f"run {k} has not been trained yet, so it has no sites to merge; add its data instead")
        if run.network.past is not None:
            raise ValueError(
                f"run {k} has the past of as_prior() in its prior, which merging cannot hold; merge runs first, then "
                "let what they have learned together be a prior"
            )
        if k == 0:
            continue
        if run is first or any(run is other for other in runs[:k]):
            raise ValueError(f"run {k} is there twice; its data would count twice")
        if different := _differences(first, run):
            raise ValueError(
                f"runs 0 and {k} cannot be merged, because they differ in {', '.join(different)}; train both from one "
                "network: the same layers, head, prior and seed, in one dtype on one device"
            )


def _differences(a: Trainer, b: Trainer) -> list[str]:
    """What keeps two runs from being merged."""
    ours, theirs = (persistence.as_saved(run.network.description()) for run in (a, b))
    different = [name for name in ours if name not in (*BESIDE_LAYERS, "seed") and ours[name] != theirs[name]]
    if a.network.device != b.network.device:
        different.append("device")
    different += [
        name for name in ("schedule", "joint", "learn_prior") if getattr(a.config, name) != getattr(b.config, name)
    ]
    if "layers" in different:
        return different
    ours, theirs = ({name: part.cpu() for name, part in run.network.state().items()} for run in (a, b))
    parts = {
        "prior means": "prior.tau",
        "prior variances": "prior.rho",
        "starting means": "start",  # or hidden units do not correspond
        "the head's grid": "head.grid",
    }
    return different + [name for name, key in parts.items() if not torch.equal(ours[key], theirs[key])]


def _check_disjoint(runs: list[Trainer]) -> None:
    """Raise if two runs have an example in common."""
    seen: dict[bytes, int] = {}
    for k, run in enumerate(runs):
        found = {key: int(run.ids[row]) for row, key in enumerate(_keys(run.x, run.y))}
        for key, which in found.items():
            if key in seen:
                raise ValueError(
                    f"runs {seen[key]} and {k} have examples in common, one with the id {which} in run {k}: "
                    "they would count twice; remove them from one, or pass shared=True if they only happen to be equal"
                )
        seen |= dict.fromkeys(found, k)


def _keys(x: Tensor, y: Tensor) -> list[bytes]:
    """A short text for each example, the same for equal ones."""
    rows = zip(x.cpu().flatten(1).numpy(), y.cpu().reshape(len(y), -1).numpy(), strict=True)
    return [hashlib.blake2b(a.tobytes() + b.tobytes(), digest_size=16).digest() for a, b in rows]
