"""The contract every layer must pass: check_layer(layer, shape_in)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.layers import AvgPool2d, Flatten
from bayesmp.layers.base import Layer, Local, Memory, Weights
from bayesmp.layers.pooling import Pool2d
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.regime import EXAMPLE_BY_EXAMPLE, MOMENTS, Regime
from bayesmp.messages.windows import gather_windows

torch.set_num_threads(1)

REGIMES = (EXAMPLE_BY_EXAMPLE, MOMENTS)


def random_moments(shape, generator, *, dtype=torch.float64, var: float = 0.5) -> Moments:
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    variance = var * (0.2 + torch.rand(shape, generator=generator, dtype=torch.float64))
    return Moments(mean.to(dtype), variance.to(dtype))


def random_message(shape, generator, *, dtype=torch.float64) -> Gaussian:
    tau = torch.randn(shape, generator=generator, dtype=torch.float64)
    rho = 0.2 + torch.rand(shape, generator=generator, dtype=torch.float64)
    return Gaussian(tau.to(dtype), rho.to(dtype))


def random_weights(layer: Layer, generator, *, dtype=torch.float64) -> Weights:
    return {
        name: random_moments(shape, generator, dtype=dtype, var=0.1) for name, shape in layer.weight_shapes().items()
    }


def check_layer(layer: Layer, shape_in: tuple[int, ...]) -> None:
    check_shapes_and_dtypes(layer, shape_in)
    check_float32_agrees_with_float64(layer, shape_in)
    check_examples_are_independent(layer, shape_in)
    check_known_input_is_the_limit_of_a_sharp_one(layer, shape_in)
    check_tangent_is_the_derivative_of_the_mean(layer, shape_in)
    check_pullback_is_the_adjoint_of_tangent(layer, shape_in)
    check_noise_is_the_variance_that_does_not_come_from_own_weights(layer, shape_in)
    if layer.weight_shapes():
        check_matrix_goes_there_and_back(layer, shape_in)
        check_gradient_is_the_jacobian_of_the_mean(layer, shape_in)
        check_curvature_of_the_messages(layer, shape_in)


@dataclass(frozen=True)
class Swept:
    """A sweep there and back with random non-trivial values."""

    m_in: Moments
    weights: Weights
    local: Local
    m_back: Gaussian
    to_input: Gaussian
    to_weights: dict[str, Gaussian]

    @property
    def m_out(self) -> Moments:
        return self.local.m_out

    @property
    def messages(self) -> list[Tensor]:
        """Everything that went out and came back."""
        found = [self.m_out.mean, self.m_out.var, self.to_input.tau, self.to_input.rho]
        return found + [part for message in self.to_weights.values() for part in (message.tau, message.rho)]


def _sweep(layer: Layer, shape_in, *, dtype=torch.float64, regime: Regime = MOMENTS, batch: int = 3) -> Swept:
    generator = torch.Generator().manual_seed(0)
    m_in, weights = random_moments((batch, *shape_in), generator), random_weights(layer, generator)
    m_back = random_message((batch, *layer.output_shape(shape_in)), generator)
    m_in, m_back = m_in.map(lambda part: part.to(dtype)), m_back.map(lambda part: part.to(dtype))
    weights = {name: weight.map(lambda part: part.to(dtype)) for name, weight in weights.items()}
    local = layer.sweep([m_in], weights, regime)
    (to_input,), to_weights = local.back(m_back)
    return Swept(m_in, weights, local, m_back, to_input, to_weights)


def _inputs(swept: Swept) -> tuple[Moments | Tensor, ...]:
    """The same input uncertain and known."""
    return swept.m_in, swept.m_in.mean


def check_shapes_and_dtypes(layer, shape_in) -> None:
    for dtype in (torch.float32, torch.float64):
        for regime in REGIMES:
            swept = _sweep(layer, shape_in, dtype=dtype, regime=regime)
            assert swept.m_out.mean.shape == swept.m_out.var.shape == swept.m_back.shape
            assert swept.to_input.tau.shape == swept.to_input.rho.shape == swept.m_in.shape
            assert {name: tuple(part.shape) for name, part in swept.to_weights.items()} == layer.weight_shapes()
            assert all(part.dtype == dtype and part.isfinite().all() for part in swept.messages)
            assert (swept.m_out.var >= 0).all() and (swept.to_input.rho >= 0).all()
            assert all((message.rho >= 0).all() for message in swept.to_weights.values())
            # Messages known from an earlier sweep may be used or not.
            at_input = random_message(swept.m_in.shape, torch.Generator().manual_seed(1), dtype=dtype)
            memory = Memory(at_input=at_input, at_output=swept.m_back)
            renewed = layer.sweep([swept.m_in], swept.weights, regime, memory).m_out
            assert renewed.shape == swept.m_out.shape and renewed.mean.dtype == dtype


def check_float32_agrees_with_float64(layer, shape_in) -> None:
    for regime in REGIMES:
        single, double = (
            _sweep(layer, shape_in, dtype=dtype, regime=regime) for dtype in (torch.float32, torch.float64)
        )
        for found, truth in zip(single.messages, double.messages, strict=True):
            torch.testing.assert_close(found.double(), truth, rtol=1e-3, atol=1e-4)


def check_examples_are_independent(layer, shape_in) -> None:
    """Forward and backward messages of an example do not depend on its batch; messages to weights multiply."""
    for regime in REGIMES:
        whole = _sweep(layer, shape_in, regime=regime)
        product = {name: Gaussian.nothing(message.tau) for name, message in whole.to_weights.items()}
        for part in (slice(0, 1), slice(1, 3)):
            m_in, m_back = (m.map(lambda x, part=part: x[part]) for m in (whole.m_in, whole.m_back))
            local = layer.sweep([m_in], whole.weights, regime)
            (to_input,), to_weights = local.back(m_back)
            torch.testing.assert_close(local.m_out.mean, whole.m_out.mean[part])
            torch.testing.assert_close(local.m_out.var, whole.m_out.var[part])
            torch.testing.assert_close(to_input.tau, whole.to_input.tau[part])
            torch.testing.assert_close(to_input.rho, whole.to_input.rho[part])
            product = {name: product[name] * to_weights[name] for name in product}
        for name, message in whole.to_weights.items():
            torch.testing.assert_close(product[name].tau, message.tau)
            torch.testing.assert_close(product[name].rho, message.rho)


def check_known_input_is_the_limit_of_a_sharp_one(layer, shape_in) -> None:
    """A plain tensor and Moments of variance 0 give the same output, messages to weights, changes and slopes.

    Nothing goes back to a known input, and what it leaves behind a layer without weights is known, too.
    """
    for regime in REGIMES:
        swept = _sweep(layer, shape_in, regime=regime)
        known = layer.sweep([swept.m_in.mean], swept.weights, regime)
        (to_input,), from_known = known.back(swept.m_back)
        assert to_input is None
        assert isinstance(known.m_out, Moments) == bool(swept.weights)
        if getattr(layer, "noise", 0.0) > 0.0:
            continue  # a max pool compares uncertain entries with noise and known ones without: another factor
        sharp = layer.sweep([Moments(swept.m_in.mean, torch.zeros_like(swept.m_in.var))], swept.weights, regime)
        slope = torch.randn(2, *sharp.m_out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        torch.testing.assert_close(known.pullback(slope), sharp.pullback(slope))
        if not swept.weights:
            torch.testing.assert_close(known.m_out, sharp.m_out.mean)
            torch.testing.assert_close(sharp.m_out.var, torch.zeros_like(known.m_out))
            d_in = swept.m_in.var
            torch.testing.assert_close(known.tangent([d_in], {}), sharp.tangent([d_in], {}))
            continue
        torch.testing.assert_close(known.m_out.mean, sharp.m_out.mean)
        torch.testing.assert_close(known.m_out.var, sharp.m_out.var)
        _, from_sharp = sharp.back(swept.m_back)
        for name in from_known:
            torch.testing.assert_close(from_known[name].tau, from_sharp[name].tau)
            torch.testing.assert_close(from_known[name].rho, from_sharp[name].rho)
        torch.testing.assert_close(known.gradient(slope).flat(), sharp.gradient(slope).flat())
        d_weights = {name: weight.var for name, weight in swept.weights.items()}
        torch.testing.assert_close(known.tangent([None], d_weights), sharp.tangent([None], d_weights))


def check_tangent_is_the_derivative_of_the_mean(layer, shape_in) -> None:
    """Against central differences of the output's mean, in the input and the weights together, and in each alone."""
    for regime in REGIMES:
        swept = _sweep(layer, shape_in, regime=regime)
        m_in, weights = swept.m_in, swept.weights
        generator = torch.Generator().manual_seed(1)
        d_in = torch.randn(m_in.shape, generator=generator, dtype=torch.float64)
        d_weights = {
            name: torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            for name, weight in weights.items()
        }
        for moves_input, moves_weights in ((True, True), (True, False), (False, True)):
            own_in = d_in if moves_input else None
            own_weights = {name: d if moves_weights else torch.zeros_like(d) for name, d in d_weights.items()}
            found = swept.local.tangent([own_in], own_weights)
            if not moves_input and not weights:
                assert found is None
                continue

            def output_mean(step, own_in=own_in, own_weights=own_weights, regime=regime, swept=swept):
                m_in, weights = swept.m_in, swept.weights
                moved_in = m_in if own_in is None else Moments(m_in.mean + step * own_in, m_in.var)
                moved = {name: Moments(w.mean + step * own_weights[name], w.var) for name, w in weights.items()}
                return mean_at_fixed_choice(layer, m_in, moved_in, moved, regime)

            step = 1e-5
            truth = (output_mean(step) - output_mean(-step)) / (2 * step)
            torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-8)


