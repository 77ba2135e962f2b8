"""The experiments on bands and on speed: truth, uncertainty, graph, sine."""

import math
import statistics

import numpy as np
import pytest

import bayesmp as bmp
from benchmarks.networks import mlp
from benchmarks.references import CASES, FOLDER
from experiments import uncertainty
from experiments.base import Options


def test_truth_reports_the_ratio_of_standard_deviations(run, tmp_path):
    """By hand from the reference's file and the piece on disk."""
    status, printed, found = run("truth", "--quick", "--parts", "gap")
    assert status == 0, printed
    (stored,) = (tmp_path / "truth" / "pieces").glob("*.npz")
    with np.load(FOLDER / "gap.npz") as reference, np.load(stored) as ours:
        gap = (reference["grid"][:, 0] > -0.3) & (reference["grid"][:, 0] < 0.5)
        expected = np.median(ours["std"][gap] / reference["f_std"][gap])
    (row,) = (row for row in found["tables"][0]["rows"] if row["region"] == "gap")
    assert row["std / NUTS's"] == pytest.approx(expected, rel=1e-5)
    assert (tmp_path / "truth" / "bands.png").exists()


def test_coverage_of_networks_that_are_as_sure_as_they_are_right():
    """4,000 networks whose errors have the standard deviation they claim, and half of it."""
    rng = np.random.default_rng(0)
    truth, std = np.array([1.0, -2.0]), np.full((4000, 2), 3.0)
    mean = truth + std * rng.standard_normal((4000, 2)) * np.array([1.0, 0.5])
    found = uncertainty.coverage_at(mean, std, truth, np.array([0.5, 0.9]))
    assert found[:, 0] == pytest.approx([0.5, 0.9], abs=0.03)
    assert found[:, 1] == pytest.approx([0.823, 0.999], abs=0.02)  # within 1.349 and 3.290 of its own std


def test_correlation_of_mass_and_coverage():
    line = uncertainty.MASSES
    assert uncertainty.mass_correlations(line, 0.5 * line)[:2] == pytest.approx((1.0, 1.0))
    assert uncertainty.mass_correlations(line, 0.5 * line)[2] < 0.95, "two different lines are no line"
    assert uncertainty.mass_correlations(line, np.zeros_like(line))[1] == 0.0


def test_no_step_comes_near_what_is_asked_of_a_hundred_networks():
    """A band that is the same for all seeds holds the truth or not: of all such curves the best steps in the middle."""
    masses = uncertainty.MASSES
    steps = [(masses >= start).astype(float) for start in masses]
    found = [uncertainty.mass_correlations(left, right) for left in steps for right in steps]
    assert np.max(found) == pytest.approx(math.sqrt(3) / 2, abs=1e-3)


def test_correlations_of_nuts_are_those_of_the_points_that_it_holds():
    """By another road: a point is held by intervals of at least the mass that reaches it, erf(distance / sqrt 2)."""
    with np.load(FOLDER / "uncertainty.npz") as reference:
        x = reference["grid"][:, 0]
        f = 0.5 * x + 0.2 * np.sin(2 * np.pi * x) + 0.3 * np.sin(4 * np.pi * x)
        distance = np.abs(f - reference["f_mean"]) / reference["f_std"]
    curves = []
    for side in (x < -10, x > 10):
        reached = [math.erf(each / math.sqrt(2)) for each in distance[side]]
        curves.append(
            [float(sum(least <= mass for least in reached) > len(reached) / 2) for mass in uncertainty.MASSES]
        )
    masses = uncertainty.MASSES.tolist()
    expected = [statistics.correlation(masses, curve) for curve in curves]
    expected.append(statistics.correlation(masses * 2, curves[0] + curves[1]))
    nuts = uncertainty.Bands.of_nuts()
    assert uncertainty.mass_correlations(*nuts.far_coverage(uncertainty.MASSES)) == pytest.approx(expected)


def test_own_data_differ_between_networks_and_are_the_same_each_time():
    x, y = uncertainty.training_data("ours-own", [0, 1, 2])
    assert not np.allclose(x[0], x[1]) and not np.allclose(y[1], y[2])
    for method in ("ours-own", "sequential-own"):  # whatever piece a seed is in
        (again,), (targets,) = uncertainty.training_data(method, [2])
        assert (again == x[2]).all() and (targets == y[2]).all()
    errors = np.concatenate(y) - uncertainty.datasets.sine_function(np.concatenate(x)[:, 0])
    assert np.abs(x).max() <= 0.5 and errors.std() == pytest.approx(0.05, rel=0.1)
    same, _ = uncertainty.training_data("ours", [0, 1])
    assert (same[0] == same[1]).all() and (same[0] == CASES["uncertainty"].training_data()[0]).all()


