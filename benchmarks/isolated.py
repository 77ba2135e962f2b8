"""One call in a process of its own: it may take too long, too much memory or crash, and the caller goes on."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# with torch, bayesmp and those parts of scikit-learn that are imported late
PRELOADED = (
    "benchmarks.isolated",
    "benchmarks.stress_methods",
    *(f"sklearn.{part}" for part in ("datasets", "ensemble", "linear_model", "model_selection", "preprocessing")),
)
PARTING = 10.0  # seconds for a process to end by itself once it has answered
OK, TIMED_OUT, DIED, FAILED = "ok", "timed out", "died", "failed"


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    Attributes:
        status: OK, TIMED_OUT (the process was killed), FAILED (the call raised), DIED (the process ended otherwise).
        value: what the call returned; None unless it is OK.
        told: of FAILED the error, of DIED the exit code.
        seconds: until the answer came, the start of the process included.
    """

    status: str
    value: Any = None
    told: str = ""
    seconds: float = 0.0


def call(
    function: Callable[..., Any],
    *args: Any,
    limit: float,
    threads: int | None = None,
    memory: float | None = None,
) -> Outcome:
    """What `function(*args)` returns in a new process.

    Args:
        function, args: anything that can be pickled.
        limit: seconds after which the process is killed.
        threads: CPU threads of torch, BLAS and OpenMP; their own choice if None.
        memory: GiB that the process may hold, where the system can limit it; beyond, the call fails.
    """
    context = _context()
    answer, end = context.Pipe(duplex=False)
    started = time.perf_counter()
    process = context.Process(target=_answer, args=(end, function, args, threads, memory), daemon=True)
    process.start()
    end.close()
    try:
        if not answer.poll(limit):
            process.kill()
            return Outcome(TIMED_OUT, seconds=time.perf_counter() - started)
        status, found = answer.recv()
    except EOFError:
        process.join()
        return Outcome(DIED, told=f"exit code {process.exitcode}", seconds=time.perf_counter() - started)
    finally:
        process.join(PARTING)
        process.kill()
        process.join()
        answer.close()
    seconds = time.perf_counter() - started
    return Outcome(OK, found, seconds=seconds) if status == OK else Outcome(status, told=found, seconds=seconds)


def _context() -> Any:
    """Processes that are forked off one that has only imported; afresh where the system has no such thing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    if Path.cwd() == ROOT:  # the server looks there first: from elsewhere it might import another tree
        context.set_forkserver_preload(list(PRELOADED))
    return context


def _answer(
    end: Connection, function: Callable[..., Any], args: Sequence[Any], threads: int | None, memory: float | None
) -> None:
    """In the new process: send what the call returns, or what it raised."""
    if memory is not None:
        _limit_memory(memory)
    if threads is not None:
        _limit_threads(threads)
    try:
        message = OK, function(*args)
    except Exception as error:
        message = FAILED, f"{type(error).__name__}: {error}".split("\n")[0]
    end.send(message)
    end.close()


def _limit_memory(gib: float) -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    most = int(gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _limit_threads(threads: int) -> None:
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(threads)
    threadpool_limits(threads)
