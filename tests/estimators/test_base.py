"""What both estimators share: scikit-learn's own checks and tools, layers, data frames, data added later."""

import importlib.util
import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

import bayesmp as bmp
from tests import helpers

SMALL = {"hidden": (4,), "epochs": 8, "random_state": 0}
BOTH = [bmp.MPRegressor, bmp.MPClassifier]

CHECKS = """
import json, sys, warnings
from sklearn.utils.estimator_checks import check_estimator
import bayesmp as bmp

warnings.simplefilter("ignore")
estimator = getattr(bmp, sys.argv[1])(hidden=(3,), epochs=8)
found = check_estimator(estimator, on_skip=None, on_fail=None)
print(json.dumps([[check["check_name"], check["status"], str(check["exception"])] for check in found]))
"""


def table(cls, n=60):
    """x (n, 3) and targets for this estimator; two classes that a line separates but for few."""
    x, y = helpers.linear_data(n)
    y = y[:, 0].numpy()
    return x.numpy(), np.where(y > 0, "up", "down") if cls is bmp.MPClassifier else 50.0 + 10.0 * y


@pytest.mark.parametrize("cls", BOTH)
def test_all_of_scikit_learns_checks_pass(cls):
    """In a process of its own, since one check needs a variable that SciPy reads when it is imported; none is skipped
    where pandas is installed.
    """
    environment = {**os.environ, "SCIPY_ARRAY_API": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHECKS, cls.__name__]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) > 40
    allowed = () if importlib.util.find_spec("pandas") else ("pandas is not installed",)
    assert [check for check in found if check[1] != "passed" and not check[2].startswith(allowed)] == []


def test_estimators_are_imported_only_when_they_are_used():
    """scikit-learn takes as long to import as all of torch's part."""
    code = (
        "import sys, bayesmp; assert 'sklearn' not in sys.modules; bayesmp.MPRegressor; assert 'sklearn' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'MPTransformer'"):
        bmp.MPTransformer  # noqa: B018


