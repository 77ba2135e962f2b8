"""Visits in two calls against the loops over layers, which are the same visit by another road; needs a C++ compiler."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import bayesmp as bmp
from bayesmp import kernels
from bayesmp.basics.arithmetic import few_threads
from bayesmp.basics.settings import SETTINGS
from bayesmp.kernels import build, chain
from bayesmp.training.schedules import Batch
from bayesmp.training.schedules.dense_chain import DenseChain

pytestmark = pytest.mark.skipif(
    build.find_compiler() is None or chain.product() is None, reason="needs a C++ compiler and torch's BLAS"
)


@dataclass(frozen=True)
class Case:
    """A small network and its data."""

    widths: tuple[int, ...]
    head: str = "known noise"
    bias: bool = True
    leak: float = 0.1
    n: int = 37

    def trainer(self, dtype: torch.dtype, **options: Any) -> bmp.Trainer:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.n, self.widths[0], generator=generator, dtype=torch.float64)
        y: torch.Tensor = x[:, :1].sin() + 0.1 * torch.randn(self.n, self.widths[-1], generator=generator)
        heads: dict[str, Any] = {"known noise": bmp.Regression(0.01), "learned noise": bmp.Regression("learn")}
        if self.head == "labels":
            y = torch.randint(0, self.widths[-1], (self.n,), generator=generator)
        layers: list[Any] = []
        for n_in, n_out in zip(self.widths, self.widths[1:], strict=False):
            layers += [bmp.Linear(n_in, n_out, bias=self.bias), bmp.LeakyReLU(self.leak)]
        network = bmp.Network(layers[:-1], heads.get(self.head, bmp.Argmax())).to(dtype)
        y = y if self.head == "labels" else y.to(dtype)
        joint = None if self.head == "labels" else len(self.widths) > 2  # visits, where there would be an objective
        return bmp.Trainer(network, x.to(dtype), y, batch_size=15, **{"joint": joint, **options})


CASES = {
    "one layer": Case((3, 2)),
    "narrow": Case((1, 16, 16, 1)),
    "narrow, without bias": Case((5, 7, 2), bias=False),
    "one input more than all of which is seen": Case((3, 17, 1)),
    "wide above": Case((8, 50, 1), "learned noise"),
    "wide below": Case((40, 9, 3), "labels"),
    "wide, without bias": Case((40, 34, 3), bias=False),
    "three wide layers": Case((40, 36, 35, 4), "labels"),
    "a ReLU, and one row in the last batch": Case((4, 6, 6, 3), "labels", leak=0.0, n=31),
}


def visited(case: Case, backend: str, dtype: torch.dtype, n_visits: int) -> tuple[bmp.Trainer, Any]:
    """A run after some visits, and what the last one told."""
    kernels.set_backend(backend)
    trainer = case.trainer(dtype)
    info = None
    for k in range(n_visits):
        info = visit(trainer, k % len(trainer.members))
    return trainer, info


@torch.inference_mode()
def visit(trainer: bmp.Trainer, row: int) -> Any:
    rows = trainer.members[row]
    batch = Batch(trainer.sites.index(row), trainer.x[rows], trainer.y[rows])
    with few_threads(torch.device("cpu"), n_products=0):
        return trainer.schedule.visit(batch, 1)


def state_of(trainer: bmp.Trainer) -> dict[str, torch.Tensor]:
    found = {f"site.{name}": part for name, part in trainer.sites.state().items()}
    found |= {"marginal.tau": trainer.network.marginal.tau, "marginal.rho": trainer.network.marginal.rho}
    return found | {
        name: part for name, part in trainer.schedule.state().items() if "vectors" not in name and name != "signs"
    }  # the sign of an eigenvector is anybody's


def count_chains(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever a visit is made in two calls."""
    found: list[int] = []
    back = chain.back
    monkeypatch.setattr(chain, "back", lambda visit: (found.append(1), back(visit)))
    return found


