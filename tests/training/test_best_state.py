"""The best state of a run is kept; epochs that diverge are taken back to it, and a run ends with it."""

from __future__ import annotations

import math
import shutil
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.basics.settings import SETTINGS
from bayesmp.training import best_state
from bayesmp.training.best_state import KeptState, ends_worse, go_back, has_diverged, keep_if_best, tensors_of
from bayesmp.training.constant_guess import constant_nll
from tests.helpers import blobs, is_same, mlp

AT_ONCE = replace(SETTINGS, trusted_visits=0)
REFRESHED = 64  # an epoch after which training refreshes the belief


def new_trainer(head: bmp.Regression | bmp.Argmax | None = None, **options: object) -> bmp.Trainer:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=40)
    network = mlp([3, 8, 1] if head is None else [3, 8, 2], bmp.Regression("learn") if head is None else head)
    targets = y if head is None else (y > 0).astype(int)
    joint = True if network.head.has_noise else None  # visits to batches, not an objective, which only falls
    return bmp.Trainer(network, x, targets, **{"batch_size": 4, "joint": joint, **options})  # type: ignore[arg-type]


def trainer_after(trainer: bmp.Trainer, epochs: int) -> bmp.Trainer:
    trainer.run(epochs, progress=False)
    return trainer


def kept_by(trainer: bmp.Trainer) -> KeptState:
    found = keep_if_best(trainer, None, settings=AT_ONCE)
    assert found is not None
    return found


def with_last(trainer: bmp.Trainer, *, left_out: float = 0.0, **metrics: float) -> None:
    """Change the scores of the last epoch by so much."""
    last = trainer.history[-1]
    changed = {**last.metrics, **{name: last.metrics[name] + value for name, value in metrics.items()}}
    loo = {**last.loo, "nll": last.loo["nll"] + left_out} if last.loo else last.loo
    trainer.history.records[-1] = replace(last, metrics=changed, loo=loo)


def spoil(monkeypatch, trainer: bmp.Trainer, at: int, value: float) -> None:
    """Let the means be this after a certain epoch."""
    visit, last = trainer.schedule.visit, len(trainer.members) - 1
    visits = iter(range(10**6))
    start = trainer.n_epochs

    def spoilt(batch, epoch):
        info = visit(batch, epoch)
        if next(visits) == (at - start) * (last + 1) - 1:
            trainer.sites.origin.fill_(value)
        return info

    monkeypatch.setattr(trainer.schedule, "visit", spoilt)


# --- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [None, bmp.Argmax()])
def test_a_run_goes_on_from_there_as_if_nothing_had_been(head):
    trainer, straight = (trainer_after(new_trainer(head), REFRESHED) for _ in range(2))
    kept, records = kept_by(trainer), len(trainer.history)
    trainer.run(7, progress=False)
    go_back(trainer, kept)
    assert trainer.n_epochs == REFRESHED + 7, "epochs are counted on"
    del trainer.history.records[records:]
    trainer._refreshed_at = straight._refreshed_at
    for each in (trainer, straight):
        each.run(5, progress=False)
    assert torch.equal(trainer.network.marginal.tau, straight.network.marginal.tau)
    assert torch.equal(trainer.network.predict(trainer.x).mean, straight.network.predict(trainer.x).mean)
    assert trainer.history.loo_nll[-1] == straight.history.loo_nll[-1]


def test_what_is_kept_is_a_copy_of_the_best_of_the_whole_run():
    trainer = trainer_after(new_trainer(), REFRESHED)
    kept = kept_by(trainer)
    before = {name: part.clone() for name, part in kept.tensors.items()}
    trainer.run(19, progress=False)  # until epoch 83, the next refresh
    assert all(torch.equal(part, before[name]) for name, part in kept.tensors.items())
    assert any(not torch.equal(part, before[name]) for name, part in tensors_of(trainer).items())
    score = trainer.history.loo_nll[-1]
    better, worse = (replace(kept, epoch=10, scores=(score + change, 9.0)) for change in (-0.01, 0.01))
    assert keep_if_best(trainer, better, settings=AT_ONCE) is better, "however long ago"
    assert keep_if_best(trainer, worse, settings=AT_ONCE).epoch == 83
    assert keep_if_best(trainer, None, settings=replace(AT_ONCE, kept_numbers=10)) is None, "too large"


