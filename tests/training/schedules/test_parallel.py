"""The parallel schedule: posterior = prior x sites at all times, the same bits from the same seeds, no divergence."""

import math

import pytest
import torch
from tqdm import tqdm

import bayesmp as bmp
from bayesmp.data import sine
from bayesmp.sites.sites import Sites
from tests.helpers import mlp
from tests.training.schedules.small_runs import HEADS, assert_same_posterior, problem, product_by_hand, visit

ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-4}

# --- posterior = prior x sites ---------------------------------------------------------------------------------------


pytestmark = pytest.mark.filterwarnings(
    "ignore:training ended worse than a constant"
)  # short runs, with noise that is given too small


@pytest.fixture(autouse=True)
def visits(monkeypatch):
    """Regressions are trained by visits to batches here, not by an objective (training/schedules/objective.py)."""
    monkeypatch.setattr("bayesmp.training.schedules.has_objective", lambda network, n_examples: False)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("n_in", [3, 36])  # all of a share of the variance is seen, or less
@pytest.mark.parametrize("name", HEADS)
def test_posterior_is_prior_times_all_sites_after_every_epoch(name, n_in, dtype):
    trainer = problem(name, n_in=n_in, dtype=dtype, debug=True)
    assert_same_posterior(trainer.network.marginal, product_by_hand(trainer), ROUNDING[dtype])
    for _ in range(4):
        trainer.run(1)
        assert trainer.check_invariant() < ROUNDING[dtype]
        assert_same_posterior(trainer.network.marginal, product_by_hand(trainer), ROUNDING[dtype])


@pytest.mark.parametrize("dtype", ROUNDING)
def test_posterior_is_prior_times_all_sites_between_visits(dtype):
    trainer = problem(dtype=dtype)
    for row in (0, 3, 4, 4, 1, 2, 0):
        visit(trainer, row)
        assert_same_posterior(trainer.network.marginal, product_by_hand(trainer), ROUNDING[dtype])