@pytest.mark.parametrize("cls", BOTH)
class TestTools:
    """What scikit-learn's users do with any estimator."""

    def test_a_pipeline_is_cross_validated(self, cls):
        x, y = table(cls)
        model = make_pipeline(PolynomialFeatures(2, include_bias=False), cls(**{**SMALL, "epochs": 20}))
        assert cross_val_score(model, x, y, cv=3).min() > 0.5

    @pytest.mark.slow
    def test_a_grid_finds_the_better_setting(self, cls):
        """On targets that no linear network can tell."""
        x, y = table(cls, 120)
        y = np.where(np.abs(x[:, 0]) > 0.7, y[0], y[y != y[0]][0]) if cls is bmp.MPClassifier else np.abs(x[:, 0])
        search = GridSearchCV(cls(**SMALL), {"epochs": [19, 20], "hidden": [(), (6,)]}, cv=2).fit(x, y)
        assert search.best_params_["hidden"] == (6,)
        assert search.best_estimator_.n_iter_ == search.best_params_["epochs"]

    def test_a_pickle_predicts_the_same_and_learns_on(self, cls):
        x, y = table(cls)
        model = cls(**SMALL).fit(x[:40], y[:40])
        copy = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(copy.predict(x), model.predict(x))
        np.testing.assert_array_equal(
            copy.partial_fit(x[40:], y[40:]).predict(x), model.partial_fit(x[40:], y[40:]).predict(x)
        )

    def test_a_clone_has_the_parameters_and_nothing_learned(self, cls):
        layers = [bmp.Linear(3, 4), bmp.ReLU(), bmp.Linear(4, 2 if cls is bmp.MPClassifier else 1)]
        x, y = table(cls)
        model = cls(layers, epochs=3, random_state=0).fit(x, y)
        copy = clone(model)
        with pytest.raises(NotFittedError):
            copy.predict(x)
        np.testing.assert_array_equal(copy.fit(x, y).predict(x), model.predict(x))

    def test_random_state_decides(self, cls):
        x, y = table(cls)
        name = "predict_proba" if cls is bmp.MPClassifier else "predict"
        first, again, other = (getattr(cls((4,), epochs=3, random_state=k).fit(x, y), name)(x) for k in (0, 0, 1))
        np.testing.assert_array_equal(first, again)
        assert np.abs(first - other).max() > 1e-6

    def test_predictions_do_not_depend_on_the_rows_beside(self, cls):
        x, y = table(cls)
        model = cls(**SMALL).fit(x, y)
        np.testing.assert_allclose(model.predict_epistemic(x)[7:8], model.predict_epistemic(x[7:8]), rtol=1e-9)

    def test_columns_are_those_of_the_data_frame(self, cls):
        pandas = pytest.importorskip("pandas")
        x, y = table(cls)
        frame = pandas.DataFrame(x, columns=["a", "b", "c"])
        model = cls(**SMALL).fit(frame, pandas.Series(y))
        assert list(model.feature_names_in_) == ["a", "b", "c"] and model.n_features_in_ == 3
        name = "predict_proba" if cls is bmp.MPClassifier else "predict"
        expected = getattr(cls(**SMALL).fit(x, y), name)(x)
        np.testing.assert_allclose(getattr(model, name)(frame), expected, rtol=1e-12)
        with pytest.raises(ValueError, match="same order"):
            model.predict(frame[["b", "a", "c"]])
        with pytest.raises(ValueError, match="unseen at fit time"):
            model.partial_fit(frame.rename(columns={"c": "d"}), y)

    @pytest.mark.parametrize(
        "spoil, match",
        [
            (lambda x: np.where(x > 1.0, np.nan, x), "contains NaN"),
            (lambda x: np.where(x > 1.0, np.inf, x), "infinity"),
            (lambda x: x[:, 0], "2D array"),
            (lambda x: x[:-1], "inconsistent numbers of samples"),
        ],
    )
    def test_data_that_cannot_be_learned_from_are_refused(self, cls, spoil, match):
        x, y = table(cls)
        with pytest.raises(ValueError, match=match):
            cls(**SMALL).fit(spoil(x), y)

    def test_columns_of_text_are_refused_with_advice(self, cls):
        x, y = table(cls)
        text = np.concatenate([x, np.full((len(x), 1), "Berlin")], 1).astype(object)
        with pytest.raises(ValueError, match=r"'Berlin'.*encode columns of text first, e.g. with OneHotEncoder"):
            cls(**SMALL).fit(text, y)

    def test_tensors_lists_and_integers_are_tables_too(self, cls):
        x, y = table(cls)
        rows = np.round(10 * x).astype(np.int64)
        expected = cls(**SMALL).fit(rows, y).predict_epistemic(rows)
        for form in (torch.as_tensor(rows), rows.tolist(), rows.astype(np.float64)):
            found = cls(**SMALL).fit(form, y).predict_epistemic(form)
            np.testing.assert_allclose(found, expected, rtol=1e-12)

    def test_sparse_data_are_refused(self, cls):
        sparse = pytest.importorskip("scipy.sparse")
        x, y = table(cls)
        with pytest.raises(TypeError, match=r"X is sparse.*toarray.*sparse_output=False"):
            cls(**SMALL).fit(sparse.csr_array(x), y)
        with pytest.raises(TypeError, match="X is sparse"):
            cls(**SMALL).fit(x, y).predict(sparse.csr_array(x))

    def test_wrong_number_of_features_is_refused(self, cls):
        x, y = table(cls)
        with pytest.raises(ValueError, match=r"X has 2 features.*expecting 3"):
            cls(**SMALL).fit(x, y).predict(x[:, :2])

    def test_units_of_the_inputs_do_not_matter(self, cls):
        """Temperatures around 300 K, distances in nanometres: what a network of its own would fail on."""
        x, y = table(cls)
        model, other = cls(**SMALL).fit(x, y), cls(**SMALL).fit(1e-9 * x, y)
        np.testing.assert_allclose(other.predict_epistemic(1e-9 * x), model.predict_epistemic(x), rtol=1e-3)
        moved = 1e6 * x + 1e9
        np.testing.assert_allclose(
            cls(**SMALL).fit(moved, y).predict_epistemic(moved), model.predict_epistemic(x), rtol=1e-2
        )

    def test_constant_columns_change_nothing_but_the_prior(self, cls):
        x, y = table(cls)
        wide = np.concatenate([x, np.full((len(x), 1), 0.1)], 1)
        assert cls((4,), epochs=20, random_state=0).fit(wide, y).score(wide, y) > 0.8

    def test_a_run_that_is_not_at_rest_says_so(self, cls):
        x, y = table(cls)
        with pytest.warns(ConvergenceWarning, match=r"not at rest after 3 epochs.*raise max_epochs") as caught:
            model = cls((4,), max_epochs=3).fit(x, y)
        assert caught[0].filename == __file__
        assert model.n_iter_ == len(model.history_) == 3

    def test_verbose_shows_what_came_out(self, cls, capsys):
        x, y = table(cls)
        cls(**SMALL, verbose=True).fit(x, y)
        shown = capsys.readouterr()
        assert "leave-one-out" in shown.out and "epoch 8" in shown.err


