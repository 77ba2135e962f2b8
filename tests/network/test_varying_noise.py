"""Noise that depends on the input: the fit against other optimisers and quadrature, known noise, files and days."""

import numpy as np
import pytest
import torch
from scipy import optimize, stats

import bayesmp as bmp
from bayesmp import metrics
from bayesmp.heads.regression_prediction import changed
from bayesmp.messages.gaussian import Moments
from bayesmp.messages.noise import noise_mixture
from bayesmp.network.varying_noise import VAGUE, _climb, _Prior, learn_varying_noise

OPTIONS = {"batch_size": 100, "progress": False}


def line(n, noise_std, seed=0):
    """A linear function of three inputs, and noise of this std, a function of x."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    return x, x @ [0.8, -0.5, 0.3] + noise_std(x) * rng.normal(size=n)


def growing(x):
    return 0.3 * np.exp(0.5 * x[:, 0])


def equal(x):
    return np.full(len(x), 0.3)


def fitted(x, y, *, layers=None, epochs=20, seed=0, **head):
    network = bmp.Network(layers or [bmp.Linear(3, 1)], bmp.Regression("learn", **head), seed=seed)
    bmp.fit(network, x, y, epochs=epochs, **OPTIONS)
    return network


# --- the fit ---------------------------------------------------------------------------------------------------------


def rows(n=150, k=1, seed=0):
    """A design with a constant, gaps whose noise depends on it, and variances of the outputs."""
    rng = np.random.default_rng(seed)
    design = np.concatenate([np.ones((n, 1)), rng.normal(size=(n, k))], 1)
    var = rng.uniform(0.01, 0.1, n)
    noise = 0.2 * np.exp(design @ np.linspace(0.2, 0.9, k + 1) + 0.8 * rng.normal(size=n))
    return design, rng.normal(size=n) * np.sqrt(var + noise), var


def log_posterior(weights, design, gap, var, noise_var, spread, span):
    """Written down once more, with scipy's Gaussians; up to the constants of the prior."""
    ratios, shares = (part.numpy() for part in noise_mixture(torch.tensor(spread, dtype=torch.float64)))
    std = np.sqrt(var[:, None] + noise_var * np.exp(design @ weights)[:, None] * ratios)
    density = (shares * stats.norm.pdf(gap[:, None], scale=std)).sum(1)
    return np.log(density).sum() - 0.5 * VAGUE * weights[0] ** 2 - 0.5 * np.square(weights[1:]).sum() / span**2


def climbed(data, noise_var, spread, span):
    design, gap, var = (torch.as_tensor(part) for part in data)
    prior, noise = _Prior.of_span(span, design.shape[1] - 1), torch.tensor([noise_var, spread], dtype=torch.float64)
    return _climb(design, gap, var, *noise, prior, torch.zeros(design.shape[1], dtype=torch.float64))


@pytest.mark.parametrize("k", [1, 6])
@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.parametrize("span", [0.1, 1.6])
def test_the_most_likely_weights_are_those_of_another_optimiser(k, spread, span):
    data = rows(k=k)
    found, _, _ = climbed(data, 0.2, spread, span)
    truth = optimize.minimize(lambda w: -log_posterior(w, *data, 0.2, spread, span), np.zeros(k + 1), tol=1e-10)
    np.testing.assert_allclose(found.numpy(), truth.x, atol=1e-4)


def test_evidence_and_precision_are_those_of_quadrature():
    """One weight beside the level, on a grid of both; Laplace is close with 150 rows."""
    data, grid = rows(), np.linspace(-2.0, 3.0, 161)
    for span in (0.2, 0.8, 1.6):
        weights, precision, evidence = climbed(data, 0.2, 1.0, span)
        heights = np.array([[log_posterior(np.array([a, w]), *data, 0.2, 1.0, span) for w in grid] for a in grid])
        mass = np.exp(heights - heights.max())
        total = np.log(mass.sum() * (grid[1] - grid[0]) ** 2) + heights.max()
        prior = 0.5 * np.log(VAGUE) - np.log(span)  # and two times log 2 pi, which Laplace's has not either
        assert evidence == pytest.approx(total + prior - np.log(2.0 * np.pi), abs=0.1)
        mean = (mass.sum(0) @ grid) / mass.sum()
        std = np.sqrt((mass.sum(0) @ np.square(grid - mean)) / mass.sum())
        assert float(weights[1]) == pytest.approx(mean, abs=0.15 * std)
        assert float(torch.linalg.inv(precision)[1, 1].sqrt()) == pytest.approx(std, rel=0.15)


