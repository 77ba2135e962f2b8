"""Regression: predictive parts, intervals, and a noise variance learned from data."""

import numpy as np
import pytest
import torch
from scipy import stats

import bayesmp as bmp
from bayesmp.data import Scaling
from bayesmp.heads import Regression, RegressionPrediction
from bayesmp.messages.gaussian import Moments
from bayesmp.messages.noise import MAX_SPREAD
from tests.helpers import linear_data, linear_posterior, mlp

SPREADS = [0.0, 0.7, 2.5]


def prediction(noise_var=0.5, spread=0.0, dtype=torch.float64):
    return RegressionPrediction(
        torch.tensor([[1.0], [-2.0]], dtype=dtype),
        torch.tensor([[0.25], [4.0]], dtype=dtype),
        torch.tensor(noise_var, dtype=dtype),
        torch.tensor(spread, dtype=dtype),
    )


def density(predicted, row, y):
    """The predictive density of a row at points y, from the definition: nine Gaussians, by scipy."""
    z = np.arange(-4, 5)
    shares = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    ratios = np.exp(float(predicted.noise_spread) * z)
    var = float(predicted.epistemic_var[row, 0]) + float(predicted.noise_var) * ratios / (shares * ratios).sum()
    return (shares * stats.norm.pdf(y[:, None], float(predicted.mean[row, 0]), np.sqrt(var))).sum(1)


def grid_around(predicted, row):
    """Points and weights of a rule for integrals over the predictive of a row: fine in the middle, and far out."""
    edges = np.geomspace(1e-5, 3e3, 6000)
    edges = float(predicted.std[row, 0]) * np.concatenate([-edges[::-1], [0.0], edges])
    return float(predicted.mean[row, 0]) + 0.5 * (edges[1:] + edges[:-1]), np.diff(edges)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-3), (torch.float64, 2e-5)])
def test_all_parts_of_a_prediction_are_of_one_distribution(spread, dtype, rtol):
    """log_prob integrates to one and has mean and var; cdf and quantiles are those of its integral."""
    predicted = prediction(spread=spread, dtype=dtype)
    for row in range(2):
        y, weight = grid_around(predicted, row)
        found = predicted[[row] * len(y)]
        mass = found.log_prob(y).exp().numpy().ravel().astype(float) * weight
        np.testing.assert_allclose(mass / weight, density(predicted, row, y), rtol=rtol, atol=1e-12)
        assert mass.sum() == pytest.approx(1.0, rel=rtol)
        assert (mass * y).sum() == pytest.approx(float(predicted.mean[row, 0]), rel=rtol)
        assert (mass * (y - (mass * y).sum()) ** 2).sum() == pytest.approx(float(predicted.var[row, 0]), rel=20 * rtol)
        cdf = mass.cumsum()
        np.testing.assert_allclose(found.cdf(y).numpy().ravel(), cdf, atol=3e-3)
        for p in (0.001, 0.05, 0.3, 0.5, 0.95):
            below = mass[y <= float(predicted.quantile(p)[row, 0])].sum()
            assert below == pytest.approx(p, abs=3e-3)
            assert float(predicted.cdf(predicted.quantile(p))[row, 0]) == pytest.approx(p, rel=1e-4)
        low, high = predicted.interval(0.8)
        assert float(low[row, 0]) == pytest.approx(float(predicted.quantile(0.1)[row, 0]), rel=1e-5)
        assert float(high[row, 0]) == pytest.approx(float(predicted.quantile(0.9)[row, 0]), rel=1e-5)


@pytest.mark.parametrize("spread", SPREADS)
def test_draws_are_of_the_predictive(spread):
    predicted = prediction(spread=spread)
    draws = predicted.sample(20_000, seed=3)
    assert draws.shape == (20_000, 2, 1) and torch.equal(draws, predicted.sample(20_000, seed=3))
    for p in (0.01, 0.2, 0.5, 0.9, 0.99):
        share = (draws <= predicted.quantile(p)).double().mean(0)
        assert (share - p).abs().max() < 5.0 * np.sqrt(p * (1 - p) / 20_000)
    if spread < 1.0:  # else the fourth moment is too large for a variance from draws
        torch.testing.assert_close(draws.var(0), predicted.var, rtol=0.1, atol=0.0)


