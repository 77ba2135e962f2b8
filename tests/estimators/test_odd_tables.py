"""Tables that people really have: constant columns, copies, next to no rows, gaps, numbers of any size."""

import datetime
import math
import warnings
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

import bayesmp as bmp
from bayesmp.data import Scaling
from bayesmp.estimators.base import OutlierWarning
from bayesmp.estimators.scaling import FAR_APART, values_apart

ESTIMATORS = [bmp.MPRegressor, bmp.MPClassifier]
OPTIONS = {"hidden": (8,), "epochs": 30, "random_state": 0}


def table(n: int = 40) -> tuple[np.ndarray, dict[type, np.ndarray]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3))
    return x, {bmp.MPRegressor: x[:, 0] + 0.1 * rng.normal(size=n), bmp.MPClassifier: (x[:, 0] > 0).astype(int)}


def predicted(model, x) -> np.ndarray:
    return np.stack(model.predict(x, return_std=True)) if hasattr(model, "predict_interval") else model.predict_proba(x)


def fitted(cls, x, y, **options):
    """Without a single warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return cls(**{**OPTIONS, **options}).fit(x, y)


@pytest.mark.parametrize("cls", ESTIMATORS)
@pytest.mark.parametrize("value", [0.0, 7.0, 1e9, 0.1])
def test_a_constant_column_is_as_good_as_none(cls, value):
    """Whatever its value, it says nothing; a column of zeros has to give the same."""
    x, y = table()
    other, zero = x.copy(), x.copy()
    other[:, 1], zero[:, 1] = value, 0.0
    found, expected = fitted(cls, other, y[cls]), fitted(cls, zero, y[cls])
    np.testing.assert_allclose(predicted(found, other), predicted(expected, zero), rtol=1e-6)
    assert found.loo_score_ == pytest.approx(expected.loo_score_)
    assert found.score(other, y[cls]) > 0.8


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_columns_that_are_all_constant_leave_the_mean(cls):
    x, y = table(60)
    found = predicted(fitted(cls, np.ones_like(x), y[cls], epochs=100), np.ones((1, 3)))
    if cls is bmp.MPRegressor:
        assert found[0, 0] == pytest.approx(y[cls].mean(), abs=0.1) and found[1, 0] == pytest.approx(
            y[cls].std(), rel=0.1
        )
    else:
        assert found[0, 1] == pytest.approx(y[cls].mean(), abs=0.05)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_rows_that_are_there_several_times(cls):
    """With equal targets they are known well; with different ones the spread of these is what is known. Where all rows
    are copies, the rounding error of a column's mean was told as inputs that are not scaled.
    """
    x, y = table(10)
    copies = np.repeat(x, 8, 0)
    model = fitted(cls, copies, np.repeat(y[cls], 8), epochs=60)
    assert model.score(x, y[cls]) > 0.9 and math.isfinite(model.loo_score_)
    one_place = np.repeat(x[:1], 40, 0)
    targets = np.random.default_rng(1).normal(size=40)
    found = predicted(fitted(cls, one_place, targets if cls is bmp.MPRegressor else targets > 0, epochs=60), x[:1])[
        :, 0
    ]
    if cls is bmp.MPRegressor:
        assert found[0] == pytest.approx(targets.mean(), abs=0.1) and found[1] == pytest.approx(targets.std(), rel=0.15)
    else:
        assert found[0] == pytest.approx((targets <= 0).mean(), abs=0.08)  # one standard error


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_two_rows_can_be_learned_but_not_judged(cls):
    """Their leave-one-out scores were figures from nowhere: for a regression 4 nats."""
    x, y = np.array([[0.0, 1.0], [1.0, 3.0]]), np.array([0, 1])
    model = fitted(cls, x, y)
    assert math.isnan(model.loo_score_) and math.isnan(model.loo_error_)
    found = predicted(model, x)
    assert np.isfinite(found).all() and (model.predict(x).round() == y).all()
    three = fitted(cls, [[0.0], [1.0], [2.0]], [0, 1, 1])
    assert math.isfinite(three.loo_score_) and math.isfinite(three.loo_error_)


def test_one_row():
    x, _ = table()
    with pytest.warns(UserWarning, match=r"there is one row only, so nothing can be learned about y but its size"):
        model = bmp.MPRegressor(**OPTIONS).fit(x[:1], [5.0])
    mean, std = model.predict(x[:1], return_std=True)
    assert mean == pytest.approx([5.0], abs=0.05) and 0.04 < std[0] < 0.2
    assert math.isnan(model.loo_score_)
    with pytest.raises(ValueError, match="at least two classes to tell apart, got one class"):
        bmp.MPClassifier(**OPTIONS).fit(x[:1], [1])


def test_targets_of_one_value():
    x, _ = table()
    with pytest.warns(UserWarning, match="all 40 targets are equal, so nothing can be learned"):
        model = bmp.MPRegressor(**OPTIONS).fit(x, np.full(40, -3.0))
    mean, std = model.predict(x, return_std=True)
    np.testing.assert_allclose(mean, -3.0, atol=0.05)
    assert np.isfinite(std).all() and math.isfinite(model.loo_score_)
    with pytest.raises(ValueError, match=r"at least two classes to tell apart, got one class: \['a'\]"):
        bmp.MPClassifier(**OPTIONS).fit(x, ["a"] * 40)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_gaps_and_infinities_are_named(cls):
    """scikit-learn alone says that there are some; which column it is, is what people need."""
    x, y = table()
    gaps = x.copy()
    gaps[:, 2] = np.nan
    with pytest.raises(ValueError, match=r"NaN: column 2 in 40 of 40 rows; drop .*SimpleImputer.*data frame"):
        cls(**OPTIONS).fit(gaps, y[cls])
    x[3, 0], x[4, 0] = np.inf, -np.inf
    for gap in (0.0, np.nan):  # an imputer is no help beside gaps, either
        x[0, 0] = gap
        with pytest.raises(
            ValueError, match=r"column 0 in [23] of 40 rows; drop .*, or replace .*SimpleImputer refuses"
        ):
            cls(**OPTIONS).fit(x, y[cls])
    x[0, 0] = 0.0
    with pytest.raises(ValueError, match=r"X contains infinity .*: column 0 in 2 of 40 rows"):
        cls(**OPTIONS).fit(x, y[cls])
    many = np.full((40, 5), np.nan)
    with pytest.raises(ValueError, match=r"column 2 in 40, and 2 more columns of 40 rows"):
        cls(**OPTIONS).fit(many, y[cls])
    model = fitted(cls, table()[0], y[cls], epochs=2)
    with pytest.raises(ValueError, match=r"column 0 in 2 of 40 rows"):
        model.predict(x)


def frame(n: int = 40) -> tuple[pd.DataFrame, dict[type, np.ndarray]]:
    x, y = table(n)
    return pd.DataFrame(x, columns=["age", "size", "rooms"]), y


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_columns_that_are_no_numbers_are_named_where_training_had_numbers(cls):
    rows, y = frame()
    model = fitted(cls, rows, y[cls], epochs=2)
    for text in (["a", "b"] * 20, pd.Categorical(["a", "b"] * 20), pd.array(["a", "b"] * 20, dtype="string")):
        with pytest.raises(ValueError, match=r"learns from numbers only.*encode columns of text \('rooms'\) first"):
            model.predict(rows.assign(rooms=text))
    with pytest.raises(ValueError, match=r"X has columns of dates, 'rooms', and .*: turn them into numbers first"):
        model.predict(rows.assign(rooms=pd.Timestamp("2020-01-01")))
    with pytest.raises(ValueError, match=r"X contains NaN: column 'rooms' in 20 of 40 rows"):
        model.predict(rows.assign(rooms=pd.array([1, None] * 20, dtype="Int64")))


def test_missing_targets_are_counted():
    rows, y = frame()
    gaps = y[bmp.MPRegressor].astype(float)
    gaps[[7, 9]] = math.nan
    for x, targets in (
        (rows, gaps),
        (rows.assign(town=["a", "b"] * 20), pd.array(gaps, dtype="Float64")),
        (rows, np.c_[gaps, gaps]),
    ):
        with pytest.raises(ValueError, match=r"y contains NaN: 2 of 40 targets, first in row 7; drop such rows"):
            bmp.MPRegressor(**OPTIONS).fit(x, targets)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_an_array_of_dates_is_refused(cls):
    """It was learned from as nanoseconds."""
    days = pd.date_range("2020-01-01", periods=40)
    for x in (days.to_numpy()[:, None], (days - days[0]).to_numpy()[:, None]):
        with pytest.raises(ValueError, match=r"X has columns of dates, all of them, and .*turn them into numbers"):
            cls(**OPTIONS).fit(x, table()[1][cls])
    with pytest.raises(ValueError, match=r"column 'span' holds durations .*: write them as numbers"):
        cls(**OPTIONS).fit(pd.DataFrame({"span": days - days[0]}), table()[1][cls])


def test_dates_as_targets_are_refused_with_what_to_pass():
    """They passed for nanoseconds, and 1.58e15 was predicted."""
    x, _ = table()
    days = pd.date_range("2020-01-01", periods=40)
    spans = days - days[0]
    dates = [days, pd.Series(days), days.to_numpy(), list(days), [day.date() for day in days], days.tz_localize("UTC")]
    for y in (*dates, spans, pd.Series(spans), spans.to_numpy(), pd.DataFrame({"a": days, "b": x[:, 0]})):
        with pytest.raises(ValueError, match=r"y holds dates or times, .*pass days as numbers, e\.g\. \(y - y\.min"):
            bmp.MPRegressor(**OPTIONS).fit(x, y)
    day = np.timedelta64(1, "D")
    for y in ((days - days.min()) / day, pd.Series(spans) / day):  # the advice
        assert fitted(bmp.MPRegressor, x, y, epochs=2).predict(x).max() < 100


class Polars:
    """A table as polars has them: types in a list, whose names are all that tells them apart; a gap is None."""

    def __init__(self, **columns: list) -> None:
        kinds = {float: "Float64", int: "Int64", str: "String", datetime.date: "Date"}
        self.values = list(columns.values())
        self.columns, self.dtypes = list(columns), [kinds[type(value[-1])] for value in self.values]
        self.shape = (len(self.values[0]), len(self.values))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, name: str) -> "Polars":
        return Polars(**{name: self.values[self.columns.index(name)]})

    def to_list(self) -> list:
        return self.values[0]

    def __array__(self, dtype=None, copy=None):
        rows = [list(row) for row in zip(*self.values, strict=True)]
        return np.array(rows, dtype=dtype or (object if "String" in self.dtypes else float))


class LazyFrame:
    """A query of polars."""


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_tables_of_polars_are_told_apart(cls):
    """AttributeError: 'list' object has no attribute 'items', it was."""
    x, y = table()
    plain, day = {"a": x[:, 0].tolist(), "b": x[:, 1].tolist()}, datetime.date(2020, 1, 1)
    with pytest.raises(TypeError, match=r"X is a LazyFrame, .*: call \.collect\(\) first"):
        cls(**OPTIONS).fit(LazyFrame(), y[cls])
    days = [day + datetime.timedelta(k) for k in range(40)]
    rows = Polars(**plain, town=["x", "y"] * 20, day=days, gaps=[None] + [float(k) for k in range(39)])
    found = cls(**OPTIONS).fit(rows, y[cls])
    same = pd.DataFrame({name: rows[name].to_list() for name in rows.columns})
    np.testing.assert_array_equal(predicted(found, rows), predicted(cls(**OPTIONS).fit(same, y[cls]), same))
    assert found.encoder_.get_feature_names_out().tolist() == [
        "a", "b", "town=x", "town=y", "day (days)", "gaps", "gaps (missing)"
    ]  # fmt: skip
    with pytest.raises(TypeError, match=r"y is a LazyFrame, .*: call \.collect\(\) first"):
        cls(**OPTIONS).fit(x, LazyFrame())
    network = bmp.Network([bmp.Linear(2, 3)], bmp.Argmax())
    assert torch.equal(network.predict(Polars(**plain)).mean, network.predict(x[:, :2]).mean)
    with pytest.raises(ValueError, match="x has columns that are not numbers: town; encode"):
        network.predict(Polars(**plain, town=["x"] * 40))
    with pytest.raises(TypeError, match=r"x is a LazyFrame, .*: call \.collect\(\) first"):
        network.predict(LazyFrame())


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_tensors_with_gradients_are_taken_for_their_values(cls):
    x, y = table()
    inputs = torch.tensor(x, requires_grad=True)
    targets = torch.tensor(y[cls], requires_grad=cls is bmp.MPRegressor)
    model = fitted(cls, inputs, targets, epochs=2)
    assert np.array_equal(predicted(model, inputs), predicted(fitted(cls, x, y[cls], epochs=2), x))


def test_targets_that_are_no_numbers_are_told_as_such():
    """It was said of the columns of X."""
    rows, _ = frame()
    labels = ["cheap", "dear"] * 20
    for y in (labels, pd.Series(labels, dtype=object)):
        with pytest.raises(
            ValueError, match=r"'cheap'.*MPRegressor predicts numbers, and MPClassifier labels of any type"
        ):
            bmp.MPRegressor(**OPTIONS).fit(rows, y)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_a_label_that_is_missing_is_named_in_a_series_too(missing):
    rows, _ = frame()
    labels = pd.Series(["a", "b"] * 20, dtype=object)
    labels[7] = missing
    for y in (labels, labels.to_numpy(), labels.tolist()):
        with pytest.raises(ValueError, match="y has a missing label in row 7; drop such rows"):
            bmp.MPClassifier(**OPTIONS).fit(rows, y)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_an_estimator_of_a_data_frame_is_saved_without_a_warning(cls, tmp_path):
    """PyTorch warned of an array that cannot be written to."""
    rows, y = frame()
    rows, targets = rows.copy(), y[cls].copy()
    targets.flags.writeable = False
    model = fitted(cls, rows, pd.Series(targets), epochs=2)
    model.seen_x_.flags.writeable = False  # as pandas 3 gives it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.save(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(cls.load(tmp_path / "model.safetensors").predict(rows), model.predict(rows))


@pytest.mark.parametrize("factor", [2.0**660, 2.0**-660])
def test_numbers_of_any_size(factor):
    """Squares of such numbers are no float64: they overflowed with a warning, or a column was taken for constant."""
    x, y = table()
    expected = fitted(bmp.MPRegressor, x, y[bmp.MPRegressor])
    found = fitted(bmp.MPRegressor, factor * x, factor * y[bmp.MPRegressor])
    np.testing.assert_allclose(predicted(found, factor * x) / factor, predicted(expected, x), rtol=1e-3)
    assert found.loo_score_ == pytest.approx(expected.loo_score_ - math.log(factor), rel=1e-3)


def test_a_scaling_of_extreme_columns_is_that_of_each_alone():
    x = np.random.default_rng(0).normal(size=(50, 4)) + 3.0
    factors = np.array([1.0, 1e200, 1e-200, 0.0])
    found, plain = Scaling.fit(x * factors), Scaling.fit(x)
    np.testing.assert_allclose(found.mean, plain.mean * factors, rtol=1e-12)
    np.testing.assert_allclose(found.std, [*(plain.std * factors)[:3], 1.0], rtol=1e-12)
    assert found.mean[0] == plain.mean[0] and found.std[0] == plain.std[0]
    with pytest.raises(ValueError, match="NaN or infinite values"):
        Scaling.fit([[1.0, np.inf], [2.0, 3.0]])


# --- values far out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["x", "y", "names"])
def test_a_value_that_hides_all_others_is_named(where):
    """R2 of the other rows was .11, or -7e14, and nothing was said."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    y = x[:, 0].copy()
    (y if where == "y" else x)[7] = 1e9
    told = {"x": r"column 0 \(and 2 more columns\)", "y": "y", "names": r"column 'a' \(and 2 more columns\)"}[where]
    table = pytest.importorskip("pandas").DataFrame(x, columns=list("abc")) if where == "names" else x
    with pytest.warns(UserWarning, match=rf"^{told} has values so far from the others.*1e\+09 in row 7"):
        bmp.MPRegressor((4,), epochs=2, random_state=0).fit(table, y)


