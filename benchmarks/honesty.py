"""Does it stay honest however long it trains? Scores on held-out data after more and more epochs of one run.

A network that overfits gets surer than it is right: NLL rises, fewer targets lie in the 90 % intervals, the learned
noise shrinks below the true one. At each checkpoint of a run the table has these, and the leave-one-out NLL, which the
run computes from its training data alone, beside the NLL on data it never saw. A run of its own with epochs="auto" says
where training would have stopped by itself.

friedman1: five of ten features matter, the noise has a std of 1; 10-32-32-1, fresh data for each seed. UCI tables: one
hidden layer of 50; seed k takes the standard split k and holds out a tenth of its training part, or, with --test, is
scored on its test part (not for choosing variants). x and y are standardised by what is trained on, and RMSE and NLL
are in these units; the noise is learned.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import bayesmp as bmp
from bayesmp import metrics
from bayesmp.data import Scaling
from benchmarks import datasets
from benchmarks.datasets import Table
from benchmarks.evaluation import regression_scores
from benchmarks.networks import mlp
from benchmarks.options import add_data_options, begin, data_source, new_parser
from benchmarks.tables import mean_row
from benchmarks.timing import measured

TABLES = ("energy", "yacht", "concrete")
TASKS = ("friedman1", *TABLES)
EPOCHS, SEEDS = (25, 200), 1
FULL_EPOCHS, FULL_SEEDS = (25, 200, 1000), 2
LEVEL = 0.9  # of the intervals
COVERAGE = f"coverage of {100 * LEVEL:.0f} %"
COLUMNS = ("RMSE", "NLL", "leave-one-out NLL", COVERAGE, "noise std / true", "seconds")

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Task:
    """Standardised data to train on and to score on, and the hidden layers for them.

    Attributes:
        y_scaling: how targets were standardised.
        noise_std: of the true noise, in standardised units; None where nobody knows it.
    """

    x_train: Tensor
    y_train: Tensor
    x_held_out: Tensor
    y_held_out: Tensor
    hidden: tuple[int, ...]
    y_scaling: Scaling
    noise_std: float | None = None

    @classmethod
    def of(
        cls,
        train: tuple[Floats, Floats],
        held_out: tuple[Floats, Floats],
        *,
        hidden: tuple[int, ...],
        noise_std: float | None = None,
    ) -> Task:
        """From x (n, d) and y (n,) as they come; noise_std in their units."""
        x_scaling, y_scaling = (Scaling.fit(part) for part in train)
        x_train, x_held_out = (torch.as_tensor(x_scaling.apply(x), dtype=torch.float32) for x, _ in (train, held_out))
        y_train, y_held_out = (torch.as_tensor(y_scaling.apply(y), dtype=torch.float32) for _, y in (train, held_out))
        noise_std = None if noise_std is None else noise_std / float(y_scaling.std)
        return cls(x_train, y_train, x_held_out, y_held_out, hidden, y_scaling, noise_std)

    def network(self, seed: int) -> bmp.Network:
        return bmp.Network(mlp(self.x_train.shape[1], *self.hidden, 1), bmp.Regression("learn"), seed=seed)


def friedman1(seed: int, *, n_train: int = 750, n_held_out: int = 1000) -> Task:
    """Friedman's first regression problem, with noise of std 1."""
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(n_train + n_held_out, n_features=10, noise=1.0, random_state=seed)
    parts = (x[:n_train], y[:n_train]), (x[n_train:], y[n_train:])
    return Task.of(*parts, hidden=(32, 32), noise_std=1.0)


def table_task(table: Table, seed: int, *, on_test: bool = False) -> Task:
    """A standard split: a random tenth of its training part held out, or its test part."""
    split = table.split(seed % table.n_splits)
    held_out = (split.x_test, split.y_test)
    rows = np.arange(len(split.x_train))
    if not on_test:
        rows = np.random.default_rng(seed).permutation(rows)
        n_held_out = math.ceil(len(rows) / 10)
        held_out = (split.x_train[rows[:n_held_out]], split.y_train[rows[:n_held_out]])
        rows = rows[n_held_out:]
    return Task.of((split.x_train[rows], split.y_train[rows]), held_out, hidden=(50,))


def scores(network: bmp.Network, history: bmp.History, task: Task) -> dict[str, Any]:
    """The columns of a row but for the time."""
    prediction = network.predict(task.x_held_out)
    found: dict[str, Any] = regression_scores(prediction, task.y_held_out)
    found["leave-one-out NLL"] = history.loo_nll[-1]
    found[COVERAGE] = (
        metrics.interval_coverage(*prediction.interval(LEVEL), task.y_held_out.to(prediction.mean))
        if prediction.std.isfinite().all()
        else math.nan
    )
    noise_std = float(prediction.noise_var) ** 0.5
    return found | {"noise std": noise_std, "noise std / true": task.noise_std and noise_std / task.noise_std}


