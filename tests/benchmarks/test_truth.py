"""The comparison with NUTS, on tiny references that were made up."""

import json

import numpy as np
import pytest
import torch

import bayesmp as bmp
from benchmarks import truth
from benchmarks.networks import mlp
from benchmarks.references import NOISE_VAR, PANEL, Case, Lattice, Moons, Uniform

CPU = torch.device("cpu")
TINY = Case(
    hidden=(4,),
    data=Uniform(intervals=((-1.0, -0.4), (0.4, 1.0)), n_per_interval=10),
    grid=Lattice(-4.0, 4.0, 81),
)
TINY_CLASSES = Case(hidden=(4,), data=Moons(n_per_class=10, blur=0.2), grid=Lattice(-3.0, 3.0, 5))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the reference of one tiny case, made up: mean 0, and a std that differs between regions."""
    x, y = TINY.training_data()
    grid = TINY.grid_points()
    f_std = 0.1 + 0.3 * np.abs(grid[:, 0])
    fields = {"f_mean": 0 * f_std, "f_std": f_std, "chain_stds": np.stack([0.5 * f_std, 1.5 * f_std])}
    fields["chain_means"] = np.stack([0.2 * f_std, -0.2 * f_std])
    prior = bmp.Network(mlp(1, 4, 1), bmp.Regression(NOISE_VAR)).prior
    fields |= {"prior_mean": prior.mean.numpy(), "prior_std": prior.var.sqrt().numpy()}
    path = tmp_path / "references"
    path.mkdir()
    np.savez(path / "tiny.npz", x_train=x, y_train=y, grid=grid, truth=0 * f_std, rhat=1 + 0 * f_std, **fields)
    monkeypatch.setattr(truth, "ALL", {"tiny": TINY})
    monkeypatch.setattr(truth, "PANEL", {"tiny": TINY})
    return path


@pytest.fixture
def classes():
    """A reference of two classes, made up: the logit is 1 with a std of 2, the probability 0.6."""
    x, y = TINY_CLASSES.training_data()
    grid = TINY_CLASSES.grid_points()
    flat = np.ones(len(grid))
    network = TINY_CLASSES.network(0)
    return truth.Reference(
        TINY_CLASSES,
        x_train=x,
        y_train=y,
        grid=grid,
        truth=flat,
        f_mean=flat,
        f_std=2 * flat,
        chain_means=np.stack([flat, flat]),
        chain_stds=np.stack([2 * flat, 2 * flat]),
        rhat=flat,
        prior_mean=network.prior.mean.double().numpy(),
        prior_std=network.prior.var.sqrt().double().numpy(),
        p_mean=0.6 * flat,
    )


def test_ratio_is_the_median_by_region(folder):
    reference = truth.Reference.load(folder / "tiny.npz", TINY)
    factor = np.select(list(reference.regions.values()), [1.0, 2.0, 3.0, 4.0], default=np.nan)
    ratios = reference.ratios(factor * reference.f_std)
    assert ratios == pytest.approx({"inside": 1.0, "near": 2.0, "far": 3.0, "gap": 4.0})


def test_rows_tell_whether_the_median_over_seeds_meets_the_target(folder):
    reference = truth.Reference.load(folder / "tiny.npz", TINY)
    runs = [{"inside": ratio, "near": ratio, "far": ratio, "gap": ratio} for ratio in (0.1, 0.55, 9.0)]
    rows = truth.region_rows("tiny", reference, runs)
    assert [row["met"] for row in rows] == [False, False, True, True]
    assert all(row["std / NUTS's"] == 0.55 and row["seeds"] == "0.1–9" and row["chains"] == "0.5–1.5" for row in rows)


def test_error_is_the_root_mean_square_by_region_in_units_of_nuts_std(folder):
    reference = truth.Reference.load(folder / "tiny.npz", TINY)
    sign = np.where(np.arange(len(reference.grid)) % 2 == 0, 1.0, -1.0)
    factor = np.select(list(reference.regions.values()), [1.0, 2.0, 3.0, 4.0], default=np.nan)
    found = reference.errors(reference.f_mean + sign * factor * reference.f_std)
    assert found == pytest.approx({"inside": 1.0, "near": 2.0, "far": 3.0, "gap": 4.0})
    assert reference.probability_errors(None) == {}


def test_rows_of_means_are_medians_over_seeds_beside_what_chains_differ_by(folder):
    reference = truth.Reference.load(folder / "tiny.npz", TINY)
    answers = [truth.Answer(k * reference.f_std, reference.f_std, 0.0) for k in (0.5, 3.0, 1.0)]
    rows = truth.mean_rows("tiny", reference, answers)
    assert [row["region"] for row in rows] == ["inside", "near", "far", "gap"]
    assert all(row["error / NUTS's std"] == pytest.approx(1.0) and row["seeds"] == "0.5–3" for row in rows)
    assert all(row["chains"] == "0.2–0.2" and "error of probabilities" not in row for row in rows)


@pytest.mark.slow
def test_classes_are_compared_by_logit_and_probability(classes):
    """The logit's moments are those of draws of functions, the probability the mean of its link over them."""
    answer = truth.train_case(classes, epochs=5, seed=0, device=CPU)
    network = TINY_CLASSES.network(0)
    x, grid = (torch.as_tensor(part, dtype=torch.float32) for part in (classes.x_train, classes.grid))
    y, options = torch.as_tensor(classes.y_train).long(), {"batch_size": 50, "seed": 0, "progress": False}
    bmp.fit(network, x, y, epochs=5, learn_prior=False, **options)  # the answer's prior is given
    outputs = network.sample_functions(grid, 4000).double()
    logits = (6.0 * (outputs[..., 1] - outputs[..., 0])).numpy()
    np.testing.assert_allclose(answer.std, logits.std(0), rtol=0.05)
    np.testing.assert_allclose(answer.mean, logits.mean(0), atol=0.08 * answer.std.max())
    np.testing.assert_allclose(answer.probs, (1 / (1 + np.exp(-logits))).mean(0), atol=0.04)
    (row, *_) = truth.mean_rows("classes", classes, [answer])
    inside = classes.regions["inside"]
    assert row["error of probabilities"] == pytest.approx(np.sqrt(np.mean((answer.probs - 0.6)[inside] ** 2)))


