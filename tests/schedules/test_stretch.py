"""Steps longer than the metric says: how far they may go, that they converge, and that they change no fixed point."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import bayesmp as bmp
from bayesmp.settings import SETTINGS
from tests.helpers import linear_data, linear_posterior, mlp

torch.set_num_threads(1)


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
    assert found[4.0].metrics["nll"] < 0.85 * found[1.0].metrics["nll"]
    assert found[1.0].steps[0] <= 1.0 < 2.0 < found[4.0].steps[0] <= 4.0