def test_columns_that_are_only_skewed_are_not_blamed():
    """Heavy tails, a rare mark, a constant, other units, and sizes whose squares overflow."""
    rng = np.random.default_rng(0)
    n = 200
    mark = (np.arange(n) == 3) * 1e6
    columns = [rng.standard_t(1.2, n), np.exp(3.0 * rng.normal(size=n)), mark, np.full(n, 7.0)]
    columns += [1e9 + rng.normal(size=n), 1e300 * rng.normal(size=n), 1e-300 * rng.normal(size=n)]
    assert values_apart(np.stack(columns, 1), FAR_APART) == {}
    spoilt = rng.normal(size=(12, 2))
    spoilt[5, 1] = -1e5
    assert values_apart(spoilt, FAR_APART) == {1: 5}


def test_a_wild_target_does_not_ruin_the_fit():
    """One target at 1,000 standard deviations among 1,000 rows gave the others an R2 of -163, and nothing was said."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    clean = np.sin(x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=400)
    y = clean[:300].copy()
    y[7] = 1000.0
    with pytest.warns(OutlierWarning, match=r"^y has values so far from the others, e\.g\. 1e\+03 in row 7"):
        model = bmp.MPRegressor((8,), epochs=40, random_state=0).fit(x[:300], y)
    mean, std = model.predict(x[300:], return_std=True)
    low, high = model.predict_interval(x[300:], 0.9)
    assert np.square(mean - clean[300:]).mean() < 0.1 * clean.var()
    assert std.max() < 1.0
    assert 0.8 < ((low < clean[300:]) & (clean[300:] < high)).mean() <= 1.0
    plain = fitted(bmp.MPRegressor, np.delete(x[:300], 7, 0), np.delete(y, 7), hidden=(8,), epochs=40)
    assert model.loo_error_ == pytest.approx(plain.loo_error_, abs=0.2)  # the target counts as a nearer one
    assert model.loo_score_ == pytest.approx(plain.loo_score_, abs=0.5)


def test_a_mistyped_input_does_not_hide_the_others():
    """One cell times 1,000 left the other 4,999 rows no scale: R2 -5e5, or a LinAlgError."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    y = np.sin(x[:, 0]) + x[:, 1]
    x[7, 0] = 1e6
    with pytest.warns(OutlierWarning, match=r"^column 0 has values so far from the others, e\.g\. 1e\+06 in row 7"):
        model = bmp.MPRegressor((8,), epochs=40, random_state=0).fit(x[:300], y[:300])
    assert model.score(x[300:], y[300:]) > 0.95


