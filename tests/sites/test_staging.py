"""How rows come to visits and go back, with a device that is only pretended: orders of asking, against plain rows.

Streams and events do nothing here, and the device's memory is the host's; threads and the file are real. What only a
GPU can show is in tests/training/schedules/test_staging.py.
"""

from __future__ import annotations

import contextlib
import random
import time

import pytest
import torch

from bayesmp.sites.row_file import RowFile
from bayesmp.sites.staging import Staging

CPU = torch.device("cpu")


class Pretended:
    """A stream or an event; waiting for one takes its time."""

    def __init__(self, *args):
        pass

    def wait_event(self, event):
        pass

    def record(self):
        pass

    def synchronize(self):
        time.sleep(0.0005)


@pytest.fixture
def staging(monkeypatch):
    """Five rows of seven weights in a file, of ones and twos at first."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **options: empty(*size, **options))
    for name, value in {
        "Stream": Pretended,
        "Event": Pretended,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device: Pretended(),
        "synchronize": lambda device: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    file = RowFile((2, 5, 7), torch.float32, n_threads=2)
    found = Staging(file.tensor, file, CPU)
    found.fill(torch.stack([torch.ones(7), torch.full((7,), 2.0)]))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_every_visit_finds_what_the_last_one_left(staging, seed):
    """Any order of visits, also to the same row twice in a row; any rows sent for before, also ones that change."""
    draw = random.Random(seed)
    expected = torch.stack([torch.ones(5, 7), torch.full((5, 7), 2.0)])
    for visit in range(150):
        row = draw.randrange(5)
        for other in draw.sample(range(5), draw.randrange(4)):
            staging.fetch(other)
        staging.bring(row)
        assert torch.equal(staging.old, expected[:, row])
        if draw.random() < 0.3:
            staging.fetch(draw.randrange(5))
        expected[:, row] = torch.randn(2, 7)
        staging.replace(*expected[:, row])
        staging.send(row)
        if visit % 40 == 39:  # as where a run is saved
            assert torch.equal(staging.complete(), expected)
    torch.testing.assert_close(staging.totals, expected.double().sum(1))
    torch.testing.assert_close(staging.complete(), expected)


def test_rows_are_sent_for_two_visits_ahead(staging):
    staging.complete()
    assert staging.ahead == 2
    for row in (0, 1, 2):
        staging.fetch(row)
    assert [berth.row for berth in staging._inward] == [0, 1, 2]
    staging.bring(0)
    staging.fetch(3)
    assert [berth.row for berth in staging._inward] == [1, 2, 3]


def test_epochs_read_every_row_once(staging, monkeypatch):
    """Rows that were sent for keep their place until they are asked for, in whatever order epochs go."""
    staging.complete()
    read, asked = staging.file.read, []
    monkeypatch.setattr(
        staging.file, "read", lambda row, *args, **options: asked.append(row) or read(row, *args, **options)
    )
    draw = random.Random(0)
    for _ in range(20):
        order = draw.sample(range(5), 5)
        for n_visited, row in enumerate(order, start=1):
            for following in order[n_visited : n_visited + staging.ahead]:
                staging.fetch(following)
            staging.bring(row)
            staging.replace(torch.zeros(7), torch.ones(7))
            staging.send(row)
    assert len(asked) == 20 * 5


def test_a_row_that_could_not_be_written_ends_the_run(staging, monkeypatch):
    def fail(self):
        raise RuntimeError("the device is gone")

    def visit():
        staging.bring(1)
        staging.replace(torch.zeros(7), torch.ones(7))
        staging.send(1)

    with monkeypatch.context() as patch:
        patch.setattr(Pretended, "synchronize", fail)
        visit()
        with pytest.raises(RuntimeError, match="the device is gone"):
            staging.complete()
    with pytest.raises(OSError, match="lost"):
        staging.complete()
    with pytest.raises(OSError, match="lost"):
        visit()
