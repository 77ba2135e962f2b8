"""What a whole run costs: `Trainer.run` over AdamW's epochs, and how much of it are refreshes of the belief.

Networks of labels, the same batches and the same number of epochs on one thread. Ours is scored on rows that it was not
trained on: made-up ones, or the last 10,000 of MNIST's training images; `gap` is the leave-one-out NLL at the end less
that NLL.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

import bayesmp as bmp
from benchmarks.baselines import train_adamw
from benchmarks.cpu import CLOCKS
from benchmarks.datasets import Images, Source
from benchmarks.evaluation import class_scores, hold_out
from benchmarks.networks import mlp
from benchmarks.options import add_data_options, begin, data_source, new_parser
from benchmarks.stress_lines import class_centres
from benchmarks.tables import mean_row

HELD_OUT = 10_000  # of MNIST's training images
BATCH_SIZE = 128


def made_up(source: Source, device: torch.device, n: int = 1500) -> Images:
    """Ten normal classes in twelve columns."""
    from bayesmp.data import Scaling

    split = class_centres(0, 10, n, columns=12)
    scaling = Scaling.fit(split.x_train, per_feature=True)
    y_train, y_test = torch.as_tensor(split.y_train, device=device), torch.as_tensor(split.y_test)
    return Images(
        torch.as_tensor((split.x_train - scaling.mean) / scaling.std, device=device).float(),
        y_train,
        torch.as_tensor((split.x_test - scaling.mean) / scaling.std).float(),
        y_test,
        scaling,
    )


def some_mnist(n: int) -> Callable[[Source, torch.device], Images]:
    """The first images, and the last ones of the training part to be scored on."""
    return lambda source, device: hold_out(source.mnist(device), HELD_OUT, limit=n)


CASES: dict[str, tuple[tuple[int, ...], Callable[[Source, torch.device], Images]]] = {  # widths, data
    "12-40-40-10": ((12, 40, 40, 10), made_up),
    "784-100-10, 2,048 rows": ((784, 100, 10), some_mnist(2048)),
    "784-100-10, 20,480 rows": ((784, 100, 10), some_mnist(20_480)),
}


def compare(
    widths: Sequence[int],
    images: Images,
    *,
    epochs: int,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """The row of one network: seconds of both, in one process, and our scores."""
    x, y = images.x_train, images.y_train
    train_adamw(mlp(*widths), x[:1], y[:1], epochs=1, batch_size=1)  # imports what it needs
    network = bmp.Network(mlp(*widths), bmp.Argmax(), seed=seed)
    trainer = bmp.Trainer(network, x, y, batch_size=BATCH_SIZE, seed=seed)
    started, begun = clock(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the row says what came out
        history = trainer.run(epochs, progress=False)
    whole = time.perf_counter() - begun
    ours, started = clock() - started, clock()
    train_adamw(mlp(*widths), x, y, epochs=epochs, batch_size=BATCH_SIZE, seed=seed)
    theirs = clock() - started
    in_refreshes = [record.refresh_seconds for record in history]
    scores = class_scores(network.predict(images.x_test).probs, images.y_test)
    left_out = history.loo_nll[-1]
    return {
        "seed": seed,
        "seconds": ours,
        "AdamW's": theirs,
        "ratio": ours / theirs,
        "in refreshes": sum(in_refreshes) / whole,
        "refreshes": sum(seconds > 0.0 for seconds in in_refreshes),
        "accuracy": scores["accuracy"],
        "NLL": scores["NLL"],
        "gap": left_out - scores["NLL"],
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("end_to_end", __doc__)
    parser.set_defaults(device="cpu", threads=1)
    add_data_options(parser)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--clock", default="wall", choices=list(CLOCKS), help="cpu: time of the process, beside others")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args(argv)
    if options.epochs < 1 or options.seeds < 1:
        parser.error("--epochs and --seeds must be positive")
    device, report = begin("end_to_end", options)
    clock = CLOCKS[options.clock]
    source, means = data_source(options), []
    for name in options.cases:
        widths, load = CASES[name]
        images = load(source, device)
        rows = [compare(widths, images, epochs=options.epochs, seed=seed, clock=clock) for seed in range(options.seeds)]
        report.show(name, rows)
        means.append({"case": name} | {key: value for key, value in mean_row(rows).items() if key != "seed"})
    report.show("means", means)


if __name__ == "__main__":
    main()
