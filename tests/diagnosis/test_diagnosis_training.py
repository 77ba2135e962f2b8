"""What a diagnosis finds in layers and runs: each finding is shown by a network that really has the fault."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bayesmp as bmp
from tests.diagnosed_runs import digits, found, trained
from tests.helpers import blobs, mlp
from tests.test_peer_defects import friedman

# --- layers ----------------------------------------------------------------------------------------------------------


def test_units_that_are_off_for_all_data():
    """Biases near -8 switch every unit of a ReLU off; nothing then reaches the weights below."""
    layers = [bmp.Linear(5, 16, bias_prior=(-8.0, 0.01)), bmp.ReLU(), bmp.Linear(16, 1)]
    trainer = trained(bmp.Network(layers, bmp.Regression("learn")), *friedman(200, seed=0), 30, batch_size=50)
    diagnosis = trainer.network.diagnose(*friedman(300, seed=1))
    finding = found(diagnosis, "collapsed_layer")
    assert finding.numbers == {"n_constant": 16, "n_off": 16, "n_units": 16}
    at_prior = [finding.sentence for finding in diagnosis.findings if finding.kind == "layer_at_prior"]
    assert any(sentence.startswith("layer 0, Linear(5, 16), is where its prior was") for sentence in at_prior)


def test_a_layer_that_stays_at_a_tiny_prior():
    layers = [bmp.Linear(5, 16), bmp.LeakyReLU(), bmp.Linear(16, 1, weight_prior=(0.0, 1e-8), bias_prior=(0.0, 1e-8))]
    diagnosis = trained(bmp.Network(layers, bmp.Regression(0.1)), *friedman(100, seed=0), 10).diagnose()
    finding = [part for part in diagnosis.findings if part.kind == "layer_at_prior"][-1]
    assert finding.sentence.startswith("layer 2, Linear(16, 1)") and finding.numbers["n_settled"] < 0.1


def test_targets_that_have_nothing_to_do_with_the_inputs():
    x, rng = friedman(200, seed=0)[0], np.random.default_rng(0)
    trainer = trained(mlp([5, 16, 1], bmp.Regression("learn")), x, rng.normal(size=200), 60, batch_size=50)
    diagnosis = trainer.network.diagnose(friedman(300, seed=1)[0], rng.normal(size=300))
    signal = found(diagnosis, "no_signal").numbers
    prediction = trainer.network.predict(friedman(300, seed=1)[0])
    assert signal["signal_std"] == pytest.approx(float(prediction.mean.std()), rel=1e-4)
    assert signal["signal_std"] < signal["epistemic_std"]
    noise = found(diagnosis, "noise_at_limit")
    assert noise.numbers["noise_var"] > 0.9 * noise.numbers["target_var"]


@pytest.mark.parametrize("head", [bmp.Softmax(), bmp.Argmax()], ids=repr)
@pytest.mark.slow
def test_shuffled_labels_give_no_signal(head):
    """Nor is there a signal; but what all outputs have in common, which labels never tell, is no lack of one."""
    x, y = blobs(150)
    new_x, new_y = blobs(150, seed=1)
    shuffled = y[torch.randperm(150, generator=torch.Generator().manual_seed(0))]
    for labels, is_told in ((shuffled, True), (y, False)):
        trainer = trained(mlp([2, 8, 3], head), x, labels, 20, batch_size=50)
        assert ("no_signal" in trainer.network.diagnose(new_x, new_y).kinds) == is_told


def scaled_priors(sizes: list[int], head, factor: float) -> bmp.Network:
    """The default network with all prior variances times a factor."""
    network = mlp(sizes, head)
    prior, start = network.exact_prior, network.start
    means = prior.mean * min(1.0, factor**0.5)
    network.prior = bmp.Gaussian.from_moments(means, prior.var * factor)
    network.start = start * min(1.0, factor**0.5)
    network.reset()
    return network


def test_a_prior_that_is_too_narrow():
    """Where the noise is known; if it is learned, all targets are taken for noise."""
    network = scaled_priors([5, 16, 1], bmp.Regression(0.05), 0.01)
    run = trained(network, *friedman(200, seed=0), 50, batch_size=50)
    finding = found(run.diagnose(), "prior_too_narrow")
    assert finding.numbers["wanted_factor"] > 8


def test_a_prior_that_is_too_wide():
    """It does harm where examples hold their own outputs: few digits, and weights that may be anything."""
    x, y = digits()
    network = scaled_priors([64, 16, 3], bmp.Argmax(), 1000.0)
    finding = found(trained(network, x[:60], y[:60], 10).diagnose(), "prior_too_wide")
    assert finding.numbers["mean_leverage"] > 0.5 and finding.numbers["wanted_factor"] < 0.3


@pytest.mark.parametrize("joint", [True, None])
def test_a_wide_prior_that_does_no_harm_is_no_finding(joint):
    """With an objective it does some: bands are a little narrow, and this is told."""
    network = scaled_priors([5, 16, 1], bmp.Regression("learn"), 30.0)
    trainer = trained(network, *friedman(200, seed=0), 100, batch_size=50, joint=joint)
    others = {"not_converged"} if joint else {"not_converged", "too_sure"}
    assert set(network.diagnose(*friedman(400, seed=1)).kinds) <= others
    assert trainer.network is network


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_that_was_too_short():
    x, y = friedman(200, seed=0)
    trainer = trained(mlp([5, 16, 1], bmp.Regression("learn")), x, y, 3, batch_size=50)
    finding = found(trainer.network.diagnose(*friedman(300, seed=1)), "not_converged")
    assert finding.severity == "hint" and finding.numbers["n_epochs"] == 3
    assert "ran the 3 epochs asked for; not at rest yet" in finding.sentence
    limited = trained(mlp([5, 16, 1], bmp.Regression("learn")), x, y, 1, batch_size=50)
    with pytest.warns(UserWarning, match="not at rest"):
        limited.run(max_epochs=4, progress=False)
    assert "training was not at rest after 4 epochs" in found(limited.diagnose(), "not_converged").sentence


def test_a_run_that_was_interrupted(monkeypatch):
    trainer = trained(mlp([2, 4, 3], bmp.Argmax()), *blobs(60), 2)
    monkeypatch.setattr(trainer.schedule, "refresh", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.run(3, progress=False)
    finding = found(trainer.diagnose(), "not_converged")
    assert finding.severity == "problem" and "interrupted" in finding.sentence


def test_one_row_in_other_units_makes_its_batch_dominate():
    x, y = friedman(200, seed=0)
    x[7] *= 400
    trainer = trained(mlp([5, 16, 1], bmp.Regression("learn")), x, y, 30, batch_size=20)
    finding = found(trainer.diagnose(), "one_batch_dominates")
    assert 7 in trainer.members[int(finding.numbers["batch"])].tolist()
    assert finding.numbers["row"] == 7 and finding.numbers["times_median"] > 20


def test_targets_without_noise():
    x = friedman(200, seed=0)[0]
    trainer = trained(mlp([5, 8, 1], bmp.Regression("learn")), x, x @ [1, 0.5, -0.3, 0.2, 0.8], 100, batch_size=50)
    finding = found(trainer.diagnose(), "noise_at_limit")
    assert finding.severity == "hint" and finding.numbers["noise_var"] < 2.5 * 0.01 / 200


def test_labels_that_have_nothing_to_do_with_the_inputs():
    rng = np.random.default_rng(4)
    trainer = trained(mlp([20, 16, 3], bmp.Argmax()), rng.normal(size=(200, 20)), rng.integers(0, 3, 200), 60)
    finding = found(trainer.diagnose(), "link_far_off")
    assert finding.severity == "hint" and finding.numbers["scale"] < 1.2
    assert "rows that are left out" in finding.sentence and "Give rows that it was not trained on" in finding.sentence


def tossed(n, seed, *, wrong):
    """Labels of which a share is swapped; .5 tells nothing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4))
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    return x, np.where(rng.uniform(size=n) < wrong, 1 - y, y)


