"""Weight priors: the scales they promise, reproducible draws, and users' own priors checked at the door."""

import math

import pytest
import torch

import bayesmp as bmp
from bayesmp.layers import Conv2d, Flatten, LeakyReLU, Linear, priors


@pytest.mark.parametrize("fan_in, n_out", [(100, 400), (400, 100), (9, 9)])
def test_starting_means_have_the_spectral_scale(fan_in, n_out):
    prior = priors.default_weight_prior(
        (200, 500), fan_in, n_out, is_first=False, generator=torch.Generator().manual_seed(0)
    )
    scale = min(1.0, math.sqrt(n_out / fan_in)) / math.sqrt(fan_in)
    assert prior.start.dtype == prior.belief.tau.dtype == torch.float64
    assert prior.start.std().item() == pytest.approx(scale, rel=0.01)
    assert abs(prior.start.mean().item()) < 0.02 * scale


def test_the_spectral_scale_gives_a_matrix_of_norm_of_order_one():
    """Its largest singular value is what the scale is named for, whatever the shape."""
    for fan_in, n_out in ((50, 400), (400, 50), (200, 200)):
        prior = priors.default_weight_prior(
            (n_out, fan_in), fan_in, n_out, is_first=False, generator=torch.Generator().manual_seed(0)
        )
        norm = torch.linalg.matrix_norm(prior.start, 2).item() / max(1.0, math.sqrt(n_out / fan_in))
        assert 0.3 < norm < 3.0


@pytest.mark.parametrize("fan_in", [1, 10, 784])
def test_first_layer_adds_the_stated_variance_to_a_unit_input(fan_in):
    assert fan_in * priors.weight_variance(fan_in, 100, is_first=True, rule="paper") == pytest.approx(1.5)


@pytest.mark.parametrize("is_first", [True, False])
def test_the_narrow_rule_is_the_papers_up_to_16_inputs_and_narrower_beyond(is_first):
    for fan_in, ratio in ((1, 1.0), (16, 1.0), (256, 16**-0.6), (16 * 10_000, 10**-2.4)):
        narrow, paper = (priors.weight_variance(fan_in, 50, is_first=is_first, rule=rule) for rule in priors.RULES)
        assert narrow / paper == pytest.approx(ratio)


@pytest.mark.parametrize("fan_in, ratio", [(3, 1.0), (16, 1.0), (64, 0.5), (1600, 0.1)])
def test_both_rules_start_alike_and_the_narrow_one_has_its_prior_means_nearer_to_zero(fan_in, ratio):
    narrow, paper = (
        priors.default_weight_prior(
            (4, fan_in), fan_in, 4, is_first=True, generator=torch.Generator().manual_seed(0), rule=rule
        )
        for rule in priors.RULES
    )
    assert torch.equal(narrow.start, paper.start)
    torch.testing.assert_close(paper.belief.mean, paper.start)
    torch.testing.assert_close(narrow.belief.mean, ratio * narrow.start)
    torch.testing.assert_close(narrow.belief.var / paper.belief.var, torch.full_like(narrow.start, ratio**1.2))


def prior_variances(network: bmp.Network) -> list[float]:
    """Of the first weight of each layer with weights."""
    return [own["weight"].flatten()[0].item() for own in network.unpack(network.prior.var) if own]


def test_behind_dense_layers_variances_are_the_papers_and_means_still_nearer_to_zero():
    """Otherwise the prior of the outputs would be the narrower, the wider the network is."""
    layers = [Linear(64, 256), LeakyReLU(0.1), Linear(256, 256), LeakyReLU(0.1), Linear(256, 4)]
    default, paper = (bmp.Network(layers, bmp.Argmax(), prior=rule) for rule in priors.RULES)
    ratios = [a / b for a, b in zip(prior_variances(default), prior_variances(paper), strict=True)]
    assert ratios == pytest.approx([4**-0.6, 1.0, 1.0], rel=1e-5)
    means = [own["weight"] for own in default.unpack(default.prior.mean) if own]
    starts = [own["weight"] for own in default.unpack(default.start) if own]
    for mean, start, ratio in zip(means, starts, (0.5, 0.25, 0.25), strict=True):
        torch.testing.assert_close(mean, ratio * start.to(mean))