def test_the_latest_state_is_kept_until_scores_can_be_trusted():
    """Early leave-one-out scores may be far too good, and would never be reached again."""
    trainer = trainer_after(new_trainer(), REFRESHED)
    early = replace(SETTINGS, trusted_visits=10**6)
    kept = replace(kept_by(trainer), epoch=10)
    score, in_training = kept.scores
    untrusted = replace(kept, is_trusted=False, scores=(score - 0.9, in_training - 1.0))
    assert not keep_if_best(trainer, None, settings=early).is_trusted
    assert keep_if_best(trainer, untrusted, settings=early).epoch == REFRESHED
    assert keep_if_best(trainer, untrusted, settings=AT_ONCE).epoch == REFRESHED
    far = replace(untrusted, scores=(score - 1.1, in_training - 1.0))
    assert keep_if_best(trainer, far, settings=AT_ONCE) is far, "this one may be diverging"
    too_good = replace(far, scores=(score - 9.0, in_training + 0.1))
    assert keep_if_best(trainer, too_good, settings=AT_ONCE).epoch == REFRESHED, "it is better in training"
    assert keep_if_best(trainer, replace(kept, scores=(9.0, 9.0)), settings=early).epoch == 10, "trusted before"
    with_last(trainer, left_out=np.nan)
    assert keep_if_best(trainer, kept, settings=AT_ONCE) is kept


@pytest.mark.parametrize(
    "clipped, heard, is_trusted", [(0.0, None, True), (0.5, None, True), (0.51, None, False), (0.0, 0.1, False)]
)
def test_scores_are_trusted_where_few_leverages_were_cut_and_all_noise_is_heard(
    clipped, heard, is_trusted, monkeypatch
):
    """Where examples hold their own outputs, and where training takes noise for signal, scores are far too good."""
    trainer = trainer_after(new_trainer(), REFRESHED)
    last = trainer.history[-1]
    trainer.history.records[-1] = replace(last, loo={**last.loo, "clipped": clipped})
    monkeypatch.setattr(trainer.schedule, "held_back", lambda: heard)
    assert SETTINGS.most_clipped == 0.5 and kept_by(trainer).is_trusted == is_trusted


def test_changed_data_leave_nothing_to_go_back_to():
    trainer = trainer_after(new_trainer(), REFRESHED)
    assert trainer._best_state is not None
    trainer.remove(trainer.ids[:3])
    assert trainer._best_state is None


# --- epochs that diverge ---------------------------------------------------------------------------------------------


def test_an_epoch_far_worse_in_training_has_diverged():
    trainer = trainer_after(new_trainer(), 20)
    assert not has_diverged(trainer)
    with_last(trainer, nll=1e6)  # of noise that is believed in; errors are as before
    assert not has_diverged(trainer)
    with_last(trainer, rmse=10.0)
    assert has_diverged(trainer)
    trainer.history.records[-1] = replace(trainer.history[-2], epoch=20)
    for name in ("rmse", "nll"):
        with_last(trainer, **{name: np.nan})
        assert has_diverged(trainer)
        trainer.history.records[-1] = trainer.history[-2]
    trainer.network.marginal.tau[0] = torch.inf
    assert has_diverged(trainer), "the epoch's last visit may have done it"


def test_only_epochs_that_stand_are_compared_with():
    trainer = trainer_after(new_trainer(), 20)
    with_last(trainer, rmse=10.0)
    for k, record in enumerate(trainer.history.records[:-1]):
        trainer.history.records[k] = replace(record, is_taken_back=True)
    assert not has_diverged(trainer)
    trainer.history.records[0] = replace(trainer.history[0], is_taken_back=False)
    assert has_diverged(trainer)
    trainer.history.changes.append(bmp.Change(19, "added", 1, 40))
    assert not has_diverged(trainer), "scores of other data"


@pytest.mark.parametrize("change, stands", [(0.0, True), (0.09, True), (-0.09, True), (0.11, False), (-0.11, False)])
def test_an_epoch_that_comes_again_with_shorter_steps_stands(change, stands):
    """Visits are scored before their steps: where the state itself looks bad, shorter steps help nothing. The scores
    from there on are those to compare with.
    """
    trainer = trainer_after(new_trainer(), 20)
    records = trainer.history.records

    def score(k: int, log_rmse: float, *, is_taken_back: bool = False) -> None:
        metrics = {**records[k].metrics, "rmse": math.exp(log_rmse)}
        records[k] = replace(records[k], metrics=metrics, is_taken_back=is_taken_back)

    score(-2, 3.0, is_taken_back=True)
    score(-1, 3.0 + change)
    assert has_diverged(trainer) != stands
    if stands:
        records.append(replace(records[-1], epoch=21))
        for value, is_worse in ((3.5, False), (4.2, True)):
            score(-1, value)
            assert has_diverged(trainer) == is_worse
    score(-1, math.nan)
    assert has_diverged(trainer)


