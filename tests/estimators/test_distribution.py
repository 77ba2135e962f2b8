"""Predictions as distributions: quantiles, draws, covariances, and the targets they cannot follow."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

import bayesmp as bmp
from bayesmp.estimators.distribution import PredictiveDistribution
from bayesmp.estimators.regressor import TargetWarning
from tests.helpers import linear_data

LEVELS = [1e-6, 0.05, 0.3, 0.5, 0.7, 0.95, 1.0 - 1e-6]


def mixture(*shape, seed=0, parts=3):
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(parts))
    return PredictiveDistribution(rng.normal(size=(*shape, parts)), rng.uniform(0.1, 2.0, (*shape, parts)), shares)


@pytest.fixture(scope="module")
def fitted():
    """Targets with heavy tails whose noise depends on the input; two networks."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (80, 2))
    y = 50.0 + 10.0 * (x[:, 0] + (0.1 + 0.2 * (x[:, 1] > 0)) * rng.standard_t(3, 80))
    return bmp.MPRegressor(hidden=(4,), epochs=8, n_networks=2, random_state=0).fit(x, y), x, y


# --- the distribution ------------------------------------------------------------------------------------------------


def test_it_is_a_mixture_of_gaussians():
    """Against SciPy's Gaussians, and quadrature."""
    found = mixture(4)
    y = np.linspace(-3, 3, 4)
    each = stats.norm(found.means, found.stds)
    np.testing.assert_allclose(found.pdf(y), each.pdf(y[:, None]) @ found.shares)
    np.testing.assert_allclose(found.logpdf(y), np.log(found.pdf(y)))
    np.testing.assert_allclose(found.cdf(y) + found.sf(y), 1.0)
    for row in range(4):
        one = found[row]
        grid = {"limit": 200, "points": list(one.means)}
        assert quad(one.pdf, -30, y[row], **grid)[0] == pytest.approx(found.cdf(y)[row], abs=1e-7)
        mean = quad(lambda t, one=one: t * one.pdf(t), -30, 30, **grid)[0]
        assert mean == pytest.approx(found.mean()[row], abs=1e-6)
        square = quad(lambda t, one=one, mean=mean: (t - mean) ** 2 * one.pdf(t), -30, 30, **grid)[0]
        assert square == pytest.approx(found.var()[row], rel=1e-6)
    np.testing.assert_allclose(found.std() ** 2, found.var())


@pytest.mark.parametrize("shape", [(5,), (5, 2)])
def test_quantiles_are_the_inverse_of_the_cdf(shape):
    found = mixture(*shape)
    levels = np.array(LEVELS).reshape(-1, *[1] * len(shape))
    at = found.ppf(levels)
    assert at.shape == (len(LEVELS), *shape)
    np.testing.assert_allclose(found.cdf(at), np.broadcast_to(levels, at.shape), rtol=1e-9)
    np.testing.assert_allclose(found.sf(at), np.broadcast_to(1.0 - levels, at.shape), rtol=1e-7)
    np.testing.assert_allclose(found.isf(levels[:3]), found.ppf(1.0 - levels[:3]), rtol=1e-6)
    np.testing.assert_array_equal(found.median(), found.ppf(0.5))
    low, high = found.interval(0.9)
    np.testing.assert_allclose(found.cdf(high) - found.cdf(low), 0.9)
    assert np.isneginf(found.ppf(0.0)).all() and np.isposinf(found.ppf(1.0)).all()
    assert np.isnan(found.ppf(1.5)).all() and np.isnan(found.ppf(-0.1)).all()


def test_draws_have_the_distribution():
    found = mixture(2)
    draws = found.rvs((4000, 2), random_state=0)
    for row in range(2):
        assert stats.kstest(draws[:, row], found[row].cdf).pvalue > 1e-3
    assert found.rvs(random_state=0).shape == (2,)
    np.testing.assert_array_equal(found.rvs((3, 2), random_state=5), found.rvs((3, 2), random_state=5))


# --- of an estimator -------------------------------------------------------------------------------------------------


def test_it_says_what_the_other_methods_say(fitted):
    model, x, y = fitted
    found = model.predict_dist(x)
    assert found.shape == (80,) and len(found[:3]) == 3
    mean, std = model.predict(x, return_std=True)
    np.testing.assert_allclose(found.mean(), mean, rtol=1e-6)
    np.testing.assert_allclose(found.std(), std, rtol=1e-6)
    for end, expected in zip(found.interval(0.8), model.predict_interval(x, 0.8), strict=True):
        np.testing.assert_allclose(end, expected, rtol=1e-6)
    inside = model.predict_outputs(x).undo(model.y_scaling_)
    np.testing.assert_allclose(found.cdf(y), inside.cdf(y).numpy()[:, 0], rtol=1e-6)
    np.testing.assert_allclose(found.logpdf(y), inside.log_prob(y).numpy()[:, 0], rtol=1e-6)
    one = found[0]
    area = quad(one.pdf, -200, 300, limit=400, points=[float(one.mean()), *map(float, one.interval(0.9))])[0]
    assert area == pytest.approx(1.0, abs=1e-6)