def test_tails_survive_units_rows_and_joining():
    predicted = prediction(spread=0.7)
    scaling = Scaling(np.array([5.0]), np.array([3.0]))
    y = np.array([[0.4], [2.0]])
    undone = predicted.undo(scaling)
    np.testing.assert_allclose(undone.log_prob(3.0 * y + 5.0), predicted.log_prob(y) - np.log(3.0))
    for found, known in zip(undone.interval(), predicted.interval(), strict=True):
        torch.testing.assert_close(found, 3.0 * known + 5.0)
    for other in (
        predicted.flat(),
        predicted[[0, 1]],
        RegressionPrediction.concatenate([predicted[:1], predicted[1:]]),
    ):
        assert torch.equal(other.log_prob(y).flatten(), predicted.log_prob(y).flatten())
        assert torch.equal(other.quantile(0.99).flatten(), predicted.quantile(0.99).flatten())
        assert torch.equal(other.sample(5).flatten(), predicted.sample(5).flatten())


def test_a_prediction_without_a_word_on_tails_is_gaussian():
    plain = RegressionPrediction(*(getattr(prediction(), name) for name in ("mean", "epistemic_var", "noise_var")))
    assert plain.is_gaussian and not prediction(spread=0.1).is_gaussian
    y = torch.tensor([[0.2], [1.0]], dtype=torch.float64)
    truth = stats.norm(plain.mean.numpy(), plain.std.numpy())
    np.testing.assert_allclose(plain.log_prob(y), truth.logpdf(y))
    np.testing.assert_allclose(plain.cdf(y), truth.cdf(y))


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
    head = Regression("learn", tails="gaussian")
    generator = torch.Generator().manual_seed(0)
    mean, y = (torch.randn(6, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    var = torch.rand(6, 2, generator=generator, dtype=torch.float64)
    found = head.to_constant(Moments(mean, var), y).numpy()
    truth = [stats.norm(mean.numpy(), (var + v).sqrt().numpy()).logpdf(y.numpy()).sum() for v in head.grid]
    np.testing.assert_allclose(found - found[100], np.array(truth) - truth[100], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-3), (torch.float64, 1e-9)])
