"""The fully connected layer: its form, priors and errors; for its messages see tests/equations/test_linear.py."""

import pytest
import torch

from bayesmp.equations.linear import EXACT_FAN_IN
from bayesmp.layers import Conv2d, Linear
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
    m_out = layer.to_output(m_in, weights)
    found, expected, opposite = (
        each.messages_back(m_in, m_out, m_back, weights)[1]["weight"]
        for each in (layer, forced, Linear(n_in, 2, exact=not same_as))
    )
    torch.testing.assert_close(found.rho, expected.rho)
    assert not torch.allclose(found.rho, opposite.rho)


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
