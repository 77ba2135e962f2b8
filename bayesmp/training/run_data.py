"""The data of a run: its examples, which ones these are, which share a batch, and which have not been heard yet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmp.basics import checks, examples, persistence
from bayesmp.evidence.groups import check_groups, check_sample_weight, groups_of, measured_together
from bayesmp.network.network import Network
from bayesmp.training.schedules import Kept
from bayesmp.training.train_config import TrainConfig


@dataclass(frozen=True, eq=False)
class RunData:
    """Examples in batches. It is never changed: data that come, go or change make another one.

    Attributes:
        x, y: the examples; tensors on the device or, for x, the host.
        ids: which examples these are, row by row, (n,) int64 on the CPU: at first 0 .. n - 1. No id is used twice.
        labels: which examples belong together, (n,), as the user said; None if nothing was said.
        sample_weight: how often each example counts, (n,) float64 on the CPU, as the user said; None if nothing was
            said.
        members: the rows of x and y that make up each batch.
        batch_ids: which batches these are; no id of a batch is used twice, either.
        next_id, next_batch_id: the first ones that were never used.
        unheard_batches: ids of batches that have not been visited yet, while others have.
        unheard_ids: ids of examples whose new values have not been heard yet.
    """

    x: Tensor
    y: Tensor
    ids: Tensor
    labels: Tensor | None
    members: list[Tensor]
    batch_ids: list[int]
    next_id: int
    next_batch_id: int
    unheard_batches: frozenset[int] = frozenset()
    unheard_ids: frozenset[int] = frozenset()
    sample_weight: Tensor | None = None

    @classmethod
    def of(cls, x: Tensor, y: Tensor, labels: Tensor | None, members: list[Tensor]) -> RunData:
        """Examples that no run has had yet, in these batches."""
        n, n_batches = len(x), len(members)
        return cls(x, y, torch.arange(n), labels, members, list(range(n_batches)), n, n_batches)

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.y)

    @property
    def largest_batch(self) -> int:
        return max(len(rows) for rows in self.members)

    @cached_property
    def groups(self) -> Tensor:
        """The group of each example, (n,), that scores leave out together: those with equal inputs belong together, and
        those that the user says."""
        return groups_of(self.x, self.labels)

    @cached_property
    def measurements(self) -> Tensor:
        """Which examples tell of one noise, (n,)."""
        return measured_together(self.x, self.y, self.labels)

    @cached_property
    def identity(self) -> dict[str, dict[str, Any]]:
        """What tells these data from others; it takes reading all of them."""
        parts = {"x": self.x, "y": self.y}
        return {
            name: {"shape": list(part.shape), "fingerprint": persistence.fingerprint(part)}
            for name, part in parts.items()
        }

    def rows_of(self, ids: Any) -> Tensor:
        """Where in x and y the examples with these ids are, or a ValueError; on the CPU. Sets are taken in order."""
        ids = sorted(ids) if isinstance(ids, Set) else list(ids) if isinstance(ids, Iterator) else ids
        asked = checks.as_tensor(ids, "ids").cpu()
        if asked.numel() == 0:
            return torch.zeros(0, dtype=torch.int64)
        asked = asked[None] if asked.ndim == 0 else asked
        if asked.dtype == torch.bool:
            raise ValueError("ids must be whole numbers, got a mask; trainer.ids[mask] are the ids that it marks")
        if asked.ndim != 1 or asked.is_floating_point() or asked.is_complex():
            raise ValueError(
                f"ids must be whole numbers, one per example, got {asked.dtype} of shape {tuple(asked.shape)}; "
                "trainer.ids holds those of all examples, and add returns those of new ones"
            )
        asked = asked.long().contiguous()
        different, counts = asked.unique(return_counts=True)
        if bool((counts > 1).any()):
            twice = int(different[counts.argmax()])
            raise ValueError(f"ids must name each example once, but {twice} is there more than once")
        rows = torch.searchsorted(self.ids, asked)  # they only ever grow
        is_there = (rows < len(self)) & (self.ids[rows.clamp_max(len(self) - 1)] == asked)
        if not bool(is_there.all()):
            missing = int(asked[~is_there][0])
            is_gone = 0 <= missing < self.next_id
            why = "it was removed before" if is_gone else f"ids so far lie in 0 .. {self.next_id - 1}"
            raise ValueError(f"there is no example with the id {missing} in this run: {why}; trainer.ids holds all")
        return rows

    # --- what has been heard -----------------------------------------------------------------------------------------

    @cached_property
    def heard(self) -> RunData:
        """The examples of all batches that have said something."""
        rows = self.heard_rows
        if rows is None:
            return self
        is_heard = torch.zeros(len(self), dtype=torch.bool, device=self.y.device)
        is_heard[rows] = True
        return self._only(is_heard, range(len(self.members)))[0]

    @property
    def heard_rows(self) -> Tensor | None:
        """Which these are; None if they are all."""
        if not self.unheard_batches:
            return None
        parts = zip(self.batch_ids, self.members, strict=True)
        heard = [rows for batch, rows in parts if batch not in self.unheard_batches]
        return torch.cat([self.members[0][:0], *heard]).sort().values

    @property
    def is_unheard(self) -> Tensor:
        """Whether an example, as it is now, has said nothing yet, (n,), on the CPU."""
        found = torch.isin(self.ids, torch.tensor(sorted(self.unheard_ids), dtype=torch.int64))
        for batch, part in zip(self.batch_ids, self.members, strict=True):
            found[part.cpu()] |= batch in self.unheard_batches
        return found

    def all_heard(self) -> RunData:
        """The same after all batches were visited."""
        if not self.unheard_batches and not self.unheard_ids:
            return self
        return replace(self, unheard_batches=frozenset(), unheard_ids=frozenset())

    # --- other data --------------------------------------------------------------------------------------------------

    def with_new(
        self,
        x: Tensor,
        y: Tensor,
        sample_weight: Tensor | None = None,
        *,
        batch_size: int,
        generator: torch.Generator,
    ) -> tuple[RunData, list[Kept]]:
        """These and more examples, which make up batches of their own; and all batches that go on.

        Args:
            sample_weight: of all of them.
        """
        n, n_new = len(self), math.ceil(len(y) / batch_size)
        order = torch.randperm(len(y), generator=generator) + n
        new_batches = range(self.next_batch_id, self.next_batch_id + n_new)
        labels = self.labels
        if labels is not None:  # new examples belong to none of the old ones
            labels = torch.cat([labels, labels.max() + 1 + torch.arange(len(y))])
        data = RunData(
            x=torch.cat([self.x, x]),
            y=torch.cat([self.y, y]),
            ids=torch.cat([self.ids, torch.arange(self.next_id, self.next_id + len(y))]),
            labels=labels,
            members=[*self.members, *order.to(self.y.device).tensor_split(n_new)],
            batch_ids=[*self.batch_ids, *new_batches],
            next_id=self.next_id + len(y),
            next_batch_id=self.next_batch_id + n_new,
            unheard_batches=self.unheard_batches.union(new_batches),
            unheard_ids=self.unheard_ids,
            sample_weight=sample_weight,
        )
        return data, [Kept(row, _places(rows)) for row, rows in enumerate(self.members)]

    def without(self, rows: Tensor) -> tuple[RunData, list[Kept]]:
        """All examples but these; and the batches that go on, which keep one at least."""
        stays = torch.ones(len(self), dtype=torch.bool, device=self.y.device)
        stays[rows.to(stays.device)] = False
        return self._only(stays, range(len(self.members)))

    def _only(self, stays: Tensor, batches: Any) -> tuple[RunData, list[Kept]]:
        """The examples that a mask says, in those of these batches that keep any."""
        new_row = stays.cumsum(0) - 1
        kept, members = [], []
        for row in batches:
            places = stays[self.members[row]].nonzero()[:, 0]
            if len(places) > 0:
                kept.append(Kept(row, places))
                members.append(new_row[self.members[row][places]])
        data = replace(
            self,
            x=self.x[stays.to(self.x.device)],
            y=self.y[stays],
            ids=self.ids[stays.cpu()],
            labels=None if self.labels is None else self.labels[stays.cpu()],
            sample_weight=None if self.sample_weight is None else self.sample_weight[stays.cpu()],
            members=members,
            batch_ids=[self.batch_ids[batch.row] for batch in kept],
        )
        return data, kept

    def with_values(self, rows: Tensor, x: Tensor, y: Tensor) -> tuple[RunData, list[Kept]]:
        """The same examples, of which some have new values; and all batches, in which the places of these are -1."""
        is_new = torch.zeros(len(self), dtype=torch.bool, device=self.y.device)
        is_new[rows.to(is_new.device)] = True
        rows_of_x, inputs = rows.to(self.x.device), self.x
        if not torch.equal(inputs[rows_of_x], x):  # a mended label needs no copy of all inputs
            inputs = inputs.index_copy(0, rows_of_x, x)
        targets = self.y.index_copy(0, rows.to(self.y.device), y)
        unheard_ids = self.unheard_ids.union(self.ids[rows].tolist())
        kept = [Kept(row, _places(old).masked_fill(is_new[old], -1)) for row, old in enumerate(self.members)]
        return replace(self, x=inputs, y=targets, unheard_ids=unheard_ids), kept


def _places(rows: Tensor) -> Tensor:
    return torch.arange(len(rows), device=rows.device)


def accept(
    network: Network,
    x: Any,
    y: Any,
    config: TrainConfig,
    *,
    groups: Any = None,
    sample_weight: Any = None,
    members: list[Tensor] | None = None,
    is_new: bool = True,
) -> tuple[RunData, bool]:
    """The data that a user has handed in, checked and where they belong, and whether targets came as (n,), not (n, 1).

    Args:
        groups, sample_weight: as for Trainer.
        members: rows of each batch; drawn if not given.
        is_new: False if these data were accepted before; few that are left of them may look unscaled.
    """
    x, y = examples.as_arrays(x, y)
    network.take_shape(np.shape(x)[1:])
    x = checks.check_inputs(x, network.input_shape, network.dtype)
    is_flat = np.ndim(y) == 1
    check = network.head.check_targets if is_new else network.head.check_more_targets
    y = check(y, network.n_outputs)
    is_flat &= y.ndim == 2
    checks.check_examples(x, y, network.dtype)
    n_given, labels, weight = len(x), check_groups(groups, len(x)), check_sample_weight(sample_weight, len(x))
    counted = slice(None) if weight is None or weight.all() else torch.from_numpy(weight.nonzero()[0])
    x, y = x[counted], y[counted]
    if is_new:
        checks.warn_of_scale(x, y)
    x = examples.place_inputs(x, network.device, network.dtype, config.data_store)
    y = y.to(device=network.device, dtype=network.dtype if y.is_floating_point() else None)
    if members is None:
        members = _draw_batches(len(x), config, network.device)
    data = replace(
        RunData.of(x, y, None if labels is None else torch.from_numpy(labels)[counted], members),
        ids=torch.arange(n_given)[counted],
        next_id=n_given,
        sample_weight=None if weight is None else torch.from_numpy(weight)[counted],
    )
    return data, is_flat


def joined_weights(sample_weight: Any, counted: Tensor, data: RunData, n_new: int) -> Tensor | None:
    """Weights of the examples of a run and of new ones behind them; None if nobody has said any.

    Args:
        counted: how often the examples of the run count.
    """
    new = check_sample_weight(sample_weight, n_new)
    if new is None and data.sample_weight is None:
        return None
    if new is not None and not new.all():
        raise ValueError(
            "sample_weight of examples that are added must be above 0; leave out those that shall not count"
        )
    added = torch.ones(n_new, dtype=torch.float64) if new is None else torch.from_numpy(new)
    return torch.cat([counted, added])


def accept_more(network: Network, data: RunData, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """More examples as the run has its own, or a ValueError."""
    x, y = examples.as_arrays(x, y)
    x = checks.check_inputs(x, network.input_shape, network.dtype)
    y = network.head.check_more_targets(y, network.n_outputs)
    checks.check_examples(x, y, network.dtype)
    return x.to(data.x), y.to(data.y)


def _draw_batches(n: int, config: TrainConfig, device: torch.device) -> list[Tensor]:
    """Rows of each batch: a random partition that never changes, because a site belongs to its rows.

    Sizes differ by one at most: a rest of a few rows would say as much about the curvature as all others.
    """
    order = torch.randperm(n, generator=torch.Generator().manual_seed(config.seed))
    return list(order.to(device).tensor_split(math.ceil(n / config.batch_size)))
