"""Models of tables: how good they are, which rows count as unlike the others, and their files."""

import warnings

import numpy as np
import pytest
import torch

pandas = pytest.importorskip("pandas")

from bayesmp import MPClassifier, MPRegressor, TableEncoder  # noqa: E402
from bayesmp.basics.persistence import UnfitFileError  # noqa: E402
from bayesmp.heads import RegressionPrediction  # noqa: E402
from bayesmp.tables import Target  # noqa: E402
from bayesmp.tables import model as table_model  # noqa: E402
from bayesmp.tables.model import TableModel, tell_outliers  # noqa: E402
from bayesmp.tables.scores import guess_scores, scores_of  # noqa: E402

NUMBER, KIND = Target("y", "regression"), Target("y", "classification")


def plane(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6))
    return pandas.DataFrame(x, columns=list("abcdef")), x[:, 0] - 2.0 * x[:, 1] + 0.3 * rng.normal(size=n)


@pytest.fixture(scope="module")
def model():
    return TableModel.fit(*plane(80, 0), NUMBER, hidden=(20,), epochs=40, random_state=0)


def test_new_rows_of_the_same_kind_are_rarely_called_unlike(model):
    """The rows that were trained on are known better than new ones: compared with their own variances, a third of the
    new rows of a small table was flagged."""
    frame, _ = plane(1_000, 1)
    assert model.predict(frame).is_unlike.mean() < 0.06
    assert model.predict(frame + 6.0 * np.sign(frame)).is_unlike.all()


def test_scores_are_those_of_the_definitions(model):
    frame, y = plane(200, 2)
    known = model.predict(frame).known
    scores, guess = scores_of(known, y), guess_scores(model.facts.guess, y, is_classes=False)
    assert scores["R2"].value == pytest.approx(1.0 - np.square(y - known.mean.numpy()).mean() / y.var())
    assert scores["NLL"].value == pytest.approx(-float(known.log_prob(y).mean()))
    assert scores["RMSE"].value < 0.5 < guess["RMSE"] and scores["NLL"].value < guess["NLL"]
    assert model.loo_scores()["RMSE"] == pytest.approx(scores["RMSE"].value, rel=0.3)
    assert model.facts.noise_std == pytest.approx(0.3, rel=0.3)


def test_a_model_comes_back_from_its_file_without_the_rows(model, tmp_path):
    path = tmp_path / "m.safetensors"
    model.save(path)
    copy = TableModel.load(path)
    frame, _ = plane(50, 3)
    for before, after in zip(vars(model.predict(frame)).values(), vars(copy.predict(frame)).values(), strict=True):
        if isinstance(before, RegressionPrediction):
            assert torch.equal(after.mean, before.mean) and torch.equal(after.var, before.var)
        else:
            np.testing.assert_array_equal(after, before)
    assert copy.facts == model.facts and copy.target == model.target
    assert copy.estimator.seen_x_ is None
    assert copy.was_trained_on(plane(80, 0)[0]) and not copy.was_trained_on(frame)


def test_a_file_of_another_version_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr(table_model, "asdict", lambda part: {"strange": 1})
    model.save(tmp_path / "m.safetensors")
    with pytest.raises(UnfitFileError, match=r"m.safetensors.*does not fit this version of bayesmp: table.target"):
        TableModel.load(tmp_path / "m.safetensors")


def test_an_estimator_does_not_load_the_file_of_a_table(model, tmp_path):
    """It did, and failed later, on columns of text."""
    path = tmp_path / "m.safetensors"
    model.save(path)
    roads = r"`bayesmp predict .* TABLE`, or in Python bayesmp.tables.model.TableModel.load\("
    for kind in (MPRegressor, MPClassifier):
        told = rf"holds a model of a table that `bayesmp fit` made, expected an {kind.__name__}.*{roads}"
        with pytest.raises(ValueError, match=told):
            kind.load(path)


def test_a_value_that_hides_all_others_is_told_by_the_names_of_the_table():
    frame, y = plane(40, 0)
    encoder = TableEncoder()
    encoder.decide(frame)
    assert tell_outliers(encoder, NUMBER, frame, y) == []
    frame.loc[6, "c"], y[9] = 1e8, -1e8
    of_column, of_target = tell_outliers(encoder, NUMBER, frame, y)
    assert of_column.startswith("column 'c' has values so far") and "1e+08 in row 7" in of_column
    assert of_target.startswith("the target 'y' has values so far") and "-1e+08 in row 10" in of_target
    assert tell_outliers(encoder, KIND, frame, np.arange(40) % 2) == [of_column]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TableModel.fit(frame, y, NUMBER, hidden=(4,), epochs=2, random_state=0)
