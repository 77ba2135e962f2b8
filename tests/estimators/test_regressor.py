"""Regression in units of the data: errors bars, several targets, leave-one-out scores, targets without a scale."""

import math

import numpy as np
import pytest
from sklearn.linear_model import BayesianRidge
from sklearn.metrics import r2_score
from sklearn.model_selection import LeaveOneOut
from sklearn.multioutput import MultiOutputRegressor

import bayesmp as bmp
from bayesmp import metrics
from tests import helpers


def linear(n=300, n_out=1, seed=0):
    """x (n, 3), y (n, n_out) with noise of std 0.3, and half of them to learn from."""
    x, y = (part.numpy() for part in helpers.linear_data(n, 3, n_out, seed=seed))
    half = n // 2
    return x[:half], y[:half], x[half:], y[half:]


@pytest.fixture(scope="module")
def fitted():
    x, y, x_new, y_new = linear(400)
    return (
        bmp.MPRegressor((), epochs=40, random_state=0).fit(x, 1000.0 + 50.0 * y[:, 0]),
        x_new,
        1000 + 50 * y_new[:, 0],
    )


def test_mean_and_std_are_in_units_of_y(fitted):
    model, x_new, y_new = fitted
    mean, std = model.predict(x_new, return_std=True)
    assert mean.shape == std.shape == (200,) and mean.dtype == std.dtype == np.float64
    assert metrics.rmse(mean, y_new) == pytest.approx(50 * 0.3, rel=0.1)
    assert np.median(std) == pytest.approx(50 * 0.3, rel=0.1)
    assert model.score(x_new, y_new) == pytest.approx(r2_score(y_new, mean))


def test_a_network_without_hidden_layers_is_bayesian_regression(fitted):
    """Where the scheme is exact, up to the prior: another library's closed form says the same."""
    model, x_new, _ = fitted
    x, y, _, _ = linear(400)
    mean, std = BayesianRidge().fit(x, 1000.0 + 50.0 * y[:, 0]).predict(x_new, return_std=True)
    found_mean, found_std = model.predict(x_new, return_std=True)
    np.testing.assert_allclose(found_mean, mean, atol=0.1 * 15)
    np.testing.assert_allclose(found_std, std, rtol=0.1)  # its noise is the same everywhere, ours is judged to be
    assert np.mean(np.abs(found_std / std - 1.0)) < 0.02


def test_intervals_hold_what_they_promise(fitted):
    model, x_new, y_new = fitted
    widths = []
    for level in (0.5, 0.9):
        low, high = model.predict_interval(x_new, level)
        assert np.mean((low <= y_new) & (y_new <= high)) == pytest.approx(level, abs=0.08)
        widths.append((high - low).mean())
    mean, std = model.predict(x_new, return_std=True)
    np.testing.assert_allclose(mean - low, 1.6448536 * std, rtol=1e-2)  # 400 rows have no tails to show
    assert widths[0] < widths[1]
    with pytest.raises(ValueError, match="level must lie strictly between 0 and 1, got 90"):
        model.predict_interval(x_new, 90)
    with pytest.raises(TypeError, match=r"one number between 0 and 1, got \[0.5, 0.9\]"):
        model.predict_interval(x_new, [0.5, 0.9])


def test_epistemic_std_grows_away_from_the_data_and_is_less_than_all(fitted):
    model, x_new, _ = fitted
    epistemic = model.predict_epistemic(x_new)
    assert (epistemic < model.predict(x_new, return_std=True)[1]).all()
    assert model.predict_epistemic(10.0 * x_new).mean() > 5.0 * epistemic.mean()


@pytest.mark.slow
def test_leave_one_out_score_is_that_of_leaving_one_out():
    """Against as many fits as there are rows; a linear network, where it is exact but for the noise and the scaling,
    which see all rows.
    """
    x, y, _, _ = linear(60)
    y = 1000.0 + 50.0 * y[:, 0]
    options = {"hidden": (), "epochs": 40, "random_state": 0}
    model = bmp.MPRegressor(**options).fit(x, y)
    scores, errors = [], []
    for rows, (left_out,) in LeaveOneOut().split(x):
        mean, std = bmp.MPRegressor(**options).fit(x[rows], y[rows]).predict(x[[left_out]], return_std=True)
        scores.append(-metrics.gaussian_nll(mean, std**2, y[[left_out]]))
        errors.append((mean[0] - y[left_out]) ** 2)
    assert model.loo_score_ == pytest.approx(np.mean(scores), abs=0.06)
    assert model.loo_error_ == pytest.approx(math.sqrt(np.mean(errors)), rel=0.03)


def test_several_targets_of_different_scales():
    x, y, x_new, y_new = linear(300, 2)
    factor = np.array([1e-3, 1e6])
    model = bmp.MPRegressor((), epochs=40, random_state=0).fit(x, y * factor)
    mean, std = model.predict(x_new, return_std=True)
    low, high = model.predict_interval(x_new)
    assert mean.shape == std.shape == low.shape == high.shape == model.predict_epistemic(x_new).shape == y_new.shape
    for k in range(2):
        assert metrics.rmse(mean[:, k], factor[k] * y_new[:, k]) < 0.4 * factor[k]
    assert model.loo_error_ < 0.5  # in standard deviations of each target
    expected = -np.mean([metrics.gaussian_nll(mean[:, k], std[:, k] ** 2, factor[k] * y_new[:, k]) for k in range(2)])
    assert model.loo_score_ == pytest.approx(expected, abs=0.2)


