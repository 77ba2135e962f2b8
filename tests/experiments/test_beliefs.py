"""The experiments on bands and on speed: truth, uncertainty, graph, sine."""

import numpy as np
import pytest

from benchmarks.references import FOLDER
from experiments import uncertainty


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


def test_the_grid_is_that_of_the_paper():
    assert len(uncertainty.GRID) == 821
    assert uncertainty.GRID[[0, 1, -1]] == pytest.approx([-20.5, -20.45, 20.5])


def test_uncertainty_counts_networks_of_all_pieces(run, monkeypatch, tmp_path):
    monkeypatch.setattr(uncertainty, "CHUNKS", {"ours": 1, "sequential": 1})
    status, printed, found = run("uncertainty", "--quick")
    assert status == 0, printed
    rows = {row[""]: row for row in found["tables"][0]["rows"]}
    assert rows["ours"]["networks"] == rows["the paper's way, by us"]["networks"] == 2
    assert rows["the paper (published)"]["x < -10, 1/2/3 std"] == "61/86/93"
    for name in ("ours", "the paper's way, by us"):
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
