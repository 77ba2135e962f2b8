"""What targets say about outputs: against automatic differentiation, quadrature, sampling and dense algebra.

Losses are asked in double precision only (objective/, influence.py).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.autograd.functional import hessian, jacobian
from torch.nn.functional import cross_entropy, one_hot

from bayesmp.heads import loss as losses
from bayesmp.heads.loss import LEAST_CURVED, Root, Said, SoftmaxLoss, SquaredLoss, contrasts
from bayesmp.heads.output_points import N_POINTS, output_points, root_of_covariance

F64 = torch.float64
ALL = slice(None)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def covariances(n: int, k: int, size: float = 1.0, *, seed: int = 1) -> torch.Tensor:
    """(n, k, k), positive, with correlations."""
    part = normal(n, k, k, seed=seed)
    return size * (part @ part.mT / k + 0.1 * torch.eye(k, dtype=F64))


def case(k: int, n: int = 6, *, gain: float = 6.0, size: float = 0.1):
    """A loss, latent numbers, covariances, and the labels."""
    y = torch.arange(n) % k
    loss = SoftmaxLoss(y, k, gain)
    return loss, 0.5 * normal(n, k - 1), covariances(n, k - 1, size), y


def precision_of(said: Said) -> torch.Tensor:
    """L, (n, l, l), of a triangular root."""
    return said.root.part @ said.root.part.mT


def derivatives(function, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Value, slope and second derivatives, by automatic differentiation."""
    return function(at), jacobian(function, at), hessian(function, at)


