"""MNIST: few images, narrow and wide networks up to 5.6 million weights, and digits that are none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.datasets import Images, Source
from benchmarks.evaluation import DEFINITIONS
from benchmarks.networks import mlp, mnist_mlp
from experiments.base import Experiment, Options, Picture, Piece, Record, Result, Table, with_error
from experiments.images import NAMES, evaluate, train
from experiments.palette import colour, new_figure, tidy

SIZES = (80, 160, 320, 640, 1280, 2560, 5120)
WIDTHS = (50, 200, 800, 2000)  # the last is the paper's network of 5.6 million weights
STEPS, MIN_EPOCHS, FEW_BATCH = 1000, 10, 64  # with few images: at least so many steps and epochs, batch size
WIDE_EPOCHS, WIDE_BATCH = 20, 128
FEW_METHODS, WIDE_METHODS = ("ours", "adamw", "ivon"), ("ours", "adamw")
WHITE = 255.0
NOTE = (
    "Mean ± standard error over seeds. AUROC: by entropy; epistemic: by what a method says it does not know. "
    "Seconds of training, on a GPU or on one core of a CPU."
)
AXES = {"NLL": "test NLL, nats", "accuracy": "test accuracy", "AUROC turned": "AUROC, digits turned by 90°"}
ALL_TEST, QUICK_TEST = 10_000, 300


class Mnist(Experiment):
    name = "mnist"
    title = "MNIST: few images, wide networks, strange digits"
    about = (
        "Few: 784-100-10 on the first 80 to 5,120 training images, at least 1,000 steps in batches of 64 for every "
        "method. Wide: 784-w-w-10 on all 60,000, 20 epochs in batches of 128; w = 2,000 has 5.6 million weights. All "
        "are tested on the whole test set, and asked to tell its digits from the same turned by 90° or inverted. "
        + DEFINITIONS
    )
    parts = ("few", "wide")
    seeds = 3
    quick_seeds = 1

    def pieces(self, options: Options) -> list[Piece]:
        planned = []
        seeds, chosen = range(self.n_seeds(options)), self.chosen_parts(options)
        for size in ((80,) if options.quick else SIZES) if "few" in chosen else ():
            epochs = max(MIN_EPOCHS, math.ceil(STEPS / math.ceil(size / FEW_BATCH)))
            own = {"part": "few", "images": size, "width": 0, "batch_size": FEW_BATCH}
            own["epochs"] = 3 if options.quick else epochs
            planned += self._of_methods(own, FEW_METHODS, seeds, cost=size, is_quick=options.quick)
        for width in ((50,) if options.quick else WIDTHS) if "wide" in chosen else ():
            own = {"part": "wide", "images": 60_000, "width": width, "batch_size": WIDE_BATCH, "epochs": WIDE_EPOCHS}
            if options.quick:
                own |= {"images": 300, "epochs": 1}
            planned += self._of_methods(own, WIDE_METHODS, seeds, cost=1e4 * width, is_quick=options.quick)
        return planned

    def _of_methods(
        self, own: dict[str, Any], methods: Sequence[str], seeds: Sequence[int], *, cost: float, is_quick: bool
    ) -> list[Piece]:
        own = {**own, "test_images": QUICK_TEST if is_quick else ALL_TEST}
        what = f"{own['images']} images" if own["part"] == "few" else f"width {own['width']}"
        return [
            Piece(f"{what}, {method}, seed {seed}", {**own, "method": method, "seed": seed}, cost=cost)
            for method in methods
            for seed in seeds
        ]

    def compute(self, parameters: Mapping[str, Any], options: Options) -> Record:
        images = Source(data_dir=options.data_dir).mnist(torch.device(options.device), limit=parameters["images"])
        n_test = parameters["test_images"]
        images = replace(images, x_test=images.x_test[:n_test], y_test=images.y_test[:n_test])
        width = parameters["width"]
        layers = mlp(784, width, width, 10) if parameters["part"] == "wide" else mnist_mlp()
        shared = {name: parameters[name] for name in ("epochs", "batch_size", "seed")}
        runs = train(parameters["method"], layers, images, **shared)
        return {"runs": [evaluate(run, images, strange_digits(images), keep=False)[0] for run in runs]}

    def summarise(self, results: Sequence[Result]) -> list[Table]:
        tables = []
        for part, key, title in (("few", "images", "Few images"), ("wide", "width", "Wide networks")):
            rows = []
            for (size, method), found in _grouped(results, part, key).items():
                row: dict[str, Any] = {key: size, "method": method, "seeds": len(found)}
                row |= {name: with_error([each[name] for each in found], 4) for name in NAMES if name != "top-5"}
                for strange in ("turned", "inverted"):
                    row[f"AUROC {strange}"] = _mean(found, f"AUROC {strange}")
                    row[f"{strange}, epistemic"] = _mean(found, f"AUROC {strange}, epistemic")
                rows.append(row | {"seconds": _seconds(found)})
            if rows:
                tables.append(Table(title, rows, NOTE))
        return tables

    def draw(self, results: Sequence[Result], folder: Path) -> list[Picture]:
        pictures = []
        for part, key, label in (("few", "images", "training images"), ("wide", "width", "width of hidden layers")):
            groups = _grouped(results, part, key)
            if not groups:
                continue
            figure = new_figure(7.4, 2.9)
            for ax, name in zip(figure.subplots(1, 3), AXES, strict=True):
                for method in dict.fromkeys(method for _, method in groups):
                    sizes = [size for size, other in groups if other == method]
                    means = [_mean(groups[size, method], name) for size in sizes]
                    ax.plot(sizes, means, "o-", ms=4, color=colour(method), label=method)
                ax.set_xscale("log")
                ticks = sorted({size for size, _ in groups})
                ax.set_xticks(ticks, labels=[str(tick) for tick in ticks], rotation=45, fontsize=8)
                ax.minorticks_off()
                tidy(ax, xlabel=label, ylabel=AXES[name])
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
            figure.savefig(folder / f"{part}.png")
            n_seeds = max(len(found) for found in groups.values())
            pictures.append(Picture(f"{part}.png", f"Means over {n_seeds} seeds; 10,000 test images."))
        return pictures


def strange_digits(images: Images) -> dict[str, Callable[[], Tensor]]:
    """The test digits turned by 90 degrees, and with black and white exchanged; flat and scaled."""
    mean, std = float(images.scaling.mean), float(images.scaling.std)

    def turned() -> Tensor:
        return images.x_test.view(-1, 28, 28).rot90(1, (1, 2)).flatten(1)

    def inverted() -> Tensor:
        return (WHITE - (images.x_test * std + mean) - mean) / std

    return {"turned": turned, "inverted": inverted}


def _grouped(results: Sequence[Result], part: str, key: str) -> dict[tuple[int, str], list[Record]]:
    """Runs of all seeds by size and method."""
    groups: dict[tuple[int, str], list[Record]] = {}
    for result in results:
        if result["part"] == part:
            for run in result["runs"]:
                where = "CPU" if result.made["device"].startswith("CPU") else "GPU"
                groups.setdefault((result[key], run["name"]), []).append({**run, "where": where})
    return groups


def _seconds(found: Sequence[Record]) -> str:
    """Means of each kind of machine, which do not compare."""
    parts = []
    for where in sorted({each["where"] for each in found}):
        own = [each for each in found if each["where"] == where]
        parts.append(f"{_mean(own, 'train_seconds'):.3g} {where}")
    return ", ".join(parts)


def _mean(found: Sequence[Record], name: str) -> float | None:
    values = [each[name] for each in found if each[name] is not None]
    return float(np.mean(values)) if values else None