def test_a_run_whose_labels_look_bad_at_first_is_not_held_at_its_start():
    """A hard link makes much of what outputs say without their own pulls at first: each epoch but the first was taken
    back to the same state, with an accuracy of 17 % for ever.
    """
    x, y = blobs(60, n_classes=4)
    trainer = bmp.Trainer(mlp([2, 6, 4], bmp.Argmax(scale=None)), x, y)
    history = trainer.run(30, progress=False)
    assert any(record.is_taken_back for record in history), "or this shows nothing"
    assert sum(record.is_taken_back for record in history) < 5
    assert float((trainer.network.predict(x).probs.argmax(1) == y).double().mean()) > 0.7


@pytest.mark.parametrize("head", [None, bmp.Argmax()])
def test_errors_may_rise_to_those_of_one_guess(head):
    """Targets that are noise are learned by heart, then unlearned as training hears of more noise. Such epochs were
    taken back: R2 of new rows -.72 where -.33 is reached.
    """
    trainer = trainer_after(new_trainer(head), 2)
    name, guess = ("nll", math.log(2.0)) if head else ("rmse", float(trainer.y.std(correction=0)))
    far = guess + best_state.LEAP if head else guess * math.exp(best_state.LEAP)
    first, last = trainer.history.records
    for best in (1e-3 * guess, 0.0):
        trainer.history.records[0] = replace(first, metrics={**first.metrics, name: best})
        for factor in (0.9, 1.1):
            trainer.history.records[1] = replace(last, metrics={**last.metrics, name: factor * far})
            assert has_diverged(trainer) == (factor > 1.0)
    trainer.history.records[0] = replace(first, metrics={**first.metrics, name: far})
    assert not has_diverged(trainer), "targets far from 0 begin there"


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e12])
@pytest.mark.parametrize("head", [None, bmp.Argmax()])
def test_an_epoch_that_diverges_is_taken_back_before_a_refresh_sees_it(head, value, monkeypatch):
    """It ended with LinAlgError, ZeroDivisionError or worse, or "at rest"."""
    trainer = trainer_after(new_trainer(head), 8)
    spoil(monkeypatch, trainer, 10, value)  # epoch 10 ends with a refresh
    history = trainer.run(12, progress=False)
    taken_back = [record.epoch for record in history if record.is_taken_back]
    assert taken_back and taken_back[0] in (10, 11) and len(history) == 20
    assert "taken back" in history.stopped
    assert history[-1].loo["nll"] < history[7].loo["nll"] + 0.5 and trainer.check_invariant() < 1e-3
    assert 0.5 <= trainer.schedule.step_length < 1.0


def test_numbers_that_are_not_finite_in_the_first_epoch_send_a_run_to_its_start(monkeypatch):
    trainer = new_trainer()
    spoil(monkeypatch, trainer, 1, np.nan)
    history = trainer.run(30, progress=False)
    assert history[0].is_taken_back and not history[1].is_taken_back
    assert history[-1].metrics["rmse"] < 0.5 and trainer.check_invariant() < 1e-3


def test_a_refresh_that_cannot_be_computed_takes_the_epoch_back(monkeypatch):
    trainer = trainer_after(new_trainer(), 8)
    inner = trainer._refresh_in_training

    def fails(epoch):
        if epoch == 10:
            raise torch.linalg.LinAlgError("the factorization could not be completed")
        inner(epoch)

    monkeypatch.setattr(trainer, "_refresh_in_training", fails)
    history = trainer.run(5, progress=False)
    assert [record.epoch for record in history if record.is_taken_back] == [10]