def averaged(loss: SoftmaxLoss, latent: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    """E loss, (n,): the value without its share of the log-determinant."""
    said = loss.said(latent, covariance, ALL, 1.0)
    return said.value + 0.5 * (precision_of(said) * covariance).sum((1, 2))


# --- softmax, outputs known ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gain", [1.0, 6.0])
@pytest.mark.parametrize("k", [2, 3, 10])
def test_softmax_at_known_outputs_is_cross_entropy(k, gain):
    y, outputs = torch.arange(7) % k, normal(7, k)
    loss = SoftmaxLoss(y, k, gain)
    said = loss.said(outputs @ loss.mix.T, None, ALL, 1.0)

    curved = loss.mix.T @ precision_of(said) @ loss.mix
    for n, label in enumerate(y):
        value, slope, bend = derivatives(lambda out, label=label: cross_entropy(gain * out, label), outputs[n])
        torch.testing.assert_close(said.value[n], value)
        torch.testing.assert_close(said.pull[n] @ loss.mix, -slope)
        torch.testing.assert_close(curved[n], bend, rtol=0.0, atol=2 * LEAST_CURVED * gain**2)


@pytest.mark.parametrize("k", [2, 3, 10])
def test_a_constant_on_all_outputs_changes_nothing(k):
    loss, latent, _, y = case(k)
    outputs = loss.outputs(latent)
    torch.testing.assert_close((outputs + 17.0) @ loss.mix.T, latent, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(outputs.sum(1), torch.zeros(len(y), dtype=F64))
    shares = torch.softmax(6.0 * (outputs + 17.0), 1)
    torch.testing.assert_close(loss.said(latent, None, ALL, 1.0).value, -shares[torch.arange(len(y)), y].log())


# --- softmax, averaged -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size, rtol", [(0.02, 0.005), (0.2, 0.02)])
def test_two_classes_are_averaged_as_by_quadrature(size, rtol):
    """One contrast u = (f_1 - f_0) / sqrt(2), a dense grid of it."""
    loss, latent, covariance, y = case(2, 8, size=size)
    z = torch.linspace(-9, 9, 4001, dtype=F64)
    density = torch.exp(-0.5 * z**2)
    density = density / density.sum()
    u = latent + covariance[:, 0].sqrt() * z
    margin = (2.0 * y - 1.0)[:, None] * 6.0 * math.sqrt(2.0) * u
    wrong = torch.sigmoid(-margin)
    slope = (2.0 * y - 1.0)[:, None] * 6.0 * math.sqrt(2.0)
    said = loss.said(latent, covariance, ALL, 1.0)
    expected = torch.nn.functional.softplus(-margin) @ density
    torch.testing.assert_close(averaged(loss, latent, covariance), expected, rtol=rtol, atol=rtol)
    torch.testing.assert_close(said.pull[:, 0], (slope * wrong) @ density, rtol=rtol, atol=rtol)
    curved = (slope**2 * wrong * (1.0 - wrong)) @ density
    torch.testing.assert_close(precision_of(said)[:, 0, 0], curved, rtol=5 * rtol, atol=5 * rtol)
    torch.testing.assert_close(said.value, expected - 0.5 * curved * covariance[:, 0, 0], rtol=5 * rtol, atol=rtol)


@pytest.mark.parametrize("k, atol", [(3, 0.03), (10, 0.04)])
def test_several_classes_are_averaged_as_by_sampling(k, atol):
    """100,000 draws and their mirror images, whose own error is below .005."""
    loss, latent, covariance, y = case(k, 5, size=0.05)
    said, half = loss.said(latent, covariance, ALL, 1.0), normal(100_000, k - 1, seed=3)
    drawn = torch.cat([half, -half])
    for n, label in enumerate(y):
        outputs = (latent[n] + drawn @ torch.linalg.cholesky(covariance[n]).T) @ loss.mix
        log_probs = torch.log_softmax(6.0 * outputs, 1)
        probs, own = log_probs.exp(), one_hot(label, k).to(F64)
        mean = probs.mean(0)
        assert float(averaged(loss, latent, covariance)[n]) == pytest.approx(
            float(-log_probs[:, label].mean()), abs=atol
        )
        torch.testing.assert_close(said.pull[n], 6.0 * loss.mix @ (own - mean), rtol=0.0, atol=2 * atol)
        curved = 36.0 * loss.mix @ (torch.diag(mean) - probs.T @ probs / len(probs)) @ loss.mix.T
        assert float((precision_of(said)[n] - curved).norm() / curved.norm()) < 0.06


@pytest.mark.parametrize("k", [2, 3, 10])
def test_pull_and_precision_are_derivatives_of_the_averaged_loss(k):
    """To rounding, for the points are fixed: so Newton's steps are on a function, not on an estimate of one."""
    loss, latent, covariance, _ = case(k, 4, size=0.3)
    said, step = loss.said(latent, covariance, ALL, 1.0), 1e-4
    for j in range(k - 1):
        along = step * torch.eye(k - 1, dtype=F64)[j]
        ends = [averaged(loss, latent + sign * along, covariance) for sign in (1, -1)]
        torch.testing.assert_close((ends[0] - ends[1]) / (2 * step), -said.pull[:, j], rtol=1e-5, atol=1e-6)
        pulls = [loss.said(latent + sign * along, covariance, ALL, 1.0).pull for sign in (1, -1)]
        curved = (pulls[1] - pulls[0]) / (2 * step)
        torch.testing.assert_close(curved, precision_of(said)[:, :, j], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("k", [2, 3, 10])
def test_without_variance_it_is_the_plain_loss(k):
    loss, latent, covariance, _ = case(k)
    plain, averaged_out = loss.said(latent, None, ALL, 1.0), loss.said(latent, 0.0 * covariance, ALL, 1.0)
    torch.testing.assert_close(averaged_out.value, plain.value)
    torch.testing.assert_close(averaged_out.pull, plain.pull)
    torch.testing.assert_close(averaged_out.root.part, plain.root.part)


@pytest.mark.parametrize("k", [2, 3, 10, 30])
def test_what_a_little_variance_adds_is_in_the_curvature(k):
    """E loss = loss + tr(L V) / 2 + ..., and the value is without that: to first order in V it is the plain loss."""
    loss, latent, covariance, _ = case(k)
    plain = loss.said(latent, None, ALL, 1.0).value
    for size in (1e-3, 1e-4):
        value = loss.said(latent, size * covariance, ALL, 1.0).value
        added = 0.5 * (precision_of(loss.said(latent, None, ALL, 1.0)) * size * covariance).sum((1, 2))
        assert float((value - plain).abs().max()) < 300.0 * size * float(added.max())


@pytest.mark.parametrize("k", [2, 10])
def test_extremes_stay_finite(k):
    """Labels that are certain, right or wrong, say nothing of outputs to second order; their root is still one."""
    y = torch.tensor([0, 0, 1])
    loss = SoftmaxLoss(y, k, 6.0)
    outputs = torch.zeros(3, k, dtype=F64)
    outputs[:, 0] = torch.tensor([1e4, -1e4, 1e4], dtype=F64)
    latent = outputs @ loss.mix.T
    for covariance in (None, covariances(3, k - 1, 1e-6), covariances(3, k - 1, 1e6)):
        said = loss.said(latent, covariance, ALL, 1.0)
        parts = said.value, said.pull, said.root.part, said.root.solve(said.pull), said.root.solve_transposed(said.pull)
        assert all(bool(part.isfinite().all()) for part in parts)
        least = said.root.part.diagonal(dim1=1, dim2=2).amin()
        assert float(least) >= 0.999 * math.sqrt(LEAST_CURVED) * 6.0
    plain = loss.said(latent, None, ALL, 1.0)
    assert float(plain.value[0]) == 0.0 and float(plain.value[1]) == pytest.approx(6e4, rel=1e-3)


def test_parts_are_looked_at_one_by_one(monkeypatch):
    """Rows and memory decide nothing."""
    loss, latent, covariance, _ = case(3, 11)
    whole = loss.said(latent, covariance, ALL, 1.0)
    some = torch.tensor([7, 2, 2])
    for rows in (some, slice(3, 9)):
        found = loss.said(latent[rows], covariance[rows], rows, 1.0)
        torch.testing.assert_close(found.value, whole.value[rows])
        torch.testing.assert_close(found.root.part, whole.root.some(rows).part)
    monkeypatch.setattr(losses, "NUMBERS_AT_ONCE", 3 * 3 * N_POINTS)
    again = loss.said(latent, covariance, ALL, 1.0)
    torch.testing.assert_close(again.value, whole.value)
    torch.testing.assert_close(again.pull, whole.pull)
    for spread in (covariance[:0], None):
        none = loss.said(latent[:0], spread, slice(0, 0), 1.0)
        assert none.value.shape == (0,) and none.pull.shape == (0, 2) and none.root.part.shape == (0, 2, 2)
    assert loss.best_noise(3.0, 0.7, 5.0) == 0.7 and loss.constant(0.7, 3.0) == 0.0


# --- contrasts and points --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 3, 10, 100])
def test_contrasts_are_orthonormal_differences(k):
    mix = contrasts(k)
    torch.testing.assert_close(mix @ mix.T, torch.eye(k - 1, dtype=F64))
    torch.testing.assert_close(mix.sum(1), torch.zeros(k - 1, dtype=F64))
    outputs = normal(k)
    for j in range(1, k):
        own = (outputs[j] - outputs[:j].mean()) * math.sqrt(j / (j + 1.0))
        torch.testing.assert_close(mix[j - 1] @ outputs, own)
    covariance = covariances(1, k - 1)
    spread = SoftmaxLoss(torch.zeros(1, dtype=torch.int64), k, 1.0).output_covariances(covariance)
    torch.testing.assert_close(mix @ spread @ mix.T, covariance)
    torch.testing.assert_close(spread.sum(2), torch.zeros(1, k, dtype=F64), rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("n", [1, 2, 9])
def test_points_stand_for_a_standard_normal(n):
    state = torch.random.get_rng_state()
    output_points.cache_clear()
    points = output_points(n, F64, torch.device("cpu"))
    assert torch.equal(state, torch.random.get_rng_state())
    assert points.shape == (N_POINTS, n)
    torch.testing.assert_close(points.mean(0), torch.zeros(n, dtype=F64), rtol=0.0, atol=1e-12)
    for seed in range(5):
        along = normal(n, seed=seed)
        along = along / along.norm()
        found = float((points @ along).cos().mean())
        assert found == pytest.approx(math.exp(-0.5), abs=0.03)
        assert float(((points @ along) > 1.0).double().mean()) == pytest.approx(0.1587, abs=0.05)
    narrow = output_points(n, torch.float32, torch.device("cpu"))
    torch.testing.assert_close(narrow, points.float())


@pytest.mark.parametrize("n", [1, 2, 9, 29, 60])
def test_points_of_the_loss_have_the_variance_of_a_standard_normal(n):
    """With the sequence as it comes, directions had correlations of .2 with ten classes, and .7 with thirty; what the
    value takes for tr(L V) / 2 was not what the average had in it.
    """
    points = losses._points(n, torch.zeros(1, dtype=F64))
    torch.testing.assert_close(points.T @ points / len(points), torch.eye(n, dtype=F64), rtol=0.0, atol=1e-9)
    torch.testing.assert_close(points.mean(0), torch.zeros(n, dtype=F64), rtol=0.0, atol=1e-12)


def test_more_directions_than_points_have_their_own_variances():
    points = losses._points(99, torch.zeros(1, dtype=F64))
    torch.testing.assert_close(points.square().mean(0), torch.ones(99, dtype=F64))


@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-5), (torch.float64, 1e-7)])
@pytest.mark.parametrize("rank", [0, 1, 4])
def test_root_of_a_covariance(rank, dtype, rtol):
    """Also of one that is singular, or negative by rounding."""
    part = normal(3, 4, rank)
    covariance = (part @ part.mT).to(dtype)
    root = root_of_covariance(covariance)
    assert root.dtype == dtype
    torch.testing.assert_close(root @ root.mT, covariance, rtol=rtol, atol=rtol * 10)
    below = covariance.double() - 1e-6 * torch.eye(4, dtype=F64)
    root = root_of_covariance(below)
    assert bool(root.isfinite().all())
    torch.testing.assert_close(root @ root.mT, below, rtol=0.0, atol=2e-6)


# --- roots and what was said -----------------------------------------------------------------------------------------


def roots(n: int = 5, k: int = 3) -> list[Root]:
    """A diagonal one, and a triangular one."""
    return [Root(normal(n, k).abs() + 0.3), Root(torch.linalg.cholesky(covariances(n, k)))]


@pytest.mark.parametrize("is_diagonal", [True, False])
def test_roots_are_matrices(is_diagonal):
    root = roots()[0 if is_diagonal else 1]
    assert root.is_diagonal == is_diagonal and len(root) == 5
    dense = torch.diag_embed(root.part) if is_diagonal else root.part
    inverse = torch.linalg.inv(dense)
    for shape in ((3, 5), (3, 5, 4), (3, 5, 2, 4)):
        rows = normal(*shape, seed=4)
        flat = rows.reshape(3, 5, -1)
        expected = torch.stack([dense[n].T @ flat[:, n] for n in range(5)], 1).reshape(shape)
        torch.testing.assert_close(root.across(rows), expected)
    vectors, covariance = normal(5, 3, seed=5), covariances(5, 3, seed=6)
    torch.testing.assert_close(root.solve(vectors), (inverse @ vectors[..., None])[..., 0])
    torch.testing.assert_close(root.solve_transposed(vectors), (inverse.mT @ vectors[..., None])[..., 0])
    torch.testing.assert_close(root.covered(covariance), dense.mT @ covariance @ dense)
    torch.testing.assert_close(root.uncovered(covariance), inverse.mT @ covariance @ inverse)
    torch.testing.assert_close(root.uncovered(root.covered(covariance)), covariance)
    torch.testing.assert_close(root.times(3.0).covered(covariance), 9.0 * root.covered(covariance))
    some = torch.tensor([4, 1])
    torch.testing.assert_close(root.some(some).part, root.part[some])


@pytest.mark.parametrize("is_diagonal", [True, False])
def test_a_weight_of_two_is_a_row_twice(is_diagonal):
    root = roots()[0 if is_diagonal else 1]
    said = Said(normal(5), normal(5, 3, seed=7), root)
    found = said.times(torch.tensor([2.0, 1.0, 1.0, 3.0, 1.0], dtype=F64))
    rows = torch.tensor([4, 0, 3, 1, 0, 3, 2, 3])
    value = torch.zeros(5, dtype=F64).index_add_(0, rows, said.value[rows])
    torch.testing.assert_close(found.value, value)
    pull, summed = Said(said.value[rows], said.pull[rows], root.some(rows)).summed(rows, 5)
    torch.testing.assert_close(found.pull, pull)
    torch.testing.assert_close(found.root.part, summed.part)
    halves = said.times(torch.full((5,), 0.5, dtype=F64))
    both = torch.arange(5).repeat(2)
    pull, summed = Said(halves.value[both], halves.pull[both], halves.root.some(both)).summed(both, 5)
    torch.testing.assert_close(pull, said.pull)
    torch.testing.assert_close(summed.part, root.part)


# --- Gaussian noise --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_out", [1, 3])
def test_squares_are_gaussian_log_densities(n_out):
    y, latent, noise = normal(6, n_out), normal(6, n_out, seed=1), 0.3
    loss = SquaredLoss(y)

    said = loss.said(latent, None, ALL, noise)
    density = torch.distributions.Normal(latent, math.sqrt(noise)).log_prob(y).sum()
    total = float(said.value.sum()) + loss.constant(noise, y.numel()) - 0.5 * math.log(noise)
    assert total == pytest.approx(-float(density))
    for n, target in enumerate(y):
        value, slope, bend = derivatives(lambda m, target=target: 0.5 * ((target - m) ** 2).sum() / noise, latent[n])
        torch.testing.assert_close(said.value[n], value)
        torch.testing.assert_close(said.pull[n], -slope)
        torch.testing.assert_close(torch.diag(said.root.part[n] ** 2), bend)
    assert loss.n_latent == n_out and not loss.averages and torch.equal(loss.outputs(latent), latent)


@pytest.mark.parametrize("least_miss", [0.0, 0.4])
def test_the_best_noise_is_the_minimum_over_a_grid(least_miss):
    """Whatever noise the data were looked at with; `left` is one more than the numbers that count."""
    y, latent = normal(9, 2), normal(9, 2, seed=1)
    loss, grid = SquaredLoss(y, least_miss=least_miss), np.geomspace(0.05, 20.0, 20_001)
    values = [float(loss.said(latent, None, ALL, noise).value.sum()) + loss.constant(noise, 18) for noise in grid]
    for noise in (0.2, 3.0):
        data = float(loss.said(latent, None, ALL, noise).value.sum())
        assert loss.best_noise(data, noise, 19.0) == pytest.approx(grid[int(np.argmin(values))], rel=1e-3)
