"""Computes the pieces of a plan that are not there yet, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import platform
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bayesmp
from benchmarks.datasets import MissingDataError
from benchmarks.tables import environment
from experiments import find
from experiments.base import Experiment, Options, Piece, UnavailableError
from experiments.store import PieceStore


@dataclass(frozen=True)
class Outcome:
    """How a piece ended: "done", "unavailable" or "failed", and for the latter two why."""

    label: str
    state: str
    why: str = ""
    seconds: float = 0.0


def compute_missing(
    experiment: Experiment,
    pieces: Sequence[Piece],
    store: PieceStore,
    options: Options,
    *,
    jobs: int = 1,
    commit: str | None = None,
) -> list[Outcome]:
    """Compute what the store does not hold; one piece's failure does not cost the others.

    Args:
        experiment: whose pieces they are; workers find it by its name.
        pieces: the plan.
        store: where finished ones are looked for and go to.
        options: handed to `compute`.
        jobs: processes with one thread each; 1 computes here, with torch's own number of threads.
        commit: of the code, for copies without their history; None asks git.
    """
    waiting = [piece for piece in pieces if store.load(piece) is None]
    n_there = len(pieces) - len(waiting)
    if n_there:
        print(f"{n_there} of {len(pieces)} pieces are there already", flush=True)
    waiting.sort(key=lambda piece: -piece.cost)
    started, outcomes = time.perf_counter(), []
    made = hardware(options.device) | ({} if commit is None else {"commit": commit})
    tasks = [(experiment.name, piece, store.folder, options, made) for piece in waiting]
    answers = _here(tasks) if jobs == 1 or len(tasks) < 2 else _in_processes(tasks, min(jobs, len(tasks)))
    for outcome in answers:
        outcomes.append(outcome)
        spent = time.perf_counter() - started
        what = f"{outcome.seconds:.1f} s" if outcome.state == "done" else f"{outcome.state}: {outcome.why}"
        print(f"[{len(outcomes)}/{len(tasks)}, {spent:.0f} s] {outcome.label}: {what}", flush=True)
    return outcomes


def hardware(device: str) -> dict[str, Any]:
    """What figures depend on beside the code: versions, machine, commit."""
    versions = {"bayesmp": bayesmp.__version__, "numpy": np.__version__}
    return {**versions, **environment(torch.device(device)), "processor": _processor(), "cores": os.cpu_count()}


Task = tuple[str, Piece, Path, Options, Mapping[str, Any]]


def _compute(task: Task) -> Outcome:
    """One piece from plan to disk."""
    name, piece, folder, options, made = task
    experiment = find(name)
    store = PieceStore(folder, experiment)
    scratch = store.path(piece).with_suffix(".state")
    started = time.perf_counter()
    try:
        record = experiment.compute(piece.parameters, replace(options, scratch=scratch))
        seconds = time.perf_counter() - started
        threads = {"threads": torch.get_num_threads(), "date": time.strftime("%Y-%m-%d", time.gmtime())}
        store.save(piece, record, seconds=seconds, made={**made, **threads})
        scratch.unlink(missing_ok=True)
    except UnavailableError as error:
        return Outcome(piece.label, "unavailable", str(error))
    except MissingDataError:
        raise  # of no piece in particular; what to do is the same for all
    except Exception as error:  # one method's failure must not cost the others' results
        traceback.print_exc()
        return Outcome(piece.label, "failed", f"{type(error).__name__}: {error}")
    return Outcome(piece.label, "done", seconds=seconds)


def _here(tasks: Sequence[Task]) -> Iterator[Outcome]:
    yield from map(_compute, tasks)


def _in_processes(tasks: Sequence[Task], n_workers: int) -> Iterator[Outcome]:
    os.environ["OMP_NUM_THREADS"] = "1"  # inherited by the workers, before they import torch
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else each worker starts compilers for all cores
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = {pool.submit(_compute, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a worker was ended before its piece was done, perhaps for want of memory; finished pieces are kept: "
                "run the same command again, with fewer --jobs"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