class TestHidden:
    x, y = table(bmp.MPRegressor, 20)

    @pytest.mark.parametrize(
        "hidden, widths",
        [((), [3, 1]), ((5,), [3, 5, 1]), ([5, 2], [3, 5, 2, 1]), (5, [3, 5, 1]), (np.array([2, 2]), [3, 2, 2, 1])],
    )
    def test_widths(self, hidden, widths):
        model = bmp.MPRegressor(hidden, epochs=1).fit(self.x, self.y)
        linear = [layer for layer in model.network_.layers if isinstance(layer, bmp.Linear)]
        assert [linear[0].n_in, *(layer.n_out for layer in linear)] == widths
        assert len(model.network_.layers) == 2 * len(linear) - 1

    def test_a_function_makes_layers_for_any_table(self):
        def make(n_inputs, n_outputs):
            return [bmp.Linear(n_inputs, 6), bmp.ReLU(), bmp.Linear(6, n_outputs)]

        model = bmp.MPRegressor(make, epochs=1).fit(self.x, self.y)
        assert isinstance(model.network_.layers[1], bmp.ReLU) and model.network_.input_shape == (3,)

    def test_layers_that_do_not_fit_the_table_are_refused(self):
        with pytest.raises(
            ValueError, match=r"inputs of shape \(4,\) and have 2 outputs; these data need \(3,\) and 1"
        ):
            bmp.MPRegressor([bmp.Linear(4, 2)]).fit(self.x, self.y)

    @pytest.mark.parametrize("n_columns, widths", [(1, [16, 16]), (2, [16, 16]), (3, [50])])
    def test_the_usual_widths(self, n_columns, widths, tmp_path):
        """Of one or two columns two layers, which bend sooner; of classes one. Files keep that it was a choice."""
        x, y = np.random.default_rng(0).normal(size=(30, n_columns)), np.arange(30.0)
        model = bmp.MPRegressor(epochs=1).fit(x, y)
        model.save(tmp_path / "model.safetensors")
        for regressor in (model, bmp.MPRegressor.load(tmp_path / "model.safetensors")):
            assert regressor.get_params()["hidden"] == "auto"
            assert [layer.n_out for layer in regressor.network_.layers if isinstance(layer, bmp.Linear)] == [*widths, 1]
        labels = bmp.MPClassifier(epochs=1).fit(x, y > 9)
        assert [layer.n_out for layer in labels.network_.layers if isinstance(layer, bmp.Linear)] == [50, 2]

    @pytest.mark.parametrize("hidden", ["50", (5, 0), (2.5,), True, None, [bmp.ReLU(), 5], {5}])
    def test_anything_else_is_refused(self, hidden):
        with pytest.raises(ValueError, match=r"hidden must be .*widths such as"):
            bmp.MPRegressor(hidden).fit(self.x, self.y)

    @pytest.mark.parametrize(
        "options, match",
        [
            ({"epochs": "all"}, "'auto'"),
            ({"epochs": 0}, "epochs"),
            ({"max_epochs": 0}, "max_epochs"),
            ({"batch_size": 0}, "batch_size"),
            ({"random_state": "a"}, "seed"),
        ],
    )
    def test_other_parameters_are_checked(self, options, match):
        with pytest.raises(ValueError, match=match):
            bmp.MPRegressor((2,), **options).fit(self.x, self.y)


