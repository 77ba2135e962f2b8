"""Visits recorded as CUDA graphs: when they are recorded, and that they do what plain ones do; the latter needs a GPU,
because CUDA graphs exist nowhere else.
"""

from __future__ import annotations

import pytest
import torch

import bayesmp as bmp
from bayesmp.sites.sites import SiteIndex
from bayesmp.training.schedules import Batch, graphs


class Visits:
    """Plain visits and, in place of CUDA graphs, recorded ones that say what they are; a log of both."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.recorded = graphs.RecordedVisits()
        self.held: tuple[object, ...] = (object(), object())
        monkeypatch.setattr(graphs, "RecordedVisit", self._record)

    def _record(self, plain, batch):
        self.log.append("record")
        return lambda batch: self.log.append("replay")

    def __call__(self, n: int, *, size: int = 8, listens: bool = True) -> list[str]:
        """What n visits to batches of this size do."""
        self.log.clear()
        batch = Batch(SiteIndex(0, torch.tensor([0])), torch.zeros(size, 2), torch.zeros(size, 1))
        for _ in range(n):
            self.recorded.visit(lambda batch: self.log.append("plain"), batch, listens=listens, held=self.held)
        return self.log.copy()


FIRST = ["plain"] * graphs.WARM_UP + ["record", "replay"]


def test_a_visit_is_recorded_once_for_each_size_and_for_both_ways_to_listen(monkeypatch):
    visits = Visits(monkeypatch)
    assert visits(graphs.WARM_UP + 3) == [*FIRST, "replay", "replay"]
    for kind in ({"size": 7}, {"listens": False}):
        assert visits(graphs.WARM_UP + 1, **kind) == FIRST
    for kind in ({}, {"size": 7}, {"listens": False}):
        assert visits(1, **kind) == ["replay"]


def test_visits_are_recorded_anew_where_the_network_has_other_tensors(monkeypatch):
    """Libraries have chosen their algorithms by then: no plain visits are needed again."""
    visits = Visits(monkeypatch)
    visits(graphs.WARM_UP + 1)
    visits.held = (visits.held[0], object())
    assert visits(2) == ["record", "replay", "replay"]


def test_other_batches_begin_with_plain_visits(monkeypatch):
    visits = Visits(monkeypatch)
    visits(graphs.WARM_UP + 1)
    visits.recorded.clear()
    assert visits(graphs.WARM_UP + 1) == FIRST


def fitted(*, records: bool, moves: bool = False) -> bmp.Network:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 8, generator=generator), torch.randint(0, 3, (100,), generator=generator)
    network = bmp.Network([bmp.Linear(8, 32), bmp.LeakyReLU(), bmp.Linear(32, 3)], bmp.Argmax(), seed=1).to("cuda")
    trainer = bmp.Trainer(network, x, y, batch_size=16)  # the last batch is smaller
    trainer.schedule.records = records
    trainer.run(6)
    if moves:
        network.to("cuda")  # replaces the tensors that graphs were recorded with
    trainer.run(6)
    return network


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")
@pytest.mark.parametrize("moves", [False, True])
def test_recorded_visits_do_what_plain_ones_do(moves):
    plain, recorded = fitted(records=False), fitted(records=True, moves=moves)
    torch.testing.assert_close(recorded.marginal.rho, plain.marginal.rho, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(recorded.marginal.mean, plain.marginal.mean, rtol=1e-2, atol=1e-2)
