"""LeakyReLU's messages against quadrature: direct, marginal and backward, every fallback, and extremes."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesmp.messages.activation import (
    MIN_NORMALISER,
    NO_MESSAGE,
    leaky_relu_marginal_to_output,
    leaky_relu_to_input,
    leaky_relu_to_output,
)
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.tilted import MIN_RHO
from tests.messages.truth import (
    DTYPES,
    RTOL,
    assert_close,
    assert_message,
    assert_proper,
    expectation,
    numbers,
    rounded,
    tilted_by_leaky_relu,
)

LEAKS = [0.0, 0.01, 0.1, 0.5]
MEANS = [-1e3, -30.0, -3.0, -1.0, -0.3, 0.0, 0.2, 1.0, 3.0, 30.0, 1e3]
VARS = [1e-6, 1e-3, 0.1, 1.0, 10.0, 1e3]
OUT_MEANS = [-5.0, -1.0, -0.1, 0.0, 1.0, 1e3]
OUT_RHOS = [1e-4, 0.1, 1.0, 10.0, 1e4]
MAX_CONFLICT = 1e4  # nats by which m_in and m_out may contradict each other before float64 quadrature itself fails


def leaky_relu(x, leak):
    return np.where(x >= 0, x, leak * x)


def direct_moments(mean, var, leak):
    first = expectation(lambda x: leaky_relu(x, leak), mean, var, kink=0.0, reach=35.0)
    return first, expectation(lambda x: (leaky_relu(x, leak) - first[..., None]) ** 2, mean, var, kink=0.0, reach=35.0)


def grid(dtype):
    """All combinations of input and message: (mean, var, tau, rho), messages with rho = 0 and tau != 0 included."""
    known = [(m, v, r * y, r) for m, v, y, r in itertools.product(MEANS, VARS, OUT_MEANS, OUT_RHOS)]
    slopes = [(m, v, t, 0.0) for m, v, t in itertools.product(MEANS, VARS, [-10.0, -0.3, 0.0, 0.3, 10.0])]
    return rounded(dtype, *np.array(known + slopes).T)


# --- to the output ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_output_has_the_moments_of_leaky_relu(leak, dtype):
    mean, var = rounded(dtype, *np.array(list(itertools.product([*MEANS, -10.0, -5.0], VARS))).T)
    true_mean, true_var = direct_moments(numbers(mean), numbers(var), leak)
    m_out = leaky_relu_to_output(Moments(mean, var), leak)
    std = np.sqrt(numbers(var))
    # A ReLU more than 10 stds below zero passes on less than 1e-24 of its input's variance: zero will do.
    assert_close(m_out.mean, true_mean, rtol=RTOL[dtype], scale=1e-20 * std, what="mean")
    assert_close(m_out.var, true_var, rtol=RTOL[dtype], scale=1e-20 * std**2, what="var")


def test_to_output_does_not_cancel_far_from_zero_in_float32():
    """E[y^2] - E[y]^2 gave 0.6875 here."""
    m_out = leaky_relu_to_output(Moments(torch.tensor([1000.0]), torch.tensor([0.7])), 0.1)
    assert_close(m_out.var, np.array([0.7]), rtol=1e-6)


@pytest.mark.parametrize("leak", LEAKS)
def test_to_output_of_a_sharp_input_is_its_value(leak):
    x = torch.tensor([-2.0, -1e-3, 0.0, 1e-3, 3.0], dtype=torch.float64)
    m_out = leaky_relu_to_output(Moments(x, torch.zeros_like(x)), leak)
    assert_close(m_out.mean, torch.maximum(x, leak * x), rtol=1e-12)
    assert (m_out.var == 0).all()


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_slope_is_the_derivative_of_the_output_mean(leak, dtype):
    mean, var = rounded(dtype, *np.array(list(itertools.product([-3.0, -0.5, 0.0, 0.2, 2.0], [0.01, 0.5, 3.0]))).T)
    m, v = numbers(mean), numbers(var)
    step = 1e-5 * np.sqrt(v)
    ahead, behind = (direct_moments(m + s, v, leak)[0] for s in (step, -step))
    found = leaky_relu_to_output(Moments(mean, var), leak).slope
    assert_close(found, (ahead - behind) / (2 * step), rtol=RTOL[dtype], scale=1e-3)


# --- to the input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_input_is_the_marginal_divided_by_the_input(leak, dtype):
    """Also where the marginal is not narrower than the input: then only the slope of the log-normaliser passes."""
    mean, var, tau, rho = grid(dtype)
    truth = tilted_by_leaky_relu(*map(numbers, (mean, var, tau, rho)), leak)
    message = leaky_relu_to_input(Moments(mean, var), Gaussian(tau, rho), leak)
    assert_proper(message)

    within = truth.log_mass > -MAX_CONFLICT
    narrows = within & (truth.rho > 1.01 * MIN_RHO)
    widens = within & (truth.rho < 0.99 * MIN_RHO)
    assert narrows.sum() > 800 and widens.sum() > 100
    assert_message(message, truth.tau, truth.rho, rtol=RTOL[dtype], where=narrows)
    assert (message.rho[torch.from_numpy(widens)] == torch.tensor(MIN_RHO, dtype=dtype)).all()
    assert_close(message.tau, truth.first, rtol=RTOL[dtype], scale=1e-6 / truth.std, what="slope", where=widens)


@pytest.mark.parametrize("leak", LEAKS)
def test_to_input_survives_a_contradiction_in_float32(leak):
    """An input many stds on one side, a message that puts y on the other: terms of order 1e7 used to cancel to 400."""
    mean, var, tau, rho = rounded(
        torch.float32,
        [0.2, 1.0, 30.0, 3.0, 1e3],
        [1e-3, 1e-3, 10.0, 0.1, 1e3],
        [-1e5, -5e4, -10.0, 0.0, -5.0],
        [1e4, 1e4, 10.0, 1e4, 1.0],
    )
    truth = tilted_by_leaky_relu(*map(numbers, (mean, var, tau, rho)), leak)
    message = leaky_relu_to_input(Moments(mean, var), Gaussian(tau, rho), leak)
    assert (truth.log_mass < -20).all()
    assert_message(message, truth.tau, truth.rho, rtol=1e-3)


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_input_says_what_the_message_says_where_one_side_holds_all_mass(leak, dtype):
    mean, var, tau, rho = rounded(dtype, [50.0, -50.0], 0.01, 0.7, 2.0)
    message = leaky_relu_to_input(Moments(mean, var), Gaussian(tau, rho), leak)
    expected = [1.0, leak]
    where = np.array([True, leak > 0])
    assert_message(message, 0.7 * np.array(expected), 2.0 * np.array(expected) ** 2, rtol=RTOL[dtype], where=where)
    if leak == 0.0:
        assert message.tau[1] == 0 and message.rho[1] == torch.tensor(MIN_RHO, dtype=dtype)


@pytest.mark.parametrize("leak", LEAKS)
def test_to_input_of_a_sharp_input_reads_the_message_at_its_value(leak):
    """var -> 0: the factor is then its own second-order expansion, tau and rho scaled by the slope there."""
    x = torch.tensor([-2.0, -0.5, 0.5, 3.0], dtype=torch.float64)
    tau, rho = torch.full_like(x, 0.4), torch.full_like(x, 3.0)
    message = leaky_relu_to_input(Moments(x, torch.zeros_like(x)), Gaussian(tau, rho), leak)
    slope = torch.where(x > 0, torch.ones_like(x), leak)
    active = slope.numpy() > 0
    assert_message(message, slope * tau, slope**2 * rho, rtol=1e-9, where=active)


# --- to the output, message known ------------------------------------------------------------------------------------


def marginal_truth(mean, var, tau, rho, leak):
    """(mean, var) of the divided message, the log-normaliser, and the direct moments, by quadrature."""
    truth = tilted_by_leaky_relu(mean, var, tau, rho, leak)
    y = leaky_relu(truth.x, leak)
    y_mean = truth.average(y)
    y_var = np.maximum(truth.average((y - y_mean[..., None]) ** 2), 1e-290)  # 0 for a ReLU that is off
    out_rho = 1.0 / y_var - rho
    log_normaliser = truth.log_mass + 0.5 * np.log(rho / (2 * np.pi))
    return (y_mean / y_var - tau) / out_rho, out_rho, log_normaliser, direct_moments(mean, var, leak)


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_marginal_to_output_is_the_marginal_divided_by_the_message_or_the_direct_one(leak, dtype):
    cases = itertools.product(MEANS[2:-1], VARS, [-5.0, -0.1, 0.0, 1.0], [1e-4, 0.1, 10.0, 1e4])
    mean, var, tau, rho = rounded(dtype, *np.array([(m, v, r * y, r) for m, v, y, r in cases]).T)
    true_mean, true_rho, log_normaliser, direct = marginal_truth(*map(numbers, (mean, var, tau, rho)), leak)
    m_out = leaky_relu_marginal_to_output(Moments(mean, var), Gaussian(tau, rho), leak)
    assert_proper(m_out)

    margin = log_normaliser - np.log(MIN_NORMALISER)
    gain = true_rho * direct[1]  # precision over that of the direct message; 1 up to rounding on one side of the kink
    is_used = (margin > 0.05) & (gain > 1.001)
    is_direct = (margin < -0.05) | (gain < 0.999)
    assert is_used.sum() > 150 and is_direct.sum() > 150
    visible = direct[1] > 1e-20 * numbers(var)  # else a ReLU that is off: both are zero
    used, off = is_used & visible, is_direct
    assert_close(m_out.var, 1.0 / true_rho, rtol=RTOL[dtype], what="var", where=used)
    scale = 1.0 / np.sqrt(np.abs(true_rho))
    assert_close(m_out.mean, true_mean, rtol=RTOL[dtype], scale=scale, what="mean", where=used)
    assert_close(m_out.mean, direct[0], rtol=RTOL[dtype], scale=1e-20, what="direct mean", where=off)
    assert_close(m_out.var, direct[1], rtol=RTOL[dtype], scale=1e-20, what="direct var", where=off)


@pytest.mark.parametrize("dtype", DTYPES)
def test_marginal_to_output_keeps_its_digits_under_a_strong_message(dtype):
    """1 / Var[y] - rho was off by 9 % in float32 at rho var = 1e7."""
    mean, var, tau, rho = rounded(dtype, [-30.0, -30.0, -3.0], 1e3, [-5e4, -1e4, -1e3], 1e4)
    true_mean, true_rho, _, _ = marginal_truth(*map(numbers, (mean, var, tau, rho)), 0.5)
    m_out = leaky_relu_marginal_to_output(Moments(mean, var), Gaussian(tau, rho), 0.5)
    assert_close(m_out.var, 1.0 / true_rho, rtol=RTOL[dtype], what="var")
    assert_close(m_out.mean, true_mean, rtol=RTOL[dtype], what="mean")


@pytest.mark.parametrize(
    "why, mean, var, tau, rho",
    [
        ("the message is not known", 0.3, 1.0, 0.0, 0.0),
        ("the message is not known but has a slope", 0.3, 1.0, 2.0, 0.0),
        ("the message says too little", 0.3, 1.0, 2.0, 0.5 * NO_MESSAGE),
        ("the normaliser is too small", 5.0, 1.0, -50.0, 10.0),
        ("the result would be wider", 0.3, 1.0, 3.0, 1.0),
    ],
)
@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_marginal_to_output_falls_back_to_the_direct_message(why, mean, var, tau, rho, leak, dtype):
    mean, var, tau, rho = rounded(dtype, [mean], [var], [tau], [rho])
    if rho > NO_MESSAGE:
        _, true_rho, log_normaliser, direct = marginal_truth(*map(numbers, (mean, var, tau, rho)), leak)
        assert log_normaliser < np.log(MIN_NORMALISER) or true_rho * direct[1] < 1, why
    m_out = leaky_relu_marginal_to_output(Moments(mean, var), Gaussian(tau, rho), leak)
    direct = leaky_relu_to_output(Moments(mean, var), leak)
    assert m_out.mean == direct.mean and m_out.var == direct.var, why


# --- extremes --------------------------------------------------------------------------------------------------------


def signed(low, high):
    return st.one_of(st.just(0.0), st.floats(low, high), st.floats(low, high).map(lambda x: -x))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    mean=signed(1e-6, 1e6),
    log_var=st.floats(-12.0, 12.0),
    out_mean=signed(1e-6, 1e6),
    rho=st.one_of(st.just(0.0), st.floats(-12.0, 12.0).map(lambda e: 10.0**e)),
    slope=signed(1e-6, 1e12),
    leak=st.sampled_from([*LEAKS, 0.99]),
)
def test_extremes_never_give_nan_inf_or_negative_precision(dtype, mean, log_var, out_mean, rho, slope, leak):
    tau = out_mean * rho if rho > 0 else slope
    mean, var, tau, rho = rounded(dtype, [mean], [10.0**log_var], [tau], [rho])
    m_in, m_out = Moments(mean, var), Gaussian(tau, rho)
    direct = leaky_relu_to_output(m_in, leak)
    assert_proper(direct)
    assert_proper(leaky_relu_to_input(m_in, m_out, leak))
    assert_proper(leaky_relu_marginal_to_output(m_in, m_out, leak))
    assert leak <= direct.slope <= 1
