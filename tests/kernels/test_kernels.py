"""Backends: which one answers, errors and fallbacks; on a GPU, fused kernels against their equations."""

import warnings

import pytest
import torch

from bayesmp import kernels
from bayesmp.kernels import compiled, fused
from bayesmp.messages import activation, linear, weighted_sum
from bayesmp.messages.gaussian import Moments
from tests.kernels.cases import CALLS, messages

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_cuda
@pytest.mark.parametrize("name", CALLS)
def test_fused_kernels_give_what_the_equations_give(name):
    for shape in [(5, 7), (3, 2, 4, 5), (1, 1), (0, 4), (1031,), (2, 3, 4, 6, 5)]:
        tensors = [part.cuda() for part in messages(shape)]
        kernels.set_backend("fused")
        found = CALLS[name](*tensors)
        kernels.set_backend("torch")
        for one, other in zip(found, CALLS[name](*tensors), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["auto", "torch", "fused"])
def test_in_float64_the_equations_themselves_run(name, monkeypatch):
    for module in (fused, compiled):
        monkeypatch.setattr(module, "launch", lambda *_, **__: pytest.fail("a kernel for float64"))
    kernels.set_backend(name)
    mean, var, input_var, tau, rho = (part.double() for part in messages((5, 7)))
    m_z, m_back = linear.SumMoments(mean, var, input_var), kernels.Gaussian(tau, rho)
    found, truth = kernels.residual(m_z, m_back), linear.residual(m_z, m_back)
    assert torch.equal(found.to_input, truth.to_input) and torch.equal(found.q, truth.q)
    message, same = (f(m_z, m_back, 0.1) for f in (kernels.leaky_relu_to_input, activation.leaky_relu_to_input))
    assert torch.equal(message.tau, same.tau) and torch.equal(message.rho, same.rho)
    share, m_out = kernels.max_of_windows(Moments(mean, var), noise=0.3, dim=1)
    assert torch.equal(share, weighted_sum.largest_probabilities(Moments(mean, var), noise=0.3, dim=1))
    torch.testing.assert_close(m_out.mean, (share * mean).sum(1))


@pytest.mark.parametrize("name", ["triton", "Torch", "", None])
def test_an_unknown_backend_is_refused_with_those_there_are(name):
    with pytest.raises(ValueError, match=r"unknown backend.*auto.*torch.*fused"):
        kernels.set_backend(name)
    assert kernels._choice == "auto"


class OnCuda(torch.Tensor):
    """A CPU tensor that says it is on a GPU."""

    is_cuda = True


def broken(*_, **__):
    raise RuntimeError("no compiler on this machine")


def test_where_a_kernel_fails_the_equation_answers_with_one_warning(monkeypatch):
    monkeypatch.setattr(fused, "launch", broken)
    plain = messages((5, 7))[4]
    rho = plain.as_subclass(OnCuda)
    with pytest.warns(UserWarning, match="no compiler on this machine.*plain equations"):
        found = kernels.weight_curvature(rho, rho)
    torch.testing.assert_close(found.as_subclass(torch.Tensor), linear.weight_curvature(plain, plain))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernels.weight_curvature(rho, rho)


def test_a_backend_asked_for_by_name_does_not_fall_back(monkeypatch):
    monkeypatch.setattr(fused, "launch", broken)
    kernels.set_backend("fused")
    rho = messages((5, 7))[4].as_subclass(OnCuda)
    with pytest.raises(RuntimeError, match="no compiler"):
        kernels.weight_curvature(rho, rho)


def test_float64_is_left_to_the_equations(monkeypatch):
    monkeypatch.setattr(fused, "launch", broken)
    kernels.set_backend("fused")
    rho = messages((5, 7))[4].double().as_subclass(OnCuda)
    kernels.weight_curvature(rho, rho)
