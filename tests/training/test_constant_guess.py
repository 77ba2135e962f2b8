"""A result worse than a constant never leaves a run without a warning, and is never called at rest."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

import bayesmp as bmp
from bayesmp.training.constant_guess import EXAMPLES, MARGIN, constant_nll, is_worse
from bayesmp.training.history import History
from tests.helpers import blobs, linear_data, mlp


def new_trainer(head: bmp.Regression | bmp.Softmax | None = None, **options: object) -> bmp.Trainer:
    x, y = linear_data(60) if head is None or isinstance(head, bmp.Regression) else blobs(60)
    n_out = 1 if y.is_floating_point() else 3
    network = mlp([x.shape[1], 5, n_out], bmp.Regression("learn") if head is None else head)
    return bmp.Trainer(network, x, y, batch_size=12, **options)  # type: ignore[arg-type]


def with_scores(trainer: bmp.Trainer, *, in_training: float, left_out: float | None) -> None:
    """The last epoch's, above a constant's."""
    constant, last = constant_nll(trainer), trainer.history[-1]
    loo = {} if left_out is None else {**last.loo, "nll": constant + left_out}
    trainer.history.records[-1] = replace(last, metrics={**last.metrics, "nll": constant + in_training}, loo=loo)


def spoil_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run end with a leave-one-out score that is worse than a constant's."""
    finish = bmp.Trainer._finish

    def finish_badly(run):
        finish(run)
        last = run.history[-1]
        run.history.records[-1] = replace(last, loo={**last.loo, "nll": constant_nll(run) + 0.2})

    monkeypatch.setattr(bmp.Trainer, "_finish", finish_badly)


def test_a_constant_knows_the_mean_and_variance_or_the_shares():
    trainer = new_trainer()
    normal = torch.distributions.Normal(trainer.y.mean(), trainer.y.std(correction=0))
    assert constant_nll(trainer) == pytest.approx(-float(normal.log_prob(trainer.y).mean()), rel=1e-5)
    told = new_trainer(bmp.Regression(noise_var=400.0))
    assert constant_nll(told) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 400.0)), "of the noise, too"
    classes = new_trainer(bmp.Softmax())
    shares = torch.bincount(classes.y) / len(classes.y)
    assert constant_nll(classes) == pytest.approx(-float((shares * shares.log()).sum()), rel=1e-5)


BOUND = MARGIN + EXAMPLES / 60


@pytest.mark.parametrize(
    "in_training, left_out, expected",
    [
        (-1.0, -1.0, False),
        (BOUND - 0.01, BOUND - 0.01, False),
        (-1.0, BOUND + 0.01, True),
        (BOUND + 0.01, -1.0, True),
        (BOUND + 0.01, None, True),
        (-1.0, None, False),
        (-1.0, math.nan, True),
        (math.inf, -1.0, True),
    ],
)
def test_either_score_may_tell(in_training, left_out, expected):
    """Few outliers are not among the rows left out; a network that learned its rows by heart is good in training."""
    trainer = new_trainer()
    trainer.run(4)
    with_scores(trainer, in_training=in_training, left_out=left_out)
    assert is_worse(trainer) == expected


def test_first_epochs_are_not_judged():
    """Who asks for one epoch at a time looks at a run that has just begun."""
    trainer = new_trainer()
    for _ in range(2):
        trainer.run(3)
        with_scores(trainer, in_training=9.0, left_out=9.0)
        assert is_worse(trainer) == (trainer.n_epochs > 3)
    trainer.history.changes.append(bmp.Change(3, "added", 1, 60))
    assert not is_worse(trainer), "counted from when the data changed"


def test_an_epoch_that_was_taken_back_is_not_judged():
    trainer = new_trainer()
    trainer.run(5)
    with_scores(trainer, in_training=9.0, left_out=-1.0)
    trainer.history.records[-1] = replace(trainer.history[-1], is_taken_back=True)
    assert not is_worse(trainer)


def test_targets_that_do_not_vary_have_no_constant_to_beat():
    trainer = new_trainer()
    trainer.run(4)
    with_scores(trainer, in_training=9.0, left_out=9.0)
    trainer.data = replace(trainer.data, y=torch.ones_like(trainer.y))
    assert constant_nll(trainer) == -math.inf and not is_worse(trainer)
    trainer.history = History()
    assert not is_worse(new_trainer())


@pytest.mark.parametrize(
    "epochs, stopped", [("auto", "worse than a constant after "), (5, "ran the 5 epochs asked for")]
)
@pytest.mark.parametrize("head", [None, bmp.Softmax()])
def test_a_run_that_ends_worse_says_so_and_is_not_at_rest(head, epochs, stopped, monkeypatch):
    """One with R2 -8e8 ended "at rest", without a word."""
    trainer = new_trainer(head)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "worse" not in trainer.run(epochs).stopped
    spoil_end(monkeypatch)
    what = "the shares of the classes" if head else "the targets' mean and variance"
    with pytest.warns(ConvergenceWarning, match=rf"worse than a constant: NLL .* left out, where {what} .*outliers"):
        history = trainer.run(epochs)
    assert history.stopped.startswith(stopped) and "worse than a constant" in history.stopped
    assert "at rest" not in history.stopped
    findings = [finding.kind for finding in trainer.diagnose().findings]
    assert "worse_than_constant" in findings and "not_converged" not in findings


def test_estimators_warn_once(monkeypatch):
    spoil_end(monkeypatch)
    x, y = linear_data(60)
    with pytest.warns(ConvergenceWarning) as caught:
        bmp.MPRegressor(epochs=5, random_state=0).fit(x.numpy(), y.numpy()[:, 0])
    assert len(caught) == 1 and caught[0].filename == __file__
    assert str(caught[0].message).startswith("MPRegressor ended worse than a constant, with a leave-one-out NLL of")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.undo()
        bmp.MPRegressor(epochs=5, random_state=0).fit(x.numpy(), y.numpy()[:, 0])


def test_noise_is_not_worse_than_a_constant():
    """Where there is nothing to find, a network is about as good as a constant, and no warning comes."""
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bmp.MPRegressor(random_state=0).fit(rng.normal(size=(60, 4)), rng.normal(size=60))