def test_shorter_steps_grow_again_and_go_with_the_file(tmp_path):
    trainer = trainer_after(new_trainer(), 8)
    trainer.schedule.step_length = 0.5
    trainer.run(1, progress=False)
    assert trainer.schedule.step_length == pytest.approx(0.5 * best_state.GROWTH)
    trainer.save(tmp_path / "run.safetensors")
    loaded = bmp.Trainer.load(tmp_path / "run.safetensors", trainer.x, trainer.y)
    assert loaded.schedule.step_length == trainer.schedule.step_length
    for each in (trainer, loaded):
        each.run(3, progress=False)
    assert torch.equal(loaded.network.marginal.tau, trainer.network.marginal.tau)
    trainer.run(20, progress=False)
    assert trainer.schedule.step_length == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_shorter_step_moves_less(dtype):
    """In the compiled visit, and in the one of layers."""
    moved = []
    for length in (1.0, 0.5):
        trainer = new_trainer()
        if dtype == torch.float64:
            trainer = bmp.Trainer(
                mlp([3, 8, 1], bmp.Regression("learn"), dtype=dtype), trainer.x, trainer.y, joint=True
            )
        trainer.schedule.step_length = length
        moved.append(trainer_after(trainer, 1).history[0].steps[0])
    assert moved[1] < 0.7 * moved[0]


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left_out, in_training, is_worse",
    [(0.3, 0.3, True), (0.3, 0.2, False), (0.2, 0.3, False), (1.1, -1.0, True), (0.9, -1.0, False), (np.nan, 0, True)],
)
def test_an_end_is_worse_left_out_and_in_training_or_far_worse_left_out(left_out, in_training, is_worse):
    """Noise learned by heart makes the one worse and the other better."""
    trainer = trainer_after(new_trainer(), REFRESHED)
    kept = kept_by(trainer)
    with_last(trainer, left_out=left_out, nll=in_training)
    assert ends_worse(trainer, kept) == is_worse
    assert not ends_worse(trainer, replace(kept, is_trusted=False))
    trainer.history.records[-1] = replace(trainer.history[-1], is_taken_back=True)
    assert not ends_worse(trainer, kept), "it is there already"


@pytest.mark.parametrize("epochs", ["auto", 70])
def test_a_run_that_went_back_says_so(epochs, monkeypatch):
    monkeypatch.setattr("bayesmp.training.best_state.ends_worse", lambda run, kept: True)
    trainer = new_trainer()
    with pytest.warns(UserWarning, match="not at rest") if epochs == "auto" else nullcontext():
        history = trainer.run(epochs, max_epochs=70, progress=False)
    assert history.stopped.endswith("; went back to the state after epoch 64")
    assert len(history) == 70 and history[-1].is_taken_back
    assert trainer.network.has_belief and trainer.check_invariant() < 1e-4
    straight = trainer_after(new_trainer(), REFRESHED)
    assert torch.equal(trainer.network.predict(trainer.x).var, straight.network.predict(trainer.x).var)
    assert history.loo_nll[-1] == pytest.approx(straight.history.loo_nll[-1])


def test_an_end_that_cannot_be_believed_goes_back(monkeypatch):
    trainer = trainer_after(new_trainer(), REFRESHED)
    inner, calls = trainer._finish, []

    def fails():
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError
        inner()

    monkeypatch.setattr(trainer, "_finish", fails)
    assert "went back to the state after epoch" in trainer.run(2, progress=False).stopped
    calls.clear()
    trainer._best_state = None
    assert "is back at its start" in trainer.run(2, progress=False).stopped
    said = -float(trainer.network.predict(trainer.x).log_prob(trainer.y).mean())
    assert said == pytest.approx(constant_nll(trainer), abs=0.1)  # which is no worse than a constant


@pytest.mark.slow
def test_the_end_of_a_run_is_not_much_worse_than_its_best():
    """Targets without noise: this run ended in a jump, with a leave-one-out NLL of .06 after -3.39, R2 .949."""
    rng = np.random.default_rng(19)
    x = rng.normal(size=(1400, 3))
    y = 2.0 * x[:, 0] + np.sin(2.0 * x[:, 1])
    found = bmp.MPRegressor(random_state=19).fit(x[:400], y[:400])
    scores = [score for score in found.history_.loo_nll if not np.isnan(score)]
    assert scores[-1] < min(scores) + best_state.LEAP
    assert found.score(x[400:], y[400:]) > 0.99


def test_a_checkpoint_holds_what_may_be_gone_back_to(tmp_path, monkeypatch):
    """A run that is resumed behind the refresh that it goes back to ends as one that was never interrupted."""
    trainer = new_trainer(checkpoint=tmp_path / "run", every=67, keep=5)
    aside = tmp_path / "killed"
    aside.mkdir()

    def copied(run, kept):
        for path in (tmp_path / "run").glob("*67*"):
            shutil.copy(path, aside)
        return True

    monkeypatch.setattr("bayesmp.training.best_state.ends_worse", copied)
    trainer.run(70, progress=False)
    resumed = bmp.Trainer.resume(aside, trainer.x, trainer.y, every=67)
    assert resumed.n_epochs == 67 and resumed._best_state.epoch == REFRESHED
    resumed.run(3, progress=False)
    assert resumed.n_epochs == 70 and resumed.history[-1].is_taken_back
    assert torch.equal(resumed.network.marginal.tau, trainer.network.marginal.tau)
    assert is_same(resumed.network.predict(trainer.x), trainer.network.predict(trainer.x))
