"""What users mend AdamW with: a temperature, the best epoch, an ensemble, dropout."""

import math

import pytest
import torch
from torch import nn

from bayesmp import metrics
from bayesmp.network.torch_bridge import as_torch
from benchmarks import baselines, networks
from benchmarks.runs import Run, ensemble

CPU = torch.device("cpu")
SHORT = {"epochs": 6, "batch_size": 32}


@pytest.fixture
def noisy(blobs):
    """Blobs of which some have a wrong label, so that confidence must end badly."""
    x, y = blobs
    return x, torch.where(torch.arange(90) % 5 == 0, (y + 1) % 3, y)


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.1])
def test_temperature_is_the_one_that_fits_the_frequencies(temperature):
    """Outputs (0, T log 3) give the second class 3/4 at temperature T, as often as it is true."""
    outputs = torch.tensor([0.0, temperature * math.log(3.0)], dtype=torch.float64).expand(4, 2)
    found = baselines.fit_temperature(outputs, torch.tensor([1, 1, 1, 0]))
    assert found == pytest.approx(temperature, rel=1e-10)


def test_temperature_has_the_lowest_nll_of_its_neighbours():
    generator = torch.Generator().manual_seed(0)
    outputs = 4.0 * torch.randn(200, 5, generator=generator)
    y = (outputs + 3.0 * torch.randn(200, 5, generator=generator)).argmax(1)
    best = baselines.fit_temperature(outputs, y)
    below, at, above = (metrics.nll((outputs.double() / (best * k)).softmax(1), y) for k in (0.999, 1.0, 1.001))
    assert at < below and at < above


def test_temperature_stays_in_its_range():
    """All right, any T that rounds to certainty will do; all wrong, the most doubtful is best."""
    outputs, (low, high) = torch.tensor([[1.0, 0.0]]), baselines.TEMPERATURES
    assert low <= baselines.fit_temperature(outputs, torch.tensor([0])) < 0.05
    assert baselines.fit_temperature(outputs, torch.tensor([1])) == pytest.approx(high)


def test_held_out_examples_only_choose_the_temperature_and_the_epoch(noisy):
    x, y = noisy
    layers, config = networks.mlp(4, 32, 3), baselines.AdamWConfig(lr=0.1)
    long = {"epochs": 30, "batch_size": 16}
    tempered, best = baselines.train_adamw_held_out(layers, x, y, n_held_out=30, config=config, **long)
    assert (tempered.name, best.name) == ("AdamW, temperature from 30 held out", "AdamW, best epoch by 30 held out")

    plain = baselines.train_adamw(layers, x[:60], y[:60], config=config, **long)
    temperature = tempered.history[-1]["temperature"]
    torch.testing.assert_close(tempered.predict(x), (plain.predict(x).log() / temperature).softmax(1))
    assert metrics.nll(tempered.predict(x[60:]), y[60:]) < metrics.nll(plain.predict(x[60:]), y[60:])

    held_out = [record["held-out nll"] for record in best.history]
    assert min(held_out) < held_out[-1]  # else the test says nothing about which epoch was taken
    assert metrics.nll(best.predict(x[60:]), y[60:]) == pytest.approx(min(held_out), rel=1e-6)
    assert len(best.epoch_seconds) == 30


@pytest.mark.parametrize("n_held_out", [0, 90])
def test_held_out_examples_are_some_but_not_all(blobs, n_held_out):
    with pytest.raises(ValueError, match="1 to 89 held-out examples"):
        baselines.train_adamw_held_out(networks.mlp(4, 8, 3), *blobs, n_held_out=n_held_out, **SHORT)


def test_dropout_follows_each_activation_and_rests_in_a_plain_pass():
    model = as_torch(networks.mlp(4, 8, 8, 3))
    dropped = baselines.with_dropout(model, 0.3)
    kinds = [nn.Linear, nn.LeakyReLU, nn.Dropout] * 2 + [nn.Linear]
    assert [type(module) for module in dropped] == kinds
    x = torch.ones(5, 4)
    torch.testing.assert_close(dropped.eval()(x), model(x))


def test_mc_dropout_is_one_network_seen_plainly_and_in_samples(blobs):
    x, y = blobs
    config = baselines.DropoutConfig(lr=0.05, n_samples=20)
    plain, sampled = baselines.train_mc_dropout(networks.mlp(4, 32, 3), x, y, epochs=15, batch_size=32, config=config)
    assert (plain.name, sampled.name) == ("dropout 0.3, plain", "MC dropout 0.3, 20 samples")
    assert (plain.repeats, sampled.repeats) == (3, 1)
    assert plain.predict_both(x)[1] is None
    torch.testing.assert_close(plain.predict(x), plain.predict(x))

    probs, epistemic = sampled.predict_both(x)
    torch.testing.assert_close(probs.sum(1), torch.ones(90, dtype=torch.float64))
    assert not torch.equal(probs, sampled.predict(x))  # new masks
    assert sampled.epistemic(x).shape == epistemic.shape == (90,)
    assert (epistemic > 0.0).all()
    for found in (probs, plain.predict(x)):
        assert metrics.accuracy(found, y) > 0.95


def test_ensemble_averages_and_adds_costs(blobs):
    x, y = blobs
    members = [baselines.train_adamw(networks.mlp(4, 8, 3), x, y, seed=seed, **SHORT) for seed in range(3)]
    run = ensemble("all", members)
    probs, epistemic = run.predict_both(x)
    torch.testing.assert_close(probs, torch.stack([member.predict(x) for member in members]).mean(0))
    torch.testing.assert_close(run.predict(x), probs)
    torch.testing.assert_close(run.epistemic(x), epistemic)
    assert (epistemic > 0.0).all()
    assert run.seconds == sum(member.seconds for member in members)
    assert run.epoch_seconds[0] == sum(member.epoch_seconds[0] for member in members)
    assert [record["member"] for record in run.history] == [0] * 6 + [1] * 6 + [2] * 6


def test_run_predicts_both_from_two_calls_where_it_has_no_single_one():
    run = Run("any", lambda x: x, 1.0, [1.0], None, 0, [])
    x = torch.ones(2, 3)
    assert run.predict_both(x) == (x, None)
    probs, epistemic = Run("any", lambda x: x, 1.0, [1.0], None, 0, [], epistemic=lambda x: x[:, 0]).predict_both(x)
    assert probs is x and epistemic.shape == (2,)
