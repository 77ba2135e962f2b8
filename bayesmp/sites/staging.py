"""Sites that live beside the GPU: how their rows come to a visit and go back, while the device does something else.

A visit always finds the old site of its batch in one place on the device and leaves the new one in another, so that it
can be recorded as a CUDA graph. Before it, `bring` moves the row in, which `fetch` has sent for during the visit
before; after it, `send` lets the new row leave during the next one. Each way has a stream of its own.

Host memory is taken and pinned as rows are first written, not before training starts: until then a row is the one that
all batches start with, which the device knows. Rows in a file (row_file.py) go through pinned memory, and are sent for
two visits ahead.
"""

from __future__ import annotations

import math
import weakref
from concurrent.futures import Future, wait
from functools import partial

import torch
from torch import Tensor

from bayesmp.sites.row_file import RowFile

PAGE = 4096


class HostRows:
    """Memory of the host for (2, n, w) numbers that the device copies from and to directly, pinned as it is used.

    Whole pages are pinned, and a copy must not cross from one pinned piece into the next; so every row begins on a page
    of its own.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
        page = PAGE // dtype.itemsize
        stride = math.ceil(shape[2] / page) * page
        raw = torch.empty(shape[0] * shape[1] * stride + page, dtype=dtype)
        start = -raw.data_ptr() % PAGE // dtype.itemsize
        self.tensor = raw[start : start + shape[0] * shape[1] * stride].view(*shape[:2], stride)[:, :, : shape[2]]
        self._n_bytes = stride * dtype.itemsize
        self._pinned: set[int] = set()  # addresses of rows
        self._gives_up = False
        weakref.finalize(self, _unpin, self._pinned, raw)

    def pin(self, row: Tensor) -> None:
        """Make sure that this row is pinned; where the system does not allow it, copies are slower but right."""
        address = row.data_ptr()
        if address in self._pinned or self._gives_up:
            return
        if int(torch.cuda.cudart().cudaHostRegister(address, self._n_bytes, 0)) == 0:
            self._pinned.add(address)
        else:
            self._gives_up = True


def _unpin(pinned: set[int], memory: Tensor) -> None:
    """Give pinned pages back before their memory is."""
    for address in pinned:
        torch.cuda.cudart().cudaHostUnregister(address)
    del memory


class Staging:
    """The way of rows between the host and a visit.

    Args:
        rows: (2, n, w), slopes and precisions of n sites, on the host.
        holder: what they lie in: pinned memory, or a file.
        device: the device of visits.

    Attributes:
        ahead: how many visits before its own a row should be sent for.
    """

    def __init__(self, rows: Tensor, holder: HostRows | RowFile, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.pinned = holder if isinstance(holder, HostRows) else None
        self.file = holder if isinstance(holder, RowFile) else None
        self.ahead = 1 if self.file is None else 2
        width = (2, rows.shape[2])
        self.old, self.new, self.first = (torch.zeros(width, dtype=rows.dtype, device=device) for _ in range(3))
        self.totals = torch.zeros(width, dtype=torch.float64, device=device)  # of all rows, kept with every change
        self._inward, self._outward = (
            [_Berth(width, rows.dtype, device, in_file=self.file is not None) for _ in range(1 + self.ahead)]
            for _ in range(2)
        )
        self._streams = torch.cuda.Stream(device), torch.cuda.Stream(device)  # in, out
        self._is_written = [False] * rows.shape[1]

    def fill(self, first: Tensor) -> None:
        """The same row (2, w) for every site."""
        self._settle()
        self.first.copy_(first)
        self._is_written = [False] * len(self._is_written)
        self.totals.copy_(self.first.double() * len(self._is_written))

    # --- inward ------------------------------------------------------------------------------------------------------

    def fetch(self, row: int) -> None:
        """Send for a row that a later visit will ask for."""
        if any(berth.row == row for berth in self._inward):
            return
        berth = next((berth for berth in self._inward if berth.row is None), self._inward[0])
        self._inward.remove(berth)  # rows that were sent for and not asked for yet keep theirs, the newest longest
        self._inward.append(berth)
        berth.wait()
        berth.row = row
        if not self._is_written[row]:
            self._load(berth, self.first)
        elif self.file is not None:
            on_host = berth.host
            before = berth.done.synchronize  # the row before has gone on
            berth.task = self.file.read(row, on_host, before=before, after=partial(self._load, berth, on_host))
        else:
            for leaving in self._outward:
                if leaving.row == row:  # not there yet
                    self._streams[0].wait_event(leaving.done)
            self._load(berth, self.rows[:, row])

    @torch.inference_mode()  # threads do not inherit it
    def _load(self, berth: _Berth, source: Tensor) -> None:
        """Begin to copy a row to the device."""
        with torch.cuda.stream(self._streams[0]):
            self._streams[0].wait_event(berth.free)
            for k in range(2):
                berth.on_device[k].copy_(source[k], non_blocking=True)
            berth.done.record()

    def bring(self, row: int) -> None:
        """Put a row where the coming visit looks."""
        self.fetch(row)
        berth = next(berth for berth in self._inward if berth.row == row)
        berth.wait()
        torch.cuda.current_stream(self.device).wait_event(berth.done)
        self.old.copy_(berth.on_device)
        berth.free.record()
        berth.row = None

    # --- outward -----------------------------------------------------------------------------------------------------

    def replace(self, slope: Tensor, rho: Tensor) -> None:
        """Inside a visit: leave the new row, and count it instead of the old one."""
        self.new[0].copy_(slope)
        self.new[1].copy_(rho)
        self.totals += self.new.double() - self.old.double()

    def send(self, row: int) -> None:
        """Let the row that a visit has left go to the host."""
        current = torch.cuda.current_stream(self.device)
        berth = self._outward.pop(0)
        self._outward.append(berth)
        berth.wait()
        current.wait_event(berth.done)
        berth.on_device.copy_(self.new)
        berth.free.record()
        berth.row = row
        self._streams[1].wait_event(berth.free)
        with torch.cuda.stream(self._streams[1]):
            for k in range(2):
                if self.pinned is not None:
                    self.pinned.pin(self.rows[k, row])
                target = self.rows[k, row] if self.file is None else berth.host[k]
                target.copy_(berth.on_device[k], non_blocking=True)
            berth.done.record()
        if self.file is not None:
            berth.task = self.file.write(row, berth.host, before=berth.done.synchronize)
        self._is_written[row] = True
        for arriving in self._inward:
            if arriving.row == row:  # sent for before it changed
                arriving.row = None

    # --- all rows ----------------------------------------------------------------------------------------------------

    def complete(self) -> Tensor:
        """All rows (2, n, w), as they are now."""
        self._settle()
        if not all(self._is_written):
            first = self.first.cpu()
            for row, is_written in enumerate(self._is_written):
                if not is_written:
                    self.rows[:, row] = first
            self._is_written = [True] * len(self._is_written)
        return self.rows

    def take_all(self) -> None:
        """All rows were written from outside; count them."""
        self._is_written = [True] * len(self._is_written)
        self.recount()

    def recount(self) -> None:
        """Sum all rows anew, as after they were read from a file or changed from outside."""
        rows = self.complete()
        self.totals.zero_()
        size = max(1, 2**26 // max(1, rows.shape[2]))  # bounded memory for the double-precision copy
        for k in range(2):
            for block in rows[k].split(size):
                self.totals[k] += block.to(self.device).double().sum(0)

    def _settle(self) -> None:
        """Let everything arrive that is under way, and forget what was sent for."""
        for berth in (*self._inward, *self._outward):
            berth.wait()
            berth.row = None
        if self.file is not None:
            self.file.settle()
        torch.cuda.synchronize(self.device)


class _Berth:
    """A place on the device through which one row goes, and one in pinned memory for rows that live in a file.

    Attributes:
        row: which one, None if it is empty.
        done: the row has arrived where it goes.
        free: the visits' stream has read (inward) or written (outward) `on_device`.
    """

    def __init__(self, width: tuple[int, int], dtype: torch.dtype, device: torch.device, *, in_file: bool) -> None:
        self.on_device = torch.empty(width, dtype=dtype, device=device)
        self._host = torch.empty(width, dtype=dtype, pin_memory=True) if in_file else None
        self.done, self.free = torch.cuda.Event(), torch.cuda.Event()
        self.row: int | None = None
        self.task: Future[None] | None = None

    @property
    def host(self) -> Tensor:
        """Its place in pinned memory."""
        assert self._host is not None, "rows in pinned memory need no place there"
        return self._host

    def wait(self) -> None:
        """For the thread that has to do with it."""
        if self.task is None:
            return
        wait([self.task])  # if this is interrupted, the thread still has to do with it
        task, self.task = self.task, None
        task.result()
