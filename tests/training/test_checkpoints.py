"""Checkpoints: a run that was killed at any moment ends as if it had not been, and `fit` goes on with one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

import bayesmp as bmp
from tests.basics.test_persistence import assert_same_run
from tests.checkpointed_runs import X, Y, names, network, saved
from tests.helpers import assert_unchanged, blobs, linear_data, mlp, snapshot
from tests.killed_runs import CASES, MOMENTS

ROOT = Path(__file__).parent.parent.parent


# --- the same run ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What `killed_runs` found, by case, and where its files are."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-W", "error", "-m", "tests.killed_runs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, {found["case"]: found for found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_ends_as_if_it_had_not_been(killed, case):
    """Killed at chosen moments of training and writing, and after random times; marginal, belief, predictions and
    history are bit for bit those of a run without checkpoints."""
    folder, found = killed
    assert found[case]["ends"] == dict.fromkeys(MOMENTS, 9)
    place = folder / case
    whole = (place / "whole").read_bytes()
    for name in ("killed", "timed", "again"):
        assert (place / name).read_bytes() == whole, name
    resumed = [int(line) for line in (place / "killed.resumed").read_text().split()]
    n_epochs = len(json.loads(safetensors.safe_open(place / "whole", "pt").metadata()["text"])[0])
    assert resumed == sorted(resumed) and len(set(resumed)) >= 3
    assert (place / "again.resumed").read_text() == f"{n_epochs}\n"
    assert len(names(place / "run")) == 2 and names(place / "run")[-1] == saved(n_epochs)[0]


@pytest.mark.parametrize("options", [{}, {"site_store": "disk"}, {"joint": True}], ids=str)
def test_an_auto_run_goes_on_from_any_of_its_checkpoints(tmp_path, options):
    """Learned noise, refreshes due and not due, the limit on the noise: whatever decides about the end is saved."""
    run = bmp.Trainer(network(), X, Y, batch_size=8, checkpoint=tmp_path, every=1, keep=1000, **options)
    plain = bmp.Trainer(network(), X, Y, batch_size=8, **options)
    for each in (run, plain):
        assert each.run().stopped.startswith("at rest")
    assert_same_run(run, plain)
    for epoch in (1, run.n_epochs // 2, run.n_epochs - 1):
        later = bmp.Trainer.load(tmp_path / saved(epoch)[0], X, Y)
        assert later.n_epochs == epoch and later.history.stopped == "interrupted" and later.network.belief is None
        later.run()
        assert_same_run(later, plain)
        assert later.history.stopped == plain.history.stopped
        assert torch.equal(later.network.predict(X).std, plain.network.predict(X).std)


def test_a_limit_on_the_noise_is_part_of_the_run(tmp_path):
    """Scores that get worse while the noise grows are counted, and then limit it: a resumed run must know both."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(30, 4, generator=generator)
    y = torch.sin(3 * x[:, :1]) * x[:, 1:2] + 0.1 * torch.randn(30, 1, generator=generator)

    def start(**options):
        return bmp.Trainer(mlp([4, 20, 20, 1], bmp.Regression("learn")), x, y, batch_size=16, **options)

    whole, run = start(), start(checkpoint=tmp_path, every=1, keep=100)
    whole.run(30)
    run.run(26)
    early, late = (bmp.Trainer.load(tmp_path / saved(epoch)[0], x, y) for epoch in (20, 25))
    early.run(10)  # where rounding is as usual, a worse score was counted before epoch 20, and the limit set before 25
    late.run(5)
    assert_same_run(early, whole)
    assert_same_run(late, whole)


NOT_SAVED = {
    "share": "set before each visit",
    "limit": "set before each visit",
    "_grids": "copies at hand",
    "_averaged": "copies at hand",
    "identity": "found when it is first needed",
    "groups": "found when it is first needed",
    "measurements": "found when it is first needed",
    "heard": "found when it is first needed",
    "_influence": "found when it is first needed",
    "_descent": "found when it is first needed",
    "_asks_data": "the shape of images is known by now",
    "checkpoints": "no part of the run",
}