def test_a_rare_mark_is_learned_like_any_column():
    """A single 1 among 7,000 rows was standardised to 84: R2 -14, or a LinAlgError, by seed."""
    rng = np.random.default_rng(1)
    n = 1500
    x = np.column_stack([rng.normal(size=(n + 200, 3)), np.zeros(n + 200)])
    x[7, 3] = 1.0
    y = np.sin(x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=len(x))
    y[7] += 3.0
    model = fitted(bmp.MPRegressor, x[:n], y[:n], hidden=(8,))
    assert model.score(x[n:], y[n:]) > 0.95


@pytest.mark.parametrize("kind", ["normal", "mark", "wild"])
def test_rows_far_out_still_look_far(kind):
    """However inputs are bent, what is known of the function falls with the distance from the data."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = np.sin(x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=200)
    if kind == "mark":
        x[:, 1] = np.arange(200) == 3
    if kind == "wild":
        x[3, 1] = 1000.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutlierWarning)
        model = bmp.MPRegressor((8,), epochs=30, random_state=0).fit(x, y)
    inside, near, far = (
        model.predict_epistemic(np.array([[0.1, 0.0], [0.1, side]])).max() for side in (0.5, 5.0, 20.0)
    )
    assert inside < near < 1.05 * far  # 5 lies where a column with a value at 1,000 is bent already


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_copies_and_named_groups_are_known_together(cls):
    x, y = table()
    x[5] = x[11]
    model = fitted(cls, x, y[cls], epochs=2)
    assert model._groups.tolist() == [*range(11), 5, *range(11, 39)]
    named = np.arange(40)
    named[20], named[11] = 3, 7
    groups = cls(**OPTIONS).set_params(epochs=2).fit(x, y[cls], groups=named)._groups
    assert groups[20] == groups[3] and groups[11] == groups[5] == groups[7]
    assert len(set(groups.tolist())) == 37


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_groups_stay_together_when_rows_come(cls):
    x, y = table()
    model = cls(**OPTIONS).set_params(epochs=2).fit(x[:30], y[cls][:30], groups=np.arange(30) // 2)
    model.partial_fit(np.concatenate([x[30:39], x[:1]]), y[cls][[*range(30, 39), 0]])
    assert model._groups.tolist() == [*(np.arange(30) // 2), *range(15, 24), 0]


@pytest.mark.parametrize("cls", ESTIMATORS)
@pytest.mark.parametrize("n_groups", [1, 2])
def test_a_few_groups_may_hold_all_rows(cls, n_groups):
    """No rehearsal could leave a whole one out, and training ended in an error of torch.cat."""
    x, y = table()
    told = pytest.warns(UserWarning, match="all rows are of one group") if n_groups == 1 else nullcontext()
    with told:
        model = cls(**OPTIONS).set_params(epochs=2).fit(x, y[cls], groups=np.arange(40) % n_groups)
    assert np.isfinite(model.loo_score_) and model.score(x, y[cls]) > 0.8


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_groups_that_do_not_fit_are_refused(cls):
    x, y = table()
    gaps: list = ["a"] * 39 + [None]
    for groups, error, told in (
        (np.arange(39), ValueError, "one label per row of X: expected 40, got 39"),
        (np.zeros((40, 1)), ValueError, r"groups must have shape \(40,\), got \(40, 1\)"),
        ("patient", TypeError, "groups must be a list or an array of 40 labels, got 'patient'"),
        (7, TypeError, "groups must be a list or an array of 40 labels, got 7"),
        ([["a"]] * 40, TypeError, "groups must hold numbers or texts: .*unhashable"),
        (gaps, ValueError, r"missing label in row 39 \(1 in all\); give each row a label"),
        (np.where(np.arange(40) > 37, np.nan, 1.0), ValueError, r"missing label in row 38 \(2 in all\)"),
    ):
        with pytest.raises(error, match=told):
            cls(**OPTIONS).fit(x, y[cls], groups=groups)


@pytest.mark.parametrize(
    "labels, told",
    [
        (np.array(["a", 1] * 5, dtype=object), "labels must be of one type, got int and str; convert them"),
        ([2.5, -1.0] * 5, "Unknown label type: continuous.*MPRegressor predicts quantities; if these are labels"),
    ],
)
def test_labels_that_cannot_be_told_apart_are_refused(labels, told):
    with pytest.raises(ValueError, match=told):
        bmp.MPClassifier((4,), epochs=2).fit(np.random.default_rng(0).normal(size=(10, 2)), labels)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_a_function_taken_for_noise_is_told_of(cls):
    """Ten waves in one column: training came to rest with one guess for all rows, and said nothing."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 10.0, (200, 1))
    wave = np.sin(6.0 * x[:, 0])
    y = wave + 0.1 * rng.normal(size=200) if cls is bmp.MPRegressor else wave > 0.0
    with pytest.warns(
        ConvergenceWarning, match=r"has learned next to nothing.*explain \d\d% of the targets'"
    ) as caught:
        model = cls(random_state=0).fit(x, y)
    assert caught[0].filename == __file__ and model.score(x, y) < (0.2 if cls is bmp.MPRegressor else 0.7)
    followed = np.column_stack([x, wave])  # what the sentence advises
    assert fitted(cls, followed, y).score(followed, y) > 0.9


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_noise_is_no_function_taken_for_noise(cls):
    """Nobody finds anything in it; neighbours of one group would, and do not count."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(20), 5)
    x, own = rng.normal(size=(20, 2))[group] + 1e-3 * rng.normal(size=(100, 2)), rng.normal(size=20)
    y = own[group] if cls is bmp.MPRegressor else own[group] > 0.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cls((8,), random_state=0).fit(x, y, groups=group)
    assert not [warning for warning in caught if "next to nothing" in str(warning.message)]
