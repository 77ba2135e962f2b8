"""Inner products: exact form against definition and Gaussian conditioning, matrix form against exact form."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesmp.messages import linear
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.linear_maps import DenseMap
from tests.messages.truth import (
    DTYPES,
    RTOL,
    assert_close,
    assert_message,
    assert_proper,
    condition_on_sum,
    inner_product_messages,
    joint_posterior,
    numbers,
)

MAP = DenseMap()


def random_moments(rng, *shape, dtype, mean=1.0, var=0.5):
    means, variances = rng.normal(0.0, mean, shape), var * rng.uniform(0.2, 1.0, shape)
    return Moments(torch.tensor(means, dtype=dtype), torch.tensor(variances, dtype=dtype))


def random_message(rng, *shape, dtype, rho=2.0):
    precision = rho * rng.uniform(0.2, 1.0, shape)
    precision.flat[0] = 0.0  # a slope without precision is a message too
    return Gaussian(torch.tensor(rng.normal(0.0, 1.5, shape), dtype=dtype), torch.tensor(precision, dtype=dtype))


def model(n_in, n_out=3, batch=4, *, dtype=torch.float64, known=False, seed=0, scale=1.0, rho=2.0):
    """(m_in, weight, bias, m_z, m_back) with non-trivial values; weights of variance scale / n_in."""
    rng = np.random.default_rng(seed)
    m_in = random_moments(rng, batch, n_in, dtype=dtype)
    weight = random_moments(rng, n_out, n_in, dtype=dtype, mean=np.sqrt(scale / n_in), var=scale / n_in)
    bias = random_moments(rng, n_out, dtype=dtype)
    m_in = m_in.mean if known else m_in
    return (
        m_in,
        weight,
        bias,
        linear.linear_to_output(MAP, m_in, weight, bias),
        random_message(rng, batch, n_out, dtype=dtype, rho=rho),
    )


def exact_messages(m_in, weight, bias, m_z, m_back):
    """At cavities."""
    terms = linear.exact_terms(MAP, m_in, weight, m_z, m_back)
    to_input = linear.exact_to_input(MAP, weight, terms) if isinstance(m_in, Moments) else None
    to_weight = linear.exact_to_weight(MAP, m_in, weight, terms)
    return to_input, to_weight, linear.linear_to_bias(MAP, bias, m_z, m_back)


def matrix_messages(m_in, weight, bias, m_z, m_back):
    """At marginals."""
    back = linear.residual(m_z, m_back)
    to_input = linear.linear_to_input(MAP, m_in, weight, back) if isinstance(m_in, Moments) else None
    sums = linear.unit_sums(MAP, bias.var, m_z, m_back, back.to_weight)
    to_bias = Gaussian(sums.slope + bias.mean * sums.rho, sums.rho)
    return to_input, linear.linear_to_weight(MAP, m_in, weight, back), to_bias


# --- to the output ---------------------------------------------------------------------------------------------------


def test_to_output_has_the_moments_of_sampled_sums():
    m_in, weight, bias, m_z, _ = model(5, n_out=2, batch=2)
    rng = np.random.default_rng(1)

    def draw(moments):
        return rng.normal(numbers(moments.mean), np.sqrt(numbers(moments.var)), (200_000, *moments.shape))

    z = np.einsum("sbi,soi->sbo", draw(m_in), draw(weight)) + draw(bias)[:, None, :]
    assert_close(m_z.mean, z.mean(0), rtol=0.01, scale=1.0)
    assert_close(m_z.var, z.var(0), rtol=0.03)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("mean, var", [(0.0, 1.0), (1e3, 1e-6), (1.0, 0.0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_output_sums_the_moments_of_products(dtype, mean, var, known, with_bias):
    """Means of 1e3 with variances of 1e-6: E[a^2] E[w^2] - E[a]^2 E[w]^2 would leave nothing in float32."""
    m_in, weight, bias, _, _ = model(7, dtype=dtype)
    m_in = Moments(m_in.mean + mean, m_in.var * var)
    m_z = linear.linear_to_output(MAP, m_in.mean if known else m_in, weight, bias if with_bias else None)
    a, va, w, vw, b, vb = map(numbers, (m_in.mean, m_in.var, weight.mean, weight.var, bias.mean, bias.var))
    va = 0.0 * va if known else va
    bias_mean, bias_var = (b, vb) if with_bias else (0.0, 0.0)
    true_var = np.einsum("bi,oi->bo", va, w**2) + np.einsum("bi,oi->bo", a**2 + va, vw) + bias_var
    assert_close(m_z.mean, np.einsum("bi,oi->bo", a, w) + bias_mean, rtol=RTOL[dtype], scale=np.sqrt(true_var))
    assert_close(m_z.var, true_var, rtol=RTOL[dtype])


# --- exact form ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_in", [1, 2, 5, 17])
@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_form_at_cavities_is_the_definition(n_in, dtype):
    m_in, weight, bias, m_z, m_back = model(n_in, dtype=dtype)
    to_input, to_weight, to_bias = exact_messages(m_in, weight, bias, m_z, m_back)
    a, va, w, vw, b, vb = map(numbers, (m_in.mean, m_in.var, weight.mean, weight.var, bias.mean, bias.var))
    tau, rho, z_mean, z_var = map(numbers, (m_back.tau, m_back.rho, m_z.mean, m_z.var))
    true_input, true_weight, true_bias = np.zeros((2, *a.shape)), np.zeros((2, *w.shape)), np.zeros((2, *b.shape))
    for n, o in np.ndindex(tau.shape):
        to_a, to_w = inner_product_messages(a[n], va[n], w[o], vw[o], b[o], vb[o], tau[n, o], rho[n, o])
        true_input[:, n] += to_a
        true_weight[:, o] += to_w
        ahead = condition_on_sum(
            np.ones(2),
            np.array([b[o], z_mean[n, o] - b[o]]),
            np.array([vb[o], z_var[n, o] - vb[o]]),
            tau[n, o],
            rho[n, o],
        )
        true_bias[:, o] += ahead[0][0], ahead[1][0]
    for message, truth in ((to_input, true_input), (to_weight, true_weight), (to_bias, true_bias)):
        assert_message(message, *truth, rtol=RTOL[dtype])


@pytest.mark.parametrize("n_in", [1, 2, 6])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_known_input_at_cavities_is_gaussian_conditioning(n_in, dtype):
    """One example: z is a weighted sum of weights and bias with known weights, so the messages are exact."""
    m_in, weight, bias, m_z, m_back = model(n_in, batch=1, dtype=dtype, known=True)
    to_input, to_weight, to_bias = exact_messages(m_in, weight, bias, m_z, m_back)
    assert to_input is None
    for o in range(3):
        a = np.append(numbers(m_in[0]), 1.0)
        mean, var = (
            np.append(numbers(w[o]), numbers(b[o])) for w, b in ((weight.mean, bias.mean), (weight.var, bias.var))
        )
        tau, rho = condition_on_sum(a, mean, var, *(numbers(part[0, o]) for part in (m_back.tau, m_back.rho)))
        found = Gaussian(
            torch.cat([to_weight.tau[o], to_bias.tau[o : o + 1]]), torch.cat([to_weight.rho[o], to_bias.rho[o : o + 1]])
        )
        assert_message(found, tau, rho, rtol=RTOL[dtype])


@pytest.mark.parametrize("n_in", [1, 2, 6])
def test_a_known_input_at_marginals_sends_the_slope_of_exact_conditioning(n_in):
    """tau_w = a g + mean_w rho_w: the message's slope tau - mean rho at the marginal's mean is that of the true one.

    Truth: one example, messages by conditioning from cavities, marginals = cavity times message. Neither rho_w nor
    tau_w alone can be recovered from marginals; their combination can, and it fixes the means.
    """
    m_in, cavity, bias_cavity, _, m_back = model(n_in, n_out=1, batch=1, known=True, seed=3)
    m_back = Gaussian(m_back.tau, torch.full_like(m_back.rho, 4.0))
    a = np.append(numbers(m_in[0]), 1.0)
    mean, var = (
        np.append(numbers(cavity.mean), numbers(bias_cavity.mean)),
        np.append(numbers(cavity.var), numbers(bias_cavity.var)),
    )
    tau_z, rho_z = m_back.tau.item(), m_back.rho.item()
    tau, rho = condition_on_sum(a, mean, var, tau_z, rho_z)
    posterior_mean, covariance = joint_posterior(a, mean, var, tau_z, rho_z)

    def split(values):
        return torch.tensor(values[None, :-1]), torch.tensor(values[-1:])

    (w_mean, b_mean), (w_var, b_var) = split(posterior_mean), split(np.diag(covariance))
    weight, bias = Moments(w_mean, w_var), Moments(b_mean, b_var)
    m_z = linear.linear_to_output(MAP, m_in, weight, bias)
    _, to_weight, to_bias = matrix_messages(m_in, weight, bias, m_z, m_back)
    slope = torch.cat([(to_weight.tau - w_mean * to_weight.rho)[0], to_bias.tau - b_mean * to_bias.rho])
    assert_close(slope, a * (tau_z - rho_z * (a @ posterior_mean)), rtol=1e-9, what="a g")
    assert_close(slope, tau - posterior_mean * rho, rtol=1e-9, what="slope of the true message")


# --- matrix form -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
def test_matrix_form_is_exact_up_to_one_over_fan_in(known):
    """At sums that have not seen the example, as a visit makes them: all of their variance shrinks what goes back.
    Quadrupling the fan-in must divide the error by about four, down to below 1 % at 256 terms.

    The bias takes no part in this: its share of the variance does not shrink with the fan-in, so both forms send it the
    same exact precision.
    """
    errors = []
    for n_in in (4, 16, 64, 256, 1024):
        m_in, weight, bias, m_z, m_back = model(n_in, n_out=8, batch=8, known=known)
        parts = (m_in, weight, bias, linear.SumMoments(m_z.mean, m_z.var, m_z.var), m_back)
        worst = []
        *found_terms, found_bias = matrix_messages(*parts)
        *true_terms, true_bias = exact_messages(*parts)
        torch.testing.assert_close(found_bias.rho, true_bias.rho)
        for found, truth in zip(found_terms, true_terms, strict=True):
            if truth is not None:
                worst.append(((found.rho - truth.rho).abs() / truth.rho).mean())
                worst.append((found.tau - truth.tau).abs().mean() / truth.tau.abs().mean())
        errors.append(torch.stack(worst))
    errors = torch.stack(errors)  # (fan-in, quantity)
    rates = errors[1:] / errors[:-1]
    assert (errors[0] > 0).all(), "the forms must differ, or the sweep shows nothing"
    assert (rates[1:] < 0.4).all(), f"error per quadrupled fan-in: {rates}"
    assert (errors[3] < 0.01).all(), f"errors: {errors}"


def test_matrix_form_keeps_the_own_share_in_the_denominator():
    """q = rho / (1 + rho var), e = (tau - rho mean) q / rho: the table of the design, entry by entry."""
    m_in, weight, bias, m_z, m_back = model(6)
    a, va, w, vw, b, vb = map(numbers, (m_in.mean, m_in.var, weight.mean, weight.var, bias.mean, bias.var))
    den = 1.0 + numbers(m_back.rho) * numbers(m_z.var)
    q, slope = numbers(m_back.rho) / den, numbers(m_back.tau) - numbers(m_back.rho) * numbers(m_z.mean)
    e = slope / den
    e_w = slope / (1.0 + numbers(m_back.rho) * (va @ (w**2 + vw).T))  # own uncertainty of weights does not shrink it
    to_input, to_weight, to_bias = matrix_messages(m_in, weight, bias, m_z, m_back)
    assert_message(to_input, e @ w + a * (q @ w**2), q @ (w**2 + vw), rtol=1e-10)
    assert_message(to_weight, e_w.T @ a + w * (q.T @ a**2), q.T @ (a**2 + va), rtol=1e-10)
    q_bias = numbers(m_back.rho) / (den - numbers(m_back.rho) * vb)  # the bias's own share is left out
    assert_message(to_bias, e_w.sum(0) + b * q_bias.sum(0), q_bias.sum(0), rtol=1e-10)


def test_weight_curvature_is_minus_the_derivative_of_what_weights_receive_in_the_mean_of_z():
    *_, m_z, m_back = model(6)
    step = 1e-4
    ahead, behind = (
        linear.residual(linear.SumMoments(m_z.mean + s, m_z.var, m_z.input_var), m_back).to_weight
        for s in (step, -step)
    )
    found = linear.weight_curvature(m_z.input_var, m_back.rho)
    assert_close(found, -(ahead - behind) / (2 * step), rtol=1e-7, scale=1e-2)


@pytest.mark.parametrize("form", [matrix_messages, exact_messages])
@pytest.mark.parametrize("known", [True, False])
def test_float32_agrees_with_float64(form, known):
    """Both forms with the prior's spread, a message of 1e3 and sharp inputs (variance 1e-6)."""
    single = model(40, dtype=torch.float32, known=known, rho=1e3)
    double = [part.map(torch.Tensor.double) if hasattr(part, "map") else part.double() for part in single]
    if not known:
        sharp = single[0].var * 1e-6
        single = (Moments(single[0].mean, sharp), *single[1:])
        double[0] = Moments(double[0].mean, sharp.double())
    single, double = list(single), list(double)
    for parts in (single, double):
        parts[3] = linear.linear_to_output(MAP, *parts[:3])
    for found, truth in zip(form(*single), form(*double), strict=True):
        if truth is not None:
            size = truth.tau.abs().mean().item()  # tau sums terms of both signs
            assert_close(found.rho, truth.rho, rtol=1e-3, what="rho")
            assert_close(found.tau, truth.tau, rtol=1e-3, scale=size, what="tau")


