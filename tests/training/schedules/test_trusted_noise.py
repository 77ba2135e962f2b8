"""How much noise training may see: it begins low, and grows with visits until all of y may be noise."""

import math

import pytest
import torch

import bayesmp as bmp
from bayesmp.basics.settings import SETTINGS
from bayesmp.training.schedules.trusted_noise import TrustedNoise
from tests.helpers import linear_data, mlp

FIRST, GROWTH = SETTINGS.trust


def trusted(head=None, *, largest=math.inf):
    head = bmp.Regression("learn") if head is None else head
    noise = TrustedNoise(head, like=torch.zeros(0, dtype=torch.float64), settings=SETTINGS)
    noise.begin(largest)
    return noise


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


def test_labels_are_taken_for_clean_at_first():
    head = bmp.Argmax()
    noise, belief = trusted(head, largest=1.0), torch.zeros(len(head.grid), dtype=torch.float64)
    variances = []
    for n_visits in (1, 60, 200):
        noise.grow(n_visits)
        variances.append(float(head.label_var(noise.trusting(belief))))
    assert variances[0] == pytest.approx(head.target_var) and variances[0] < variances[1] < variances[2]


@pytest.mark.parametrize("head", [bmp.Argmax(), bmp.Regression("learn")], ids=repr)
def test_labels_and_noise_have_limits_of_their_own(head):
    noise = trusted(head, largest=2.0)
    first, growth = SETTINGS.trust if head.has_noise else SETTINGS.label_trust
    assert SETTINGS.trust != SETTINGS.label_trust
    noise.grow(3)
    assert float(noise.limit) == pytest.approx(2.0 * first * growth**3)


@pytest.mark.parametrize("head", [bmp.Regression(0.09), bmp.Softmax(scale=None), bmp.Argmax(target_var=0.1)], ids=repr)
def test_other_heads_know_no_limit(head):
    """Their messages to weights depend on nothing that is learned."""
    noise, belief = trusted(head, largest=1e-3), torch.zeros(len(head.grid), dtype=torch.float64)
    noise.grow(1)
    assert float(noise.limit) < 1e-3, "or this shows nothing"
    assert noise.trusting(belief) is belief and noise.held_back(belief) is None


@pytest.mark.parametrize("n_visits, is_held_back", [(1, True), (232, True), (233, False), (1000, False)])
def test_the_constant_is_held_back_until_all_of_y_may_be_noise(n_visits, is_held_back):
    noise = trusted(largest=3.0)
    belief = torch.zeros(len(noise.head.grid), dtype=torch.float64)
    noise.grow(n_visits)
    told = noise.held_back(belief)
    assert (told is not None) == is_held_back
    if is_held_back:
        assert told == float(noise.head.in_training(noise.trusting(belief))) <= float(noise.limit)


# --- runs ------------------------------------------------------------------------------------------------------------


def small_run(**options):
    x, y = linear_data(40)
    return bmp.Trainer(mlp([3, 4, 1], bmp.Regression("learn")), x, y, batch_size=10, joint=True, **options)


def test_other_data_begin_anew():
    """With all of the new targets as the noise that may be."""
    noise, new = trusted(largest=9.0), trusted(largest=2.0)
    noise.grow(300)
    noise.begin(2.0)
    for each in (noise, new):
        each.grow(1)
    assert float(noise.limit) == float(new.limit) < 2.0


def test_the_limit_of_a_run_follows_its_visits_also_from_a_file(tmp_path):
    """Nothing but the number of visits says where it is."""
    plain, stopped = small_run(), small_run()
    plain.run(3)
    stopped.run(2)
    stopped.save(tmp_path / "run.safetensors")
    again = bmp.Trainer.load(tmp_path / "run.safetensors", stopped.x, stopped.y)
    again.run(1)
    largest = float(plain.y.double().square().mean())
    for trainer in (plain, again):
        limit = float(trainer.schedule.noise.limit)
        assert limit == pytest.approx(FIRST * GROWTH**12 * largest, rel=0.3)
        assert limit == float(plain.schedule.noise.limit)
        assert trainer.schedule.held_back() is not None


def test_a_file_that_knows_fewer_counters_leaves_the_others_as_they_are():
    schedule = small_run().schedule
    before = schedule.counters()
    schedule.resume({"n_visits": 7})
    assert schedule.counters() == {**before, "n_visits": 7}
    assert {"n_visits", "next_renewal", "step_length"} == before.keys(), "names in files"
