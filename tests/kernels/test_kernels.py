"""Backends: "compiled" gives what "torch" gives, over shapes and dtypes; errors and fallbacks."""

import warnings

import pytest
import torch

from bayesmp import kernels
from bayesmp.equations import activation, linear
from bayesmp.equations.linear import SumMoments
from bayesmp.gaussian import Gaussian, Moments

torch.set_num_threads(1)

SHAPES = [(5, 7), (3, 2, 4, 5), (1, 1), (0, 4), (1031,)]  # images, one entry, none, no multiple of any vector length
DTYPES = [torch.float32, torch.float64]
RTOL = {torch.float32: 1e-4, torch.float64: 1e-10}


@pytest.fixture(autouse=True)
def _own_backend():
    """Each test starts on "auto" with nothing known to be broken, and leaves no trace of its choice."""
    before = kernels._choice, kernels._broken, dict(kernels._compiled)
    kernels._choice, kernels._broken = "auto", False
    yield
    kernels._choice, kernels._broken = before[:2]
    kernels._compiled.clear()
    kernels._compiled.update(before[2])


def messages(shape, dtype):
    """(m_z, m_back) with sharp and broad entries, contradictions, and messages that say nothing."""
    generator = torch.Generator().manual_seed(0)

    def normal():
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    mean, var, share = 2.0 * normal(), (2.0 * normal()).exp(), torch.sigmoid(normal())
    rho = (2.0 * normal()).exp() * (normal() > -1.0)
    parts = [part.to(dtype) for part in (mean, var, share * var, normal() * (rho + 0.1), rho)]
    return SumMoments(*parts[:3]), Gaussian(*parts[3:])


def assert_parity(call, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations while its compiler is imported
        kernels.set_backend("compiled")
        found = call()
        kernels.set_backend("torch")
        truth = call()
    assert len(found) == len(truth)
    for one, other in zip(found, truth, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype == dtype
        torch.testing.assert_close(one, other, rtol=RTOL[dtype], atol=1e-5 if dtype == torch.float32 else 1e-12)


def small_calls(shape, dtype):
    m_z, m_back = messages(shape, dtype)

    def to_output():
        m_out = kernels.leaky_relu_to_output(Moments(m_z.mean, m_z.var), 0.1)
        return m_out.mean, m_out.var, m_out.slope

    def residual():
        back = kernels.residual(m_z, m_back)
        return back.to_input, back.to_weight, back.q

    return to_output, residual, lambda: (kernels.weight_curvature(m_z.input_var, m_back.rho),)


def test_compiled_gives_what_the_equations_give():
    for call in small_calls((5, 7), torch.float32)[1:]:  # the quick ones
        assert_parity(call, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_gives_what_the_equations_give_for_all_shapes(dtype):
    for shape in SHAPES:
        for call in small_calls(shape, dtype):
            assert_parity(call, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_leaky_relu_to_input_gives_what_the_equation_gives(dtype):
    for shape, leak in [(SHAPES[0], 0.1), (SHAPES[4], 0.0)]:
        m_z, m_back = messages(shape, dtype)

        def to_input(m_z=m_z, m_back=m_back, leak=leak):
            message = kernels.leaky_relu_to_input(Moments(m_z.mean, m_z.var), m_back, leak)
            return message.tau, message.rho

        assert_parity(to_input, dtype)


@pytest.mark.parametrize("name", ["auto", "torch"])
def test_on_the_cpu_the_equations_themselves_run(name, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiled on the CPU"))
    kernels.set_backend(name)
    m_z, m_back = messages((5, 7), torch.float64)
    found, truth = kernels.residual(m_z, m_back), linear.residual(m_z, m_back)
    assert torch.equal(found.to_input, truth.to_input) and torch.equal(found.q, truth.q)
    message, same = (f(m_z, m_back, 0.1) for f in (kernels.leaky_relu_to_input, activation.leaky_relu_to_input))
    assert torch.equal(message.tau, same.tau) and torch.equal(message.rho, same.rho)


@pytest.mark.parametrize("name", ["triton", "Torch", "", None])
def test_an_unknown_backend_is_refused_with_those_there_are(name):
    with pytest.raises(ValueError, match=r"unknown backend.*auto.*torch.*compiled"):
        kernels.set_backend(name)
    assert kernels._choice == "auto"


class OnCuda(torch.Tensor):
    """A CPU tensor that says it is on a GPU."""

    is_cuda = True


def broken_at_once(*_, **__):
    raise RuntimeError("no compiler on this machine")


def broken_at_the_first_call(*_, **__):
    return broken_at_once


@pytest.mark.parametrize("broken_compile", [broken_at_once, broken_at_the_first_call])
def test_where_compiling_fails_the_equation_answers_with_one_warning(broken_compile, monkeypatch):
    """torch.compile used to be called outside the rescue: where it raises itself, as on a Python it does not know,
    there was no answer at all."""
    kernels._compiled.clear()
    monkeypatch.setattr(torch, "compile", broken_compile)
    _, m_back = messages((5, 7), torch.float64)
    rho = m_back.rho.as_subclass(OnCuda)
    with pytest.warns(UserWarning, match="no compiler on this machine.*plain equations"):
        found = kernels.weight_curvature(rho, rho)
    torch.testing.assert_close(found.as_subclass(torch.Tensor), linear.weight_curvature(m_back.rho, m_back.rho))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernels.weight_curvature(rho, rho)


def test_a_backend_asked_for_by_name_does_not_fall_back(monkeypatch):
    kernels._compiled.clear()
    monkeypatch.setattr(torch, "compile", broken_at_once)
    kernels.set_backend("compiled")
    m_z, m_back = messages((5, 7), torch.float64)
    with pytest.raises(RuntimeError, match="no compiler"):
        kernels.weight_curvature(m_z.var, m_back.rho)
