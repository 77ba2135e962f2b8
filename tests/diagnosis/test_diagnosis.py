"""Each finding of a diagnosis is shown by a network that really has the fault; healthy ones have none."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.diagnosis import Diagnosis, diagnose
from bayesmp.diagnosis.rows import judge_calibration
from tests.diagnosed_runs import digits, found, trained
from tests.helpers import blobs, mlp
from tests.test_peer_defects import friedman


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
        blamed += len([*judge_calibration(prediction, y), *judge_calibration(classed, label)])
    assert blamed <= 3


# --- the object ------------------------------------------------------------------------------------------------------


def test_a_run_that_ended_in_a_jump(classes):
    """What the history says is what counts: here its last score is made worse by half a nat."""
    from dataclasses import replace

    network = pickle.loads(pickle.dumps(classes.network))
    history = network.run_summary.history.snapshot()
    history.records[-1] = replace(
        history.records[-1], loo={**history.records[-1].loo, "nll": history.loo_nll[-1] + 0.5}
    )
    network.run_summary = replace(network.run_summary, history=history)
    finding = found(network.diagnose(*blobs(100, seed=1)), "ended_in_a_jump")
    assert finding.numbers["last"] - finding.numbers["best"] > 0.4


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
    assert len(again.network.run_summary.history) == regression.n_epochs


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
