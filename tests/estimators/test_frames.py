"""Data frames with texts, gaps, dates and units, straight into the estimators, and through the encoder alone."""

import datetime
import json
import os
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

import bayesmp as bmp
from bayesmp.estimators.base import OutlierWarning
from bayesmp.estimators.columns.encoder import TableWarning
from tests.estimators.test_odd_tables import ESTIMATORS, predicted

QUICK = {"hidden": (2,), "epochs": 1, "random_state": 0}
GOOD = {"hidden": (4,), "epochs": 6, "random_state": 0}


def houses(n: int = 80, seed: int = 0) -> tuple[pd.DataFrame, dict[type, np.ndarray]]:
    """All that a frame may hold."""
    rng = np.random.default_rng(seed)
    size, town = rng.uniform(40, 200, n), rng.choice(["Bonn", "Kiel", "Ulm"], n)
    frame = pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.1, np.nan, size),
            "town": np.where(rng.random(n) < 0.1, None, town),
            "kind": pd.Categorical(rng.choice(["flat", "house"], n)),
            "is_new": rng.random(n) < 0.5,
            "built": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D"),
            "rooms": pd.array(np.where(rng.random(n) < 0.1, 0, rng.integers(1, 6, n)), dtype="Int64"),
        }
    )
    frame.loc[frame["rooms"] == 0, "rooms"] = pd.NA
    price = size + 80.0 * (town == "Bonn") + 5.0 * rng.normal(size=n)
    return frame, {bmp.MPRegressor: price, bmp.MPClassifier: np.where(price > 150.0, "dear", "cheap")}


def quietly(model, x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return model.fit(x, y)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_a_frame_is_encoded_as_the_program_does(cls):
    """Texts, gaps, dates and categories were refused."""
    frame, y = houses()
    model = quietly(cls(**QUICK), frame, y[cls])
    x = bmp.TableEncoder().fit_transform(frame)
    same = cls(**QUICK).fit(x, y[cls])
    np.testing.assert_array_equal(predicted(model, frame), predicted(same, x))
    assert model.n_features_in_ == 6 and model.network_.input_shape == (x.shape[1],)
    assert list(model.feature_names_in_) == list(frame.columns)
    assert "town=(missing)" in model.encoder_.get_feature_names_out()
    assert model.diagnose(frame, y[cls]) is not None
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_array_equal(predicted(model, frame.to_numpy(dtype=object)), predicted(model, frame))


def test_numbers_without_gaps_take_the_road_of_arrays():
    """Booleans, too; no encoder is in the way, so nothing is left out or marked."""
    x, y = np.random.default_rng(0).normal(size=(40, 3)), houses(40)[1]
    x[:, 1] = x[:, 1] > 0
    frame = pd.DataFrame(x, columns=["id", "is_new", "c"]).astype({"is_new": bool})
    model = quietly(bmp.MPRegressor(**QUICK), frame, y[bmp.MPRegressor])
    assert model.encoder_ is None
    np.testing.assert_allclose(
        predicted(model, frame), predicted(bmp.MPRegressor(**QUICK).fit(x, y[bmp.MPRegressor]), x), rtol=1e-12
    )


def test_columns_are_checked_by_name():
    frame, y = houses()
    model = bmp.MPRegressor(**QUICK).fit(frame, y[bmp.MPRegressor])
    for other, words in (
        (frame.drop(columns="town"), "yet now missing:\n- town"),
        (frame.assign(more=1.0), "unseen at fit time:\n- more"),
        (frame[frame.columns[::-1]], "same order"),
    ):
        with pytest.raises(ValueError, match=words):
            model.predict(other)


def test_what_training_did_not_have_is_told_once():
    frame, y = houses()
    model = bmp.MPRegressor(**QUICK).fit(frame, y[bmp.MPRegressor])
    new = frame[:6].assign(town=["Graz", "Linz", "Bonn", "Graz", "Ulm", "Kiel"], is_new=pd.array([True] * 6))
    with pytest.warns(TableWarning, match=r"^column 'town': 3 rows with categories .* \('Graz', 'Linz'\)$") as caught:
        found = model.predict(new)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert len(found) == 6


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_a_saved_estimator_holds_the_encoder(cls, tmp_path):
    frame, y = houses()
    model = cls(**QUICK).fit(frame[:60], y[cls][:60])
    model.save(tmp_path / "m.safetensors")
    copy = cls.load(tmp_path / "m.safetensors")
    for other in (copy, pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(predicted(other, frame), predicted(model, frame))
        with pytest.raises(ValueError, match="same order"):
            other.predict(frame[frame.columns[::-1]])
    rest = frame[60:], y[cls][60:]
    np.testing.assert_array_equal(predicted(copy.partial_fit(*rest), frame), predicted(model.partial_fit(*rest), frame))
    assert clone(model).get_params() == model.get_params()


@pytest.mark.parametrize("cls, cell", [(bmp.MPRegressor, "size"), (bmp.MPClassifier, "town")])
def test_one_mistyped_cell_does_not_ruin_a_fit(cls, cell):
    frame, y = houses(80)
    expected = cls(**GOOD).fit(frame, y[cls]).score(frame[20:], y[cls][20:])
    frame.loc[3, cell] = 1.2e6 if cell == "size" else "Bnon"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutlierWarning)
        model = cls(**GOOD).fit(frame, y[cls])
    assert expected > 0.7 and model.score(frame[20:], y[cls][20:]) > expected - 0.05
    if cell == "town":
        assert "town=Bnon" not in model.encoder_.get_feature_names_out()


def test_units_are_left_out_and_told():
    frame, y = houses()
    mass = [f"{3000 + 10 * k} g" for k in range(80)]
    with pytest.warns(TableWarning, match=r"^column 'mass': 80 numbers with the unit 'g', which is left out"):
        model = bmp.MPRegressor(**QUICK).fit(frame.assign(mass=mass), y[bmp.MPRegressor])
    assert model.encoder_.columns_[-1].unit == "g"
    np.testing.assert_array_equal(model.seen_x_[:, -1], 3000 + 10 * np.arange(80))


@pytest.mark.parametrize("form", ["array", "frame", "mixed"])
def test_numbers_that_stand_for_missing_ones_are_told_and_kept(form):
    frame, y = houses()
    ages = np.r_[np.arange(20.0, 97.0), [-999.0] * 3]
    rows = frame.assign(age=ages) if form == "mixed" else pd.DataFrame({"age": ages, "b": np.arange(80.0) % 7})
    x = rows.to_numpy() if form == "array" else rows
    name = "0" if form == "array" else "'age'"
    with pytest.warns(
        (TableWarning, OutlierWarning), match=f"column {name} has -999 in 3 rows, .*leave the cell empty"
    ):
        model = bmp.MPRegressor(**QUICK).fit(x, y[bmp.MPRegressor])
    assert (model.seen_x_ == -999.0).sum() == 3 if form != "array" else True


def test_a_target_of_text_is_blamed_on_the_target():
    frame, y = houses()
    with pytest.raises(ValueError, match="MPRegressor predicts numbers, and MPClassifier labels"):
        bmp.MPRegressor(**QUICK).fit(frame, y[bmp.MPClassifier])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        bmp.MPRegressor(**QUICK).fit(frame, y[bmp.MPRegressor][:-1])


def test_a_frame_of_polars():
    polars = pytest.importorskip("polars")
    frame, y = houses()
    day = [datetime.date(2024, 1, 1) + datetime.timedelta(k) for k in range(80)]
    frame = frame.assign(day=day, mass=[f"{k} kg" for k in range(80)])
    rows = {name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame.columns}
    table = polars.DataFrame(rows).with_columns(polars.col("kind").cast(polars.Categorical))
    with pytest.warns(TableWarning, match="mass"):
        model = bmp.MPRegressor(**QUICK).fit(table, y[bmp.MPRegressor])
    with pytest.warns(TableWarning, match="mass"):
        same = bmp.MPRegressor(**QUICK).fit(frame, y[bmp.MPRegressor])
    np.testing.assert_array_equal(model.predict(table), same.predict(frame))
    with pytest.raises(ValueError, match="same order"):
        model.predict(table.select(table.columns[::-1]))


# --- the encoder alone


CHECKS = """
import json, warnings
import bayesmp as bmp
from sklearn.utils.estimator_checks import check_estimator

warnings.simplefilter("ignore")
found = check_estimator(bmp.TableEncoder(), on_skip=None, on_fail=None)
print(json.dumps([[check["check_name"], check["status"], str(check["exception"])] for check in found]))
"""


def test_all_of_scikit_learns_checks_pass():
    environment = {**os.environ, "SCIPY_ARRAY_API": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CHECKS], capture_output=True, text=True, env=environment, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) > 30 and [check for check in found if check[1] != "passed"] == []


