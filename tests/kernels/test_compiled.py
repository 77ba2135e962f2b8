"""Compiled loops on the CPU against the equations: any layout of memory, extremes, threads, and when they keep out."""

import os

import pytest
import torch

from bayesmp import kernels
from bayesmp.kernels import build, compiled, pools
from bayesmp.messages import reach, tilted
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.linear import SumMoments
from bayesmp.messages.linear_maps import ConvMap, DenseMap
from tests.kernels.cases import CALLS, messages

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="needs a C++ compiler")

SHAPES = [(), (1,), (7,), (0, 4), (5, 7), (1031,), (3, 2, 4, 5), (2, 3, 4, 6, 5), (2, 33, 9, 7)]


@pytest.fixture(autouse=True)
def _asked_for():
    """A failure shows as itself, not as a fallback."""
    kernels.set_backend("fused")


def plainly(call, *tensors):
    kernels.set_backend("torch")
    try:
        return call(*tensors)
    finally:
        kernels.set_backend("fused")


def assert_same(call, *tensors, rtol=1e-3, atol=1e-4):
    """The loops agree with the equations; those of float32 themselves differ from float64 by as much."""
    for one, other in zip(call(*tensors), plainly(call, *tensors), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CALLS)
def test_loops_give_what_the_equations_give(name, shape):
    assert_same(CALLS[name], *messages(shape))


@pytest.mark.parametrize("name", CALLS)
def test_as_precise_as_the_equations(name):
    """Against the equation in float64: no worse than ten times the equation's own float32 error, or 1e-4."""
    tensors = messages((40, 50))
    found, plain = CALLS[name](*tensors), plainly(CALLS[name], *tensors)
    truth = plainly(CALLS[name], *(part.double() for part in tensors))
    for one, same, exact in zip(found, plain, truth, strict=True):
        scale = exact.abs() + 1e-3
        error, own = (((part.double() - exact).abs() / scale).nan_to_num(1e9) for part in (one, same))
        assert (error > 10 * own + 1e-4).double().mean() < 2e-3


@pytest.mark.parametrize("name", CALLS)
def test_inputs_may_lie_in_memory_as_they_like(name):
    """Transposed, with gaps, channels last, some of them spread from fewer numbers or from one."""
    call = CALLS[name]
    assert_same(call, *(part.transpose(0, 1) for part in messages((5, 7))))
    assert_same(call, *(part[:, ::2, 1:] for part in messages((5, 8, 9))))
    assert_same(call, *(part.to(memory_format=torch.channels_last) for part in messages((3, 4, 5, 6))))
    mean, var, input_var, tau, rho = messages((3, 4, 5, 6))
    assert_same(call, mean.to(memory_format=torch.channels_last), var, input_var, tau, rho)
    assert_same(call, mean, torch.tensor(0.7).expand_as(var), torch.zeros(()).expand_as(var), tau, rho)
    assert_same(call, mean[:1].expand_as(mean), var[..., :1].expand_as(var), input_var, tau, rho)


def test_inputs_of_fewer_dimensions_are_spread():
    mean, var, _, tau, rho = messages((5, 7))
    for parts in [(mean, torch.tensor(2.0), tau, rho), (mean[:1], var[:, :1], tau, rho), (mean[0], var, tau[0], rho)]:
        assert_same(lambda m, v, t, r: _pair(kernels.leaky_relu_to_input(Moments(m, v), Gaussian(t, r), 0.1)), *parts)


def _pair(message):
    return message.tau, message.rho


def test_one_tensor_may_be_several_inputs():
    _, var, _, _, rho = messages((5, 7))
    assert_same(lambda x: _pair(kernels.leaky_relu_to_input(Moments(x, x), Gaussian(x, x), 0.1)), rho + 0.1)
    before = var.clone()
    kernels.weight_curvature(var, var)
    assert torch.equal(var, before)


def test_the_layout_of_the_input_is_kept():
    mean, var = (part.to(memory_format=torch.channels_last) for part in messages((3, 4, 5, 6))[:2])
    assert kernels.leaky_relu_to_output(Moments(mean, var), 0.1).var.stride() == mean.stride()


