"""Nothing diverges: seeds x tasks x batch sizes, with the library's defaults everywhere.

Final and worst values are the training history's: each batch is predicted just before its visit. "worst" is the worst
epoch after the first quarter of the run, over all seeds. A run has diverged if a belief is not finite or if it ends no
better than a constant prediction.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import bayesmp as bmp
from bayesmp.heads.base import Head
from bayesmp.layers.base import Layer
from benchmarks import datasets
from benchmarks.datasets import Source
from benchmarks.evaluation import all_finite
from benchmarks.networks import mnist_cnn, mnist_mlp, sine_mlp
from benchmarks.options import add_data_options, begin, data_source, new_parser
from benchmarks.sine import NOISE_VAR
from benchmarks.timing import measured

SINE_DEPTHS = (2, 3, 4, 5, 6)
TASKS = (*(f"sine-{depth}" for depth in SINE_DEPTHS), "mnist640", "mnist-cnn")


@dataclass(frozen=True, eq=False)
class Task:
    """Data, a network, and the metric of its history: lower is better, a constant prediction has `constant`."""

    x: Tensor
    y: Tensor
    layers: Callable[[], list[Layer]]
    head: Callable[[], Head]
    metric: str
    constant: float


def load_task(name: str, source: Source, device: torch.device) -> Task:
    if name.startswith("sine-"):
        x, y = (torch.as_tensor(part, dtype=torch.float32) for part in datasets.sine(200))
        layers = partial(sine_mlp, int(name.removeprefix("sine-")))
        return Task(x, y, layers, partial(bmp.Regression, NOISE_VAR), "rmse", float(y.std()))
    is_cnn = name == "mnist-cnn"
    images = source.mnist(device, limit=2560 if is_cnn else 640, flat=not is_cnn)
    return Task(images.x_train, images.y_train, mnist_cnn if is_cnn else mnist_mlp, bmp.Argmax, "nll", math.log(10.0))


def train_task(task: Task, *, seed: int, batch_size: int, epochs: int, device: torch.device) -> dict[str, Any]:
    network = bmp.Network(task.layers(), task.head(), seed=seed, input_shape=task.x.shape[1:]).to(device)
    trainer = bmp.Trainer(network, task.x, task.y, batch_size=batch_size, seed=seed)
    with measured(device) as cost, contextlib.suppress(RuntimeError):  # a run that breaks off counts as diverged
        trainer.run(epochs, progress=False)
    history = trainer.history
    values = history.column(task.metric) + [math.nan] * (epochs - trainer.n_epochs)
    finite = all_finite([network.marginal.tau, network.marginal.rho]) and all(map(math.isfinite, values))
    rejected = history.column("rejected_share")
    return {
        "seed": seed,
        "final": values[-1],
        "worst": max(values[len(values) // 4 :]),
        "rejected": sum(rejected) / max(1, len(rejected)),
        "finite": finite,
        "diverged": not (finite and values[-1] < task.constant),
        "seconds": cost.seconds,
        "values": values,
    }


def summary(name: str, task: Task, batch_size: int, epochs: int, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row of the table: all seeds of a task and batch size."""
    n = len(runs)
    return {
        "task": name,
        "batch": batch_size,
        "epochs": epochs,
        "seeds": n,
        "metric": task.metric,
        "constant": task.constant,
        "final, mean": sum(run["final"] for run in runs) / n,
        "final, worst seed": max(run["final"] for run in runs),
        "worst epoch": max(run["worst"] for run in runs),
        "rejected %": 100.0 * sum(run["rejected"] for run in runs) / n,
        "not finite": sum(not run["finite"] for run in runs),
        "diverged": sum(run["diverged"] for run in runs),
        "s/run": sum(run["seconds"] for run in runs) / n,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("robustness", __doc__)
    add_data_options(parser)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16, 128, 0], help="0: all examples at once")
    parser.add_argument("--visits", type=int, default=120, help="visits of a run; its epochs follow, see --min-epochs")
    parser.add_argument("--min-epochs", type=int, default=4)
    parser.add_argument(
        "--cnn-epochs", type=int, default=6, help="of mnist-cnn, whose examples are dear, in place of visits"
    )
    options = parser.parse_args(argv)
    device, report = begin("robustness", options)
    source = data_source(options)

    rows: list[dict[str, Any]] = []
    details: dict[str, list[dict[str, Any]]] = {}
    for name in options.tasks:
        task = load_task(name, source, device)
        for wanted in options.batch_sizes:
            batch_size = min(wanted or len(task.x), len(task.x))
            epochs = max(options.min_epochs, options.visits // math.ceil(len(task.x) / batch_size))
            epochs = options.cnn_epochs if name == "mnist-cnn" else epochs
            runs = [
                train_task(task, seed=seed, batch_size=batch_size, epochs=epochs, device=device)
                for seed in range(options.seeds)
            ]
            rows.append(summary(name, task, batch_size, epochs, runs))
            details[f"{name}, batch {batch_size}"] = runs
            report.save("runs", details)
            report.save("summary", rows)
            print(f"  {name}, batch {batch_size}: final {rows[-1]['final, mean']:.4g}", flush=True)
    report.show("summary", rows)
    print(f"diverged: {sum(row['diverged'] for row in rows)} of {sum(row['seeds'] for row in rows)} runs")


if __name__ == "__main__":
    main()
