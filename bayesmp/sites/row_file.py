"""Rows of sites in a file, and the threads that copy them from and to memory while others work.

Each way has a thread that takes rows one after the other and several that share one row among them: a single thread
copies 4 to 8 GB per second, and a visit on a GPU may ask for more, both ways. Rows are read straight into memory, in
long reads, which is fast from a disk, too, and tells of errors. They are written through a map of the file: writes
to one file wait for each other in the system, copies to its map do not.

What is asked of one row happens in the order in which it was asked for. The file has no name, so that nothing is left
of it however the process ends.
"""

from __future__ import annotations

import errno
import itertools
import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch
from torch import Tensor

THREADS: int | None = None  # that share a row, for each way; None goes by the cores
MOST_THREADS = 8  # if that goes by the cores
CORES_PER_THREAD = 2  # a thread for each of the two ways
SMALLEST_PIECE = 2**20  # bytes of a row's half; below, handing pieces out costs more than it gains

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class RowFile:
    """A file of (2, n, w) numbers, zeros at first.

    Args:
        shape: (2, n, w), slopes and precisions of n sites.
        n_threads: that share a row, for each way; by default as many as the machine can spare, at most 8.

    Attributes:
        tensor: all numbers, as a map of the file; current after `settle`.

    Raises:
        OSError: there is no room for the file.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, *, n_threads: int | None = None) -> None:
        file = tempfile.TemporaryFile(prefix="bayesmp-sites-", buffering=0)  # noqa: SIM115 - lives as long as this
        self._close = weakref.finalize(self, file.close)
        size = math.prod(shape)
        _reserve(file.fileno(), max(1, size * dtype.itemsize))
        mapped = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)[: size * dtype.itemsize]
        self.tensor = mapped.view(dtype).view(shape)
        self.n_threads = _spare_threads() if n_threads is None else n_threads
        self._file = file
        self._bytes: Bytes = mapped.numpy().reshape(*shape[:2], shape[2] * dtype.itemsize)
        self._in_order = [ThreadPoolExecutor(1, "bayesmp-rows") for _ in range(2)]  # in, out
        self._sharing = [ThreadPoolExecutor(self.n_threads, "bayesmp-pieces") for _ in range(2)]
        self._last: dict[int, Future[None]] = {}  # what was last asked of each row
        self._lost: BaseException | None = None  # why a row is no longer what it should be

    def read(
        self,
        row: int,
        into: Tensor,
        *,
        before: Callable[[], object] | None = None,
        after: Callable[[], object] | None = None,
    ) -> Future[None]:
        """Copy a row into a contiguous (2, w) of the host, later; `before` and `after` are called in the thread that
        does it."""

        def do(target: Bytes) -> None:
            self._share_out(0, lambda start, stop: self._read_piece(row, target, start, stop))

        return self._ask(0, row, into, do, before, after)

    def write(self, row: int, values: Tensor, *, before: Callable[[], object] | None = None) -> Future[None]:
        """Copy a contiguous (2, w) of the host into a row, later. If that fails the row is lost, and nothing works any
        more."""

        def do(source: Bytes) -> None:
            self._share_out(1, lambda start, stop: np.copyto(self._bytes[:, row, start:stop], source[:, start:stop]))

        return self._ask(1, row, values, do, before, None)

    def settle(self) -> None:
        """Wait for all that was asked for, and raise if a row was lost."""
        wait(self._last.values())
        self._last.clear()
        self._check()

    def close(self) -> None:
        """Let threads and file go; the map stays as long as someone holds it."""
        for pool in (*self._in_order, *self._sharing):
            pool.shutdown()
        self._close()

    # --- in the threads ----------------------------------------------------------------------------------------------

    def _ask(
        self,
        way: int,
        row: int,
        memory: Tensor,
        do: Callable[[Bytes], None],
        before: Callable[[], object] | None,
        after: Callable[[], object] | None,
    ) -> Future[None]:
        self._check()
        numbers = memory.view(torch.uint8).numpy()  # the same memory
        earlier = self._last.get(row)

        def task() -> None:
            try:
                if earlier is not None:  # each waits for what was asked for before it, so none waits for ever
                    wait([earlier])
                self._check()
                if before is not None:
                    before()
                do(numbers)
                if after is not None:
                    after()
            except BaseException as error:
                if way == 1:
                    self._lost = self._lost or error
                raise

        self._last[row] = asked = self._in_order[way].submit(task)
        return asked

    def _share_out(self, way: int, copy: Callable[[int, int], None]) -> None:
        """Copy pieces [start, stop) of both halves of a row at once."""
        n_bytes = self._bytes.shape[2]
        n = max(1, min(self.n_threads, n_bytes // SMALLEST_PIECE))
        if n == 1:
            return copy(0, n_bytes)
        edges = [n_bytes * k // n for k in range(n + 1)]
        pieces = [self._sharing[way].submit(copy, *ends) for ends in itertools.pairwise(edges)]
        wait(pieces)  # all of them: memory is used again even after an error
        for piece in pieces:
            piece.result()

    def _read_piece(self, row: int, target: Bytes, start: int, stop: int) -> None:
        for k in range(2):
            at = (k * self._bytes.shape[1] + row) * self._bytes.shape[2] + start
            left = target[k, start:stop].data
            while left:
                n = os.preadv(self._file.fileno(), [left], at)
                if n == 0:
                    raise OSError(errno.EIO, f"the file of the sites ends at byte {at}, inside row {row}: it was cut")
                left, at = left[n:], at + n

    def _check(self) -> None:
        if self._lost is not None:
            raise OSError(
                errno.EIO, "a row of sites on disk was lost, so this run cannot go on; resume it from a saved one"
            ) from self._lost


def _reserve(descriptor: int, n_bytes: int) -> None:
    """Make a file this long, with room on the disk where the system can say so: a map without room ends the process."""
    if hasattr(os, "posix_fallocate"):
        try:
            return os.posix_fallocate(descriptor, 0, n_bytes)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
    os.truncate(descriptor, n_bytes)


def _spare_threads() -> int:
    if THREADS is not None:
        return THREADS
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_THREADS, cores // CORES_PER_THREAD))
