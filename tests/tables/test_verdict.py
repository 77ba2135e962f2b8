"""The verdict: a model that is no better than a guess must not be praised, and missed rows must be told."""

import re

import numpy as np
import pytest

from bayesmp.tables.scores import scores_of
from bayesmp.tables.verdict import DOUBTFUL, GOOD, USELESS, Threshold, judge, judge_left_out
from tests.tables.test_scores import classes, quantity

NOISE, MORE = np.random.default_rng(0).normal(size=(2, 1_000))


def of_quantity(mean, y, var=0.5):
    known = quantity(mean, var)
    return judge(known, y, scores_of(known, y), (float(y.mean()), float(y.std())))


def of_classes(probs, y, guess=None, **options):
    known = classes(probs)
    guess = guess or tuple(np.bincount(y, minlength=probs.shape[1]) / len(y))
    labels = ["repaid", "default", "open"][: probs.shape[1]]
    return judge(known, y, scores_of(known, y), guess, classes=labels, **options)


def test_r2_of_minus_24_is_not_called_too_cautious():
    """Its intervals were so wide that they held everything, and that was all that was said."""
    found = of_quantity(5.0 * MORE[:200], NOISE[:200], var=900.0)
    assert found.mark == USELESS
    assert found.use.startswith("no better than the mean: do not use it (its typical error is 5.")
    assert len(found.more) == 1 and found.more[0].startswith("too cautious: 100 % of the rows")


def test_what_is_useless_is_not_called_well_calibrated():
    found = of_quantity(np.zeros(500) + 1e-9 * NOISE[:500], NOISE[:500], var=1.0)
    assert found.mark == USELESS and found.more[0].startswith("calibration: ")
    probs = np.full((400, 2), 0.5)
    y = (np.arange(400) % 2).astype(np.int64)
    assert of_classes(probs, y).more[0].startswith("calibration: ")


def test_classes_below_their_shares_are_told():
    """It was as sure as it was right, so it was called well calibrated."""
    y = (np.arange(300) % 10 == 0).astype(np.int64)
    sure = np.where(np.arange(300) % 4 == 0, 0.75, 0.25)  # of the second class, whatever the row
    found = of_classes(np.stack([1.0 - sure, sure], axis=1), y)
    assert found.mark == USELESS and found.use.startswith("no better than the class shares: do not use it (Brier")
    assert not any(sentence.startswith("well") for sentence in found.sentences)


def test_a_good_model_is_told_with_both_errors():
    found = of_quantity(NOISE, NOISE + 0.3 * MORE, var=0.09)
    assert found.mark == GOOD
    assert re.fullmatch(r"better than the mean: its typical error is 0.\d+ ± 0.00\d, that of the mean 1.\d+", found.use)
    assert found.more[0].startswith("well calibrated: ")


def test_few_rows_cannot_tell():
    mean = NOISE[:12]
    found = of_quantity(mean, 0.6 * mean + 0.8 * MORE[:12], var=0.64)
    assert found.mark == DOUBTFUL and "but 12 rows cannot tell" in found.use
    assert found.more[0].startswith("too few rows to judge calibration")
    one = judge(quantity(mean[:1]), mean[:1], scores_of(quantity(mean[:1]), mean[:1]), (5.0, 1.0))
    assert one.mark == DOUBTFUL and "but 1 row cannot tell" in one.use


def test_a_gain_that_is_sure_and_small_is_told_as_such():
    known = 0.15 * NOISE
    y = np.tile(known, 30) + np.random.default_rng(1).normal(size=30_000)
    found = of_quantity(np.tile(known, 30), y, var=1.0)
    assert found.mark == DOUBTFUL and found.use.startswith("hardly better than the mean")


def test_good_predictions_with_bad_error_bars_are_told_apart():
    found = of_quantity(NOISE, NOISE + 0.3 * MORE, var=0.001)
    assert found.mark == GOOD and found.more[0].startswith("too sure")
    assert found.more[1].startswith("use its predictions, but not its error bars: by them (NLL")


@pytest.mark.parametrize("factor, expected", [(1.0, "well calibrated: "), (0.5, "too sure: "), (3.0, "too cautious: ")])
def test_calibration_follows_the_truth(factor, expected):
    mean = 3.0 * MORE
    assert of_quantity(mean, mean + NOISE, factor**2).more[0].startswith(expected)
    if factor == 1.0:
        few = of_quantity(mean[:40], mean[:40] + NOISE[:40], 1.0)
        assert few.more[0].startswith("well calibrated as far as 40 rows can tell: ")


def defaulters():
    """67 of 2,000 default; a threshold of .5 finds 21 of them with 5 false alarms, a lower one 60 with 200."""
    y = np.zeros(2_000, dtype=np.int64)
    y[:67] = 1
    prob = np.full(2_000, 0.01)
    prob[:21], prob[21:60], prob[67:72], prob[72:267] = 0.8, 0.2, 0.6, 0.15
    return np.stack([1.0 - prob, prob], axis=1), y


def test_46_of_67_defaulters_missed_is_told_by_words_and_numbers():
    """The accuracy of .97 hid it."""
    found = of_classes(*defaulters())
    said = " ".join(found.more)
    assert found.mark == DOUBTFUL
    assert "called 'default' from a probability of 0.5 on, 46 of 67 'default' are missed (recall 31 %)" in said
    assert "of 26 called so 21 are (precision 81 %)" in said
    assert "an accuracy of 0.975 hides that most 'default' are missed" in said
    assert "from 0.034 on, 7 would be missed, with 200 false alarms: --threshold 0.034, or --cost 5:1" in said


def test_costs_choose_the_threshold_and_are_compared_with_calling_all_alike():
    found = of_classes(*defaulters(), threshold=Threshold.of_costs(9.0, 1.0))
    assert "called 'default' from a probability of 0.1 on, 7 of 67" in found.more[1]
    assert found.more[2] == "errors cost 0.132 per row; calling none 'default' would cost 0.301"
    assert found.mark == GOOD
    cheap = of_classes(*defaulters(), threshold=Threshold(0.1, (1.0, 9.0)))
    assert cheap.mark == DOUBTFUL and cheap.more[2].endswith("these labels are of no use")


def test_classes_most_of_whose_rows_are_taken_for_others_are_told():
    y = np.repeat([0, 1, 2], [50, 50, 10])
    probs = np.eye(3)[np.where(y == 2, 1, y)] * 0.9 + 0.1 / 3
    said = of_classes(probs / probs.sum(1, keepdims=True), y).more
    assert said[-1] == "taken for other classes: 10 of 10 'open'"


def test_without_held_out_rows_leave_one_out_decides():
    use = judge_left_out({"R2": -24.0, "RMSE": 5.0, "NLL": 3.0}, (0.0, 1.0), is_classes=False)
    assert use == "no better than the mean: do not use it (leave-one-out: R2 -24.000)"
    assert judge_left_out({"accuracy": 0.9, "NLL": 0.4}, (0.5, 0.5), is_classes=True).startswith(
        "better than the class"
    )
    assert judge_left_out({"accuracy": 0.9, "NLL": 0.8}, (0.5, 0.5), is_classes=True).startswith("no better")
    assert judge_left_out({"R2": float("nan")}, (0.0, 1.0), is_classes=False) == ""
