"""Noise or labels that were learned by heart, and networks that take all for noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.neighbors import KNeighborsRegressor

import bayesmp as bmp
from bayesmp.diagnosis.training import explained_otherwise, judge_memory
from tests.diagnosed_runs import found, trained
from tests.helpers import mlp


def noise_only(n: int, d: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=n)


LED_ASTRAY = {"prior_too_narrow", "prior_too_wide", "no_signal", "ended_in_a_jump", "link_far_off"}


def test_targets_learned_by_heart():
    """It was told as a prior that is too narrow, or as no signal."""
    x, y = noise_only(260, 20)
    trainer = trained(mlp([20, 100, 1], bmp.Regression(0.01)), x[:60], y[:60], 60, batch_size=30)
    diagnosis = trainer.network.diagnose(x[60:], y[60:])
    finding = found(diagnosis, "memorised_noise")
    assert finding.severity == "problem" and not LED_ASTRAY & set(diagnosis.kinds)
    prediction = trainer.network.predict(x[60:])
    missed = float((prediction.mean - torch.tensor(y[60:])).square().mean().sqrt())
    assert finding.numbers["error"] == pytest.approx(missed, rel=1e-4)
    assert finding.numbers["guess_error"] == pytest.approx(y[:60].std(), rel=1e-4)
    assert finding.numbers["training_error"] < 0.5 * missed
    assert "The noise that was given, 0.01, is too small" in finding.sentence

    learned = trained(mlp([20, 100, 1], bmp.Regression("learn")), x[:60], y[:60], 1).network
    summary = trainer.network.run_summary
    (other,) = judge_memory(learned, summary, prediction, torch.tensor(y[60:])[:, None])
    assert "given" not in other.sentence.replace("the rows given", "") and "more rows" in other.sentence


@pytest.mark.parametrize("joint", [True, None])
def test_noise_that_is_learned_is_not_learned_by_heart(joint):
    """By messages it was: an error of .03 in training, 1.30 on new rows, where the targets' std is 1."""
    x, y = noise_only(260, 20)
    trainer = trained(mlp([20, 100, 1], bmp.Regression("learn")), x[:60], y[:60], 60, batch_size=30, joint=joint)
    found = trainer.network.diagnose(x[60:], y[60:])
    assert "memorised_noise" not in found.kinds and "no_signal" in found.kinds
    assert float(trainer.network.predict(x[60:]).noise_var.mean()) > 0.5


def test_targets_learned_by_heart_as_leave_one_out_tells():
    """Without other rows it is a hint, because leave-one-out may be too harsh."""
    x, y = noise_only(150, 5)
    trainer = trained(mlp([5, 30, 1], bmp.Regression(0.1)), x, y + 0.4 * x[:, 0], "auto", batch_size=50)
    finding = found(trainer.diagnose(), "memorised_noise")
    assert finding.severity == "hint" and "those of rows left out" in finding.sentence
    assert finding.numbers["error"] == trainer.history.loo_error[-1]


def test_labels_learned_by_heart():
    """Of few rows in small batches; 200 in larger ones are not."""
    x, _ = noise_only(500, 20)
    y = np.random.default_rng(1).integers(0, 3, 500)
    trainer = trained(mlp([20, 50, 3], bmp.Argmax(target_var=0.1)), x[:60], y[:60], 60, batch_size=10)
    diagnosis = trainer.network.diagnose(x[200:], y[200:])
    finding = found(diagnosis, "memorised_noise")
    wrong = float((trainer.network.predict(x[200:]).probs.argmax(1).numpy() != y[200:]).mean())
    assert finding.numbers["error"] == pytest.approx(wrong) and finding.numbers["training_error"] < 0.5 * wrong
    assert "given" not in finding.sentence.replace("the rows given", "")
    assert not LED_ASTRAY & set(diagnosis.kinds)


def test_a_network_that_takes_all_for_noise():
    """A fast sine: like inputs have like targets, but nothing was learned before all of it was noise."""
    x = np.random.default_rng(0).uniform(-1.7, 1.7, (500, 1))
    y = 1.4 * np.sin(12 * x[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=500)
    sizes, options = [1, 16, 16, 16, 1], {"batch_size": 50}
    stuck = trained(mlp(sizes, bmp.Regression("learn")), x[:200], y[:200], 60, joint=True, **options)
    diagnosis = stuck.network.diagnose(x[200:], y[200:])
    finding = found(diagnosis, "stuck_at_noise")
    assert finding.severity == "problem" and finding.numbers["explained_otherwise"] > 0.8
    assert not {"no_signal", "noise_at_limit", "too_unsure", "prior_too_narrow"} & set(diagnosis.kinds)
    assert "stuck_at_noise" in stuck.diagnose().kinds
    helped = trained(mlp(sizes, bmp.Regression(0.01)), x[:120], y[:120], 2, **options)
    missed = [float((part.network.predict(x[200:]).mean - torch.tensor(y[200:])).std()) for part in (stuck, helped)]
    assert missed[1] < 0.5 * missed[0], "what the sentence advises"


def test_what_simple_means_explain():
    """Against scikit-learn's own, each row predicted without itself."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 3))
    others = [np.delete(np.arange(150), k) for k in range(150)]
    for model, y in (
        (Ridge(0.15), x @ [1.0, 0.5, 0.0] + rng.normal(size=150)),
        (KNeighborsRegressor(5), np.cos(3 * x[:, 0])),
    ):
        given = x / x.std(0) if isinstance(model, Ridge) else x[:, :1]
        alone = [model.fit(given[rest], y[rest]).predict(given[k : k + 1])[0] for k, rest in enumerate(others)]
        found = explained_otherwise(torch.tensor(given), torch.tensor(y)[:, None])
        assert found == pytest.approx(r2_score(y, alone), abs=0.02)
    for seed in range(10):
        inputs, targets = (torch.tensor(part) for part in noise_only(60, 4, seed=seed))
        assert explained_otherwise(inputs, targets[:, None]) < 0.1


# --- runs that are too short for the noise ---------------------------------------------------------------------------


def weak(n, seed, share):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5))
    return x, share * x[:, 0] + np.sqrt(1.0 - share**2) * rng.normal(size=n)


@pytest.mark.parametrize("share, epochs, is_told", [(0.25, 15, True), (0.99, 30, False), (0.25, 100, False)])
def test_runs_that_end_before_training_has_heard_of_the_noise(share, epochs, is_told):
    """Three batches: 45 visits are too few for a weak signal, 90 are enough for a strong one, 300 for both."""
    trainer = trained(
        mlp([5, 16, 1], bmp.Regression("learn")), *weak(300, 0, share), epochs, batch_size=100, joint=True
    )
    findings = {each.kind: each for each in trainer.network.diagnose(*weak(300, 1, share)).findings}
    assert ("too_few_visits" in findings) == is_told
    if is_told:
        numbers = findings["too_few_visits"].numbers
        assert numbers["heard_var"] < 0.01 * 1.02**45 * 1.1 and numbers["found_var"] > 0.5
        assert "250 visits" in findings["too_few_visits"].sentence


def test_labels_that_training_still_took_for_clean():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    trainer = trained(mlp([4, 16, 2], bmp.Argmax()), x, rng.integers(0, 2, 200), 20, batch_size=100)
    finding = found(trainer.diagnose(), "too_few_visits")
    assert "of the labels" in finding.sentence and finding.numbers["heard_var"] < 0.1 * 1.02**40 * 1.1
