"""The contract every layer must pass: check_layer(layer, shape_in)."""

from __future__ import annotations

import torch

from bayesmp.gaussian import Gaussian, Moments
from bayesmp.layers.base import Layer, Weights
from bayesmp.layers.pooling import Pool2d
from bayesmp.layers.windows import gather_windows

torch.set_num_threads(1)


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


def _sweep(layer, shape_in, *, dtype=torch.float64, at_cavity=False, batch=3):
    """(m_in, weights, m_out, m_back, to_input, to_weights) with random non-trivial values."""
    generator = torch.Generator().manual_seed(0)
    m_in, weights = random_moments((batch, *shape_in), generator), random_weights(layer, generator)
    m_back = random_message((batch, *layer.output_shape(shape_in)), generator)
    m_in, m_back = m_in.map(lambda part: part.to(dtype)), m_back.map(lambda part: part.to(dtype))
    weights = {name: weight.map(lambda part: part.to(dtype)) for name, weight in weights.items()}
    m_out = layer.to_output(m_in, weights)
    return m_in, weights, m_out, m_back, *layer.messages_back(m_in, m_out, m_back, weights, at_cavity=at_cavity)


def check_shapes_and_dtypes(layer, shape_in) -> None:
    for dtype in (torch.float32, torch.float64):
        for at_cavity in (False, True):
            m_in, weights, m_out, m_back, to_input, to_weights = _sweep(
                layer, shape_in, dtype=dtype, at_cavity=at_cavity
            )
            assert m_out.mean.shape == m_out.var.shape == m_back.shape
            assert to_input.tau.shape == to_input.rho.shape == m_in.shape
            assert {name: tuple(to_weights[name].shape) for name in to_weights} == layer.weight_shapes()
            tensors = [m_out.mean, m_out.var, to_input.tau, to_input.rho]
            tensors += [part for message in to_weights.values() for part in (message.tau, message.rho)]
            assert all(part.dtype == dtype and part.isfinite().all() for part in tensors)
            assert (m_out.var >= 0).all() and (to_input.rho >= 0).all()
            assert all((message.rho >= 0).all() for message in to_weights.values())
            renewed = layer.to_output(m_in, weights, m_back)  # a message known from an earlier sweep may be used or not
            assert renewed.shape == m_out.shape and renewed.mean.dtype == dtype


def check_float32_agrees_with_float64(layer, shape_in) -> None:
    single, double = (_sweep(layer, shape_in, dtype=dtype) for dtype in (torch.float32, torch.float64))
    for found, truth in (
        (single[2], double[2]),
        (single[4], double[4]),
        *((single[5][k], double[5][k]) for k in double[5]),
    ):
        first, second = ("mean", "var") if isinstance(truth, Moments) else ("tau", "rho")
        for name in (first, second):
            torch.testing.assert_close(getattr(found, name).double(), getattr(truth, name), rtol=1e-3, atol=1e-4)


def check_examples_are_independent(layer, shape_in) -> None:
    """Forward and backward messages of an example do not depend on its batch; messages to weights multiply."""
    for at_cavity in (False, True):
        m_in, weights, m_out, m_back, to_input, to_weights = _sweep(layer, shape_in, at_cavity=at_cavity)
        product = {name: Gaussian.nothing(message.tau) for name, message in to_weights.items()}
        for part in (slice(0, 1), slice(1, 3)):
            own_in, own_back = m_in.map(lambda x, part=part: x[part]), m_back.map(lambda x, part=part: x[part])
            own_out = layer.to_output(own_in, weights)
            own_to_input, own_to_weights = layer.messages_back(own_in, own_out, own_back, weights, at_cavity=at_cavity)
            torch.testing.assert_close(own_out.mean, m_out.mean[part])
            torch.testing.assert_close(own_out.var, m_out.var[part])
            torch.testing.assert_close(own_to_input.tau, to_input.tau[part])
            torch.testing.assert_close(own_to_input.rho, to_input.rho[part])
            product = {name: product[name] * own_to_weights[name] for name in product}
        for name, message in to_weights.items():
            torch.testing.assert_close(product[name].tau, message.tau)
            torch.testing.assert_close(product[name].rho, message.rho)