@pytest.mark.parametrize("n_visits", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_a_visit_in_two_calls_is_the_visit(name, n_visits, monkeypatch):
    chains = count_chains(monkeypatch)
    truth, exact = visited(CASES[name], "torch", torch.float64, n_visits)
    plain, by_layers = visited(CASES[name], "torch", torch.float32, n_visits)
    assert not chains
    found, in_two = visited(CASES[name], "fused", torch.float32, n_visits)
    assert len(chains) == n_visits
    parts = zip(state_of(found).items(), state_of(plain).values(), state_of(truth).values(), strict=True)
    for (part, one), other, right in parts:
        scale = right.double().abs().max().clamp_min(1e-30)
        error, usual = (((each.double() - right.double()).abs() / scale).max() for each in (one, other))
        assert error < 3e-6 * n_visits + 10.0 * usual, part  # as precise as the equations are in float32
    assert int(in_two.n_rejected) == int(by_layers.n_rejected)
    assert in_two.n_messages == by_layers.n_messages
    torch.testing.assert_close(in_two.step.float(), by_layers.step, rtol=2e-5 * n_visits, atol=0.0)
    torch.testing.assert_close(in_two.step.double(), exact.step, rtol=2e-5 * n_visits, atol=0.0)
    torch.testing.assert_close(in_two.max_change.double(), exact.max_change, rtol=1e-3, atol=0.0)
    for key, value in in_two.metrics.items():
        torch.testing.assert_close(value.double(), exact.metrics[key].double(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["narrow", "wide above", "three wide layers"])
def test_the_curvature_along_a_step(name):
    """Where no layer's reach bounds the step, which it does in the first visits."""
    steps = []
    for backend, dtype in (("fused", torch.float32), ("torch", torch.float64)):
        kernels.set_backend(backend)
        trainer = CASES[name].trainer(dtype)
        trainer.schedule.settings = replace(SETTINGS, max_reach=1e6)
        steps.append([float(visit(trainer, k).step[0]) for k in range(2)])
    assert steps[0] == pytest.approx(steps[1], rel=5e-5)


def test_what_the_metric_does_not_hear_leaves_it_alone():
    kernels.set_backend("fused")
    trainer = Case((5, 7, 2)).trainer(torch.float32)
    visit(trainer, 0)
    before = {name: part.clone() for name, part in trainer.schedule.state().items()}
    trainer.schedule.next_renewal = 10**9
    trainer.schedule.before_visit = lambda: setattr(trainer.schedule, "listens", False)
    visit(trainer, 1)
    for name, part in trainer.schedule.state().items():
        is_own_pull = name.startswith("own_pull")  # of the batch that was visited, which hears nobody else either
        assert torch.equal(part, before[name]) != is_own_pull, name


def test_a_run_is_the_same_by_either_road():
    """Epochs, refreshes and the belief at the end; a few epochs, before rounding has grown."""
    runs = []
    for backend in ("fused", "torch"):
        kernels.set_backend(backend)
        trainer = CASES["wide above"].trainer(torch.float32)
        trainer.run(3, progress=False)
        runs.append(trainer)
    one, other = (trainer.network.predict(trainer.x) for trainer in runs)
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(one.std, other.std, rtol=1e-3, atol=1e-3)
    for mine, plain in zip(runs[0].history, runs[1].history, strict=True):
        assert mine.n_rejected == pytest.approx(plain.n_rejected, abs=2)
        assert mine.metrics == pytest.approx(plain.metrics, rel=1e-3)


@pytest.mark.parametrize("why", ["float64", "bfloat16 sites", "no BLAS", "no room", "a past"])
def test_other_visits_go_by_layers(why, monkeypatch):
    chains = count_chains(monkeypatch)
    options = {"site_dtype": "bfloat16"} if why == "bfloat16 sites" else {}
    trainer = Case((4, 6, 1)).trainer(torch.float64 if why == "float64" else torch.float32, **options)
    if why == "a past":
        trainer.run(1, progress=False)
        trainer = bmp.Trainer(trainer.network.as_prior(), trainer.x, trainer.y, batch_size=15)
        chains.clear()
    if why == "no BLAS":
        monkeypatch.setattr(chain, "product", lambda: None)
    if why == "no room":
        monkeypatch.setattr("bayesmp.training.schedules.dense_chain.MAX_ROOM", 1000)
    before = trainer.network.marginal.tau.clone()
    visit(trainer, 0)
    assert not chains
    assert not torch.equal(trainer.network.marginal.tau, before)


class Doubled(bmp.LeakyReLU):
    """A layer of a user's own, whose sweeps are not the library's."""


@pytest.mark.parametrize(
    "layers, expected",
    [
        ([bmp.Linear(3, 2)], True),
        ([bmp.Linear(3, 4), bmp.ReLU(), bmp.Linear(4, 2)], True),
        ([bmp.Linear(3, 4), Doubled(), bmp.Linear(4, 2)], False),
        ([bmp.Linear(3, 4), bmp.Linear(4, 2)], False),
        ([bmp.Linear(3, 4), bmp.LeakyReLU()], False),
    ],
)
def test_which_networks_are_chains(layers, expected):
    assert DenseChain.is_chain(bmp.Network(layers, bmp.Regression(0.1))) == expected


def test_numbers_that_are_not_finite_are_told(monkeypatch):
    """A step that is NaN must stay NaN, as by layers, so that the run can say what went wrong."""
    kernels.set_backend("fused")
    trainer = Case((3, 4, 1)).trainer(torch.float32)
    trainer.sites.origin[0] = torch.nan
    info = visit(trainer, 0)
    assert info.max_change.isnan() and info.step.isnan().all()
