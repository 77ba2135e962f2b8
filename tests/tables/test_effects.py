"""What predictions depend on: columns that matter, curves, and bands of averages."""

import numpy as np
import pytest

pandas = pytest.importorskip("pandas")

from bayesmp.tables import Target  # noqa: E402
from bayesmp.tables.effects import DRAWS, dependence, importances, places  # noqa: E402
from bayesmp.tables.model import TableModel  # noqa: E402


def towns(n, seed):
    rng = np.random.default_rng(seed)
    size, useless, town = rng.normal(size=n), rng.normal(size=n), rng.choice(["Bonn", "Kiel"], n, p=[0.7, 0.3])
    day = pandas.date_range("2024-01-01", periods=n).strftime("%Y-%m-%d")
    y = 2.0 * size + 3.0 * (town == "Kiel") + 0.3 * rng.normal(size=n)
    return pandas.DataFrame({"size": size, "useless": useless, "town": town, "day": day}), y


@pytest.fixture(scope="module")
def straight():
    """A model without hidden layers: its average over rows is its prediction for the average row."""
    return TableModel.fit(*towns(60, 0), Target("y", "regression"), hidden=(), epochs=6, random_state=0)


@pytest.fixture(scope="module")
def classes():
    frame, y = towns(60, 0)
    return TableModel.fit(frame, np.where(y > 1, "dear", "cheap"), Target("y", "classification"), hidden=(), epochs=6)


def test_columns_that_matter_come_first_with_errors_of_rows_and_shuffles(straight):
    frame, y = towns(60, 1)
    found = importances(straight, straight.encoder.encode(frame).x, y)
    assert {found[0].column, found[1].column} == {"size", "town"}
    useless = next(each for each in found if each.column == "useless")
    assert abs(useless.score.value) < 0.05 and found[0].score.value > 10.0 * abs(useless.score.value)
    assert all(each.nll.value > 4.0 * each.nll.error > 0.0 for each in found[:2])
    # shuffling a column leaves 2 var of it in the errors
    gain = next(each for each in found if each.column == "size").score
    assert gain.value == pytest.approx(2.0 * 4.0 * frame["size"].var() / y.var(), abs=3.0 * gain.error)


def test_importances_do_not_depend_on_the_order_of_calls_and_few_rows_have_none(straight):
    frame, y = towns(30, 1)
    x = straight.encoder.encode(frame).x
    assert importances(straight, x, y) == importances(straight, x, y)
    assert importances(straight, x[:1], y[:1]) == []


def test_the_band_is_that_of_the_average_not_the_average_of_bands(straight):
    """Without hidden layers the average over rows is the output at their mean, whose variance the belief tells."""
    frame, _ = towns(60, 1)
    x = straight.encoder.encode(frame).x
    found = dependence(straight, x, "size")
    rows = np.repeat(x.mean(0, keepdims=True), len(found.at), axis=0)
    rows[:, 0] = found.at
    known = straight.at(rows)
    np.testing.assert_allclose(found.mean[:, 0], known.mean.numpy(), rtol=1e-4, atol=1e-4)
    half = 1.645 * known.epistemic_var.sqrt().numpy()
    np.testing.assert_allclose(found.high[:, 0] - found.low[:, 0], 2.0 * half, rtol=4.0 / DRAWS**0.5)
    each = 1.645 * straight.at(x).epistemic_var.sqrt().numpy().mean()
    assert half.min() < 0.7 * each  # averaging the rows' own bands would be far too wide


def test_categories_and_dates_have_curves_of_their_own(straight):
    x = straight.encoder.encode(towns(60, 1)[0]).x
    town, day = dependence(straight, x, "town"), dependence(straight, x, "day")
    assert town.labels == ["Bonn", "Kiel"] and town.mean[1, 0] - town.mean[0, 0] == pytest.approx(3.0, abs=0.5)
    assert day.labels == [] and 2 < len(day.at) <= 20 and (np.diff(day.at) > 0).all()
    assert day.at.min() >= straight.encoder.columns_[3].calendar.first
    assert dependence(straight, x[:1], "size") is None  # of one value there is no curve
    assert places(straight)[0] == slice(0, 1)


def test_curves_of_classes_are_probabilities_and_their_bands_hold_them(classes):
    x = classes.encoder.encode(towns(60, 1)[0]).x
    found = dependence(classes, x, "size")
    assert len(found.names) == 1 and found.names[0] in ("dear", "cheap")
    rising = found.mean[-1, 0] > found.mean[0, 0]
    assert rising == (found.names[0] == "dear") and found.reach > 0.4
    assert (found.low >= 0.0).all() and (found.high <= 1.0).all()
    assert ((found.low <= found.mean + 0.02) & (found.mean <= found.high + 0.02)).all()


def test_several_networks_share_the_band():
    frame, y = towns(40, 0)
    model = TableModel.fit(frame, y, Target("y", "regression"), hidden=(), epochs=2, n_networks=2, random_state=0)
    found = dependence(model, model.encoder.encode(frame).x, "size")
    assert ((found.low <= found.mean) & (found.mean <= found.high)).all() and (found.high > found.low).all()
