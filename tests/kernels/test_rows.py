"""Rows of small batches in one call, against the equations in double precision; needs a C++ compiler."""

from __future__ import annotations

import pytest
import torch

from bayesmp import kernels
from bayesmp.kernels import build
from bayesmp.messages import likelihood
from bayesmp.messages.gaussian import Moments

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def fused():
    kernels.set_backend("fused")
    yield
    kernels.set_backend("auto")


def normals(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def widened(value):
    return value.double() if isinstance(value, torch.Tensor) else value.map(torch.Tensor.double)


@pytest.mark.parametrize("n, c", [(1, 2), (64, 3), (200, 10), (5, 37)])
@pytest.mark.parametrize("spread", [0.3, 3.0, 30.0])
def test_messages_from_labels(n, c, spread):
    m_in = Moments(spread * normals(n, c, seed=0), (1.5 * normals(n, c, seed=1)).exp())
    y = torch.randint(0, c, (n,), generator=torch.Generator().manual_seed(2))
    constants = {"noise": 0.3, "target": 1.0, "target_var": 0.1}
    centre = 0.5 * normals(c, seed=3)
    found, truth = (
        kernels.argmax_to_latent(m_in, y, **constants, centre=centre),
        likelihood.argmax_to_latent(widened(m_in), y, **constants, centre=centre.double()),
    )
    assert ((found.tau - truth.tau).abs() / (truth.tau.abs() + truth.rho.sqrt() + 1.0)).max() < 1e-4
    torch.testing.assert_close(found.rho.double(), truth.rho, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("var", [1e-12, 1e12])
def test_messages_from_labels_at_extremes_stay_finite(var):
    mean = torch.tensor([[0.0, 1e5, -1e5], [1e-8, 0.0, 0.0], [-1e5, 1e5, 0.0]])
    found = kernels.argmax_to_latent(
        Moments(mean, torch.full_like(mean, var)), torch.tensor([0, 1, 0]), noise=0.3, target=1.0, target_var=0.1
    )
    assert found.tau.isfinite().all() and found.rho.isfinite().all() and (found.rho >= 0).all()
