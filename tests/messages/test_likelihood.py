"""Heads: messages against quadrature, predictives against sampling, extremes."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.likelihood import (
    argmax_predictive,
    argmax_to_latent,
    centres_of_shares,
    gaussian_to_latent,
    probit_scaled,
    softmax_predictive,
    softmax_to_latent,
)
from bayesmp.messages.tilted import MIN_RHO
from tests.messages.truth import (
    DTYPES,
    RTOL,
    Tilted,
    assert_close,
    assert_message,
    assert_proper,
    expectation,
    numbers,
    panels,
    rounded,
)

NOISE, TARGET, TARGET_VAR = 0.3, 1.0, 0.1
N_CLASSES = 5


def logits(dtype, std, *, spread=1.0, n=40, seed=0):
    """Random logits (b, c) whose means differ by `spread` of their stds, and random classes."""
    rng = np.random.default_rng(seed)
    mean, var = rng.normal(0.0, spread * max(std, 1.0), (n, N_CLASSES)), std**2 * rng.uniform(0.5, 1.0, (n, N_CLASSES))
    return Moments(*rounded(dtype, mean, var)), torch.from_numpy(rng.integers(0, N_CLASSES, n))


# --- Gaussian noise --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_gaussian_noise_is_the_density_of_the_target(dtype):
    y, noise_var = torch.tensor([[0.5], [-2.0], [1e3]], dtype=dtype), torch.tensor(0.0025, dtype=dtype)
    message = gaussian_to_latent(y, noise_var)
    assert message.shape == y.shape
    assert_close(message.mean, y, rtol=1e-6)
    assert_close(message.var, torch.full_like(y, 0.0025), rtol=1e-6)


# --- softmax ---------------------------------------------------------------------------------------------------------


def tilted_by_softmax(mean, var, y):
    """N(a_d; mean_d, var_d) softmax(t_1, .., a_d, ..)_c for each d; t_j = mean_j / sqrt(1 + pi/8 var_j)."""
    t = mean / np.sqrt(1.0 + np.pi / 8.0 * var)
    is_other = ~np.eye(mean.shape[1], dtype=bool)
    others = special.logsumexp(np.broadcast_to(t[:, None, :], (*t.shape, t.shape[1])), axis=2, b=is_other)
    sign = np.where(np.arange(mean.shape[1]) == y[:, None], 1.0, -1.0)[..., None]

    def log_factor(x):
        logit = sign * (x - others[..., None])
        miss = special.expit(-logit)
        return special.log_expit(logit), sign * miss, -miss * special.expit(logit)

    std = np.sqrt(var)
    reach, bend, middle = 14.0 + std, 30.0 / std, (others - mean) / std
    inside = [np.clip(edge, -reach, reach) for edge in (middle - bend, middle, middle + bend)]
    edges = [-reach, *inside, reach]
    return Tilted(mean, var, log_factor, list(itertools.pairwise(edges)))


@pytest.mark.parametrize("spread", [1.0, 5.0])
@pytest.mark.parametrize("std, loose", [(1e-3, 1), (0.1, 1), (1.0, 1), (3.0, 1), (8.0, 1), (20.0, 10), (100.0, 10)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_to_latent_is_the_tilted_logit_divided_by_the_logit(dtype, std, loose, spread):
    """Full tolerance to a logit std of 8, ten times that beyond; a fixed grid used to be off by 14 times at std 20."""
    m_in, y = logits(dtype, std, spread=spread)
    truth = tilted_by_softmax(numbers(m_in.mean), numbers(m_in.var), y.numpy())
    message = softmax_to_latent(m_in, y)
    assert_proper(message)
    says_something = truth.rho > 1.01 * MIN_RHO
    assert says_something.sum() > 100
    assert_message(message, truth.tau, truth.rho, rtol=loose * RTOL[dtype], where=says_something)
    silent = truth.rho < 0.99 * MIN_RHO
    assert (message.rho[torch.from_numpy(silent)] == torch.tensor(MIN_RHO, dtype=dtype)).all()
    assert_close(message.tau, truth.first, rtol=RTOL[dtype], scale=1e-3, what="slope", where=silent)


def test_softmax_to_latent_pulls_the_true_class_up_and_the_others_down():
    m_in, y = logits(torch.float64, 1.0)
    message = softmax_to_latent(m_in, y)
    slope = message.tau - m_in.mean * message.rho
    is_true = torch.nn.functional.one_hot(y, N_CLASSES).bool()
    assert (slope[is_true] > 0).all() and (slope[~is_true] < 0).all()


def test_softmax_predictive_is_close_to_the_sampled_one():
    """The probit scaling is an approximation, good to a few percent."""
    m_in, _ = logits(torch.float64, 2.0, n=8)
    a = np.random.default_rng(1).normal(numbers(m_in.mean), np.sqrt(numbers(m_in.var)), (50_000, *m_in.shape))
    sampled = special.softmax(a, axis=2).mean(0)
    probs = softmax_predictive(m_in)
    assert_close(probs.sum(1), np.ones(8), rtol=1e-12)
    assert np.abs(numbers(probs) - sampled).max() < 0.06
    plain = special.softmax(numbers(m_in.mean), axis=1)
    assert np.abs(numbers(probs) - sampled).mean() < 0.5 * np.abs(plain - sampled).mean()


def test_probit_scaling_gives_the_expected_sigmoid():
    mean, var = rounded(torch.float64, [-4.0, -1.0, 0.0, 0.5, 3.0], [0.1, 1.0, 4.0, 9.0, 2.0])
    truth = expectation(special.expit, numbers(mean), numbers(var))
    assert np.abs(numbers(torch.sigmoid(probit_scaled(Moments(mean, var)))) - truth).max() < 0.02


# --- argmax ----------------------------------------------------------------------------------------------------------


def pair_by_quadrature(mean_c, var_c, mean_i, var_i):
    """((tau, rho) to a_c, (tau, rho) to a_i, P[z < 0]) of one pair, on a two-dimensional grid of (a_c, a_i)."""
    std_c, std_i = np.sqrt(var_c), np.sqrt(var_i)
    u, weight = panels(-14.0, 14.0, 24)
    prior = np.log(weight[:, None] * weight[None, :]) - 0.5 * (u[:, None] ** 2 + u[None, :] ** 2) - np.log(2 * np.pi)
    a_c, a_i = mean_c + std_c * u[:, None], mean_i + std_i * u[None, :]
    log_joint = prior + special.log_ndtr((a_c - a_i) / np.sqrt(NOISE))
    joint = np.exp(log_joint - log_joint.max())
    joint /= joint.sum()
    found = []
    for axis, mean, var, std in ((1, mean_c, var_c, std_c), (0, mean_i, var_i, std_i)):
        density = joint.sum(axis)
        shift = (density * u).sum()
        shrink = (density * (u - shift) ** 2).sum()
        rho = (1.0 / shrink - 1.0) / var
        found.append((mean * rho + shift / (std * shrink), rho))
    return *found, 1.0 - np.exp(special.logsumexp(log_joint))


@pytest.mark.parametrize(
    "mean, var, y",
    [
        ([0.3, -0.5, 1.2], [0.5, 0.8, 0.3], 0),
        ([0.3, -0.5, 1.2], [0.5, 0.8, 0.3], 2),
        ([-4.0, 3.0], [0.5, 0.3], 0),  # hopeless
        ([5.0, -3.0, 0.0], [0.5, 0.3, 2.0], 0),  # clear
        ([0.1, 0.2, -0.1, 0.0], [1e-3, 10.0, 2.0, 1.0], 3),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_argmax_to_latent_collects_its_pairs(mean, var, y, dtype):
    mean, var = rounded(dtype, [mean], [var])
    m, v = numbers(mean)[0], numbers(var)[0]
    truth = np.full((2, len(m)), 0.0)
    truth[1] += 1.0 / TARGET_VAR
    truth[0] += np.where(np.arange(len(m)) == y, TARGET, -TARGET) / TARGET_VAR
    for i in set(range(len(m))) - {y}:
        to_true, to_other, miss = pair_by_quadrature(m[y], v[y], m[i], v[i])
        truth[:, y] += to_true
        truth[:, i] += miss * np.array(to_other)  # precision scaled at unchanged mean: tau scales along
    message = argmax_to_latent(Moments(mean, var), torch.tensor([y]), noise=NOISE, target=TARGET, target_var=TARGET_VAR)
    assert_message(message, truth[:1], truth[1:], rtol=RTOL[dtype])


def test_argmax_to_latent_has_targets_around_a_centre():
    """What the regulariser says is the product of the message without it and a Gaussian, for each class its own."""
    m_in, y = logits(torch.float64, 1.0, n=4)
    constants = {"noise": NOISE, "target": TARGET, "target_var": TARGET_VAR}
    centre = torch.linspace(-0.7, 0.5, m_in.mean.shape[1], dtype=torch.float64)
    message, plain = argmax_to_latent(m_in, y, **constants, centre=centre), argmax_to_latent(m_in, y, **constants)
    torch.testing.assert_close(message.rho, plain.rho)
    torch.testing.assert_close(message.tau - plain.tau, (centre / TARGET_VAR).expand_as(plain.tau))


@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("target", [1.0, 1.5])
def test_centres_make_shares_of_outputs_that_know_nothing(noise, target):
    """The mean of each class's targets, over rows with these shares, is read by the comparisons' link as the share."""
    counts = torch.tensor([40, 25, 15, 8, 5, 3, 2, 2])
    rows = torch.repeat_interleave(torch.arange(8), counts)
    shares = counts.double() / counts.sum()
    centre = centres_of_shares(shares, noise=noise, target=target)
    targets = centre + target * (2.0 * torch.nn.functional.one_hot(rows, 8) - 1.0)
    link = 1.702 / noise**0.5
    torch.testing.assert_close(torch.softmax(link * targets.mean(0), 0), shares)
    assert float(centre[rows].mean()) == pytest.approx(0.0, abs=1e-12)
    even = centres_of_shares(torch.full((5,), 0.2, dtype=torch.float64), noise=noise, target=target)
    assert even.abs().max() < 1e-12


def test_argmax_to_latent_depends_on_each_constant():
    m_in, y = logits(torch.float64, 1.0, n=4)
    plain = {"noise": NOISE, "target": TARGET, "target_var": TARGET_VAR}
    base = argmax_to_latent(m_in, y, **plain)
    for name in plain:
        other = argmax_to_latent(m_in, y, **(plain | {name: 2.0 * plain[name]}))
        assert not torch.allclose(base.tau, other.tau), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_argmax_to_latent_in_float32_range(dtype):
    """Variances of 1e-6, means of 1e3 and hopeless pairs, against the same formula's float64 (itself tested above)."""
    rng = np.random.default_rng(2)
    mean, var = rounded(
        dtype, rng.normal(0.0, 1.0, (60, 4)) * 10.0 ** rng.uniform(-2, 3, (60, 1)), 10.0 ** rng.uniform(-6, 1, (60, 4))
    )
    y = torch.from_numpy(rng.integers(0, 4, 60))
    constants = {"noise": NOISE, "target": TARGET, "target_var": TARGET_VAR}
    message = argmax_to_latent(Moments(mean, var), y, **constants)
    truth = argmax_to_latent(Moments(mean.double(), var.double()), y, **constants)
    assert_proper(message)
    assert_message(message, truth.tau, truth.rho, rtol=RTOL[dtype])