def check_pullback_is_the_adjoint_of_tangent(layer, shape_in) -> None:
    """<tangent(d_in), slope> = <d_in, pullback(slope)> for any d_in and any of k slopes at once, weights held; with
    uncertain inputs and with known ones.
    """
    for dtype, rtol in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        for regime in REGIMES:
            swept = _sweep(layer, shape_in, dtype=dtype, regime=regime)
            generator = torch.Generator().manual_seed(2)
            d_in = torch.randn(swept.m_in.shape, generator=generator, dtype=torch.float64).to(dtype)
            slopes = torch.randn(4, *swept.m_out.shape, generator=generator, dtype=torch.float64).to(dtype)
            held = {name: torch.zeros_like(weight.mean) for name, weight in swept.weights.items()}
            for m_in in _inputs(swept):
                local = layer.sweep([m_in], swept.weights, regime)
                out = local.tangent([d_in], held)
                (pulled,) = local.pullback(slopes)
                assert out.shape == swept.m_out.shape
                assert pulled.shape == (4, *swept.m_in.shape) and pulled.dtype == dtype
                for slope, back in zip(slopes, pulled, strict=True):
                    above, below = (out * slope).sum(), (d_in * back).sum()
                    assert abs(above - below) <= rtol * (out * slope).abs().sum()
                for k in range(4):
                    torch.testing.assert_close(local.pullback(slopes[k : k + 1])[0], pulled[k : k + 1])


