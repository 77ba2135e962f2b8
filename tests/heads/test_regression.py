"""Regression: predictive parts, intervals, and a noise variance learned from data."""

import numpy as np
import pytest
import torch
from scipy import stats

import bayesmp as bmp
from bayesmp.gaussian import Moments
from bayesmp.heads import Regression, RegressionPrediction
from tests.helpers import linear_data, linear_posterior, mlp


def prediction(noise_var=0.5):
    return RegressionPrediction(
        torch.tensor([[1.0], [-2.0]], dtype=torch.float64),
        torch.tensor([[0.25], [4.0]], dtype=torch.float64),
        torch.tensor(noise_var, dtype=torch.float64),
    )


@pytest.mark.parametrize("level", [0.01, 0.5, 0.9, 0.999])
def test_interval_holds_its_share_of_the_predictive(level):
    predicted = prediction()
    low, high = predicted.interval(level)
    gaussian = stats.norm(predicted.mean.numpy(), predicted.std.numpy())
    np.testing.assert_allclose(gaussian.cdf(high.numpy()) - gaussian.cdf(low.numpy()), level)
    np.testing.assert_allclose(0.5 * (low + high), predicted.mean)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90, float("nan")])
def test_an_interval_level_that_is_no_probability_is_refused(level):
    with pytest.raises(ValueError, match="level must lie strictly between 0 and 1"):
        prediction().interval(level)


def test_variance_is_epistemic_plus_noise():
    predicted = prediction()
    torch.testing.assert_close(predicted.var, predicted.epistemic_var + 0.5)
    torch.testing.assert_close(predicted.std**2, predicted.var)


def test_message_is_the_target_with_its_noise():
    m_out, y = Moments(torch.zeros(2, 1), torch.ones(2, 1)), torch.tensor([[3.0], [-1.0]])
    message = Regression(0.25).to_latent(m_out, y, torch.zeros(1))
    torch.testing.assert_close(message.mean, y)
    torch.testing.assert_close(message.var, torch.full_like(y, 0.25))