def test_argmax_predictive_of_two_classes_is_the_sampled_frequency():
    mean, var = np.array([[0.3, 1.0]]), np.array([[0.5, 1.5]])
    rng = np.random.default_rng(0)
    a = rng.normal(mean[0], np.sqrt(var[0]), (400_000, 2)) + rng.normal(0.0, np.sqrt(NOISE / 2), (400_000, 2))
    probs = argmax_predictive(Moments(torch.tensor(mean), torch.tensor(var)), noise=NOISE)
    assert_close(probs[0, 0], (a[:, 0] > a[:, 1]).mean(), rtol=0.01)


def test_argmax_predictive_of_many_classes_is_close_to_the_sampled_frequency():
    """Pairs are treated as independent, which sharpens (.57 for a frequency of .43): near, and the winner is right."""
    m_in, _ = logits(torch.float64, 1.0, n=10)
    rng = np.random.default_rng(1)
    shape = (50_000, *m_in.shape)
    a = rng.normal(numbers(m_in.mean), np.sqrt(numbers(m_in.var)), shape) + rng.normal(0.0, np.sqrt(NOISE / 2), shape)
    frequency = np.stack([(a.argmax(2) == c).mean(0) for c in range(N_CLASSES)], 1)
    probs = argmax_predictive(m_in, noise=NOISE)
    assert_close(probs.sum(1), np.ones(10), rtol=1e-12)
    assert np.abs(numbers(probs) - frequency).max() < 0.2
    assert (numbers(probs).argmax(1) == frequency.argmax(1)).all()