def differences(a, b, path: str = "", seen: set[int] | None = None) -> set[str]:
    """Where two objects, and all that they hold, are not the same."""
    seen = set() if seen is None else seen
    if path.rpartition(".")[2] in NOT_SAVED:
        return set()
    if type(a) is not type(b):
        return {path}
    if isinstance(a, torch.Tensor):
        return set() if a.dtype == b.dtype and torch.equal(a, b) else {path}
    if isinstance(a, (int, float, str, type(None))):
        return set() if a == b else {path}
    if id(a) in seen:
        return set()
    seen.add(id(a))
    if isinstance(a, (list, tuple)):
        a, b = dict(enumerate(a)), dict(enumerate(b))
    elif not isinstance(a, dict):
        names = [*getattr(a, "__dict__", ()), *getattr(type(a), "__slots__", ())]
        a, b = ({name: getattr(part, name) for name in names if hasattr(part, name)} for part in (a, b))
    found = {path} if a.keys() != b.keys() else set()
    return found.union(*(differences(a[name], b[name], f"{path}.{name}", seen) for name in a.keys() & b.keys()))


@pytest.mark.parametrize(
    "sizes, head, data, options",
    [
        ([40, 20, 1], bmp.Regression("learn"), linear_data(30, n_in=40), {}),
        ([2, 5, 3], bmp.Softmax(scale=None), blobs(30), {}),
        ([3, 4, 1], bmp.Regression("learn"), linear_data(12), {"schedule": "sequential"}),
    ],
    ids=["parallel", "classes", "sequential"],
)
def test_a_checkpoint_holds_all_that_the_run_in_memory_does(tmp_path, sizes, head, data, options):
    """Compared attribute by attribute in the middle of a run: state that is added and not saved shows here."""
    run = bmp.Trainer(mlp(sizes, head), *data, batch_size=8, checkpoint=tmp_path, every=1, **options)
    write, n_compared = run.checkpoints.write, []

    def compared(epoch, save):
        write(epoch, save)
        if epoch < 6:
            assert differences(run, bmp.Trainer.load(run.checkpoints.paths()[0], *data)) == set()
            n_compared.append(epoch)

    run.checkpoints.write = compared
    run.run(6)
    assert n_compared == [1, 2, 3, 4, 5]


def test_resume_goes_on_in_its_folder(tmp_path):
    whole = bmp.Trainer(network(), X, Y, batch_size=8)
    whole.run(9)
    run = bmp.Trainer(network(), X, Y, batch_size=8, checkpoint=tmp_path / "new" / "run", every=2)
    run._finish = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run.run(7)
    assert names(tmp_path / "new" / "run") == saved(4, 6)
    later = bmp.Trainer.resume(tmp_path / "new" / "run", X, Y, every=2)
    assert later.n_epochs == 6 and later.config == run.config
    later.run(3)
    assert_same_run(later, whole)
    assert names(tmp_path / "new" / "run") == saved(8, 9)
    assert_same_run(bmp.Trainer.resume(str(tmp_path / "new" / "run"), X, Y), whole)


def test_a_dataset_resumes_as_well(tmp_path):
    dataset = torch.utils.data.TensorDataset(X, Y)
    bmp.Trainer(network(), dataset, batch_size=8, checkpoint=tmp_path).run(1)
    assert bmp.Trainer.resume(tmp_path, dataset).n_epochs == 1


def test_a_network_from_the_middle_of_a_run_says_that_its_belief_is_missing(tmp_path):
    bmp.fit(network(), X, Y, epochs=3, batch_size=8, checkpoint=tmp_path, every=1)
    with pytest.warns(UserWarning, match=r"middle of a run.*no joint belief.*Trainer.resume"):
        early = bmp.load(tmp_path / saved(2)[0])
    assert early.belief is None and early.predict(X).std.isfinite().all()
    assert bmp.load(tmp_path / saved(3)[0]).belief is not None


# --- fit goes on -----------------------------------------------------------------------------------------------------


def test_fit_goes_on_with_the_run_in_its_folder(tmp_path):
    whole, net = network(), network()
    expected = bmp.fit(whole, X, Y, epochs=7, batch_size=8)
    options = {"batch_size": 8, "checkpoint": tmp_path, "every": 2}
    bmp.fit(net, X, Y, epochs=5, **options)
    history = bmp.fit(net, X, Y, epochs=7, site_store="host", **options)
    assert_unchanged(net, snapshot(whole))
    assert len(history) == 7 and history.stopped == expected.stopped
    other, before = network(), names(tmp_path)
    again = bmp.fit(other, X, Y, epochs=7, **options)
    assert_unchanged(other, snapshot(whole))
    assert again.to_json() == history.to_json() and names(tmp_path) == before
    assert other.predict(X).mean.shape == whole.predict(X).mean.shape


