"""Softmax and Argmax heads: probabilities, entropy, and the link scale learned on training data."""

import math

import pytest
import torch

import bayesmp as bmp
from bayesmp.heads import Argmax, ClassPrediction, Softmax
from bayesmp.messages.gaussian import Moments
from bayesmp.messages.likelihood import argmax_predictive, softmax_predictive
from tests.heads.contract import covariances, outputs
from tests.helpers import blobs, mlp


@pytest.mark.parametrize("head", [Softmax(), Softmax(scale=3.0), Argmax(), Argmax(scale=None), Argmax(scale=0.5)])
def test_probabilities_are_probabilities_and_keep_the_order_of_sharp_outputs(head):
    m_out = outputs((50, 4), torch.float64)
    sharp = Moments(m_out.mean, 1e-6 * m_out.var)
    for moments in (m_out, sharp):
        predicted = head.predict(moments, head.prior_log_weights())
        assert (predicted.probs >= 0).all()
        torch.testing.assert_close(predicted.probs.sum(1), torch.ones(50, dtype=torch.float64))
        assert torch.equal(predicted.label, predicted.probs.argmax(1))
    assert torch.equal(predicted.label, m_out.mean.argmax(1))


@pytest.mark.parametrize("head", [Softmax(), Softmax(scale=3.0), Argmax(), Argmax(scale=None)])
def test_ignorance_about_the_outputs_makes_probabilities_even(head):
    m_out = Moments(torch.tensor([[1.0, -1.0, 0.3]]), torch.full((1, 3), 1e8))
    predicted = head.predict(m_out, head.prior_log_weights().float())
    torch.testing.assert_close(predicted.probs, torch.full((1, 3), 1 / 3), rtol=1e-2, atol=0.0)
    assert predicted.entropy.item() == pytest.approx(math.log(3), abs=1e-3)


def test_entropy_of_known_distributions():
    probs = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25] * 4, [0.5, 0.5, 0.0, 0.0]])
    entropy = ClassPrediction(probs, probs, probs, torch.zeros(3)).entropy
    torch.testing.assert_close(entropy, torch.tensor([0.0, math.log(4), math.log(2)]))


def test_scale_none_gives_the_plain_predictives():
    m_out = outputs((20, 4), torch.float64)
    certain = torch.zeros(1, dtype=torch.float64)
    torch.testing.assert_close(Softmax(scale=None, gain=1.0).predict(m_out, certain).probs, softmax_predictive(m_out))
    scaled = softmax_predictive(Moments(3.0 * m_out.mean, 9.0 * m_out.var))
    torch.testing.assert_close(Softmax(scale=None, gain=3.0).predict(m_out, certain).probs, scaled)
    plain = argmax_predictive(m_out, noise=0.7)
    torch.testing.assert_close(Argmax(scale=None, noise=0.7).predict(m_out, certain).probs, plain)


def test_a_gain_is_another_unit_of_the_outputs():
    """The message says the same about gain * outputs as the plain one: exp(tau x - rho x^2 / 2) at any x."""
    m_out, y = outputs((6, 3), torch.float64), torch.tensor([0, 1, 2, 2, 1, 0])
    found = Softmax(gain=2.5).to_latent(m_out, y, torch.zeros(1))
    plain = Softmax(gain=1.0).to_latent(Moments(2.5 * m_out.mean, 2.5**2 * m_out.var), y, torch.zeros(1))
    for x in (-1.0, 0.3, 2.0):
        z = 2.5 * x
        torch.testing.assert_close(found.tau * x - found.rho * x**2 / 2, plain.tau * z - plain.rho * z**2 / 2)


@pytest.mark.parametrize("gain", [0.0, -1.0, float("inf"), float("nan")])
def test_a_gain_that_is_none_is_refused(gain):
    with pytest.raises(ValueError, match="gain must be a positive number"):
        Softmax(gain=gain)


@pytest.mark.parametrize("kind", [Softmax, Argmax])
def test_a_given_scale_multiplies_the_outputs(kind):
    m_out = outputs((20, 4), torch.float64)
    found = kind(scale=2.5).predict(m_out, torch.zeros(1, dtype=torch.float64)).probs
    torch.testing.assert_close(found, softmax_predictive(Moments(2.5 * m_out.mean, 2.5**2 * m_out.var)))


@pytest.mark.parametrize("kind", [Softmax, Argmax])
def test_a_learned_scale_is_averaged_over_its_belief(kind):
    head, m_out = kind(), outputs((20, 4), torch.float64)
    belief = torch.full(head.grid.shape, -torch.inf, dtype=torch.float64)
    belief[head.links][10], belief[head.links][60] = math.log(0.25), math.log(0.75)
    parts = [softmax_predictive(Moments(s * m_out.mean, s**2 * m_out.var)) for s in head.grid[head.links][[10, 60]]]
    torch.testing.assert_close(head.predict(m_out, belief).probs, 0.25 * parts[0] + 0.75 * parts[1])


