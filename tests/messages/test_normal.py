"""The normal's helpers against scipy and against quadrature of the cut Gaussian, from score -1e3 to 40."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from bayesmp.messages import normal
from bayesmp.messages.normal import (
    FAR,
    MAX_SCORE,
    TAIL,
    excess,
    log_normal_cdf,
    normal_cdf,
    normal_pdf,
    score,
    truncation,
)
from tests.messages.truth import DTYPES, RTOL, assert_close, numbers, panels, rounded

NEAR_TAIL = [-TAIL - 1e-3, -TAIL, -TAIL + 1e-3]
NEAR_FAR = [-FAR - 1e-3, -FAR, -FAR + 1e-3]
SCORES = [
    -1e3,
    -300.0,
    -37.0,
    -12.0,
    -6.0,
    *NEAR_TAIL,
    *NEAR_FAR,
    -3.0,
    -1.0,
    -0.1,
    0.0,
    0.3,
    1.0,
    3.0,
    4.99,
    5.01,
    9.0,
    20.0,
    40.0,
]
UNDERFLOW = 1e-30  # below this float32 may round to 0


def cut_gaussian(x):
    """Mean and variance of y ~ N(x, 1) cut to y >= 0, by quadrature."""
    mode = np.maximum(x, 0.0)
    reach = np.minimum(13.0, 45.0 / np.maximum(-x, 1.0))
    y, weight = panels(np.maximum(mode - reach, 0.0), mode + reach)
    density = weight * np.exp(-0.5 * (y - x[:, None]) ** 2 + 0.5 * ((mode - x) ** 2)[:, None])
    density /= density.sum(-1, keepdims=True)
    mean = (density * y).sum(-1)
    return mean, (density * (y - mean[:, None]) ** 2).sum(-1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pdf_and_cdfs_agree_with_scipy(dtype):
    (x,) = rounded(dtype, [s for s in SCORES if s > -14.0])
    at = numbers(x)
    assert_close(normal_pdf(x), np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi), rtol=RTOL[dtype], scale=UNDERFLOW)
    assert_close(normal_cdf(x), special.ndtr(at), rtol=RTOL[dtype], scale=UNDERFLOW)
    assert_close(log_normal_cdf(x), special.log_ndtr(at), rtol=RTOL[dtype], scale=UNDERFLOW)


def test_the_cdf_keeps_its_tail_in_float32():
    """torch.special.ndtr is (1 + erf) / 2: 4 % off at score -5 and 0 at -6; a ReLU's variance was 15 times off."""
    x = torch.tensor([-5.0, -6.0, -8.0, -12.0])
    assert_close(normal_cdf(x), special.ndtr(numbers(x)), rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_truncation_has_the_moments_of_a_cut_gaussian(dtype):
    (x,) = rounded(dtype, SCORES)
    at = numbers(x)
    mean, var = cut_gaussian(at)
    h_true = np.exp(-0.5 * at**2 - special.log_ndtr(at)) / np.sqrt(2 * np.pi)
    h, k, rest = truncation(x)
    assert_close(h, h_true, rtol=RTOL[dtype], scale=UNDERFLOW, what="h")
    assert_close(rest, var, rtol=RTOL[dtype], what="1 - k")
    k_true = np.where(at > 3.0, h_true * (h_true + at), 1.0 - var)
    assert_close(k, k_true, rtol=RTOL[dtype], scale=UNDERFLOW, what="k")
    assert_close(at + numbers(h), mean, rtol=RTOL[dtype], scale=np.maximum(1.0, np.abs(at)), what="mean")


@pytest.mark.parametrize("dtype, end, rtol", [(torch.float64, TAIL, 1e-7), (torch.float32, FAR, 1e-4)])
def test_truncation_is_continuous_where_the_forms_meet(dtype, end, rtol):
    at = torch.tensor(-end, dtype=dtype)
    x = torch.stack([torch.nextafter(at, at - 1), torch.nextafter(at, at + 1)])
    for part in truncation(x):
        assert_close(part[0], part[1], rtol=rtol)


def whole_range(n):
    """Scores of float32 from -MAX_SCORE to MAX_SCORE, dense around 0."""
    far = torch.logspace(-6, 6, n)
    return torch.cat([-far, torch.linspace(-20, 20, n), far, torch.zeros(1)])


def test_excess_in_float32_has_a_relative_error_below_5e_7():
    """Against mpmath at 30 digits, from 0 to MAX_SCORE."""
    u = whole_range(400).abs()
    with mpmath.workdps(30):
        tail = [mpmath.erfc(mpmath.mpf(v) / mpmath.sqrt(2)) / 2 if v < 1e3 else None for v in u.tolist()]
        pairs = zip(map(mpmath.mpf, u.tolist()), tail, strict=True)
        truth = [1 / v - 2 / v**3 + 10 / v**5 if t is None else mpmath.npdf(v) / t - v for v, t in pairs]
    assert_close(excess(u), np.array([float(v) for v in truth]), rtol=5e-7)


@pytest.mark.parametrize("function, rtol", [("log_normal_cdf", 2e-6), ("hazard", 1e-5), ("scaled_cdf", 1e-6)])
def test_forms_for_float32_agree_with_scipy_over_the_whole_range(function, rtol):
    """Right of 0 the hazard phi / Phi and log_normal_cdf decay as e^{-x^2/2}, whose exponent rounds to 6e-8 of it."""
    x = whole_range(2000)
    x = x[x < 9.0] if function == "hazard" else x[x < 5.0] if function == "log_normal_cdf" else x
    at = numbers(x)
    log_cdf = special.log_ndtr(at)
    truth = {
        "log_normal_cdf": log_cdf,
        "hazard": np.sqrt(2 / np.pi) / special.erfcx(-at / np.sqrt(2)),
        "scaled_cdf": np.where(at < 0, 0.5 * special.erfcx(np.abs(at) / np.sqrt(2)), special.ndtr(at)),
    }[function]
    found = truncation(x)[0] if function == "hazard" else getattr(normal, function)(x)
    assert_close(found, truth, rtol=rtol)


@pytest.mark.parametrize("dtype", DTYPES)
def test_score_is_mean_over_std_and_finite_at_zero_variance(dtype):
    mean, var = rounded(dtype, [2.0, -3.0, 1.0, -1.0, 0.0], [4.0, 0.25, 0.0, 0.0, 0.0])
    assert score(mean, var).tolist() == [1.0, -6.0, MAX_SCORE, -MAX_SCORE, 0.0]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(x=st.floats(-MAX_SCORE, MAX_SCORE))
def test_extreme_scores_stay_finite(dtype, x):
    x = torch.tensor([x], dtype=dtype)
    h, k, rest = truncation(x)
    for part in (normal_pdf(x), normal_cdf(x), log_normal_cdf(x), h, k, rest):
        assert part.isfinite().all()
    assert h >= 0 and 0 <= k <= 1 and 0 <= rest <= 1
