"""Pools against weighted sums of slices taken by hand, for any window: disjoint, overlapping, global."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

from bayesmp.layers import AvgPool2d, MaxPool2d
from bayesmp.messages.gaussian import Moments
from bayesmp.messages.weighted_sum import largest_probabilities
from tests.layers.contract import random_message, random_moments
from tests.messages.truth import assert_message, condition_on_sum, numbers

GEOMETRIES = [  # kernel, stride, image
    (2, None, (4, 6)),
    (2, None, (5, 5)),
    ((3, 2), None, (6, 5)),
    (3, 1, (5, 4)),
    ((2, 3), (1, 2), (4, 7)),
    (2, 3, (5, 5)),
    (None, None, (3, 4)),
]


def windows(layer, size):
    """(output position, slices of the image) of each window."""
    kernel = layer.kernel or size
    stride = layer.stride or kernel
    _, rows, columns = layer.output_shape((1, *size))
    for row, column in itertools.product(range(rows), range(columns)):
        top, left = row * stride[0], column * stride[1]
        yield (row, column), (slice(top, top + kernel[0]), slice(left, left + kernel[1]))


@pytest.mark.parametrize("kernel, stride, size", GEOMETRIES)
@pytest.mark.parametrize("kind", [AvgPool2d, MaxPool2d])
def test_messages_are_those_of_a_weighted_sum_per_window(kind, kernel, stride, size):
    """Conditioning by hand in each window; messages of overlapping windows multiply."""
    layer, generator = kind(kernel, stride=stride), torch.Generator().manual_seed(0)
    m_in = random_moments((2, 2, *size), generator)
    m_back = random_message((2, *layer.output_shape((2, *size))), generator)
    local = layer.sweep([m_in], {})
    m_out, ((to_input,), to_weights) = local.m_out, local.back(m_back)
    assert to_weights == {}
    truth = np.zeros((2, *m_in.shape))
    for (n, c), (where, area) in itertools.product(np.ndindex(2, 2), windows(layer, size)):
        entries = m_in.map(lambda part, n=n, c=c, area=area: part[n, c][area].flatten())
        mean, var = numbers(entries.mean), numbers(entries.var)
        a = np.full(len(mean), 1.0 / len(mean))
        if kind is MaxPool2d:
            a = numbers(largest_probabilities(entries, noise=0.3, dim=0))
        assert m_out.mean[n, c][where].item() == pytest.approx(a @ mean)
        assert m_out.var[n, c][where].item() == pytest.approx(a**2 @ var)
        message = condition_on_sum(a, mean, var, *(numbers(part[n, c][where]) for part in (m_back.tau, m_back.rho)))
        for part, values in zip(truth, message, strict=True):
            part[n, c][area] += values.reshape(part[n, c][area].shape)
    assert_message(to_input, *truth, rtol=1e-8)


@pytest.mark.parametrize("kernel, stride, size", GEOMETRIES)
def test_known_values_are_pooled_as_torch_does(kernel, stride, size):
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    window = size if kernel is None else kernel
    for layer, expected in (
        (AvgPool2d(kernel, stride=stride), functional.avg_pool2d(x, window, stride)),
        (MaxPool2d(kernel, stride=stride), functional.max_pool2d(x, window, stride)),
    ):
        torch.testing.assert_close(layer.sweep([x], {}).m_out, expected)
        assert layer.output_shape((3, *size)) == expected.shape[1:]


def test_max_pool_of_a_clear_winner_is_the_winner():
    x = torch.tensor([[[[0.0, 100.0], [-50.0, 3.0]]]], dtype=torch.float64)
    m_in = random_moments(x.shape, torch.Generator().manual_seed(0))
    m_out = MaxPool2d(2).sweep([Moments(x, m_in.var)], {}).m_out
    assert m_out.mean.item() == pytest.approx(100.0)
    assert m_out.var.item() == pytest.approx(m_in.var[0, 0, 0, 1].item())


def test_more_noise_makes_the_max_softer():
    m_in = random_moments((1, 1, 4, 4), torch.Generator().manual_seed(0))
    means = [MaxPool2d(4, noise=noise).sweep([m_in], {}).m_out.mean.item() for noise in (0.0, 0.3, 3.0, 1e12)]
    assert means == sorted(means, reverse=True)
    assert means[-1] == pytest.approx(AvgPool2d(4).sweep([m_in], {}).m_out.mean.item(), abs=1e-4)


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="global pool"):
        MaxPool2d(stride=2)
    with pytest.raises(ValueError, match="noise is a variance"):
        MaxPool2d(2, noise=-0.1)
    with pytest.raises(ValueError, match="images of shape"):
        AvgPool2d(2).output_shape((4,))
    with pytest.raises(ValueError, match="does not fit"):
        AvgPool2d(5).output_shape((1, 4, 4))
