"""Rows of small batches in one call, against the equations in double precision; needs a C++ compiler."""

from __future__ import annotations

import pytest
import torch

from bayesmp import kernels
from bayesmp.equations import likelihood, linear
from bayesmp.equations.linear_maps import DenseMap
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.kernels import build

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


@pytest.mark.parametrize("n, n_in, n_out", [(1, 1, 1), (7, 5, 4), (50, 16, 16), (3, 1, 40), (130, 13, 2)])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_the_way_back_through_an_exact_sum(n, n_in, n_out, is_known, spread):
    mean, var = normals(n, n_in, seed=0), (spread * normals(n, n_in, seed=1)).exp()
    weight = Moments(normals(n_out, n_in, seed=2), (spread * normals(n_out, n_in, seed=3)).exp())
    bias = Moments(normals(n_out, seed=4), normals(n_out, seed=5).exp())
    rho = (spread * normals(n, n_out, seed=7)).exp() * (normals(n, n_out, seed=8) > -1.0)
    m_in, m_back = mean if is_known else Moments(mean, var), Gaussian(normals(n, n_out, seed=6) * (rho + 0.1), rho)
    m_z = linear.linear_to_output(DenseMap(), m_in, weight, bias)
    *found, own = kernels.exact_back(DenseMap(), m_in, weight, bias.var, m_z, m_back)
    sums = linear.SumMoments(m_z.mean.double(), m_z.var.double(), m_z.input_var.double())
    slope = linear.residual(sums, widened(m_back)).to_weight
    units = linear.unit_sums(DenseMap(), bias.var.double(), sums, widened(m_back), slope)
    torch.testing.assert_close(own.slope.double(), units.slope, rtol=1e-4, atol=1e-4 * float(slope.abs().max()))
    torch.testing.assert_close(own.rho.double(), units.rho, rtol=1e-4, atol=0.0)
    torch.testing.assert_close(own.curvature.double(), units.curvature, rtol=1e-4, atol=0.0)
    truth = linear.exact_back(DenseMap(), widened(m_in), widened(weight), sums, widened(m_back), at_cavity=False)
    assert (found[1] is None) == is_known
    plain = linear.exact_back(DenseMap(), m_in, weight, m_z, m_back, at_cavity=False)
    for one, equation, exact in zip(found, plain, truth, strict=True):
        if one is not None and equation is not None and exact is not None:
            scale = exact.rho.sqrt() + exact.tau.abs() + 1.0
            error, allowed = (((part.tau - exact.tau).abs() / scale).max() for part in (one, equation))
            assert error < 2e-5 + 2.0 * allowed  # as precise as the equation itself in float32
            error, allowed = (((part.rho - exact.rho).abs() / (exact.rho + 1e-6)).max() for part in (one, equation))
            assert error < 2e-5 + 2.0 * allowed


def test_inputs_may_lie_in_memory_as_they_like():
    m_in = Moments(normals(5, 8, seed=0).t(), normals(5, 8, seed=1).exp().t())
    weight = Moments(normals(5, 3, seed=2).t(), normals(5, 3, seed=3).exp().t())
    m_z = linear.linear_to_output(DenseMap(), m_in, weight, None)
    m_back = Gaussian(normals(3, 8, seed=4).t(), normals(3, 8, seed=5).exp().t())
    *found, _ = kernels.exact_back(DenseMap(), m_in, weight, None, m_z, m_back)
    truth = linear.exact_back(DenseMap(), m_in, weight, m_z, m_back, at_cavity=False)
    for one, other in zip(found, truth, strict=True):
        assert one is not None and other is not None
        torch.testing.assert_close(one.tau, other.tau, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(one.rho, other.rho, rtol=1e-4, atol=1e-5)


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