def test_the_panel_stands_for_its_cases_and_auto_reaches_the_training(folder, tmp_path, capsys, monkeypatch):
    asked = []

    def answer(reference, *, epochs, seed, device, own_means):
        asked.append((epochs, seed, own_means))
        return truth.Answer(reference.f_mean, reference.f_std, 1.0)

    monkeypatch.setattr(truth, "train_case", answer)
    words = ["--references", str(folder), "--out", str(tmp_path / "o.json"), "--device", "cpu"]
    truth.main(["--seeds", "2", "--epochs", "auto", "--cases", "panel", *words])
    truth.main(["--seeds", "1", "--epochs", "7", "--cases", "tiny", "--nuts-means", *words])
    assert "tiny done" in capsys.readouterr().out
    assert asked == [("auto", 0, True), ("auto", 1, True), (7, 0, False)]


def test_defaults_are_the_cases_of_the_experiment(folder, capsys):
    with pytest.raises(SystemExit):
        truth.main(["--references", str(folder)])
    assert "lacks sine.npz, uncertainty.npz, gap.npz" in capsys.readouterr().err
    assert not set(PANEL) & {"sine", "uncertainty", "gap"}


def test_cases_of_two_inputs_are_not_drawn(classes, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    flat = np.ones(len(classes.grid))
    truth.draw({"classes": truth.Answer(flat, flat, 0.0)}, {"classes": classes}, tmp_path / "bands.png")
    assert "no picture" in capsys.readouterr().out and not (tmp_path / "bands.png").exists()


def test_answer_is_the_networks_prediction(folder):
    reference = truth.Reference.load(folder / "tiny.npz", TINY)
    answer = truth.train_case(reference, epochs=2, seed=1, device=CPU)
    network = bmp.Network(mlp(1, 4, 1), bmp.Regression(NOISE_VAR), seed=1)
    x, y = (torch.as_tensor(part, dtype=torch.float32) for part in (reference.x_train, reference.y_train))
    bmp.fit(network, x, y, epochs=2, batch_size=50, seed=1, progress=False)
    found = network.predict(torch.as_tensor(reference.grid, dtype=torch.float32))
    np.testing.assert_allclose(answer.mean, found.mean.flatten(), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(answer.std**2, found.epistemic_var.flatten(), rtol=1e-3)


def test_whole_run_prints_saves_and_draws(folder, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "truth.json", tmp_path / "pictures" / "truth.png"
    words = ["--references", str(folder), "--out", str(out), "--picture", str(picture), "--device", "cpu"]
    truth.main(["--seeds", "2", "--epochs", "2", "--cases", "tiny", *words])
    printed = capsys.readouterr().out
    assert "0.8–1.25" in printed and "of 4 regions" in printed
    saved = json.loads(out.read_text())
    assert [run["seed"] for run in saved["runs"]] == [0, 1]
    assert [row["region"] for row in saved["regions"]] == ["inside", "near", "far", "gap"]
    assert all(np.isfinite(row["std / NUTS's"]) for row in saved["regions"])
    assert all(np.isfinite(row["error / NUTS's std"]) for row in saved["means"])
    assert saved["fits, median over seeds"][0]["seconds"] > 0.0
    assert picture.stat().st_size > 1000


def test_missing_reference_is_named(folder, tmp_path, capsys):
    with pytest.raises(SystemExit):
        truth.main(["--references", str(tmp_path), "--cases", "tiny", "--out", str(tmp_path / "o.json")])
    assert "lacks tiny.npz" in capsys.readouterr().err