def check_noise_is_the_variance_that_does_not_come_from_own_weights(layer, shape_in) -> None:
    """With weights: what is left of the variance besides that of a known input. Without: the variance that independent
    changes at the input leave, to first order; for linear layers all that it leaves.
    """
    for regime in REGIMES:
        swept = _sweep(layer, shape_in, regime=regime)
        if swept.weights:
            known = layer.sweep([swept.m_in.mean], swept.weights, regime)
            torch.testing.assert_close(swept.local.noise([]), swept.m_out.var - known.m_out.var)
            torch.testing.assert_close(known.noise([]), torch.zeros_like(known.m_out.var))
            continue
        below = random_moments(swept.m_in.shape, torch.Generator().manual_seed(3)).var
        n_out = swept.m_out.mean[0].numel()
        each = torch.eye(n_out, dtype=torch.float64).view(n_out, 1, *swept.m_out.shape[1:])
        for m_in in _inputs(swept):
            local = layer.sweep([m_in], {}, regime)
            (jacobian,) = local.pullback(each.expand(n_out, *swept.m_out.shape))  # (o, b, ...)
            truth = (jacobian.square() * below).flatten(2).sum(2).t().reshape(swept.m_out.shape)
            torch.testing.assert_close(local.noise([below]), truth)
        if isinstance(layer, (Flatten, Pool2d)):
            torch.testing.assert_close(swept.local.noise([swept.m_in.var]), swept.m_out.var)
        if isinstance(layer, (Flatten, AvgPool2d)):
            left = layer.sweep([Moments(swept.m_in.mean, below)], {}, regime).m_out.var
            torch.testing.assert_close(swept.local.noise([below]), left)


