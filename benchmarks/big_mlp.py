"""5.6 million weights: 784-2000-2000-10 on MNIST, ours against AdamW in accuracy, NLL, time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.baselines import PREDICT_BATCH, train_adamw
from benchmarks.evaluation import DEFINITIONS, class_scores
from benchmarks.networks import mnist_wide
from benchmarks.options import add_data_options, begin, data_source, new_parser
from benchmarks.ours import train_ours
from benchmarks.runs import Run


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("big_mlp", __doc__)
    add_data_options(parser)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, help="use the first N training images only")
    parser.add_argument("--site-store", default="auto", help="where our sites live: auto, device, host or disk")
    parser.add_argument("--site-dtype", help="float32, float64 or bfloat16; the network's own if not given")
    options = parser.parse_args(argv)
    device, report = begin("big_mlp", options)
    images = data_source(options).mnist(device, limit=options.limit)
    x, y = images.x_train, images.y_train
    shared: dict[str, Any] = {"epochs": options.epochs, "batch_size": options.batch_size}
    print(DEFINITIONS)

    train_adamw(mnist_wide(), x[:512], y[:512], epochs=1, batch_size=128)  # loads the device's libraries
    reference = train_adamw(mnist_wide(), x, y, seed=options.seeds[0], **shared)
    rows: list[dict[str, Any]] = []
    histories: dict[str, Any] = {}

    def add(run: Run, seed: int) -> None:
        scores = class_scores(run.predict(images.x_test), images.y_test)
        rows.append({"method": run.name, "seed": str(seed), **scores, **run.cost(reference)})
        histories[f"{run.name}, seed {seed}"] = list(run.history)
        report.save("histories", histories)
        report.show("results", rows)

    add(reference, options.seeds[0])
    store = {"site_store": options.site_store, "site_dtype": options.site_dtype}
    for seed in options.seeds:
        run, _ = train_ours(mnist_wide(), x, y, seed=seed, predict_batch=PREDICT_BATCH, **shared, **store)
        add(run, seed)


if __name__ == "__main__":
    main()
