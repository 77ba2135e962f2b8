"""The UCI experiment, on small tables in the published form."""

import numpy as np
import pytest

from bayesmp import MPRegressor
from benchmarks import datasets
from experiments import uci
from experiments.base import Options
from experiments.palette import colour


@pytest.fixture
def folder(tmp_path):
    """A data folder with a set the library knows and one it does not, three splits each."""
    rng = np.random.default_rng(0)
    (tmp_path / "data" / "uci").mkdir(parents=True)
    for name in ("yacht", "mine"):
        x = rng.normal(3.0, 5.0, size=(60, 3))
        y = 100.0 + 20.0 * x[:, 0] + 5.0 * rng.standard_normal(60)
        orders = [rng.permutation(60) for _ in range(3)]
        splits = {"train_idx": [o[:54] for o in orders], "test_idx": [o[54:] for o in orders]}
        np.savez(
            tmp_path / "data" / "uci" / f"{name}.npz",
            X=x,
            y=y,
            **{key: np.asarray(rows, dtype=np.uint16) for key, rows in splits.items()},
        )
    return tmp_path / "data"


@pytest.mark.parametrize("n_networks", [1, 2])
def test_it_predicts_what_the_estimator_predicts(folder, n_networks):
    """The estimator is the independent road: it scales, draws its seeds and converts in its own code. Five epochs are
    one less than the fewest that come to rest.
    """
    split = datasets.uci("yacht", folder).split(1)
    found, told = uci.predict_ours(split, seed=5, max_epochs=5, n_networks=n_networks)
    model = MPRegressor(hidden=(50,), n_networks=n_networks, random_state=5, max_epochs=5)
    with pytest.warns(UserWarning, match="not at rest"):
        estimator = model.fit(split.x_train, split.y_train)
    expected_mean, expected_std = estimator.predict(split.x_test, return_std=True)
    np.testing.assert_allclose(found.mean, expected_mean, rtol=1e-9)
    np.testing.assert_allclose(found.std, expected_std, rtol=1e-9)
    for end, expected in zip(found.interval(0.9), estimator.predict_interval(split.x_test, 0.9), strict=True):
        np.testing.assert_allclose(end, expected, rtol=1e-6)
    assert told["epochs"] == 5 and told["stopped"].startswith("not at rest")


def test_every_table_in_the_folder_takes_part(folder):
    pieces = uci.Uci().pieces(Options(data_dir=folder, parts=("ours",)))
    assert [piece.label for piece in pieces] == [
        f"{name}, ours, split {k}" for name in ("yacht", "mine") for k in range(3)
    ]
    with pytest.raises(
        ValueError, match="methods: ours, ours-3, laplace, tagi; tables found in the data folder: yacht, mine"
    ):
        uci.Uci().pieces(Options(data_dir=folder, parts=("protein",)))


def test_several_networks_are_a_method(folder):
    """With a colour and a name of its own; better than one network on average is a matter of the full run."""
    (piece, *_) = uci.Uci().pieces(Options(data_dir=folder, parts=("ours-3", "yacht"), quick=True))
    found = uci.Uci().compute(piece.parameters, Options(data_dir=folder))
    one = uci.Uci().compute({**piece.parameters, "method": "ours"}, Options(data_dir=folder))
    assert piece.parameters["method"] == "ours-3" and found["log_likelihood"] != one["log_likelihood"]
    assert colour(uci.METHODS["ours-3"]) != colour("ours")


def test_without_data_it_says_where_they_are_expected(run, tmp_path):
    status, printed, _ = run("uci", "--data-dir", str(tmp_path / "nowhere"))
    assert status == 1 and "boston was not found" in printed and "BAYESMP_DATA" in printed


def test_the_quick_version_has_scores_beside_published_ones(run, folder, tmp_path):
    status, printed, found = run("uci", "--quick", "--parts", "yacht", "--data-dir", str(folder))
    assert status == 0, printed
    measured, beside = found["tables"]
    assert [row["table"] for row in measured["rows"]] == ["yacht"]
    assert {row["log-likelihood"]: row["yacht"] for row in beside["rows"]}["PBP (published)"] == "-1.63"
    assert found["pieces"][0]["rmse"] < 100.0, "the std of y is above 100"
    assert (tmp_path / "uci" / "log_likelihood.png").stat().st_size > 5_000


def test_settings_of_others_are_chosen_on_training_rows(folder):
    """The best of three settings by held-out rows is the one that is used; test rows are seen only at the end."""
    split = datasets.uci("yacht", folder).split(0)
    seen = []

    def score(x, y, x_held, y_held):
        assert len(x) + len(x_held) == len(split.x_train)
        seen.append(len(x_held))
        return {"bad": 3.0, "good": 1.0, "worse": 2.0}

    def final(x, y, best):
        assert best == "good" and len(x) == len(split.x_train)
        assert abs(y.mean()) < 1e-9 and y.std() == pytest.approx(1.0)
        return lambda x_test: (np.zeros(len(x_test)), np.ones(len(x_test)))

    mean, var = uci._choose_and_predict(split, score, final, seed=0)
    assert seen == [5]
    np.testing.assert_allclose(mean, split.y_train.mean())
    np.testing.assert_allclose(var, split.y_train.var())
