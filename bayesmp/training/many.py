"""Many networks at once, by joblib: one process per core, each with one thread, as small networks cannot use more."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager, nullcontext
from multiprocessing import resource_tracker
from typing import Any

import joblib
import torch
from joblib.parallel import BACKENDS, DEFAULT_BACKEND, get_active_backend
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from bayesmp.basics import checks
from bayesmp.basics.arithmetic import few_threads
from bayesmp.network.learned import Learned
from bayesmp.network.network import Network, check_is_network
from bayesmp.training import constant_guess
from bayesmp.training.fitting import fit
from bayesmp.training.history import History
from bayesmp.training.train_config import TrainConfig
from bayesmp.training.trainer import MAX_EPOCHS

# Seconds on one core, roughly: what decides whether workers are worth their start. Results do not depend on it.
STARTING = 4.0  # until workers have imported torch
PER_NETWORK, PER_VISIT, PER_PRODUCT = 0.2, 1.5e-3, 1e-8  # of training: refreshes, one visit, one example and weight
AUTO_EPOCHS = 400  # the median of small networks that stop by themselves

Task = tuple[Network, Any, Any, dict[str, Any]]
Trained = tuple[int, History, Learned, list[str]]  # which it was, what the network has learned, and warnings


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
        workers: processes, at most. None takes what `joblib.parallel_config` says. Where it says nothing, it takes the
            number of cores, or trains one after another in this process, by one thread, where so little is to be done
            that starting workers (some seconds) would take longer: a guess from rows, weights and epochs. With 1, or
            with networks on a GPU, they are trained one after another.
        progress: show a progress bar; None shows it in a terminal only.
        options: those of `bayesmp.fit`: epochs, max_epochs, checkpoint, every, keep and the fields of TrainConfig.
            Checkpoints go to a folder per network inside the one given, `network-0000` and so on. `seed` may be a list
            with one for each network.

    Returns:
        The histories, in the order of the networks.

    Note:
        Workers are joblib's, and wait some minutes for more to do. `joblib.parallel_config` chooses others, e.g. those
        of Dask or Ray; a backend of threads, or one whose workers are, cannot tell which network a warning is about. If
        one network fails, an error says which, and no further ones are trained.
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
    if workers is not None:
        checks.check_positive_int(workers, "workers")
    seed = options.get("seed")
    if isinstance(seed, (list, tuple)) and len(seed) != len(networks):
        raise ValueError(f"seed must be one number, or a list of one for each of the {len(networks)}, got {len(seed)}")
    tasks = [
        (network, *each, _options_of(index, options))
        for index, (network, each) in enumerate(zip(networks, data, strict=True))
    ]
    is_asked, n_workers = _count_workers(workers, len(networks))
    is_local = n_workers < 2 or any(network.device.type != "cpu" for network in networks)
    is_little = not is_asked and not is_local and _saved(tasks, n_workers) < STARTING
    answers = _one_by_one(tasks, one_thread=is_little) if is_local or is_little else _at_once(tasks, n_workers)
    histories: dict[int, History] = {}
    hidden = not (sys.stderr.isatty() if progress is None else progress)
    with closing(answers), tqdm(total=len(tasks), disable=hidden, unit="network") as bar:
        for index, history, learned, told in answers:
            histories[index] = history
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


def _count_workers(workers: int | None, n_networks: int) -> tuple[bool, int]:
    """Whether somebody has said how many workers there are to be, and how many there are."""
    backend, n_jobs = get_active_backend()
    is_asked = workers is not None or n_jobs is not None or not isinstance(backend, BACKENDS[DEFAULT_BACKEND])
    if not is_asked and multiprocessing.current_process().daemon:  # which may not start others
        return False, 1
    if is_asked:
        n_jobs = workers or n_jobs or backend.default_n_jobs
    else:
        n_jobs = joblib.cpu_count()
    return is_asked, min(backend.effective_n_jobs(n_jobs), n_networks)


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


def _train(index: int, task: Task, *, tells: bool = True) -> Trained:
    """One network; its warnings are collected, so that they can say which network they are about.

    Args:
        tells: False where threads may run beside this one: Python collects warnings of all of them together.
    """
    network, x, y, options = task
    try:
        with warnings.catch_warnings(record=True) if tells else nullcontext([]) as caught:
            if tells:
                warnings.simplefilter("always")
            history = fit(network, x, y, progress=False, **options)
    except Exception as error:
        raise RuntimeError(f"network {index} could not be trained: {type(error).__name__}: {error}") from error
    return index, history, network.learned(), [str(warning.message) for warning in caught or []]


def _one_by_one(tasks: list[Task], *, one_thread: bool) -> Generator[Trained, None, None]:
    for index, task in enumerate(tasks):
        # as a worker does it: what is learned may differ in its last bits with the number of threads
        with few_threads(task[0].device, n_products=0) if one_thread else nullcontext():
            found = _train(index, task)
        yield found


def _at_once(tasks: list[Task], n_workers: int) -> Generator[Trained, None, None]:
    """What workers have trained, as it comes; from backends that cannot do that, in the end."""
    backend, _ = get_active_backend()
    starter = os.getpid() if isinstance(backend, BACKENDS[DEFAULT_BACKEND]) else None
    calls = (joblib.delayed(_train_apart)(index, task, starter) for index, task in enumerate(tasks))
    n_threads = torch.get_num_threads()
    try:
        if backend.supports_return_generator:
            parallel = joblib.Parallel(n_workers, return_as="generator_unordered", batch_size=1, max_nbytes=None)
            with ExitStack() as stack:
                with _interrupts_wait():
                    found = stack.enter_context(closing(parallel(calls)))  # which ends the workers
                yield from found
        else:
            yield from joblib.Parallel(n_workers, batch_size=1, max_nbytes=None)(calls)
    except pickle.PicklingError as error:
        index, why = _find_unsent(tasks)
        raise RuntimeError(
            f"network {index} cannot be sent to another process ({why}): define its layers and its head in a module "
            "that can be imported, or use workers=1"
        ) from error
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a worker of fit_many ended before its network was trained: see that memory suffices for all workers, or "
            "use workers=1"
        ) from error
    finally:
        torch.set_num_threads(n_threads)  # threads of this process had one each


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
    resource_tracker.ensure_running()  # before, because it unblocks all signals when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if is_kept:
            signal.signal(signal.SIGINT, handler)
    if heard and callable(handler):
        handler(*heard[0])


def _find_unsent(tasks: list[Task]) -> tuple[int | str, str]:
    """The first network that cannot be pickled, and why."""
    try:
        from joblib.externals import cloudpickle
    except ImportError:  # joblib 1.6 has none of its own
        import cloudpickle
    for index, task in enumerate(tasks):
        try:
            cloudpickle.dumps(task)
        except Exception as error:  # what cannot be pickled says so in many ways
            return index, str(error)
    return "", "it cannot be pickled"


def _train_apart(index: int, task: Task, starter: int | None) -> Trained:
    """What a worker does, by one thread; `starter` is the process that has started it, where that is known."""
    if starter is not None:
        _end_with(starter)
    with few_threads(task[0].device, n_products=0):
        return _train(index, task, tells=threading.current_thread() is threading.main_thread())


def _end_with(starter: int) -> None:
    """A process that was killed cannot end its workers, so they watch for that themselves."""
    if all(thread.name != _watch.__name__ for thread in threading.enumerate()):
        threading.Thread(target=_watch, args=(starter,), name=_watch.__name__, daemon=True).start()


def _watch(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(1.0)
    os._exit(1)
