"""CIFAR-10 with the paper's network: ours and what a user would pick instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import bayesmp as bmp
from bayesmp import metrics
from benchmarks.datasets import Images, Source
from benchmarks.evaluation import DEFINITIONS, class_scores, entropy, mixture, separation
from benchmarks.networks import cifar10_cnn
from experiments.base import Experiment, Options, Picture, Piece, Record, Result, Table, mean_and_error
from experiments.images import NAMES, evaluate, train
from experiments.palette import colour, new_figure, tidy

N_MEMBERS = 4  # of AdamW's ensemble
METHODS = ("ours", "adamw", "adamw-mended", "mc-dropout", "ivon", "ivon-authors", "laplace-last", "laplace-kron")
OUT = "SVHN"
FULL: dict[str, Any] = {
    "network": "paper",
    "images": 50_000,
    "test_images": 10_000,
    "unfamiliar": 26_032,
    "epochs": 25,
    "batch_size": 128,
}
QUICK: dict[str, Any] = {"network": "small", "images": 200, "test_images": 100, "unfamiliar": 100, "epochs": 2}
QUICK_LAYERS = [bmp.Conv2d(3, 4, 8, stride=8), bmp.LeakyReLU(0.1), bmp.Flatten(), bmp.Linear(64, 10)]
CURVES = {  # in pictures: name of the method -> how the name of its run begins
    "ours": "ours",
    "AdamW": "AdamW",
    "AdamW, temperature": "AdamW, temperature",
    "AdamW, ensemble": "AdamW, ensemble",
    "MC dropout": "MC dropout",
    "IVON": "IVON, ",
    "Laplace, last layer": "Laplace, last",
    "Laplace": "Laplace, all",
}

# accuracy, top-5, NLL, the paper's own calibration error, Brier score, OOD-AUROC
PUBLISHED = {
    "the paper: AdamW": (0.783, 0.984, 1.736, 0.046, 0.380, 0.792),
    "the paper: IVON at the mean": (0.772, 0.983, 1.494, 0.041, 0.387, 0.819),
    "the paper: IVON, 100 samples": (0.772, 0.983, 1.316, 0.035, 0.370, 0.808),
    "the paper: message passing": (0.773, 0.977, 0.997, 0.029, 0.361, 0.810),
}
PUBLISHED_COLUMNS = ("accuracy", "top-5", "NLL", "ECE2", "Brier", f"AUROC {OUT}")

Floats = NDArray[np.float64]


@lru_cache(maxsize=1)
def load_images(data_dir: Path | None, device: str, limit: int, test_limit: int) -> tuple[Images, Tensor]:
    """CIFAR-10 and SVHN's test images; decoding takes long, so they are kept for the next piece of this process."""
    source = Source(data_dir=data_dir)
    images = source.cifar10(torch.device(device), limit=limit, test_limit=test_limit)
    return images, source.svhn_test(images.scaling)


