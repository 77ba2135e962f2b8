"""Softplus against quadrature: moments, slope, the line nearest to it, and extremes."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import expit

from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.line import line_to_input
from bayesmp.messages.softplus import softplus_mean, softplus_to_output
from tests.messages.truth import DTYPES, RTOL, assert_close, assert_proper, expectation, numbers, rounded

MEANS = [-1e4, -100.0, -30.0, -8.0, -3.0, -1.0, -0.2, 0.0, 0.3, 1.0, 3.0, 8.0, 30.0, 1e4]
VARS = [1e-8, 1e-4, 0.01, 0.3, 1.0, 4.0, 30.0, 1e3]


def softplus(x):
    return np.logaddexp(0.0, x)


def average(function, mean, var):
    """Also where the bend is much narrower than the input: in pieces of equal width on both sides of 0."""
    return expectation(function, mean, var, kink=0.0, reach=9.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_and_slope_are_those_of_softplus(dtype):
    """The variance to 1e-4 of the input's."""
    mean, var = rounded(dtype, *np.array(list(itertools.product(MEANS, VARS))).T)
    m, v = numbers(mean), numbers(var)
    true_mean, true_slope = average(softplus, m, v), average(expit, m, v)
    line = true_mean[:, None]

    def around_line(x):
        return (softplus(x) - line - true_slope[:, None] * (x - m[:, None])) ** 2

    true_rest = average(around_line, m, v)
    found, rest = softplus_to_output(Moments(mean, var))
    assert_close(found.mean, true_mean, rtol=RTOL[dtype] / 10, scale=1.0, what="mean")
    assert_close(found.slope, true_slope, rtol=1e-7 if dtype == torch.float64 else 2e-6, scale=1.0, what="slope")
    assert_close(rest, true_rest, rtol=2e-4, scale=v, what="variance around the line")
    assert_close(found.var, true_rest + v * true_slope**2, rtol=2e-4, scale=v, what="var")
    assert_close(rest, true_rest, rtol=0.05, scale=1e-4 * v + 1e-12, what="variance around the line, by itself")


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes_stay_proper(dtype):
    sizes = [0.0, 1e-6, 1.0, 1e3, 1e6]
    mean, var = rounded(dtype, *np.array([(s * m, v) for s in (1, -1) for m, v in itertools.product(sizes, sizes)]).T)
    found, rest = softplus_to_output(Moments(mean, var))
    assert_proper(found)
    assert (found.slope >= 0).all() and (found.slope <= 1 + 1e-6).all() and (rest >= 0).all()
    sharp = var == 0
    expected = softplus(numbers(mean))[sharp.numpy()]
    assert_close(found.mean[sharp], expected, rtol=1e-6, scale=1.0)
    assert (found.var[sharp] == 0).all()


def test_mean_and_slope_can_be_differentiated_at_extremes():
    """As the objective does: the slope is the derivative of the mean, and no entry becomes NaN."""
    mean, var = rounded(torch.float64, *np.array(list(itertools.product(MEANS, [0.0, *VARS]))).T)
    mean.requires_grad_(True)
    found = softplus_mean(Moments(mean, var))
    (derivative,) = torch.autograd.grad(found.mean[found.mean > 0].sum(), mean, create_graph=True)
    torch.testing.assert_close(derivative[found.mean > 0], found.slope[found.mean > 0])
    assert torch.autograd.grad(found.slope.sum(), mean)[0].isfinite().all()


def test_message_to_the_input_gives_the_posterior_of_the_nearest_joint_gaussian():
    """Mean and variance of x given y + N(0, 1 / rho) = tau / rho, by moments of 2 million samples of x and y."""
    mean, var, tau, rho = 0.4, 2.0, 1.5, 0.8
    x = mean + var**0.5 * torch.randn(2_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    joint = torch.stack([x, torch.nn.functional.softplus(x)])
    (var_x, across), (_, var_y) = joint.cov().tolist()
    gain = across / (var_y + 1.0 / rho)
    true_mean, true_var = float(x.mean()) + gain * (tau / rho - float(joint[1].mean())), var_x - gain * across

    m_in = Moments(*(torch.tensor(part, dtype=torch.float64) for part in (mean, var)))
    found, rest = softplus_to_output(m_in)
    m_back = Gaussian(*(torch.tensor(part, dtype=torch.float64) for part in (tau, rho)))
    message = line_to_input(m_back, found.slope, found.mean - found.slope * m_in.mean, rest)
    marginal = m_in * message
    assert float(marginal.mean) == pytest.approx(true_mean, abs=5e-3)
    assert float(marginal.var) == pytest.approx(true_var, rel=5e-3)
    nothing = line_to_input(Gaussian.nothing(m_in.mean), found.slope, found.mean, rest)
    assert nothing.tau == 0 and nothing.rho == 0