# --- extremes --------------------------------------------------------------------------------------------------------


def test_the_matrix_form_is_no_message_from_cavities():
    """What the exact form is for: with a single term, its own share is the whole variance and q is far too small."""
    parts = model(1, rho=20.0)
    exact, matrix = (messages(*parts)[1] for messages in (exact_messages, matrix_messages))
    assert (matrix.rho / exact.rho < 0.7).all()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    size=st.floats(-6.0, 6.0),
    log_var=st.floats(-12.0, 6.0),
    weight_size=st.floats(-6.0, 3.0),
    weight_log_var=st.floats(-12.0, 3.0),
    out_mean=st.floats(-1e6, 1e6),
    rho=st.one_of(st.just(0.0), st.floats(-12.0, 12.0).map(lambda e: 10.0**e)),
    seed=st.integers(0, 100),
)
def test_extremes_stay_proper(dtype, known, size, log_var, weight_size, weight_log_var, out_mean, rho, seed):
    rng = np.random.default_rng(seed)
    m_in = random_moments(rng, 2, 3, dtype=dtype, mean=10.0**size, var=10.0**log_var)
    weight = random_moments(rng, 2, 3, dtype=dtype, mean=10.0**weight_size, var=10.0**weight_log_var)
    bias = random_moments(rng, 2, dtype=dtype)
    m_in = m_in.mean if known else m_in
    m_back = Gaussian(torch.full((2, 2), out_mean * rho, dtype=dtype), torch.full((2, 2), rho, dtype=dtype))
    m_z = linear.linear_to_output(MAP, m_in, weight, bias)
    assert_proper(m_z)
    parts = (m_in, weight, bias, m_z, m_back)
    for found in (*matrix_messages(*parts), *exact_messages(*parts)):
        if found is not None:
            assert_proper(found)
