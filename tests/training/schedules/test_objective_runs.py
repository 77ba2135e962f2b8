"""Runs with an objective: what they keep of their promises about files, changes of the data and interruptions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import bayesmp as bmp
from bayesmp.basics.settings import SETTINGS
from bayesmp.evidence import Descent
from bayesmp.evidence.descent import MOST_INPUTS
from bayesmp.training.schedules import ObjectiveSchedule, can_have_objective
from tests.basics.test_persistence import assert_same_run
from tests.helpers import is_same, linear_data, mlp


def trainer_on(x, y, sizes=(3, 6, 1), **options) -> bmp.Trainer:
    trainer = bmp.Trainer(mlp(sizes, bmp.Regression("learn")), x, y, batch_size=8, **options)
    assert isinstance(trainer.schedule, ObjectiveSchedule)
    return trainer


def test_when_sites_are_told_changes_nothing(tmp_path):
    """Checkpoints tell them in the middle of a run. Records of the epochs behind were others then: how far weights had
    moved was measured by the marginal, which was that of the start until sites were told.
    """
    x, y = linear_data(40)
    plain, checked = trainer_on(x, y), trainer_on(x, y, checkpoint=tmp_path, every=1, keep=100)
    for each in (plain, checked):
        each.run(7)
    assert_same_run(plain, checked)
    assert plain.history[0].loo["moved"] > 0.1
    again = bmp.Trainer.load(tmp_path / "epoch-00000003.safetensors", x, y)
    again.run(4)
    assert_same_run(plain, again)


def test_sites_are_told_by_as_many_batches_at_once_as_there_is_room_for(monkeypatch):
    x, y = linear_data(40)
    trainer = trainer_on(x, y)
    trainer.run(1)
    before, slopes_at, sizes = trainer.sites.slope.clone(), Descent.slopes_at, []

    def counted(descent, rows):
        sizes.append(len(rows))
        return slopes_at(descent, rows)

    monkeypatch.setattr("bayesmp.training.schedules.objective.SETTLED_AT_ONCE", 16)
    monkeypatch.setattr(Descent, "slopes_at", counted)
    trainer.schedule.settle(trainer.members)
    assert sizes == [16, 16, 8], "batches have 8 rows each"
    torch.testing.assert_close(trainer.sites.slope, before)


def test_what_is_predicted_with_goes_through_a_file_as_it_is(tmp_path):
    """Spread came back in float32 and had been kept in float64."""
    x, y = linear_data(40)
    trainer = trainer_on(x, y)
    trainer.run(5)
    trainer.network.save(tmp_path / "network.safetensors")
    before, after = trainer.network.state(), bmp.load(tmp_path / "network.safetensors").state()
    assert "fitted.spread.0" in before and before.keys() == after.keys()
    for name, part in before.items():
        assert part.dtype == after[name].dtype and torch.equal(part, after[name]), name


def test_a_removal_hears_nothing_of_examples_that_were_never_visited():
    """Its step was made on all data, new ones among them."""
    x, y = linear_data(60)
    runs = [trainer_on(x[:40], y[:40]) for _ in range(2)]
    for run in runs:
        run.run(5)
    new = runs[1].add(x[40:], y[40:] + 5.0)
    before = runs[0].network.marginal.mean.clone()
    for run in runs:
        run.remove(list(range(10)))
    assert not torch.allclose(before, runs[0].network.marginal.mean), "those that go are missed"
    torch.testing.assert_close(runs[0].network.marginal.mean, runs[1].network.marginal.mean)
    torch.testing.assert_close(runs[0].network.predict(x).mean, runs[1].network.predict(x).mean)
    runs[1].remove(list(range(10, 40)))
    assert torch.equal(runs[1].ids, new) and runs[1].network.marginal.mean.isfinite().all()
    assert runs[1].check_invariant() < 1e-4 and runs[1].network.belief is None
    runs[1].run(10)
    assert runs[1].network.predict(x[40:]).mean.mean() > 3.0


def test_a_removal_leaves_noise_and_width_to_the_next_epoch():
    """They went on alone, and the belief was made with another prior than the network's."""
    x, y = linear_data(40)
    trainer = trainer_on(x, y)
    trainer.run(8)
    before = trainer.schedule.counters()
    trainer.remove(list(range(20)))
    found = trainer.schedule.counters()
    assert [found[name] for name in ("noise", "width")] == [before[name] for name in ("noise", "width")]
    assert found["width"] == pytest.approx(trainer.network.prior_width)
    trainer.run(1)
    assert trainer.schedule.counters()["noise"] != before["noise"]


