"""Rehearsals: where the leave-one-out score of labels tells nothing, rows that were never seen tell it."""

from __future__ import annotations

import copy
import itertools
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bayesmp as bmp
from bayesmp.basics.settings import SETTINGS
from bayesmp.evidence.unseen import JudgedLabels
from bayesmp.training import rehearsal


def noisy_labels(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two classes, of which a fifth are wrong; what is right depends on two of eight columns."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long()
    return x, torch.where(torch.rand(n, generator=generator) < 0.2, 1 - y, y)


def deep_network() -> bmp.Network:
    sizes = (8, 30, 30, 30, 30)
    layers: list[bmp.layers.Layer] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [bmp.layers.Linear(n_in, n_out), bmp.layers.LeakyReLU(0.1)]
    return bmp.Network([*layers, bmp.layers.Linear(30, 2)], bmp.heads.Argmax(), seed=0)


def run(trainer: bmp.Trainer, max_epochs: int) -> bmp.History:
    """Until it is at rest, or so many epochs have passed, which is no matter here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "training was not at rest")
        return trainer.run(max_epochs=max_epochs)


def test_the_score_of_labels_is_that_of_rows_that_were_never_seen() -> None:
    x, y = noisy_labels(200)
    trainer = bmp.Trainer(deep_network(), x, y, batch_size=64, learn_prior=False)
    run(trainer, 40)
    x, y = noisy_labels(2000, seed=1)
    nll = -float(trainer.network.predict(x).log_prob(y).mean())
    assert trainer.history.loo_nll[-1] == pytest.approx(nll, abs=0.15)
    assert trainer.history[-1].loo["n_unseen"] == 200  # five rehearsals, each without a fifth


def test_a_number_of_epochs_is_all_that_is_done() -> None:
    assert "n_unseen" not in trained_for(100, 5).history[-1].loo


def rehearsed(width: float, surprise: float) -> rehearsal.Rehearsal:
    return rehearsal.Rehearsal(width, 1.0 + width, torch.full((50,), surprise, dtype=torch.float64), 0.25)


@pytest.mark.parametrize(
    ("surprises", "width"),
    [
        ({1.0: 0.5, 0.25: 0.6}, 1.0),
        ({1.0: 0.6, 0.25: 0.5, 0.0625: 0.7}, 0.25),
        ({1.0: 0.6, 0.25: 0.5, 0.0625: 0.4, 0.015625: 0.4}, 0.0625),
    ],
)
def test_the_prior_is_as_narrow_as_predicts_best(
    monkeypatch: pytest.MonkeyPatch, surprises: dict[float, float], width: float
) -> None:
    asked: list[float] = []

    def rehearse(trainer: bmp.Trainer, width: float, n_epochs: int, **options: object) -> rehearsal.Rehearsal:
        assert n_epochs == trainer.n_epochs - trainer.history.changed_at > 0
        asked.append(width)
        return rehearsed(width, surprises[width])

    monkeypatch.setattr(rehearsal, "rehearse", rehearse)
    monkeypatch.setattr(rehearsal, "may_narrow", lambda trainer: True)
    trainer = bmp.Trainer(deep_network(), *noisy_labels(100), batch_size=64)
    history = run(trainer, 1000)
    assert asked == sorted(surprises, reverse=True)  # each once
    assert trainer.network.prior_width == width
    assert trainer.network.belief_scale == 1.0 + width
    assert history.loo_nll[-1] == pytest.approx(surprises[width])
    assert [change.what for change in history.changes] == ["narrowed"] * (len(surprises) - 2)
    assert trainer.check_invariant() < 1e-3


def test_a_run_whose_epochs_are_used_up_does_not_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "may_narrow", lambda trainer: True)
    monkeypatch.setattr(rehearsal, "rehearse", lambda trainer, width, n_epochs, **options: rehearsed(width, width))
    trainer = bmp.Trainer(deep_network(), *noisy_labels(100), batch_size=64)
    run(trainer, 3)
    assert trainer.n_epochs == 3 and trainer.network.prior_width == 1.0


def trained_for(n: int, epochs: int = 3, **options: object) -> bmp.Trainer:
    trainer = bmp.Trainer(deep_network(), *noisy_labels(n), batch_size=64, **options)
    trainer.run(epochs)
    return trainer


def test_the_prior_may_be_narrower_where_most_examples_hold_their_own_outputs() -> None:
    def clipped(trainer: bmp.Trainer, share: float) -> bmp.Trainer:
        last = trainer.history[-1]
        trainer.history.records[-1] = replace(last, loo={**last.loo, "clipped": share})
        return trainer

    assert rehearsal.may_narrow(clipped(trained_for(40), 0.51))
    assert not rehearsal.may_narrow(clipped(trained_for(40), 0.49))
    assert not rehearsal.may_narrow(clipped(trained_for(40, learn_prior=False), 0.51))
    trainer = clipped(trained_for(40), 0.51)
    trainer.network.prior = trainer.network.prior  # as a user gives it
    assert not rehearsal.may_narrow(trainer)


def test_when_a_rehearsal_is_called_for() -> None:
    settings = replace(SETTINGS, rehearsed_numbers=200)  # two classes
    assert rehearsal.is_called_for(trained_for(100), settings=settings)
    assert not rehearsal.is_called_for(trained_for(101), settings=settings)
    assert rehearsal.is_called_for(trained_for(10), settings=settings)
    assert not rehearsal.is_called_for(trained_for(9), settings=settings)
    trainer = trained_for(50)
    trainer.add(*noisy_labels(5, seed=2))  # not heard yet
    assert not rehearsal.is_called_for(trainer, settings=settings)


def test_noisy_targets_objectives_and_exact_beliefs_need_none() -> None:
    x, y = noisy_labels(60)
    network = bmp.Network([bmp.layers.Linear(8, 2)], bmp.heads.Softmax(), seed=0)
    trainer = bmp.Trainer(network, x, y, batch_size=32)
    assert trainer.has_objective and not rehearsal.is_called_for(trainer)
    network = bmp.Network([bmp.layers.Linear(8, 2)], bmp.heads.Argmax(), seed=0)
    trainer = bmp.Trainer(network, x, y, batch_size=32)
    assert not trainer.has_objective and not rehearsal.is_called_for(trainer)
    layers = [bmp.layers.Linear(8, 30), bmp.layers.LeakyReLU(0.1), bmp.layers.Linear(30, 4)]
    trainer = bmp.Trainer(bmp.Network(layers, bmp.heads.Regression(0.1), seed=0), x, x[:, :4], schedule="sequential")
    assert not trainer.has_objective and not rehearsal.is_called_for(trainer)


def test_judging_rows_take_no_part() -> None:
    """Whatever their labels are, what is predicted for them is the same, and judged by just these labels."""
    trainer = trained_for(405)
    settings = replace(SETTINGS, judging_rows=81)  # one rehearsal, of an odd number: never is just half of it wrong
    order = torch.randperm(405, generator=torch.Generator().manual_seed(trainer.config.seed)).argsort()
    y, late = trainer.data.y, order[:81]
    first = rehearsal.rehearse(trainer, 1.0, 3, settings=settings)
    network = trainer.trained_on(order[81:].sort().values, width=1.0, n_epochs=3, progress=False)
    is_wrong = network.predict(trainer.data.x[late]).label != y[late]
    trainer.data = replace(trainer.data, y=y.index_copy(0, late, 1 - y[late]))
    second = rehearsal.rehearse(trainer, 1.0, 3, settings=settings)
    trainer.data = replace(trainer.data, y=y.index_copy(0, order[81:], 1 - y[order[81:]]))
    third = rehearsal.rehearse(trainer, 1.0, 3, settings=settings)
    assert first is not None and second is not None and third is not None
    assert first.error == pytest.approx(float(is_wrong.double().mean()))
    assert first.error + second.error == pytest.approx(1.0)
    assert not torch.allclose(first.surprise, third.surprise)


def test_outputs_are_judged_as_what_varies_together(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[JudgedLabels] = []

    def belief_scale(unseen: JudgedLabels, **options: object) -> float:
        judged.append(unseen)
        return 1.0

    monkeypatch.setattr(rehearsal, "belief_scale", belief_scale)
    rehearsal.rehearse(trained_for(40, 1), 1.0, 1)
    assert bool((judged[0].covariance[:, 0, 1] != 0.0).all())


def test_whole_groups_judge_and_copies_once() -> None:
    x, y = noisy_labels(40)
    x, y = x.repeat(2, 1), y.repeat(2)
    trainer = bmp.Trainer(deep_network(), x, y, batch_size=64)
    trainer.run(1)
    judged = rehearsal.rehearse(trainer, 1.0, 1)
    assert judged is not None and len(judged.surprise) == 40  # of each pair one
    everybody = torch.zeros(80, dtype=torch.int64)
    trainer = bmp.Trainer(deep_network(), x, y, batch_size=64, groups=everybody)
    trainer.run(1)
    assert rehearsal.rehearse(trainer, 1.0, 1) is None


def test_training_itself_is_not_touched() -> None:
    trainer = trained_for(60)
    before = {name: part.clone() for name, part in trainer.state().items()}
    network = copy.deepcopy(trainer.network)
    rehearsal.rehearse(trainer, 0.25, 2)
    assert all(torch.equal(part, before[name]) for name, part in trainer.state().items())
    x, _ = noisy_labels(10, seed=3)
    assert torch.equal(trainer.network.predict(x).probs, network.predict(x).probs)


def test_a_killed_run_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    x, y = noisy_labels(100)
    whole = bmp.Trainer(deep_network(), x, y, batch_size=64)
    run(whole, 30)
    folder = tmp_path / "run"
    part = bmp.Trainer(deep_network(), x, y, batch_size=64, checkpoint=folder, every=5, keep=100)
    part.run(10)
    resumed = bmp.Trainer.resume(folder, x, y)
    run(resumed, 30)
    assert whole.network.prior_width == resumed.network.prior_width
    assert whole.network.belief_scale == resumed.network.belief_scale
    assert torch.equal(whole.network.marginal.tau, resumed.network.marginal.tau)


@pytest.mark.parametrize(("gain", "is_better"), [(0.5, True), (0.01, False), (-0.5, False)])
def test_a_gain_by_chance_is_none(gain: float, is_better: bool) -> None:
    noise = torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first = rehearsal.Rehearsal(1.0, 1.0, torch.ones(100, dtype=torch.float64), 0.1)
    second = replace(first, surprise=1.0 - gain + 0.5 * (noise - noise.mean()))
    assert second.is_clearly_better_than(first) == is_better
