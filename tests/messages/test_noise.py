"""Noise with tails against quadrature: a mixture of Gaussians around an uncertain output."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bayesmp.messages.noise import (
    MAX_SPREAD,
    draw_noise,
    noise_mixture,
    noisy_cdf,
    noisy_log_density,
    noisy_reach,
    noisy_slopes,
)
from tests.messages.truth import RTOL

SPREADS = [0.0, 0.1, 0.5, 1.0, 2.5, MAX_SPREAD]


def scalars(*values, dtype=torch.float64):
    return tuple(torch.tensor(value, dtype=dtype) for value in values)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_parts_have_the_variance_of_the_noise(spread, dtype):
    ratios, shares = noise_mixture(torch.tensor(spread, dtype=dtype))
    assert ratios.dtype == shares.dtype == dtype and (ratios > 0).all() and (ratios.diff() >= 0).all()
    assert float((ratios * shares).sum()) == pytest.approx(1.0, rel=1e-6)
    log_ratio = ratios.log()
    off = log_ratio - (shares * log_ratio).sum()
    assert float((shares * off.square()).sum().sqrt()) == pytest.approx(spread, rel=5e-4, abs=1e-6)


@pytest.mark.parametrize("spread, tolerance", [(0.25, 0.01), (1.0, 0.02), (1.5, 0.1)])
@pytest.mark.parametrize("var", [0.0, 0.3])
def test_the_density_is_that_of_a_log_normal_variance(spread, tolerance, var):
    """The nodes stand for all z: against the integral over them, up to where nine nodes end."""
    noise_var = 0.7
    scale = math.exp(-0.5 * spread**2)
    for gap in (0.0, 0.5, 2.0, 5.0):
        truth, _ = integrate.quad(
            lambda z, gap=gap: (
                stats.norm.pdf(z)
                * stats.norm.pdf(gap, scale=math.sqrt(var + noise_var * scale * math.exp(spread * z)))
            ),
            -9, 9, limit=200,
        )  # fmt: skip
        found = noisy_log_density(*scalars(gap, var, noise_var, spread))
        assert float(found) == pytest.approx(math.log(truth), abs=tolerance)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("var, noise_var", [(0.3, 0.7), (1e-6, 1e-3), (50.0, 0.01), (0.0, 1.0)])
def test_density_cdf_and_reach_are_of_one_distribution(spread, var, noise_var):
    size = math.sqrt(var + noise_var)
    edges = size * np.concatenate([[0.0], np.geomspace(1e-6, 1e3, 4001)])
    at = torch.as_tensor(0.5 * (edges[1:] + edges[:-1]))
    args = scalars(var, noise_var, spread)
    mass = noisy_log_density(at, torch.full_like(at, var), *args[1:]).exp().numpy() * np.diff(edges)
    assert 2.0 * mass.sum() == pytest.approx(1.0, rel=1e-4)
    second = 2.0 * (mass * at.numpy() ** 2).sum()
    assert second == pytest.approx(var + noise_var, rel=1e-3)
    cdf = noisy_cdf(torch.as_tensor(edges), torch.full((len(edges),), var, dtype=torch.float64), *args[1:]).numpy()
    np.testing.assert_allclose(cdf[1:] - 0.5, mass.cumsum(), rtol=1e-3, atol=1e-6)
    for tail in (0.5, 0.4, 0.05, 1e-3, 1e-9):
        reach = noisy_reach(tail, *args)
        assert float(noisy_cdf(-reach, *args)) == pytest.approx(tail, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_spread_it_is_the_gaussian(dtype):
    gap = torch.tensor([0.0, 0.3, -4.0, 30.0], dtype=dtype)
    var = torch.tensor([0.1, 0.0, 2.0, 1.0], dtype=dtype)
    noise_var, spread = scalars(0.25, 0.0, dtype=dtype)
    truth = stats.norm(scale=np.sqrt(var.numpy().astype(float) + 0.25))
    np.testing.assert_allclose(noisy_log_density(gap, var, noise_var, spread), truth.logpdf(gap), rtol=RTOL[dtype])
    np.testing.assert_allclose(noisy_cdf(gap, var, noise_var, spread), truth.cdf(gap), rtol=RTOL[dtype], atol=1e-7)
    np.testing.assert_allclose(noisy_reach(0.05, var, noise_var, spread), truth.isf(0.05), rtol=RTOL[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_stay_finite(dtype):
    gap = torch.tensor([0.0, 1e-12, 1e3, 1e9], dtype=dtype)
    for var in (0.0, 1e-10, 1e6):
        for noise_var in (1e-7, 1e3):
            for spread in SPREADS:
                parts = (torch.full_like(gap, var), *scalars(noise_var, spread, dtype=dtype))
                for found in (noisy_log_density(gap, *parts), noisy_cdf(gap, *parts), noisy_reach(1e-6, *parts)):
                    assert found.dtype == dtype and found.isfinite().all()


def test_an_outlier_costs_less_the_heavier_the_tails():
    found = [float(noisy_log_density(*scalars(6.0, 0.1, 1.0, spread))) for spread in (0.0, 0.5, 1.0, 2.0)]
    assert found == sorted(found) and found[-1] > found[0] + 8.0


def test_draws_have_the_shares_of_the_parts():
    spread = torch.tensor(1.5, dtype=torch.float64)
    ratios, shares = noise_mixture(spread)
    drawn = draw_noise((100, 200), spread, torch.Generator().manual_seed(0))
    assert drawn.shape == (100, 200)
    for ratio, share in zip(ratios, shares, strict=True):
        seen = float((drawn == ratio).double().mean())
        assert abs(seen - float(share)) < 5.0 * math.sqrt(float(share) / 20_000)


@pytest.mark.parametrize("spread", [0.0, 0.7, 2.5])
@pytest.mark.parametrize("var, noise_var", [(0.3, 0.7), (1e-6, 1e-3), (50.0, 0.01), (0.0, 1.0)])
def test_slopes_are_derivatives_of_the_log_density(var, noise_var, spread):
    """In log noise_var, by automatic differentiation of the density, twice."""
    gap = math.sqrt(var + noise_var) * torch.linspace(-8.0, 8.0, 33, dtype=torch.float64)
    var, spread = torch.full_like(gap, var), torch.tensor(spread, dtype=torch.float64)
    log_noise = torch.full_like(gap, math.log(noise_var)).requires_grad_()
    truth = noisy_log_density(gap, var, log_noise.exp(), spread)
    (slope,) = torch.autograd.grad(truth.sum(), log_noise, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), log_noise)
    for found, expected in zip(
        noisy_slopes(gap, var, log_noise.detach().exp(), spread), (truth, slope, bend), strict=True
    ):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-8, atol=1e-10)