@pytest.mark.parametrize("leak", [0.0, 0.1, 0.9])
def test_extremes_stay_finite_and_near_the_truth(leak):
    """Variances from 1e-12 to 1e12, means and messages to match or to contradict them; the truth is the float64
    equation, the measure whether float32 can know better: ten times the plain equation's own error.
    """
    scale = torch.logspace(-12, 12, 13)
    number = torch.tensor([-1e6, -30.0, -7.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 7.0, 30.0, 1e6])
    var, rho, a, t = (part.flatten() for part in torch.meshgrid(scale, scale, number, number, indexing="ij"))
    mean, tau = a * var.sqrt(), t * rho.sqrt()
    m_in, m_back = Moments(mean, var), Gaussian(tau, rho)
    message = kernels.leaky_relu_to_input(m_in, m_back, leak)
    m_out = kernels.leaky_relu_to_output(m_in, leak)
    for part in (message.tau, message.rho, m_out.mean, m_out.var, m_out.slope):
        assert part.isfinite().all()
    assert (message.rho > 0).all() and (m_out.var >= 0).all()

    def results(m_in, m_back):
        m_out = kernels.leaky_relu_to_output(m_in, leak)
        message = kernels.leaky_relu_to_input(m_in, m_back, leak)
        marginal = m_in * message  # what the message does: tau and rho alone may be large and cancel
        return m_out.mean, m_out.var, m_out.slope, marginal.mean / m_in.var.sqrt(), marginal.var / m_in.var

    found, plain = results(m_in, m_back), plainly(results, m_in, m_back)
    double = [Moments(mean.double(), var.double()), Gaussian(tau.double(), rho.double())]
    for one, same, exact in zip(found, plain, plainly(results, *double), strict=True):
        size = exact.abs() + 1e-30
        error, own = (((part.double() - exact).abs() / size).nan_to_num(1e9) for part in (one, same))
        assert (error > 10 * own + 1e-3).double().mean() < 5e-3


def test_hopeless_windows_have_shares():
    """Entries 1e6 stds apart, alike, or known exactly: shares are finite and sum to 1, the mean lies between them."""
    mean = torch.tensor([[0.0, 0, 0, 0], [1e6, -1e6, 0, 1], [1e-3, 0, 0, 0], [5, 5, -5, -5]]).T
    for var in (0.0, 1e-12, 1.0, 1e12):
        windows = Moments(mean, torch.full_like(mean, var))
        share, m_out = kernels.max_of_windows(windows, noise=1e-6, dim=0)
        torch.testing.assert_close(share.sum(0), torch.ones(4))
        assert (m_out.mean <= mean.amax(0) + 1e-5).all() and m_out.var.isfinite().all()
        assert_same(lambda m, v: kernels.max_of_windows(Moments(m, v), noise=0.3, dim=0)[:1], mean, windows.var)


def test_nan_is_not_hidden():
    nan, one = torch.full((9,), torch.nan), torch.ones(9)
    assert kernels.leaky_relu_to_output(Moments(nan, one), 0.1).mean.isnan().all()
    assert kernels.leaky_relu_to_output(Moments(one, nan), 0.1).mean.isnan().all()
    assert kernels.residual(SumMoments(one, nan, one), Gaussian(one, one)).to_input.isnan().all()


