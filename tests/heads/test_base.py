"""The belief about a head's constant, and outputs that have not seen their own example."""

import numpy as np
import pytest
import torch

from bayesmp.heads import Regression
from bayesmp.heads.base import certain_grid, log_grid, without_own_message
from bayesmp.messages.gaussian import Gaussian, Moments


def test_without_own_message_undoes_conditioning():
    """z ~ N(m, v) unseen; after the message its mean is m + v_post (tau - rho m). With the posterior's own pull taken
    back at the unseen variance, the unseen mean returns exactly."""
    generator = torch.Generator().manual_seed(0)
    mean, var = (torch.randn(50, generator=generator, dtype=torch.float64) for _ in range(2))
    var = var.exp()
    message = Gaussian(torch.randn(50, generator=generator, dtype=torch.float64), var.flip(0))
    seen = Moments(mean, var) * message
    pull_var = seen.var / (1.0 - message.rho * seen.var)  # the unseen variance
    torch.testing.assert_close(pull_var, var)
    found = without_own_message(Moments(seen.mean, seen.var), message)
    # To first order in the example's share rho v: the mean returns up to (rho v)^2.
    share = message.rho * seen.var
    error = (found.mean - mean).abs() / (seen.mean - mean).abs()
    assert (error <= 3 * share).all()
    assert torch.equal(found.var, seen.var)


def test_without_own_message_of_a_weak_message_changes_nothing():
    m_out = Moments(torch.tensor([0.3, -1.0]), torch.tensor([0.5, 2.0]))
    found = without_own_message(m_out, Gaussian.nothing(m_out.mean))
    assert torch.equal(found.mean, m_out.mean)


def test_grids_are_even_in_the_logarithm():
    grid = log_grid(1e-3, 10.0, 9)
    assert grid[0].item() == pytest.approx(1e-3) and grid[-1].item() == pytest.approx(10.0)
    np.testing.assert_allclose((grid[1:] / grid[:-1]).numpy(), (1e4) ** (1 / 8))
    assert certain_grid(0.3).tolist() == [0.3]


def test_expected_is_the_mean_over_the_belief():
    head = Regression("learn")
    certain = torch.full(head.grid.shape, -torch.inf, dtype=torch.float64)
    certain[7] = 0.0
    assert head.expected(certain).item() == pytest.approx(head.grid[7].item())
    assert head.expected(certain, -1.0).item() == pytest.approx(1 / head.grid[7].item())
    flat = torch.zeros_like(certain)
    assert head.expected(flat).item() == pytest.approx(head.grid.mean().item())
