"""Weighted sums with known weights against Gaussian conditioning; probabilities of the largest against sampling."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.weighted_sum import largest_probabilities, weighted_sum_to_input, weighted_sum_to_output
from tests.messages.truth import (
    DTYPES,
    RTOL,
    assert_close,
    assert_message,
    assert_proper,
    condition_on_sum,
    numbers,
    rounded,
)

# weights, means, variances of the terms, and the message (tau, rho) at their sum
CASES = {
    "plain": ([0.5, -1.2, 2.0], [0.3, 1.0, -0.4], [0.5, 0.2, 1.5], (0.7, 2.0)),
    "two": ([1.0, 1.0], [-2.0, 3.0], [1e-6, 1.0], (40.0, 10.0)),
    "one": ([3.0], [0.2], [0.4], (-1.0, 5.0)),
    "slope only": ([0.5, 0.5, 0.1], [0.3, 1.0, -0.4], [0.5, 0.2, 1.5], (0.7, 0.0)),
    "a zero weight": ([0.0, 1.0, 1.0], [5.0, 1.0, -0.4], [0.5, 0.2, 1.5], (0.7, 3.0)),
    "far": ([0.25] * 4, [1e3, 1e3 + 1, 1e3 - 2, 1e3], [0.1, 0.2, 0.3, 0.4], (1001.0 * 4, 4.0)),
    "strong": ([0.3, 0.3, 0.4], [1.0, 2.0, 3.0], [1.0, 2.0, 0.5], (2e3, 1e3)),
    "sharp": ([0.3, 0.3, 0.4], [1.0, 2.0, 3.0], [1e-6, 2e-6, 1e-6], (4.0, 2.0)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_messages_are_those_of_gaussian_conditioning(case, dtype):
    weights, means, variances, (tau_z, rho_z) = CASES[case]
    a, mean, var = rounded(dtype, weights, means, variances)
    tau, rho = rounded(dtype, tau_z, rho_z)
    m_in = Moments(mean, var)
    z = weighted_sum_to_output(a, m_in, dim=0)
    assert_close(z.mean, numbers(a) @ numbers(mean), rtol=RTOL[dtype])
    assert_close(z.var, numbers(a) ** 2 @ numbers(var), rtol=RTOL[dtype])
    tau_true, rho_true = condition_on_sum(*map(numbers, (a, mean, var, tau, rho)))
    message = weighted_sum_to_input(a, m_in, Gaussian(tau, rho), dim=0)
    assert_message(message, tau_true, rho_true, rtol=RTOL[dtype])


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_terms_may_lie_along_any_dimension(dim):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    m_in = Moments(mean, torch.rand(3, 4, 5, generator=generator, dtype=torch.float64) + 0.1)
    a = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    rest = mean.sum(dim).shape
    m_out = Gaussian(
        torch.randn(rest, generator=generator, dtype=torch.float64),
        torch.rand(rest, generator=generator, dtype=torch.float64),
    )
    message = weighted_sum_to_input(a, m_in, m_out, dim=dim)
    assert message.shape == mean.shape

    def last(part):
        return part.movedim(dim, -1).reshape(-1, mean.shape[dim])

    for row in range(0, last(mean).shape[0], 5):
        tau, rho = condition_on_sum(
            *(numbers(last(part)[row]) for part in (a, m_in.mean, m_in.var)),
            *(numbers(part.flatten()[row]) for part in (m_out.tau, m_out.rho)),
        )
        assert_message(message.map(lambda part, row=row: last(part)[row]), tau, rho, rtol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    terms=st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e6, 1e6), st.floats(-12, 6)), min_size=1, max_size=6),
    out_mean=st.floats(-1e6, 1e6),
    rho=st.one_of(st.just(0.0), st.floats(-12.0, 12.0).map(lambda e: 10.0**e)),
)
def test_extremes_stay_proper(dtype, terms, out_mean, rho):
    a, mean, log_var = np.array(terms).T
    a, mean, var = rounded(dtype, a, mean, 10.0**log_var)
    tau, rho = rounded(dtype, out_mean * rho, rho)
    assert_proper(weighted_sum_to_output(a, Moments(mean, var), dim=0))
    assert_proper(weighted_sum_to_input(a, Moments(mean, var), Gaussian(tau, rho), dim=0))
    p = largest_probabilities(Moments(mean, var), noise=0.3, dim=0)
    assert p.isfinite().all() and (p >= 0).all()
    assert_close(p.sum(), 1.0, rtol=1e-5)


@pytest.mark.parametrize("noise", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_larger_of_two_is_exact(noise, dtype):
    mean, var = rounded(
        dtype, [[0.3, 1.0], [2.0, -5.0], [0.0, 0.0], [-1e3, 1e3]], [[0.5, 0.2], [1.0, 1.0], [1e-6, 1e-6], [1.0, 3.0]]
    )
    m, v = numbers(mean), numbers(var)
    first = stats.norm.cdf((m[:, 0] - m[:, 1]) / np.sqrt(v.sum(1) + noise))
    p = largest_probabilities(Moments(mean, var), noise=noise, dim=1)
    assert_close(p, np.stack([first, 1.0 - first], 1), rtol=RTOL[dtype], scale=1e-6)


def test_the_largest_of_many_is_the_normalised_product_of_sampled_pairs():
    """Each pair by sampling, independently of the others, as the definition has it."""
    rng = np.random.default_rng(0)
    mean, var, noise, n = np.array([0.2, -0.4, 0.9, 0.5]), np.array([0.5, 1.0, 0.1, 2.0]), 0.3, 200_000
    beats = np.ones((4, 4))
    for i in range(4):
        for j in set(range(4)) - {i}:
            x, y = (rng.normal(mean[k], np.sqrt(var[k]), n) for k in (i, j))
            beats[i, j] = (x - y + rng.normal(0.0, np.sqrt(noise), n) > 0).mean()
    expected = beats.prod(1) / beats.prod(1).sum()
    p = largest_probabilities(Moments(torch.tensor(mean), torch.tensor(var)), noise=noise, dim=0)
    assert_close(p, expected, rtol=0.01)


def test_the_largest_is_found_along_any_dimension_and_permutes_with_it():
    generator = torch.Generator().manual_seed(1)
    m_in = Moments(torch.randn(2, 3, 4, generator=generator), torch.rand(2, 3, 4, generator=generator))
    along_last = largest_probabilities(m_in, noise=0.3, dim=2)
    along_first = largest_probabilities(m_in.map(lambda part: part.movedim(2, 0)), noise=0.3, dim=0)
    torch.testing.assert_close(along_first.movedim(0, 2), along_last)
    flipped = largest_probabilities(m_in.map(lambda part: part.flip(2)), noise=0.3, dim=2)
    torch.testing.assert_close(flipped.flip(2), along_last)
