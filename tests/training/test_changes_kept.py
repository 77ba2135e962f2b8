"""Runs whose data changed: their files, bad input, and the same on a GPU."""

import numpy as np
import pytest
import torch

import bayesmp as bmp
from tests.basics.test_persistence import assert_same_run
from tests.changed_runs import (
    NOISE_VAR,
    STORES,
    X,
    Y,
    assert_holds,
    assert_same_sites,
    regression_run,
    sites_of,
)
from tests.helpers import assert_unchanged, blobs, mlp, snapshot

# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule, store", [("parallel", "device"), ("parallel", "disk"), ("sequential", "host")])
@pytest.mark.parametrize("epochs", [0, 3])
def test_a_changed_run_goes_on_from_its_file_bit_for_bit(tmp_path, schedule, store, epochs):
    trainer = regression_run(16, schedule=schedule, site_store=store, epochs=epochs, head=bmp.Regression("learn"))
    ids = trainer.add(X[16:36], Y[16:36])
    trainer.remove(trainer.batches[0].rows)
    trainer.remove(ids[4:9])
    trainer.replace(ids[:2], X[50:52], Y[50:52])
    trainer.save(tmp_path / "run")
    loaded = bmp.Trainer.load(tmp_path / "run", trainer.x, trainer.y)
    for again in range(2):
        assert_same_run(loaded, trainer)
        assert torch.equal(loaded.ids, trainer.ids) and loaded.data.batch_ids == trainer.data.batch_ids
        assert all(torch.equal(a, b) for a, b in zip(loaded.members, trainer.members, strict=True))
        assert loaded.history.changes == trainer.history.changes
        if again == 0:
            trainer.run(2)
            loaded.run(2)
    assert torch.equal(loaded.add(X[52:], Y[52:]), trainer.add(X[52:], Y[52:]))
    loaded.remove([int(ids[0])])
    trainer.remove([int(ids[0])])
    trainer.run(1)
    loaded.run(1)
    assert_same_run(loaded, trainer)


def test_a_run_of_which_little_is_left_can_be_loaded(tmp_path):
    """A single small target looks unscaled, and too small to learn noise from; it was one of many when it came. The
    machine of random changes found it."""
    y = Y[:20].clone()
    y[0] = 1e-4
    trainer = bmp.Trainer(mlp([3, 4, 1], bmp.Regression("learn")), X[:20], y, batch_size=8)
    trainer.run(1)
    trainer.remove(list(range(1, 20)))
    trainer.save(tmp_path / "run")
    assert_same_run(bmp.Trainer.load(tmp_path / "run", trainer.x, trainer.y), trainer)


def test_checkpoints_of_a_changed_run(tmp_path):
    trainer = regression_run(30, checkpoint=tmp_path, every=1)
    trainer.add(X[30:], Y[30:])
    trainer.remove([0, 1])
    trainer.run(2)
    resumed = bmp.Trainer.resume(tmp_path, trainer.x, trainer.y)
    assert_same_run(resumed, trainer)
    assert torch.equal(resumed.ids, trainer.ids)
    with pytest.raises(ValueError, match=r"expected shape \(58, 3\), got \(30, 3\).*trainer\.x, trainer\.y"):
        bmp.Trainer.resume(tmp_path, X[:30], Y[:30])


# --- bad input -------------------------------------------------------------------------------------------------------

