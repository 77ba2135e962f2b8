"""What refreshes may cost: the rule by itself, and in runs."""

import math

import pytest
import torch

import bayesmp as bmp
from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.evidence.budget import (
    AT_END,
    FEWEST,
    MOST_EPOCHS,
    PER_CROSSING,
    ROWS_PER_ANCHOR,
    Size,
    cost_of_refresh,
    cost_of_visits,
    is_paid,
    size_at_end,
    size_in_training,
)
from bayesmp.training.stopping import refreshes
from tests.helpers import blobs, mlp

N = 30_000


def classes(n_outputs=10):
    return mlp([12, 40, n_outputs], bmp.Argmax())


def noisy():
    return mlp([12, 60, 60, 1], bmp.Regression("learn"))


@pytest.mark.parametrize("make", [classes, noisy])
def test_a_refresh_in_training_looks_at_what_an_epoch_pays_for(make):
    network = make()
    least = (SETTINGS.least_rank_of_noise if network.head.has_noise else SETTINGS.least_rank)[0]
    sizes = [size_in_training(network, N, 10.0**power) for power in range(8, 14)]
    assert sizes[-1].examples == SETTINGS.refresh_examples and sizes[-1].rank == SETTINGS.refresh_examples // 2
    assert sizes[0].rank == least and sizes[0].examples >= 2 * least
    for power, size in zip(range(8, 14), sizes, strict=True):
        allowed = max(10.0**power, SETTINGS.refresh_start / 16)
        assert size.rank == least or cost_of_refresh(network, N, size) <= allowed
    assert [size.rank for size in sizes] == sorted(size.rank for size in sizes)


def test_many_outputs_are_looked_at_for_few_examples():
    """A refresh of 1,000 classes took minutes."""
    few, many = size_in_training(classes(), N, 1e10), size_in_training(classes(1000), N, 1e10)
    assert many.examples < few.examples and many.judged < few.judged == SETTINGS.judged_examples
    fewest = max(FEWEST, ROWS_PER_ANCHOR * many.rank // 1000)
    assert many.examples == fewest or cost_of_refresh(classes(1000), N, many) <= MOST_EPOCHS * 1e10


def test_the_end_gives_up_anchors_before_examples():
    """Scores of a part of the data are less right."""
    network = classes()
    whole = size_at_end(network, N, 1e14)
    assert (whole.examples, whole.steps) == (SETTINGS.final_examples, SETTINGS.balance_steps)
    visits = 2.0 * cost_of_refresh(network, N, Size(20_000, 256, SETTINGS.least_steps, 5000), is_last=True)
    fewer = size_at_end(network, N, visits)
    assert fewer.rank == SETTINGS.least_rank[1] and fewer.examples == SETTINGS.final_examples
    assert cost_of_refresh(network, N, fewer, is_last=True) <= AT_END * visits
    least = size_at_end(network, N, 0.0)
    assert least.rank == SETTINGS.least_rank[1] and least.examples < SETTINGS.final_examples
    assert cost_of_refresh(network, N, least, is_last=True) <= SETTINGS.refresh_start


@pytest.mark.parametrize("is_shared", [True, False])
def test_rows_are_formed_and_paid_for_where_weights_are_shared(is_shared):
    """What one more example costs for one more anchor, beside what each crossing of the two does."""
    first = [bmp.Conv2d(16, 40, 3), bmp.Flatten()] if is_shared else [bmp.Flatten(), bmp.Linear(144, 40)]
    network = bmp.Network([*first, bmp.Linear(40, 1)], bmp.Regression(0.1), input_shape=(16, 3, 3))
    of_examples = [
        cost_of_refresh(network, N, Size(2000, rank, 0, 0)) - cost_of_refresh(network, N, Size(1000, rank, 0, 0))
        for rank in (32, 64)
    ]
    per_crossing = (of_examples[1] - of_examples[0]) / (1000 * 32) - 4 * (32 + 64) - PER_CROSSING
    assert (per_crossing > 40 * 145) == is_shared, "weights of the first layer"


def test_small_data_keep_their_exact_belief_at_the_end():
    assert size_at_end(classes(), 100, 0.0).rank == 1024


def test_refreshes_are_paid_by_visits_beside_the_start():
    start = SETTINGS.refresh_start
    assert is_paid(0, start, 0.0) and not is_paid(1, start, 0.0)
    assert is_paid(1, start, start) and not is_paid(2, start, start)


def test_visits_cost_what_they_multiply_and_something_each():
    network = classes()
    assert cost_of_visits(network, 1000, 100) > cost_of_visits(network, 1000, 10)
    assert (
        cost_of_visits(network, 2000, 0) == 2 * cost_of_visits(network, 1000, 0) > 1000 * network.products_per_example
    )


def epochs_refreshed(trainer):
    return [point.epoch for point in refreshes(trainer.history)]


def test_a_run_refreshes_when_it_is_paid(monkeypatch):
    """Nine tenths of short runs were refreshes. Without a start a run waits until visits have paid for the next."""
    x, y = blobs(200, spread=0.5)

    def trained(n_epochs):
        trainer = bmp.Trainer(mlp([2, 6, 3], bmp.Argmax()), x, y, batch_size=100)
        trainer.run(n_epochs, progress=False)
        return trainer

    assert epochs_refreshed(trained(8)) == [1, 2, 3, 4, 5, 6, 8], "the start pays"
    monkeypatch.setattr(
        "bayesmp.training.belief_maker.is_paid", lambda *found: is_paid(*found, settings=Settings(refresh_start=0.0))
    )
    trainer = trained(40)
    refresh_cost = cost_of_refresh(trainer.network, len(x), trainer._belief_maker.size_in_training(trainer.data))
    needed = math.ceil(refresh_cost / trainer._belief_maker.epoch_cost(trainer.data))
    assert 1 < needed < 20 and epochs_refreshed(trainer)[:2] == [needed, 2 * needed]
    for n_done, epoch in enumerate(epochs_refreshed(trainer), start=1):
        assert n_done * refresh_cost <= epoch * trainer._belief_maker.epoch_cost(trainer.data)


def test_a_resumed_run_is_refreshed_at_the_same_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "bayesmp.training.belief_maker.is_paid", lambda *found: is_paid(*found, settings=Settings(refresh_start=0.0))
    )
    x, y = blobs(200, spread=0.5)
    whole, first = (bmp.Trainer(mlp([2, 6, 3], bmp.Argmax()), x, y, batch_size=100) for _ in range(2))
    whole.run(30, progress=False)
    first.run(13, progress=False)
    first.save(tmp_path / "run")
    second = bmp.Trainer.load(tmp_path / "run", x, y)
    second.run(17, progress=False)
    assert epochs_refreshed(second) == epochs_refreshed(whole)
    assert torch.equal(second.network.marginal.tau, whole.network.marginal.tau)


def test_schedules_whose_visits_are_not_counted_have_no_limit():
    x, y = blobs(20, spread=0.5)
    trainer = bmp.Trainer(mlp([2, 6, 3], bmp.Argmax()), x, y, schedule="sequential")
    assert trainer._belief_maker.epoch_cost(trainer.data) == math.inf
    assert trainer._belief_maker.size_in_training(trainer.data).examples == SETTINGS.refresh_examples
