"""Each finding of a diagnosis is shown by a network that really has the fault; healthy ones have none."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import bayesmp as bmp
from bayesmp.diagnosis import Diagnosis, diagnose
from bayesmp.diagnosis.faces import NETWORK
from bayesmp.diagnosis.predictions import judge_calibration
from tests.diagnosed_runs import found, trained
from tests.helpers import blobs, mlp
from tests.test_peer_defects import friedman


def digits() -> tuple[np.ndarray, np.ndarray]:
    """537 images of 0, 1 and 2."""
    x, y = load_digits(n_class=3, return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return (x[order] / 16).astype(np.float32), y[order]


@pytest.fixture(scope="module")
def regression() -> bmp.Trainer:
    return trained(mlp([5, 8, 1], bmp.Regression("learn")), *friedman(120, seed=0), epochs="auto", batch_size=30)


@pytest.fixture(scope="module")
def classes() -> bmp.Trainer:
    return trained(mlp([2, 8, 3], bmp.Argmax()), *blobs(200), epochs="auto", batch_size=50)


@pytest.fixture(scope="module")
def images() -> bmp.Trainer:
    layers = [bmp.Conv2d(1, 4, 3), bmp.LeakyReLU(), bmp.MaxPool2d(2), bmp.Flatten(), bmp.Linear(36, 3)]
    x, y = digits()
    return trained(bmp.Network(layers, bmp.Argmax()), x[:200].reshape(-1, 1, 8, 8), y[:200], "auto", batch_size=50)


# --- healthy networks ------------------------------------------------------------------------------------------------


def test_a_healthy_regression_has_no_findings(regression):
    diagnosis = regression.network.diagnose(*friedman(400, seed=1))
    assert diagnosis.findings == []
    assert str(diagnosis) == "Nothing looks wrong (400 rows)."


def test_a_healthy_classifier_has_no_findings(classes):
    assert classes.network.diagnose(*blobs(400, seed=1)).findings == []


def test_a_healthy_convolutional_network_has_no_findings(images):
    x, y = digits()
    assert images.network.diagnose(x[200:].reshape(-1, 1, 8, 8), y[200:]).findings == []


def test_the_training_data_say_nothing_about_calibration(regression):
    x, y = friedman(120, seed=0)
    for diagnosis in (regression.network.diagnose(x, y), regression.diagnose()):
        assert diagnosis.findings == []
        assert "Not judged: calibration (these are the training data: give others)." in str(diagnosis)


# --- data ------------------------------------------------------------------------------------------------------------


def test_inputs_that_were_not_scaled():
    x, y = friedman(100, seed=0)
    x = x * [1, 1, 200, 1, 1] + [0, 0, 1000, 0, 0]
    trainer = trained(mlp([5, 8, 1], bmp.Regression("learn")), x, y, 5)
    finding = found(trainer.diagnose(), "inputs_not_scaled")
    assert finding.severity == "problem" and finding.numbers["column"] == 2
    assert finding.numbers["mean"] == pytest.approx(x[:, 2].mean(), rel=1e-4)
    assert "bayesmp.data.standardise" in finding.sentence
    tiny = trained(mlp([5, 8, 1], bmp.Regression("learn")), x / 1e5, y, 5)
    assert found(tiny.diagnose(), "inputs_not_scaled").numbers["largest"] < 0.05


def test_inputs_unlike_those_of_training(regression):
    """One column in other units; and a column that is wider only."""
    x, y = friedman(300, seed=1)
    moved, wider = x.copy(), x.copy()
    moved[:, 3] = 100 * moved[:, 3] + 50
    wider[:, 1] *= 5
    for given, column in ((moved, 3), (wider, 1)):
        finding = found(regression.network.diagnose(given, y), "inputs_unlike_training")
        assert finding.numbers["n_columns"] == 1 and finding.numbers["column"] == column
        assert finding.numbers["training_std"] == pytest.approx(friedman(120, seed=0)[0][:, column].std(), rel=1e-4)
        assert finding.numbers["std"] == pytest.approx(given[:, column].std(), rel=1e-3)


def test_images_that_were_not_scaled_as_in_training(images):
    x, y = digits()
    finding = found(images.network.diagnose(16 * x[200:].reshape(-1, 1, 8, 8), y[200:]), "inputs_unlike_training")
    assert finding.numbers["n_columns"] > 32


@pytest.mark.parametrize("n", [1, 5, 30, 400])
def test_fresh_rows_of_the_same_kind_are_like_training_however_few(regression, n):
    for seed in range(20):
        kinds = regression.network.diagnose(*friedman(n, seed=100 + seed)).kinds
        assert "inputs_unlike_training" not in kinds and "targets_not_scaled" not in kinds


def test_targets_that_were_not_scaled():
    x, y = friedman(100, seed=0)
    finding = found(trained(mlp([5, 8, 1], bmp.Regression(4e4)), x, 500 * y + 300, 5).diagnose(), "targets_not_scaled")
    assert finding.numbers["std"] == pytest.approx((500 * y).std(), rel=1e-4)
    assert ".undo(scaling)" in finding.sentence


def test_targets_in_other_units_than_in_training(regression):
    x, y = friedman(100, seed=1)
    diagnosis = regression.network.diagnose(x, 10 * y + 30)
    finding = found(diagnosis, "targets_not_scaled")
    assert "not in the units of training" in finding.sentence
    assert "too_sure" not in diagnosis.kinds  # it would only repeat this


def test_labels_of_one_class_only(classes):
    x, y = blobs(600, seed=1)
    assert found(classes.network.diagnose(x[y == 1], y[y == 1]), "one_class_only").numbers["label"] == 1


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
    network = scaled_priors([5, 16, 1], bmp.Regression("learn"), 0.01)
    finding = found(trained(network, *friedman(200, seed=0), 50, batch_size=50).diagnose(), "prior_too_narrow")
    assert finding.numbers["wanted_factor"] > 8


def test_a_prior_that_is_too_wide():
    """It does harm where examples hold their own outputs: few digits, and weights that may be anything."""
    x, y = digits()
    network = scaled_priors([64, 16, 3], bmp.Argmax(), 1000.0)
    finding = found(trained(network, x[:60], y[:60], 10).diagnose(), "prior_too_wide")
    assert finding.numbers["mean_leverage"] > 0.5 and finding.numbers["wanted_factor"] < 0.3


def test_a_wide_prior_that_does_no_harm_is_no_finding():
    network = scaled_priors([5, 16, 1], bmp.Regression("learn"), 30.0)
    trainer = trained(network, *friedman(200, seed=0), 100, batch_size=50)
    assert set(network.diagnose(*friedman(400, seed=1)).kinds) <= {"not_converged"}
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


def test_a_run_that_ended_in_a_jump(classes):
    """What the history says is what counts: here its last score is made worse by half a nat."""
    from dataclasses import replace

    network = pickle.loads(pickle.dumps(classes.network))
    history = network.told.history.snapshot()
    history.records[-1] = replace(
        history.records[-1], loo={**history.records[-1].loo, "nll": history.loo_nll[-1] + 0.5}
    )
    network.told = replace(network.told, history=history)
    finding = found(network.diagnose(*blobs(100, seed=1)), "ended_in_a_jump")
    assert finding.numbers["last"] - finding.numbers["best"] > 0.4


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
    rng = np.random.default_rng(0)
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
    assert head.expected(log_weights) < head.natural_scale / 2.5 and trainer.history.loo_error[-1] > 0.4
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


# --- predictions -----------------------------------------------------------------------------------------------------


def test_rows_of_another_kind_are_not_learned_by_heart(regression):
    x, y = friedman(300, seed=1)
    kinds = regression.network.diagnose(x, -y).kinds
    assert "memorised_noise" not in kinds and "too_sure" in kinds


def test_noise_that_was_given_too_small_or_too_large():
    """True noise variance .04."""
    x, y = friedman(200, seed=0)
    for noise_var, kind in ((0.002, "too_sure"), (0.5, "too_unsure")):
        trainer = trained(mlp([5, 16, 1], bmp.Regression(noise_var)), x, y, 30, batch_size=50)
        finding = found(trainer.network.diagnose(*friedman(400, seed=1)), kind)
        assert (finding.numbers["coverage"] < 0.8) == (kind == "too_sure")


def test_labels_that_are_wrong_more_often_than_in_training(classes):
    """A third of the labels given are drawn anew: the network is too sure of them, and leave-one-out promised more."""
    x, y = blobs(600, seed=1)
    rng = np.random.default_rng(0)
    y = torch.where(torch.tensor(rng.uniform(size=600) < 0.5), torch.tensor(rng.integers(0, 3, 600)), y)
    diagnosis = classes.network.diagnose(x, y)
    sure = found(diagnosis, "too_sure")
    assert sure.numbers["confidence"] - sure.numbers["accuracy"] > 0.2
    gap = found(diagnosis, "worse_than_leave_one_out")
    expected = -float(classes.network.predict(x).log_prob(y).mean())
    assert gap.numbers["nll"] == pytest.approx(expected) and gap.numbers["nll"] > gap.numbers["loo_nll"] + 0.3


def test_rows_where_another_function_holds(regression):
    x, y = friedman(300, seed=1)
    diagnosis = regression.network.diagnose(x, -y)
    assert {"too_sure", "worse_than_leave_one_out"} <= set(diagnosis.kinds)


@pytest.mark.parametrize("n", [20, 200])
def test_calibrated_predictions_are_rarely_blamed(n):
    """Targets drawn from the predictions themselves; three standard errors leave well below 2 % of false alarms."""
    rng, blamed = np.random.default_rng(n), 0
    for _ in range(40):
        mean, var = torch.tensor(rng.normal(size=(2, n))), torch.tensor(rng.uniform(0.5, 2.0, n))
        prediction = bmp.RegressionPrediction(mean[0], 0.5 * var, 0.5 * var)
        y = mean[0] + var.sqrt() * mean[1]
        probs = torch.tensor(rng.dirichlet(np.full(4, 0.3), n))
        label = torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(len(y) + _))[:, 0]
        classed = bmp.ClassPrediction(probs, probs, probs, probs[:, 0])
        blamed += len([*judge_calibration(prediction, y, NETWORK), *judge_calibration(classed, label, NETWORK)])
    assert blamed <= 3


# --- the object ------------------------------------------------------------------------------------------------------


def test_findings_are_sorted_and_written_in_words(regression):
    diagnosis = regression.network.diagnose(friedman(300, seed=1)[0] + 5.0, friedman(300, seed=1)[1])
    text = str(diagnosis)
    assert text.startswith(f"{len(diagnosis.findings)} things may be wrong (300 rows):\n! ")
    assert max(map(len, text.split("\n"))) <= 100
    severities = [finding.severity for finding in diagnosis.findings]
    assert severities == sorted(severities, reverse=True)  # problems before hints
    assert repr(diagnosis) == f"Diagnosis({', '.join(diagnosis.kinds)})"
    assert repr(Diagnosis([], 3)) == "Diagnosis(nothing looks wrong)"


def test_a_network_without_its_trainer_knows_its_training_still():
    x, y = blobs(200)
    network = mlp([2, 8, 3], bmp.Argmax())
    bmp.fit(network, x, y, epochs=3, progress=False)
    diagnosis = network.diagnose(*blobs(100, seed=1))
    assert "not_converged" in diagnosis.kinds
    assert diagnosis.not_judged == ["shares of batches (needs the Trainer: trainer.diagnose())"]


def test_a_network_from_a_file_says_what_it_cannot_judge(classes, tmp_path):
    classes.network.save(tmp_path / "network.safetensors")
    diagnosis = bmp.load(tmp_path / "network.safetensors").diagnose(*blobs(100, seed=1))
    assert diagnosis.findings == [] and "this network was loaded" in " ".join(str(diagnosis).split())


def test_a_network_from_a_run_that_goes_on_knows_its_training(regression, tmp_path):
    regression.save(tmp_path / "run.safetensors")
    again = bmp.Trainer.load(tmp_path / "run.safetensors", *friedman(120, seed=0))
    assert again.diagnose().kinds == regression.diagnose().kinds
    assert len(again.network.told.history) == regression.n_epochs


def test_looking_changes_nothing(regression):
    x, y = friedman(50, seed=1)
    before = pickle.dumps(regression.network)
    regression.diagnose(x, y)
    assert pickle.dumps(regression.network) == before


def test_what_is_handed_in_is_checked(regression, classes):
    network = regression.network
    x, y = friedman(50, seed=1)
    with pytest.raises(ValueError, match=r"x must have shape \(n, 5\)"):
        network.diagnose(x[:, :4], y)
    with pytest.raises(ValueError, match="expected 50 targets, got 49 targets"):
        network.diagnose(x, y[1:])
    with pytest.raises(ValueError, match="give both x and y"):
        regression.diagnose(y=y)
    with pytest.raises(ValueError, match="has not been trained"):
        mlp([5, 4, 1], bmp.Regression(0.1)).diagnose(x, y)
    assert diagnose(network, x.tolist(), y.tolist()).n_rows == 50


def test_a_run_whose_network_was_taken_over_says_so():
    x, y = blobs(60)
    network = mlp([2, 4, 3], bmp.Argmax())
    first = trained(network, x, y, 1)
    second = trained(network, x, y, 1)
    with pytest.raises(ValueError, match="another Trainer has taken this network over"):
        first.diagnose()
    second.diagnose()


def test_large_data_are_looked_at_in_part(classes):
    x, y = blobs(6000, seed=1)
    assert classes.network.diagnose(x, y).n_rows == 6000


def test_a_dataset_or_a_tuple_is_diagnosed_as_its_tensors(classes):
    x, y = blobs(90)
    expected = str(classes.network.diagnose(x, y))
    dataset = torch.utils.data.TensorDataset(x, y)
    for given in ((x, y), dataset, torch.utils.data.DataLoader(dataset, 7)):
        assert str(classes.network.diagnose(given)) == expected
    assert str(classes.diagnose(dataset)) == str(classes.diagnose(x, y))
    for holder in (classes, classes.network):
        with pytest.raises(ValueError, match="y is missing: pass targets beside x"):
            holder.diagnose(x)


def test_estimators_are_diagnosed_in_the_units_of_their_tables():
    x, y = friedman(120, seed=0)
    model = bmp.MPRegressor(hidden=(8,), epochs=20, random_state=0).fit(1000 * x, 50 * y + 700)
    fresh_x, fresh_y = friedman(200, seed=1)
    assert set(model.diagnose(1000 * fresh_x, 50 * fresh_y + 700).kinds) <= {"not_converged"}
    assert "inputs_unlike_training" in model.diagnose(fresh_x + 9000, 50 * fresh_y + 700).kinds
    x, labels = blobs(100)
    names = np.array(["a", "b", "c"])
    classifier = bmp.MPClassifier(hidden=(8,), epochs=20, random_state=0).fit(x, names[labels])
    fresh_x, labels = blobs(100, seed=1)
    assert set(classifier.diagnose(fresh_x, names[labels]).kinds) <= {"not_converged"}
    with pytest.raises(ValueError, match="labels that are not among the classes"):
        classifier.diagnose(fresh_x, labels.numpy().astype(str))


def test_a_trainer_alone_makes_no_trained_network():
    x, y = torch.randn(60, 3), torch.randn(60)
    trainer = bmp.Trainer(bmp.Network([bmp.Linear(3, 1)], bmp.Regression(0.09)), x, y)
    for judge in (trainer.diagnose, lambda: trainer.network.diagnose(x, y)):
        with pytest.raises(ValueError, match="nothing to diagnose yet"):
            judge()


def test_targets_in_other_units_are_a_finding_with_learned_noise_too():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = x[:, 0] + 0.1 * x[:, 1]
    network = bmp.Network([bmp.Linear(3, 1)], bmp.Regression("learn"))
    bmp.fit(network, x, y, epochs=10, progress=False)
    found = network.diagnose(x[:40] + 0.1, 1000 * y[:40])
    assert any(finding.kind == "targets_not_scaled" for finding in found.findings)