def test_targets_of_different_noise_are_told_apart_with_a_remedy():
    """Training takes them for equally noisy. Intervals know better; with one noise for both, those of 90 % held 1.00 of
    the first and .77 of the second.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = x + np.array([0.1, 1.0]) * rng.normal(size=(300, 2))
    options = {"hidden": (), "epochs": 20, "random_state": 0}
    with pytest.warns(UserWarning, match=r"noisy to different degrees.*MultiOutputRegressor") as caught:
        together = bmp.MPRegressor(**options).fit(x, y)
    low, high = together.predict_interval(x)
    np.testing.assert_allclose(np.mean((low <= y) & (y <= high), axis=0), 0.9, atol=0.05)
    assert caught[0].filename == __file__
    apart = MultiOutputRegressor(bmp.MPRegressor(**options)).fit(x, y)
    for k, model in enumerate(apart.estimators_):
        low, high = model.predict_interval(x)
        assert np.mean((low <= y[:, k]) & (y[:, k] <= high)) == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 2)])
def test_predictions_have_the_shape_of_the_targets(shape):
    x, _, _, _ = linear(80)
    y = np.resize(x[:, 0], 80).reshape(-1)[: math.prod(shape)].reshape(shape)
    model = bmp.MPRegressor((2,), epochs=2).fit(x, y)
    assert model.predict(x).shape == shape and model.predict_interval(x)[0].shape == shape


@pytest.mark.parametrize("value", [0.0, 3.0, -1e6, 1e-20])
def test_constant_targets_are_predicted(value):
    """They give no scale but their size, and no noise: 1 % of it is taken."""
    x, _, _, _ = linear(80)
    with pytest.warns(UserWarning, match="all 40 targets are equal"):
        model = bmp.MPRegressor((4,), epochs=30, random_state=0).fit(x, np.full(40, value))
    mean, std = model.predict(x, return_std=True)
    size = abs(value) or 1.0
    np.testing.assert_allclose(mean, value, atol=0.02 * size)
    assert (std >= 0.01 * size).all() and (std < 0.2 * size).all()
    assert math.isfinite(model.loo_score_)


def test_one_target_of_several_may_be_constant():
    x, y, _, _ = linear(200)
    y = np.concatenate([y, np.full_like(y, 7.0)], 1)
    mean = bmp.MPRegressor((), epochs=30, random_state=0).fit(x, y).predict(x)
    assert r2_score(y[:, 0], mean[:, 0]) > 0.8
    np.testing.assert_allclose(mean[:, 1], 7.0, atol=0.5)


def test_one_row_is_enough_to_predict_it():
    with pytest.warns(UserWarning, match="there is one row only"):
        model = bmp.MPRegressor((4,), epochs=20, random_state=0).fit([[1.0, 2.0]], [5.0])
    mean, std = model.predict([[1.0, 2.0], [9.0, -9.0]], return_std=True)
    assert mean[0] == pytest.approx(5.0, abs=0.2)
    assert std[1] > 5 * std[0]


def test_tiny_units_are_units():
    """Targets of order 1e-15 are no rounding errors of a constant."""
    x, y, _, _ = linear(200)
    model = bmp.MPRegressor((), epochs=20, random_state=0).fit(x, 1e-15 * y[:, 0])
    assert model.score(x, 1e-15 * y[:, 0]) > 0.8


def test_text_targets_are_refused():
    with pytest.raises(ValueError, match=r"could not convert string to float.*MPClassifier labels of any type"):
        bmp.MPRegressor().fit([[1.0], [2.0]], ["a", "b"])


@pytest.mark.parametrize("share", [0.0, 0.45])
def test_noise_is_not_learned_by_heart_where_columns_are_many(share):
    """100 rows, 20 columns: leave-one-out scores of rows that hold their own outputs were the best ones, so training
    went back to the noise of then, and all targets were learned by heart (R2 of new rows -1.1)."""
    rng = np.random.default_rng(100)
    x = rng.normal(size=(600, 20))
    y = share * x[:, 0] + np.sqrt(1.0 - share**2) * rng.normal(size=600)
    model = bmp.MPRegressor(random_state=0).fit(x[:100], y[:100])
    assert model.score(x[100:], y[100:]) > share**2 - 0.45
    assert model.history_[-1].metrics["rmse"] > 0.3 and "at rest" in model.history_.stopped
    assert float(model.network_.predict(np.zeros((1, 20))).noise_var) > 0.3


@pytest.mark.parametrize("seed", [0, 1])
def test_a_wave_of_one_column_is_found(seed):
    """sin(2 x), noise .3: who knows the function has R2 .85; a layer of 50 stops at .7 to .8."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-3, 3, (1400, 1))
    y = np.sin(2 * x[:, 0]) + 0.3 * generator.normal(size=1400)
    model = bmp.MPRegressor(random_state=seed).fit(x[:400], y[:400])
    assert model.score(x[400:], y[400:]) > 0.78