def check_matrix_goes_there_and_back(layer, shape_in) -> None:
    """Every weight has one place in the matrix (o, i) of a gradient."""
    swept = _sweep(layer, shape_in)
    tensors = {name: weight.mean for name, weight in swept.weights.items()}
    matrix = layer.to_matrix(tensors)
    gradient = swept.local.gradient(torch.zeros(1, *swept.m_out.shape, dtype=torch.float64))
    assert matrix.shape == (gradient.slopes.shape[-1], gradient.inputs.shape[-1])
    again = layer.from_matrix(matrix)
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)
    other = torch.arange(matrix.numel(), dtype=torch.float64).view(matrix.shape)
    assert torch.equal(layer.to_matrix(layer.from_matrix(other)), other)


def check_gradient_is_the_jacobian_of_the_mean(layer, shape_in) -> None:
    """Against torch.func.jacrev of the output's mean in the weights' means, laid out as a matrix, mixed by the slopes;
    with uncertain inputs and with known ones.
    """
    for regime in REGIMES:
        swept = _sweep(layer, shape_in, regime=regime)
        matrix = layer.to_matrix({name: weight.mean for name, weight in swept.weights.items()})
        slopes = torch.randn(4, *swept.m_out.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        for m_in in _inputs(swept):

            def output_mean(matrix, m_in=m_in, swept=swept, regime=regime):
                means = layer.from_matrix(matrix)
                moved = {name: Moments(means[name], weight.var) for name, weight in swept.weights.items()}
                return layer.sweep([m_in], moved, regime).m_out.mean.flatten(1)

            jacobian = torch.func.jacrev(output_mean)(matrix)  # (b, z, o, i)
            truth = torch.einsum("kbz,bzoi->kboi", slopes.flatten(2), jacobian).flatten(2)
            local = layer.sweep([m_in], swept.weights, regime)
            gradient = local.gradient(slopes)
            torch.testing.assert_close(gradient.flat(), truth)
            parts = torch.einsum("kbpo,bpi->kboi", gradient.slopes, gradient.inputs).flatten(2)
            torch.testing.assert_close(parts, truth)
            inputs = gradient.inputs[:2].flatten(0, 1)
            torch.testing.assert_close(local.input_moments(n_examples=2), inputs.t() @ inputs / len(inputs))
            torch.testing.assert_close(local.slope_rows(slopes[:1]), gradient.slopes[0].flatten(0, 1))
            fewer = local.gradient(slopes, n_examples=2)
            assert torch.equal(fewer.inputs, gradient.inputs[:2]) and torch.equal(fewer.slopes, gradient.slopes)


def check_curvature_of_the_messages(layer, shape_in) -> None:
    """Per row: minus the derivative of the slope that a bias receives in its own mean, at marginals. Per weight: what
    uncertain inputs add, so nothing where they are known.
    """
    swept = _sweep(layer, shape_in)
    per_row, per_weight = swept.local.message_curvature(swept.m_back)
    n_rows = len(layer.to_matrix({name: weight.mean for name, weight in swept.weights.items()}))
    assert per_row.shape == (n_rows,) and per_weight.shape == () and (per_row > 0).all()
    assert per_weight > 0
    known = layer.sweep([swept.m_in.mean], swept.weights, MOMENTS)
    assert known.message_curvature(swept.m_back)[1] == 0
    if "bias" not in swept.weights:
        return

    def slope(step):
        bias = swept.weights["bias"]
        moved = {**swept.weights, "bias": Moments(bias.mean + step, bias.var)}
        message = layer.sweep([swept.m_in], moved, MOMENTS).back(swept.m_back)[1]["bias"]
        return message.tau - message.rho * moved["bias"].mean

    torch.testing.assert_close(per_row, (slope(-1e-5) - slope(1e-5)) / 2e-5, rtol=1e-6, atol=1e-8)


def mean_at_fixed_choice(layer, m_in, moved_in, weights, regime):
    """The output's mean; pools keep the weights of their windows at m_in, which the tangent takes as known."""
    if not isinstance(layer, Pool2d):
        return layer.sweep([moved_in], weights, regime).m_out.mean
    kernel = layer.kernel or (m_in.shape[2], m_in.shape[3])
    stride = layer.stride or kernel
    return (layer.pool(m_in, kernel, stride).share * gather_windows(moved_in.mean, kernel, stride)).sum(2)