def test_to_constant_is_the_log_likelihood_of_each_pair_of_variance_and_spread(dtype, rtol):
    """Against the density of each pair; but for the ends of the grid, where parts would lie beyond it."""
    head = Regression("learn")
    generator = torch.Generator().manual_seed(0)
    mean, y = (torch.randn(6, 2, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    var = torch.rand(6, 2, generator=generator, dtype=torch.float64).to(dtype)
    found = head.to_constant(Moments(mean, var), y).double().numpy()
    constant = 0.5 * np.log(2.0 * np.pi) * y.numel()  # which messages to the noise leave out
    for k in [100, 130, 240 + 130, 2 * 240 + 170, 3 * 240 + 150, 4 * 240 + 150, 5 * 240 + 130]:
        certain = torch.where(torch.arange(len(head.grid)) == k, 0.0, -1e4).to(dtype)
        noise_var, spread = head.noise(certain)
        assert float(noise_var) == pytest.approx(float(head.grid[k]), rel=1e-5)
        assert float(spread) == pytest.approx([0.0, 0.482, 0.963, 1.445, 1.927, 2.505][k // 240], abs=2e-3)
        truth = head.predict(Moments(mean, var), certain).log_prob(y).double().sum()
        assert found[k] == pytest.approx(float(truth) + constant, rel=rtol)


def test_gaussian_noise_is_the_first_row_of_the_grid():
    """Training hears this row alone: messages are those of a head without tails, bit by bit."""
    tails, plain = Regression("learn"), Regression("learn", tails="gaussian")
    n = len(plain.grid)
    assert torch.equal(tails.grid[tails.heard], plain.grid) and len(tails.grid) == 6 * n
    assert torch.equal(tails.prior_log_weights()[:n], plain.prior_log_weights())
    belief = torch.randn(6 * n, generator=torch.Generator().manual_seed(1))
    m_out, y = Moments(torch.zeros(3, 1), torch.ones(3, 1)), torch.tensor([[3.0], [-1.0], [90.0]])
    assert torch.equal(tails.to_latent(m_out, y, belief).rho, plain.to_latent(m_out, y, belief[:n]).rho)
    assert torch.equal(tails.to_heard(m_out, y), plain.to_constant(m_out, y))
    torch.testing.assert_close(tails.to_constant(m_out, y)[tails.heard].float(), plain.to_constant(m_out, y))
    assert plain.noise(belief[:n])[1] == 0.0


def test_what_is_not_known_of_the_noise_widens_its_spread():
    head = Regression("learn")
    middle, spread = head._shape()
    belief = torch.where(spread == 0.0, -0.5 * ((middle - np.log(0.2)) / 0.3).square(), -1e4)
    assert float(head.noise(belief)[1]) == pytest.approx(0.3, rel=1e-2)
    assert float(head.noise(torch.zeros_like(belief))[1]) == MAX_SPREAD


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


def test_tails_are_learned_or_gaussian():
    with pytest.raises(ValueError, match="tails must be one of 'learn', 'gaussian', got 'student'"):
        Regression("learn", tails="student")
    assert Regression(0.3).tails == Regression(0.3, tails="learn").tails == "gaussian"  # given noise is
    assert Regression("learn").config() == {"noise_var": "learn", "tails": "learn", "varies": True}
    heads = [Regression("learn"), Regression("learn", tails="gaussian"), Regression(0.3)]
    for head in (*heads, Regression("learn", varies=False)):
        assert eval(repr(head)).config() == head.config()


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


@pytest.mark.slow
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


@pytest.mark.slow
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


# --- learned tails ---------------------------------------------------------------------------------------------------


def linear_with_noise(draw, n=600, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    return x, x @ [0.8, -0.5, 0.3] + 0.3 * draw(rng, n)


def test_tails_are_found_where_they_are_and_nowhere_else():
    """Noise from the family itself with a spread of 1.5, Student t, and Gaussian; new targets are scored, too."""
    kinds = {
        "own": lambda rng, n: np.exp(0.5 * 1.5 * rng.normal(size=n) - 0.25 * 1.5**2) * rng.normal(size=n),
        "t": lambda rng, n: rng.standard_t(3, size=n),
        "gaussian": lambda rng, n: rng.normal(size=n),
    }
    spread, gain = {}, {}
    for kind, draw in kinds.items():
        x, y = linear_with_noise(draw)
        new_x, new_y = linear_with_noise(draw, n=4000, seed=1)
        found = {}
        for tails in ("learn", "gaussian"):
            network = bmp.Network([bmp.Linear(3, 1)], Regression("learn", tails=tails))
            bmp.fit(network, x, y, epochs=20, batch_size=200, progress=False)
            found[tails] = network.predict(new_x)
        torch.testing.assert_close(found["learn"].mean, found["gaussian"].mean)  # training is the same
        spread[kind] = float(found["learn"].noise_spread)
        gain[kind] = float((found["learn"].log_prob(new_y) - found["gaussian"].log_prob(new_y)).mean())
        low, high = found["learn"].interval(0.9)
        assert bmp.metrics.interval_coverage(low, high, new_y) == pytest.approx(0.9, abs=0.025)
    assert spread["own"] == pytest.approx(1.5, abs=0.35) and spread["t"] > 0.8 and spread["gaussian"] < 0.3
    assert gain["own"] > 0.1 and gain["t"] > 0.08 and gain["gaussian"] > -0.003


@pytest.mark.parametrize("spread, low, high", [(0.0, 0.0, 0.5), (2.0, 1.2, 2.6)])
def test_the_sequential_schedule_finds_them_too(spread, low, high):
    x, y = linear_with_noise(
        lambda rng, n: np.exp(0.5 * spread * rng.normal(size=n) - 0.25 * spread**2) * rng.normal(size=n), n=150
    )
    network = bmp.Network([bmp.Linear(3, 1)], Regression("learn"))
    bmp.fit(network, x, y, epochs=2, batch_size=50, schedule="sequential", progress=False)
    assert low <= float(network.predict(x).noise_spread) <= high


def test_few_data_are_not_taken_for_tails():
    for seed in range(3):
        x, y = linear_with_noise(lambda rng, n: rng.normal(size=n), n=20, seed=seed)
        network = bmp.Network([bmp.Linear(3, 1)], Regression("learn"))
        bmp.fit(network, x, y, epochs=30, batch_size=20, progress=False)
        assert float(network.predict(x).noise_spread) < 1.2


def test_the_leave_one_out_score_counts_tails():
    x, y = linear_with_noise(lambda rng, n: rng.standard_t(2.5, size=n))
    scores = []
    for tails in ("learn", "gaussian"):
        network = bmp.Network([bmp.Linear(3, 1)], Regression("learn", tails=tails))
        scores.append(bmp.fit(network, x, y, epochs=30, batch_size=100, progress=False).loo_nll[-1])
    assert scores[0] < scores[1] - 0.1


def test_files_keep_tails(tmp_path):
    x, y = linear_with_noise(lambda rng, n: rng.standard_t(3, size=n), n=100)
    for tails in ("learn", "gaussian"):
        network = bmp.Network([bmp.Linear(3, 1)], Regression("learn", tails=tails))
        bmp.fit(network, x, y, epochs=3, progress=False)
        network.save(tmp_path / "model.safetensors")
        again = bmp.load(tmp_path / "model.safetensors")
        assert again.head.tails == tails
        assert torch.equal(again.predict(x).log_prob(y), network.predict(x).log_prob(y))
