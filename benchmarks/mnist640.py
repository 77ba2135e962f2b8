"""Sequential against parallel on 640 MNIST images, 784-100-10, argmax, batches of 128: same predictions, less time.

Both run to where they have settled: the first checkpoint from which the test NLL stays within SETTLED of the last one.
The parallel schedule without shares of sums (`joint=False`) is shown beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import bayesmp as bmp
from benchmarks.datasets import Images
from benchmarks.evaluation import class_scores
from benchmarks.networks import mnist_mlp
from benchmarks.options import add_data_options, begin, data_source, new_parser
from benchmarks.ours import without_link
from benchmarks.tables import Report
from benchmarks.timing import measured

SETTLED = 0.02  # in NLL: the distance that the two schedules are allowed to have
COLUMNS = ("accuracy", "NLL", "accuracy, no link", "NLL, no link")


def train(
    images: Images, schedule: str, checkpoints: Sequence[int], batch_size: int, seed: int, *, joint: bool | None
) -> list[dict[str, Any]]:
    """Test scores and seconds so far at each checkpoint (in epochs) of one run."""
    device = images.x_train.device
    network = bmp.Network(mnist_mlp(), bmp.Argmax(), seed=seed).to(device)
    rows: list[dict[str, Any]] = []
    trainer, seconds = None, 0.0
    for epoch in checkpoints:
        with measured(device) as cost:
            trainer = trainer or bmp.Trainer(
                network,
                images.x_train,
                images.y_train,
                batch_size=batch_size,
                schedule=schedule,
                seed=seed,
                joint=joint,
            )
            trainer.run(epoch - trainer.n_epochs, progress=False)
        seconds += cost.seconds
        rows.append({"schedule": schedule, "seed": seed, "epoch": epoch, **score(network, images), "seconds": seconds})
        print("  " + ", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return rows


def score(network: bmp.Network, images: Images) -> dict[str, float]:
    """Test accuracy and NLL with the head's own predictive, and with the paper's from the same outputs."""
    prediction = network.predict(images.x_test)
    linked = class_scores(prediction.probs, images.y_test)
    plain = class_scores(without_link(prediction), images.y_test)
    return dict(zip(COLUMNS, (linked["accuracy"], linked["NLL"], plain["accuracy"], plain["NLL"]), strict=True))


def settled_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first row from which both NLLs stay within SETTLED of the last row's."""
    for k, row in enumerate(rows):
        if all(abs(later[name] - rows[-1][name]) <= SETTLED for later in rows[k:] for name in ("NLL", "NLL, no link")):
            return row
    return rows[-1]


def compare(sequential: Sequence[dict[str, Any]], parallel: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Last rows of both, their differences, and the ratio of the times to where each had settled."""
    last_s, last_p = sequential[-1], parallel[-1]
    settled_s, settled_p = settled_row(sequential), settled_row(parallel)
    rows = [
        {
            "schedule": row["schedule"],
            **{name: row[name] for name in COLUMNS},
            "settled at epoch": "not yet" if settled is row else settled["epoch"],
        }
        | {"settled after s": settled["seconds"]}
        for row, settled in ((last_s, settled_s), (last_p, settled_p))
    ]
    gap = {name: abs(last_s[name] - last_p[name]) for name in COLUMNS}
    rows.append({"schedule": "difference; time ratio", **gap, "settled after s": None})
    rows[-1]["settled after s"] = settled_s["seconds"] / settled_p["seconds"]
    return rows


def show_checks(report: Report, rows: Sequence[dict[str, Any]]) -> None:
    gap = rows[-1]
    checks = [
        {"check": "NLL within 0.02", "found": gap["NLL"], "met": gap["NLL"] <= 0.02},
        {"check": "NLL, no link, within 0.02", "found": gap["NLL, no link"], "met": gap["NLL, no link"] <= 0.02},
        {"check": "accuracy within 0.015", "found": gap["accuracy"], "met": gap["accuracy"] <= 0.015},
        {"check": "30 times faster", "found": gap["settled after s"], "met": gap["settled after s"] >= 30},
    ]
    report.show("checks", checks)


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("mnist640", __doc__)
    add_data_options(parser)
    parser.add_argument("--limit", type=int, default=640, help="number of training images")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--sequential", type=int, nargs="+", default=[1, 2, 4, 6, 8], help="checkpoints in epochs")
    parser.add_argument(
        "--parallel", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], help="checkpoints in epochs"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    device, report = begin("mnist640", options)
    images = data_source(options).mnist(device, limit=options.limit)
    torch.manual_seed(options.seed)
    print("test scores with the head's own predictive, and with the paper's (no link) from the same outputs")
    found = {}
    runs = {"parallel": None, "parallel, joint=False": False, "sequential": None}
    for name, joint in runs.items():
        schedule = name.split(",")[0]
        checkpoints = sorted(getattr(options, schedule))
        found[name] = train(images, schedule, checkpoints, options.batch_size, options.seed, joint=joint)
        report.show(name, found[name])
    rows = compare(found["sequential"], found["parallel"])
    report.show("comparison", rows)
    show_checks(report, rows)


if __name__ == "__main__":
    main()
