"""Softmax and Argmax heads: probabilities, entropy, and the link scale learned on training data."""

import math

import pytest
import torch

import bayesmp as bmp
from bayesmp.equations.likelihood import argmax_predictive, softmax_predictive
from bayesmp.gaussian import Moments
from bayesmp.heads import Argmax, ClassPrediction, Softmax
from tests.heads.contract import outputs
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
    entropy = ClassPrediction(probs, probs, probs).entropy
    torch.testing.assert_close(entropy, torch.tensor([0.0, math.log(4), math.log(2)]))


def test_scale_none_gives_the_plain_predictives():
    m_out = outputs((20, 4), torch.float64)
    certain = torch.zeros(1, dtype=torch.float64)
    torch.testing.assert_close(Softmax(scale=None).predict(m_out, certain).probs, softmax_predictive(m_out))
    plain = argmax_predictive(m_out, noise=0.7)
    torch.testing.assert_close(Argmax(scale=None, noise=0.7).predict(m_out, certain).probs, plain)


@pytest.mark.parametrize("kind", [Softmax, Argmax])
def test_a_given_scale_multiplies_the_outputs(kind):
    m_out = outputs((20, 4), torch.float64)
    found = kind(scale=2.5).predict(m_out, torch.zeros(1, dtype=torch.float64)).probs
    torch.testing.assert_close(found, softmax_predictive(Moments(2.5 * m_out.mean, 2.5**2 * m_out.var)))


@pytest.mark.parametrize("kind", [Softmax, Argmax])
def test_a_learned_scale_is_averaged_over_its_belief(kind):
    head, m_out = kind(), outputs((20, 4), torch.float64)
    belief = torch.full(head.grid.shape, -torch.inf, dtype=torch.float64)
    belief[10], belief[60] = math.log(0.25), math.log(0.75)
    parts = [softmax_predictive(Moments(s * m_out.mean, s**2 * m_out.var)) for s in head.grid[[10, 60]]]
    torch.testing.assert_close(head.predict(m_out, belief).probs, 0.25 * parts[0] + 0.75 * parts[1])


@pytest.mark.parametrize("kind", [Softmax, Argmax])
def test_to_constant_is_the_log_likelihood_of_each_scale(kind):
    head, m_out, y = kind(), outputs((6, 3), torch.float64), torch.tensor([0, 1, 2, 2, 1, 0])
    found = head.to_constant(m_out, y)
    for k in (0, 40, 95):
        probs = softmax_predictive(Moments(head.grid[k] * m_out.mean, head.grid[k] ** 2 * m_out.var))
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


# --- learned on training data, judged on fresh data ------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.7, 1.5])  # nearly separable, and overlapping classes
@pytest.mark.parametrize("kind", [Softmax, Argmax])
def test_the_learned_scale_is_near_the_best_one_for_fresh_data(kind, spread):
    x, y = blobs(1200, spread=spread)
    network = mlp([2, 16, 3], kind())
    bmp.fit(network, x[:200], y[:200], epochs=40, batch_size=50)
    fresh, labels = network.predict(x[200:]), y[200:]
    per_scale = -network.head.to_constant(Moments(fresh.mean, fresh.epistemic_var), labels) / len(labels)
    nll = -fresh.probs.gather(1, labels[:, None]).log().mean()
    assert nll < per_scale.min() + 0.05
    if kind is Argmax:  # its outputs are pulled to +-1 and as logits far too even
        as_logits = per_scale[(network.head.grid - 1.0).abs().argmin()]
        assert nll < as_logits - 0.05
