"""The experiments on images, with tiny synthetic ones in place of the data sets."""

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp import metrics
from benchmarks import datasets
from benchmarks.datasets import Dataset, Source
from experiments import cifar10, forget, mislabelled, mnist

CPU = torch.device("cpu")


def synthetic(shape, n_train=120, n_test=40):
    """Ten classes, each with a bright block of its own; scaled as the benchmarks do it."""
    rng = np.random.default_rng(0)
    n = n_train + n_test
    y = np.arange(n) % 10
    x = rng.integers(0, 60, size=(n, int(np.prod(shape))), dtype=np.uint8)
    size = x.shape[1] // 10
    for k in range(n):
        x[k, y[k] * size : (y[k] + 1) * size] += 180
    x = x.reshape(n, *shape)
    return Dataset(x[:n_train], y[:n_train], x[n_train:], y[n_train:], "synthetic")


@pytest.fixture
def digits(monkeypatch):
    def load(self, device, *, limit=None, flat=True):
        return datasets.prepare(synthetic((1, 28, 28)), device, limit=limit, flat=flat)

    monkeypatch.setattr(Source, "mnist", load)


@pytest.fixture
def pictures(monkeypatch):
    def load(self, device, *, limit=None, test_limit=None):
        return datasets.prepare(synthetic((3, 32, 32)), device, limit=limit, test_limit=test_limit)

    monkeypatch.setattr(Source, "cifar10", load)
    monkeypatch.setattr(Source, "svhn_test", lambda self, scaling: load(self, CPU).x_test.flip(3))
    cifar10.load_images.cache_clear()
    yield
    cifar10.load_images.cache_clear()


def test_strange_digits_are_turned_and_inverted_pixels():
    found = synthetic((1, 28, 28))
    images = datasets.prepare(found, CPU, flat=True)
    strange = mnist.strange_digits(images)

    def pixels(flat):
        return flat.numpy() * images.scaling.std + images.scaling.mean

    original = found.x_test.reshape(-1, 28, 28).astype(float)
    turned = np.stack([np.rot90(image) for image in original]).reshape(len(original), -1)
    np.testing.assert_allclose(pixels(strange["turned"]()), turned, atol=1e-3)
    np.testing.assert_allclose(pixels(strange["inverted"]()), 255 - original.reshape(len(original), -1), atol=1e-3)


@pytest.mark.slow
def test_mnist_has_both_parts_and_all_scores(run, digits, tmp_path):
    status, printed, found = run("mnist", "--quick")
    assert status == 0, printed
    few, wide = found["tables"]
    assert [row["method"] for row in few["rows"][:2]] == ["ours", "AdamW"]
    assert [(row["width"], row["method"]) for row in wide["rows"]] == [(50, "ours"), (50, "AdamW")]
    for row in few["rows"] + wide["rows"]:
        assert 0.0 <= row["AUROC turned"] <= 1.0 and float(row["NLL"]) > 0.0
    assert (tmp_path / "mnist" / "few.png").exists() and (tmp_path / "mnist" / "wide.png").exists()


def test_cifar10_has_runs_and_ensembles_beside_the_paper(run, pictures, tmp_path):
    """The ensemble's row by hand: the mean of the stored probabilities."""
    status, printed, found = run("cifar10", "--quick")
    assert status == 0, printed
    rows = {row["method"]: row for row in found["tables"][0]["rows"]}
    assert {"ours", "AdamW", "AdamW, ensemble of 2", "the paper: message passing"} <= set(rows)
    assert rows["the paper: AdamW"]["NLL"] == 1.736
    stored = [np.load(path) for path in (tmp_path / "cifar10" / "pieces").glob("adamw-seed-*.npz")]
    assert len(stored) == 2
    probs, y = np.mean([each["probs 0"] for each in stored], axis=0), stored[0]["y"].astype(int)
    assert rows["AdamW, ensemble of 2"]["NLL"] == pytest.approx(-np.mean(np.log(probs[np.arange(len(y)), y])), rel=1e-4)
    assert rows["AdamW, ensemble of 2"]["accuracy"] == pytest.approx(np.mean(probs.argmax(1) == y))
    assert (tmp_path / "cifar10" / "curves.png").exists()


