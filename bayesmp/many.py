"""Many networks at once: one process per core, each with one thread, because small networks cannot use more."""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from bayesmp import checks, constant_guess
from bayesmp.arithmetic import few_threads
from bayesmp.fitting import fit
from bayesmp.history import History
from bayesmp.learned import Learned
from bayesmp.network import Network, check_is_network
from bayesmp.train_config import TrainConfig
from bayesmp.trainer import MAX_EPOCHS

QUEUED = 2  # tasks per worker that are packed ahead of time

# Seconds on one core, roughly: what decides whether workers are worth their start. Results do not depend on it.
STARTING = 4.0  # until workers have imported torch
PER_NETWORK, PER_VISIT, PER_PRODUCT = 0.2, 1.5e-3, 1e-8  # of training: refreshes, one visit, one example and weight
AUTO_EPOCHS = 400  # the median of small networks that stop by themselves

Task = tuple[Network, Any, Any, dict[str, Any]]
Trained = tuple[History, Learned, list[str]]  # with what the network has learned, and warnings


def fit_many(
    networks: Sequence[Network],
    x: Any,
    y: Any,
    *,
    workers: int | None = None,
    progress: bool | None = None,
    **options: Any,
) -> list[History]:
    """Train many networks, each as `bayesmp.fit(network, x, y, **options)` trains it in one thread, bit for bit.

    Args:
        networks: trained in place, from their priors; each an object of its own.
        x, y: training data for all of them, tensors or arrays; or two lists with data for each.
        workers: processes, at most. None takes the number of cores, or trains one after another in this process, by one
            thread, where so little is to be done that starting workers (some seconds) would take longer: a guess from
            rows, weights and epochs. With 1, or with networks on a GPU, they are trained one after another.
        progress: show a progress bar; None shows it in a terminal only.
        options: those of `bayesmp.fit`: epochs, max_epochs, checkpoint, every, keep and the fields of TrainConfig.
            Checkpoints go to a folder per network inside the one given, `network-0000` and so on. `seed` may be a list
            with one for each network.

    Returns:
        The histories, in the order of the networks.

    Note:
        Workers are started afresh (spawn). Networks with layers of your own that are defined in the script itself, and
        data other than arrays and tensors, bring the script along: it must then call this under
        `if __name__ == "__main__":`. If one network fails, an error says which, and no further ones are trained.
    """
    if isinstance(networks, Network):
        raise TypeError("networks must be a list of networks, got one; bayesmp.fit(network, x, y) trains a single one")
    networks = list(networks)
    for network in networks:
        check_is_network(network)
    data = _data_of_each(networks, x, y)
    if len({id(network) for network in networks}) < len(networks):
        raise ValueError("the same network is given more than once; each must be an object of its own")
    if _any_twins(networks, data):
        warnings.warn(
            "some of these networks start at the same weights and see the same data, so they will be the same; give "
            "each a seed of its own: Network(..., seed=i)",
            stacklevel=2,
        )
    n_workers = _count_cores() if workers is None else checks.check_positive_int(workers, "workers")
    n_workers = min(n_workers, len(networks))
    seed = options.get("seed")
    if isinstance(seed, (list, tuple)) and len(seed) != len(networks):
        raise ValueError(f"seed must be one number, or a list of one for each of the {len(networks)}, got {len(seed)}")
    tasks = [
        (network, *each, _options_of(index, options))
        for index, (network, each) in enumerate(zip(networks, data, strict=True))
    ]
    if workers is None and multiprocessing.current_process().daemon:  # which may not start others
        n_workers = 1
    is_local = n_workers < 2 or any(network.device.type != "cpu" for network in networks)
    is_little = workers is None and not is_local and _saved(tasks, n_workers) < STARTING
    answers = _one_by_one(tasks, one_thread=is_little) if is_local or is_little else _in_processes(tasks, n_workers)
    histories: dict[int, History] = {}
    hidden = not (sys.stderr.isatty() if progress is None else progress)
    with closing(answers), tqdm(total=len(tasks), disable=hidden, unit="network") as bar:
        for index, answer in answers:
            try:
                histories[index], learned, told = answer()
            except BrokenProcessPool as error:
                raise RuntimeError(
                    "a worker of fit_many ended before its network was trained: call fit_many under `if __name__ == "
                    "'__main__':` in a script, see that memory suffices for all workers, or use workers=1"
                ) from error
            except Exception as error:
                raise RuntimeError(f"network {index} could not be trained: {type(error).__name__}: {error}") from error
            networks[index].learn(learned)
            for message in told:
                warnings.warn(f"network {index}: {message}", constant_guess.category(message), stacklevel=2)
            bar.update()
    return [histories[index] for index in range(len(networks))]


def _data_of_each(networks: list[Network], x: Any, y: Any) -> list[tuple[Any, Any]]:
    """(x, y) for each network: lists (or tuples) of arrays hold one entry for each, anything else is for all."""
    is_several = [isinstance(part, (list, tuple)) and all(hasattr(each, "shape") for each in part) for part in (x, y)]
    if not any(is_several):
        return [(x, y)] * len(networks)
    if not all(is_several) or not len(x) == len(y) == len(networks):
        sizes = " and ".join(
            str(len(part)) if each else "one array" for part, each in zip((x, y), is_several, strict=True)
        )
        raise ValueError(
            f"x and y must be arrays for all networks, or two lists with an array for each of the {len(networks)}; "
            f"got {sizes}"
        )
    return list(zip(x, y, strict=True))


