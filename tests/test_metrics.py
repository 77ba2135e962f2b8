"""Metrics against hand computation, scipy and scikit-learn."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk

from bayesmp import metrics

HAND_PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.5, 0.3, 0.2], [0.25, 0.35, 0.4]])
HAND_Y = np.array([0, 2, 0, 1])


@pytest.fixture
def classes():
    """400 examples of 6 classes; the labels are drawn from flattened probabilities, so the model is overconfident."""
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.full(6, 0.4), size=400)
    flat = np.sqrt(probs) / np.sqrt(probs).sum(axis=1, keepdims=True)
    return probs, np.array([rng.choice(6, p=row) for row in flat])


@pytest.fixture
def gaussians():
    rng = np.random.default_rng(4)
    mean, std = rng.normal(size=300), rng.uniform(0.2, 2.0, size=300)
    return mean, std, mean + std * rng.normal(size=300)


# Regression


def test_rmse_of_a_hand_example():
    assert metrics.rmse([1.0, 2.0, 3.0], [1.0, 4.0, 3.0]) == pytest.approx(math.sqrt(4 / 3))


def test_gaussian_nll_is_minus_the_log_density_of_scipy(gaussians):
    mean, std, y = gaussians
    assert metrics.gaussian_nll(mean, std**2, y) == pytest.approx(-stats.norm(mean, std).logpdf(y).mean())


def test_gaussian_nll_refuses_a_variance_of_zero():
    with pytest.raises(ValueError, match="var must be positive"):
        metrics.gaussian_nll([0.0, 0.0], [1.0, 0.0], [0.0, 0.0])


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_coverage_counts_the_points_inside_scipys_interval(gaussians, level):
    mean, std, y = gaussians
    low, high = stats.norm(mean, std).interval(level)
    assert metrics.coverage(mean, std, y, level) == np.mean((low <= y) & (y <= high))


def test_coverage_of_well_calibrated_predictions_is_the_level():
    y = np.random.default_rng(0).normal(size=200_000)
    assert metrics.coverage(np.zeros_like(y), np.ones_like(y), y, 0.8) == pytest.approx(0.8, abs=0.005)


def test_interval_coverage_counts_what_lies_between_the_ends():
    assert metrics.interval_coverage([0.0, 0.0, 0.0, 2.0], [1.0, 1.0, 1.0, 3.0], [0.0, 1.0, 1.5, 2.5]) == 0.75
    with pytest.raises(ValueError, match="shapes must be equal"):
        metrics.interval_coverage([0.0, 1.0], [1.0, 2.0], [0.5])


@pytest.mark.parametrize("level", [0.0, 1.0, 90.0])
def test_coverage_refuses_a_level_that_is_no_probability(level):
    with pytest.raises(ValueError, match="between 0 and 1"):
        metrics.coverage([0.0], [1.0], [0.0], level)


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match="shapes must be equal"):
        metrics.rmse(np.zeros((5, 2)), np.zeros(5))


def test_a_single_column_is_no_pair_of_all_with_all():
    """(b, 1) against (b,) would be broadcast to b x b pairs."""
    mean, y = np.arange(5.0)[:, None], np.arange(5.0) + 2.0
    assert metrics.rmse(mean, y) == metrics.rmse(y, mean) == 2.0


@pytest.mark.parametrize("bad", [[float("nan")], []])
def test_nan_and_empty_input_are_refused(bad):
    with pytest.raises(ValueError, match="mean"):
        metrics.rmse(bad, np.zeros(len(bad)))


# Classification


def test_accuracy_brier_and_nll_of_a_hand_example():
    assert metrics.accuracy(HAND_PROBS, HAND_Y) == 0.5
    assert metrics.top_k_accuracy(HAND_PROBS, HAND_Y, k=2) == 1.0
    assert metrics.nll(HAND_PROBS, HAND_Y) == pytest.approx(-np.mean(np.log([0.7, 0.3, 0.5, 0.35])))
    by_hand = [0.09 + 0.04 + 0.01, 0.01 + 0.36 + 0.49, 0.25 + 0.09 + 0.04, 0.0625 + 0.4225 + 0.16]
    assert metrics.brier(HAND_PROBS, HAND_Y) == pytest.approx(np.mean(by_hand))


def test_against_scikit_learn(classes):
    probs, y = classes
    labels = np.arange(6)
    assert metrics.accuracy(probs, y) == sk.accuracy_score(y, probs.argmax(axis=1))
    assert metrics.nll(probs, y) == pytest.approx(sk.log_loss(y, probs, labels=labels))
    for k in (1, 2, 5):
        assert metrics.top_k_accuracy(probs, y, k=k) == pytest.approx(
            sk.top_k_accuracy_score(y, probs, k=k, labels=labels)
        )
    assert metrics.top_k_accuracy(probs, y, k=6) == 1.0
    one_class_against_rest = [sk.brier_score_loss(y == j, probs[:, j]) for j in labels]
    assert metrics.brier(probs, y) == pytest.approx(sum(one_class_against_rest))


def test_equal_probabilities_count_for_the_lower_class_only():
    assert metrics.accuracy([[0.5, 0.5], [0.5, 0.5]], [0, 1]) == 0.5


def test_nll_of_an_impossible_event_is_infinite_unless_a_floor_is_given():
    assert metrics.nll([[1.0, 0.0]], [1]) == math.inf
    assert metrics.nll([[1.0, 0.0]], [1], floor=1e-3) == pytest.approx(-math.log(1e-3))


def test_entropy_against_scipy_and_at_its_limits(classes):
    probs, _ = classes
    np.testing.assert_allclose(metrics.entropy(probs), stats.entropy(probs, axis=1))
    np.testing.assert_allclose(metrics.entropy([[1.0, 0.0], [0.5, 0.5]]), [0.0, math.log(2)])


# Calibration


def test_ece_of_a_hand_example():
    """Confidences .7, .6, .5, .4 lie in four of ten bins; right, wrong, right, wrong."""
    expected = np.mean([1 - 0.7, 0.6, 1 - 0.5, 0.4])
    assert metrics.ece(HAND_PROBS, HAND_Y, n_bins=10) == pytest.approx(expected)
    assert metrics.ece(HAND_PROBS, HAND_Y, n_bins=1) == pytest.approx(abs(0.5 - 0.55))


def test_ece_bins_are_closed_on_the_right_and_hold_certainty():
    confidence, right, n_in_bin = metrics.reliability_bins([[1.0, 0.0], [0.5, 0.5]], [0, 1], n_bins=2)
    np.testing.assert_array_equal(n_in_bin, [1, 1])
    np.testing.assert_allclose(confidence, [0.5, 1.0])
    np.testing.assert_allclose(right, [0.0, 1.0])


def test_ece_against_a_loop_over_the_bins(classes):
    probs, y = classes
    confidence, right = probs.max(axis=1), probs.argmax(axis=1) == y
    expected = 0.0
    for k in range(15):
        inside = (k / 15 < confidence) & (confidence <= (k + 1) / 15)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert metrics.ece(probs, y) == pytest.approx(expected)


def test_empty_bins_have_no_means():
    confidence, right, n_in_bin = metrics.reliability_bins([[0.9, 0.1]], [0], n_bins=4)
    np.testing.assert_array_equal(n_in_bin, [0, 0, 0, 1])
    assert np.isnan(confidence[:3]).all()
    assert np.isnan(right[:3]).all()


def test_median_variance_ece_of_a_hand_example():
    """Four examples, two classes, bins of two: the median of p_0 is .55, the bins are {.2, .4} and {.7, .9}."""
    first = np.array([0.7, 0.2, 0.9, 0.4])
    probs = np.stack([first, 1 - first], axis=1)
    y = np.array([0, 1, 1, 1])
    low = 2 * (0.3 - 0.0) ** 2  # mean p_0 .3, nobody of class 0
    high = 2 * (0.8 - 0.5) ** 2  # mean p_0 .8, one of two of class 0
    assert metrics.ece_median_variance(probs, y, min_size=2) == pytest.approx((low + high) / 2)
    whole = 2 * (0.55 - 0.25) ** 2
    assert metrics.ece_median_variance(probs, y, min_size=3) == pytest.approx(whole)


def test_median_variance_ece_splits_the_class_that_varies_most():
    """Class 2 has the largest variance: the split must separate its high from its low probabilities."""
    probs = np.array([[0.5, 0.4, 0.1], [0.4, 0.5, 0.1], [0.1, 0.1, 0.8], [0.05, 0.05, 0.9]])
    y = np.array([0, 1, 2, 2])
    low = np.square(np.array([0.45, 0.45, 0.1]) - [0.5, 0.5, 0.0]).sum()
    high = np.square(np.array([0.075, 0.075, 0.85]) - [0.0, 0.0, 1.0]).sum()
    assert metrics.ece_median_variance(probs, y, min_size=2) == pytest.approx((low + high) / 2)


def test_median_variance_ece_of_a_calibrated_model_is_the_sampling_noise():
    """For labels drawn from p, a bin of m examples has expected squared gap mean(1 - sum p^2) / m, 20 <= m < 40."""
    rng = np.random.default_rng(5)
    probs = rng.dirichlet(np.ones(4), size=8192)
    y = (rng.uniform(size=(8192, 1)) > probs.cumsum(axis=1)).sum(axis=1).clip(max=3)
    spread = np.mean(1 - np.square(probs).sum(axis=1))
    value = metrics.ece_median_variance(probs, y)
    assert spread / 40 * 0.9 < value < spread / 20 * 1.1


def test_median_variance_ece_of_identical_predictions_is_one_bin():
    probs = np.tile([0.25, 0.75], (100, 1))
    y = (np.arange(100) >= 40).astype(int)
    assert metrics.ece_median_variance(probs, y) == pytest.approx(2 * 0.15**2)


def test_median_variance_ece_needs_enough_examples():
    with pytest.raises(ValueError, match="min_size"):
        metrics.ece_median_variance(HAND_PROBS, HAND_Y, min_size=5)


# Telling familiar data from unfamiliar


@pytest.mark.parametrize("digits", [10, 1], ids=["distinct", "ties"])
def test_auroc_against_scikit_learn(digits):
    rng = np.random.default_rng(6)
    is_positive = rng.uniform(size=500) < 0.3
    score = np.round(rng.normal(size=500) + is_positive, digits)
    assert metrics.auroc(score, is_positive) == pytest.approx(sk.roc_auc_score(is_positive, score))


def test_auroc_at_its_limits():
    assert metrics.auroc([0.1, 0.2, 0.9], [0, 0, 1]) == 1.0
    assert metrics.auroc([0.1, 0.2, 0.9], [1, 0, 0]) == 0.0
    assert metrics.auroc([1.0, 1.0, 1.0], [1, 0, 1]) == 0.5
    assert metrics.auroc([0.0, np.inf, 1.0], [0, 1, 0]) == 1.0


def test_auroc_needs_both_kinds():
    with pytest.raises(ValueError, match="both kinds"):
        metrics.auroc([0.1, 0.2], [True, True])


def test_ood_auroc_ranks_by_entropy():
    sure, unsure = [[0.99, 0.01], [0.9, 0.1]], [[0.5, 0.5], [0.6, 0.4], [0.95, 0.05]]
    assert metrics.ood_auroc(sure, unsure) == pytest.approx(5 / 6)


# What comes in


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tensors_give_what_arrays_give(classes, dtype):
    probs, y = classes
    tensor = torch.tensor(probs, dtype=dtype)
    as_array = tensor.double().numpy()
    for metric in (metrics.accuracy, metrics.nll, metrics.brier, metrics.ece, metrics.ece_median_variance):
        value = metric(tensor.requires_grad_(), torch.tensor(y))
        assert isinstance(value, float)
        assert value == pytest.approx(metric(as_array, y))
    assert metrics.rmse(torch.zeros(3), torch.ones(3)) == 1.0


@pytest.mark.parametrize(
    "probs, y, message",
    [
        ([0.5, 0.5], [0], "shape"),
        ([[2.0, -1.0]], [0], "not logits"),
        ([[float("nan"), 1.0]], [0], "NaN"),
        ([[0.5, 0.6]], [0], "sum to 1"),
        ([[0.5, 0.5]], [2], "0 to 1"),
        ([[0.5, 0.5]], [-1], "0 to 1"),
        ([[0.5, 0.5]], [0.5], "whole numbers"),
        ([[0.5, 0.5]], [[0]], "y must have shape"),
    ],
)
def test_bad_classes_and_probabilities_are_named(probs, y, message):
    with pytest.raises(ValueError, match=message):
        metrics.nll(probs, y)


def test_top_k_refuses_more_classes_than_there_are():
    with pytest.raises(ValueError, match="number of classes, 3"):
        metrics.top_k_accuracy(HAND_PROBS, HAND_Y, k=5)


def test_roc_needs_both_kinds_and_has_the_area_of_auroc():
    """Equal scores are one step, so that the area counts ties half."""
    score, is_positive = np.array([0.1, 0.4, 0.4, 0.4, 0.9]), np.array([0, 1, 0, 1, 1])
    false_alarms, hits = metrics.roc(score, is_positive)
    np.testing.assert_allclose(false_alarms, [0, 0, 0.5, 1])
    np.testing.assert_allclose(hits, [0, 1 / 3, 1, 1])
    area = np.sum(np.diff(false_alarms) * (hits[1:] + hits[:-1]) / 2)
    assert area == pytest.approx(metrics.auroc(score, is_positive))
    with pytest.raises(ValueError, match="both kinds, got 0 positive and 5 negative"):
        metrics.roc(score, np.zeros(5))


def test_classes_may_be_whole_numbers_of_any_type():
    assert metrics.accuracy([[0.9, 0.1], [0.2, 0.8]], np.array([0.0, 1.0])) == 1.0