def test_a_fit_is_the_same_every_time_and_levels_are_those_of_the_data():
    x, y = (torch.as_tensor(part) for part in line(200, growing))
    mean = (x @ torch.tensor([0.8, -0.5, 0.3], dtype=x.dtype))[:, None]
    head, left_out = bmp.Regression("learn"), Moments(mean, torch.full_like(mean, 1e-4))
    first, second = (
        learn_varying_noise(head, x, mean, left_out, y[:, None], head.prior_log_weights()) for _ in range(2)
    )
    for name, part in first.state().items():
        assert torch.equal(part, second.state()[name])
    log_ratio = first.log_ratio(x, mean).mean
    assert float(log_ratio.exp().mean()) == pytest.approx(1.0)
    assert np.corrcoef(log_ratio[:, 0], x[:, 0])[0, 1] > 0.9
    assert float(first.noise[0]) == pytest.approx(np.square(growing(x.numpy())).mean(), rel=0.2)


def test_wide_layers_are_asked_along_their_principal_directions():
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(300, 1))
    hidden = torch.as_tensor(shared + 0.3 * rng.normal(size=(300, 200)))  # all units tell of one thing
    hidden[:, 7] = 3.0  # or of nothing
    y = torch.as_tensor(np.exp(0.7 * shared) * rng.normal(size=(300, 1)))
    head, left_out = bmp.Regression("learn"), Moments(torch.zeros_like(y), torch.full_like(y, 1e-3))
    found = learn_varying_noise(head, hidden, left_out.mean, left_out, y, head.prior_log_weights())
    assert found.directions.shape == (200, 64)
    log_ratio = found.log_ratio(hidden, torch.zeros_like(y)).mean[:, 0]
    assert np.corrcoef(log_ratio, shared[:, 0])[0, 1] > 0.95 and float(log_ratio.std()) == pytest.approx(1.4, abs=0.3)


# --- networks --------------------------------------------------------------------------------------------------------


def test_noise_that_grows_is_found():
    """Half of the rows with little noise, half with much: both hold what intervals promise, which one noise cannot."""
    x, y = line(1000, growing)
    new_x, new_y = line(4000, growing, seed=1)
    varying, same = fitted(x, y).predict(new_x), fitted(x, y, varies=False).predict(new_x)
    assert torch.equal(varying.mean, same.mean) and torch.equal(varying.epistemic_var, same.epistemic_var)
    assert torch.equal(varying.noise_var, same.noise_var) and same.local_noise is None
    assert np.corrcoef(varying.aleatoric_var.log().numpy(), np.log(growing(new_x)))[0, 1] > 0.9
    assert float((varying.log_prob(new_y) - same.log_prob(new_y)).mean()) > 0.1
    for calm in (new_x[:, 0] < -0.5, new_x[:, 0] > 0.5):
        held = [metrics.interval_coverage(*found[calm].interval(0.9), new_y[calm]) for found in (varying, same)]
        assert held[0] == pytest.approx(0.9, abs=0.04) and abs(held[1] - 0.9) > 0.06


@pytest.mark.parametrize("n, lost", [(20, 0.02), (60, 0.01), (400, 0.003)])
def test_where_noise_is_the_same_nothing_is_lost(n, lost):
    gains = []
    for seed in range(3):
        x, y = line(n, equal, seed=seed)
        new_x, new_y = line(2000, equal, seed=100 + seed)
        varying, same = (fitted(x, y, varies=varies).predict(new_x) for varies in (True, False))
        gains.append(float((varying.log_prob(new_y) - same.log_prob(new_y)).mean()))
    assert np.mean(gains) > -lost
    if n == 400:
        assert float((varying.aleatoric_var.sqrt() / 0.3 - 1.0).abs().mean()) < 0.06


def test_inputs_that_tell_nothing_tell_nothing_of_the_noise():
    """The mean of all other targets tells the one that is left out. As something that the noise may depend on, it told
    its size, too, and half of the noise was left.
    """
    targets = np.random.default_rng(1).normal(size=40)
    found = fitted(np.zeros((40, 3)), targets, layers=[bmp.Linear(3, 4), bmp.LeakyReLU(), bmp.Linear(4, 1)], epochs=60)
    prediction = found.predict(np.zeros((1, 3)))
    assert float(prediction.std) == pytest.approx(targets.std(), rel=0.15)


