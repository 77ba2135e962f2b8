"""Several networks in one estimator: their mixture, trained, kept, judged and refused as one."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import estimator_checks

import bayesmp as bmp
from bayesmp.basics.settings import SETTINGS
from bayesmp.data import Scaling
from bayesmp.evidence.influence import predict_left_out
from bayesmp.evidence.refresh import refresh
from bayesmp.training import many
from bayesmp.training.look_at_end import look_at_end
from tests import helpers

OPTIONS = {"hidden": (4,), "epochs": 6, "batch_size": 20}
BOTH = [bmp.MPRegressor, bmp.MPClassifier]


def table(cls, n=60, n_targets=1):
    """x (n, 3) and targets for this estimator: far from standardised ones, or three classes."""
    x, y = (part.numpy() for part in helpers.linear_data(n, 3, n_targets))
    if cls is bmp.MPClassifier:
        return x, np.digitize(y[:, 0] + x[:, 0] ** 2, (-0.5, 0.8))
    return x, 50.0 + 10.0 * (y[:, 0] if n_targets == 1 else y)


def said(model, x):
    """All that an estimator predicts."""
    if isinstance(model, bmp.MPClassifier):
        return model.predict_proba(x), model.predict_epistemic(x)
    return (*model.predict(x, return_std=True), *model.predict_interval(x, 0.8), model.predict_epistemic(x))


def by_hand(cls, x, y, seeds):
    """Runs of networks with these seeds, made without the estimator, and the data as they see them."""
    inputs = Scaling.fit(x).apply(x)
    targets, head, n_outputs = y, bmp.Softmax, 3
    if cls is bmp.MPRegressor:
        targets = y.reshape(len(y), -1)
        targets, head, n_outputs = (
            Scaling.fit(targets).apply(targets),
            lambda: bmp.Regression("learn"),
            targets.shape[1],
        )
    runs = []
    for seed in seeds:
        layers = [bmp.Linear(3, 4), bmp.LeakyReLU(), bmp.Linear(4, n_outputs)]
        runs.append(bmp.Trainer(bmp.Network(layers, head(), seed=seed), inputs, targets, batch_size=20, seed=seed))
        runs[-1].run(6, progress=False)
    return runs, targets


def drawn(n, seed=0):
    draws = np.random.RandomState(seed)
    return [int(draws.randint(2**31 - 1)) for _ in range(n)]


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.slow
def test_they_are_the_fits_that_follow_each_other(cls):
    """The generator of one estimator draws what that of several estimators draws one after another."""
    x, y = table(cls)
    together = cls(n_networks=3, random_state=0, **OPTIONS).fit(x, y)
    draws = np.random.RandomState(0)
    apart = [cls(random_state=draws, **OPTIONS).fit(x, y) for _ in range(3)]
    assert len(together.networks_) == len(together.histories_) == 3
    assert together.network_ is together.networks_[0] and together.history_ is together.histories_[0]
    mixed = bmp.mixture([model.predict_outputs(x) for model in apart])
    if cls is bmp.MPClassifier:
        np.testing.assert_allclose(together.predict_proba(x), mixed.probs, rtol=1e-9)
        np.testing.assert_allclose(together.predict_epistemic(x), mixed.epistemic, rtol=1e-6, atol=1e-12)
        np.testing.assert_array_equal(together.predict(x), mixed.label)
    else:
        mixed = mixed.undo(together.y_scaling_).flat()
        mean, std = together.predict(x, return_std=True)
        np.testing.assert_allclose(mean, mixed.mean, rtol=1e-9)
        np.testing.assert_allclose(std, mixed.std, rtol=1e-9)
        for end, expected in zip(together.predict_interval(x, 0.8), mixed.interval(0.8), strict=True):
            np.testing.assert_allclose(end, expected, rtol=1e-9)
        assert np.abs(mean - apart[0].predict(x)).max() > 0.1, "a mixture is not its first member"


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.slow
def test_one_network_is_what_it_was(cls):
    """Bit for bit: a run that is made by hand, with the first seed that random_state draws; so is the first of two."""
    x, y = table(cls)
    (run,), _ = by_hand(cls, x, y, drawn(1))
    for n_networks in (1, 2):
        model = cls(n_networks=n_networks, random_state=0, **OPTIONS).fit(x, y)
        assert torch.equal(model.network_.marginal.tau, run.network.marginal.tau.double())
        assert model.history_.loo_nll == run.history.loo_nll
    one = cls(random_state=0, **OPTIONS).fit(x, y)
    assert one.n_iter_ == 6 and len(one.networks_) == 1
    score, error = one.loo_in_units(run.history.loo_nll[-1], run.history.loo_error[-1])
    if cls is bmp.MPRegressor:  # as predictions have it: with noise that depends on the input
        nll = float(run.influence().loo_nll.mean())
        assert one.loo_score_ == pytest.approx(one.loo_in_units(nll, 0.0)[0], abs=1e-4)
        assert one.loo_error_ == pytest.approx(error, rel=0.1)
    else:
        assert (one.loo_score_, one.loo_error_) == (score, error)
    own = run.network.to(torch.float64).predict(one.x_scaling_.apply(x))
    found = one.predict_outputs(x)
    assert type(found) is type(own) and torch.equal(found.mean, own.mean)


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.slow
def test_leave_one_out_is_that_of_the_mixture(cls):
    """log-mean-exp of what `influence` says of each run; the runs are made by hand."""
    x, y = table(cls)
    runs, _ = by_hand(cls, x, y, drawn(3))
    each = torch.stack([-run.influence().loo_nll.double() for run in runs])
    expected = (torch.logsumexp(each, 0) - np.log(3)).mean()
    model = cls(n_networks=3, random_state=0, **OPTIONS).fit(x, y)
    unit = y.std() if cls is bmp.MPRegressor else 1.0
    assert model.loo_score_ == pytest.approx(float(expected) - np.log(unit), abs=1e-4)
    gain = model.loo_score_ - (float(each.mean()) - np.log(unit))
    assert gain > 5e-4, "a mixture is better than its members on average"


def test_leave_one_out_of_several_targets_is_the_mean_over_them():
    """Each target has a mixture of its own, as it has in predictions."""
    x, y = table(bmp.MPRegressor, n_targets=2)
    model = bmp.MPRegressor(n_networks=2, random_state=0, **OPTIONS).fit(x, y)
    runs, targets = by_hand(bmp.MPRegressor, x, y, drawn(2))
    parts = []
    for run in runs:
        left_out = predict_left_out(run.network, run.x, run.y, torch.arange(len(x)))
        parts.append(left_out.log_prob(run.y).double())
        assert float(parts[-1].mean()) == pytest.approx(-float(run.influence().loo_nll.mean()), abs=1e-5)
    expected = float((torch.logsumexp(torch.stack(parts), 0) - np.log(2)).mean()) - np.log(y.std(0)).mean()
    assert model.loo_score_ == pytest.approx(expected, abs=1e-4)
    assert targets.shape == (60, 2) and 0.0 < model.loo_error_ < 1.0


def test_the_rows_judged_are_those_that_training_was_judged_by(monkeypatch):
    """Of more than 1,024 rows the score is that of a part, and it is to be the part that the history is about. Up to
    1,024 any seed gives all of them, and no test had more. So it is without an objective.
    """
    monkeypatch.setattr("bayesmp.training.schedules.has_objective", lambda *_: False)
    x = np.random.default_rng(0).normal(size=(1100, 2))
    seen, asked = [], []

    def spy_refresh(*arguments, **options):
        found = refresh(*arguments, **options)
        if not options["is_last"]:
            seen.append(found.judged[0])
        return found

    def spy_left_out(network, inputs, targets, rows, **options):
        asked.append(inputs[rows])
        return predict_left_out(network, inputs, targets, rows, **options)

    monkeypatch.setattr("bayesmp.training.belief_maker.refresh", spy_refresh)
    monkeypatch.setattr("bayesmp.estimators.base.predict_left_out", spy_left_out)
    bmp.MPRegressor(hidden=(2,), epochs=1, random_state=0).fit(x, x[:, 0])
    assert [len(part) for part in (*seen, *asked)] == [SETTINGS.refresh_examples] * 2
    rows, judged = ({tuple(row) for row in part.tolist()} for part in (seen[0], asked[0]))
    assert rows == judged and len(rows) == 1024


def test_the_rows_judged_are_those_that_the_objective_was_judged_by(monkeypatch):
    """Of more than 5,000 rows whole groups are judged. An ensemble was once judged by 1,024 of other rows."""
    x = np.random.default_rng(0).normal(size=(5100, 2))
    x[1::2] = x[::2]  # two measurements at each place
    seen, asked = [], []

    def spy_look(*arguments, **options):
        found = look_at_end(*arguments, **options)
        seen.append(found.judged[0])
        return found

    def spy_left_out(network, inputs, targets, rows, **options):
        asked.append(inputs[rows])
        return predict_left_out(network, inputs, targets, rows, **options)

    monkeypatch.setattr("bayesmp.training.belief_maker.look_at_end", spy_look)
    monkeypatch.setattr("bayesmp.estimators.base.predict_left_out", spy_left_out)
    y = x[:, 0] + np.random.default_rng(1).normal(size=len(x))
    bmp.MPRegressor(hidden=(2,), epochs=1, n_networks=2, random_state=0).fit(x, y)
    assert len(asked) == 2 and 5000 <= len(asked[0]) < 5100
    assert all(torch.equal(part.float(), asked[0].float()) for part in (*seen, *asked))


def test_leave_one_out_error_is_that_of_leaving_one_out():
    """A linear network, where leaving out is exact: near as many fits as there are rows, each of all networks."""
    x, y = (part.numpy() for part in helpers.linear_data(16, 3, 1))
    options = {"hidden": (), "epochs": 12, "n_networks": 2, "random_state": 0}
    model = bmp.MPRegressor(**options).fit(x, y[:, 0])
    missed = [
        y[k, 0] - bmp.MPRegressor(**options).fit(np.delete(x, k, 0), np.delete(y[:, 0], k)).predict(x[k : k + 1])[0]
        for k in range(16)
    ]
    assert model.loo_error_ == pytest.approx(np.sqrt(np.mean(np.square(missed))), rel=0.1)
    residuals = np.sqrt(np.mean(np.square(y[:, 0] - model.predict(x))))
    assert model.loo_error_ > 1.05 * residuals


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.slow
def test_files_and_pickles_hold_all_of_them(cls, tmp_path):
    x, y = table(cls)
    model = cls(n_networks=2, random_state=0, **OPTIONS).fit(x[:40], y[:40])
    model.save(tmp_path / "model.safetensors")
    copies = [pickle.loads(pickle.dumps(model)), cls.load(tmp_path / "model.safetensors")]
    for copy in copies:
        assert copy.get_params() == model.get_params() and copy._seeds == model._seeds
        assert [len(history) for history in copy.histories_] == [6, 6]
        assert [history.loo_nll for history in copy.histories_] == [history.loo_nll for history in model.histories_]
        assert (copy.loo_score_, copy.n_iter_) == (model.loo_score_, 6)
        for found, expected in zip(said(copy, x), said(model, x), strict=True):
            np.testing.assert_array_equal(found, expected)
    model.partial_fit(x[40:], y[40:])
    for copy in copies:
        copy.partial_fit(x[40:], y[40:])
        np.testing.assert_array_equal(said(copy, x)[0], said(model, x)[0])


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.slow
def test_more_rows_are_learned_by_all_from_where_they_are(cls):
    x, y = table(cls)
    draws = np.random.RandomState(0)
    apart = [cls(random_state=draws, **OPTIONS).fit(x[:40], y[:40]).partial_fit(x[40:], y[40:]) for _ in range(2)]
    together = cls(n_networks=2, random_state=0, **OPTIONS).fit(x[:40], y[:40]).partial_fit(x[40:], y[40:])
    mixed = bmp.mixture([model.predict_outputs(x) for model in apart])
    np.testing.assert_allclose(together.predict_outputs(x).mean, mixed.mean, rtol=1e-9)


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize(
    "check",
    [
        "check_dict_unchanged",
        "check_fit2d_1feature",
        "check_estimators_overwrite_params",
        "check_estimators_pickle",
        "check_fit_idempotent",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
    ],
)
@pytest.mark.slow
def test_some_of_scikit_learns_checks_pass(cls, check):
    """All of them do, and take a minute."""
    getattr(estimator_checks, check)(cls.__name__, cls(hidden=(4,), epochs=2, n_networks=2))


def test_what_cannot_be_is_refused():
    x, y = table(bmp.MPRegressor)
    for n_networks in (0, -1, 2.0, "3", True, None):
        with pytest.raises(ValueError, match="n_networks must be a positive integer, got"):
            bmp.MPRegressor(n_networks=n_networks, **OPTIONS).fit(x, y)
    for wrong in ({"batch_size": 0}, {"max_epochs": 0}, {"epochs": 0}, {"hidden": (0,)}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            bmp.MPRegressor(**{**OPTIONS, "n_networks": 2, **wrong}).fit(x, y)
    model = bmp.MPRegressor(n_networks=2, random_state=0, **OPTIONS).fit(x, y)
    with pytest.raises(ValueError, match=r"networks it has \(2\), but n_networks was changed to 3; call fit"):
        model.set_params(n_networks=3).partial_fit(x, y)
    assert clone(model).n_networks == 3


def test_a_warning_tells_how_many_are_not_at_rest():
    x, y = table(bmp.MPRegressor)
    with pytest.warns(ConvergenceWarning, match="MPRegressor, 2 of its 2 networks, was not at rest") as caught:
        model = bmp.MPRegressor((4,), n_networks=2, max_epochs=3, random_state=0).fit(x, y)
    assert len(caught) == 1 and caught[0].filename == __file__ and model.n_iter_ == 3


def test_the_longest_training_is_told(capsys, monkeypatch):
    """By visits to batches, which rest after as many as it takes; with an objective all rest after six epochs."""
    monkeypatch.setattr("bayesmp.training.schedules.has_objective", lambda *_: False)
    x, y = table(bmp.MPRegressor)
    model = bmp.MPRegressor((4,), batch_size=10, n_networks=3, random_state=0, verbose=True).fit(x, y)
    lengths = [len(history) for history in model.histories_]
    assert model.n_iter_ == max(lengths) and len(set(lengths)) > 1
    told = capsys.readouterr()
    assert told.out.count("History(") == 3 and "3/3" in told.err


def test_the_first_is_diagnosed():
    x, y = table(bmp.MPRegressor)
    one, two = (bmp.MPRegressor(n_networks=n, random_state=0, **OPTIONS).fit(x, y) for n in (1, 2))
    assert str(two.diagnose(x, y)) == str(one.diagnose(x, y))


@pytest.mark.slow
def test_processes_end_the_same(monkeypatch):
    """Leave-one-out scores, too: what a head knows of all labels is not among what comes back from a process. Most of
    these are of one class, and noisy, where that matters.
    """
    x, y = table(bmp.MPClassifier)
    y = np.where(np.random.default_rng(0).random(60) < 0.2, 2, np.minimum(y, 1))
    options = {**OPTIONS, "epochs": 20}
    here = bmp.MPClassifier(n_networks=2, random_state=0, **options).fit(x, y)
    monkeypatch.setattr(many, "STARTING", 0.0)
    monkeypatch.setattr("joblib.cpu_count", lambda: 2)
    there = bmp.MPClassifier(n_networks=2, random_state=0, **options).fit(x, y)
    np.testing.assert_allclose(there.predict_proba(x), here.predict_proba(x), rtol=1e-9)
    assert there.loo_score_ == pytest.approx(here.loo_score_, abs=1e-9)
