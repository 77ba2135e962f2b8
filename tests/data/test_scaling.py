"""Standardising against numpy's own moments."""

import numpy as np
import pytest

from bayesmp.data import Scaling, standardise
from bayesmp.data.scaling import CHUNK


def test_images_get_one_mean_and_std():
    rng = np.random.default_rng(0)
    train = rng.integers(0, 256, (2 * CHUNK + 3, 3, 4, 5), dtype=np.uint8)  # the last chunk is not full
    test = rng.integers(0, 256, (7, 3, 4, 5), dtype=np.uint8)
    scaled, scaled_test = standardise(train, test)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, (train - train.mean()) / train.std(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scaled_test, (test - train.mean()) / train.std(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_get_one_mean_and_std_per_column(dtype):
    x = (np.random.default_rng(1).normal(size=(CHUNK + 50, 3)) * [1, 10, 0.1] + [0, 5, -100]).astype(dtype)
    (scaled,) = standardise(x)
    assert scaled.dtype == dtype
    np.testing.assert_allclose(scaled.mean(axis=0, dtype=np.float64), 0, atol=1e-3 if dtype is np.float32 else 1e-10)
    np.testing.assert_allclose(scaled.std(axis=0, dtype=np.float64), 1, rtol=1e-3 if dtype is np.float32 else 1e-10)


def test_the_choice_can_be_made_by_hand():
    x = np.array([[0.0, 10.0], [2.0, 12.0]])
    np.testing.assert_allclose(standardise(x, per_feature=True)[0], [[-1, -1], [1, 1]])
    np.testing.assert_allclose(standardise(x, per_feature=False)[0], (x - 6) / np.sqrt(26))


def test_targets_have_one_mean_and_std_and_come_back():
    y = np.array([3.0, 5.0, 10.0])
    scaling = Scaling.fit(y)
    assert scaling.mean.shape == ()
    np.testing.assert_allclose(scaling.mean, 6.0)
    np.testing.assert_allclose(scaling.undo(scaling.apply(y)), y)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_a_constant_column_becomes_zero(value):
    x = np.column_stack([np.arange(100.0), np.full(100, value)])
    (scaled,) = standardise(x)
    np.testing.assert_allclose(scaled[:, 1], 0.0, atol=1e-6)
    assert np.isfinite(scaled).all()


def test_a_column_in_small_units_is_not_constant():
    """Everything below 1e-12 counted as a rounding error once, so nanograms in tonnes became zeros."""
    x = 1e-15 * np.arange(6.0)[:, None]
    np.testing.assert_allclose(standardise(x)[0], standardise(np.arange(6.0)[:, None])[0])


def test_the_input_is_not_changed():
    x = np.arange(6.0).reshape(3, 2)
    before = x.copy()
    standardise(x, x)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="NaN or infinite"), np.errstate(invalid="ignore"):
        Scaling.fit(np.array([1.0, bad]))


def test_an_empty_array_is_refused():
    with pytest.raises(ValueError, match="empty"):
        standardise(np.zeros((0, 3)))
