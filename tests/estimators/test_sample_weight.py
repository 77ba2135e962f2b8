"""Rows that count more or less than once, and classes that do."""

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bayesmp as bmp
from tests.estimators.test_base import BOTH, table
from tests.helpers import blobs, linear_data

SMALL = {"hidden": (), "epochs": 5, "random_state": 0}
BENT = {**SMALL, "hidden": (3,)}
HALVES = {"hidden": (), "epochs": 30, "random_state": 0}  # linear: training comes to rest where the closed form is


def answers(model, x):
    return model.predict_proba(x) if hasattr(model, "predict_proba") else np.stack(model.predict(x, return_std=True))


def rows_again(x, y, weight):
    rows = np.repeat(np.arange(len(x)), weight)
    return x[rows], y[rows]


@pytest.mark.filterwarnings("ignore::bayesmp.estimators.regressor.TargetWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # there is nothing to learn
@pytest.mark.parametrize("cls", BOTH)
def test_whole_weights_are_repeated_rows_bit_for_bit(cls):
    """Of which zero leaves a row out; with few different values, where equal rows are no copies, in any order."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 3, (30, 2)) * 1.0, rng.integers(0, 3, 30)
    weight = rng.integers(0, 4, 30)
    model = cls(**BENT).fit(x, y, sample_weight=weight)
    again = cls(**BENT).fit(*rows_again(x, y, weight))
    assert np.array_equal(answers(model, x), answers(again, x)) and model.loo_score_ == again.loo_score_
    order = rng.permutation(30)
    other = cls(**BENT).fit(x[order], y[order], sample_weight=weight[order])
    assert np.array_equal(answers(model, x), answers(other, x))
    assert not np.array_equal(answers(model, x), answers(cls(**BENT).fit(x, y), x))


@pytest.mark.parametrize("cls", BOTH)
def test_weights_of_one_change_nothing(cls):
    x, y = table(cls)
    model, plain = cls(**BENT).fit(x, y, sample_weight=np.ones(len(x))), cls(**BENT).fit(x, y)
    assert np.array_equal(answers(model, x), answers(plain, x))


def test_weights_that_are_no_whole_numbers_have_the_closed_form():
    """Weighted ridge regression with what the model learned of noise and prior, on its own scale; some weights need
    more than one row.
    """
    x, y = (part.numpy() for part in linear_data(60))
    weight = np.random.default_rng(1).uniform(0.1, 5.0, 60)
    model = bmp.MPRegressor(**HALVES).fit(x, y[:, 0], sample_weight=weight)
    network = model.network_
    rows = np.hstack([model.x_scaling_.apply(x), np.ones((60, 1))])
    targets = model.y_scaling_.apply(y)
    noise = network.fitted.noise
    prior = np.r_[network.prior.rho.numpy()]
    precision = np.diag(prior) + (rows * weight[:, None]).T @ rows / noise
    mean = rows @ np.linalg.solve(precision, (rows * weight[:, None]).T @ targets / noise)
    found = network.predict(model.x_scaling_.apply(x))
    np.testing.assert_allclose(found.mean.numpy(), mean, atol=3e-3)  # noise and prior have moved since the last step
    plain = np.linalg.solve(np.diag(prior) + rows.T @ rows / noise, rows.T @ targets / noise)
    assert np.abs(rows @ plain - mean).max() > 0.03
    var = np.einsum("ni,ij,nj->n", rows, np.linalg.inv(precision), rows)
    np.testing.assert_allclose(found.epistemic_var.numpy()[:, 0], network.belief_scale * var, rtol=1e-3)


def test_copies_count_as_often_as_their_weights_say_on_average():
    x, y = (part.numpy() for part in linear_data(40))
    once = bmp.MPRegressor(**HALVES).fit(x, y, sample_weight=np.full(40, 2.0))
    twice = bmp.MPRegressor(**HALVES).fit(np.r_[x, x], np.r_[y, y], sample_weight=np.r_[np.ones(40), np.full(40, 3.0)])
    np.testing.assert_allclose(once.predict_epistemic(x), twice.predict_epistemic(x), rtol=0.02)


@pytest.mark.parametrize("cls", BOTH)
def test_partial_fit_and_files_keep_weights(cls, tmp_path):
    """Rows that came without weights count once."""
    x, y = table(cls, 50)
    labels = {"classes": np.unique(y)} if cls is bmp.MPClassifier else {}
    weight = np.r_[np.full(20, 2.5), np.ones(30)]
    model = cls(**SMALL).partial_fit(x[:20], y[:20], sample_weight=weight[:20], **labels)
    model.save(tmp_path / "model")
    loaded = cls.load(tmp_path / "model")
    for each in (model, loaded):
        each.partial_fit(x[20:], y[20:])
    assert np.array_equal(model.seen_weight_, weight)
    assert np.array_equal(answers(model, x), answers(loaded, x))
    later = cls(**SMALL).partial_fit(x[:20], y[:20], **labels).partial_fit(x[20:], y[20:], sample_weight=weight[20:])
    assert np.array_equal(later.seen_weight_, np.ones(50))


@pytest.mark.parametrize("cls", BOTH)
def test_wrong_weights_are_refused(cls):
    x, y = table(cls)
    for wrong in (-np.ones(60), np.full(60, np.nan), np.ones(59), np.zeros(60)):
        with pytest.raises(ValueError, match="sample_weight"):
            cls(**SMALL).fit(x, y, sample_weight=wrong)


@pytest.mark.parametrize("cls", BOTH)
def test_several_networks_have_weights_and_weighted_scores(cls):
    x, y = table(cls)
    weight = np.r_[np.full(30, 3.0), np.full(30, 0.5)]
    model = cls(**SMALL, n_networks=2, n_jobs=1).fit(x, y, sample_weight=weight)
    plain = cls(**SMALL, n_networks=2).fit(x, y)
    assert np.isfinite(model.loo_score_) and model.loo_score_ != plain.loo_score_


@pytest.mark.parametrize("n_jobs, workers", [(None, None), (2, 2)])
def test_n_jobs_is_how_many_train_at_once(monkeypatch, n_jobs, workers):
    asked = []

    def fit_many(networks, x, y, *, workers, **options):
        asked.append(workers)
        return [bmp.fit(network, x, y, epochs=2) for network in networks]

    monkeypatch.setattr("bayesmp.estimators.base.fit_many", fit_many)
    x, y = table(bmp.MPRegressor)
    bmp.MPRegressor(hidden=(2,), epochs=2, n_networks=2, n_jobs=n_jobs).fit(x, y)
    assert asked == [workers]


@pytest.mark.parametrize("cls", BOTH)
def test_weights_are_routed_through_pipelines_grids_and_cross_validation(cls):
    """Rows of weight 0 are nonsense, which would show."""
    x, y = table(cls)
    x = np.r_[x, x[:20]]
    y = np.r_[y, y[:20][::-1] if cls is bmp.MPRegressor else np.where(y[:20] == "up", "down", "up")]
    weight = np.r_[np.ones(60), np.zeros(20)]
    with sklearn.config_context(enable_metadata_routing=True):
        model = cls(**{**SMALL, "epochs": 20}).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), model)
        kept = pipe.fit(x, y, sample_weight=weight)
        assert kept[-1].seen_weight_.tolist() == [1.0] * 60
        scores = cross_validate(pipe, x, y, params={"sample_weight": weight}, cv=2)["test_score"]
        assert scores.min() > 0.8
        name = type(model).__name__.lower()
        grid = GridSearchCV(pipe, {f"{name}__batch_size": [32, 64]}, cv=2).fit(x, y, sample_weight=weight)
        assert grid.best_score_ > 0.8


@pytest.mark.parametrize("cls", BOTH)
def test_scores_are_weighted(cls):
    x, y = table(cls)
    model = cls(**SMALL).fit(x, y)
    weight = np.r_[np.ones(10), np.zeros(50)]
    assert model.score(x, y, sample_weight=weight) == pytest.approx(model.score(x[:10], y[:10]))


# --- classes ---------------------------------------------------------------------------------------------------------


def rare(n=120):
    """Two classes that inputs do not tell apart, one of them five times as frequent."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 1)), np.where(np.arange(n) % 6 == 0, "rare", "usual")


@pytest.mark.parametrize("weights, expected", [(None, 1 / 6), ("balanced", 0.5), ({"rare": 15.0, "usual": 1.0}, 0.75)])
def test_class_weights_change_probabilities_as_another_mix_would(weights, expected):
    x, y = rare()
    model = bmp.MPClassifier(hidden=(), epochs=30, class_weight=weights, random_state=0).fit(x, y)
    assert model.predict_proba(np.zeros((1, 1)))[0, 0] == pytest.approx(expected, abs=0.06)


def test_balanced_counts_weights_and_multiplies_them():
    """As scikit-learn has it: each class has the same weight in all, and there is as much in all as before."""
    x, y = rare()
    model = bmp.MPClassifier(class_weight="balanced", **SMALL).fit(x, y)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, 120)
    labels = np.searchsorted(model.classes_, y)
    found = weight * model.class_weight_of(labels, weight)
    assert np.bincount(labels, weights=found) == pytest.approx([0.5 * weight.sum()] * 2)
    _, learned = model._rows_to_learn(x, labels, None)
    assert learned.sum() == pytest.approx(120.0)


