"""The contract every head must pass: check_head(head, n_outputs, targets)."""

from __future__ import annotations

import pytest
import torch

from bayesmp.heads import Head
from bayesmp.messages.gaussian import Moments

torch.set_num_threads(1)

DTYPES = (torch.float32, torch.float64)


def outputs(shape, dtype, *, seed=0) -> Moments:
    generator = torch.Generator().manual_seed(seed)
    mean = 2.0 * torch.randn(shape, generator=generator, dtype=torch.float64)
    var = torch.randn(shape, generator=generator, dtype=torch.float64).exp()
    return Moments(mean.to(dtype), var.to(dtype))


def covariances(m_out: Moments, *, seed=1) -> torch.Tensor:
    """(b, o, o) with random correlations and the variances of m_out."""
    n, n_outputs = m_out.shape
    factors = torch.randn(n, n_outputs, n_outputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = factors @ factors.transpose(1, 2)
    std = (m_out.var / found.diagonal(dim1=1, dim2=2)).sqrt()
    return (std[:, :, None] * found * std[:, None, :]).to(m_out.mean)


def check_head(head: Head, n_outputs: int, targets: torch.Tensor) -> None:
    check_shapes(head, n_outputs)
    check_targets_survive_validation(head, n_outputs, targets)
    check_messages(head, n_outputs, targets)
    check_constant(head, n_outputs, targets)
    check_predictions(head, n_outputs, targets)
    check_metrics(head, n_outputs, targets)


def _belief(head: Head, dtype) -> torch.Tensor:
    """A belief about the constant that is neither flat nor certain."""
    return torch.randn(head.grid.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)


def check_shapes(head, n_outputs) -> None:
    assert head.n_outputs((n_outputs,)) == n_outputs
    assert head.grid.ndim == 1 and head.grid.dtype == torch.float64 and (head.grid > 0).all()
    assert head.is_learned == (len(head.grid) > 1)
    assert head.prior_log_weights().shape == head.grid.shape
    for shape in ((2, 3, 4), (n_outputs, 1)):
        with pytest.raises(ValueError, match=rf"{type(head).__name__}.*Flatten"):
            head.n_outputs(shape)
    assert eval(repr(head), {type(head).__name__: type(head)}).__dict__.keys() == head.__dict__.keys()


def check_targets_survive_validation(head, n_outputs, targets) -> None:
    checked = head.check_targets(targets, n_outputs)
    assert len(checked) == len(targets)
    again = head.check_targets(checked, n_outputs)
    assert torch.equal(again, checked)
    assert torch.equal(head.check_targets(targets.tolist(), n_outputs).double(), checked.double())


def check_messages(head, n_outputs, targets) -> None:
    y = head.check_targets(targets, n_outputs)
    for dtype in DTYPES:
        for scale in (1e-6, 1.0, 1e4):  # sharp outputs, ordinary ones, ignorance
            m_out = outputs((len(y), n_outputs), dtype)
            m_out = Moments(m_out.mean, scale * m_out.var)
            own = y.to(dtype) if y.is_floating_point() else y
            message = head.to_latent(m_out, own, _belief(head, dtype))
            assert message.tau.shape == message.rho.shape == m_out.shape
            assert message.tau.dtype == message.rho.dtype == dtype
            assert message.tau.isfinite().all() and message.rho.isfinite().all() and (message.rho >= 0).all()
            parts = [
                head.to_latent(m_out.map(lambda p, r=r: p[r]), own[r], _belief(head, dtype))
                for r in (slice(0, 1), slice(1, None))
            ]
            torch.testing.assert_close(torch.cat([part.rho for part in parts]), message.rho)


def check_constant(head, n_outputs, targets) -> None:
    """One log-likelihood per value; those of parts of a batch add up."""
    y = head.check_targets(targets, n_outputs)
    for dtype in DTYPES:
        m_out, own = outputs((len(y), n_outputs), dtype), y.to(dtype) if y.is_floating_point() else y
        message = head.to_constant(m_out, own)
        assert message.shape == head.grid.shape and message.isfinite().all()
        parts = sum(head.to_constant(m_out.map(lambda p, r=r: p[r : r + 1]), own[r : r + 1]) for r in range(len(y)))
        torch.testing.assert_close(parts, message, rtol=1e-4, atol=1e-4)
    start = head.initial_message(y)
    assert start.shape == head.grid.shape and start.isfinite().all()


def check_predictions(head, n_outputs, targets) -> None:
    """From moments alone, and with covariances of the outputs of each example."""
    for dtype in DTYPES:
        m_out, belief = outputs((5, n_outputs), dtype), _belief(head, dtype)
        for covariance in (None, covariances(m_out)):
            predicted = head.predict(m_out, belief, covariance)
            torch.testing.assert_close(predicted.mean, m_out.mean)
            torch.testing.assert_close(predicted.epistemic_var, m_out.var)
            parts = [
                head.predict(m_out.map(lambda p, r=r: p[r]), belief, None if covariance is None else covariance[r])
                for r in (slice(0, 2), slice(2, 5))
            ]
            joined = type(predicted).concatenate(parts)
            for name, value in vars(predicted).items():
                if value is None:
                    assert getattr(joined, name) is None
                    continue
                assert value.dtype == dtype and value.isfinite().all()
                torch.testing.assert_close(getattr(joined, name), value)


def check_metrics(head, n_outputs, targets) -> None:
    y = head.check_targets(targets, n_outputs)
    for dtype in DTYPES:
        m_out, own = outputs((len(y), n_outputs), dtype), y.to(dtype) if y.is_floating_point() else y
        found = head.train_metrics(m_out, own, _belief(head, dtype))
        assert "nll" in found
        assert all(value.shape == () and value.isfinite() for value in found.values())
