"""A run that ends in a jump goes back to the best of its last refreshes."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.calm import CalmState, ends_in_jump, go_back, keep_if_best, tensors_of
from bayesmp.settings import SETTINGS
from tests.helpers import mlp

AT_ONCE = replace(SETTINGS, calm_visits=0)
REFRESHED = 64  # an epoch after which training refreshes the belief


def new_trainer(head: bmp.Regression | bmp.Argmax | None = None, **options: object) -> bmp.Trainer:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=40)
    network = mlp([3, 8, 1] if head is None else [3, 8, 2], bmp.Regression("learn") if head is None else head)
    targets = y if head is None else (y > 0).astype(int)
    return bmp.Trainer(network, x, targets, **{"batch_size": 4, **options})  # type: ignore[arg-type]


def kept_by(trainer: bmp.Trainer) -> CalmState:
    found = keep_if_best(trainer, None, settings=AT_ONCE)
    assert found is not None
    return found


@pytest.mark.parametrize("head", [None, bmp.Argmax()])
def test_a_run_goes_on_from_there_as_if_nothing_had_been(head):
    trainer, straight = new_trainer(head), new_trainer(head)
    for each in (trainer, straight):
        each.run(REFRESHED, progress=False)
    kept = kept_by(trainer)
    trainer.run(7, progress=False)
    assert trainer.n_epochs == REFRESHED + 7
    go_back(trainer, kept)
    assert trainer.n_epochs == len(trainer.history) == REFRESHED
    for each in (trainer, straight):
        each.run(5, progress=False)
    assert torch.equal(trainer.network.marginal.tau, straight.network.marginal.tau)
    assert torch.equal(trainer.network.predict(trainer.x).mean, straight.network.predict(trainer.x).mean)
    assert trainer.history.loo_nll[-1] == straight.history.loo_nll[-1]


def test_what_is_kept_is_a_copy_of_the_best_of_late():
    trainer = new_trainer()
    assert keep_if_best(trainer_after(trainer, 1), None) is None, "visits are few"
    trainer.run(REFRESHED - 1, progress=False)
    kept = kept_by(trainer)
    before = {name: part.clone() for name, part in kept.tensors.items()}
    trainer.run(19, progress=False)  # until epoch 83, the next refresh
    assert all(torch.equal(part, before[name]) for name, part in kept.tensors.items())
    assert any(not torch.equal(part, before[name]) for name, part in tensors_of(trainer).items())
    better = replace(kept, scores=(trainer.history.loo_nll[-1] - 1.0, 0.0))
    worse = replace(kept, scores=(trainer.history.loo_nll[-1] + 1.0, 0.0))
    assert keep_if_best(trainer, better, settings=AT_ONCE) is better
    assert keep_if_best(trainer, worse, settings=AT_ONCE).epoch == 83
    assert keep_if_best(trainer, replace(better, epoch=10), settings=AT_ONCE).epoch == 83, "too long ago"
    assert keep_if_best(trainer, None, settings=replace(AT_ONCE, calm_numbers=10)) is None, "too large"


def trainer_after(trainer: bmp.Trainer, epochs: int) -> bmp.Trainer:
    trainer.run(epochs, progress=False)
    return trainer


@pytest.mark.parametrize("left_out, in_training, is_jump", [(0.3, 0.3, True), (0.3, 0.2, False), (0.2, 0.3, False)])
def test_a_jump_is_seen_left_out_and_in_training(left_out, in_training, is_jump):
    """Noise learned by heart makes the one worse and the other better."""
    trainer = trainer_after(new_trainer(), REFRESHED)
    kept = kept_by(trainer)
    last = trainer.history[-1]
    metrics = {**last.metrics, "nll": last.metrics["nll"] + in_training}
    trainer.history.records[-1] = replace(last, loo={**last.loo, "nll": last.loo["nll"] + left_out}, metrics=metrics)
    assert ends_in_jump(trainer, kept) == is_jump


def test_the_end_of_a_run_is_not_much_worse_than_its_last_refreshes():
    """Targets without noise: this run ended in a jump, with a leave-one-out NLL of .06 after -3.39, R2 .949."""
    rng = np.random.default_rng(19)
    x = rng.normal(size=(1400, 3))
    y = 2.0 * x[:, 0] + np.sin(2.0 * x[:, 1])
    with pytest.warns(Warning, match="not at rest|went back"):
        found = bmp.MPRegressor(random_state=19).fit(x[:400], y[:400])
    scores = [score for score in found.history_.loo_nll if not np.isnan(score)]
    assert scores[-1] < min(scores[-SETTINGS.calm_refreshes :]) + SETTINGS.calm_loss
    assert found.score(x[400:], y[400:]) > 0.99


def test_a_run_that_went_back_says_so(monkeypatch):
    monkeypatch.setattr("bayesmp.trainer.ends_in_jump", lambda run, kept: True)
    trainer = new_trainer()
    with pytest.warns(UserWarning, match=f"went back to epoch {REFRESHED}, before a jump"):
        history = trainer.run("auto", max_epochs=70, progress=False)
    assert history.stopped.endswith(f"; went back to epoch {REFRESHED}, before a jump")
    assert len(history) == REFRESHED and trainer.network.has_belief and trainer.check_invariant() < 1e-4
    straight = trainer_after(new_trainer(), REFRESHED)
    assert torch.equal(trainer.network.predict(trainer.x).var, straight.network.predict(trainer.x).var)


def test_a_checkpoint_holds_what_may_be_gone_back_to(tmp_path, monkeypatch):
    """A run that is resumed behind the refresh that it goes back to ends as one that was never interrupted."""
    trainer = new_trainer(checkpoint=tmp_path / "run", every=67, keep=5)
    aside = tmp_path / "killed"
    aside.mkdir()

    def copied(run, kept):
        for path in (tmp_path / "run").glob("*67*"):
            shutil.copy(path, aside)
        return True

    monkeypatch.setattr("bayesmp.trainer.ends_in_jump", copied)
    with pytest.warns(UserWarning, match="went back"):
        trainer.run("auto", max_epochs=70, progress=False)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [f"epoch-{REFRESHED:08d}.safetensors"]
    resumed = bmp.Trainer.resume(aside, trainer.x, trainer.y, every=67)
    assert resumed.n_epochs == 67 and resumed._calm.epoch == REFRESHED
    with pytest.warns(UserWarning, match="went back"):
        resumed.run("auto", max_epochs=70, progress=False)
    assert resumed.n_epochs == REFRESHED
    assert torch.equal(resumed.network.marginal.tau, trainer.network.marginal.tau)
    assert torch.equal(resumed.network.predict(trainer.x).var, trainer.network.predict(trainer.x).var)


def test_changed_data_leave_nothing_to_go_back_to():
    trainer = trainer_after(new_trainer(), REFRESHED)
    trainer._calm = kept_by(trainer)
    trainer.remove(trainer.ids[:3])
    assert trainer._calm is None
