"""Files are written whole or not at all: no room, no file, a link, an earlier one that only some may read."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bayesmp as bmp
from bayesmp import tables
from bayesmp.basics import atomic
from tests.helpers import linear_data, mlp

ROOT = Path(__file__).parent.parent.parent


def net():
    return mlp([2, 3, 1], bmp.Regression(0.1))


def estimator():
    x, y = linear_data(12, 2)
    return bmp.MPRegressor((2,), epochs=1, random_state=0).fit(x.numpy(), y.numpy())


def run():
    x, y = linear_data(12, 2)
    return bmp.Trainer(net(), x, y)


def frame():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"a": np.arange(3000.0), "b": ["x"] * 3000})


WRITERS = {
    "model": lambda path: net().save(path),
    "run": lambda path: run().save(path),
    "estimator": lambda path: estimator().save(path),
    "table.csv": lambda path: tables.write_table(frame(), path),
    "table.csv.gz": lambda path: tables.write_table(frame(), path),
    "table.parquet": lambda path: tables.write_table(frame(), path),
}


@pytest.fixture(params=WRITERS)
def writer(request):
    return request.param, WRITERS[request.param]


@pytest.fixture
def no_room():
    """No file may become longer than 500 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_without_room_the_earlier_file_stays_and_the_error_names_it(writer, tmp_path, no_room):
    """`bayesmp predict --out` cut it to 0 bytes, and said "No space left on device: None"."""
    name, write = writer
    path = tmp_path / name
    path.write_bytes(b"the earlier one")
    with pytest.raises(OSError, match=rf"the file was not written; the earlier file is as it was: '{path}'") as caught:
        write(path)
    assert caught.value.filename == str(path) and caught.value.errno == errno.EFBIG
    assert path.read_bytes() == b"the earlier one" and os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_is_full_only_at_the_end(step, writer, tmp_path, monkeypatch):
    """Some file systems take all that is written, and say afterwards that there is no room."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    name, write = writer
    (tmp_path / name).write_bytes(b"the earlier one")
    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match=rf"No space left on device; .* as it was: '{tmp_path / name}'"):
        write(tmp_path / name)
    assert (tmp_path / name).read_bytes() == b"the earlier one" and os.listdir(tmp_path) == [name]
    (tmp_path / name).unlink()
    with pytest.raises(OSError, match=rf"the file was not written: '{tmp_path / name}'"):
        write(tmp_path / name)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_disk_that_is_full_is_told_by_predict(tmp_path):
    """The whole program, in a process whose files may not grow."""
    table = tmp_path / "table.csv"
    rng = np.random.default_rng(0)
    lines = [f"{a},{b},{a - b}" for a, b in rng.normal(size=(300, 2))]
    table.write_text("\n".join(["a,b,y", *lines]))
    model, out = tmp_path / "m.safetensors", tmp_path / "out.csv"
    fit = ["fit", table, "--target", "y", "--out", model, "--epochs", "1", "--hidden", "2", "--hold-out", "0"]
    predict = ["predict", model, table, "--out", out]
    out.write_text("the earlier one")

    def call(words, limit="pass"):
        code = f"import resource; from bayesmp.cli import app; {limit}; app()"
        command = [sys.executable, "-c", code, *map(str, words)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    done = call(fit)
    assert done.returncode == 0, done.stderr
    done = call(predict, "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))")
    assert done.returncode == 1 and done.stderr.endswith(
        f"File too large; the file was not written; the earlier file is as it was: {out}\n"
    )
    assert out.read_text() == "the earlier one" and len(os.listdir(tmp_path)) == 3


def test_a_write_that_is_interrupted_leaves_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("earlier")

    def write():
        with atomic.writing(path) as file:
            file.write(b"half of i")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert path.read_text() == "earlier" and os.listdir(tmp_path) == ["file"]


def make_pipe(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as found:
        found.bind(str(path))


def make_loop(path):
    path.symlink_to(path.name)


SPECIAL = {"pipe": make_pipe, "socket": make_socket, "folder": Path.mkdir, "link that leads back to itself": make_loop}


@pytest.mark.parametrize("what", SPECIAL)
def test_what_is_no_file_is_not_replaced(what, writer, tmp_path, monkeypatch):
    """A save took the place of a device, and with it that of whatever else was no file."""
    monkeypatch.chdir(tmp_path)  # names of sockets must be short
    name, write = writer
    SPECIAL[what](Path(name))
    before = os.lstat(name)
    with pytest.raises(OSError, match=f"'{name}' is a {what}, expected a file to write, or a name that is free"):
        write(Path(name))
    assert os.lstat(name).st_ino == before.st_ino and os.lstat(name).st_mode == before.st_mode
    assert os.listdir(tmp_path) == [name]


def test_a_device_is_not_replaced(writer, tmp_path):
    """Through a link, so that a failure does no harm."""
    name, write = writer
    (tmp_path / name).symlink_to(os.devnull)
    with pytest.raises(OSError, match="is a device, expected a file"):
        write(tmp_path / name)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_link_stays_one_and_its_target_is_written(writer, tmp_path):
    name, write = writer
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "target", tmp_path / name
    target.write_bytes(b"")
    link.symlink_to(target)
    write(link)
    assert link.is_symlink() and target.stat().st_size > 0
    assert os.listdir(tmp_path / "real") == ["target"]


def test_who_may_read_a_file_does_not_change(writer, tmp_path):
    name, write = writer
    path = tmp_path / name
    path.touch(mode=0o600)
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.slow
def test_a_picture_is_written_whole(tmp_path, no_room):
    pytest.importorskip("matplotlib")
    from bayesmp.cli import demo

    path = tmp_path / "demo.png"
    path.write_bytes(b"the earlier one")
    with pytest.raises(OSError, match=f"the file was not written; the earlier file is as it was: '{path}'"):
        demo.draw(demo.run_demo(epochs=1, progress=False), path)
    assert path.read_bytes() == b"the earlier one" and os.listdir(tmp_path) == ["demo.png"]