def train_in_pieces(task: Task, epochs: Sequence[int], *, seed: int, device: torch.device) -> list[dict[str, Any]]:
    """A row for each of these numbers of epochs, in order, from one run."""
    network = task.network(seed).to(device)
    trainer, seconds, rows = bmp.Trainer(network, task.x_train, task.y_train, seed=seed), 0.0, []
    for until in epochs:
        with measured(device) as cost, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the row says what came out
            history = trainer.run(until - trainer.n_epochs, progress=False)
        seconds += cost.seconds
        rows.append({"epochs": str(until), "seed": seed, **scores(network, history, task), "seconds": seconds})
    return rows


def train_until_rest(task: Task, *, max_epochs: int, seed: int, device: torch.device) -> dict[str, Any]:
    """The row of a run that stops by itself."""
    network = task.network(seed).to(device)
    trainer = bmp.Trainer(network, task.x_train, task.y_train, seed=seed)
    with measured(device) as cost, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the row says whether it came to rest
        history = trainer.run("auto", max_epochs=max_epochs, progress=False)
    ended = {"stopped after": len(history), "at rest": history.stopped.startswith("at rest")}
    return {"epochs": "auto", "seed": seed, **scores(network, history, task), "seconds": cost.seconds, **ended}


def over_seeds(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A task's table: means over the seeds; of runs that stop by themselves, where each of them did."""
    rows = []
    for epochs in dict.fromkeys(run["epochs"] for run in runs):
        own = [run for run in runs if run["epochs"] == epochs]
        mean = mean_row(own)
        row = {"epochs": epochs} | {name: mean[name] for name in COLUMNS if name in mean}
        if epochs == "auto":
            places = [f"{run['stopped after']}{'' if run['at rest'] else ', not at rest'}" for run in own]
            row["stopped after"] = "; ".join(places)
        rows.append(row)
    return rows


def summary_row(name: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How much worse than its best checkpoint a run ended, and how much worse it would have been to stop by itself."""
    seeds = dict.fromkeys(run["seed"] for run in runs)
    rises, autos, gaps = [], [], []
    for seed in seeds:
        own = [run for run in runs if run["seed"] == seed]
        checkpoints = [run for run in own if run["epochs"] != "auto"]
        best, last = min(run["NLL"] for run in checkpoints), checkpoints[-1]
        rises.append(last["NLL"] - best)
        autos += [run["NLL"] - best for run in own if run["epochs"] == "auto"]
        gaps.append(last["leave-one-out NLL"] - last["NLL"])
    row: dict[str, Any] = {"task": name, "seeds": len(seeds), "NLL rise, best to last": _mean(rises)}
    row |= {"worst seed": max(rises), "auto - best": _mean(autos) if autos else None}
    return row | {"leave-one-out - held-out, last": _mean(gaps)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("honesty", __doc__)
    add_data_options(parser)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    full = f"{FULL_SEEDS} seeds and epochs {' '.join(map(str, FULL_EPOCHS))}, where they are not given"
    parser.add_argument("--full", action="store_true", help=full)
    parser.add_argument("--seeds", type=int, help=f"how many; {SEEDS} if not given")
    parser.add_argument(
        "--epochs", type=int, nargs="+", help=f"checkpoints of each run; {' '.join(map(str, EPOCHS))} if not given"
    )
    parser.add_argument("--max-epochs", type=int, default=1000, help='bound of the run with epochs="auto"; 0: none')
    parser.add_argument("--test", action="store_true", help="score UCI tables on the test part of the split")
    options = parser.parse_args(argv)
    if options.seeds is None:
        options.seeds = FULL_SEEDS if options.full else SEEDS
    options.epochs = sorted(set(options.epochs or (FULL_EPOCHS if options.full else EPOCHS)))
    if options.seeds < 1 or options.epochs[0] < 1:
        parser.error("--seeds and --epochs must be positive")
    source = data_source(options)
    tables = {
        name: datasets.uci(name, source.data_dir, download=source.download) for name in TABLES if name in options.tasks
    }
    device, report = begin("honesty", options)

    every_run: dict[str, list[dict[str, Any]]] = {}
    for name in options.tasks:
        runs = every_run[name] = []
        for seed in range(options.seeds):
            task = table_task(tables[name], seed, on_test=options.test) if name in tables else friedman1(seed)
            if seed == 0:
                sizes = f"{len(task.x_train)} rows to train on, {len(task.x_held_out)} held out"
                print(
                    f"\n{name}: {sizes}, {task.network(0).n_weights:,} weights, y has a std of {task.y_scaling.std:.4g}"
                )
            runs += train_in_pieces(task, options.epochs, seed=seed, device=device)
            report.save("runs", every_run)
            if options.max_epochs > 0:
                runs.append(train_until_rest(task, max_epochs=options.max_epochs, seed=seed, device=device))
                report.save("runs", every_run)
        report.show(name, over_seeds(runs))
    report.show("summary", [summary_row(name, runs) for name, runs in every_run.items()])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
