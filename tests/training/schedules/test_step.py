"""Steps: the best ones of what was measured; how far longer ones than the metric says may go, and that they change no
fixed point.
"""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import bayesmp as bmp
from bayesmp.basics.settings import SETTINGS
from bayesmp.training.schedules.step import step_of_all, step_of_batch, stretch_of
from tests.helpers import linear_data, linear_posterior, mlp

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def visits(monkeypatch):
    """Regressions are trained by visits to batches here, not by an objective (training/schedules/objective.py)."""
    monkeypatch.setattr("bayesmp.training.schedules.has_objective", lambda network, n_examples: False)


def best_step(slope, curvature, longest):
    """By trying many: the one that most raises slope * step - curvature * step^2 / 2."""
    steps = torch.linspace(0.0, longest, 200_001, dtype=torch.float64)
    return float(steps[(slope * steps - 0.5 * curvature * steps.square()).argmax()])


@pytest.mark.parametrize("n_batches", [1, 5, 40, 1000])
@pytest.mark.parametrize("curvature", [0.0, 0.4, 3.0, 500.0])
@pytest.mark.parametrize("reach", [0.0, 0.2, 40.0])
def test_a_step_is_the_best_one_that_outputs_can_bear(n_batches, curvature, reach):
    """On the batch as measured and the others as the metric has them; for one batch, and for all data."""
    model, stretch = 2.5, stretch_of(n_batches, SETTINGS)
    numbers = [torch.tensor(value, dtype=torch.float64) for value in (curvature, reach, model)]
    bearable = SETTINGS.max_reach / reach if reach else 1e9
    others = model * (1.0 - 1.0 / n_batches) / stretch
    expected = best_step(model, curvature + others, min(stretch, bearable))
    found = step_of_batch(*numbers, n_batches=n_batches, settings=SETTINGS)
    assert float(found) == pytest.approx(expected, rel=1e-3, abs=2e-5)
    expected = best_step(model, curvature, min(2.0, bearable))
    assert float(step_of_all(*numbers, settings=SETTINGS)) == pytest.approx(expected, rel=1e-3, abs=2e-5)


def test_nothing_to_say_is_no_division_by_zero():
    nothing = torch.zeros((), dtype=torch.float32)
    for found in (
        step_of_batch(*[nothing] * 3, n_batches=4, settings=SETTINGS),
        step_of_all(*[nothing] * 3, settings=SETTINGS),
    ):
        assert found.isfinite() and found > 0.0


def growth(n, stretch):
    """Largest factor per visit of r_t = (1 - stretch) mean(r_{t-n}, ..., r_{t-1}), the innovations of n equal batches
    whose curvature the metric knows."""
    return np.abs(np.roots([1.0, *np.full(n, (stretch - 1.0) / n)])).max()


@pytest.mark.parametrize("n", [1, 2, 4, 40, 100])
def test_the_limit_of_stability_is_as_the_docstring_says(n):
    assert growth(n, n + 0.9) < 1.0 < growth(n, n + 1.1)


def trainer_of(n_batches, stretch=SETTINGS.stretch):
    x, y = linear_data(4 * n_batches, n_in=3)
    trainer = bmp.Trainer(mlp([3, 1], bmp.Regression(0.09), dtype=torch.float64), x, y, batch_size=4)
    trainer.schedule.settings = dataclasses.replace(SETTINGS, stretch=stretch)
    return trainer


@pytest.mark.parametrize("n_batches, allowed", [(1, 1.0), (16, 1.0), (40, 2.5), (64, 4.0), (300, 4.0)])
def test_only_many_batches_allow_long_steps(n_batches, allowed):
    assert trainer_of(n_batches).schedule.stretch == allowed
    assert growth(n_batches, allowed) < 0.9999 or n_batches == 1


@pytest.mark.parametrize("stretch", [(1.0, 0.0625), (4.0, 0.0625), (4.0, 1.0)])
def test_a_linear_network_rests_at_the_exact_posterior_whatever_the_stretch(stretch):
    trainer = trainer_of(80, stretch)
    trainer.run(60, progress=False)
    x = np.c_[trainer.x.numpy(), np.ones(len(trainer.x))]
    prior = trainer.network.prior
    mean, _ = linear_posterior(x, trainer.y[:, 0].numpy(), prior.mean.numpy(), prior.var.numpy(), 0.09)
    np.testing.assert_allclose(trainer.network.marginal.mean.numpy(), mean, rtol=1e-4, atol=1e-5)
    assert max(trainer.history[0].steps) <= 4.0


def test_many_batches_fit_faster_with_long_steps():
    """Digits in 80 batches of 16: a better fit after the same epochs."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 8 - 1, dtype=torch.float32)[:1280], torch.tensor(digits.target)[:1280]
    found = {}
    for longest in (1.0, 4.0):
        trainer = bmp.Trainer(mlp([64, 32, 10], bmp.Argmax(), dtype=torch.float32), x, y, batch_size=16)
        trainer.schedule.settings = dataclasses.replace(SETTINGS, stretch=(longest, 0.0625))
        found[longest] = trainer.run(4, progress=False)[-1]
    assert found[4.0].metrics["nll"] < 0.95 * found[1.0].metrics["nll"]
    assert found[1.0].steps[0] <= 1.0 < 2.0 < found[4.0].steps[0] <= 4.0