LABELS = blobs(30)
BAD = {
    "unknown id": (lambda t: t.remove([0, 99]), "no example with the id 99 in this run: ids so far lie in 0 .. 29"),
    "negative id": (lambda t: t.remove(-1), "no example with the id -1"),
    "removed before": (lambda t: t.remove([7]), "no example with the id 7 in this run: it was removed before"),
    "twice": (lambda t: t.remove([4, 5, 4]), "4 is there more than once"),
    "a mask": (lambda t: t.remove(t.ids > 3), r"got a mask; trainer.ids\[mask\]"),
    "fractions": (lambda t: t.remove([0.5]), "ids must be whole numbers"),
    "a table": (lambda t: t.remove([[1, 2]]), "one per example"),
    "text": (lambda t: t.remove(["a"]), "ids must be"),
    "all": (lambda t: t.remove(t.ids), r"these are all 29 examples.*network\.reset"),
    "shape of x": (lambda t: t.add(torch.zeros(3, 5), [0, 1, 2]), r"x must have shape \(n, 2\)"),
    "not finite": (lambda t: t.add(torch.full((1, 2), torch.nan), [0]), "NaN or infinite"),
    "no rows": (lambda t: t.add(torch.zeros(0, 2), torch.zeros(0)), "at least one example"),
    "lengths": (lambda t: t.add(torch.zeros(3, 2), [0, 1]), "expected 3 targets, got 2"),
    "label": (lambda t: t.add(torch.zeros(2, 2), [0, 3]), r"must lie in 0 .. 2 .*got 3 in row 1"),
    "no targets": (lambda t: t.add(torch.zeros(2, 2)), "y is missing"),
    "label of a replaced one": (lambda t: t.replace([0], torch.zeros(1, 2), [5]), "must lie in 0 .. 2"),
    "rows of replaced ones": (lambda t: t.replace([0, 1], torch.zeros(1, 2), [1]), "one row per id: expected 2, got 1"),
    "unknown replaced one": (lambda t: t.replace([7], torch.zeros(1, 2), [1]), "was removed before"),
    "influence of an unknown one": (lambda t: t.influence([7]), "was removed before"),
}


@pytest.fixture(scope="module")
def labelled():
    trainer = bmp.Trainer(mlp([2, 4, 3], bmp.Argmax()), *LABELS, batch_size=8)
    trainer.run(1)
    trainer.remove([7])
    return trainer


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_nothing_changes(labelled, name):
    act, words = BAD[name]
    before, sites, ids = snapshot(labelled.network), sites_of(labelled), labelled.ids.clone()
    x, y, notes = labelled.x, labelled.y, list(labelled.history.changes)
    with pytest.raises(ValueError, match=words):
        act(labelled)
    assert_unchanged(labelled.network, before)
    assert_same_sites(sites_of(labelled), sites)
    assert torch.equal(labelled.ids, ids) and labelled.x is x and labelled.y is y
    assert labelled.history.changes == notes


@pytest.mark.parametrize("act", [lambda t: t.add(X[40:], Y[40:]), lambda t: t.remove([0, *t.batches[1].rows.tolist()])])
def test_nothing_changes_where_there_is_no_room(monkeypatch, act):
    trainer = regression_run(site_store="disk")
    sites, marginal, n_batches = sites_of(trainer), trainer.network.marginal.map(torch.clone), len(trainer.members)
    trainer.batches  # noqa: B018 - the influence is found before the disk is full
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 10}))
    with pytest.raises(ValueError, match="do not fit"):
        act(trainer)
    assert_same_sites(sites_of(trainer), sites)
    assert len(trainer.members) == n_batches and len(trainer.y) == len(trainer.ids) == 40
    assert torch.equal(trainer.network.marginal.tau, marginal.tau) and trainer.check_invariant() < 1e-12
    monkeypatch.undo()
    act(trainer)
    trainer.run(1)
    assert trainer.check_invariant() < 1e-12


@pytest.mark.parametrize(
    "form",
    [set, frozenset, tuple, iter, lambda ids: dict.fromkeys(ids).keys(), np.array, torch.tensor, "range", "index"],
    ids=["set", "frozenset", "tuple", "iterator", "keys", "array", "tensor", "range", "index"],
)
def test_ids_come_in_any_form(labelled, form):
    """Influence of the same examples, in the order of the ids; nothing is changed."""
    if form == "index":
        form = pytest.importorskip("pandas").Index
    ids = [3, 4, 5]
    given = range(3, 6) if form == "range" else form(ids)
    found, expected = labelled.influence(given), labelled.influence(ids)
    assert found.ids.tolist() == ids and torch.equal(found.loo_nll, expected.loo_nll)


