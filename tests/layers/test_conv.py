"""Convolution against its explicit dense equivalent (matrix form) and against patches done by hand (exact form)."""

import itertools

import numpy as np
import pytest
import torch

from bayesmp.layers import Conv2d
from bayesmp.messages import linear as equations
from bayesmp.messages.gaussian import Moments
from bayesmp.messages.linear_maps import DenseMap
from bayesmp.messages.regime import EXAMPLE_BY_EXAMPLE
from tests.layers.contract import random_message, random_moments, random_weights
from tests.messages.truth import assert_message, condition_on_sum, inner_product_messages, numbers

GEOMETRIES = {
    "plain": ({"kernel": 3}, (5, 4)),
    "odd": ({"kernel": (2, 3)}, (4, 5)),
    "stride leaves a rest": ({"kernel": 3, "stride": 2}, (6, 5)),
    "padding": ({"kernel": 3, "padding": 1}, (3, 4)),
    "all different": ({"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0)}, (5, 4)),
    "1x1": ({"kernel": 1}, (2, 3)),
    "stride beyond kernel": ({"kernel": 2, "stride": 3}, (5, 5)),
}
BATCH, C_IN, C_OUT = 2, 2, 3


def setting(name):
    options, size = GEOMETRIES[name]
    layer = Conv2d(C_IN, C_OUT, **options)
    generator = torch.Generator().manual_seed(0)
    m_in, weights = random_moments((BATCH, C_IN, *size), generator), random_weights(layer, generator)
    return layer, m_in, weights, random_message((BATCH, *layer.output_shape((C_IN, *size))), generator)


def taps(layer, size):
    """(output position, weight position, input pixel) of every product of the convolution that is not padding."""
    _, rows, columns = layer.output_shape((C_IN, *size))
    for row, column, i, j in itertools.product(range(rows), range(columns), *map(range, layer.kernel)):
        y, x = row * layer.stride[0] + i - layer.padding[0], column * layer.stride[1] + j - layer.padding[1]
        if 0 <= y < size[0] and 0 <= x < size[1]:
            yield (row, column), (i, j), (y, x)


def dense_equivalent(layer, size, kernel_values):
    """(outputs, inputs) matrix that holds the kernel's value wherever it is used."""
    _, rows, columns = layer.output_shape((C_IN, *size))
    matrix = torch.zeros(C_OUT, rows, columns, C_IN, *size, dtype=torch.float64)
    for (row, column), (i, j), (y, x) in taps(layer, size):
        matrix[:, row, column, :, y, x] = kernel_values[:, :, i, j]
    return matrix.view(C_OUT * rows * columns, -1)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_matrix_form_is_that_of_the_dense_layer_with_tied_weights(name, known):
    layer, m_in, weights, m_back = setting(name)
    size, dense = m_in.shape[2:], DenseMap()
    incoming = m_in.mean if known else m_in
    local = layer.sweep([incoming], weights)
    m_out, ((to_input,), to_weights) = local.m_out, local.back(m_back)

    n_positions = m_out.mean[0, 0].numel()
    matrix = weights["weight"].map(lambda part: dense_equivalent(layer, size, part))
    tied = weights["bias"].map(lambda part: part.repeat_interleave(n_positions))
    flat_in = incoming.flatten(1) if known else incoming.map(lambda part: part.flatten(1))
    z = equations.linear_to_output(dense, flat_in, matrix, tied)
    torch.testing.assert_close(m_out.mean.flatten(1), z.mean)
    torch.testing.assert_close(m_out.var.flatten(1), z.var)

    back = equations.residual(z, m_back.map(lambda part: part.flatten(1)))
    per_use = equations.linear_to_weight(dense, flat_in, matrix, back)
    per_use = per_use.map(lambda part: part.view(C_OUT, *m_out.shape[2:], C_IN, *size))
    expected = {part: torch.zeros_like(weights["weight"].mean) for part in ("tau", "rho")}
    for (row, column), (i, j), (y, x) in taps(layer, size):
        for part, total in expected.items():
            total[:, :, i, j] += getattr(per_use, part)[:, row, column, :, y, x]
    assert_message(to_weights["weight"], expected["tau"], expected["rho"], rtol=1e-9)
    flat_back = m_back.map(lambda part: part.flatten(1))
    sums = equations.unit_sums(dense, tied.var, z, flat_back, back.to_weight)
    tau, rho = (part.view(C_OUT, -1).sum(1) for part in (sums.slope + tied.mean * sums.rho, sums.rho))
    assert_message(to_weights["bias"], tau, rho, rtol=1e-9)
    if not known:
        flat = equations.linear_to_input(dense, flat_in, matrix, back)
        assert_message(to_input, flat.tau.view(m_in.shape), flat.rho.view(m_in.shape), rtol=1e-9)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_exact_form_at_cavities_is_the_inner_product_of_each_patch(name):
    layer, m_in, weights, m_back = setting(name)
    (to_input,), to_weights = layer.sweep([m_in], weights, EXAMPLE_BY_EXAMPLE).back(m_back)
    a, va = numbers(m_in.mean), numbers(m_in.var)
    w, vw, b, vb = map(numbers, (*_parts(weights["weight"]), *_parts(weights["bias"])))
    true_input, true_weight, true_bias = np.zeros((2, *a.shape)), np.zeros((2, *w.shape)), np.zeros((2, *b.shape))
    of_position = {}
    for where, tap, pixel in taps(layer, a.shape[2:]):
        of_position.setdefault(where, []).append((tap, pixel))
    for (n, o), (where, uses) in itertools.product(np.ndindex(BATCH, C_OUT), of_position.items()):
        pixels = [(n, c, *pixel) for c in range(C_IN) for _, pixel in uses]
        kernel = [(o, c, *tap) for c in range(C_IN) for tap, _ in uses]
        am, av = (np.array([part[at] for at in pixels]) for part in (a, va))
        wm, wv = (np.array([part[at] for at in kernel]) for part in (w, vw))
        tau, rho = (numbers(part[n, o])[where] for part in (m_back.tau, m_back.rho))
        to_a, to_w = inner_product_messages(am, av, wm, wv, b[o], vb[o], tau, rho)
        for at, message in zip(pixels, to_a.T, strict=True):
            true_input[(slice(None), *at)] += message
        for at, message in zip(kernel, to_w.T, strict=True):
            true_weight[(slice(None), *at)] += message
        rest_var = (av * wm**2 + (am**2 + av) * wv).sum()
        sums = condition_on_sum(np.ones(2), np.array([b[o], am @ wm]), np.array([vb[o], rest_var]), tau, rho)
        true_bias[:, o] += sums[0][0], sums[1][0]
    assert_message(to_input, *true_input, rtol=1e-9)
    assert_message(to_weights["weight"], *true_weight, rtol=1e-9)
    assert_message(to_weights["bias"], *true_bias, rtol=1e-9)


def _parts(moments: Moments):
    return moments.mean, moments.var


def test_a_kernel_as_large_as_the_image_is_a_dense_layer():
    generator = torch.Generator().manual_seed(3)
    layer = Conv2d(2, 3, (3, 4))
    m_in, weights = random_moments((2, 2, 3, 4), generator), random_weights(layer, generator)
    m_back = random_message((2, 3, 1, 1), generator)
    (to_input,), to_weights = layer.sweep([m_in], weights, EXAMPLE_BY_EXAMPLE).back(m_back)
    flat_in, flat_back = m_in.map(lambda x: x.flatten(1)), m_back.map(lambda x: x.flatten(1))
    flat_weight, dense = weights["weight"].map(lambda x: x.flatten(1)), DenseMap()
    z = equations.linear_to_output(dense, flat_in, flat_weight, weights["bias"])
    terms = equations.exact_terms(dense, flat_in, flat_weight, z, flat_back)
    flat = equations.exact_to_input(dense, flat_weight, terms)
    assert_message(to_input.map(lambda x: x.flatten(1)), flat.tau, flat.rho, rtol=1e-10)
    flat = equations.exact_to_weight(dense, flat_in, flat_weight, terms)
    assert_message(to_weights["weight"].map(lambda x: x.flatten(1)), flat.tau, flat.rho, rtol=1e-10)


@pytest.mark.parametrize("shape_in", [(3, 5, 5), (2, 5), (2, 2, 5)])
def test_a_wrong_image_is_refused_with_what_fits(shape_in):
    with pytest.raises(ValueError, match=r"Conv2d\(2, 3, 3\)"):
        Conv2d(2, 3, 3).output_shape(shape_in)


@pytest.mark.parametrize("arguments", [(0, 1, 3), (1, 0, 3), (1, 1, 0)])
def test_impossible_sizes_are_refused(arguments):
    with pytest.raises(ValueError, match=r"positive integer|must be an int"):
        Conv2d(*arguments)
