"""Folders of checkpoints: which files stay, damaged ones, full disks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import bayesmp as bmp
from bayesmp.training.checkpoints import Checkpoints
from tests.basics.test_persistence import assert_same_run
from tests.checkpointed_runs import X, Y, names, network, saved
from tests.helpers import assert_unchanged, blobs, mlp, snapshot

ROOT = Path(__file__).parent.parent.parent


# --- the folder ------------------------------------------------------------------------------------------------------


def test_the_last_files_stay_and_others_are_left_alone(tmp_path):
    strangers = ["epoch-1.txt", "notes.safetensors", ".epoch-x.tmp"]
    for name in strangers:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".epoch-00000003.safetensors.0123abcd.tmp").write_text("left by a killed run")
    bmp.fit(network(), X, Y, epochs=8, batch_size=8, checkpoint=tmp_path, every=3, keep=3)
    assert names(tmp_path) == sorted([*strangers, *saved(3, 6, 8)])


def test_a_damaged_checkpoint_is_skipped_and_later_replaced(tmp_path):
    whole = bmp.Trainer(network(), X, Y, batch_size=8)
    whole.run(6)
    bmp.fit(network(), X, Y, epochs=4, batch_size=8, checkpoint=tmp_path, every=2)
    newest = tmp_path / saved(4)[0]
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.warns(UserWarning, match=r"skipped a checkpoint: .*epoch-00000004.*not a complete"):
        run = bmp.Trainer.resume(tmp_path, X, Y, every=1, keep=1)
    assert run.n_epochs == 2
    run.run(1)
    assert names(tmp_path) == saved(3, 4)  # not the one in use, though a damaged one has a higher number
    run.run(3)
    assert names(tmp_path) == saved(6)
    for a, b in zip(snapshot(run.network), snapshot(whole.network), strict=True):
        assert torch.equal(a, b)


def test_a_folder_without_a_readable_checkpoint(tmp_path):
    with pytest.raises(ValueError, match=r"missing' holds no checkpoint \(epoch-"):
        bmp.Trainer.resume(tmp_path / "missing", X, Y)
    for name in saved(1, 2):
        (tmp_path / name).write_bytes(b"nothing")
    with (
        pytest.warns(UserWarning, match="skipped") as told,
        pytest.raises(ValueError, match=r"no checkpoint that can be read"),
    ):
        bmp.Trainer.resume(tmp_path, X, Y)
    assert [name in str(warning.message) for name, warning in zip(saved(2, 1), told, strict=True)] == [True, True]
    with pytest.warns(UserWarning, match="skipped a checkpoint"):
        assert len(bmp.fit(network(), X, Y, epochs=3, checkpoint=tmp_path)) == 3


def test_other_data_are_refused_on_resuming(tmp_path):
    bmp.fit(network(), X, Y, epochs=1, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="x does not belong to the run"):
        bmp.Trainer.resume(tmp_path, X + 1, Y)


# --- disks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def full_disk():
    """Files of this process can hold no more than some bytes, as on a disk that is full."""
    resource = pytest.importorskip("resource", reason="needs limits on the size of files")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(n_bytes: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if n_bytes is None else n_bytes, hard))

    yield fill
    fill(None)


def test_training_goes_on_when_the_disk_is_full(tmp_path, full_disk):
    whole = bmp.Trainer(network(), X, Y, batch_size=8)
    for _ in range(3):
        whole.run(2)
    run = bmp.Trainer(network(), X, Y, batch_size=8, checkpoint=tmp_path, every=1)
    run.run(2)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    full_disk(3000)
    with pytest.warns(UserWarning, match=r"epoch \d could not be written.*epoch-0000000\d.*training goes on") as told:
        run.run(2)
    full_disk(None)
    assert [Path(warning.filename) for warning in told] == [Path(__file__)] * 2
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before
    run.run(2)
    assert_same_run(run, whole)
    assert names(tmp_path) == saved(5, 6)


def test_a_save_on_a_full_disk_names_the_path(tmp_path, full_disk):
    run = bmp.Trainer(network(), X, Y)
    run.save(tmp_path / "run.safetensors")
    before = (tmp_path / "run.safetensors").read_bytes()
    full_disk(3000)
    with pytest.raises(OSError, match=r"the file was not written; the earlier file is as it was: '.*run.safetensors'"):
        run.save(tmp_path / "run.safetensors")
    full_disk(None)
    assert names(tmp_path) == ["run.safetensors"] and (tmp_path / "run.safetensors").read_bytes() == before


def test_a_read_only_folder_is_refused_before_anything_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    net = network()
    before = snapshot(net)
    for start in (bmp.Trainer, bmp.fit):
        with pytest.raises(PermissionError, match=f"{tmp_path.name}.*read-only"):
            start(net, X, Y, checkpoint=tmp_path)
    assert_unchanged(net, before)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot be written.*file/run'"):
        bmp.Trainer(network(), X, Y, checkpoint=tmp_path / "file" / "run")


def test_newest_comes_first(tmp_path):
    for name in [*saved(9, 100), "epoch-123456789.safetensors"]:
        (tmp_path / name).touch()
    found = Checkpoints(tmp_path).paths()
    assert [path.name for path in found] == ["epoch-123456789.safetensors", *saved(100, 9)]


def test_classes_are_resumed_as_well(tmp_path):
    x, y = blobs(40)
    whole, run = (mlp([2, 5, 3], bmp.Softmax()) for _ in range(2))
    bmp.fit(whole, x, y, epochs=4, batch_size=16)
    bmp.fit(run, x, y, epochs=3, batch_size=16, checkpoint=tmp_path)
    run = mlp([2, 5, 3], bmp.Softmax())
    bmp.fit(run, x, y, epochs=4, batch_size=16, checkpoint=tmp_path)
    assert torch.equal(run.predict(x).probs, whole.predict(x).probs)