def _any_twins(networks: list[Network], data: list[tuple[Any, Any]]) -> bool:
    """Whether two networks would end the same: equal starting means on one data set."""
    seen: dict[tuple[int, int], list[torch.Tensor]] = {}
    for network, (x, y) in zip(networks, data, strict=True):
        others = seen.setdefault((id(x), id(y)), [])
        if any(torch.equal(network.start, other) for other in others):
            return True
        others.append(network.start)
    return False


def _options_of(index: int, options: dict[str, Any]) -> dict[str, Any]:
    """The options for one network: runs cannot share a folder, and may have seeds of their own."""
    found, folder, seed = dict(options), options.get("checkpoint"), options.get("seed")
    if folder is not None:
        found["checkpoint"] = os.path.join(folder, f"network-{index:04d}")
    if isinstance(seed, (list, tuple)):
        found["seed"] = seed[index]
    return found


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _saved(tasks: list[Task], n_workers: int) -> float:
    """Seconds that this many workers save, their start not counted, roughly; they may not divide evenly."""
    return sum(_seconds(task) for task in tasks) * (1.0 - math.ceil(len(tasks) / n_workers) / len(tasks))


def _seconds(task: Task) -> float:
    """How long one network trains on one core, roughly; for data whose length is not known, forever."""
    network, x, _, options = task
    n_rows = _count_rows(x)
    if n_rows is None:
        return math.inf
    epochs, limit = options.get("epochs", "auto"), options.get("max_epochs", MAX_EPOCHS)
    n_epochs = epochs if isinstance(epochs, int) else min(AUTO_EPOCHS, limit)
    batch_size = 1 if options.get("schedule") == "sequential" else options.get("batch_size", TrainConfig.batch_size)
    n_visits = n_epochs * -(-n_rows // max(1, batch_size))
    return PER_NETWORK + PER_VISIT * n_visits + PER_PRODUCT * n_epochs * n_rows * network.products_per_example


def _count_rows(x: Any) -> int | None:
    data = x.dataset if isinstance(x, DataLoader) else x
    if isinstance(data, tuple) and len(data) == 2:
        data = data[0]
    return len(data) if hasattr(data, "__len__") else None


def _train(task: Task) -> Trained:
    """One network; its warnings are collected, so that they can say which network they are about."""
    network, x, y, options = task
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = fit(network, x, y, progress=False, **options)
    return history, network.learned(), [str(warning.message) for warning in caught]


Answers = Generator[tuple[int, Callable[[], Trained]], None, None]


def _one_by_one(tasks: list[Task], *, one_thread: bool) -> Answers:
    train = _train_by_one_thread if one_thread else _train
    for index, task in enumerate(tasks):
        yield index, partial(train, task)


def _train_by_one_thread(task: Task) -> Trained:
    """As a worker does it: what is learned may differ in its last bits with the number of threads."""
    with few_threads(task[0].device, n_products=0):
        return _train(task)


def _in_processes(tasks: list[Task], n_workers: int) -> Answers:
    """Answers as they come. Tasks and answers travel as bytes: tensors would go through shared memory, which takes an
    open file for each.
    """
    starting = nullcontext if any(map(_may_need_script, range(len(tasks)), tasks)) else _script_stays_here
    pool = ProcessPoolExecutor(n_workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_work)
    others = set(multiprocessing.active_children())
    waiting = iter(enumerate(tasks))
    running: dict[Future[bytes], int] = {}
    is_over = False
    try:
        while True:
            while len(running) < QUEUED * n_workers and (following := next(waiting, None)):
                index, task = following
                packed = _pack(index, task)
                with _interrupts_wait(), starting():
                    running[pool.submit(_train_packed, packed)] = index
            if not running:
                is_over = True
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), partial(_unpack, future)
    finally:
        if not is_over:  # an error or an interrupt: nothing goes on behind the user's back
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
        pool.shutdown(cancel_futures=True)


def _pack(index: int, task: Task) -> bytes:
    try:
        return pickle.dumps(task)
    except Exception as error:  # what cannot be pickled says so in many ways
        raise RuntimeError(
            f"network {index} cannot be sent to another process ({error}): define its layers and its head in a module "
            "that can be imported, or use workers=1"
        ) from error


def _may_need_script(index: int, task: Task) -> bool:
    """Whether a part of the task may be defined in the script that is running."""
    network, x, y, _ = task
    is_plain = all(isinstance(part, (np.ndarray, torch.Tensor)) for part in (x, y))
    return not is_plain or b"__main__" in _pack(index, (network, None, None, {}))


@contextmanager
def _script_stays_here() -> Iterator[None]:
    """Processes that are started meanwhile do not run the user's script again, as they do to find what it defines: it
    need not be written for that, and what it imports takes time."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _unpack(future: Future[bytes]) -> Trained:
    found: Trained = pickle.loads(future.result())
    return found


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C is heard afterwards, and never by processes that are started meanwhile: the parent ends its workers.

    Blocking it is for those processes, which inherit that. For the parent it is not enough, because the signal may come
    to another of its threads, and Python then interrupts the main one all the same.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    heard: list[tuple[Any, ...]] = []
    handler = signal.getsignal(signal.SIGINT)
    is_kept = callable(handler) and threading.current_thread() is threading.main_thread()
    if is_kept:
        signal.signal(signal.SIGINT, lambda *told: heard.append(told))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if is_kept:
            signal.signal(signal.SIGINT, handler)
    if heard and callable(handler):
        handler(*heard[0])


def _begin_work() -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers, so they watch for that themselves."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _train_packed(task: bytes) -> bytes:
    return pickle.dumps(_train(pickle.loads(task)))
