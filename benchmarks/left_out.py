"""Does leave-one-out tell what rows that were never seen would? The same rows judged both ways.

The training part of a table's first split is cut into folds. A network is trained on all but one of them, with
epochs="auto", and says of each of its rows how surprising it is with that row left out, without training again; the
fold that is left tells how surprising it really is. Over all folds every row is judged both ways, by networks of as
much data, so the difference is not one of easy and hard rows, which on a tenth of a small table is far larger than what
is looked for. Its standard error is that of the rows' own differences.

friedman1 and MNIST have data to spare: a seed has rows to train on, and others that judge. Nothing here looks at a
test part. x and y are standardised by what is trained on; NLL in these units.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

import bayesmp as bmp
from benchmarks import datasets
from benchmarks.datasets import Images
from benchmarks.honesty import Task, friedman1
from benchmarks.networks import mnist_mlp
from benchmarks.options import add_data_options, begin, data_source, new_parser
from benchmarks.timing import measured

TABLES = ("boston", "concrete", "energy", "wine_red", "yacht")
TASKS = (*TABLES, "friedman1", "mnist")
MNIST = {"images": 2560, "judges": 5000}

Rows = NDArray[np.int64]


def folds(n: int, n_folds: int, seed: int) -> list[Rows]:
    """The rows 0 ... n - 1 in so many parts of nearly the same size, at random."""
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(n), n_folds)]


def fold_tasks(x: NDArray[np.float64], y: NDArray[np.float64], parts: Sequence[Rows]) -> Iterator[tuple[Rows, Task]]:
    """For each part the rows that are trained on, in their order, and the task that holds the part out."""
    for part in parts:
        rest = np.setdiff1d(np.arange(len(x)), part)
        yield rest, Task.of((x[rest], y[rest]), (x[part], y[part]), hidden=(50,))


def judge(task: Task, *, seed: int, max_epochs: int) -> tuple[Tensor, Tensor, bmp.History]:
    """Leave-one-out NLL of the rows trained on, NLL of those held out, and the history of the run."""
    network = task.network(seed)
    trainer = bmp.Trainer(network, task.x_train, task.y_train, seed=seed)
    return (*_judge(trainer, task.x_held_out, task.y_held_out, max_epochs=max_epochs), trainer.history)


def _judge(trainer: bmp.Trainer, x: Tensor, y: Tensor, *, max_epochs: int) -> tuple[Tensor, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the row says where it stopped
        trainer.run("auto", max_epochs=max_epochs, progress=False)
    left_out = trainer.influence(torch.arange(len(trainer.x))).loo_nll
    return left_out.double(), -trainer.network.predict(x).log_prob(y).flatten().cpu().double()


def table_row(name: str, table: datasets.Table, *, n_folds: int, seed: int, max_epochs: int) -> dict[str, Any]:
    """Both judgements of all rows of a table's training part."""
    split = table.split(0)
    n = len(split.x_train)
    parts = folds(n, n_folds, seed)
    left_out, held_out = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    epochs, seconds = [], 0.0
    tasks = zip(parts, fold_tasks(split.x_train, split.y_train, parts), strict=True)
    for part, (rest, task) in tqdm(tasks, total=n_folds, desc=name, leave=False):
        with measured(torch.device("cpu")) as cost:
            without, fresh, history = judge(task, seed=seed, max_epochs=max_epochs)
        left_out[rest] += without / (n_folds - 1)  # every row is trained on by all folds but its own
        held_out[part] = fresh
        epochs.append(len(history))
        seconds += cost.seconds
    row = {"task": name, "rows": n, "seed": seed, **compare(left_out, held_out)}
    return row | {"epochs": f"{min(epochs)} to {max(epochs)}", "seconds": seconds}


def compare(left_out: Tensor, held_out: Tensor) -> dict[str, float]:
    """Means of two judgements of the same rows, and what lies between them."""
    gap = left_out - held_out
    return {
        "leave-one-out NLL": float(left_out.mean()),
        "held-out NLL": float(held_out.mean()),
        "difference": float(gap.mean()),
        "standard error": float(gap.std()) / math.sqrt(len(gap)),
    }


def apart(left_out: Tensor, held_out: Tensor) -> dict[str, float]:
    """The same where other rows judge."""
    found = {"leave-one-out NLL": float(left_out.mean()), "held-out NLL": float(held_out.mean())}
    found["difference"] = found["leave-one-out NLL"] - found["held-out NLL"]
    error = sum(float(part.var()) / len(part) for part in (left_out, held_out))
    return found | {"standard error": math.sqrt(error)}


def friedman_row(seed: int, *, max_epochs: int) -> dict[str, Any]:
    task = friedman1(seed, n_held_out=5000)
    with measured(torch.device("cpu")) as cost:
        left_out, held_out, history = judge(task, seed=seed, max_epochs=max_epochs)
    row = {"task": "friedman1", "rows": len(task.x_train), "seed": seed, **apart(left_out, held_out)}
    return row | {"epochs": str(len(history)), "seconds": cost.seconds}


def mnist_row(images: Images, seed: int, *, max_epochs: int) -> dict[str, Any]:
    """784-100-10 on some training images, judged by others."""
    order = torch.randperm(len(images.x_train), generator=torch.Generator().manual_seed(seed))
    own, judges = order[: MNIST["images"]], order[MNIST["images"] :][: MNIST["judges"]]
    network = bmp.Network(mnist_mlp(), bmp.Argmax(), seed=seed)
    with measured(torch.device("cpu")) as cost:
        trainer = bmp.Trainer(network, images.x_train[own], images.y_train[own], seed=seed)
        left_out, held_out = _judge(trainer, images.x_train[judges], images.y_train[judges], max_epochs=max_epochs)
    row = {"task": "mnist", "rows": len(own), "seed": seed, **apart(left_out, held_out)}
    return row | {"epochs": str(len(trainer.history)), "seconds": cost.seconds}


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("left_out", __doc__)
    add_data_options(parser)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--folds", type=int, default=10, help="of a table")
    parser.add_argument("--seeds", type=int, default=1, help="how many; each cuts the folds anew")
    parser.add_argument("--max-epochs", type=int, default=1000)
    options = parser.parse_args(argv)
    if options.folds < 2 or options.seeds < 1 or options.max_epochs < 1:
        parser.error("--folds must be at least 2, --seeds and --max-epochs positive")
    source = data_source(options)
    names = [name for name in TABLES if name in options.tasks]
    tables = {name: datasets.uci(name, source.data_dir, download=source.download) for name in names}
    images = source.mnist(torch.device("cpu")) if "mnist" in options.tasks else None
    _, report = begin("left_out", options)
    rows = []
    for name in options.tasks:
        for seed in range(options.seeds):
            if name in tables:
                row = table_row(name, tables[name], n_folds=options.folds, seed=seed, max_epochs=options.max_epochs)
            elif images is not None and name == "mnist":
                row = mnist_row(images, seed, max_epochs=options.max_epochs)
            else:
                row = friedman_row(seed, max_epochs=options.max_epochs)
            rows.append(row)
            report.save("rows", rows)
            print(f"{name}, seed {seed}: {row['difference']:+.3f} +- {row['standard error']:.3f}", flush=True)
    report.show("left out and never seen", rows)


if __name__ == "__main__":
    main()