class Cifar10(Experiment):
    name = "cifar10"
    title = "CIFAR-10 with the paper's network"
    about = (
        "890,410 weights, 25 epochs in batches of 128, for every method; on all 50,000 images, but for the two rows "
        "that hold 5,000 out. Unfamiliar images are the test set of SVHN. AdamW: lr 1e-3, weight decay 1e-4 (with "
        "dropout 0.01), cosine. " + DEFINITIONS
    )
    parts = METHODS
    seeds = 3
    quick_seeds = 1

    def pieces(self, options: Options) -> list[Piece]:
        own = dict(FULL)
        chosen = self.chosen_parts(options)
        if options.quick:
            own |= QUICK
            chosen = options.parts or ("ours", "adamw", "adamw-mended")
        n_seeds = {"ours": self.n_seeds(options), "adamw": 2 if options.quick else N_MEMBERS}
        return [
            Piece(f"{method}, seed {seed}", {**own, "method": method, "seed": seed})
            for method in chosen
            for seed in range(n_seeds.get(method, 1))
        ]

    def compute(self, parameters: Mapping[str, Any], options: Options) -> Record:
        images, svhn = load_images(options.data_dir, options.device, parameters["images"], parameters["test_images"])
        unfamiliar = svhn[: parameters["unfamiliar"]]
        layers = QUICK_LAYERS if parameters["network"] == "small" else cifar10_cnn()
        shared = {name: parameters[name] for name in ("epochs", "batch_size", "seed")}
        found: Record = {"runs": [], "y": images.y_test.numpy().astype(np.uint8)}
        for k, run in enumerate(train(parameters["method"], layers, images, **shared)):
            record, kept = evaluate(run, images, {OUT: lambda: unfamiliar}, keep=True)
            found["runs"].append(record)
            found |= {f"{name} {k}": values for name, values in kept.items()}
        return found

    def summarise(self, results: Sequence[Result]) -> list[Table]:
        rows = all_rows(results)
        reference = next((row["train_seconds"] for row in rows if row["name"] == "AdamW"), None)
        shown = []
        for row in rows:
            cells: dict[str, Any] = {"method": row["name"], "runs": row["n"]}
            cells |= {name: row[name] for name in (*NAMES, f"AUROC {OUT}", f"AUROC {OUT}, epistemic")}
            cells[f"AUROC {OUT}, variance"] = row.get(f"AUROC {OUT}, variance")
            cells["seconds"] = row["train_seconds"]
            cells["predicting"] = row.get("predict_seconds")
            cells["over AdamW"] = None if not reference else row["train_seconds"] / reference
            shown.append(cells)
        for name, values in PUBLISHED.items():
            shown.append({"method": name, **dict(zip(PUBLISHED_COLUMNS, values, strict=True))})
        note = (
            "Means over runs; ensembles average probabilities. Rows of the paper are published; its calibration error "
            "is ECE2. AUROC: by entropy; epistemic: by what a method says it does not know (ensembles and samples: "
            "mutual information, with that of each member where it tells one); variance: by the epistemic variance of "
            "the outputs. Seconds of training, a Laplace row without its own pass; predicting: seconds for "
            "all test images, for Laplace of all layers by our own form of the package's equations, which need not its "
            "memory. IVON: lr 0.1 and its package's defaults, as in the paper; its authors' settings: lr 0.2, "
            "hess_init 0.5, weight decay 2e-4. Temperature and best epoch "
            "are chosen on a tenth of the training images that these two do not train on."
        )
        return [Table(self.title, shown, note)]

    def draw(self, results: Sequence[Result], folder: Path) -> list[Picture]:
        runs = all_runs(results)
        found = {name: [run for run in runs if run["name"].startswith(begins)] for name, begins in CURVES.items()}
        chosen = {name: own[0] for name, own in found.items() if own}
        figure = new_figure(8.2, 3.1)
        left, middle, right = figure.subplots(1, 3)
        for name, member in chosen.items():
            probs, probs_out, y = member["probs"], member["probs_out"], member["y"]
            line = {"color": colour(name), "lw": 1.5, "label": name, "zorder": 3.0 if name == "ours" else 2.0}
            confidence, accuracy, counts = metrics.reliability_bins(probs, y, n_bins=10)
            used = counts >= max(1, len(y) // 500)
            left.plot(confidence[used], accuracy[used], "o-", ms=2.5, **line)
            middle.plot(*certain_part(probs, y), **line)
            right.plot(*roc(_entropy(probs), _entropy(probs_out)), **line)
        left.plot([0, 1], [0, 1], color=colour("truth"), lw=0.8, ls=":")
        right.plot([0, 1], [0, 1], color=colour("truth"), lw=0.8, ls=":")
        tidy(left, xlabel="top probability", ylabel="accuracy")
        tidy(middle, xlabel="surest part of the images", ylabel="accuracy in it")
        tidy(right, xlabel="CIFAR-10 taken for strange", ylabel="SVHN taken for strange")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=8)
        figure.savefig(folder / "curves.png")
        n = len(next(iter(chosen.values()))["y"]) if chosen else 0
        caption = (
            f"First run of each method, {n:,} test images: calibration, accuracy of the most certain part, ROC (SVHN)."
        )
        return [Picture("curves.png", caption)]


