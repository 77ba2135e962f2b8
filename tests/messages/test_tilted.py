"""Derivatives of a log-normaliser as a message."""

import math

import pytest
import torch

from bayesmp.messages.gaussian import Gaussian
from bayesmp.messages.tilted import MAX_RHO, MIN_RHO, count_rejected, message_from_parts
from tests.messages.truth import DTYPES, RTOL, assert_message, numbers, rounded


def message_from_derivatives(mean, var, first, second):
    return message_from_parts(first - mean * second, -second, 1.0 + var * second, first)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gaussian_factor_gives_itself_back(dtype):
    """log Z = log N(mean; m, var + v), whose derivatives are known."""
    mean, var, m, v = rounded(
        dtype, [0.3, -2.0, 1.5, 1e3], [0.5, 1e-6, 4.0, 2.0], [1.0, 0.7, -3.0, 990.0], [0.2, 3.0, 1.0, 5.0]
    )
    message = message_from_derivatives(mean, var, (m - mean) / (var + v), -1.0 / (var + v))
    assert_message(message, numbers(m) / numbers(v), 1.0 / numbers(v), rtol=RTOL[dtype])


@pytest.mark.parametrize(
    "tau_den, rho_den, den",
    [
        (1.0, 1.0, -0.5),
        (1.0, -1.0, -0.5),
        (1.0, 1.0, 0.0),
        (1.0, -1.0, 1.0),
        (1.0, 0.0, 1.0),
        (1.0, MAX_RHO, 1.0),
        (math.nan, 1.0, 1.0),
        (math.inf, 1.0, 1.0),
        (1.0, math.nan, 1.0),
        (1.0, 1.0, math.nan),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_improper_message_passes_on_its_slope_alone(tau_den, rho_den, den, dtype):
    parts = rounded(dtype, [tau_den], [rho_den], [den], [0.7])
    message = message_from_parts(*parts)
    assert message.tau.dtype == message.rho.dtype == dtype
    assert message.tau == parts[3]
    assert message.rho == torch.tensor(MIN_RHO, dtype=dtype)
    assert count_rejected(message) == 1


@pytest.mark.parametrize("first", [math.nan, math.inf, -math.inf])
def test_a_slope_that_is_not_finite_says_nothing(first):
    message = message_from_parts(*rounded(torch.float32, [1.0], [-1.0], [1.0], [first]))
    assert message.tau == 0 and message.rho > 0


def test_proper_messages_are_not_counted_as_rejected():
    message = message_from_parts(
        *rounded(torch.float64, [1.0, 2.0, 3.0], [1.0, -1.0, 2.0], [0.5, 0.5, 0.5], [1.0, 1.0, 1.0])
    )
    assert isinstance(message, Gaussian)
    assert message.tau.tolist() == [2.0, 1.0, 6.0]
    assert count_rejected(message) == 1