def check_known_input_is_the_limit_of_a_sharp_one(layer, shape_in) -> None:
    """A plain tensor and Moments of variance 0 give the same output, and the same messages to weights."""
    if getattr(layer, "noise", 0.0) > 0.0:
        return  # a max pool compares uncertain entries with noise and known ones without: another factor, on purpose
    m_in, weights, _, m_back, _, _ = _sweep(layer, shape_in)
    known, sharp = m_in.mean, Moments(m_in.mean, torch.zeros_like(m_in.var))
    out_known, out_sharp = layer.to_output(known, weights), layer.to_output(sharp, weights)
    if not isinstance(out_known, Moments):
        torch.testing.assert_close(out_known, out_sharp.mean)
        torch.testing.assert_close(out_sharp.var, torch.zeros_like(out_known))
        return
    torch.testing.assert_close(out_known.mean, out_sharp.mean)
    torch.testing.assert_close(out_known.var, out_sharp.var)
    for at_cavity in (False, True):
        to_input, from_known = layer.messages_back(known, out_known, m_back, weights, at_cavity=at_cavity)
        _, from_sharp = layer.messages_back(sharp, out_sharp, m_back, weights, at_cavity=at_cavity)
        assert to_input is None
        for name in from_known:
            torch.testing.assert_close(from_known[name].tau, from_sharp[name].tau)
            torch.testing.assert_close(from_known[name].rho, from_sharp[name].rho)


def check_tangent_is_the_derivative_of_the_mean(layer, shape_in) -> None:
    """Against central differences of to_output's mean, in the input and the weights together, and in each alone."""
    m_in, weights, m_out, _, _, _ = _sweep(layer, shape_in)
    generator = torch.Generator().manual_seed(1)
    d_in = torch.randn(m_in.shape, generator=generator, dtype=torch.float64)
    d_weights = {
        name: torch.randn(weight.shape, generator=generator, dtype=torch.float64) for name, weight in weights.items()
    }
    for moves_input, moves_weights in ((True, True), (True, False), (False, True)):
        own_in = d_in if moves_input else None
        own_weights = {name: d if moves_weights else torch.zeros_like(d) for name, d in d_weights.items()}
        found = layer.tangent(m_in, m_out, own_in, weights, own_weights)
        if not moves_input and not weights:
            assert found is None
            continue

        def output_mean(step, own_in=own_in, own_weights=own_weights):
            moved_in = m_in if own_in is None else Moments(m_in.mean + step * own_in, m_in.var)
            moved = {name: Moments(w.mean + step * own_weights[name], w.var) for name, w in weights.items()}
            return mean_at_fixed_choice(layer, m_in, moved_in, moved)

        step = 1e-5
        torch.testing.assert_close(found, (output_mean(step) - output_mean(-step)) / (2 * step), rtol=1e-6, atol=1e-8)


def check_pullback_is_the_adjoint_of_tangent(layer, shape_in) -> None:
    """<tangent(d_in), slope> = <d_in, pullback(slope)> for any d_in and slope, weights held."""
    for dtype, rtol in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        m_in, weights, m_out, _, _, _ = _sweep(layer, shape_in, dtype=dtype)
        generator = torch.Generator().manual_seed(2)
        d_in = torch.randn(m_in.shape, generator=generator, dtype=torch.float64).to(dtype)
        slope = torch.randn(m_out.shape, generator=generator, dtype=torch.float64).to(dtype)
        held = {name: torch.zeros_like(weight.mean) for name, weight in weights.items()}
        out = layer.tangent(m_in, m_out, d_in, weights, held)
        back = layer.pullback(m_in, m_out, slope, weights)
        assert out.shape == m_out.shape and back.shape == m_in.shape and back.dtype == dtype
        above, below = (out * slope).sum(), (d_in * back).sum()
        assert abs(above - below) <= rtol * (out * slope).abs().sum()


def mean_at_fixed_choice(layer, m_in, moved_in, weights):
    """The output's mean; pools keep the weights of their windows at m_in, which the tangent takes as known."""
    if not isinstance(layer, Pool2d):
        return layer.to_output(moved_in, weights).mean
    kernel = layer.kernel or (m_in.shape[2], m_in.shape[3])
    windows, moved = (m.map(lambda x: gather_windows(x, kernel, layer.stride or kernel)) for m in (m_in, moved_in))
    return (layer.pool(windows).share * moved.mean).sum(2)
