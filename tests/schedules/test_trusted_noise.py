"""How much noise training may see: it begins low, grows with visits, and stops where scores say that it hurts."""

import json
import math

import pytest
import torch

import bayesmp as bmp
from bayesmp.schedules.trusted_noise import TrustedNoise
from bayesmp.settings import SETTINGS
from tests.helpers import linear_data, mlp

FIRST, GROWTH = SETTINGS.trust


def trusted(head=None, *, largest=math.inf):
    head = bmp.Regression("learn") if head is None else head
    noise = TrustedNoise(head, like=torch.zeros(0, dtype=torch.float64), settings=SETTINGS)
    noise.begin(largest)
    return noise


def sharp(head, constant):
    """A belief that is sure of the grid's constant next to this one, of noise without tails."""
    grid = head.grid.double()
    near = (grid[head.heard] / constant).log().abs().argmin()
    return torch.full_like(grid, -50.0).index_fill_(0, torch.arange(len(grid))[head.heard][near], 0.0)


# --- the limit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_visits", [1, 2, 50, 232])
def test_the_limit_is_a_share_of_all_y_that_grows_with_visits(n_visits):
    noise = trusted(largest=3.0)
    noise.grow(n_visits)
    expected = 3.0 * FIRST
    for _ in range(n_visits):
        expected *= GROWTH
    torch.testing.assert_close(noise.limit, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("n_visits", [233, 10_000, 10**9])
def test_there_is_no_limit_once_all_of_y_may_be_noise(n_visits):
    assert FIRST * GROWTH**232 < 1.0 < FIRST * GROWTH**233
    noise = trusted(largest=3.0)
    noise.grow(n_visits)
    assert noise.limit == math.inf


def test_the_limit_is_one_tensor_for_a_whole_run():
    """Recorded visits read it at its place in memory, whatever happens to the data."""
    x, y = linear_data(40)
    trainer = bmp.Trainer(mlp([3, 4, 1], bmp.Regression("learn")), x, y, batch_size=10, joint=True)
    limit = trainer.schedule.noise.limit
    place, first = limit.data_ptr(), float(limit)
    trainer.run(2)
    trainer.remove(range(5))
    trainer.add(x[:5], y[:5])
    trainer.run(2)
    assert trainer.schedule.noise.limit is limit and limit.data_ptr() == place
    assert first == math.inf > float(limit)


# --- beliefs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tails", ["learn", "gaussian"])
def test_a_trusting_belief_has_no_constant_above_the_limit(tails):
    head = bmp.Regression("learn", tails=tails)
    noise, belief = trusted(head, largest=1.0), torch.linspace(-3.0, 1.0, len(head.grid), dtype=torch.float64)
    noise.grow(100)
    found = torch.softmax(noise.trusting(belief), 0)
    allowed = head.grid[head.heard].double() <= FIRST * GROWTH**100
    assert 0 < allowed.sum() < len(allowed)
    expected = torch.where(allowed, torch.softmax(belief[head.heard], 0), 0.0)
    torch.testing.assert_close(found, expected / expected.sum())


def test_the_lowest_constant_is_always_left():
    noise = trusted(largest=1e-30)
    noise.grow(1)
    found = torch.softmax(noise.trusting(torch.zeros(len(noise.head.grid), dtype=torch.float64)), 0)
    grid = noise.head.grid[noise.head.heard]
    assert found[0] > 0.0 and found[grid > grid[0]].sum() == 0.0


def test_labels_are_taken_for_clean_at_first_and_no_score_says_so_for_good():
    head = bmp.Argmax()
    noise, belief = trusted(head, largest=1.0), torch.zeros(len(head.grid), dtype=torch.float64)
    variances = []
    for n_visits in (1, 60, 200):
        noise.grow(n_visits)
        variances.append(float(head.label_var(noise.trusting(belief))))
    assert variances[0] == pytest.approx(head.target_var) and variances[0] < variances[1] < variances[2]
    for score in (0.0, 1.0, 2.0, 3.0):  # clean labels look best, because they are learned by heart
        noise.hear_score(score, score, belief)
    noise.grow(200)
    assert float(head.label_var(noise.trusting(belief))) == variances[2]


@pytest.mark.parametrize("head", [bmp.Regression(0.09), bmp.Softmax(scale=None), bmp.Argmax(target_var=0.1)], ids=repr)
def test_other_heads_know_no_limit(head):
    """Their messages to weights depend on nothing that is learned."""
    noise, belief = trusted(head, largest=1e-3), torch.zeros(len(head.grid), dtype=torch.float64)
    noise.grow(1)
    before = noise.counters()
    for score in (0.0, 1.0, 2.0, 3.0):
        noise.hear_score(score, score, belief)
    assert noise.trusting(belief) is belief and noise.counters() == before


# --- scores ----------------------------------------------------------------------------------------------------------

WORSE = SETTINGS.worse_score * 1.5


@pytest.mark.parametrize(
    "heard, is_capped",
    [
        ([(0.0, 1.0, 0.1), (WORSE, 1.1, 0.2), (WORSE, 1.1, 0.2)], True),
        ([(0.0, 1.0, 0.1), (WORSE, 1.1, 0.2)], False),  # once may be chance
        ([(0.0, 1.0, 0.1), (WORSE / 2, 1.1, 0.2), (WORSE / 2, 1.1, 0.2)], False),  # hardly worse
        ([(0.0, 1.0, 0.1), (WORSE, 1.1, 0.1), (WORSE, 1.1, 0.1)], False),  # no more noise
        ([(0.0, 1.0, 0.1), (WORSE, 0.9, 0.2), (WORSE, 0.9, 0.2)], False),  # noise is learned by heart
        ([(0.0, 0.8, 0.1), (9.0, 0.5, 0.2), (1.0, 0.9, 0.3), (1.0, 1.0, 0.4)], False),  # was, and is no longer
        ([(0.0, 0.8, 0.05), (9.0, 0.5, 0.1), (9.1, 0.9, 0.3), (9.1, 1.0, 0.4)], True),
        ([(0.0, 1.0, 0.1), (WORSE, 1.1, 0.2), (0.0, 1.1, 0.2), (WORSE, 1.1, 0.2)], False),  # not in a row
        ([(0.0, 1.0, 0.1), (WORSE, 1.1, 0.2), (-1.0, 1.1, 0.2), (WORSE, 1.2, 0.3)], False),  # a better one between
        ([(0.0, 1.0, 0.2), (-1.0, 0.9, 0.1), (WORSE, 1.1, 0.2), (WORSE, 1.1, 0.2)], True),
    ],
)
def test_worse_scores_hold_the_noise_low_where_noise_and_error_grew(heard, is_capped):
    """Scores, errors in training and the noise of it, refresh by refresh: held at the noise of the best score."""
    noise = trusted()
    for score, error, constant in heard:
        noise.hear_score(score, error, sharp(noise.head, constant))
    noise.grow(10**6)
    lowest = sharp(noise.head, 0.1)
    expected = float(noise.head.in_training(lowest)) if is_capped else math.inf
    assert float(noise.limit) == pytest.approx(expected)


def test_other_data_begin_anew():
    noise, new = trusted(), trusted(largest=2.0)
    for score in (0.0, 1.0, 2.0):
        noise.hear_score(score, score, sharp(noise.head, 0.1 + score))
    assert noise.cap < math.inf
    noise.begin(2.0)
    assert noise.counters() == new.counters()
    for each in (noise, new):
        each.grow(1)
    assert noise.limit == new.limit < 2.0


# --- files -----------------------------------------------------------------------------------------------------------


def test_counters_go_through_a_file():
    noise, other = trusted(), trusted()
    for score in (0.0, 1.0, 2.0, 3.0):
        noise.hear_score(score, score, sharp(noise.head, 0.1 + score))
    saved = json.loads(json.dumps(noise.counters()))
    assert set(saved) == {"constant_cap", "best_score", "best_constant", "best_error", "n_worse"}, "names in files"
    assert saved["constant_cap"] < math.inf and saved["n_worse"] == 1
    other.take_counters(saved)
    assert other.counters() == noise.counters()
    for each in (noise, other):
        each.hear_score(4.0, 4.0, sharp(each.head, 5.0))
        each.grow(1)
    assert other.counters() == noise.counters() and other.limit == noise.limit


def test_a_file_from_before_errors_were_heard_still_loads():
    """Runs of older versions know fewer counters; the others stay as a new run has them."""
    x, y = linear_data(20)
    schedule = bmp.Trainer(mlp([3, 4, 1], bmp.Regression("learn")), x, y, batch_size=10, joint=True).schedule
    schedule.resume({"n_visits": 7, "next_renewal": 9, "constant_cap": 0.5, "best_score": 1.0})
    expected = {"n_visits": 7, "next_renewal": 9, "constant_cap": 0.5, "best_score": 1.0}
    others = {"best_constant": math.inf, "best_error": math.inf, "n_worse": 0, "step_length": 1.0}
    assert schedule.counters() == {**expected, **others}
