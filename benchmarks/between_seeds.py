"""The yardstick for epistemic variance: does a network's own equal the variance between networks?

One network is trained with several seeds, which decide where its means start, which examples share a batch, and the
order of visits. What it cannot know from these data differs from seed to seed, so the variance of the outputs' means
between seeds (unbiased) is what the mean of `epistemic_var` should be near, on familiar inputs and on unfamiliar ones.
And unfamiliar inputs should have more of it: the AUROC of a score is the chance that it is higher for an unfamiliar
input than for a familiar one.

Familiar: the last training images, on which no network was trained. Unfamiliar: the same ones turned by 90 degrees, and
with dark and bright exchanged; with `--svhn`, SVHN's test images too (not for choosing variants).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import bayesmp as bmp
from bayesmp.layers.base import Layer
from benchmarks.baselines import PREDICT_BATCH
from benchmarks.datasets import Images, Source
from benchmarks.evaluation import class_scores, entropy, hold_out, separation
from benchmarks.networks import cifar10_cnn, mnist_cnn
from benchmarks.options import add_data_options, begin, data_source, new_parser
from benchmarks.ours import train_ours


@dataclass(frozen=True, kw_only=True)
class Task:
    """A network and its data; the numbers are defaults of the options of the same name."""

    layers: Callable[[], list[Layer]]
    load: Callable[[Source, torch.device], Images]
    epochs: int
    batch_size: int
    seeds: int
    limit: int | None
    hold_out: int


TASKS = {
    "mnist-cnn": Task(
        layers=mnist_cnn,
        load=partial(Source.mnist, flat=False),
        epochs=15,
        batch_size=64,
        seeds=5,
        limit=1280,
        hold_out=2000,
    ),
    "cifar10": Task(
        layers=cifar10_cnn, load=Source.cifar10, epochs=25, batch_size=128, seeds=3, limit=None, hold_out=5000
    ),
}

# What may tell unfamiliar inputs: prediction -> (n,), or None for a release whose predictions do not have it
SCORES: dict[str, Callable[[Any], Any]] = {
    "AUROC epistemic_var": lambda own: own.epistemic_var.sum(1),
    "AUROC epistemic": lambda own: getattr(own, "epistemic", None),
    "AUROC entropy": lambda own: entropy(own.probs),
}


def image_sets(images: Images) -> dict[str, Tensor]:
    """The held-out images, which are familiar, and what can be made of them that is not."""
    x = images.x_test
    ends = float(images.x_train.min()) + float(images.x_train.max())
    return {"familiar": x, "turned": torch.rot90(x, 1, (2, 3)), "inverted": ends - x}


def compare(predictions: Mapping[str, Sequence[bmp.ClassPrediction]], y: Tensor) -> list[dict[str, Any]]:
    """One row per set of images: variances over seeds, images and outputs, and the mean over seeds of each score.

    Args:
        predictions: for each set of images, one prediction per seed; the first set is the familiar one.
        y: labels of the familiar images.
    """
    familiar = next(iter(predictions.values()))
    rows = []
    for name, by_seed in predictions.items():
        own_var = _mean([float(own.epistemic_var.double().mean()) for own in by_seed])
        between = float(torch.stack([own.mean.double() for own in by_seed]).var(0).mean())
        row: dict[str, Any] = {"images": name, "n": len(by_seed[0].mean)}
        row |= {"epistemic_var": own_var, "between seeds": between, "ratio": own_var / between}
        if by_seed is familiar:
            scores = [class_scores(own.probs, y) for own in by_seed]
            row |= {key: _mean([found[key] for found in scores]) for key in ("accuracy", "NLL")}
        else:
            for key, score in SCORES.items():
                if score(by_seed[0]) is not None:
                    pairs = zip(map(score, familiar), map(score, by_seed), strict=True)
                    row[key] = _mean([separation(known, new) for known, new in pairs])
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("between_seeds", __doc__)
    add_data_options(parser)
    parser.add_argument("--task", choices=TASKS, default="mnist-cnn")
    by_task = "the task's if not given: " + ", ".join(f"{{}} for {name}" for name in TASKS)

    def add(name: str, meaning: str) -> None:
        values = [getattr(task, name) or "all" for task in TASKS.values()]
        parser.add_argument("--" + name.replace("_", "-"), type=int, help=f"{meaning}; {by_task.format(*values)}")

    add("epochs", "of training")
    add("batch_size", "examples that share a site")
    add("seeds", "how many")
    add("limit", "use the first N training images only")
    add("hold_out", "use the last N training images as the familiar ones")
    parser.add_argument("--svhn", action="store_true", help="also SVHN's test images as unfamiliar ones, for cifar10")
    options = parser.parse_args(argv)
    task = TASKS[options.task]
    for name in ("epochs", "batch_size", "seeds", "limit", "hold_out"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(task, name))
    if options.seeds < 2:
        parser.error(f"a variance between seeds needs at least 2 of them, got {options.seeds}")
    if options.svhn and options.task != "cifar10":
        parser.error("--svhn goes with --task cifar10")

    device, report = begin("between_seeds", options)
    source = data_source(options)
    images = hold_out(task.load(source, device), options.hold_out, limit=options.limit)
    sets = image_sets(images)
    if options.svhn:
        sets["SVHN"] = source.svhn_test(images.scaling)
    print(f"{options.task}: {len(images.x_train):,} training images, {options.epochs} epochs, {options.seeds} seeds")

    predictions: dict[str, list[bmp.ClassPrediction]] = {name: [] for name in sets}
    runs: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        run, network = train_ours(
            task.layers(),
            images.x_train,
            images.y_train,
            seed=seed,
            epochs=options.epochs,
            batch_size=options.batch_size,
        )
        for name, x in sets.items():
            predictions[name].append(network.predict(x, batch_size=PREDICT_BATCH))
        scores = class_scores(predictions["familiar"][-1].probs, images.y_test)
        runs.append({"seed": seed, **scores, "seconds": run.seconds, "history": list(run.history)})
        report.save("runs", runs)
        print(f"  seed {seed}: NLL {scores['NLL']:.4f}, {run.seconds:.0f} s", flush=True)
    report.show("results", compare(predictions, images.y_test))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