@pytest.mark.parametrize("kind", [Softmax, Argmax])
def test_to_constant_is_the_log_likelihood_of_each_scale(kind):
    head, m_out, y = kind(), outputs((6, 3), torch.float64), torch.tensor([0, 1, 2, 2, 1, 0])
    found, scales = head.to_constant(m_out, y)[head.links], head.grid[head.links]
    for k in (0, 40, 95):
        probs = softmax_predictive(Moments(scales[k] * m_out.mean, scales[k] ** 2 * m_out.var))
        torch.testing.assert_close(found[k], probs.gather(1, y[:, None]).log().sum())


@pytest.mark.parametrize("kind", [Softmax, Argmax])
@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan"), "learned"])
def test_a_scale_that_is_none_is_refused(kind, scale):
    with pytest.raises(ValueError, match="scale must be a positive number, 'learn' or None"):
        kind(scale=scale)


@pytest.mark.parametrize("options", [{"noise": 0.0}, {"noise": -0.1}, {"noise": float("nan")}, {"target_var": 0.0}])
def test_argmax_variances_must_be_positive(options):
    with pytest.raises(ValueError, match="positive, finite variances"):
        Argmax(**options)


@pytest.mark.parametrize("kind", [Softmax, Argmax])
def test_one_output_is_no_classifier(kind):
    with pytest.raises(ValueError, match=r"at least 2.*has 1.*two outputs"):
        kind().n_outputs((1,))


# --- what more data would take away ----------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [Softmax(scale=2.0), Argmax(scale=None), Argmax()], ids=repr)
def test_with_covariances_probabilities_and_mutual_information_are_those_of_sampled_outputs(head):
    """To .02, with 64 points against 40,000 draws of outputs with variances of some .1."""
    m_out = outputs((8, 3), torch.float64)
    m_out = Moments(m_out.mean, 0.1 * m_out.var)
    covariance, belief = covariances(m_out), head.prior_log_weights()
    found = head.predict(m_out, belief, covariance)
    draws = torch.distributions.MultivariateNormal(m_out.mean, covariance)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        each = head.at_certain_outputs(draws.sample((40_000,)), belief)  # (s, b, c)
    probs = each.mean(0)
    kept = -torch.special.xlogy(each, each).sum(2).mean(0)
    assert (found.probs - probs).abs().max() < 0.02
    assert (found.epistemic + torch.special.xlogy(probs, probs).sum(1) + kept).abs().max() < 0.02
    assert (found.aleatoric - kept).abs().max() < 0.02


def test_outputs_that_move_together_leave_no_doubt_about_the_label():
    """A shift that all classes share changes no softmax; the same variances without correlations do."""
    mean = outputs((5, 3), torch.float64).mean
    m_out, certain = Moments(mean, torch.full_like(mean, 2.0)), torch.zeros(1, dtype=torch.float64)
    head, together = Softmax(scale=1.0), torch.full((5, 3, 3), 2.0, dtype=torch.float64)
    found = head.predict(m_out, certain, together)
    torch.testing.assert_close(found.probs, torch.softmax(mean, 1), rtol=1e-3, atol=1e-4)
    assert (found.epistemic < 1e-4).all()
    apart = head.predict(m_out, certain, torch.diag_embed(m_out.var))
    assert (apart.epistemic > 0.05).all()


@pytest.mark.parametrize("size", [1e-8, 0.1, 10.0, 1e4])
@pytest.mark.parametrize("head", [Softmax(), Softmax(scale=1.0), Argmax(), Argmax(scale=None)], ids=repr)
def test_epistemic_and_aleatoric_are_parts_of_the_entropy(head, size):
    """Without covariances, too, where probabilities are those of the probit-scaled link: the rest of the entropy was
    once below zero by two nats, because the two parts belonged to different probabilities.
    """
    m_out = outputs((200, 4), torch.float64)
    m_out = Moments(m_out.mean, size * m_out.var)
    for covariance in (None, covariances(m_out)):
        found = head.predict(m_out, head.prior_log_weights(), covariance)
        assert (found.epistemic >= 0).all() and (found.aleatoric >= -1e-12).all()
        torch.testing.assert_close(found.epistemic + found.aleatoric, found.entropy)
        if size == 1e-8:
            assert (found.epistemic < 1e-4).all()


# --- the prior over the link scale -----------------------------------------------------------------------------------

LEARNING = [Softmax(), Argmax(), Argmax(noise=0.05)]


def moments_of_log_scale(head, log_weights):
    belief, log_scale = torch.softmax(log_weights[head.links], 0), head.grid[head.links].log()
    mean = (belief * log_scale).sum()
    return mean.item(), (belief * (log_scale - mean).square()).sum().sqrt().item()