def test_class_weights_go_into_files(tmp_path):
    x, y = rare()
    for given, expected in (({"rare": 5.0}, {"rare": 5.0, "usual": 1.0}), ("balanced", "balanced"), (None, None)):
        model = bmp.MPClassifier(class_weight=given, **SMALL).fit(x, y)
        model.save(tmp_path / "model")
        assert bmp.MPClassifier.load(tmp_path / "model").class_weight == expected


@pytest.mark.parametrize(
    "wrong, message",
    [
        ("fair", "None, 'balanced' or a dict"),
        ({"rare": -1.0}, "finite numbers above 0"),
        ({"often": 1.0}, r"not among the classes .*\['often'\]"),
    ],
)
def test_wrong_class_weights_are_refused(wrong, message):
    x, y = rare()
    with pytest.raises(ValueError, match=message):
        bmp.MPClassifier(class_weight=wrong, **SMALL).fit(x, y)


def test_classes_without_weight_are_no_classes():
    x, y = (part.numpy() for part in blobs(60))
    model = bmp.MPClassifier(**SMALL).fit(x, y, sample_weight=(y != 1) * 1.0)
    assert model.classes_.tolist() == [0, 2]
    with pytest.raises(ValueError, match="at least two classes"):
        bmp.MPClassifier(**SMALL).fit(x, y, sample_weight=(y == 1) * 1.0)
