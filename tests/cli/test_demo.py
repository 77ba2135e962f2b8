"""The sine data."""

import math

import numpy as np
import pytest

from bayesmp.data import sine, sine_function


@pytest.mark.parametrize("x, expected", [(0.0, 0.0), (1.0, 0.5), (0.125, 0.0625 + 0.2 * math.sqrt(0.5) + 0.3)])
def test_the_function_at_points_known_by_hand(x, expected):
    assert sine_function(x) == pytest.approx(expected)
    np.testing.assert_allclose(sine_function(np.full((2, 3), x)), np.full((2, 3), expected), atol=1e-12)


def test_the_data_fill_the_range_and_have_the_noise_asked_for():
    x, y = sine(20_000, low=-0.5, high=0.5, noise_std=0.2, seed=1)
    assert (x.shape, y.shape) == ((20_000, 1), (20_000,))
    assert -0.5 <= x.min() < -0.49
    assert 0.49 < x.max() <= 0.5
    residual = y - sine_function(x[:, 0])
    assert residual.mean() == pytest.approx(0.0, abs=0.005)
    assert residual.std() == pytest.approx(0.2, rel=0.03)


def test_without_noise_the_targets_are_the_function():
    x, y = sine(10, noise_std=0.0)
    np.testing.assert_array_equal(y, sine_function(x[:, 0]))


def test_the_seed_decides():
    np.testing.assert_array_equal(sine(5, seed=3)[1], sine(5, seed=3)[1])
    assert not np.array_equal(sine(5, seed=3)[1], sine(5, seed=4)[1])


@pytest.mark.parametrize(
    "arguments, message", [({"n": 0}, "n must"), ({"low": 2.0}, "below high"), ({"noise_std": -1.0}, "negative")]
)
def test_impossible_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        sine(**arguments)
