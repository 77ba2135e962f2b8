"""How wide the prior is: the factor against the maximum of the exact evidence, and who may change it."""

import math

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.messages.gaussian import Gaussian
from tests.helpers import mlp

torch.set_num_threads(1)

NOISE_VAR = 0.09


def steep(n=120, *, scale=10.0, seed=0):
    """A bent function whose values are far larger than the prior expects, (n, 3) and (n,)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    y = np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=n)
    return torch.tensor(x).float(), torch.tensor(scale * y / y.std()).float()


def widened(*, n=120, epochs=100, **options):
    """A run that has asked for a wider prior."""
    x, y = steep(n)
    trainer = bmp.Trainer(mlp((3, 20, 1), bmp.Regression("learn")), x, y, batch_size=40, seed=0, **options)
    trainer.run(epochs, progress=False)
    return trainer


@pytest.mark.slow
def test_targets_that_the_prior_does_not_expect_widen_it_and_are_told_better():
    chosen, fixed = (widened(n=250, epochs=150, learn_prior=learn_prior) for learn_prior in (None, False))
    assert chosen.network.prior_width > 3.0
    assert fixed.network.prior_width == 1.0
    x, y = steep(1000, seed=9)
    scores = [-float(trainer.network.predict(x).log_prob(y).mean()) for trainer in (chosen, fixed)]
    assert scores[0] < scores[1] - 0.05
    assert chosen.check_invariant() < 1e-4, "the posterior is prior x sites, with the prior as wide as it is now"
    assert "times those it began with" in repr(chosen.network)


@pytest.mark.slow
def test_targets_that_it_expects_leave_it_about_as_it_is():
    x, y = steep(scale=1.0)
    network = mlp((3, 20, 1), bmp.Regression("learn"))
    bmp.Trainer(network, x, y, batch_size=20, seed=0).run(60, progress=False)
    assert 0.2 < network.prior_width < 8.0  # with an objective 5.9, where features and width are found together


def learns_width(network):
    """Whether a run on this network would learn the width of its prior."""
    x, y = steep(20)
    targets = y if network.head.has_noise else (y > 0).long()
    return bmp.Trainer(network, x, targets, batch_size=20, seed=0).schedule.learns_width


def test_who_states_a_model_gets_the_posterior_of_just_this_one():
    assert learns_width(mlp((3, 8, 1), bmp.Regression("learn")))
    assert learns_width(mlp((3, 8, 2), bmp.Softmax())), "labels state no noise"
    assert not learns_width(mlp((3, 8, 1), bmp.Regression(0.1))), "the noise is known"
    given = bmp.Network([bmp.Linear(3, 1, weight_prior=(0.0, 1.0))], bmp.Regression("learn"))
    assert not learns_width(given)
    assigned = mlp((3, 8, 1), bmp.Regression("learn"))
    assigned.prior = Gaussian.from_moments(assigned.prior.mean, 0.01 * assigned.prior.var)
    assert not learns_width(assigned)
    with pytest.raises(AttributeError, match="what the data have chosen"):
        assigned.prior_width = 20.0


@pytest.mark.slow
def test_a_prior_that_is_assigned_within_a_run_stays_as_it_is():
    trainer = widened()
    trainer.network.prior = trainer.network.prior
    assert trainer.network.prior_width == 1.0
    trainer.run(20, progress=False)
    assert trainer.network.prior_width == 1.0


def test_who_asks_for_a_width_where_messages_are_passed_is_told_that_nobody_tells_it():
    x, y = steep(60)
    with pytest.warns(UserWarning, match="learn_prior=True has no effect"):
        bmp.Trainer(mlp((3, 8, 2), bmp.Argmax()), x, (y > 0).long(), learn_prior=True)


def test_the_sequential_schedule_keeps_the_prior():
    with pytest.raises(ValueError, match="learn_prior=True needs the parallel schedule"):
        bmp.TrainConfig(schedule="sequential", learn_prior=True)
    with pytest.raises(ValueError, match="learn_prior must be True, False or None"):
        bmp.TrainConfig(learn_prior="yes")


@pytest.mark.slow
def test_a_network_forgets_its_width_with_its_data():
    network = widened().network
    rule = network.rule_prior.var
    last = slice(-21, None)  # weights and bias that no given input has
    torch.testing.assert_close(network.exact_prior.var[last], network.prior_width * rule[last])
    network.reset()
    assert network.prior_width == 1.0
    torch.testing.assert_close(network.prior.var.double(), rule, rtol=1e-6, atol=0.0)


@pytest.mark.slow
def test_files_hold_the_width(tmp_path):
    trainer = widened()
    network = trainer.network
    network.save(tmp_path / "model.safetensors")
    loaded = bmp.load(tmp_path / "model.safetensors")
    assert loaded.prior_width == network.prior_width != 1.0
    assert torch.equal(loaded.prior.rho, network.prior.rho)
    assert not loaded.has_given_prior
    wide = loaded.to(torch.float64)
    torch.testing.assert_close(wide.prior.rho, wide.exact_prior.rho)
    x, _ = steep(5, seed=2)
    torch.testing.assert_close(wide.predict(x).std, network.predict(x).std.double(), rtol=1e-3, atol=1e-5)

    trainer.save(tmp_path / "run.safetensors")
    trainer.run(30, progress=False)
    again = bmp.Trainer.load(tmp_path / "run.safetensors", *steep())
    again.run(30, progress=False)
    assert again.network.prior_width == network.prior_width
    assert torch.equal(again.network.marginal.tau, network.marginal.tau)


def test_a_given_prior_stays_given_in_a_file(tmp_path):
    network = mlp((3, 8, 1), bmp.Regression("learn"))
    network.prior = Gaussian.from_moments(network.prior.mean, 0.1 * network.prior.var)
    network.save(tmp_path / "model.safetensors")
    assert bmp.load(tmp_path / "model.safetensors").has_given_prior


@pytest.mark.slow
def test_what_was_learned_is_the_prior_of_new_data_as_it_is():
    """The width of the old prior is part of the belief that becomes the new one, and not a factor on it."""
    network = widened().network
    new = network.as_prior()
    assert new.prior_width == 1.0
    before = new.prior.rho.clone()
    new.reset()
    assert new.prior_width == 1.0 and torch.equal(new.prior.rho, before)
    x, _ = steep(5, seed=2)
    torch.testing.assert_close(new.predict(x).mean, network.predict(x).mean)


@pytest.mark.slow
def test_merged_runs_have_the_width_between_theirs():
    parts = []
    for seed in (0, 1):
        x, y = steep(100, scale=10.0 - 6.0 * seed, seed=seed)
        trainer = bmp.Trainer(mlp((3, 20, 1), bmp.Regression("learn")), x, y, batch_size=20, seed=0)
        trainer.run(60, progress=False)
        parts.append(trainer)
    widths = [trainer.network.prior_width for trainer in parts]
    assert widths[0] != widths[1]
    merged = bmp.merge(parts)
    assert merged.network.prior_width == pytest.approx(math.sqrt(widths[0] * widths[1]))
    assert merged.check_invariant() < 1e-4
    merged.run(5, progress=False)
    assert merged.check_invariant() < 1e-4