# --- pools -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (3, 5, 7, 9), (1, 1, 2, 2), (2, 8, 5, 4), (2, 3, 3, 35), (0, 3, 4, 4)])
def test_pools_give_what_the_equations_give(shape, layout):
    mean, var = (part.to(memory_format=layout) for part in messages(shape)[:2])
    b, c, h, w = shape
    tau, rho = messages((b, c, h // 2, w // 2))[3:]
    slopes = torch.randn(3, b, c, h // 2, w // 2, generator=torch.Generator().manual_seed(0))
    two = (2, 2)

    def pooled(mean, var, tau, rho, slopes):
        share, m_out = kernels.max_pool(Moments(mean, var), two, two, noise=0.3)
        message = kernels.pool_to_input(share, Moments(mean, var), m_out, Gaussian(tau, rho), two, two)
        along = kernels.pool_sum(share, var, two, two)
        back = kernels.pool_spread(share, slopes, mean, two, two)
        return share, m_out.mean, m_out.var, message.tau, message.rho, along, back

    assert_same(pooled, mean, var, tau, rho, slopes)


def test_pools_take_shares_of_any_layout():
    mean, var = messages((2, 3, 4, 6))[:2]
    share, out_mean, _ = pools.max_pool(mean, var, noise=0.3)
    torch.testing.assert_close(pools.pool_sum(mean, share.contiguous()), out_mean)
    last = mean.to(memory_format=torch.channels_last)
    torch.testing.assert_close(pools.pool_sum(last, share), out_mean)


# --- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (0, 3), (200, 3), (70, 600), (3, 8, 5, 6), (2, 1, 4, 4)])
def test_sums_over_batch_and_positions_give_what_the_equations_give(shape):
    """Units last or not, a variance that is one number, and one that varies."""
    dense, conv = DenseMap(), ConvMap((4, 4), (4, 4), (1, 1), (1, 1), (0, 0))
    linear_map = dense if len(shape) == 2 else conv
    bias_var = torch.linspace(0.0, 2.0, shape[1])
    for last in (False, True):
        parts = messages(shape)
        if last and len(shape) == 4:
            parts = [part.to(memory_format=torch.channels_last) for part in parts]

        def both(mean, var, input_var, tau, rho):
            message, zero = Gaussian(tau, rho), torch.zeros(()).expand_as(rho)
            found = []
            for spread, own in ((input_var, bias_var), (zero, bias_var), (input_var, None)):
                back, sums = kernels.residual_sums(linear_map, own, SumMoments(mean, var, spread), message)
                found += [back.to_input, back.to_weight, back.q, sums.slope, sums.rho, sums.curvature]
            return tuple(found)

        assert_same(both, *parts)
        assert_same(both, parts[0], parts[1].contiguous(), parts[2].contiguous(), *parts[3:])


class SequenceMap(DenseMap):
    """A convolution over sequences as users may write one: units on the axis before the positions, z: (b, o, l)."""

    def channel_sum(self, z):
        return z.sum((0, 2))

    def spread(self, per_unit):
        return per_unit[:, None]


class UnitsLastMap(DenseMap):
    """The same with units on the last axis, z: (b, l, o)."""

    def channel_sum(self, z):
        return z.flatten(0, -2).sum(0)


@pytest.mark.parametrize(
    "linear_map, shape, n_units",
    [
        (SequenceMap(), (3, 7, 5), 7),
        (SequenceMap(), (4, 4, 4), 4),
        (SequenceMap(), (1, 2, 300), 2),
        (UnitsLastMap(), (3, 7, 5), 5),
        (UnitsLastMap(), (4, 4, 4), 4),
        (UnitsLastMap(), (2, 3, 4, 6), 6),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, DenseMap) else str(part),
)
@pytest.mark.parametrize("layout", ["in order", "units next to each other", "with gaps"])
def test_sums_ask_the_map_where_its_units_are(linear_map, shape, n_units, layout):
    """The loops took sums of four axes for images and all others for dense. Messages to the biases of a convolution
    over sequences, sums (b, o, l) in float32, were wrong in silence: tau by up to 520 %, rho by 19 %.
    """
    parts = messages(shape)
    if layout == "units next to each other":
        parts = [part.movedim(1, -1).contiguous().movedim(-1, 1) for part in parts]
    elif layout == "with gaps":
        parts = [part.repeat_interleave(2, -1)[..., ::2] for part in parts]
    bias_var = torch.linspace(0.0, 2.0, n_units)

    def both(mean, var, input_var, tau, rho):
        message, zero = Gaussian(tau, rho), torch.zeros(()).expand_as(rho)
        found = []
        for spread, own in ((input_var, bias_var), (zero, bias_var), (input_var, None)):
            back, sums = kernels.residual_sums(linear_map, own, SumMoments(mean, var, spread), message)
            found += [back.to_input, back.to_weight, back.q, sums.slope, sums.rho, sums.curvature]
        return tuple(found)

    assert_same(both, *parts)


@pytest.mark.parametrize("backend", ["torch", "fused"])
def test_sums_whose_shapes_do_not_fit_are_refused(backend, monkeypatch):
    """A wrong axis may have the right length by chance; where it has not, it is said."""
    monkeypatch.setattr(kernels, "_choice", backend)
    mean, var, input_var, tau, rho = messages((3, 7, 5))
    m_z, message = SumMoments(mean, var, input_var), Gaussian(tau, rho)
    for linear_map, bias_var in (
        (SequenceMap(), torch.ones(5)),  # the bias of other units
        (UnitsLastMap(), torch.ones(7)),
        (ConvMap((4, 4), (4, 4), (1, 1), (1, 1), (0, 0)), torch.ones(7)),  # sums of other axes
        (ConvMap((4, 4), (4, 4), (1, 1), (1, 1), (0, 0)), None),
    ):
        with pytest.raises(AssertionError, match="units"):
            kernels.residual_sums(linear_map, bias_var, m_z, message)
    with pytest.raises(AssertionError, match="shape"):
        kernels.residual_sums(SequenceMap(), torch.ones(7), m_z, Gaussian(tau[:2], rho[:2]))


def test_sums_of_many_numbers_keep_their_digits():
    """A running sum of a million ones in float32 is off by more; a part of the sum is in double precision."""
    rho = torch.full((1_000_000, 1), 0.1)
    zero = torch.zeros_like(rho)
    _, found = kernels.residual_sums(DenseMap(), None, SumMoments(zero, zero, zero), Gaussian(rho, rho))
    for part in (found.slope, found.rho, found.curvature):
        torch.testing.assert_close(part, torch.tensor([1e5]), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (200, 33), (3, 8, 5, 6)])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_the_reach_of_a_change_is_that_of_the_equation(shape, offset):
    """In any layout, and where the means are far from 0 but close to each other."""
    mean, var, _, change, _ = messages(shape)
    layouts = [torch.contiguous_format] + [torch.channels_last] * (len(shape) == 4)
    for layout in layouts:
        for other in layouts:
            m_out = Moments(*((part + offset).contiguous(memory_format=layout) for part in (mean, var)))
            found = kernels.squared_reach(m_out, change.contiguous(memory_format=other))
            truth = reach.squared_reach(m_out.map(torch.Tensor.double), change.double())
            torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=1e-30)


def test_rejected_messages_are_counted_alike():
    rho = messages((3, 8, 5, 7))[4]
    rho[0, 0, 0, :3] = torch.tensor([1e-8, torch.nan, 2e-8])
    for part in (rho, rho.to(memory_format=torch.channels_last), rho.transpose(0, 1), rho[:, ::2], rho[:0]):
        assert kernels.count_rejected(Gaussian(part, part)) == tilted.count_rejected(Gaussian(part, part))


# --- threads, and keeping out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_threads_share_the_work(n_threads, monkeypatch):
    monkeypatch.setattr(compiled, "LEAST_WORK", 100)
    monkeypatch.setattr(pools, "LEAST_WORK", 100)
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        assert_same(CALLS["to_input"], *messages((1031,)))
        mean, var = messages((5, 3, 8, 9))[:2]
        assert_same(lambda m, v: pools.max_pool(m, v, noise=0.3), mean, var)
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_threads_are_made_anew_after_a_fork():
    compiled._pool_of_threads().submit(int).result()
    assert compiled._pool_of_threads.cache_info().currsize == 1
    compiled._pool_of_threads.cache_clear()  # what the child does
    assert compiled._pool_of_threads().submit(int).result() == 0


def test_where_someone_differentiates_the_equations_answer():
    mean, var = messages((5, 7))[:2]
    mean.requires_grad_()
    kernels.leaky_relu_to_output(Moments(mean, var), 0.1).mean.sum().backward()
    assert mean.grad is not None and (mean.grad > 0).all()
    with torch.no_grad():
        assert not kernels.leaky_relu_to_output(Moments(mean, var), 0.1).mean.requires_grad

    def total(m):
        return kernels.leaky_relu_to_output(Moments(m, var), 0.1).mean.sum()

    torch.testing.assert_close(torch.func.grad(total)(mean.detach()), mean.grad)
    rows = torch.vmap(lambda m, v: kernels.leaky_relu_to_output(Moments(m, v), 0.1).mean)(mean.detach(), var)
    torch.testing.assert_close(rows, kernels.leaky_relu_to_output(Moments(mean.detach(), var), 0.1).mean)


def test_the_environment_chooses_a_backend():
    import subprocess
    import sys

    script = "from bayesmp import kernels; print(kernels._choice, kernels.backend_in_use())"
    environment = {**os.environ, "BAYESMP_BACKEND": "torch"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["torch", "torch"]
