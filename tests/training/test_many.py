"""Many networks at once: the same as one by one, in order, and errors that say which."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.training import many
from bayesmp.training.many import fit_many
from tests.helpers import linear_data, mlp

torch.set_num_threads(1)


def data(seed=0, n=30):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, 2))
    return x, x[:, :1] ** 2 + 0.1 * generator.normal(size=(n, 1))


def networks(n=3):
    return [mlp((2, 5, 1), bmp.Regression("learn"), seed=seed) for seed in range(n)]


def assert_same(one, other, x):
    for name, part in one.state().items():
        assert torch.equal(part, other.state()[name]), name
    assert one.regime == other.regime
    assert torch.equal(one.predict(x).std, other.predict(x).std)
    assert torch.equal(one.sample_functions(x, 2), other.sample_functions(x, 2))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_many_are_trained_as_one_by_one(workers):
    """Bit for bit, in the order given, whichever ends first: the first network has the most data."""
    sets = [data(seed, n) for seed, n in ((0, 200), (1, 20), (2, 30))]
    apart, together = networks(), networks()
    expected = [bmp.fit(network, x, y, epochs=6, batch_size=10) for network, (x, y) in zip(apart, sets, strict=True)]
    x, y = ([part[k] for part in sets] for k in (0, 1))
    found = fit_many(together, x, y, workers=workers, epochs=6, batch_size=10, progress=False)
    for one, other, (inputs, _) in zip(apart, together, sets, strict=True):
        assert_same(one, other, inputs)
    for one, other in zip(expected, found, strict=True):
        assert one.loo_nll == other.loo_nll and one.stopped == other.stopped and len(other) == 6


@pytest.mark.slow
def test_workers_are_started_only_where_they_save_time(monkeypatch):
    """Tiny networks took four seconds longer in processes. Either road ends the same, bit for bit."""
    x, y = data()
    ways = []
    for name in ("_one_by_one", "_at_once"):
        way = getattr(many, name)
        monkeypatch.setattr(
            many, name, lambda *args, way=way, name=name, **kwargs: (ways.append(name), way(*args, **kwargs))[1]
        )
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)
    few, processes, alone = networks(2), networks(2), networks(2)
    n_threads = torch.get_num_threads()
    fit_many(few, x, y, epochs=3)
    assert ways == ["_one_by_one"] and torch.get_num_threads() == n_threads
    monkeypatch.setattr(many, "STARTING", 0.0)
    fit_many(processes, x, y, epochs=3)
    assert ways == ["_one_by_one", "_at_once"]
    for one, other, plain in zip(few, processes, alone, strict=True):
        bmp.fit(plain, x, y, epochs=3)
        assert_same(one, other, x)
        assert_same(one, plain, x)


def test_what_is_done_by_one_thread_is_done_by_one(monkeypatch):
    seen = []
    train = many._train
    monkeypatch.setattr(many, "_train", lambda *args: (seen.append(torch.get_num_threads()), train(*args))[1])
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)
    torch.set_num_threads(2)
    try:
        fit_many(networks(2), *data(), epochs=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert seen == [1, 1]


@pytest.mark.parametrize(
    "n_networks, sizes, n, options, is_little",
    [
        (5, (1, 16, 1), 40, {}, True),
        (100, (1, 32, 32, 1), 200, {}, False),
        (2, (10, 50, 1), 300, {"epochs": 5}, True),
        (2, (10, 50, 1), 300, {"epochs": 5, "schedule": "sequential"}, True),
        (2, (10, 50, 1), 300, {"epochs": 50, "schedule": "sequential"}, False),
        (4, (64, 200, 200, 10), 1500, {"epochs": 20}, False),
        (4, (64, 200, 200, 10), 1500, {"epochs": 20, "batch_size": 10_000, "max_epochs": 3}, False),
        (2, (1, 16, 1), 40, {"max_epochs": 3}, True),
        (2, (1, 16, 1), 4_000, {}, False),
    ],
)
def test_how_much_is_to_be_done_is_guessed_from_rows_weights_and_epochs(n_networks, sizes, n, options, is_little):
    network = mlp(sizes, bmp.Regression("learn"))
    tasks = [(network, np.zeros((n, sizes[0])), None, options)] * n_networks
    assert (many._saved(tasks, 2) < many.STARTING) is is_little


def test_rows_of_all_kinds_of_data_are_counted():
    x, y = (torch.zeros(7, 2), torch.zeros(7))
    dataset = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(dataset, batch_size=3)
    assert [many._count_rows(part) for part in (x, x.tolist(), (x, y), dataset, loader, iter(x))] == [7] * 5 + [None]


def test_one_data_set_serves_all_networks():
    x, y = data()
    found = fit_many(networks(2), torch.tensor(x), torch.tensor(y), workers=1, epochs=2)
    assert [len(history) for history in found] == [2, 2]
    assert fit_many([], x, y) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_says_which_network(workers):
    x, y = data()
    bad = y.copy()
    bad[3] = np.nan
    with pytest.raises(RuntimeError, match=r"network 1 could not be trained: ValueError: .*NaN"):
        fit_many(networks(), [x, x, x], [y, bad, y], workers=workers, epochs=2)
    assert workers == 1 or not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_warning_says_which_network(workers):
    with pytest.warns(UserWarning, match="network .: training was not at rest") as caught:
        fit_many(networks(2), *data(), workers=workers, max_epochs=2)
    assert sorted(str(warning.message)[:10] for warning in caught) == ["network 0:", "network 1:"]


def test_what_cannot_be_sent_is_named():
    x, y = data()
    first, own = networks(2)
    own.note = threading.Lock()
    with pytest.raises(RuntimeError, match=r"network 1 cannot be sent .*lock.* workers=1"):
        fit_many([first, own], x, y, workers=2, epochs=2)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])
@pytest.mark.slow
def test_joblib_says_where_they_are_trained(backend):
    """Threads of this process; or a backend that gives all answers in the end, as Ray's does. Bit for bit the same."""
    x, y = data()
    apart, together, asked = networks(), networks(), networks()
    for network in apart:
        bmp.fit(network, x, y, epochs=6, batch_size=10)
    with joblib.parallel_config(backend=backend, n_jobs=2):
        histories = fit_many(together, x, y, epochs=6, batch_size=10, progress=False)
    with joblib.parallel_config(backend=backend):
        fit_many(asked, x, y, epochs=6, batch_size=10, workers=3)
    assert [len(history) for history in histories] == [6, 6, 6] and torch.get_num_threads() == 1
    for one, *others in zip(apart, together, asked, strict=True):
        for other in others:
            assert_same(one, other, x)
    bad = np.where(np.arange(30)[:, None] == 3, np.nan, y)
    with (
        joblib.parallel_config(backend=backend, n_jobs=2),
        pytest.raises(RuntimeError, match=r"network 1 could not be trained: ValueError: .*NaN"),
    ):
        fit_many(networks(), [x, x, x], [y, bad, y], epochs=2)


