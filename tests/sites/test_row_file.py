"""Rows in a file: what is read is what was written last, whatever threads do; disks that fail, processes that end."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from bayesmp.sites import row_file as module
from bayesmp.sites.row_file import RowFile

MINUTE = 60.0  # tests that fail must not hang


def row_of(value: float, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(2, w) that tells a row, its halves and its places apart."""
    steps = torch.arange(2 * width).view(2, width) % 97
    return (steps + 100 * value).to(dtype)


@pytest.fixture
def small_pieces(monkeypatch):
    """Rows of some numbers are shared among threads, too."""
    monkeypatch.setattr(module, "SMALLEST_PIECE", 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("width, n_threads", [(1, 1), (1001, 1), (1001, 3), (64, 4)])
def test_rows_are_where_the_map_has_them(small_pieces, dtype, width, n_threads):
    """Another road for both ways: the tensor that maps the file."""
    file = RowFile((2, 4, width), dtype, n_threads=n_threads)
    assert not file.tensor.any()
    for row in (2, 0):
        file.write(row, row_of(row + 1, width, dtype)).result(MINUTE)
        assert torch.equal(file.tensor[:, row], row_of(row + 1, width, dtype))
    file.tensor[:, 3] = row_of(9, width, dtype)
    found = torch.full((2, width), -1.0, dtype=dtype)
    for row, expected in enumerate((1.0, None, 3.0, 9.0)):
        file.read(row, found).result(MINUTE)
        assert torch.equal(found, torch.zeros_like(found) if expected is None else row_of(expected, width, dtype))


@pytest.mark.parametrize("seed", range(4))
def test_what_is_asked_of_a_row_happens_in_that_order(small_pieces, seed):
    """Reads and writes of three rows, some held up at random, against what a plain list says at the time of asking."""
    draw = random.Random(seed)
    file = RowFile((2, 3, 33), torch.float32, n_threads=2)
    expected = [torch.zeros(2, 33) for _ in range(3)]
    reads = []
    for step in range(120):
        row, hold = draw.randrange(3), draw.choice([0.0, 0.0, 0.003])
        if draw.random() < 0.5:
            expected[row] = row_of(step, 33)
            file.write(row, expected[row].clone(), before=lambda hold=hold: time.sleep(hold))
        else:
            into = torch.full((2, 33), -1.0)
            task = file.read(row, into, before=lambda hold=hold: time.sleep(hold))
            reads.append((task, into, expected[row]))
    file.settle()
    for task, into, then in reads:
        assert task.done() and torch.equal(into, then)
    assert torch.equal(file.tensor, torch.stack(expected, dim=1))


def test_threads_share_a_row_and_both_ways_go_on_at_once(small_pieces, monkeypatch):
    """Six reads of 100 bytes that all wait for each other, while a write waits for them."""
    file = RowFile((2, 2, 75), torch.float32, n_threads=3)
    file.tensor[:, 0] = row_of(1, 75)
    meet, read = threading.Barrier(3, timeout=MINUTE), os.preadv

    def meeting(*args):
        meet.wait()
        return read(*args)

    monkeypatch.setattr(os, "preadv", meeting)
    has_read = threading.Event()
    written = file.write(1, row_of(2, 75), before=lambda: has_read.wait(MINUTE))
    found = torch.zeros(2, 75)
    file.read(0, found, after=has_read.set).result(MINUTE)
    assert torch.equal(found, row_of(1, 75))
    written.result(MINUTE)
    assert torch.equal(file.tensor[:, 1], row_of(2, 75))


def test_before_and_after_are_called_around_the_copy():
    file, found, seen = RowFile((2, 2, 5), torch.float32), torch.zeros(2, 5), []
    values = torch.zeros(2, 5)
    file.write(1, values, before=lambda: values.copy_(row_of(1, 5))).result(MINUTE)
    task = file.read(1, found, before=lambda: seen.append(found.clone()), after=lambda: seen.append(found.clone()))
    task.result(MINUTE)
    assert torch.equal(seen[0], torch.zeros(2, 5)) and torch.equal(seen[1], row_of(1, 5))


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_read_that_comes_in_bits_is_put_together(monkeypatch):
    file, found, read = RowFile((2, 2, 21), torch.float32), torch.zeros(2, 21), os.preadv
    file.write(1, row_of(5, 21)).result(MINUTE)
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: read(fd, [buffers[0][:13]], at))
    file.read(1, found).result(MINUTE)
    assert torch.equal(found, row_of(5, 21))


