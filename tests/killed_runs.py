"""Runs that are killed: `python -m tests.killed_runs folder` prints, per case, how a run ended that was killed again
and again, beside one that was not. Children are forked, so each attempt starts in milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import safetensors.torch
import torch

import bayesmp as bmp
from bayesmp.basics import persistence
from bayesmp.training.trainer import Trainer
from tests.helpers import blobs, linear_data, mlp

CASES = {
    "auto, learned noise": ([3, 8, 1], bmp.Regression("learn"), linear_data(60), {"epochs": "auto"}),
    "shares of sums": ([40, 20, 1], bmp.Regression("learn"), linear_data(40, n_in=40), {"epochs": 12}),
    "sites on the host": ([3, 6, 1], bmp.Regression("learn"), linear_data(40), {"epochs": 9, "site_store": "host"}),
    "sites on disk": (
        [3, 6, 1],
        bmp.Regression("learn"),
        linear_data(40),
        {"epochs": 9, "site_store": "disk", "site_dtype": "bfloat16"},
    ),
    "classes": ([2, 6, 3], bmp.Softmax(), blobs(60), {"epochs": 9}),
    "sequential": ([3, 4, 1], bmp.Regression("learn"), linear_data(16), {"epochs": 9, "schedule": "sequential"}),
}


def train(case: str, answer: Path, folder: Path | None, every: int = 1) -> None:
    """Train, and leave all that can be seen of the result in a file."""
    sizes, head, (x, y), options = CASES[case]
    network = mlp(sizes, head)
    checkpoint = {} if folder is None else {"checkpoint": folder, "every": every}
    take = Trainer.take

    def noted(trainer: Trainer, file: persistence.SavedFile) -> None:
        take(trainer, file)
        with open(answer.with_suffix(".resumed"), "a") as notes:
            print(trainer.n_epochs, file=notes)

    Trainer.take = noted  # type: ignore[method-assign]
    history = bmp.fit(network, x, y, batch_size=16, **checkpoint, **options)
    prediction = vars(network.predict(x))
    tensors = {**network.state(), **{name: part for name, part in prediction.items() if isinstance(part, torch.Tensor)}}
    records = [{**record, "seconds": 0.0, "refresh_seconds": 0.0} for record in history.to_json()]
    text = json.dumps([records, history.stopped, network.description()])
    safetensors.torch.save_file(
        {name: part.clone().contiguous() for name, part in tensors.items()}, answer, {"text": text}
    )


# --- moments at which a process ends itself --------------------------------------------------------------------------


def die(*_args: object, **_options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: object, name: str, count: int) -> None:
    """End the process when a function is called for the count-th time, before it does anything."""
    original, calls = getattr(owner, name), iter(range(1, 10**6))

    def counted(*args: object, **options: object) -> object:
        if next(calls) == count:
            die()
        return original(*args, **options)

    setattr(owner, name, counted)


MOMENTS: dict[str, Callable[[], None]] = {
    "a tensor is being written": lambda: before(persistence, "_written", 21),
    "the file is not yet on disk": lambda: before(os, "fsync", 3),
    "the file has no name yet": lambda: before(os, "replace", 2),
    "old files are about to go": lambda: before(Path, "unlink", 3),
    "an epoch has begun": lambda: before(Trainer, "_run_epoch", 2),
    "a refresh has begun": lambda: before(Trainer, "_refresh_in_training", 1),
    "the last belief is being made": lambda: before(Trainer, "_finish", 1),
}


def attempt(prepare: Callable[[], None], work: Callable[[], None], seconds: float = 1e9) -> int:
    """Work in a process of its own that is killed after some time; the signal that ended it, 0 if none."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            prepare()
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "a child failed"
            return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def nothing() -> None:
    """No moment in particular."""


def main(folder: Path) -> None:
    rng = random.Random(0)
    for case in CASES:
        place = folder / case
        place.mkdir()
        started = time.monotonic()
        attempt(nothing, partial(train, case, place / "whole", None))
        usual = time.monotonic() - started
        run = partial(train, case, place / "killed", place / "run")
        ends = {name: attempt(prepare, run) for name, prepare in MOMENTS.items()}
        attempt(nothing, run)
        attempt(nothing, partial(train, case, place / "again", place / "run"))
        run, n_timed = partial(train, case, place / "timed", place / "run timed"), 0
        while attempt(nothing, run, seconds=usual * rng.uniform(0.1, 0.4) * 1.3**n_timed):
            n_timed += 1
        print(json.dumps({"case": case, "ends": ends, "n_timed": n_timed}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