def test_with_convolutions_all_variances_are_narrow():
    layers = [Conv2d(1, 4, 5), LeakyReLU(0.1), Flatten(), Linear(256, 64), LeakyReLU(0.1), Linear(64, 3)]
    default, paper = (bmp.Network(layers, bmp.Argmax(), input_shape=(1, 12, 12), prior=rule) for rule in priors.RULES)
    ratios = [a / b for a, b in zip(prior_variances(default), prior_variances(paper), strict=True)]
    assert ratios == pytest.approx([(16 / 25) ** 0.6, 16**-0.6, 4**-0.6], rel=1e-5)


@pytest.mark.parametrize("width", [8, 64, 512])
def test_the_prior_predictive_is_of_order_one_through_a_hidden_layer(width):
    """Two layers on standard normal inputs: the output varies by neither a tenth nor ten times."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 20, generator=generator, dtype=torch.float64)
    m = x
    for index, layer in enumerate((Linear(20, width), LeakyReLU(0.1), Linear(width, 10))):
        shape = tuple(m.shape[1:])
        made = layer.weight_priors(shape, is_first=index == 0, generator=generator)
        m = layer.sweep([m], {name: prior.belief.moments() for name, prior in made.items()}).m_out
    total = (m.var + m.mean.square()).mean().item()
    assert 0.3 < total < 10.0


@pytest.mark.parametrize("fan_in, n_out", [(1, 1), (1, 10_000), (10_000, 1), (4608, 512)])
@pytest.mark.parametrize("is_first", [True, False])
def test_variances_are_positive_for_any_shape(fan_in, n_out, is_first):
    assert 0.0 < priors.weight_variance(fan_in, n_out, is_first=is_first) <= 1.5


def test_draws_follow_the_generator():
    def draw(seed):
        return priors.default_weight_prior(
            (3, 4), 4, 3, is_first=True, generator=torch.Generator().manual_seed(seed)
        ).start

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))


def test_bias_prior_is_centred():
    prior = priors.default_bias_prior((5,))
    assert (prior.belief.mean == 0).all() and (prior.start == 0).all()
    torch.testing.assert_close(prior.belief.var, torch.full((5,), priors.BIAS_VAR, dtype=torch.float64))


@pytest.mark.parametrize(
    "prior", [(0.5, 2.0), (torch.arange(3.0), 2.0), (0.5, torch.full((2, 3), 2.0)), (torch.zeros(2, 1), 1)]
)
def test_a_given_prior_is_broadcast_and_training_starts_at_its_mean(prior):
    found = priors.given_prior(prior, (2, 3), "weight_prior")
    mean, var = (torch.as_tensor(part, dtype=torch.float64).expand(2, 3) for part in prior)
    torch.testing.assert_close(found.belief.mean, mean)
    torch.testing.assert_close(found.belief.var, var)
    assert torch.equal(found.start, mean)


@pytest.mark.parametrize(
    "prior, complaint",
    [
        ((0.0, 0.0), "positive"),
        ((0.0, -1.0), "positive"),
        ((math.nan, 1.0), "finite"),
        ((0.0, math.inf), "finite"),
        ((torch.zeros(4), 1.0), "broadcastable"),
        ((0.0,), "pair"),
        ((0.0, 1.0, 2.0), "pair"),
        (3.0, "pair"),
        (("a", 1.0), "pair"),
    ],
)
def test_a_wrong_prior_is_refused_by_name(prior, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        priors.given_prior(prior, (2, 3), "weight_prior of Linear(3, 2)")
    assert "weight_prior of Linear(3, 2)" in str(caught.value)
