"""The tables of the estimators' benchmark: made data, splits, methods without a variance, what is printed."""

import json

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from benchmarks import estimators
from tests import helpers


def test_housing_has_skewed_features_of_different_scales_and_constant_noise():
    x, y = estimators.housing(4000, seed=1)
    assert x.shape == (4000, 8) and np.isfinite(x).all()
    assert x.std(0).max() > 1000 * x.std(0).min()
    skewness = np.mean(((x - x.mean(0)) / x.std(0)) ** 3, 0)
    assert (skewness > 1.0).sum() >= 4
    again, other = estimators.housing(4000, seed=1), estimators.housing(4000, seed=2)
    np.testing.assert_array_equal(again[1], y)
    assert not np.array_equal(other[1], y)


@pytest.mark.parametrize("classes", [False, True])
def test_validation_leaves_the_test_part_alone(classes):
    x = np.arange(160.0)[:, None]
    y = np.arange(160) % 2
    test = estimators.split(x, y, 3, classes=classes, validate=False)
    inner = estimators.split(x, y, 3, classes=classes, validate=True)
    assert len(test.x_test) == 40 and len(inner.x_test) == 30
    assert not set(test.x_test[:, 0]) & (set(inner.x_train[:, 0]) | set(inner.x_test[:, 0]))


def test_a_method_without_a_variance_gets_that_of_cross_validation():
    """Five features that say nothing and 12 rows: residuals on the training rows would be far too small."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 8)), 100.0 + rng.normal(size=12)
    mean, std = estimators.with_residuals(LinearRegression())(x, y)(x)
    assert len(set(std)) == 1 and std[0] > 2 * np.sqrt(np.mean((y - mean) ** 2))


def test_gaussian_processes_see_some_rows_only():
    seen = []
    estimators.some_rows(lambda x, y: seen.append((x, y)), seed=0, rows=5)(np.arange(20), np.arange(20))
    assert len(seen[0][0]) == 5
    np.testing.assert_array_equal(*seen[0])


@pytest.mark.slow
def test_targets_are_scored_in_units_of_the_training_part():
    x, y = (part.numpy() for part in helpers.linear_data(80))
    rows = {}
    for factor in (1.0, 1000.0):
        part = estimators.Split(x[:60], factor * y[:60, 0], x[60:], factor * y[60:, 0])
        methods = estimators.regressors(0, 60, 3)
        rows[factor] = [estimators.run(methods[name], part, classes=False) for name in ("bayesmp", "BayesianRidge")]
    for small, large in zip(rows[1.0], rows[1000.0], strict=True):
        assert large["NLL"] == pytest.approx(small["NLL"], abs=1e-2)
    assert rows[1.0][0]["leave-one-out NLL"] == pytest.approx(rows[1000.0][0]["leave-one-out NLL"], abs=1e-2)


@pytest.mark.slow
def test_tables_from_the_command_line(tmp_path, capsys):
    path = tmp_path / "o.json"
    estimators.main(["--quick", "--seeds", "2", "--tables", "diabetes", "wine", "--device", "cpu", "--out", str(path)])
    found = json.loads(path.read_text())
    assert [row["method"] for row in found["diabetes"]] == [*estimators.NETWORKS, "Gaussian process", "BayesianRidge"]
    assert {"R2", "NLL", estimators.COVERAGE, "seconds"} <= set(found["diabetes"][0])
    assert {"accuracy", "NLL", "ECE", "seconds"} <= set(found["wine"][0])
    assert [run["seed"] for run in found["runs"]["wine"] if run["method"] == "bayesmp"] == [0, 1]
    assert [row["table"] for row in found["summary"]] == ["diabetes", "wine"]
    assert "80 rows of 10 to train on" in capsys.readouterr().out


def test_ours_alone_has_no_summary(tmp_path):
    path = tmp_path / "o.json"
    estimators.main(["--quick", "--seeds", "1", "--tables", "wine", "--only-ours", "--validate", "--out", str(path)])
    found = json.loads(path.read_text())
    assert [row["method"] for row in found["wine"]] == ["bayesmp"] and "summary" not in found


def test_options_that_make_no_sense_are_refused(capsys):
    with pytest.raises(SystemExit):
        estimators.main(["--seeds", "0"])
    assert "must be positive" in capsys.readouterr().err


@pytest.mark.slow
def test_several_networks_have_a_row_that_the_summary_leaves_alone(tmp_path):
    path = tmp_path / "o.json"
    estimators.main(["--quick", "--seeds", "1", "--tables", "wine", "--networks", "2", "--out", str(path)])
    found = json.loads(path.read_text())
    methods = [row["method"] for row in found["wine"]]
    assert methods[:3] == ["bayesmp", "bayesmp, 2 networks", "MLP"]
    others = {row["method"]: row["NLL"] for row in found["wine"][2:]}
    (summary,) = found["summary"]
    assert summary["NLL of bayesmp"] == found["wine"][0]["NLL"]
    assert summary["of the best other method"] == min(others.values()) and summary["which is"] in others
    assert found["wine"][0]["NLL"] != found["wine"][1]["NLL"]
