"""Which runs have an objective, and that a run keeps what it began with: in files, when data come, when runs merge."""

import itertools

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.messages.gaussian import Gaussian
from bayesmp.training.schedules import ObjectiveSchedule, has_objective
from tests.basics.test_persistence import assert_same_run
from tests.helpers import linear_data, linear_posterior, mlp

NOISE_VAR = 0.09
FEW = 60


@pytest.fixture
def few(monkeypatch):
    """More weights or rows than these are many."""
    for place in (
        "evidence.pass_over_data.MAX_RANK",
        "evidence.pass_over_data.MAX_EXACT",
        "belief.base.MAX_RANK",
        "training.schedules.objective.MAX_EXACT",
    ):
        monkeypatch.setattr(f"bayesmp.{place}", FEW)


def with_uneven_prior(network):
    """One weight whose prior is another than that of its neighbours."""
    rho = network.prior.rho.clone()
    rho[0] *= 3.0
    network.prior = Gaussian(torch.zeros_like(rho), rho)
    return network


def small(**options):  # 31 weights
    return mlp([3, 6, 1], bmp.Regression(NOISE_VAR), **options)


def large(**options):  # 101 weights
    return mlp([3, 20, 1], bmp.Regression(NOISE_VAR), **options)


def image_network():  # 72 weights
    layers = [bmp.Conv2d(1, 7, (3, 3)), bmp.LeakyReLU(), bmp.Flatten(), bmp.Linear(7, 1)]
    return bmp.Network(layers, bmp.Regression(NOISE_VAR), input_shape=(1, 3, 3))


CASES = {
    "few weights": (small, 1000, True),
    "few rows": (large, FEW, True),
    "many of both": (large, FEW + 1, True),
    "many of both, and labels": (lambda: mlp([3, 20, 2], bmp.Softmax()), FEW + 1, False),
    "few weights with a prior of their own": (lambda: with_uneven_prior(small()), 1000, True),
    "few rows, but weights with a prior of their own": (lambda: with_uneven_prior(large()), FEW, False),
    "few rows, but shared weights": (image_network, FEW, False),
    "labels": (lambda: mlp([3, 6, 2], bmp.Softmax()), 1000, True),
    "few labels": (lambda: mlp([3, 20, 3], bmp.Softmax()), FEW // 2, True),
    "labels that tell more than rows are few": (lambda: mlp([3, 20, 3], bmp.Softmax()), FEW // 2 + 1, False),
    "labels without a loss": (lambda: mlp([3, 6, 2], bmp.Argmax()), 10, False),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("few")
def test_what_can_have_an_objective(name):
    make, n_rows, expected = CASES[name]
    assert has_objective(make(), n_rows) == expected


def test_a_network_with_a_past_has_none():
    network, (x, y) = small(), linear_data(40)
    bmp.fit(network, x, y, epochs=3)
    assert has_objective(network, 40) and not has_objective(network.as_prior(), 40)


def test_few_rows_and_a_prior_of_each_weight_are_believed_exactly():
    """The curvature is kept over weights there, while the belief's plan was made for rows: training ended in an
    AttributeError."""
    x, y = linear_data(4, n_in=6)
    var = torch.linspace(0.2, 2.0, 7, dtype=torch.float64)
    layer = bmp.Linear(6, 2, weight_prior=(0.0, torch.stack([var[:6], var[:6].flip(0)])), bias_prior=(0.0, var[6]))
    network = bmp.Network([layer], bmp.Regression(NOISE_VAR)).to(torch.float64)
    bmp.fit(network, x, torch.cat([y, y], 1), epochs=3)
    ones = np.concatenate([x.numpy(), np.ones((4, 1))], 1)
    mean, covariance = linear_posterior(ones, y[:, 0].numpy(), np.zeros(7), var.numpy(), NOISE_VAR)
    found = network.predict(x)
    np.testing.assert_allclose(found.mean[:, 0], ones @ mean, rtol=1e-6)
    np.testing.assert_allclose(found.epistemic_var[:, 0], np.einsum("ni,ij,nj->n", ones, covariance, ones), rtol=1e-6)


@pytest.mark.usefixtures("few")
def test_a_run_that_grows_keeps_its_objective(tmp_path):
    """Read from a file it once was a run without, as a new one of so many rows is, and its state did not fit."""
    x, y = linear_data(80)
    run = bmp.Trainer(large(), x[:50], y[:50], batch_size=16)
    run.run(2)
    run.add(x[50:], y[50:])
    run.run(2)
    run.save(tmp_path / "run")
    loaded = bmp.Trainer.load(tmp_path / "run", run.x, run.y)
    assert run.has_objective and loaded.has_objective
    run.run(2)
    loaded.run(2)
    assert_same_run(loaded, run)
    assert run.network.belief.is_exact


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("cuts", [(0, 30, 60), (0, 80, 110), (0, 30, 110)])
def test_runs_with_an_objective_merge_into_one_with(cuts):
    """As a run of all these data is."""
    merged_one(cuts, ObjectiveSchedule)


def merged_one(cuts, kind):
    x, y = linear_data(cuts[-1])
    parts = []
    for start, end in itertools.pairwise(cuts):
        parts.append(bmp.Trainer(large(), x[start:end], y[start:end], batch_size=16))
        parts[-1].run(8)
    merged = bmp.merge(parts)
    assert isinstance(merged.schedule, kind)
    merged.run(8)
    error = float((merged.network.predict(x).mean - y).square().mean().sqrt())
    assert merged.check_invariant() < 1e-3 and error < 0.4