def test_a_run_that_was_interrupted_before_its_first_epoch_finds_its_way_all_the_same(monkeypatch):
    """A step of a removal then counted as the first one, after which no way is looked for."""
    x, y = linear_data(40)
    trainer, fresh = trainer_on(x, y), trainer_on(x[8:], y[8:])
    with monkeypatch.context() as patched:
        patched.setattr(trainer.schedule, "run_epoch", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            trainer.run(1)
    trainer.remove(list(range(8)))
    for each in (trainer, fresh):
        each.run(20)
    assert trainer.schedule.counters()["n_steps"] > 20
    assert trainer.history[-1].objective == pytest.approx(fresh.history[-1].objective, abs=1.0)


def test_a_first_epoch_that_was_interrupted_begins_anew(monkeypatch):
    """Rows that had joined until then were all that the next epoch knew of: it looked for no way any more."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1500, 3, generator=generator)
    y = torch.sin(2 * x[:, :1]) + 0.1 * torch.randn(1500, 1, generator=generator)
    trainer, fresh = trainer_on(x, y), trainer_on(x, y)
    for each in (trainer, fresh):
        each.schedule.settings = replace(SETTINGS, first_rows=40)
    rest, calls = Descent.rest, []

    def interrupted(descent, **options):
        calls.append(len(descent.objective.x))
        if calls[-1] > 40 and calls.count(calls[-1]) == 1:
            raise KeyboardInterrupt
        rest(descent, **options)

    monkeypatch.setattr(Descent, "rest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.run(1)
    for each in (trainer, fresh):
        each.run(1)
    n = calls.index(640) + 1
    assert calls[:n] == calls[n : 2 * n], "the same parts again"
    assert trainer.history[-1].objective == pytest.approx(fresh.history[-1].objective)


@pytest.mark.parametrize("n", [100, 300])
@pytest.mark.slow
def test_a_layer_with_many_inputs_goes_on_from_a_file(n, tmp_path):
    """With more rows than weights its units' covariances are held, with fewer the variances at the rows; a run was
    started with room for the latter alone, and a file of the former could not be read.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, MOST_INPUTS + 1, generator=generator)
    y = x[:, :1] + 0.1 * torch.randn(n, 1, generator=generator)
    trainer = trainer_on(x, y, (MOST_INPUTS + 1, 1, 1))
    trainer.run(2)
    trainer.save(tmp_path / "run.safetensors")
    loaded = bmp.Trainer.load(tmp_path / "run.safetensors", x, y)
    for each in (trainer, loaded):
        each.run(2)
    assert_same_run(trainer, loaded)
    assert is_same(trainer.network.predict(x[:5]), loaded.network.predict(x[:5]))


# --- when there is one -----------------------------------------------------------------------------------------------


def schedule_of(layers, n_rows, **options):
    x, y = torch.randn(n_rows, 1, 8, 8), torch.randn(n_rows, 1)
    return type(bmp.Trainer(bmp.Network(layers, bmp.Regression(0.1)), x, y, **options).schedule)


def wide(n: int, *, prior=None):
    return [bmp.Flatten(), bmp.Linear(64, n, weight_prior=prior), bmp.LeakyReLU(), bmp.Linear(n, 1)]


UNEVEN = (torch.zeros(40, 64), torch.linspace(0.1, 0.2, 40)[:, None].expand(40, 64).contiguous())


@pytest.mark.parametrize(
    "layers, is_possible",
    [
        (wide(40), True),
        (wide(40, prior=UNEVEN), False),
        (wide(20, prior=(UNEVEN[0][:20], UNEVEN[1][:20])), True),
        (
            [
                bmp.Conv2d(1, 8, 3),
                bmp.LeakyReLU(),
                bmp.Flatten(),
                bmp.Linear(288, 10),
                bmp.LeakyReLU(),
                bmp.Linear(10, 1),
            ],
            False,
        ),
        ([bmp.Conv2d(1, 4, 3), bmp.LeakyReLU(), bmp.Flatten(), bmp.Linear(144, 1)], True),
    ],
    ids=["dense", "priors of their own", "few with priors of their own", "convolution", "small convolution"],
)
def test_many_weights_have_an_objective_where_units_are_alike(layers, is_possible):
    """Else H would be a matrix over all weights: of 30,000 weights and 300 rows 7 GB."""
    found = schedule_of(layers, 50)
    assert (found is ObjectiveSchedule) == is_possible


@pytest.mark.parametrize(
    "layers, is_possible",
    [
        (wide(80), True),
        (wide(80, prior=(UNEVEN[0].repeat(2, 1), UNEVEN[1].repeat(2, 1))), False),
        (wide(40, prior=UNEVEN), True),
    ],
    ids=["dense", "priors of their own", "few with priors of their own"],
)
def test_an_objective_that_takes_long_is_possible_for_more_weights(layers, is_possible):
    """As weights of examples ask for it."""
    network = bmp.Network(layers, bmp.Regression(0.1), input_shape=(1, 8, 8))
    assert can_have_objective(network) == is_possible


def test_few_weights_with_priors_of_their_own_and_fewer_rows_are_believed_in_full():
    """The belief was planned over rows, and then made of what data say over weights, which failed."""
    x, y = linear_data(30, n_in=8)
    prior = (torch.zeros(10, 8), torch.linspace(0.1, 0.2, 80).view(10, 8))
    network = bmp.Network(
        [bmp.Linear(8, 10, weight_prior=prior), bmp.LeakyReLU(), bmp.Linear(10, 1)], bmp.Regression(0.1)
    )
    history = bmp.fit(network, x, y, epochs=8)
    assert network.fitted is not None and network.belief.is_exact and network.belief.rank == network.n_weights
    score = -network.predict(x).log_prob(y).mean()
    assert float(score) < history.loo_nll[-1] < float(score) + 1.0
