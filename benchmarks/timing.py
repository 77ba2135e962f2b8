"""Seconds and peak memory, measured the same way for every method."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch


@dataclass
class Cost:
    """What a piece of work took; filled in when it ends.

    Attributes:
        seconds: wall-clock time, after the device has finished.
        peak_bytes: on a GPU, all that torch held at the worst moment, the data included; on a CPU, by how much the
            process grew at the worst moment (rough: what the allocator had kept is used again first). None where the
            system does not tell.
    """

    seconds: float = 0.0
    peak_bytes: int | None = None


@contextmanager
def measured(device: torch.device) -> Iterator[Cost]:
    """`with measured(device) as cost: work()`, then read cost.seconds and cost.peak_bytes."""
    cost = Cost()
    _release_unused(device)
    resident = _begin_peak(device)
    started = time.perf_counter()
    yield cost
    synchronise(device)
    cost.seconds = time.perf_counter() - started
    if device.type == "cuda":
        cost.peak_bytes = torch.cuda.max_memory_allocated(device)
    elif resident is not None:
        cost.peak_bytes = max(0, (_process_status("VmHWM") or 0) - resident)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_per_call(call: Callable[[], object], device: torch.device, *, repeats: int = 5) -> float:
    """Median time of a call after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        synchronise(device)
        started = time.perf_counter()
        call()
        synchronise(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _release_unused(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        with suppress(OSError, AttributeError):  # glibc keeps freed memory, which would hide the next piece's growth
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def _begin_peak(device: torch.device) -> int | None:
    """Forget the peak so far; for a CPU, the memory in use now."""
    synchronise(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return None
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # Linux: resets VmHWM to VmRSS
    except OSError:
        return None
    return _process_status("VmRSS")


def _process_status(name: str) -> int | None:
    """A field of /proc/self/status in bytes, where the system has it."""
    try:
        with open("/proc/self/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        return 1024 * int(fields[name].split()[0])
    except (OSError, KeyError, ValueError):
        return None
