"""Visits recorded as CUDA graphs: one launch per visit instead of some thousand."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bayesmp.sites.sites import SiteIndex
from bayesmp.training.schedules.base import Batch, VisitInfo

WARM_UP = 3  # visits run plainly before recording, so that libraries have chosen their algorithms

VisitOnDevice = Callable[[Batch], VisitInfo]  # waits for nothing


class RecordedVisit:
    """A visit that waits for nothing, for one batch shape, replayed on new data. Recording changes no state."""

    def __init__(self, visit: VisitOnDevice, batch: Batch) -> None:
        self.batch = Batch(
            SiteIndex(-1, batch.index.tensor.clone(), batch.index.is_staged), batch.x.clone(), batch.y.clone()
        )
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(batch.x.device)
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            self.info: VisitInfo = visit(self.batch)

    def __call__(self, batch: Batch) -> VisitInfo:
        self.batch.index.tensor.copy_(batch.index.tensor)
        self.batch.x.copy_(batch.x)
        self.batch.y.copy_(batch.y)
        self.graph.replay()
        return self.info


class RecordedVisits:
    """The recorded visits of a run, by the shape of the batch and whether the metric listens."""

    def __init__(self) -> None:
        self._graphs: dict[tuple[int, ...], RecordedVisit] = {}
        self._plain_visits: dict[tuple[int, ...], int] = {}
        self._held: tuple[object, ...] = ()

    def visit(self, plain: VisitOnDevice, batch: Batch, *, listens: bool, held: tuple[object, ...]) -> VisitInfo:
        """The visit as a CUDA graph, recorded once enough plain visits of its kind have run.

        Args:
            plain: the visit itself.
            held: what it reads and writes that may be replaced by other objects; visits are then recorded anew.
        """
        if any(now is not then for now, then in zip(held, self._held, strict=False)) or not self._held:
            self._graphs.clear()
            self._held = held
        key = (listens, *batch.x.shape)
        if key in self._graphs:
            return self._graphs[key](batch)
        seen = self._plain_visits[key] = self._plain_visits.get(key, 0) + 1
        if seen <= WARM_UP:
            return plain(batch)
        self._graphs[key] = RecordedVisit(plain, batch)
        return self._graphs[key](batch)

    def clear(self) -> None:
        """Record all visits anew."""
        self._graphs.clear()
        self._plain_visits.clear()