def test_laplace_gives_probabilities_that_are_less_sure_than_the_network(pictures):
    pytest.importorskip("laplace")
    pytest.importorskip("curvlinops")
    images = Source().cifar10(CPU)
    options = {"epochs": 10, "batch_size": 32, "seed": 0}
    from experiments.images import train

    (plain,) = train("adamw", cifar10.QUICK_LAYERS, images, **options)
    sure = plain.predict(images.x_test)
    for method in ("laplace-last", "laplace-kron"):
        with pytest.warns():  # of packages that laplace-torch needs
            (run,) = train(method, cifar10.QUICK_LAYERS, images, **options)
        less = run.predict(images.x_test)
        assert less.sum(1) == pytest.approx(np.ones(len(less)), abs=1e-5)
        assert less.max(1).values.mean() < sure.max(1).values.mean()


def test_the_roc_curve_has_the_area_that_ranks_give():
    rng = np.random.default_rng(0)
    familiar, unfamiliar = rng.normal(0.0, 1.0, 3000), rng.normal(1.0, 1.5, 2000)
    x, y = cifar10.roc(familiar, unfamiliar)
    score, is_positive = np.concatenate([familiar, unfamiliar]), np.arange(5000) >= 3000
    assert np.trapezoid(y, x) == pytest.approx(metrics.auroc(score, is_positive), abs=2e-3)
    assert (x[0], y[0], x[-1], y[-1]) == (0.0, 0.0, 1.0, 1.0)


def test_the_most_certain_part_is_the_surest_and_all_is_the_accuracy():
    """Right where the top probability is above .7, wrong below: the surest three quarters are all right."""
    top = np.linspace(0.6, 1.0, 400)
    probs = np.column_stack([top, 1.0 - top])
    y = np.where(top > 0.7, 0, 1)
    share, accuracy = cifar10.certain_part(probs, y)
    assert share[-1] == 1.0 and accuracy[-1] == pytest.approx(metrics.accuracy(probs, y))
    assert (accuracy[share < 0.74] == 1.0).all() and accuracy[-1] == pytest.approx(0.75, abs=0.01)


def test_the_images_to_forget():
    y = torch.tensor([7, 1, 7, 3] * 25)
    assert torch.equal(forget.chosen_rows(y, "class", 0), y == 7)
    tenth = forget.chosen_rows(y, "tenth", 0)
    assert tenth.sum() == 10 and not torch.equal(tenth, forget.chosen_rows(y, "tenth", 1))


def test_the_distance_of_probabilities_is_half_their_absolute_difference():
    one, other = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]]), torch.tensor([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])
    assert forget.distance(one, other) == pytest.approx(0.5)


def test_forgetting_needs_a_trainer_that_can(run, digits, monkeypatch):
    status, printed, found = run("forget", "--quick", "--parts", "tenth")
    if not hasattr(bmp.Trainer, "remove"):
        assert status == 1 and "has no Trainer.remove" in printed
        return
    assert status == 0, printed
    states = [row["state"] for row in found["tables"][0]["rows"]]
    assert states[:3] == ["with them", "removed", "removed, 1 epoch"]
    last = {row["state"]: row["distance"] for row in found["tables"][0]["rows"]}
    assert last["trained without them"] == 0.0 and last["with them"] > 0.0


def test_a_share_of_the_labels_is_swapped_for_another_class():
    y = torch.arange(1000) % 10
    given = mislabelled.swap_labels(y, 0.1, 0)
    assert (given != y).sum() == 100, "none is swapped for itself"
    assert given.min() >= 0 and given.max() <= 9
    assert not torch.equal(given, mislabelled.swap_labels(y, 0.1, 1))


@pytest.mark.slow
def test_wrong_labels_are_found_and_what_was_removed_or_mended_is_compared(run, digits, tmp_path):
    """Blocks of bright pixels are easy to tell apart: a label of another block is a surprise."""
    status, printed, found = run("forget", "--quick", "--parts", "wrong")
    assert status == 0, printed
    (table,) = found["tables"]
    rows = {row["state"]: row for row in table["rows"]}
    (piece,) = found["pieces"]
    assert piece["n_wrong"] == 8 and piece["share_found"] >= 0.5 and piece["AUROC"] > 0.8
    left = round((1 - piece["share_found"]) * 8)
    assert (
        rows["suspects removed"]["wrong labels left"] == rows["suspects mended, 1 epoch"]["wrong labels left"] == left
    )
    assert rows["trained without the suspects"]["distance"] == 0.0
    assert rows["trained with their right labels"]["distance"] == 0.0
    assert rows["with the wrong labels"]["distance"] > 0.0
    assert rows["right labels from the start"]["distance"] is None
    assert rows["suspects mended, 1 epoch"]["NLL"] < rows["with the wrong labels"]["NLL"]
    for name in ("wrong_labels.png", "suspects.png"):
        assert (tmp_path / "forget" / name).exists()
