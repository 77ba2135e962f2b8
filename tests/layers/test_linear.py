"""The fully connected layer: its form, priors and errors; for its messages see tests/messages/test_linear.py."""

import pytest
import torch

from bayesmp.layers import Conv2d, Linear
from bayesmp.layers.base import Memory
from bayesmp.messages import linear as equations
from bayesmp.messages.linear_maps import DenseMap
from bayesmp.messages.regime import EXAMPLE_BY_EXAMPLE, MOMENTS
from tests.layers.contract import random_message, random_moments, random_weights


@pytest.mark.parametrize("n_in", [1, 16, 33, 100])
@pytest.mark.parametrize("is_known", [True, False])
def test_cavities_take_each_term_apart_and_marginals_the_matrix_form_at_any_fan_in(n_in, is_known):
    """There is no switch any more: what a layer does was once another form up to 32 inputs."""
    generator = torch.Generator().manual_seed(0)
    layer, dense = Linear(n_in, 2), DenseMap()
    m_in, weights = random_moments((3, n_in), generator), random_weights(layer, generator)
    m_back, m_in = random_message((3, 2), generator), m_in.mean if is_known else m_in
    weight, bias = weights["weight"], weights["bias"]
    z = equations.linear_to_output(dense, m_in, weight, bias)

    (to_input,), found = layer.sweep([m_in], weights, EXAMPLE_BY_EXAMPLE).back(m_back)
    to_weight, expected_input = equations.exact_back(dense, m_in, weight, z, m_back)
    to_bias = equations.linear_to_bias(dense, bias, z, m_back)
    assert_same_messages((to_input, found["weight"], found["bias"]), (expected_input, to_weight, to_bias))

    (to_input,), found = layer.sweep([m_in], weights, MOMENTS).back(m_back)
    back = equations.residual(z, m_back)
    matrix_input = None if is_known else equations.linear_to_input(dense, m_in, weight, back)
    matrix_weight = equations.linear_to_weight(dense, m_in, weight, back)
    assert_same_messages((to_input, found["weight"]), (matrix_input, matrix_weight))
    assert not torch.allclose(matrix_weight.rho, to_weight.rho), "or the two forms are not told apart"


def assert_same_messages(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one.tau, other.tau)
            torch.testing.assert_close(one.rho, other.rho)


def test_a_message_remembered_at_the_input_makes_its_marginal():
    """A product factor takes the input as all others have it; a known input has nothing to be made of."""
    generator = torch.Generator().manual_seed(0)
    layer, m_in = Linear(4, 2), random_moments((3, 4), generator)
    weights, (at_input, m_back) = random_weights(layer, generator), (random_message((3, n), generator) for n in (4, 2))
    found = layer.sweep([m_in], weights, EXAMPLE_BY_EXAMPLE, Memory(at_input=at_input, at_output=m_back))
    expected = layer.sweep([m_in * at_input], weights, EXAMPLE_BY_EXAMPLE)
    for name in ("mean", "var", "input_var"):
        assert torch.equal(getattr(found.m_out, name), getattr(expected.m_out, name))
    for one, other in zip(found.back(m_back)[0], expected.back(m_back)[0], strict=True):
        assert torch.equal(one.tau, other.tau) and torch.equal(one.rho, other.rho)
    known = layer.sweep([m_in.mean], weights, EXAMPLE_BY_EXAMPLE, Memory(at_input=at_input)).m_out
    assert torch.equal(known.mean, layer.sweep([m_in.mean], weights).m_out.mean)


@pytest.mark.parametrize("layer, shape_in", [(Linear(6, 4), (6,)), (Conv2d(2, 4, 3), (2, 5, 5))])
def test_priors_have_the_weights_shapes_and_a_given_one_is_taken(layer, shape_in):
    made = layer.weight_priors(shape_in, is_first=True, generator=torch.Generator().manual_seed(0))
    for part in ("belief", "start"):
        assert {name: tuple(getattr(prior, part).shape) for name, prior in made.items()} == layer.weight_shapes()
    layer.weight_prior, layer.bias_prior = (0.5, 0.2), (torch.full((4,), -1.0), 2.0)
    given = layer.weight_priors(shape_in, is_first=True, generator=torch.Generator().manual_seed(0))
    for name, mean, var in (("weight", 0.5, 0.2), ("bias", -1.0, 2.0)):
        belief, start = given[name].belief, given[name].start
        torch.testing.assert_close(belief.mean, torch.full_like(start, mean))
        torch.testing.assert_close(belief.var, torch.full_like(start, var))
        assert (start == mean).all(), "training starts at a given mean"
    layer.weight_prior = layer.bias_prior = None


def test_a_given_prior_does_not_change_the_draws_of_later_layers():
    later = []
    for prior in (None, (0.0, 1.0)):
        generator = torch.Generator().manual_seed(0)
        Linear(3, 4, weight_prior=prior).weight_priors((3,), is_first=True, generator=generator)
        later.append(Linear(4, 2).weight_priors((4,), is_first=False, generator=generator)["weight"].start)
    assert torch.equal(*later)


@pytest.mark.parametrize("shape_in, hint", [((4,), r"\(5,\)"), ((1, 5), "Flatten"), ((2, 3, 4), "Flatten")])
def test_a_wrong_input_is_refused_with_what_fits(shape_in, hint):
    with pytest.raises(ValueError, match=hint):
        Linear(5, 2).output_shape(shape_in)


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-1, 2), (2.5, 3), (True, 3)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="positive integer"):
        Linear(*sizes)
