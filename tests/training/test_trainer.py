"""The trainer: bad input changes nothing, history, progress, going on."""

import json
import math
from dataclasses import fields

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.layers.base import Local
from bayesmp.layers.linear import SumLocal
from bayesmp.messages.regime import MOMENTS
from bayesmp.training import trainer as module
from bayesmp.training.history import History
from tests.helpers import assert_unchanged, blobs, linear_data, mlp, snapshot

X, Y = linear_data(20)
X_CLASSES, LABELS = blobs(20)


def with_nan(values, row):
    values = values.clone()
    values[row] = float("nan")
    return values


def trained_network(kind):
    """A network that has learned something, so that a change of its state would show."""
    if kind == "regression":
        network = mlp([3, 4, 1], bmp.Regression(0.09))
        bmp.fit(network, X, Y, epochs=1, batch_size=8)
    else:
        network = mlp([2, 4, 3], bmp.Softmax())
        bmp.fit(network, X_CLASSES, LABELS, epochs=1, batch_size=8)
    return network


# --- bad input -------------------------------------------------------------------------------------------------------

BAD_DATA = {
    "one-dimensional x": ("regression", X[:, 0], Y, r"x must have shape \(n, 3\).*got \(20,\)"),
    "feature count": ("regression", X[:, :2], Y, r"x must have shape \(n, 3\).*got \(20, 2\)"),
    "an image": ("regression", X.view(20, 1, 3), Y, r"x must have shape \(n, 3\).*got \(20, 1, 3\)"),
    "complex x": ("regression", X + 1j, Y, "real numbers, got torch.complex"),
    "NaN in x": ("regression", with_nan(X, 7), Y, "x has NaN or infinite values, first in row 7; impute or drop"),
    "inf in x": ("regression", X / 0.0, Y, "x has NaN or infinite values, first in row 0"),
    "no examples": ("regression", X[:0], Y[:0], "at least one example, got an empty tensor"),
    "text": ("regression", [["a", "b", "c"]], [1.0], "array of numbers"),
    "fewer targets": ("regression", X, Y[:19], "expected 20 targets, got 19 targets"),
    "more targets": ("regression", X[:19], Y, "expected 19 targets, got 20 targets"),
    "NaN in y": ("regression", X, with_nan(Y, 3), "y has NaN or infinite values, first in row 3; drop"),
    "two columns": ("regression", X, Y.expand(20, 2), r"y must have shape \(n,\) or \(n, 1\).*got \(20, 2\)"),
    "a single target": ("regression", X, torch.tensor(1.0), "y must have"),
    "complex y": ("regression", X, Y.to(torch.complex64), "must be real numbers, got torch.complex64"),
    "fewer labels": ("softmax", X_CLASSES, LABELS[:5], "expected 20 targets, got 5 targets"),
    "real labels": ("softmax", X_CLASSES, LABELS + 0.5, r"whole numbers 0 \.\. 2, got torch.float32.*Regression"),
    "text labels": ("softmax", X_CLASSES, ["a", "b"] * 10, r"got text or objects; .*np.unique\(labels"),
    "one-hot labels": ("softmax", X_CLASSES, torch.eye(3)[LABELS].long(), r"shape \(n,\).*one-hot rows pass y.argmax"),
    "label too large": ("softmax", X_CLASSES, LABELS + 1, r"0 \.\. 2 .*3 outputs.*got 3 in row.*relabel, or widen"),
    "label below zero": ("softmax", X_CLASSES, LABELS - 1, r"0 \.\. 2 .*got -1 in row"),
    "no labels": ("softmax", X_CLASSES, LABELS[:0], "expected 20 targets, got 0"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_refused_with_what_fits_before_anything_changes(name):
    kind, x, y, words = BAD_DATA[name]
    network = trained_network(kind)
    before = snapshot(network)
    with pytest.raises(ValueError, match=words):
        bmp.fit(network, x, y, epochs=1)
    assert_unchanged(network, before)


BAD_OPTIONS = {
    "batch_size 0": ({"batch_size": 0}, ValueError, "batch_size must be a positive integer, got 0"),
    "batch_size -3": ({"batch_size": -3}, ValueError, "batch_size must be a positive integer, got -3"),
    "batch_size 2.5": ({"batch_size": 2.5}, ValueError, "batch_size must be a positive integer, got 2.5"),
    "batch_size True": ({"batch_size": True}, ValueError, "batch_size must be a positive integer, got True"),
    "batch_size None": ({"batch_size": None}, ValueError, "batch_size must be a positive integer, got None"),
    "epochs 0": ({"epochs": 0}, ValueError, "epochs must be a positive integer or 'auto', got 0"),
    "epochs 1.0": ({"epochs": 1.0}, ValueError, "epochs must be a positive integer or 'auto', got 1.0"),
    "epochs all": ({"epochs": "all"}, ValueError, "epochs must be a positive integer"),
    "max_epochs 0": ({"max_epochs": 0}, ValueError, "max_epochs must be a positive integer, got 0"),
    "schedule": ({"schedule": "serial"}, ValueError, r"one of \['parallel', 'sequential'\], got 'serial'"),
    "site_store": ({"site_store": "gpu"}, ValueError, "site_store must be one of.*device.*got 'gpu'"),
    "site_dtype": ({"site_dtype": "float8"}, ValueError, "site_dtype must be one of.*bfloat16.*got 'float8'"),
    "misspelt": ({"batchsize": 8}, TypeError, "batchsize"),
    "learning rate": ({"lr": 0.1}, TypeError, "lr"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options_are_refused_before_anything_changes(name):
    options, error, words = BAD_OPTIONS[name]
    network = trained_network("regression")
    before = snapshot(network)
    with pytest.raises(error, match=words):
        bmp.fit(network, X, Y, **options)
    assert_unchanged(network, before)


def test_a_config_and_options_together_are_refused():
    network = trained_network("regression")
    before = snapshot(network)
    with pytest.raises(ValueError, match=r"either config or options.*\['batch_size'\]"):
        bmp.Trainer(network, X, Y, bmp.TrainConfig(), batch_size=8)
    assert_unchanged(network, before)


@pytest.mark.parametrize("epochs", [-1, 1.5, None, "all"])
def test_a_number_of_epochs_that_is_none_is_refused_and_changes_nothing(epochs):
    network = mlp([3, 4, 1], bmp.Regression(0.09))
    trainer = bmp.Trainer(network, X, Y, batch_size=8)
    trainer.run(1)
    before, sites = snapshot(network), trainer.sites.slope.clone()
    with pytest.raises(ValueError, match="epochs must be 0, a positive integer or 'auto', got"):
        trainer.run(epochs)
    assert_unchanged(network, before)
    assert torch.equal(trainer.sites.slope, sites) and trainer.n_epochs == 1


class Silent(SumLocal):
    gradient = Local.gradient


class SilentLinear(bmp.Linear):
    """Does not know its gradient."""

    def sweep(self, *args, **options):
        local = super().sweep(*args, **options)
        return Silent(**{entry.name: getattr(local, entry.name) for entry in fields(local) if entry.init})


def test_a_layer_without_gradients_trains_example_by_example_without_a_joint_belief():
    """The parallel schedule refuses it and recommends the sequential one, which once failed after its first epoch."""
    network = bmp.Network([SilentLinear(3, 1)], bmp.Regression(0.09))
    before = snapshot(network)
    with pytest.raises(TypeError, match=r"no method gradient\(slope\).*schedule='sequential'"):
        bmp.fit(network, X, Y, epochs=1)
    assert_unchanged(network, before)
    plain = bmp.Network([bmp.Linear(3, 1)], bmp.Regression(0.09))
    for each in (network, plain):
        bmp.fit(each, X, Y, epochs=2, batch_size=8, schedule="sequential")
    assert network.belief is None and torch.equal(network.marginal.tau, plain.marginal.tau)
    assert torch.equal(network.predict(X).epistemic_var, plain.predict(X, joint=False).epistemic_var)
    with pytest.raises(ValueError, match="give a number of epochs"):
        bmp.Trainer(network, X, Y, schedule="sequential").run()


# --- data it takes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
@pytest.mark.parametrize(
    "x, y",
    [
        (X.numpy(), Y.numpy()),
        (X.float(), Y[:, 0].float()),
        (X.tolist(), Y.tolist()),
        (np.asfortranarray(X.numpy()), Y.numpy()),
    ],
    ids=["numpy", "float32 tensors, flat y", "lists", "column order"],
)
def test_arrays_tensors_and_lists_train_alike(x, y, schedule):
    found = []
    for own_x, own_y in ((X, Y), (x, y)):
        network = mlp([3, 4, 1], bmp.Regression(0.09))
        bmp.fit(network, own_x, own_y, epochs=1, batch_size=8, schedule=schedule)
        found.append(network.marginal)
    assert torch.equal(found[0].tau, found[1].tau) and torch.equal(found[0].rho, found[1].rho)


def test_integer_targets_are_numbers_and_integer_labels_of_any_width_are_labels():
    network = mlp([3, 4, 1], bmp.Regression(0.09))
    bmp.fit(network, X, torch.arange(20), epochs=1, batch_size=8)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        classifier = mlp([2, 4, 3], bmp.Argmax())
        bmp.fit(classifier, X_CLASSES, LABELS.to(dtype), epochs=1, batch_size=8)
    assert classifier.marginal.tau.isfinite().all()


def test_the_callers_data_are_not_changed():
    x, y = X.clone(), Y.clone()
    network = mlp([3, 4, 1], bmp.Regression(0.09), dtype=torch.float64)
    bmp.fit(network, x, y, epochs=2, batch_size=8)
    assert torch.equal(x, X) and torch.equal(y, Y)


def test_a_new_trainer_starts_from_the_prior():
    posteriors = []
    network = mlp([3, 4, 1], bmp.Regression(0.09))
    bmp.fit(network, X, Y, epochs=2, batch_size=8)
    posteriors.append(network.marginal.tau.clone())
    with pytest.warns(UserWarning, match="what it had learned is dropped"):
        bmp.fit(network, X, Y, epochs=2, batch_size=8)
    posteriors.append(network.marginal.tau.clone())
    assert torch.equal(*posteriors)


# --- history ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
@pytest.mark.parametrize("kind, metrics", [("regression", {"rmse", "nll"}), ("softmax", {"accuracy", "nll"})])
def test_history_has_a_row_per_epoch(kind, metrics, schedule):
    x, y, network = (
        (X, Y, mlp([3, 4, 1], bmp.Regression(0.09)))
        if kind == "regression"
        else (X_CLASSES, LABELS, mlp([2, 4, 3], bmp.Softmax()))
    )
    history = bmp.fit(network, x, y, epochs=3, batch_size=8, schedule=schedule)
    assert len(history) == 3 and [record.epoch for record in history] == [1, 2, 3]
    for record in history:
        assert set(record.metrics) == metrics and all(map(math.isfinite, record.metrics.values()))
        assert len(record.steps) == 2 and all(0.0 < step <= 1.0 for step in record.steps)
        assert record.seconds > 0 and record.max_change >= 0
        assert record.n_rejected >= 0 and 0.0 <= record.rejected_share <= 1.0
    for name in (*metrics, "epoch", "n_rejected", "rejected_share", "max_change", "seconds"):
        assert len(history.column(name)) == 3
    assert set(history.columns()) == metrics | {"step", "loo_nll"}


def test_metrics_of_an_epoch_are_means_over_all_examples_before_their_visit():
    """One batch: the first epoch's RMSE is that of the start, whatever the visit then changes."""
    network = mlp([3, 4, 1], bmp.Regression(0.09), dtype=torch.float64)
    trainer = bmp.Trainer(network, X, Y, batch_size=100, joint=True)
    predicted = network.predict(X).mean
    trainer.run(1)
    assert trainer.history[0].metrics["rmse"] == pytest.approx((predicted - Y).square().mean().sqrt().item())


def test_an_unknown_column_is_refused_with_those_there_are():
    history = bmp.fit(mlp([3, 4, 1], bmp.Regression(0.09)), X, Y, epochs=1, batch_size=8)
    with pytest.raises(ValueError, match=r"unknown column 'loss'; available:.*epoch.*rmse"):
        history.column("loss")
    with pytest.raises(ValueError, match="unknown column 'rmse'"):
        History().column("rmse")
    assert History().columns() == {}


def test_history_survives_json():
    history = bmp.fit(mlp([3, 4, 1], bmp.Regression(0.09)), X, Y, epochs=2, batch_size=8)
    records, stopped = json.loads(json.dumps([history.to_json(), history.stopped]))
    assert History.from_json(records, stopped) == history


def test_the_former_name_of_from_json_warns_and_works():
    history = bmp.fit(mlp([3, 4, 1], bmp.Regression(0.09)), X, Y, epochs=1, batch_size=8)
    with pytest.warns(DeprecationWarning, match=r"from_rows is deprecated and goes in 0\.3; use History\.from_json"):
        assert History.from_rows(history.to_json(), history.stopped) == history
    with pytest.warns(DeprecationWarning, match="from_rows"), pytest.raises(ValueError, match="these rows are flat"):
        History.from_rows(history.to_rows())


def test_rows_of_a_history_have_the_objective_where_there_is_one():
    history = bmp.fit(mlp([3, 4, 1], bmp.Regression(0.1)), X, Y, epochs=2)
    assert [row["objective"] for row in history.to_rows()] == [record.objective for record in history]
    history = bmp.fit(mlp([3, 4, 1], bmp.Regression(0.1)), X, Y, epochs=1, schedule="sequential")
    assert "objective" not in history.to_rows()[0]
    with pytest.raises(ValueError, match="unknown column 'objective'"):
        history.column("objective")


# --- what the user sees ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("progress, shown", [(None, False), (False, False), (True, True)])
def test_progress_is_shown_in_a_terminal_or_when_asked_for(progress, shown, capsys):
    bmp.fit(mlp([3, 4, 1], bmp.Regression(0.09)), X, Y, epochs=2, batch_size=8, progress=progress)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("epoch" in captured.err and "rmse" in captured.err) if shown else captured.err == ""


def test_a_terminal_shows_progress_by_default(monkeypatch, capsys):
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
    bmp.fit(mlp([3, 4, 1], bmp.Regression(0.09)), X, Y, epochs=1, batch_size=8)
    assert "epoch 1" in capsys.readouterr().err


def test_a_large_store_is_announced_with_its_size_and_place(monkeypatch, capsys):
    monkeypatch.setattr(module, "LARGE_STORE", 100)
    bmp.Trainer(mlp([3, 4, 1], bmp.Regression(0.09)), X, Y, batch_size=8, site_store="host")
    told = capsys.readouterr().err
    assert "sites: 504 B in float32 on host" in told and "3 batches x 21 weights" in told


def test_a_small_store_is_not_announced(capsys):
    bmp.Trainer(mlp([3, 4, 1], bmp.Regression(0.09)), X, Y, batch_size=8)
    assert capsys.readouterr().err == ""


# --- batches ---------------------------------------------------------------------------------------------------------


def test_the_seed_decides_who_shares_a_batch_and_membership_never_changes():
    def members(seed):
        trainer = bmp.Trainer(mlp([3, 4, 1], bmp.Regression(0.09)), X, Y, batch_size=8, seed=seed)
        before = [rows.tolist() for rows in trainer.members]
        trainer.run(2)
        assert [rows.tolist() for rows in trainer.members] == before
        return before

    assert members(0) == members(0) != members(1)
    assert [len(rows) for rows in members(0)] == [7, 7, 6]


def test_epochs_visit_every_batch_once_in_changing_order():
    trainer = bmp.Trainer(mlp([3, 4, 1], bmp.Regression(0.09)), X, Y, batch_size=2, joint=True)
    visits = []
    inner = trainer.schedule.visit

    def visit(batch, epoch):
        visits.append((epoch, batch.index.row))
        return inner(batch, epoch)

    trainer.schedule.visit = visit
    trainer.run(3)
    orders = [[row for epoch, row in visits if epoch == e] for e in (1, 2, 3)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_the_posterior_stays_prior_times_sites(schedule, dtype):
    trainer = bmp.Trainer(
        mlp([3, 4, 1], bmp.Regression(0.09), dtype=dtype), X, Y, batch_size=8, schedule=schedule, debug=True
    )
    for _ in range(3):
        trainer.run(1)
        assert trainer.check_invariant() < (1e-4 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"joint": "no"}, "joint must be True, False or None"),
        ({"joint": True, "schedule": "sequential"}, "joint=True needs the parallel schedule"),
    ],
)
def test_a_joint_that_means_nothing_is_refused(options, problem):
    with pytest.raises(ValueError, match=problem):
        bmp.TrainConfig(**options)


@pytest.mark.parametrize("schedule", ["sequential", "parallel"])
def test_a_run_takes_nothing_over_from_another_on_the_same_network(schedule):
    """Shares of sums and the regime of a parallel run once leaked into a sequential one, and got lost by a reset."""
    x, y = blobs(24, n_in=40)
    runs = []
    for disturbed in (False, True):
        network = mlp([40, 36, 3], bmp.Argmax(), dtype=torch.float64)
        trainer = bmp.Trainer(network, x, y, batch_size=8, schedule=schedule)
        trainer.run(1)
        if disturbed:
            network.reset()
            bmp.fit(network, x, y, epochs=5, batch_size=8, joint=schedule == "sequential" and None)
            with pytest.warns(UserWarning, match="another Trainer has taken this network over"):
                trainer.run(1)
        else:
            trainer.run(1)
        runs.append(network)
    assert runs[0].regime == runs[1].regime == MOMENTS
    assert torch.equal(runs[0].sum_share, runs[1].sum_share)
    torch.testing.assert_close(runs[0].marginal.mean, runs[1].marginal.mean)
    torch.testing.assert_close(runs[0].predict(x).epistemic_var, runs[1].predict(x).epistemic_var)
