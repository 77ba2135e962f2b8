"""A change of a run is made as a whole or not at all: whatever goes wrong, even an interruption, takes the run back to
where it was, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bayesmp.heads import Head
from bayesmp.messages.gaussian import Gaussian
from bayesmp.network.network import Network
from bayesmp.sites.sites import Sites
from bayesmp.training.history import History
from bayesmp.training.run import Run


@contextmanager
def all_or_nothing(run: Run) -> Iterator[Before]:
    """What is done inside is done as a whole: if it fails, or is interrupted, the run is as it was before."""
    before = Before(run)
    try:
        yield before
    except BaseException:
        before.restore()
        raise


class Before:
    """All that a change of the data may change, as it was: what objects hold, and copies of tensors that may be changed
    in place. Examples, beliefs and layers are only ever replaced by others, and so is the store of sites if batches
    come or go; rows of it that are changed in place are said with `keep_site`.
    """

    def __init__(self, run: Run) -> None:
        self.sites = run.sites
        self.rows: dict[int, Tensor] = {}
        self.tensors: list[tuple[Tensor, Tensor]] = []
        self.held: list[tuple[Any, Any]] = [(vars(run), dict(vars(run)))]
        self._seen: set[int] = {id(run.sites.store)}
        self._keep_all([*vars(run).values()])

    def keep_site(self, row: int) -> None:
        """Remember the site of this batch."""
        self.rows[row] = torch.stack([self.sites.slope[row], self.sites.rho[row]])

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
        if self.rows:
            for row, content in self.rows.items():
                self.sites.slope[row], self.sites.rho[row] = content
            self.sites.recount()

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