def test_the_encoder_works_before_any_estimator():
    frame, y = houses()
    y = y[bmp.MPRegressor]
    pipe = make_pipeline(bmp.TableEncoder(drop=["rooms", "built"]), LinearRegression())
    assert cross_val_score(pipe, frame, y).mean() > 0.75
    parts = ColumnTransformer([("table", bmp.TableEncoder(), ["town", "size"])], remainder="drop")
    parts.set_output(transform="pandas")
    found = parts.fit_transform(frame)
    assert "table__town=Ulm" in found.columns
    encoder = bmp.TableEncoder(categories=["rooms"]).set_output(transform="pandas")
    again = pickle.loads(pickle.dumps(clone(encoder).fit(frame)))
    pd.testing.assert_frame_equal(again.transform(frame), encoder.fit_transform(frame))
    assert {"rooms=3", "rooms=(missing)"} <= set(again.get_feature_names_out())


def test_an_array_with_gaps_and_texts_is_encoded_by_position():
    x = np.array([[1.0, "a"], [None, "b"], [3.0, "a"], [4.0, None]], dtype=object)
    encoder = bmp.TableEncoder().fit(x)
    assert encoder.get_feature_names_out().tolist() == ["x0", "x0 (missing)", "x1=a", "x1=b", "x1=(missing)"]
    assert encoder.transform(x)[:, 0].tolist() == [1, 3, 3, 4]
    numbered = pd.DataFrame(x)  # whose columns have no names
    np.testing.assert_array_equal(bmp.TableEncoder().fit_transform(numbered), encoder.transform(x))


def test_one_row_and_two_columns_of_one_name_are_refused():
    with pytest.raises(ValueError, match="one row"):
        bmp.TableEncoder().fit(pd.DataFrame({"a": ["x"]}))
    with pytest.raises(ValueError, match=r"'a' 2 times|two columns named 'a'"):  # by scikit-learn or by us
        bmp.TableEncoder().fit(pd.DataFrame([["x", "y"], ["z", "y"]], columns=["a", "a"]))