def test_threads_have_one_each(monkeypatch):
    """And the process has its own again afterwards."""
    seen, train = [], many._train
    monkeypatch.setattr(
        many, "_train", lambda *args, **options: (seen.append(torch.get_num_threads()), train(*args, **options))[1]
    )
    torch.set_num_threads(2)
    try:
        with joblib.parallel_config(backend="threading", n_jobs=2):
            fit_many(networks(4), *data(), epochs=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert seen == [1, 1, 1, 1]


@pytest.mark.slow
def test_workers_of_joblib_start_no_others():
    """As in a grid search with n_jobs: four workers would have started four more each."""
    fitted = joblib.Parallel(2)(joblib.delayed(_fit_inside)(seed) for seed in range(2))
    assert fitted == [0, 0]


def _fit_inside(seed):
    from bayesmp.training import many

    many.STARTING = 0.0
    fit_many(networks(2), *data(seed), epochs=1)
    return len(multiprocessing.active_children())


def test_mistakes_are_told_at_once():
    x, y = data()
    (network,) = networks(1)
    with pytest.raises(TypeError, match="list of networks, got one"):
        bmp.fit_many(network, x, y)
    with pytest.raises(ValueError, match="more than once"):
        fit_many([network, network], x, y)
    with pytest.raises(ValueError, match="for each of the 2; got 1 and 2"):
        fit_many(networks(2), [x], [y, y])
    with pytest.raises(ValueError, match="got one array and 2"):
        fit_many(networks(2), x, [y, y])
    with pytest.raises(ValueError, match="workers must be a positive integer"):
        fit_many(networks(2), x, y, workers=0)


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
@pytest.mark.parametrize("seconds", [0.05, 8.0])
@pytest.mark.slow
def test_an_interrupt_ends_the_workers(tmp_path, seconds):
    """Ctrl-C reaches the parent; its workers go with it, and say nothing, whether they have begun or are being started.
    Once it came while the first worker was being started, and the parent waited for it for ever.
    """
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing, signal, torch, bayesmp as bmp
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
        if __name__ == "__main__":
            layers = lambda: [bmp.Linear(2, 40), bmp.ReLU(), bmp.Linear(40, 1)]
            nets = [bmp.Network(layers(), bmp.Regression(0.1)) for _ in range(4)]
            print("begin", flush=True)
            try:
                bmp.fit_many(nets, torch.randn(500, 2), torch.randn(500, 1), workers=2, epochs=100_000)
            except KeyboardInterrupt:
                print("interrupted", len(multiprocessing.active_children()), flush=True)
        """)
    )
    package = str(Path(bmp.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": package},
    ) as process:
        assert process.stdout.readline() == "begin\n"
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert out == "interrupted 0\n" and "Traceback" not in err


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_an_interrupt_waits_though_another_thread_gets_it():
    """Python then raised in the main thread, in the middle of starting a worker."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("only the main thread is interrupted")
    before, done = signal.signal(signal.SIGINT, signal.default_int_handler), threading.Event()
    other = threading.Thread(target=done.wait)  # does not block the signal
    other.start()
    steps = []

    def start():
        with many._interrupts_wait():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            steps.append("started")

    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert steps == ["started"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        done.set()
        other.join()
        signal.signal(signal.SIGINT, before)


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing, threading, time, torch, bayesmp as bmp
        def tell():
            while not (children := multiprocessing.active_children()):
                time.sleep(0.05)
            print(children[0].pid, flush=True)
        if __name__ == "__main__":
            nets = [bmp.Network([bmp.Linear(2, 1)], bmp.Regression(0.1), seed=k) for k in range(2)]
            threading.Thread(target=tell, daemon=True).start()
            bmp.fit_many(nets, torch.randn(500, 2), torch.randn(500, 1), workers=2, epochs=10_000_000)
        """)
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(bmp.__file__).parents[1])}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as process:
        worker = int(process.stdout.readline())
        time.sleep(3)  # until it works
        process.kill()
        process.wait()
        for _ in range(300):
            try:
                os.kill(worker, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)
        os.kill(worker, signal.SIGKILL)
        pytest.fail("the worker of a killed parent goes on")


def test_every_network_has_checkpoints_of_its_own(tmp_path):
    """And goes on from them; runs that have ended are not repeated."""
    x, y = linear_data(20)
    alone, first, second = ([mlp([3, 3, 1], bmp.Regression(0.1), seed=seed) for seed in (0, 1)] for _ in range(3))
    bmp.fit_many(alone, x, y, epochs=3, workers=1)
    bmp.fit_many(first, x, y, epochs=2, workers=1, checkpoint=tmp_path)
    histories = bmp.fit_many(second, x, y, epochs=3, workers=1, checkpoint=str(tmp_path))
    assert [len(history) for history in histories] == [3, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["network-0000", "network-0001"]
    for found, expected in zip(second, alone, strict=True):
        assert torch.equal(found.marginal.tau, expected.marginal.tau)


def test_networks_that_would_end_the_same_come_with_a_warning():
    x, y = linear_data(20)
    networks = [mlp([3, 4, 1], bmp.Regression(0.1), seed=0) for _ in range(2)]
    with pytest.warns(UserWarning, match=r"give each a seed of its own: Network\(\.\.\., seed=i\)"):
        bmp.fit_many(networks, x, y, epochs=1, workers=1, progress=False)


def test_every_network_may_have_a_seed_of_its_own():
    x, y = data()
    apart, together = networks(2), networks(2)
    for network, seed in zip(apart, (7, 8), strict=True):
        bmp.fit(network, x, y, epochs=3, batch_size=10, seed=seed)
    fit_many(together, x, y, epochs=3, batch_size=10, workers=1, seed=[7, 8])
    for one, other in zip(apart, together, strict=True):
        assert_same(one, other, x)
    with pytest.raises(ValueError, match="one for each of the 2, got 3"):
        fit_many(networks(2), x, y, epochs=3, seed=(1, 2, 3))


@pytest.mark.slow
def test_a_script_that_defines_nothing_of_them_is_not_run_again(tmp_path):
    """So it needs no `if __name__ == "__main__":`, which nobody would think of around an estimator."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import sys, numpy, bayesmp as bmp
        from bayesmp.training import many
        many.STARTING = 0.0
        print("runs", __name__, flush=True)
        x = numpy.random.default_rng(0).normal(size=(30, 2))
        networks = [bmp.Network([bmp.Linear(2, 1)], bmp.Regression(0.1), seed=k) for k in range(2)]
        bmp.fit_many(networks, x, x[:, 0], epochs=1, workers=2)
        print("trained", [net.is_trained for net in networks], sys.modules["__main__"].__file__ == __file__)
        """)
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(bmp.__file__).parents[1])}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "runs __main__\ntrained [True, True] True\n"


@pytest.mark.slow
def test_workers_know_what_a_script_defines(tmp_path):
    """Its layers, and its data; and the script is not run again."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import torch, bayesmp as bmp
        print("runs", __name__, flush=True)
        class Own(bmp.Flatten):
            pass
        class Pairs(torch.utils.data.Dataset):
            def __len__(self):
                return 30
            def __getitem__(self, index):
                return torch.tensor([index / 30.0, 1.0]), torch.tensor(index / 30.0)
        networks = [bmp.Network([bmp.Linear(2, 1), Own()], bmp.Regression(0.1), seed=k) for k in range(2)]
        bmp.fit_many(networks, Pairs(), None, epochs=1, workers=2)
        print("trained", [net.is_trained for net in networks])
        """)
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(bmp.__file__).parents[1])}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "runs __main__\ntrained [True, True]\n"


@pytest.mark.parametrize("n_networks, n_workers, share", [(3, 2, 1 / 3), (4, 2, 1 / 2), (3, 16, 2 / 3)])
def test_workers_save_what_the_longest_row_of_networks_leaves(n_networks, n_workers, share):
    tasks = [(mlp((2, 5, 1), bmp.Regression("learn")), np.zeros((30, 2)), None, {})] * n_networks
    total = sum(many._seconds(task) for task in tasks)
    assert many._saved(tasks, min(n_workers, n_networks)) == pytest.approx(share * total)


def test_a_process_that_may_not_start_others_trains_them_itself(monkeypatch):
    """As the workers of multiprocessing.Pool; with workers asked for, joblib says so."""
    monkeypatch.setattr(many, "STARTING", 0.0)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    here = networks(2)
    fit_many(here, *data(), epochs=1)
    assert all(network.is_trained for network in here)
    with pytest.warns(UserWarning, match="cannot be called in a multiprocessing"):
        fit_many(networks(2), *data(), epochs=1, workers=2)
