"""Data that come, go or change their values while a run goes on.

The posterior is prior x one site per batch, so data can be taken out as well as put in. A batch that loses all its
examples loses its site; one that loses some keeps the share of it that stays, less what the others say now, until its
next visit replaces it. New examples make up new batches, whose sites say nothing until their first visit. The posterior
is prior x sites after each of these, and no stored message of another batch is touched.

A change is made as a whole or not at all: what users hand in is looked at before anything is touched, and whatever goes
wrong after that, even an interruption, takes the run back to where it was, bit for bit (`_whole_or_nothing`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesmp.basics import checks, examples
from bayesmp.evidence.groups import check_sample_weight
from bayesmp.heads import Head
from bayesmp.messages.gaussian import Gaussian
from bayesmp.network.network import Network
from bayesmp.sites.sites import Sites
from bayesmp.training.history import Change, History
from bayesmp.training.run import Run
from bayesmp.training.schedules import Kept

PROBE = 1024  # examples that stay, at most, on which the step of a removal is measured


@torch.no_grad()
def add(run: Run, x: Any, y: Any, sample_weight: Any = None) -> Tensor:
    """Put examples into a run, as new batches; returns their ids. See Trainer.add."""
    x, y = _check_examples(run, x, y)
    weight = _joined_weights(run, check_sample_weight(sample_weight, len(y)), len(y))
    whole = torch.cat([run.y, y])
    run.network.head.check_targets(whole, run.network.n_outputs)
    _warn_if_far(run, x, y)
    n, n_new = len(run.y), math.ceil(len(y) / run.config.batch_size)
    with _whole_or_nothing(run):
        run._check_network(stacklevel=5)
        order = torch.randperm(len(y), generator=run.schedule.generator(run.next_id)) + n
        kept = [Kept(row, _places(rows)) for row, rows in enumerate(run.members)]
        new_members = list(order.to(run.y.device).tensor_split(n_new))
        new_ids = torch.arange(run.next_id, run.next_id + len(y))
        ids, x = torch.cat([run.ids, new_ids]), torch.cat([run.x, x])
        batch_ids = [*run.batch_ids, *range(run.next_batch_id, run.next_batch_id + n_new)]
        if run.labels is not None:  # new examples belong to none of the old ones
            run.labels = torch.cat([run.labels, run.labels.max() + 1 + torch.arange(len(y))])
        run._weigh(weight)
        run._rearrange(x, whole, ids, kept, [*run.members, *new_members], batch_ids)
        if run._has_begun:
            run._silent.update(batch_ids[len(kept) :])
        run._note(Change(run.n_epochs, "added", len(y), len(run.y)), is_silent=True)
    return new_ids


@torch.no_grad()
def remove(run: Run, ids: Any) -> None:
    """Take examples out of a run. See Trainer.remove."""
    rows = find_rows(run, ids)
    if len(rows) == len(run.y):
        raise ValueError(
            f"these are all {len(rows)} examples of the run, and a run without data has nothing to learn from; keep at "
            "least one, or call network.reset(), which goes back to the prior"
        )
    if len(rows) == 0:
        return
    with _whole_or_nothing(run) as before:
        run._check_network(stacklevel=5)
        stays = torch.ones(len(run.y), dtype=torch.bool, device=run.y.device)
        stays[rows.to(stays.device)] = False
        new_row = stays.cumsum(0) - 1
        change = torch.zeros_like(run.sites.shift)
        kept: list[Kept] = []
        members: list[Tensor] = []
        weaker: list[tuple[int, float, Tensor | None]] = []  # new row, share that stays, slope that goes
        for row, old in enumerate(run.members):
            places, gone = (part.nonzero()[:, 0] for part in (stays[old], ~stays[old]))
            if len(places) == 0:
                change -= run.sites.said(row)
                continue
            if len(gone) > 0 and run._has_begun and run.batch_ids[row] not in run._silent:
                x = examples.rows_on(run.network.device, run.x, old[gone].to(run.x.device))
                before.keep_site(row)
                slope = run.schedule.slope_of(row, gone, x, run.y[old[gone]])
                weaker.append((len(kept), len(places) / len(old), slope))
            kept.append(Kept(row, places))
            members.append(new_row[old[places]])
        batch_ids = [run.batch_ids[batch.row] for batch in kept]
        if run.labels is not None:
            run.labels = run.labels[stays.cpu()]
        if run.sample_weight is not None:
            run._weigh(run.sample_weight[stays.cpu()])
        run._rearrange(run.x[stays.to(run.x.device)], run.y[stays], run.ids[stays.cpu()], kept, members, batch_ids)
        if run._has_begun:
            for row, share, slope in weaker:
                change += run.sites.weaken(row, share, slope)
            run.sites.recount()
            heard = run._heard_rows() if run.schedule.takes_all_data else None
            run.schedule.absorb(change, *_probe(run), heard)
        run._note(Change(run.n_epochs, "removed", len(rows), len(run.y)))


@torch.no_grad()
def replace(run: Run, ids: Any, x: Any, y: Any) -> None:
    """Give examples of a run new values. See Trainer.replace."""
    if isinstance(ids, Set):
        raise ValueError("a set of ids has no order that rows of x and y could follow; pass a list of ids")
    rows = find_rows(run, ids)
    if len(rows) == 0:
        return
    if x is None and y is None:
        raise ValueError("give x, y or both: what the examples with these ids shall be")
    x = run.x[rows.to(run.x.device)] if x is None else x
    y = run.y[rows.to(run.y.device)] if y is None else y
    x, y = _check_examples(run, x, y)
    if len(rows) != len(y):
        raise ValueError(f"x and y must have one row per id: expected {len(rows)}, got {len(y)}")
    whole = run.y.index_copy(0, rows.to(run.y.device), y)
    run.network.head.check_targets(whole, run.network.n_outputs)
    _warn_if_far(run, x, y)
    with _whole_or_nothing(run):
        run._check_network(stacklevel=5)
        is_new = torch.zeros(len(run.y), dtype=torch.bool, device=run.y.device)
        is_new[rows.to(is_new.device)] = True
        rows_of_x, inputs = rows.to(run.x.device), run.x
        if not torch.equal(inputs[rows_of_x], x):  # a mended label needs no copy of all inputs
            inputs = inputs.index_copy(0, rows_of_x, x)
        kept = [Kept(row, _places(old).masked_fill(is_new[old], -1)) for row, old in enumerate(run.members)]
        run._rearrange(inputs, whole, run.ids, kept, run.members, run.batch_ids)
        if run._has_begun:
            run._mended.update(run.ids[rows].tolist())
        run._note(Change(run.n_epochs, "replaced", len(rows), len(run.y)))


def find_rows(run: Run, ids: Any) -> Tensor:
    """Where in x and y the examples with these ids are, or a ValueError; on the CPU. Sets are taken in order."""
    ids = sorted(ids) if isinstance(ids, Set) else list(ids) if isinstance(ids, Iterator) else ids
    found = checks.as_tensor(ids, "ids").cpu()
    if found.numel() == 0:
        return torch.zeros(0, dtype=torch.int64)
    found = found[None] if found.ndim == 0 else found
    if found.dtype == torch.bool:
        raise ValueError("ids must be whole numbers, got a mask; trainer.ids[mask] are the ids that it marks")
    if found.ndim != 1 or found.is_floating_point() or found.is_complex():
        raise ValueError(
            f"ids must be whole numbers, one per example, got {found.dtype} of shape {tuple(found.shape)}; "
            "trainer.ids holds those of all examples, and add returns those of new ones"
        )
    found = found.long().contiguous()
    known, counts = found.unique(return_counts=True)
    if bool((counts > 1).any()):
        raise ValueError(f"ids must name each example once, but {int(known[counts.argmax()])} is there more than once")
    rows = torch.searchsorted(run.ids, found)  # they only ever grow
    is_there = (rows < len(run.ids)) & (run.ids[rows.clamp_max(len(run.ids) - 1)] == found)
    if not bool(is_there.all()):
        missing = int(found[~is_there][0])
        why = "it was removed before" if 0 <= missing < run.next_id else f"ids so far lie in 0 .. {run.next_id - 1}"
        raise ValueError(f"there is no example with the id {missing} in this run: {why}; trainer.ids holds all")
    return rows


def _check_examples(run: Run, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """New examples as the run has its own, or a ValueError."""
    network = run.network
    x, y = examples.as_arrays(x, y)
    x = checks.check_inputs(x, network.input_shape, network.dtype)
    y = network.head.check_more_targets(y, network.n_outputs)
    checks.check_examples(x, y, network.dtype)
    return x.to(run.x), y.to(run.y)


def _joined_weights(run: Run, new: NDArray[np.float64] | None, n_new: int) -> Tensor | None:
    """Weights of the examples of a run and of new ones behind them; None if nobody has said any."""
    if new is None and run.sample_weight is None:
        return None
    if new is not None and not new.all():
        raise ValueError(
            "sample_weight of examples that are added must be above 0; leave out those that shall not count"
        )
    added = torch.ones(n_new, dtype=torch.float64) if new is None else torch.from_numpy(new)
    return torch.cat([run.counted(), added])


def _warn_if_far(run: Run, x: Tensor, y: Tensor) -> None:
    """Warn of new examples far from those that the run has, where a Trainer was called."""
    checks.warn_if_far(x, run.x, "x", stacklevel=5)
    checks.warn_if_far(y, run.y, "y", stacklevel=5)


def _probe(run: Run) -> tuple[Tensor, Tensor]:
    """Some of the examples that there are now; where a schedule looks at all data at once, all that it has heard."""
    if run.schedule.takes_all_data:
        return run._heard()
    chosen = torch.randperm(len(run.y), generator=run.schedule.generator(run.n_epochs, len(run.y)))[:PROBE]
    x = examples.rows_on(run.network.device, run.x, chosen.to(run.x.device))
    return x, run.y[chosen.to(run.y.device)]


def _places(rows: Tensor) -> Tensor:
    return torch.arange(len(rows), device=rows.device)


# --- all or nothing --------------------------------------------------------------------------------------------------


@contextmanager
def _whole_or_nothing(run: Run) -> Iterator[_Before]:
    """What is done inside is done as a whole: if it fails, or is interrupted, the run is as it was before."""
    before = _Before(run)
    try:
        yield before
    except BaseException:
        before.restore()
        raise


class _Before:
    """All that a change of the data may change, as it was: what objects hold, and copies of tensors that may be changed
    in place. Examples, beliefs and layers are only ever replaced by others, and so is the store of sites if batches
    come or go; rows of it that are changed in place are said with `keep_site`.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rows = run.sites._rows
        self.sites: dict[int, Tensor] = {}
        self.tensors: list[tuple[Tensor, Tensor]] = []
        self.held: list[tuple[Any, Any]] = [(vars(run), dict(vars(run)))]
        self._seen: set[int] = {id(self.rows)}
        self._keep_all([run.network, run.sites, run.schedule, run.history, run._silent, run._mended, run._last_mean])

    def keep_site(self, row: int) -> None:
        """Remember the site of this batch."""
        self.sites[row] = self.run.sites._complete()[:, row].clone()

    @torch.inference_mode()  # some of them were made in it
    def restore(self) -> None:
        """Put everything back."""
        for holder, content in self.held:
            if isinstance(holder, list):
                holder[:] = content
            else:
                holder.clear()
                holder.update(content)
        for tensor, content in self.tensors:
            if not torch.equal(tensor, content):
                tensor.copy_(content)
        if self.sites:
            rows = self.run.sites._complete()
            for row, content in self.sites.items():
                rows[:, row] = content
            self.run.sites.recount()

    def _keep(self, part: Any) -> None:
        if id(part) in self._seen:
            return
        self._seen.add(id(part))
        if isinstance(part, Tensor):
            self.tensors.append((part, part.clone()))
        elif isinstance(part, Gaussian):
            self._keep_all([part.tau, part.rho])
        elif isinstance(part, (dict, list, set)):
            self.held.append((part, part.copy()))
            self._keep_all([*part.values()] if isinstance(part, dict) else [*part])
        is_of_schedule = type(part).__module__.startswith("bayesmp.training.schedules")
        if is_of_schedule or isinstance(part, (Network, Head, Sites, History)):
            content = vars(part)
            self.held.append((content, dict(content)))
            self._keep_all([*content.values()])

    def _keep_all(self, parts: Sequence[Any]) -> None:
        for part in parts:
            self._keep(part)
