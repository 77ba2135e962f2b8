"""Scores with their standard errors, and numbers rounded to them."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from bayesmp.heads import ClassPrediction, RegressionPrediction
from bayesmp.tables.scores import Score, rounded, scores_of


def quantity(mean, var=0.5):
    mean = torch.as_tensor(mean)
    return RegressionPrediction(mean, torch.full_like(mean, 0.5 * var), torch.tensor(0.5 * var, dtype=torch.float64))


def classes(probs):
    probs = torch.as_tensor(probs)
    return ClassPrediction(probs, probs, torch.ones_like(probs), torch.zeros(len(probs)))


@pytest.mark.parametrize(
    "value, error, shown",
    [
        (12.34567, 3.2109, "12 ± 3"),
        (0.98765, 0.0142, "0.988 ± 0.014"),
        (30_410.0, 3_123.0, "30,000 ± 3,000"),
        (0.99, 0.0961, "0.99 ± 0.10"),
        (-0.01, 0.3, "0.0 ± 0.3"),
        (1.234e-9, 2e-10, "(1.2 ± 0.2)e-9"),
        (12.34567, 0.0, "12.35"),
        (12.34567, float("nan"), "12.35"),
    ],
)
def test_numbers_have_the_digits_that_their_error_leaves(value, error, shown):
    assert rounded(value, error) == shown


def test_values_beside_a_score_have_its_digits():
    assert Score(30_410.0, 3_123.0).like(93_408.2) == "93,000" and Score(0.8, 0.1).like(None) == "–"
    share = Score(0.934, 0.033, is_share=True)
    assert str(share) == "93 ± 3 %" and share.like(0.9) == "90 %"


def test_errors_of_scores_of_quantities_are_what_repeated_draws_show():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        mean = rng.normal(size=60)
        found.append(scores_of(quantity(mean), mean + 0.7 * rng.normal(size=60)))
    for name in ("R2", "RMSE", "NLL", "in 90 % interval"):
        spread = np.std([scores[name].value for scores in found])
        assert np.mean([scores[name].error for scores in found]) == pytest.approx(spread, rel=0.15), name


@pytest.mark.parametrize("n_classes", [2, 3])
def test_errors_of_scores_of_classes_are_what_repeated_draws_show(n_classes):
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        y = rng.integers(0, n_classes, 60)
        power = np.exp(np.eye(n_classes)[y] + rng.normal(size=(60, n_classes)))
        probs = power / power.sum(1, keepdims=True)
        found.append(scores_of(classes(probs), y))
    for name in ("accuracy", "AUC", "NLL", "Brier"):
        spread = np.std([scores[name].value for scores in found])
        assert np.mean([scores[name].error for scores in found]) == pytest.approx(spread, rel=0.15), name
    score = probs[:, 1] if n_classes == 2 else probs
    assert found[-1]["AUC"].value == pytest.approx(roc_auc_score(y, score, multi_class="ovr"))


def test_one_row_has_scores_and_no_errors():
    scores = scores_of(quantity(np.array([1.0])), np.array([2.0]))
    assert str(scores["R2"]) == "–" and str(scores["RMSE"]) == "1" and "±" not in str(scores["NLL"])
    assert "AUC" not in scores_of(classes(np.array([[0.2, 0.8]])), np.array([1]))
