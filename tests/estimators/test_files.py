"""Estimators in files: what comes back, without pickle, and what is refused."""

import pickle

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import bayesmp as bmp
from bayesmp.estimators.base import OutlierWarning
from bayesmp.estimators.scaling import TableScaling
from tests import helpers

pytestmark = pytest.mark.filterwarnings("ignore:the targets are noisy to different degrees")  # those of `table` are
OPTIONS = {"hidden": (4,), "epochs": 3, "random_state": 7}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def table():
    x, y = helpers.linear_data(50, 3, 2)
    return x.numpy(), 100.0 + 10.0 * y.numpy()


def test_a_regressor_comes_back_and_learns_on(path):
    x, y = table()
    model = bmp.MPRegressor(**OPTIONS, batch_size=20).fit(x[:30], y[:30])
    model.save(path)
    copy = bmp.MPRegressor.load(path)
    assert copy.get_params() == model.get_params()
    assert (copy.n_iter_, copy.loo_score_, copy.loo_error_) == (3, model.loo_score_, model.loo_error_)
    assert len(copy.history_) == 3 and copy.history_.stopped == model.history_.stopped
    for before, after in zip(model.predict(x, return_std=True), copy.predict(x, return_std=True), strict=True):
        np.testing.assert_array_equal(after, before)
    with pytest.raises(ValueError, match="X has 2 features"):
        copy.predict(x[:, :2])
    np.testing.assert_array_equal(
        copy.partial_fit(x[30:], y[30:]).predict(x), model.partial_fit(x[30:], y[30:]).predict(x)
    )


def test_bent_columns_come_back(path):
    x, y = table()
    x = x.copy()
    x[:, 0] = np.arange(50) == 3
    x[4, 1] = 1e4
    with pytest.warns(OutlierWarning, match="column 1"):
        model = bmp.MPRegressor(**OPTIONS).fit(x, y)
    model.save(path)
    found, copy = model.x_scaling_, bmp.MPRegressor.load(path).x_scaling_
    assert np.isfinite(found.high_width[1]) and isinstance(copy, TableScaling)
    for name, values in vars(found).items():
        np.testing.assert_array_equal(getattr(copy, name), values)
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict(x), model.predict(x))


LABELS = [["a", "bc"], [3, -7], [True, False], [0.0, 2.0], np.array(["a", "b"], dtype=object)]


@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_labels_keep_their_type(labels, path):
    x, y = table()
    labels = np.asarray(labels)
    model = bmp.MPClassifier(**OPTIONS).fit(x, labels[(y[:, 0] > 100.0).astype(int)])
    model.save(path)
    copy = bmp.MPClassifier.load(path)
    assert copy.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(copy.predict(x), model.predict(x))
    np.testing.assert_array_equal(copy.predict_proba(x), model.predict_proba(x))


def test_column_names_are_kept(path):
    pandas = pytest.importorskip("pandas")
    x, y = table()
    frame = pandas.DataFrame(x, columns=["a", "b", "c"])
    bmp.MPRegressor(**OPTIONS).fit(frame, y).save(path)
    copy = bmp.MPRegressor.load(path)
    assert copy.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="same order"):
        copy.predict(frame[["b", "a", "c"]])


def test_without_the_rows_it_predicts_but_cannot_add_to_them(path):
    x, y = table()
    model = bmp.MPRegressor(**OPTIONS).fit(x, y)
    model.save(path)
    size = path.stat().st_size
    model.save(path, data=False)
    assert path.stat().st_size < size - x.nbytes
    copy = bmp.MPRegressor.load(path)
    np.testing.assert_array_equal(copy.predict(x), model.predict(x))
    with pytest.raises(ValueError, match="saved without them"):
        copy.partial_fit(x, y)
    copy.save(path)
    np.testing.assert_array_equal(copy.fit(x, y).predict(x), model.predict(x))


@pytest.mark.parametrize("form", ["layers", "function", "number"])
def test_hidden_in_every_form(form, path):
    x, y = table()
    layers = [bmp.Linear(3, 4), bmp.ReLU(), bmp.Linear(4, 2)]
    hidden = {"layers": layers, "function": lambda n_in, n_out: layers, "number": 4}[form]
    model = bmp.MPRegressor(hidden, epochs=2, random_state=np.random.RandomState(0)).fit(x, y)
    model.save(path)
    copy = bmp.MPRegressor.load(path)
    assert copy.random_state is None
    np.testing.assert_array_equal(copy.predict(x), model.predict(x))
    copy.partial_fit(x, y)


def test_files_of_another_kind_are_refused(path):
    x, y = table()
    with pytest.raises(NotFittedError):
        bmp.MPRegressor().save(path)
    model = bmp.MPRegressor(**OPTIONS).fit(x, y)
    model.save(path)
    with pytest.raises(ValueError, match=r"holds an MPRegressor, expected an MPClassifier; use MPRegressor.load"):
        bmp.MPClassifier.load(path)
    with pytest.raises(
        ValueError, match=r"holds an MPRegressor, expected a network or a tra.*bayesmp.MPRegressor.load\("
    ):
        bmp.load(path)
    with pytest.raises(ValueError, match=r"holds an MPRegressor, expected a training run; read it with"):
        bmp.Trainer.load(path, x, y)
    model.network_.save(path)
    with pytest.raises(ValueError, match=r"holds a network, expected an estimator; read it with bayesmp.load\("):
        bmp.MPRegressor.load(path)


def test_labels_that_a_file_cannot_hold_are_refused(path):
    x, y = table()
    model = bmp.MPClassifier(**OPTIONS).fit(x, (y[:, 0] > 100.0).astype(int))
    model.classes_ = np.array([None, "a"], dtype=object)
    with pytest.raises(TypeError, match=r"classes_ holds None.*use pickle"):
        model.save(path)
    assert not path.exists()
