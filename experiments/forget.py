"""Forgetting: training images are removed from a trained run; is it then as if they had never been there?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bayesmp as bmp
from bayesmp import metrics
from benchmarks.datasets import Source
from benchmarks.networks import mlp
from experiments import mislabelled
from experiments.base import (
    Experiment,
    Options,
    Picture,
    Piece,
    Record,
    Result,
    Table,
    UnavailableError,
    in_plain_words,
    select,
)
from experiments.palette import colour, new_figure, tidy

N_IMAGES, EPOCHS, BATCH_SIZE, HIDDEN = 2560, 30, 128, 100
AFTER = (0, 1, 5, 20)  # epochs after the removal at which one looks
FORGOTTEN_CLASS, SHARE = 7, 0.1
KINDS = {"tenth": "a random tenth", "class": f"all images of a {FORGOTTEN_CLASS}"}
WRONG = "wrong"  # the part about wrong labels
OTHER_SEED = 1000


class Forget(Experiment):
    name = "forget"
    title = "Forgetting training images"
    about = (
        f"784-100-10 on {N_IMAGES:,} MNIST images, {EPOCHS} epochs in batches of {BATCH_SIZE}. Then some images are "
        "removed by `trainer.remove`, at once and with some epochs on the rest, and compared with a network that was "
        f"trained without them from the start, for {EPOCHS} epochs. Distance: half the sum of absolute differences of "
        "the class probabilities, mean over the test images. And a run on labels of which a tenth is wrong: suspects "
        "are found by `trainer.influence`, then removed, or their labels mended by `trainer.replace`."
    )
    parts = (*KINDS, WRONG)
    seeds = 3
    quick_seeds = 1

    def pieces(self, options: Options) -> list[Piece]:
        own: dict[str, Any] = {"images": N_IMAGES, "epochs": EPOCHS, "after": list(AFTER), "test_images": 10_000}
        if options.quick:
            own |= {"images": 80, "epochs": 3, "after": [0, 1], "test_images": 100, "hidden": 50}
        return [
            Piece(f"{KINDS.get(kind, 'wrong labels')}, seed {seed}", {**own, "kind": kind, "seed": seed})
            for kind in self.chosen_parts(options)
            for seed in range(self.n_seeds(options))
        ]

    def compute(self, parameters: Mapping[str, Any], options: Options) -> Record:
        if not hasattr(bmp.Trainer, "remove"):
            raise UnavailableError("this version of bayesmp has no Trainer.remove")
        images = Source(data_dir=options.data_dir).mnist(torch.device(options.device), limit=parameters["images"])
        x_test, y_test = (part[: parameters["test_images"]] for part in (images.x_test, images.y_test))
        seed = parameters["seed"]
        size = {"hidden": parameters.get("hidden", HIDDEN), "epochs": parameters["epochs"], "seed": seed}
        if parameters["kind"] == WRONG:

            def train_rows(x: Tensor, y: Tensor, rows: Tensor, batch_seed: int) -> bmp.Trainer:
                return _train(x, y, rows, **size, batch_seed=batch_seed)

            study = mislabelled.Study(images, SHARE, seed, parameters["after"], train_rows)
            numbers, arrays = study.run(x_test, y_test)
            return numbers | arrays
        x, y = images.x_train, images.y_train
        goes = chosen_rows(images.y_train.cpu(), parameters["kind"], seed)

        started = time.perf_counter()
        without = _train(x, y, ~goes, **size)
        retrain_seconds = time.perf_counter() - started
        again = _train(x, y, ~goes, **size, batch_seed=seed + OTHER_SEED)
        target = without.network.predict(x_test).probs
        found: Record = {"n_removed": int(goes.sum()), "retrain_seconds": retrain_seconds, "rows": []}

        def look(name: str, network: bmp.Network[Any], seconds: float | None) -> None:
            probs = network.predict(x_test).probs
            row = {"state": name, "distance": distance(probs, target), "NLL": metrics.nll(probs, y_test)}
            own = network.predict(images.x_train[goes.to(images.x_train.device)]).probs
            row["NLL removed"] = metrics.nll(own, images.y_train[goes.to(images.y_train.device)])
            found["rows"].append({**row, "seconds": seconds})

        trainer = _train(x, y, torch.ones_like(goes), **size)
        look("with them", trainer.network, None)
        seconds, done = 0.0, 0
        for after in parameters["after"]:
            started = time.perf_counter()
            if after == 0:
                trainer.remove(goes.nonzero()[:, 0])
            else:
                trainer.run(after - done, progress=False)
                done = after
            seconds += time.perf_counter() - started
            look("removed" if after == 0 else f"removed, {after} epochs", trainer.network, seconds)
        look("trained without them", without.network, retrain_seconds)
        look("trained without them, other batches", again.network, None)
        return found

    def summarise(self, results: Sequence[Result]) -> list[Table]:
        rows = []
        for kind in KINDS:
            own = select(results, kind=kind)
            for k, first in enumerate(own[0]["rows"] if own else ()):
                row: dict[str, Any] = {
                    "removed": KINDS[kind],
                    "state": in_plain_words(first["state"]),
                    "seeds": len(own),
                }
                for name in ("distance", "NLL", "NLL removed", "seconds"):
                    values = [result["rows"][k][name] for result in own]
                    row[name] = None if values[0] is None else float(np.mean(values))
                rows.append(row)
        note = (
            "Distance: to the network that was trained without them. The last row of each, the same training with "
            "other batches, says how near two such networks are. NLL: on the test images, and on those removed."
        )
        wrong = select(results, kind=WRONG)
        tables = [Table(self.title, rows, note)] if rows else []
        return tables + ([mislabelled.table(wrong)] if wrong else [])

    def draw(self, results: Sequence[Result], folder: Path) -> list[Picture]:
        wrong = select(results, kind=WRONG)
        pictures = [self._draw_distances(results, folder)] if len(results) > len(wrong) else []
        if wrong:
            pictures += [mislabelled.draw_roads(wrong, folder), mislabelled.draw_suspects(wrong[0], folder)]
        return pictures

    def _draw_distances(self, results: Sequence[Result], folder: Path) -> Picture:
        kinds = [kind for kind in KINDS if select(results, kind=kind)]
        figure = new_figure(3.6 * len(kinds) + 0.4, 3.0)
        for ax, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
            own = select(results, kind=kind)
            states = [row["state"] for row in own[0]["rows"]]
            means = np.mean([[row["distance"] for row in result["rows"]] for result in own], axis=0)
            path = [k for k, state in enumerate(states) if "trained" not in state]
            ax.plot(range(len(path)), means[path], "o-", color=colour("ours"))
            ax.axhline(means[-1], color=colour("truth"), lw=0.8, ls=":", label="two trainings without them")
            labels = [in_plain_words(states[k]).replace("removed, ", "+") for k in path]
            ax.set_xticks(range(len(path)), labels=labels, rotation=30, fontsize=8)
            tidy(ax, title=KINDS[kind], ylabel="distance to trained without", ylim=(0, 1.1 * means.max()))
            ax.legend(frameon=False, loc="lower left")
        figure.savefig(folder / "distance.png")
        n_seeds = len({result["seed"] for result in results if result["kind"] in KINDS})
        return Picture(
            "distance.png",
            f"Distance of class probabilities (0 to 1) to a network that never saw them; means over {n_seeds} seeds.",
        )


def chosen_rows(y: Tensor, kind: str, seed: int) -> Tensor:
    """Which training images go, (n,) booleans."""
    if kind == "class":
        return y == FORGOTTEN_CLASS
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    goes = torch.zeros(len(y), dtype=torch.bool)
    goes[order[: round(SHARE * len(y))]] = True
    return goes


def distance(probs: Tensor, target: Tensor) -> float:
    """Total variation distance, mean over the rows of (n, c)."""
    return float((probs - target).abs().sum(1).mean() / 2)


def _train(
    x: Tensor, y: Tensor, rows: Tensor, *, hidden: int, epochs: int, seed: int, batch_seed: int | None = None
) -> bmp.Trainer:
    """A trainer that has run on these rows."""
    x, y = (part[rows.to(part.device)] for part in (x, y))
    network = bmp.Network(mlp(784, hidden, 10), bmp.Argmax(), seed=seed).to(x.device)
    trainer = bmp.Trainer(network, x, y, batch_size=BATCH_SIZE, seed=seed if batch_seed is None else batch_seed)
    trainer.run(epochs, progress=False)
    return trainer
