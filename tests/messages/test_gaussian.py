"""The algebra of messages: natural parameters add, moments and natural parameters agree, limits are ordinary cases."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bayesmp.messages.gaussian import Gaussian, Moments

DTYPES = [torch.float64, torch.float32]


def gaussian(mean, var, dtype=torch.float64):
    return Gaussian.from_moments(torch.tensor(mean, dtype=dtype), torch.tensor(var, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_and_natural_parameters_agree(dtype):
    m = gaussian([0.5, -2.0, 1e3], [0.1, 1e-6, 4.0], dtype)
    torch.testing.assert_close(m.mean, torch.tensor([0.5, -2.0, 1e3], dtype=dtype))
    torch.testing.assert_close(m.var, torch.tensor([0.1, 1e-6, 4.0], dtype=dtype))
    torch.testing.assert_close(m.moments().natural().tau, m.tau)
    torch.testing.assert_close(m.moments().natural().rho, m.rho)
    assert m.shape == m.moments().shape == (3,)


def test_the_product_is_the_product_of_densities():
    a, b, x = gaussian([0.5], [2.0]), gaussian([-1.0], [0.3]), torch.linspace(-3.0, 3.0, 7, dtype=torch.float64)
    product = a * b
    ratio = [stats.norm.pdf(x, m.mean.item(), m.var.sqrt().item()) for m in (a, b, product)]
    constant = ratio[0] * ratio[1] / ratio[2]
    torch.testing.assert_close(torch.tensor(constant), torch.full((7,), constant[0]).double())


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3))
def test_identities(means, variances):
    a, b, c = (gaussian([m], [v]) for m, v in zip(means, variances, strict=True))

    def same(left, right, size):
        torch.testing.assert_close(left.tau, right.tau, rtol=1e-9, atol=1e-12 * size)
        torch.testing.assert_close(left.rho, right.rho, rtol=1e-9, atol=1e-12 * size)

    size = max(part.abs().max().item() for m in (a, b, c) for part in (m.tau, m.rho))
    same((a * b) / b, a, size)
    same(a * b, b * a, size)
    same((a * b) * c, a * (b * c), size)
    same(a**2, a * a, size)
    same(a**0.3 * a**0.7, a, size)
    same(a / a, Gaussian.nothing(a.tau), size)
    same(a * Gaussian.nothing(a.tau), a, size)
    same(a**0, Gaussian.nothing(a.tau), size)


def test_a_power_may_differ_per_entry():
    m = gaussian([1.0, 2.0], [0.5, 0.5]) ** torch.tensor([0.0, 2.0], dtype=torch.float64)
    assert m.rho.tolist() == [0.0, 4.0] and m.tau.tolist() == [0.0, 8.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_times_a_message_is_the_product(dtype):
    prior, message = gaussian([0.5, -2.0], [0.1, 3.0], dtype), gaussian([1.0, 1.0], [0.7, 0.2], dtype)
    found, expected = prior.moments() * message, (prior * message).moments()
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.var, expected.var)


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_times_a_message_at_the_limits(dtype):
    """A message that says nothing changes nothing; one with slope only shifts; a sharp value stays."""
    belief = Moments(torch.tensor([0.5, 0.5, 0.5], dtype=dtype), torch.tensor([2.0, 2.0, 0.0], dtype=dtype))
    message = Gaussian(torch.tensor([0.0, 1.5, 7.0], dtype=dtype), torch.tensor([0.0, 0.0, 3.0], dtype=dtype))
    found = belief * message
    torch.testing.assert_close(found.mean, torch.tensor([0.5, 3.5, 0.5], dtype=dtype))
    torch.testing.assert_close(found.var, belief.var)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(mean=st.floats(-1e6, 1e6), log_var=st.floats(-12, 12), m=st.floats(-1e6, 1e6), rho=st.floats(0.0, 1e12))
def test_extreme_products_stay_proper(dtype, mean, log_var, m, rho):
    belief = Moments(torch.tensor([mean], dtype=dtype), torch.tensor([10.0**log_var], dtype=dtype))
    found = belief * Gaussian(torch.tensor([m * rho], dtype=dtype), torch.tensor([rho], dtype=dtype))
    assert found.mean.isfinite().all() and found.var.isfinite().all() and (found.var >= 0).all()
    assert found.var <= belief.var
    slack = 1e-5 * max(abs(m), abs(mean)) + 1e-30
    assert min(m, mean) - slack <= found.mean.item() <= max(m, mean) + slack


def test_map_applies_to_both_parts():
    m = gaussian([[1.0, 2.0]], [[0.5, 0.25]])
    assert m.map(torch.t).shape == (2, 1)
    assert m.moments().map(lambda part: part[:, 1:]).var.tolist() == [[0.25]]
    total = m.map(lambda part: part.sum(1))
    assert total.rho.tolist() == [6.0]


def test_a_message_is_one_value_not_two():
    """A forgotten operator must raise, not silently make a 4-tuple."""
    m = gaussian([1.0], [0.5])
    for wrong in (lambda: m + m, lambda: m - m, lambda: 2.0 * m):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(AttributeError):
        m.tau = m.rho
    assert copy.deepcopy(m).tau.tolist() == [2.0]