# --- extremes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    classes=st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-12.0, 12.0)), min_size=2, max_size=4),
    shrink=st.sampled_from([1.0, 1e-3, 1e-6]),
    y=st.integers(0, 1),
)
def test_extremes_stay_proper(dtype, classes, shrink, y):
    mean, log_var = np.array(classes).T
    m_in = Moments(*rounded(dtype, [shrink * mean], [10.0**log_var]))
    label = torch.tensor([y])
    assert_proper(softmax_to_latent(m_in, label))
    assert_proper(argmax_to_latent(m_in, label, noise=NOISE, target=TARGET, target_var=TARGET_VAR))
    for probs in (softmax_predictive(m_in), argmax_predictive(m_in, noise=NOISE)):
        assert probs.isfinite().all() and (probs >= 0).all()
        assert_close(probs.sum(), 1.0, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sharp_logits_send_the_expansion_of_the_factor_at_their_value(dtype):
    """var = 0: slope and curvature of log softmax itself."""
    mean = torch.tensor([[0.5, -1.0, 2.0]], dtype=dtype)
    message = softmax_to_latent(Moments(mean, torch.zeros_like(mean)), torch.tensor([0]))
    p = special.softmax(numbers(mean), axis=1)
    rho = p * (1.0 - p)
    tau = np.array([[1.0, 0.0, 0.0]]) - p + numbers(mean) * rho
    assert isinstance(message, Gaussian)
    assert_message(message, tau, rho, rtol=RTOL[dtype])