class TestPartialFit:
    @pytest.mark.slow
    def test_two_halves_end_near_one_fit_on_all(self):
        """Nearer than two fits on all from different starts, and as sure: nothing is counted twice."""
        x, y = table(bmp.MPRegressor, 200)
        y = y + 10.0 * np.abs(x[:, 0])
        options = {"hidden": (8,), "epochs": 60, "batch_size": 50, "random_state": 0}
        whole = bmp.MPRegressor(**options).fit(x, y)
        halves = bmp.MPRegressor(**options).partial_fit(x[:100], y[:100])
        before = halves.predict_epistemic(x).mean()
        halves.partial_fit(x[100:], y[100:])
        rms = np.sqrt(np.mean((halves.predict(x) - whole.predict(x)) ** 2))
        assert rms < 0.1 * y.std()
        assert halves.predict_epistemic(x).mean() == pytest.approx(whole.predict_epistemic(x).mean(), rel=0.2)
        assert halves.predict_epistemic(x).mean() < 0.9 * before
        assert halves.loo_score_ == pytest.approx(whole.loo_score_, abs=0.15)

    def test_nothing_is_forgotten(self):
        """The second call has other rows only: those of the first are still predicted."""
        x, y = table(bmp.MPRegressor, 120)
        order = np.argsort(x[:, 0])
        x, y = x[order], y[order]
        model = bmp.MPRegressor((8,), epochs=40, random_state=0).partial_fit(x[:60], y[:60])
        score = model.score(x[:60], y[:60])
        assert model.partial_fit(x[60:], y[60:]).score(x[:60], y[:60]) > score - 0.1

    def test_it_goes_on_after_fit_and_fit_starts_anew(self):
        x, y = table(bmp.MPRegressor)
        model = bmp.MPRegressor(**SMALL).fit(x[:30], y[:30]).partial_fit(x[30:], y[30:])
        np.testing.assert_allclose(model.seen_x_, x)
        again = model.fit(x[:30], y[:30])
        np.testing.assert_array_equal(again.predict(x), bmp.MPRegressor(**SMALL).fit(x[:30], y[:30]).predict(x))

    def test_the_first_rows_need_not_be_typical(self):
        """Standardised by all rows seen, not by the first few."""
        x, y = table(bmp.MPRegressor, 100)
        model = bmp.MPRegressor((8,), epochs=40, random_state=0).partial_fit(x[:1], y[:1]).partial_fit(x[1:], y[1:])
        assert model.score(x, y) > 0.8

    def test_another_network_cannot_go_on(self):
        x, y = table(bmp.MPRegressor)
        model = bmp.MPRegressor(**SMALL).fit(x, y).set_params(hidden=(7,))
        expected = model.predict(x)
        with pytest.raises(ValueError, match=r"hidden was changed to .*call fit to start anew"):
            model.partial_fit(x, y)
        np.testing.assert_array_equal(model.predict(x), expected)  # a refused call changes nothing

    def test_targets_must_keep_their_shape(self):
        x, y = table(bmp.MPRegressor)
        with pytest.raises(ValueError, match=r"y must have shape \(n\) as in the calls before, got \(60, 2\)"):
            bmp.MPRegressor(**SMALL).fit(x, y).partial_fit(x, np.stack([y, y], 1))