def test_to_constant_is_the_log_likelihood_of_each_noise_variance():
    head = Regression("learn")
    generator = torch.Generator().manual_seed(0)
    mean, y = (torch.randn(6, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    var = torch.rand(6, 2, generator=generator, dtype=torch.float64)
    found = head.to_constant(Moments(mean, var), y).numpy()
    truth = [stats.norm(mean.numpy(), (var + v).sqrt().numpy()).logpdf(y.numpy()).sum() for v in head.grid]
    np.testing.assert_allclose(found - found[100], np.array(truth) - truth[100], rtol=1e-9, atol=1e-9)


def test_nll_is_that_of_the_predictive():
    head, m_out = Regression(0.5), Moments(torch.tensor([[1.0], [-2.0]]), torch.tensor([[0.25], [4.0]]))
    y = torch.tensor([[0.3], [1.0]])
    found = head.train_metrics(m_out, y, torch.zeros(1))
    truth = -stats.norm(m_out.mean.numpy(), (m_out.var + 0.5).sqrt().numpy()).logpdf(y.numpy()).sum()
    assert found["nll"].item() == pytest.approx(truth, rel=1e-5)
    assert found["mse"].item() == pytest.approx(0.7**2 + 3.0**2, rel=1e-5)


@pytest.mark.parametrize("noise_var", [0.0, -1.0, float("nan"), float("inf"), "learned", "auto"])
def test_a_noise_variance_that_is_none_is_refused(noise_var):
    with pytest.raises(ValueError, match="noise_var must be a positive number or 'learn'"):
        Regression(noise_var)


# --- learned noise ---------------------------------------------------------------------------------------------------


def teacher(n, noise_std, seed):
    """A function this network can learn, its noisy values, and the variance of the noise as it was drawn."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    noise = noise_std * rng.normal(size=n)
    return x, x @ [0.8, -0.5, 0.3] + 0.5 * np.maximum(x[:, 0], 0.0) + noise, np.mean(noise**2)


@pytest.mark.parametrize("noise_std", [0.1, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_learned_noise_is_the_true_noise_within_15_percent(noise_std, seed):
    x, y, true_var = teacher(400, noise_std, seed)
    network = mlp([3, 16, 1], Regression("learn"), seed=seed)
    bmp.fit(network, x, y, epochs=40, batch_size=50)
    assert network.predict(x[:1]).noise_var.item() == pytest.approx(true_var, rel=0.15)


@pytest.mark.parametrize("schedule, epochs", [("parallel", 60), ("sequential", 5)])
def test_learned_noise_of_a_linear_model_is_the_unbiased_residual_variance(schedule, epochs):
    """With as many as 8 weights for 100 examples the residuals are too small by 8 %; fresh-data residuals are not."""
    x, y = linear_data(100, n_in=7, noise_std=0.4)
    inputs = np.hstack([x.numpy(), np.ones((100, 1))])
    mean, _ = linear_posterior(inputs, y[:, 0].numpy(), np.zeros(8), np.full(8, 1e3), 0.16)
    residual_var = ((y[:, 0].numpy() - inputs @ mean) ** 2).sum() / (100 - 8)
    network = bmp.Network([bmp.Linear(7, 1)], Regression("learn"))
    bmp.fit(network, x, y, epochs=epochs, batch_size=25, schedule=schedule)
    assert network.predict(x[:1]).noise_var.item() == pytest.approx(residual_var, rel=0.08)


def test_learned_noise_follows_the_unit_of_the_targets():
    x, y, _ = teacher(100, 0.3, 0)
    found = []
    for unit in (1.0, 10.0):
        network = bmp.Network([bmp.Linear(3, 1, weight_prior=(0.0, 1e6), bias_prior=(0.0, 1e6))], Regression("learn"))
        bmp.fit(network, x, unit * y, epochs=40, batch_size=25)
        found.append(network.predict(x[:1]).noise_var.item())
    assert found[1] / found[0] == pytest.approx(100.0, rel=0.05)


def test_learned_noise_is_not_counted_twice():
    """All data together send one message to the noise, and every refresh of the belief replaces it: more epochs do not
    make it surer.
    """
    x, y, _ = teacher(100, 0.3, 0)
    network = bmp.Network([bmp.Linear(3, 1)], Regression("learn"))
    trainer = bmp.Trainer(network, x, y, batch_size=25)
    trainer.run(60)
    before = network.head_log_weights.clone()
    trainer.run(60)
    torch.testing.assert_close(network.head_log_weights, before, rtol=1e-2, atol=1e-2)


def test_targets_out_of_the_reach_of_the_noise_grid_are_refused():
    """Once, y of size 1000 gave a learned noise of exactly the grid's end, and nobody was told."""
    x, y, _ = teacher(100, 0.3, 0)
    network = bmp.Network([bmp.Linear(3, 1)], Regression("learn"))
    with pytest.raises(ValueError, match="standardise y"):
        bmp.Trainer(network, x, 1000.0 * y)
    with pytest.warns(UserWarning, match="y is not scaled"):  # a given noise is the user's business
        bmp.Trainer(bmp.Network([bmp.Linear(3, 1)], Regression(1e5)), x, 1000.0 * y)


def test_learned_noise_does_not_swallow_the_signal():
    """Three inputs, 200 points: training once came to rest with nothing fitted and all of y taken for noise."""
    generator = torch.Generator().manual_seed(0)
    x = 4.0 * torch.rand(400, 3, generator=generator) - 2.0
    truth = torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]
    y = truth + 0.2 * torch.randn(400, generator=generator)
    layers = [bmp.Linear(3, 32), bmp.LeakyReLU(), bmp.Linear(32, 32), bmp.LeakyReLU(), bmp.Linear(32, 1)]
    network = bmp.Network(layers, bmp.Regression("learn"))
    bmp.fit(network, x[:200], y[:200], epochs=120)
    prediction = network.predict(x[200:])
    assert (prediction.mean.flatten() - truth[200:]).square().mean().sqrt() < 0.3
    assert 0.15 < prediction.noise_var.sqrt() < 0.4


@pytest.mark.parametrize("seed", [0, 1])
def test_noise_that_the_data_do_not_tell_is_not_taken_for_none(seed):
    """50 points for 541 weights: while the function is uncertain all small noises are equally likely, and messages with
    their mean precision, that of the grid's lower end, once drove the weights to infinity.
    """
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(50, 4, generator=generator)
    y = torch.sin(3 * x[:, :1]) * x[:, 1:2] + 0.1 * torch.randn(50, 1, generator=generator)
    network = mlp([4, 20, 20, 1], Regression("learn"), seed=seed)
    rmse = bmp.fit(network, x, y, epochs=30, batch_size=16, progress=False).column("rmse")
    assert max(rmse) < 5.0 * float(y.std()) and rmse[-1] < 1.2 * float(y.std())


def test_the_prior_of_the_noise_is_one_small_miss():
    """It moves the most likely noise as one more residual would, and is gone with many data."""
    head = Regression("learn")
    for n, size in ((10, 0.3), (1000, 0.3), (1000, 0.01)):
        likelihood = -0.5 * n * (head.grid.log() + size**2 / head.grid)
        found = head.grid[(head.prior_log_weights() + likelihood).argmax()]
        assert found == pytest.approx(size**2 + 0.1**2 / n, rel=0.06)