def test_the_slopes_of_all_sites_balance_the_prior():
    """sum_b (slope_b + shift + rho_b offset) = rho_prior (m - m_prior): the origin is the posterior mean."""
    trainer = problem(dtype=torch.float64)
    sites, prior = trainer.sites, trainer.network.prior
    for row in (0, 1, 2, 3, 4, 2, 2):
        visit(trainer, row)
        total = sites.slope.sum(0) + len(sites) * sites.shift + sites.rho.sum(0) * sites.offset
        torch.testing.assert_close(total, prior.rho * (sites.origin - prior.mean), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(trainer.network.marginal.mean, sites.origin, rtol=1e-12, atol=1e-12)


def test_debug_mode_notices_a_broken_posterior(monkeypatch):
    trainer = problem(debug=True)
    trainer.run(1)
    visit = trainer.schedule.visit

    def visit_and_spoil(batch, epoch):
        info = visit(batch, epoch)
        trainer.sites.rho[0] += 10.0 * trainer.network.marginal.rho  # a site that nobody accounted for
        return info

    monkeypatch.setattr(trainer.schedule, "visit", visit_and_spoil)
    with pytest.raises(RuntimeError, match="posterior differs from prior x sites"):
        trainer.run(1)


def test_a_run_goes_on_from_its_own_posterior_after_the_network_was_reset():
    """Once, another trainer on the same network, or a reset, silently changed what the next epoch started from."""
    trainer, undisturbed = problem(dtype=torch.float64), problem(dtype=torch.float64)
    for run in (trainer, undisturbed):
        run.run(8)
    trainer.network.reset()
    assert (trainer.network.sum_share == 1.0).all() and (undisturbed.network.sum_share < 0.95).any()
    for run in (trainer, undisturbed):
        run.run(2)
    torch.testing.assert_close(trainer.network.sum_share, undisturbed.network.sum_share)
    torch.testing.assert_close(trainer.network.marginal.rho, undisturbed.network.marginal.rho)
    torch.testing.assert_close(trainer.network.marginal.mean, undisturbed.network.marginal.mean)


def test_a_network_moved_to_another_precision_is_refused():
    trainer = problem(dtype=torch.float64)
    trainer.run(1)
    trainer.network.to(torch.float32)
    with pytest.raises(ValueError, match="move the network back"):
        trainer.run(1)


def test_the_tight_start_is_a_message_of_the_data_not_a_prior():
    """Before the first visit the weights sit at their starting means, held by the sites; the prior stays broad, and
    where the layer is wide its means are others.
    """
    trainer = problem(dtype=torch.float64, n_in=64)
    network = trainer.network
    torch.testing.assert_close(network.marginal.mean, network.start)
    assert not torch.allclose(network.start, network.prior.mean)
    assert (network.marginal.rho > 2 * network.prior.rho).all()
    trainer.run(30)
    untouched = product_by_hand(trainer)
    assert (untouched.rho >= network.prior.rho).all()


# --- the head's constant ---------------------------------------------------------------------------------------------


def test_visits_leave_the_constant_to_refreshes_of_the_belief():
    """A visit changes neither the batches' messages to the noise nor the belief about it. A refresh replaces them all
    by its own, each batch having an equal part.
    """
    trainer = problem("learned noise", dtype=torch.float64)
    before, belief = trainer.sites.head.clone(), trainer.network.head_log_weights.clone()
    for row in range(len(trainer.sites)):
        visit(trainer, row)
    assert torch.equal(trainer.sites.head, before) and torch.equal(trainer.network.head_log_weights, belief)
    message = torch.linspace(-3.0, 1.0, before.shape[1], dtype=torch.float64)
    for _ in range(2):  # not counted twice
        trainer.schedule.hear_constant(message)
    torch.testing.assert_close(trainer.sites.head, (message / len(trainer.sites)).expand_as(before))
    expected = torch.softmax(trainer.network.head.prior_log_weights() + message, 0)
    torch.testing.assert_close(torch.softmax(trainer.network.head_log_weights, 0), expected)


def test_the_constant_that_predictions_use_does_not_touch_training():
    """The last refresh judges the noise for predictions; the next run starts from what training had."""
    trainer = problem("learned noise", dtype=torch.float64)
    trainer.run(7)  # epoch 7 itself brings no refresh
    in_training = trainer.sites.head_posterior(trainer.schedule.head_prior)
    assert not torch.allclose(torch.softmax(trainer.network.head_log_weights, 0), torch.softmax(in_training, 0))
    heard = []
    trainer.schedule.visit_on_device = lambda batch, inner=trainer.schedule.visit_on_device: (
        heard.append(trainer.network.head_log_weights.clone()),
        inner(batch),
    )[1]
    trainer.run(1)
    torch.testing.assert_close(heard[0], in_training.to(heard[0]))


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "n, batch_size, sizes",
    [(37, 8, [8, 8, 7, 7, 7]), (37, 37, [37]), (37, 1000, [37]), (16, 8, [8, 8]), (3, 2, [2, 1]), (1, 4, [1])],
)
@pytest.mark.parametrize("n_in", [3, 36])
@pytest.mark.parametrize("name", ["regression", "argmax"])
def test_any_batch_size_trains(name, n_in, n, batch_size, sizes):
    """A last batch of a single example and a single output once gave a variance of one number, that is NaN."""
    trainer = problem(name, n=n, n_in=n_in, batch_size=batch_size, debug=True)
    assert [len(rows) for rows in trainer.members] == sizes
    assert sorted(torch.cat(trainer.members).tolist()) == list(range(n))
    trainer.run(5)
    marginal = trainer.network.marginal
    assert marginal.tau.isfinite().all() and marginal.rho.isfinite().all() and (marginal.rho > 0).all()
    assert all(0.0 < step <= 1.0 for record in trainer.history for step in record.steps)


# --- determinism -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, n_in", [("regression", 3), ("softmax", 3), ("argmax", 36)])
def test_the_same_seeds_give_the_same_bits(name, n_in):
    posteriors = []
    for _ in range(2):
        trainer = problem(name, n_in=n_in)
        trainer.run(3)
        posteriors.append(trainer.network.marginal)
    assert torch.equal(posteriors[0].tau, posteriors[1].tau) and torch.equal(posteriors[0].rho, posteriors[1].rho)


def test_running_on_is_the_same_as_running_through():
    through, on = problem(), problem()
    through.run(5)
    on.run(2)
    on.run(3)
    assert torch.equal(through.network.marginal.tau, on.network.marginal.tau)
    assert [record.epoch for record in on.history] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("options", [{"config_seed": 1}, {"seed": 1}])
def test_another_seed_gives_another_run(options):
    one, other = problem(), problem(seed=options.get("seed", 0))
    if "config_seed" in options:
        other = bmp.Trainer(mlp([3, 6, 6, 1], bmp.Regression(0.09)), one.x, one.y, batch_size=8, seed=1)
    one.run(1)
    other.run(1)
    assert not torch.equal(one.network.marginal.tau, other.network.marginal.tau)


