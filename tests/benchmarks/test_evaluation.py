"""What is scored, and scores that the library's metrics do not have."""

import math

import pytest
import torch

from bayesmp import metrics
from benchmarks import evaluation


def test_entropy_is_that_of_the_metrics():
    probs = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(evaluation.entropy(probs), torch.as_tensor(metrics.entropy(probs)))


def test_members_that_agree_know_and_members_that_contradict_do_not():
    certain = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    other = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    mean, epistemic = evaluation.mixture([(certain, None), (other, None)])
    torch.testing.assert_close(mean, torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64))
    torch.testing.assert_close(epistemic, torch.tensor([0.0, math.log(2.0)], dtype=torch.float64))


def test_uncertain_members_that_agree_have_no_epistemic_uncertainty():
    probs = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    _, epistemic = evaluation.mixture([(probs, None)] * 3)
    torch.testing.assert_close(epistemic, torch.zeros(2, dtype=torch.float64))


def test_mixture_of_mixtures_is_the_mixture_of_all():
    """What members say they do not know adds up with what differs between them."""
    generator = torch.Generator().manual_seed(0)
    members = [torch.rand(5, 3, generator=generator, dtype=torch.float64).softmax(1) for _ in range(6)]
    whole = evaluation.mixture((probs, None) for probs in members)
    parts = [evaluation.mixture((probs, None) for probs in part) for part in (members[:3], members[3:])]
    torch.testing.assert_close(evaluation.mixture(parts), whole)


def test_separation_is_the_chance_of_a_higher_score():
    familiar, unfamiliar = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 2.0])
    assert evaluation.separation(familiar, unfamiliar) == 0.75
    assert math.isnan(evaluation.separation(familiar, torch.tensor([math.nan])))


@pytest.mark.parametrize("limit, n_left", [(None, 90), (50, 50)])
def test_held_out_images_replace_the_test_set(patterns, limit, n_left):
    found = evaluation.hold_out(patterns, 30, limit=limit)
    assert found.x_train.shape == (n_left, 3, 4, 4) and found.x_test.shape == (30, 3, 4, 4)
    torch.testing.assert_close(found.y_train, patterns.y_train[:n_left])
    torch.testing.assert_close(found.y_test, patterns.y_train[90:])
    assert abs(float(found.x_train.mean())) < 1e-5
    assert float(found.x_train.std(correction=0)) == pytest.approx(1.0, rel=1e-4)
    pixels = torch.as_tensor(patterns.scaling.undo(patterns.x_train.numpy()))
    for x, rows in ((found.x_train, slice(n_left)), (found.x_test, slice(90, None))):
        torch.testing.assert_close(torch.as_tensor(found.scaling.undo(x.numpy())), pixels[rows], atol=1e-3, rtol=0)


@pytest.mark.parametrize("n_held_out", [0, 120, 200])
def test_something_must_be_held_out_and_something_left(patterns, n_held_out):
    with pytest.raises(ValueError, match="can hold out 1 to 119"):
        evaluation.hold_out(patterns, n_held_out)