def test_fit_ends_a_run_that_was_killed_at_its_last_epoch(tmp_path):
    """The newest file may be of the epoch asked for, yet without a belief."""
    whole, net = network(), network()
    bmp.fit(whole, X, Y, epochs=4, batch_size=8)
    run = bmp.Trainer(network(), X, Y, batch_size=8, checkpoint=tmp_path, every=4)
    run._finish = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run.run(5)
    assert names(tmp_path) == saved(4)
    bmp.fit(net, X, Y, epochs=4, batch_size=8, checkpoint=tmp_path)
    assert_unchanged(net, snapshot(whole))


OTHERS = {
    "other data": (lambda: network(), X + 1, Y, {}, "x does not belong to the run.*values differ"),
    "fewer data": (lambda: network(), X[:20], Y[:20], {}, r"x does not belong.*\(30, 3\), got \(20, 3\)"),
    "other targets": (lambda: network(), X, Y + 1, {}, "y does not belong to the run.*values differ"),
    "other settings": (
        lambda: network(),
        X,
        Y,
        {"seed": 3},
        "other settings: seed was 0, now 3; choose another folder",
    ),
    "another seed": (lambda: network(seed=1), X, Y, {}, "another network, which differs in seed"),
    "other layers": (
        lambda: mlp([3, 5, 1], bmp.Regression("learn")),
        X,
        Y,
        {},
        "another network, which differs in layers",
    ),
    "another head": (lambda: mlp([3, 4, 1], bmp.Regression(0.1)), X, Y, {}, "another network, which differs in head"),
    "another precision": (lambda: network(dtype=torch.float64), X, Y, {}, "another network, which differs in dtype"),
    "fewer epochs": (lambda: network(), X, Y, {"epochs": 1}, "run of 2 epochs, more than the 1 asked for"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_fit_refuses_the_folder_of_another_run_before_anything_changes(tmp_path, name):
    make, x, y, options, words = OTHERS[name]
    bmp.fit(network(), X, Y, epochs=2, batch_size=8, checkpoint=tmp_path)
    net = make()
    bmp.fit(net, X, Y, epochs=1)
    before, files = snapshot(net), names(tmp_path)
    with pytest.raises(ValueError, match=words):
        bmp.fit(net, x, y, **{"epochs": 3, "batch_size": 8, "checkpoint": tmp_path, **options})
    assert_unchanged(net, before)
    assert names(tmp_path) == files


def test_fit_refuses_another_prior(tmp_path):
    bmp.fit(network(), X, Y, epochs=2, checkpoint=tmp_path)
    net = network()
    net.prior = net.prior**1.5
    with pytest.raises(ValueError, match=r"another network, which differs in prior.tau, prior.rho"):
        bmp.fit(net, X, Y, epochs=3, checkpoint=tmp_path)


def test_a_new_trainer_refuses_a_folder_with_a_run(tmp_path):
    net = network()
    bmp.fit(net, X, Y, epochs=2, checkpoint=tmp_path)
    before = snapshot(net)
    with pytest.raises(ValueError, match=r"holds checkpoints already, epoch-00000002.*Trainer.resume"):
        bmp.Trainer(net, X, Y, checkpoint=tmp_path)
    assert_unchanged(net, before)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"every": 0}, "every must be a positive integer, got 0"),
        ({"keep": 0.5}, "keep must be a positive integer, got 0.5"),
        ({"checkpoint": 3}, "must be the path of a folder, got 3"),
        ({"checkpoint": ""}, "must be the path of a folder, got ''"),
        ({"checkpoint": __file__}, "is a file"),
    ],
    ids=str,
)
def test_bad_options_are_refused(tmp_path, options, words):
    for start in (bmp.Trainer, bmp.fit):
        with pytest.raises(ValueError, match=words):
            start(network(), X, Y, **{"checkpoint": tmp_path / "run", **options})
    assert names(tmp_path) == []