# --- nothing diverges ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_layers", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("batch_size", [50, 200])
def test_sine_gets_better_and_stays_finite(n_layers, batch_size):
    x, y = sine(200)
    network = mlp([1, *[16] * (n_layers - 1), 1], bmp.Regression(0.05**2))
    trainer = bmp.Trainer(network, x, y, batch_size=batch_size, debug=True)
    history = trainer.run(20 if batch_size == 50 else 60)
    rmse = history.column("rmse")
    assert all(map(math.isfinite, rmse))
    last = sorted(rmse[-15:])[7]  # now and then it jumps; at which epoch depends on the machine's rounding
    assert last < 0.8 * rmse[0] and last < 0.36, f"RMSE {rmse[0]:.3f} -> {rmse[-15:]}"
    assert max(rmse[5:]) < 2 * rmse[0]
    predicted = network.predict(torch.linspace(-5, 5, 101)[:, None])
    assert predicted.mean.isfinite().all() and (predicted.epistemic_var >= 0).all()
    assert predicted.epistemic_var[0] > predicted.epistemic_var[60], "less sure far from the data"


# --- how much the metric remembers -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_many_small_batches_learn():
    """10,000 rows in batches of 8 ended at an RMSE of 3.2, in batches of 2 at 3,490, where .2 is right. The metric
    averaged over 100 visits, so it forgot most of what the data say, while steps may be four times its length.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 10, generator=generator)
    mixes = x @ torch.randn(10, 3, generator=generator) / 10**0.5
    y = (2.0 * mixes[:, 0]).sin() + mixes[:, 1] * mixes[:, 2] + 0.5 * mixes[:, 1]
    network = mlp([10, 50, 1], bmp.Regression("learn"))
    history = bmp.Trainer(network, x, y / y.std(), batch_size=2).run(3)
    assert history[-1].metrics["rmse"] < 0.7, "one guess for all has 1"


@pytest.mark.parametrize("n, covered, gap", [(3, 5, 1), (60, 60, 2), (400, 400, 4)])
def test_the_metric_covers_an_epoch_and_listens_to_a_quarter_of_it_at_least(n, covered, gap):
    """Fewer than 25 heard visits are too noisy an average, and one in 200 of small batches would be, too."""
    trainer = problem(n=n, batch_size=1)
    schedule, heard = trainer.schedule, []
    assert schedule.memory == covered
    for _ in range(2 * covered):
        schedule.before_visit()
        heard.append(schedule.listens)
    assert all(heard[:covered]) and heard[covered:].count(True) == covered // gap
    assert float(schedule.share) == pytest.approx(1.0 / (covered // min(gap, 2)))


# --- what a move changes in the slopes of other batches --------------------------------------------------------------


def rare_columns(seed, *, dtype=torch.float32):
    """The largest RMSE of an epoch after the third: five columns, each 1 in two rows of 700, which are 0 elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    x, indicators = torch.randn(700, 4, generator=generator), torch.zeros(700, 5)
    for column in range(5):
        indicators[torch.randperm(700, generator=generator)[:2], column] = 1.0
    y = x[:, 0].sin() + 0.5 * x[:, 1] * x[:, 2] + 2.0 * indicators @ torch.randn(5, generator=generator)
    y = y + 0.1 * torch.randn(700, generator=generator)
    x = torch.cat([x, (indicators - indicators.mean(0)) / indicators.std(0)], 1)
    trainer = bmp.Trainer(mlp([9, 20, 1], bmp.Regression("learn"), seed=seed, dtype=dtype), x, y, batch_size=16)
    scores = []
    for epoch in range(1, 11):
        trainer._run_epoch(epoch, tqdm(disable=True))
        scores.append(trainer.history[-1].metrics["rmse"] / float(y.std()))
    return max(scores[3:])


@pytest.mark.parametrize("seed", range(5))
def test_rare_categories_do_not_blow_up(seed):
    """An R2 of -10^20, at rest: what one batch said of a direction that it alone knows was shared out equally, so every
    other visit of the epoch said it again.
    """
    assert rare_columns(seed) < 1.0, "one guess for all has 1"


def test_sharing_slopes_out_equally_blows_up(monkeypatch):
    """So it is this that keeps rare categories in bounds; in double precision no compiled pass does it instead."""
    assert rare_columns(0, dtype=torch.float64) < 1.0
    monkeypatch.setattr(Sites, "share_out", lambda sites, change, *_: sites.shift.add_(change / len(sites)))
    assert not rare_columns(0, dtype=torch.float64) < 2.0
