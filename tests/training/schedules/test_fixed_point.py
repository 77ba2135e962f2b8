"""Where the parallel schedule comes to rest: one place, whatever the steps, and nothing counted twice."""

import functools
from dataclasses import replace

import pytest
import torch

import bayesmp as bmp
from bayesmp.basics.settings import SETTINGS
from bayesmp.training import schedules
from bayesmp.training.schedules.parallel import ParallelSchedule
from tests.helpers import linear_data
from tests.training.schedules.small_runs import assert_same_posterior, problem, visit

# --- one fixed point -------------------------------------------------------------------------------------------------


pytestmark = pytest.mark.filterwarnings(
    "ignore:training ended worse than a constant"
)  # given noise is not that of these targets


@pytest.fixture(autouse=True)
def visits(monkeypatch):
    """Regressions are trained by visits to batches here, not by an objective (training/schedules/objective.py)."""
    monkeypatch.setattr("bayesmp.training.schedules.has_objective", lambda network, n_examples: False)


def linear_fixed_point(*, epochs=150, batch_size=9, seed=0):
    x, y = linear_data(40, n_in=4, n_out=2)
    network = bmp.Network([bmp.Linear(4, 2)], bmp.Regression(0.09), seed=1).to(torch.float64)
    bmp.fit(network, x, y, epochs=epochs, batch_size=batch_size, seed=seed)
    return network.marginal


@pytest.mark.parametrize(
    "setting, value",
    [("tightness", 1.0), ("tightness", 0.01), ("least_memory", 1), ("least_memory", 40), ("precision_factor", 1.2)],
)
def test_the_fixed_point_does_not_depend_on_step_control(setting, value, monkeypatch):
    truth = linear_fixed_point()
    other = functools.partial(ParallelSchedule, settings=replace(SETTINGS, **{setting: value}))
    monkeypatch.setattr(schedules, "ParallelSchedule", other)
    assert_same_posterior(linear_fixed_point(), truth, 1e-8)


@pytest.mark.parametrize("options", [{"seed": 1}, {"batch_size": 40}, {"batch_size": 4}])
def test_the_fixed_point_of_a_linear_model_does_not_depend_on_batches_or_their_order(options):
    assert_same_posterior(linear_fixed_point(**options), linear_fixed_point(), 1e-8)


def test_half_the_step_arrives_at_the_same_place(monkeypatch):
    truth = linear_fixed_point()
    measured = ParallelSchedule._measure_step
    monkeypatch.setattr(ParallelSchedule, "_measure_step", lambda *args: 0.5 * measured(*args))
    assert_same_posterior(linear_fixed_point(epochs=300), truth, 1e-8)


# --- no double counting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, rest",
    [("linear", 2e-4), ("wide linear", 2e-4), ("regression", 2e-4), ("softmax", 2e-4), ("sharp softmax", 2e-5)],
)
def test_more_epochs_do_not_sharpen_a_converged_posterior(name, rest):
    """A hundred epochs after everything has come to rest: no precision of any weight has changed by 1 %.

    At rest no mean moves by more than `rest` posterior stds per visit; sharp links come to rest more slowly. For
    independent weights; with shares of sums things rest less quietly (see below).
    """
    if name.endswith("linear"):
        n_in = 4 if name == "linear" else 64
        x, y = linear_data(40, n_in=n_in)
        trainer = bmp.Trainer(bmp.Network([bmp.Linear(n_in, 1)], bmp.Regression(0.09)), x, y, batch_size=9)
    else:
        trainer = problem(name, n=60, batch_size=20, seed=1, joint=False)
    while trainer.n_epochs == 0 or trainer.history[-1].max_change > rest:
        assert trainer.n_epochs < 1500, "does not converge"
        trainer.run(50)
    before = trainer.network.marginal.rho.clone()
    assert (before > 1.5 * trainer.network.prior.rho).float().mean() > 0.4, "the data must have said something"
    trainer.run(100)
    assert (trainer.network.marginal.rho / before - 1.0).abs().max() < 0.01


@pytest.mark.parametrize(
    "name, epochs, half, average", [("regression", 500, 0.05, 0.03), ("softmax", 200, 0.005, 0.005)]
)
def test_more_epochs_do_not_sharpen_a_posterior_with_shares_of_sums(name, epochs, half, average):
    """After as many epochs as independent weights need to rest, a hundred more change half of the precisions by less
    than `half`, and sharpen by less than `average`.

    The limits are 1.3 to 4 times the largest change over six draws of the starting means. A classifier with a gain of 1
    rests; a regression with shares of sums goes on circling: single precisions, by up to 90 %, and means move to and
    fro. So does a classifier with a larger gain.
    """
    trainer = problem(name, n=60, batch_size=20, seed=1)
    trainer.run(epochs)
    before = trainer.network.marginal.rho.clone()
    assert (before > 1.5 * trainer.network.prior.rho).float().mean() > 0.4, "the data must have said something"
    trainer.run(100)
    ratio = trainer.network.marginal.rho / before
    assert (ratio - 1.0).abs().median() < half
    assert ratio.log().mean().abs() < average


def test_visiting_a_batch_again_replaces_its_site():
    """Twenty visits to one batch as one site: at the fixed point nothing sharpens; as two sites, all of the data are
    there twice. The precision is then that of the matrix form, which leaves the term's own share in: solved by hand.
    """
    x, y = linear_data(10, n_in=1)
    network = bmp.Network([bmp.Linear(1, 1, bias=False)], bmp.Regression(0.09)).to(torch.float64)
    trainer = bmp.Trainer(network, x, y, batch_size=5)
    trainer.run(60)
    before = network.marginal.map(torch.clone)
    for _ in range(20):
        visit(trainer, 0)
    assert_same_posterior(network.marginal, before, 1e-9)

    network.reset()
    trainer = bmp.Trainer(network, x.repeat(2, 1), y.repeat(2, 1), batch_size=5)
    trainer.run(60)
    for found, n_times in ((before, 1), (network.marginal, 2)):
        expected = network.prior.rho.double()
        for _ in range(200):
            added = x.square() / 0.09 / (1.0 + x.square() / 0.09 / expected)  # rho / (1 + rho var)
            expected = network.prior.rho + n_times * added.sum()
        torch.testing.assert_close(found.rho, expected)
    assert 1.8 < float(network.marginal.rho / before.rho) < 2.5