def test_a_disk_that_fails_to_read_is_told_and_may_be_asked_again(small_pieces, monkeypatch):
    file, found = RowFile((2, 2, 50), torch.float32, n_threads=3), torch.zeros(2, 50)
    file.write(0, row_of(5, 50)).result(MINUTE)

    def broken(*args):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", broken)
        with pytest.raises(OSError, match="Input/output error"):
            file.read(0, found).result(MINUTE)
    file.read(0, found).result(MINUTE)
    assert torch.equal(found, row_of(5, 50))


def test_a_file_that_was_cut_is_told():
    file, found = RowFile((2, 2, 4096), torch.float32), torch.zeros(2, 4096)
    os.truncate(file._file.fileno(), 3 * 4096 * 4 + 100)
    with pytest.raises(OSError, match="ends at byte 49252, inside row 1: it was cut"):
        file.read(1, found).result(MINUTE)
    file.read(0, found).result(MINUTE)


def test_nothing_works_once_a_row_is_lost(small_pieces):
    """A row that was written in part, or not at all, must never be taken for a site."""
    file, found = RowFile((2, 2, 50), torch.float32, n_threads=2), torch.zeros(2, 50)

    is_asked = threading.Event()

    def fail():
        is_asked.wait(MINUTE)
        raise RuntimeError("the device is gone")

    task = file.write(0, row_of(5, 50), before=fail)
    late = file.read(0, found)
    is_asked.set()
    with pytest.raises(RuntimeError, match="the device is gone"):
        task.result(MINUTE)
    for ask in (lambda: late.result(MINUTE), lambda: file.read(1, found), lambda: file.write(1, found), file.settle):
        with pytest.raises(OSError, match=r"lost.*resume it from a saved one") as told:
            ask()
        assert "the device is gone" in str(told.value.__cause__)


# --- the end ---------------------------------------------------------------------------------------------------------


def threads_of_files() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("bayesmp-")}


@pytest.mark.parametrize("is_closed", [True, False])
def test_threads_and_file_go_when_nobody_has_it_any_more(small_pieces, is_closed):
    others = threads_of_files()
    file = RowFile((2, 2, 50), torch.float32, n_threads=3)
    rows, closes = file.tensor, file._close
    file.write(1, row_of(5, 50))
    file.settle()
    own = threads_of_files() - others
    assert own and closes.alive
    if is_closed:
        file.close()
    del file
    until = time.monotonic() + MINUTE
    while (closes.alive or own & threads_of_files()) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert not closes.alive and not own & threads_of_files()
    assert torch.equal(rows[:, 1], row_of(5, 50))


KILLED = """
import os, signal, torch
from bayesmp.sites.row_file import RowFile
file = RowFile((2, 3, 50), torch.float32)
file.write(1, torch.ones(2, 50)).result()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_nothing_on_the_disk(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", KILLED], env=environment, timeout=MINUTE)
    assert ended.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cores, n_threads", [(1, 1), (2, 1), (8, 4), (16, 8), (128, 8)])
def test_threads_go_by_the_cores(monkeypatch, cores, n_threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    assert RowFile((2, 1, 1), torch.float32).n_threads == n_threads
    monkeypatch.setattr(module, "THREADS", 7)
    assert RowFile((2, 1, 1), torch.float32).n_threads == 7


def test_a_file_of_nothing_is_no_error():
    file = RowFile((2, 0, 5), torch.float32)
    file.settle()
    assert file.tensor.shape == (2, 0, 5)