def test_targets_learned_by_heart_tell_nothing_of_the_noise():
    """With more columns than rows an output is mostly its own target, and misses it by its size when that is left out.
    Taken for noise that depends on the output, that cost .2 nats, because outputs at new rows are small.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1150, 400))
    y = 0.7 * x[:, 0] + 0.7 * rng.normal(size=1150)
    head = {"layers": [bmp.Linear(400, 1)], "epochs": 30}
    varying, same = (fitted(x[:150], y[:150], varies=v, **head).predict(x[150:]) for v in (True, False))
    assert float((varying.log_prob(y[150:]) - same.log_prob(y[150:])).mean()) > -0.01


def test_noise_that_is_given_or_gaussian_is_the_same_everywhere():
    x, y = line(100, growing)
    for head in (bmp.Regression(0.1), bmp.Regression("learn", tails="gaussian"), bmp.Regression("learn", varies=False)):
        network = bmp.Network([bmp.Linear(3, 1)], head)
        bmp.fit(network, x, y, epochs=5, **OPTIONS)
        found = network.predict(x)
        assert not head.varies and network.varying_noise is None and found.local_noise is None
        assert torch.equal(found.aleatoric_var, found.noise_var.expand(100))


def test_each_output_has_a_noise_of_its_own():
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(300, 2)), rng.normal(size=(2000, 2))
    y, new_y = (part + np.array([0.1, 1.0]) * rng.normal(size=part.shape) for part in (x, new))
    network = fitted(x, y, layers=[bmp.Linear(2, 2)])
    low, high = network.predict(new).interval(0.9)
    held = ((low.numpy() < new_y) & (new_y < high.numpy())).mean(0)
    np.testing.assert_allclose(held, 0.9, atol=0.03)


def test_leave_one_out_judges_rows_by_the_noise_they_have():
    x, y = line(300, growing)
    judged = []
    for varies in (True, False):
        network = bmp.Network([bmp.Linear(3, 1)], bmp.Regression("learn", varies=varies))
        trainer = bmp.Trainer(network, x, y, batch_size=100)
        trainer.run(20, progress=False)
        judged.append(trainer.influence(torch.arange(300)).loo_nll)
    new_x, new_y = line(4000, growing, seed=1)
    assert float(judged[0].mean()) < float(judged[1].mean()) - 0.05
    network = fitted(x, y)
    assert float(judged[0].mean()) == pytest.approx(-float(network.predict(new_x).log_prob(new_y).mean()), abs=0.1)


# --- predictions -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network():
    return fitted(*line(200, growing), layers=[bmp.Linear(3, 8), bmp.LeakyReLU(), bmp.Linear(8, 1)], epochs=60)


def test_all_of_a_prediction_is_of_one_distribution(network):
    x, _ = line(50, growing, seed=2)
    found = network.predict(x)
    torch.testing.assert_close(found.var, found.epistemic_var + found.aleatoric_var)
    low, high = found.interval(0.8)
    torch.testing.assert_close(found.cdf(high) - found.cdf(low), torch.full((50,), 0.8), atol=1e-4, rtol=0.0)
    torch.testing.assert_close(found.quantile(0.9), high)
    draws = found.sample(20_000)
    held = ((low < draws) & (draws < high)).double().mean(0)
    torch.testing.assert_close(held, torch.full_like(held, 0.8), atol=0.015, rtol=0.0)
    grid = torch.linspace(-1.0, 1.0, 2001, dtype=torch.float64)[:, None] * 30.0 * found.std.double()
    wide = changed(found, torch.Tensor.double)
    density = torch.stack([wide.log_prob(wide.mean + step).exp() for step in grid])
    torch.testing.assert_close(torch.trapezoid(density, grid, dim=0), torch.ones(50).double(), atol=0.01, rtol=0.0)


def test_rows_and_units_take_their_noise_along(network):
    x, y = line(40, growing, seed=2)
    found = network.predict(x)
    torch.testing.assert_close(found[5:9].log_prob(y[5:9]), found.log_prob(y)[5:9])
    torch.testing.assert_close(network.predict(x, batch_size=7).log_prob(y), found.log_prob(y))
    scaling = bmp.data.Scaling.fit(np.random.default_rng(0).normal(3.0, 50.0, size=100))
    there = found.undo(scaling)
    torch.testing.assert_close(there.aleatoric_var, found.aleatoric_var * float(scaling.std) ** 2)
    back = there.log_prob(scaling.undo(y)) + float(np.log(scaling.std))
    torch.testing.assert_close(back, found.log_prob(y), atol=1e-4, rtol=1e-4)


def test_a_mixture_has_the_noise_of_its_members(network):
    x, y = line(40, growing, seed=2)
    other = fitted(*line(200, growing, seed=3), varies=False)
    members = [network.predict(x), other.predict(x)]
    mixed = bmp.mixture(members)
    each = torch.stack([member.log_prob(y) for member in members])
    torch.testing.assert_close(mixed.log_prob(y), torch.logsumexp(each, 0) - np.log(2.0))
    torch.testing.assert_close(mixed.aleatoric_var, 0.5 * (members[0].aleatoric_var + members[1].aleatoric_var))
    torch.testing.assert_close(mixed[3:5].interval(0.9)[0], mixed.interval(0.9)[0][3:5])
    torch.testing.assert_close(mixed.cdf(mixed.interval(0.9)[1]), torch.full((40,), 0.95), atol=1e-4, rtol=0.0)


def test_far_away_it_stays_in_bounds(network):
    found = network.predict(np.array([[1e3, 0.0, 0.0], [-1e6, 1e6, 0.0], [0.0, 0.0, -1e9]]))
    assert found.local_noise.spread.max() <= 3.0 and found.aleatoric_var.max() < 1000.0 * found.noise_var
    assert found.std.isfinite().all() and (found.aleatoric_var > 0).all()


# --- files, runs and days --------------------------------------------------------------------------------------------


def test_files_hold_it(network, tmp_path):
    x, y = line(40, growing, seed=2)
    network.save(tmp_path / "model.safetensors")
    again = bmp.load(tmp_path / "model.safetensors")
    assert torch.equal(again.predict(x).log_prob(y), network.predict(x).log_prob(y))
    again.reset()
    assert again.varying_noise is None


def test_a_run_that_goes_on_finds_the_same(tmp_path):
    x, y = line(150, growing)
    trainer = bmp.Trainer(bmp.Network([bmp.Linear(3, 1)], bmp.Regression("learn")), x, y, batch_size=50)
    trainer.run(3, progress=False)
    trainer.save(tmp_path / "run.safetensors")
    resumed = bmp.Trainer.load(tmp_path / "run.safetensors", x, y)
    assert torch.equal(resumed.network.predict(x).log_prob(y), trainer.network.predict(x).log_prob(y))
    trainer.run(2, progress=False), resumed.run(2, progress=False)
    assert torch.equal(resumed.network.predict(x).log_prob(y), trainer.network.predict(x).log_prob(y))


def test_the_next_day_knows_it_from_the_last(tmp_path):
    """Twenty rows alone tell next to nothing; with what was known yesterday they leave it as it was."""
    yesterday = fitted(*line(500, growing))
    today = yesterday.as_prior()
    x, y = line(20, growing, seed=5)
    new_x, new_y = line(2000, growing, seed=6)
    assert torch.equal(today.predict(new_x).log_prob(new_y), yesterday.predict(new_x).log_prob(new_y))
    bmp.fit(today, x, y, epochs=20, **OPTIONS)
    gain = today.predict(new_x).log_prob(new_y) - yesterday.predict(new_x).log_prob(new_y)
    assert float(gain.mean()) > -0.03
    assert np.corrcoef(today.predict(new_x).aleatoric_var.log().numpy(), np.log(growing(new_x)))[0, 1] > 0.9
    today.save(tmp_path / "today.safetensors")
    again = bmp.load(tmp_path / "today.safetensors")
    assert torch.equal(again.predict(x).log_prob(y), today.predict(x).log_prob(y))
    again.reset()
    assert torch.equal(again.varying_noise.weights, yesterday.varying_noise.weights)


def test_networks_of_another_precision_have_the_same_noise(network):
    x, _ = line(40, growing, seed=2)
    found = network.predict(x).aleatoric_var
    there = network.double().predict(x)
    network.float()
    assert there.aleatoric_var.dtype == torch.float64
    torch.testing.assert_close(there.aleatoric_var.float(), found, rtol=1e-3, atol=1e-6)