@pytest.mark.parametrize("head", LEARNING, ids=repr)
def test_the_prior_over_the_scale_is_log_normal_around_the_natural_one(head):
    mean, std = moments_of_log_scale(head, head.prior_log_weights())
    assert mean == pytest.approx(math.log(head.natural_scale), abs=1e-3) and std == pytest.approx(0.3, rel=1e-3)
    bend = head.prior_log_weights()[head.links].diff(n=2)
    torch.testing.assert_close(bend, bend[:1].expand_as(bend))  # a parabola, as the grid is even in the logarithm
    network = bmp.Network([bmp.Linear(2, 3)], head)
    torch.testing.assert_close(network.head_log_weights, head.prior_log_weights().float())


@pytest.mark.parametrize("head", LEARNING, ids=repr)
def test_the_natural_scale_predicts_as_the_training_messages_have_it(head):
    """Two sharp outputs. Softmax: its own probabilities; argmax: its comparison with noise, to .01 (logistic against
    probit).
    """
    mean = torch.stack([torch.linspace(-2.0, 2.0, 81, dtype=torch.float64), torch.zeros(81, dtype=torch.float64)], 1)
    m_out, certain = Moments(mean, torch.full_like(mean, 1e-12)), torch.zeros(1, dtype=torch.float64)
    if isinstance(head, Softmax):
        plain, natural = Softmax(scale=None), Softmax(scale=head.natural_scale)
    else:
        plain, natural = (Argmax(noise=head.noise, scale=scale) for scale in (None, head.natural_scale))
    found, truth = (each.predict(m_out, certain).probs for each in (natural, plain))
    assert (found - truth).abs().max() < (1e-6 if isinstance(head, Softmax) else 0.01)


@pytest.mark.parametrize("ratio", [0.4, 2.5])  # three stds of the prior away
@pytest.mark.parametrize("head", LEARNING, ids=repr)
def test_a_thousand_examples_outweigh_the_prior_over_the_scale(head, ratio):
    generator, scale = torch.Generator().manual_seed(0), ratio * head.natural_scale
    mean = 1.5 / scale * torch.randn(1000, 4, generator=generator, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(scale * mean, 1), 1, generator=generator)[:, 0]
    message = head.to_constant(Moments(mean, torch.full_like(mean, 1e-12)), y)
    (found, _), (alone, _) = (moments_of_log_scale(head, message + p) for p in (head.prior_log_weights(), 0.0))
    assert abs(found - math.log(scale)) < 0.15 and abs(found - alone) < 0.05


@pytest.mark.parametrize("head", [Softmax(scale=2.0), Softmax(scale=None), Argmax(scale=0.5), Argmax(scale=None)])
def test_a_given_scale_has_no_prior(head):
    assert not head.is_learned and head.prior_log_weights().tolist() == [0.0]


# --- learned on training data, judged on fresh data ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.7, 1.5])  # nearly separable, and overlapping classes
@pytest.mark.parametrize("kind", [Softmax, Argmax])
def test_the_learned_scale_is_near_the_best_one_for_fresh_data(kind, spread):
    x, y = blobs(1200, spread=spread)
    network = mlp([2, 16, 3], kind())
    bmp.fit(network, x[:200], y[:200], epochs=40, batch_size=50)
    fresh, labels = network.predict(x[200:]), y[200:]
    head = network.head
    per_scale = -head.to_constant(Moments(fresh.mean, fresh.epistemic_var), labels)[head.links] / len(labels)
    nll = -fresh.probs.gather(1, labels[:, None]).log().mean()
    assert nll < per_scale.min() + 0.05
    if kind is Argmax:  # its outputs are pulled to +-1 and as logits far too even
        as_logits = per_scale[(head.grid[head.links] - 1.0).abs().argmin()]
        assert nll < as_logits - 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_covariances_that_rounding_made_negative_give_probabilities(dtype: torch.dtype) -> None:
    """A variance left over from two large ones may come out below zero; what is left counts, the rest is nothing."""
    root = 0.3 * torch.randn(6, 10, 3, generator=torch.Generator().manual_seed(0), dtype=dtype)
    covariance = root @ root.transpose(1, 2) - 0.002 * torch.eye(10, dtype=dtype)
    mean = torch.randn(6, 10, generator=torch.Generator().manual_seed(1), dtype=dtype)
    head = Argmax()
    log_weights = head.prior_log_weights().to(dtype)
    m_out = Moments(mean, covariance.diagonal(dim1=1, dim2=2).clamp_min(1e-6))
    found = head.predict(m_out, log_weights, covariance)
    clean = head.predict(m_out, log_weights, root @ root.transpose(1, 2))
    assert torch.allclose(found.probs.sum(1), torch.ones(6, dtype=dtype), atol=1e-5)
    assert (found.probs - clean.probs).abs().max() < 0.02
    assert (found.epistemic - clean.epistemic).abs().max() < 0.05
