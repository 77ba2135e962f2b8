"""The fully connected layer: its form, priors and errors; for its messages see tests/equations/test_linear.py."""

import pytest
import torch

from bayesmp.equations.linear import EXACT_FAN_IN
from bayesmp.layers import Conv2d, Linear
from bayesmp.layers.base import Memory
from bayesmp.regime import EXAMPLE_BY_EXAMPLE, LINEAR, MOMENTS
from tests.layers.contract import random_message, random_moments, random_weights


@pytest.mark.parametrize(
    "n_in, exact, expected",
    [(EXACT_FAN_IN, None, True), (EXACT_FAN_IN + 1, None, False), (EXACT_FAN_IN, False, False), (999, True, True)],
)
def test_small_fan_in_takes_the_exact_form(n_in, exact, expected):
    assert Linear(n_in, 2, exact=exact).is_exact is expected


@pytest.mark.parametrize("n_in, same_as", [(EXACT_FAN_IN, True), (EXACT_FAN_IN + 1, False)])
def test_the_rule_reaches_the_messages(n_in, same_as):
    generator = torch.Generator().manual_seed(0)
    layer, forced = Linear(n_in, 2), Linear(n_in, 2, exact=same_as)
    m_in, weights = random_moments((3, n_in), generator), random_weights(layer, generator)
    m_back = random_message((3, 2), generator)
    found, expected, opposite = (
        each.sweep([m_in], weights).back(m_back)[1]["weight"]
        for each in (layer, forced, Linear(n_in, 2, exact=not same_as))
    )
    torch.testing.assert_close(found.rho, expected.rho)
    assert not torch.allclose(found.rho, opposite.rho)


@pytest.mark.parametrize("n_in", [EXACT_FAN_IN, EXACT_FAN_IN + 1])
def test_cavities_always_take_the_exact_form(n_in):
    generator = torch.Generator().manual_seed(0)
    m_in, weights = random_moments((3, n_in), generator), random_weights(Linear(n_in, 2), generator)
    m_back = random_message((3, 2), generator)
    one, other = (
        Linear(n_in, 2, exact=exact).sweep([m_in], weights, EXAMPLE_BY_EXAMPLE).back(m_back)[1]["weight"]
        for exact in (True, False)
    )
    assert torch.equal(one.tau, other.tau) and torch.equal(one.rho, other.rho)


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


def test_without_input_noise_weights_see_means_and_sums_keep_the_variance():
    generator = torch.Generator().manual_seed(0)
    layer = Linear(EXACT_FAN_IN + 1, 2)
    m_in, weights = random_moments((3, layer.n_in), generator), random_weights(layer, generator)
    m_back = random_message((3, 2), generator)
    noisy, quiet = (layer.sweep([m_in], weights, regime) for regime in (MOMENTS, LINEAR))
    assert torch.equal(noisy.m_out.var, quiet.m_out.var) and torch.equal(noisy.m_out.input_var, quiet.m_out.input_var)
    rho, added = quiet.back(m_back)[1]["weight"].rho, m_back.rho / (1.0 + m_back.rho * quiet.m_out.var)
    torch.testing.assert_close(noisy.back(m_back)[1]["weight"].rho - rho, added.t() @ m_in.var)


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