def all_runs(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Every run with its probabilities, and the ensembles that can be made of them."""
    found = [
        {
            "name": record["name"],
            "record": record,
            "method": result["method"],
            "probs": result[f"probs {k}"],
            "probs_out": result[f"probs {OUT} {k}"],
            "epistemic": result.arrays.get(f"epistemic {k}"),
            "epistemic_out": result.arrays.get(f"epistemic {OUT} {k}"),
            "y": result["y"].astype(np.int64),
        }
        for result in results
        for k, record in enumerate(result["runs"])
    ]
    for method, title in (("ours", "ours, ensemble"), ("adamw", "AdamW, ensemble")):
        members = [member for member in found if member["method"] == method]
        if len(members) > 1:
            found.append(_ensemble(f"{title} of {len(members)}", members))
    return found


def all_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Mean scores over the runs of the same name, in order of appearance."""
    groups: dict[str, list[Record]] = {}
    for member in all_runs(results):
        groups.setdefault(member["name"], []).append(member["record"])
    rows = []
    for name, records in groups.items():
        row: dict[str, Any] = {"name": name, "n": len(records)}
        for column in records[0]:
            values = [record[column] for record in records if record.get(column) is not None]
            if column != "name":
                row[column] = mean_and_error(values)[0] if len(values) == len(records) else None
        rows.append(row)
    return rows


def _ensemble(name: str, members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Probabilities averaged over members; it costs what they cost together."""
    pairs = {}
    for key, own in (("probs", "epistemic"), ("probs_out", "epistemic_out")):
        pairs[key] = mixture(
            (torch.as_tensor(member[key]).double(), None if member[own] is None else torch.as_tensor(member[own]))
            for member in members
        )
    y = members[0]["y"]
    probs, probs_out = pairs["probs"][0], pairs["probs_out"][0]
    record: Record = {"name": name, **class_scores(probs, torch.as_tensor(y))}
    for cost in ("train_seconds", "predict_seconds"):
        values = [member["record"].get(cost) for member in members]
        record[cost] = None if None in values else sum(values)
    record[f"AUROC {OUT}"] = separation(entropy(probs), entropy(probs_out))
    record[f"AUROC {OUT}, epistemic"] = separation(pairs["probs"][1], pairs["probs_out"][1])
    return {
        "name": name,
        "record": record,
        "method": "ensemble",
        "probs": probs.numpy(),
        "probs_out": probs_out.numpy(),
        "y": y,
    }


def certain_part(probs: Floats, y: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Shares of the examples, from a hundredth to all, and the accuracy among that share with the surest top class."""
    order = np.argsort(-probs.max(axis=1), kind="stable")
    is_right = (probs.argmax(axis=1) == y)[order]
    counts = np.unique(np.linspace(max(1, len(y) // 100), len(y), 100).astype(int))
    return counts / len(y), np.cumsum(is_right)[counts - 1] / counts


def roc(familiar: Floats, unfamiliar: Floats) -> tuple[Floats, Floats]:
    """Shares of familiar and of unfamiliar examples above a threshold on the score, for 201 thresholds, rising."""
    levels = np.quantile(np.concatenate([familiar, unfamiliar]), np.linspace(1.0, 0.0, 201))
    above = [[np.mean(part >= level) for level in levels] for part in (familiar, unfamiliar)]
    return np.concatenate([[0.0], above[0]]), np.concatenate([[0.0], above[1]])


def _entropy(probs: Floats) -> Floats:
    return entropy(torch.as_tensor(probs)).numpy()