def test_quantiles_of_rows(fitted):
    model, x, _ = fitted
    found = model.predict_quantile(x, [0.1, 0.5, 0.9])
    assert found.shape == (80, 3) and (np.diff(found, axis=1) > 0).all()
    low, high = model.predict_interval(x, 0.8)
    np.testing.assert_allclose(found[:, [0, 2]], np.stack([low, high], 1), rtol=1e-6)
    np.testing.assert_array_equal(model.predict_quantile(x, 0.5), found[:, 1])
    for wrong in (0.0, 1.0, [0.5, 1.2], [[0.5]], np.nan):
        with pytest.raises(ValueError, match="q must be a probability"):
            model.predict_quantile(x, wrong)


def test_covariances_between_rows_are_those_of_drawn_functions(fitted):
    model, _, _ = fitted
    at = np.array([[0.0, 0.5], [0.1, 0.5], [-0.9, -0.9]])
    mean, covariance = model.predict(at, return_cov=True)
    np.testing.assert_array_equal(mean, model.predict(at))
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), model.predict_epistemic(at), rtol=1e-4)
    drawn = np.concatenate([net.sample_functions(model.x_scaling_.apply(at), 2000) for net in model.networks_])
    expected = np.cov(model.y_scaling_.undo(drawn[:, :, 0]).T)
    np.testing.assert_allclose(covariance, expected, atol=0.1 * np.diag(expected).max())
    assert np.linalg.eigvalsh(covariance).min() > -1e-9
    with pytest.raises(ValueError, match="not both"):
        model.predict(at, return_std=True, return_cov=True)


def test_covariances_of_a_linear_network_are_in_closed_form():
    x, y = linear_data(30, n_out=2)
    network = bmp.Network([bmp.Linear(3, 2)], bmp.Regression(0.1)).double()
    with pytest.raises(ValueError, match="no joint belief"):
        network.covariance(x)
    bmp.fit(network, x, y, epochs=20)
    rows = np.hstack([x, np.ones((30, 1))])
    for output in range(2):
        rho = np.hstack([part.reshape(2, -1) for part in network.unpack(network.prior.rho)[0].values()])[output]
        inverse = np.linalg.inv(np.diag(rho) + rows.T @ rows / 0.1)
        np.testing.assert_allclose(network.covariance(x)[output], rows @ inverse @ rows.T, rtol=1e-6, atol=1e-9)


def test_sampled_targets_have_the_predicted_distribution(fitted):
    """Row by row; and functions are drawn for all rows together."""
    model, x, _ = fitted
    at = x[:3]
    drawn = model.sample_y(at, 2000, random_state=1)
    assert drawn.shape == (3, 2000)
    for row in range(3):
        assert stats.kstest(drawn[row], model.predict_dist(at)[row].cdf).pvalue > 1e-3
    assert not np.array_equal(drawn, model.sample_y(at, 2000, random_state=2))
    np.testing.assert_array_equal(model.sample_y(at, 4, random_state=1), model.sample_y(at, 4, random_state=1))
    far = np.array([[5.0, 5.0], [5.05, 5.0]])
    drawn = model.sample_y(far, 500)
    covariance = model.predict(far, return_cov=True)[1]
    assert np.cov(drawn)[0, 1] == pytest.approx(covariance[0, 1], rel=0.3)


@pytest.mark.filterwarnings("ignore:the targets are noisy to different degrees")
def test_several_targets_have_an_axis():
    x, y = (part.numpy() for part in linear_data(40, n_out=2))
    model = bmp.MPRegressor(hidden=(), epochs=10, random_state=0).fit(x, y * [1.0, 10.0])
    assert model.predict_dist(x).shape == (40, 2)
    assert model.predict_quantile(x, 0.3).shape == (40, 2) and model.predict_quantile(x, [0.3, 0.6]).shape == (40, 2, 2)
    assert model.sample_y(x, 5).shape == (40, 2, 5)
    covariance = model.predict(x, return_cov=True)[1]
    assert covariance.shape == (40, 40, 2)
    spread = np.sqrt(np.einsum("nnt->nt", covariance))
    np.testing.assert_allclose(spread, model.predict_epistemic(x), rtol=1e-4)


# --- targets that are no measurements --------------------------------------------------------------------------------


def targets(kind, n=60):
    rng = np.random.default_rng(0)
    share = rng.beta(2, 2, n)
    return {
        "counts": rng.poisson(2.0, n) * 1.0,
        "ends": np.where(rng.random(n) < 0.2, rng.integers(0, 2, n), share),
        "labels": rng.integers(0, 2, n) * 1.0,
        "shares": share,
        "large counts": rng.poisson(50.0, n) * 1.0,
        "differences": rng.poisson(2.0, n) - 2.0,
        "measured": rng.normal(size=n),
    }[kind]


@pytest.mark.parametrize(
    "kind, message",
    [("counts", "small whole numbers"), ("ends", "at these ends"), ("labels", "use MPClassifier")],
)
def test_counts_and_bounded_targets_are_told(kind, message):
    y = targets(kind)
    model = bmp.MPRegressor(hidden=(2,), epochs=2)
    with pytest.warns(TargetWarning, match=message) as told:
        model.fit(np.arange(60.0)[:, None], y)
    assert len(told) == 1 and told[0].filename == __file__


@pytest.mark.parametrize("kind", ["shares", "large counts", "differences", "measured"])
def test_of_other_targets_nothing_is_told(kind):
    bmp.MPRegressor(hidden=(2,), epochs=2).fit(np.arange(60.0)[:, None], targets(kind))
