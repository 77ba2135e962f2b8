"""How well do small regressions fit where noise is taken for Gaussian and the same everywhere?

One hidden layer of 50 units, learned noise without tails, epochs="auto". Friedman's function with 300 and 100 rows
(noise std 1, fresh data for each seed), and UCI tables: seed k takes the standard split k and holds out a tenth of
its training part, or, with --test, is scored on its test part (not for choosing variants). NLL in standard deviations
of the training targets; beside it the leave-one-out NLL that training told, and how many targets 90 % intervals hold.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

import bayesmp as bmp
from bayesmp import metrics
from benchmarks import datasets
from benchmarks.evaluation import regression_scores
from benchmarks.honesty import COVERAGE, LEVEL, Task, friedman1, table_task
from benchmarks.networks import mlp
from benchmarks.options import add_data_options, begin, data_source, new_parser
from benchmarks.tables import mean_row
from benchmarks.timing import measured

MADE = {"friedman1-300": 300, "friedman1-100": 100}
TABLES = ("boston", "concrete", "yacht", "energy")
HIDDEN = 50


def score(task: Task, seed: int, device: torch.device) -> dict[str, Any]:
    """The row of one network."""
    head = bmp.Regression("learn", tails="gaussian")
    network = bmp.Network(mlp(task.x_train.shape[1], HIDDEN, 1), head, seed=seed).to(device)
    with measured(device) as cost, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the row says what came out
        history = bmp.fit(network, task.x_train, task.y_train, seed=seed, progress=False)
    prediction = network.predict(task.x_held_out)
    scores = regression_scores(prediction, task.y_held_out)
    held = metrics.interval_coverage(*prediction.interval(LEVEL), task.y_held_out.to(prediction.mean))
    noise = float(prediction.noise_var) ** 0.5 / task.noise_std if task.noise_std else None
    left_out = history.loo_nll[-1]
    row = {"seed": seed, **scores, "leave-one-out NLL": left_out, "gap": left_out - scores["NLL"], COVERAGE: held}
    return row | {"noise std / true": noise, "epochs": len(history), "seconds": cost.seconds}


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("gaussian", __doc__)
    add_data_options(parser)
    tasks = [*MADE, *TABLES]
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=tasks)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--test", action="store_true", help="score UCI tables on the test part of the split")
    options = parser.parse_args(argv)
    if options.seeds < 1:
        parser.error("--seeds must be positive")
    source = data_source(options)
    tables = {
        name: datasets.uci(name, source.data_dir, download=source.download) for name in TABLES if name in options.tasks
    }
    device, report = begin("gaussian", options)
    means = []
    for name in options.tasks:
        rows = []
        for seed in range(options.seeds):
            made = friedman1(seed, n_train=MADE[name]) if name in MADE else None
            rows.append(score(made or table_task(tables[name], seed, on_test=options.test), seed, device))
        report.show(name, rows)
        means.append({"task": name} | {key: value for key, value in mean_row(rows).items() if key != "seed"})
    report.show("means", means)


if __name__ == "__main__":
    main()