@pytest.mark.parametrize("wrong, is_told", [(0.3, False), (0.5, True)])
def test_wrong_labels_are_no_fault_of_the_link_where_others_are_predicted(wrong, is_told):
    """Of 200 rows with 30 % wrong labels those left out are hard to tell from chance, and the link was blamed. Other
    rows tell more."""
    trainer = trained(mlp([4, 50, 2], bmp.Argmax()), *tossed(200, 0, wrong=wrong), 60, batch_size=50)
    head, log_weights = trainer.network.head, trainer.network.head_log_weights
    assert head.expected(log_weights) < head.natural_scale / 2.5 and trainer.history.loo_error[-1] > 0.38
    findings = {each.kind: each for each in trainer.network.diagnose(*tossed(500, 7, wrong=wrong)).findings}
    assert ("link_far_off" in findings) == is_told
    assert not is_told or findings["link_far_off"].severity == "problem"


def test_labels_that_the_inputs_say_a_little_about_are_no_fault_of_the_link():
    """Two thirds of labels taken for clean can be told; the link is flat, as it should be, and was blamed for it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 5))
    y = (x[:, 0] + rng.normal(size=600) > 0).astype(int)
    trainer = trained(mlp([5, 16, 2], bmp.Argmax(target_var=0.1)), x[:300], y[:300], 60, batch_size=50)
    head, log_weights = trainer.network.head, trainer.network.head_log_weights
    assert head.expected(log_weights) < head.natural_scale / 2.5
    assert "link_far_off" not in trainer.diagnose().kinds + trainer.network.diagnose(x[300:], y[300:]).kinds