@pytest.mark.slow
def test_each_network_is_trained_on_its_own_data():
    """Ours against a plain fit to the draw; the paper's way against one data set, which is the first network's draw."""
    ours = {"batch_size": 50, "max_epochs": 3}
    found = uncertainty.Uncertainty().compute({"method": "ours-own", "seeds": [0, 1], **ours}, Options())
    case = CASES["uncertainty"]
    network = bmp.Network(mlp(1, 32, 32, 1), bmp.Regression(0.05**2), seed=1)
    with pytest.warns(UserWarning, match="not at rest"):
        bmp.fit(network, *case.training_data(1), progress=False, **ours)
    expected = network.predict(uncertainty.GRID[:, None])
    np.testing.assert_array_equal(found["mean"][1], expected.mean.flatten().numpy())
    own, one = (
        uncertainty.Uncertainty().compute({"method": method, "seeds": [0, 1], "iterations": 1}, Options())["mean"]
        for method in ("sequential-own", "sequential")
    )
    np.testing.assert_allclose(own[0], one[0], rtol=1e-5)
    assert np.abs(own[1] - one[1]).max() > 0.1


def test_the_grid_is_that_of_the_paper():
    assert len(uncertainty.GRID) == 821
    assert uncertainty.GRID[[0, 1, -1]] == pytest.approx([-20.5, -20.45, 20.5])


@pytest.mark.slow
def test_uncertainty_counts_networks_of_all_pieces(run, monkeypatch, tmp_path):
    monkeypatch.setattr(uncertainty, "CHUNKS", {"ours": 1, "sequential": 1})
    status, printed, found = run("uncertainty", "--quick")
    assert status == 0, printed
    rows = {row[""]: row for row in found["tables"][0]["rows"]}
    assert [row for row, content in rows.items() if content["networks"] == 2] == list(uncertainty.TITLES.values())
    assert rows["the paper (published)"]["x < -10, 1/2/3 std"] == "61/86/93"
    for name in uncertainty.TITLES.values():
        shares = [int(share) for share in rows[name]["x > 10, 1/2/3 std"].split("/")]
        assert shares == sorted(shares) and set(shares) <= {0, 50, 100}
    assert (tmp_path / "uncertainty" / "bands.png").exists() and (tmp_path / "uncertainty" / "coverage.png").exists()


def test_the_scalar_graph_and_the_layers_agree_and_layers_are_faster(run):
    status, printed, found = run("graph", "--quick", "--parts", "graph,sequential")
    assert status == 0, printed
    for row in found["tables"][0]["rows"]:
        assert row["largest difference, std"] < 1e-8
    row = found["tables"][0]["rows"][1]
    assert row["network"] == "13-50-1" and row["graph / one at a time"] > 1.0


def test_sine_scores_are_those_of_the_stored_bands(run, tmp_path):
    """Near the data, the mean on the grid must be about as far from the truth as the RMSE on new points says."""
    status, printed, found = run("sine-width", "--quick", "--seeds", "1")
    assert status == 0, printed
    rows = found["tables"][0]["rows"]
    assert [(row["width"], row["schedule"]) for row in rows] == [
        (width, schedule) for width in (4, 8) for schedule in ("parallel", "sequential")
    ]
    for path in (tmp_path / "sine-width" / "pieces").glob("*width-4*.npz"):
        (rmse,) = (p["rmse"][0] for p in found["pieces"] if p["width"] == 4 and p["method"] in path.name)
        with np.load(path) as stored:
            inside = (stored["grid"] >= 0) & (stored["grid"] <= 1)
            x = stored["grid"][inside].astype(float)
            f = 0.5 * x + 0.2 * np.sin(2 * np.pi * x) + 0.3 * np.sin(4 * np.pi * x)
            error = np.sqrt(np.mean((stored["mean"][0][inside] - f) ** 2) + 0.05**2)
        assert error == pytest.approx(rmse, rel=0.1)
