"""Visits recorded as CUDA graphs: one launch per visit instead of some thousand."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bayesmp.schedules.base import Batch, VisitInfo
from bayesmp.sites import SiteIndex

WARM_UP = 3  # visits run plainly before recording, so that libraries have chosen their algorithms


class RecordedVisit:
    """A visit that waits for nothing, for one batch shape, replayed on new data. Recording changes no state."""

    def __init__(self, visit: Callable[[Batch], VisitInfo], batch: Batch) -> None:
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