def test_a_set_of_ids_is_removed_but_not_replaced():
    trainer = regression_run()
    with pytest.raises(ValueError, match="has no order that rows of x and y could follow; pass a list"):
        trainer.replace({7, 5}, X[:2], Y[:2])
    trainer.remove({7, 5})
    assert trainer.ids.tolist() == [k for k in range(40) if k not in (5, 7)]


def test_nothing_to_remove_is_no_error(labelled):
    notes = list(labelled.history.changes)
    labelled.remove([])
    labelled.replace(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2), [])
    assert labelled.history.changes == notes


def test_small_targets_may_be_added_one_by_one():
    """With learned noise the targets of a run must be of order one; those of a single example need not."""
    trainer = regression_run(head=bmp.Regression("learn"), epochs=1)
    (new,) = trainer.add(X[:1], torch.zeros(1, 1))
    trainer.replace(new, X[:1], torch.full((1, 1), 1e-9))
    with pytest.raises(ValueError, match="targets must be of order one"):
        trainer.add(X[:1], torch.full((1, 1), 1e6))
    assert_holds(trainer, {k: (X[k], Y[k]) for k in range(40)} | {40: (X[0], torch.full((1,), 1e-9))})


def test_new_inputs_on_another_scale_are_warned_of():
    trainer = regression_run(epochs=0)
    with pytest.warns(UserWarning, match="x is not scaled") as told:
        trainer.add(1000.0 * X[:5], Y[:5])
    assert told[0].filename == __file__


def test_a_network_that_was_taken_over_goes_back_first():
    trainer = regression_run()
    marginal = trainer.network.marginal.map(torch.clone)
    with pytest.warns(UserWarning, match="trained before"):
        bmp.Trainer(trainer.network, X, Y).run(1)
    with pytest.warns(UserWarning, match="another Trainer has taken this network over") as told:
        trainer.add(X[40:], Y[40:])
    assert told[0].filename == __file__
    torch.testing.assert_close(trainer.network.marginal.tau, marginal.tau)
    trainer.network.to(torch.float32)
    with pytest.raises(ValueError, match=r"this run is in torch\.float64"):
        trainer.remove([0])
    assert len(trainer.ids) == 60


# --- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("data_store", ["device", "host"])
@pytest.mark.parametrize("store", STORES)
def test_changes_on_cuda_are_those_on_the_cpu(store, data_store, tmp_path):
    """Visits are recorded as graphs, and sites live beside the GPU: both follow the batches."""
    found = []
    for device in ("cpu", "cuda"):
        network = mlp([3, 6, 1], bmp.Regression(NOISE_VAR), dtype=torch.float64).to(device)
        trainer = bmp.Trainer(
            network, X[:40], Y[:40], batch_size=8, site_store=store, data_store=data_store, debug=True
        )
        trainer.run(6)
        ids = trainer.add(X[40:], Y[40:])
        trainer.run(6)
        trainer.remove(trainer.batches[0].rows)
        trainer.remove(ids[::3])
        trainer.replace(ids[1:2], X[:1], Y[:1])
        assert trainer.check_invariant() < 1e-9
        trainer.run(6)
        trainer.save(tmp_path / device)
        loaded = bmp.Trainer.load(tmp_path / device, trainer.x, trainer.y)
        loaded.run(3)
        assert loaded.check_invariant() < 1e-9
        merged = bmp.merge([trainer, loaded], shared=True)
        assert merged.check_invariant() < 1e-9
        found.append((network.marginal.mean.cpu(), loaded.network.marginal.mean.cpu(), trainer.influence().distance))
    for cpu, cuda in zip(*found, strict=True):
        torch.testing.assert_close(cpu, cuda, rtol=1e-5, atol=1e-6)
