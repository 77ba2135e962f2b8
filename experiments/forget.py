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
from benchmarks.datasets import Images, Source
from benchmarks.networks import mnist_mlp
from experiments.base import Experiment, Options, Picture, Piece, Record, Result, Table, UnavailableError, select
from experiments.palette import colour, new_figure, tidy

N_IMAGES, EPOCHS, BATCH_SIZE = 2560, 30, 128
AFTER = (0, 1, 5, 20)  # epochs after the removal at which one looks
FORGOTTEN_CLASS, SHARE = 7, 0.1
KINDS = {"tenth": "a random tenth", "class": f"all images of a {FORGOTTEN_CLASS}"}
OTHER_SEED = 1000


class Forget(Experiment):
    name = "forget"
    title = "Forgetting training images"
    about = (
        f"784-100-10 on {N_IMAGES:,} MNIST images, {EPOCHS} epochs in batches of {BATCH_SIZE}. Then some images are "
        "removed by `trainer.remove`, at once and with some epochs on the rest, and compared with a network that was "
        f"trained without them from the start, for {EPOCHS} epochs. Distance: half the sum of absolute differences of "
        "the class probabilities, mean over the test images."
    )
    parts = tuple(KINDS)
    seeds = 3
    quick_seeds = 1

    def pieces(self, options: Options) -> list[Piece]:
        own: dict[str, Any] = {"images": N_IMAGES, "epochs": EPOCHS, "after": list(AFTER), "test_images": 10_000}
        if options.quick:
            own |= {"images": 200, "epochs": 2, "after": [0, 1], "test_images": 100}
        return [
            Piece(f"{KINDS[kind]}, seed {seed}", {**own, "kind": kind, "seed": seed})
            for kind in self.chosen_parts(options)
            for seed in range(self.n_seeds(options))
        ]

    def compute(self, parameters: Mapping[str, Any], options: Options) -> Record:
        if not hasattr(bmp.Trainer, "remove"):
            raise UnavailableError("this version of bayesmp has no Trainer.remove")
        images = Source(data_dir=options.data_dir).mnist(torch.device(options.device), limit=parameters["images"])
        x_test, y_test = (part[: parameters["test_images"]] for part in (images.x_test, images.y_test))
        seed, epochs = parameters["seed"], parameters["epochs"]
        goes = chosen_rows(images.y_train.cpu(), parameters["kind"], seed)

        started = time.perf_counter()
        without = _train(images, ~goes, epochs, seed=seed)
        retrain_seconds = time.perf_counter() - started
        again = _train(images, ~goes, epochs, seed=seed, batch_seed=seed + OTHER_SEED)
        target = without.network.predict(x_test).probs
        found: Record = {"n_removed": int(goes.sum()), "retrain_seconds": retrain_seconds, "rows": []}

        def look(name: str, network: bmp.Network[Any], seconds: float | None) -> None:
            probs = network.predict(x_test).probs
            row = {"state": name, "distance": distance(probs, target), "NLL": metrics.nll(probs, y_test)}
            own = network.predict(images.x_train[goes.to(images.x_train.device)]).probs
            row["NLL removed"] = metrics.nll(own, images.y_train[goes.to(images.y_train.device)])
            found["rows"].append({**row, "seconds": seconds})

        trainer = _train(images, torch.ones_like(goes), epochs, seed=seed)
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
                row: dict[str, Any] = {"removed": KINDS[kind], "state": first["state"], "seeds": len(own)}
                for name in ("distance", "NLL", "NLL removed", "seconds"):
                    values = [result["rows"][k][name] for result in own]
                    row[name] = None if values[0] is None else float(np.mean(values))
                rows.append(row)
        note = (
            "Distance: to the network that was trained without them. The last row, the same training with other "
            "batches, says how near two such networks are. NLL: on the test images, and on those that were removed."
        )
        return [Table(self.title, rows, note)]

    def draw(self, results: Sequence[Result], folder: Path) -> list[Picture]:
        kinds = [kind for kind in KINDS if select(results, kind=kind)]
        figure = new_figure(3.6 * len(kinds) + 0.4, 3.0)
        for ax, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
            own = select(results, kind=kind)
            states = [row["state"] for row in own[0]["rows"]]
            means = np.mean([[row["distance"] for row in result["rows"]] for result in own], axis=0)
            path = [k for k, state in enumerate(states) if "trained" not in state]
            ax.plot(range(len(path)), means[path], "o-", color=colour("ours"))
            ax.axhline(means[-1], color=colour("truth"), lw=0.8, ls=":", label="other batches")
            labels = [states[k].replace("removed, ", "+") for k in path]
            ax.set_xticks(range(len(path)), labels=labels, rotation=30, fontsize=8)
            tidy(ax, title=KINDS[kind], ylabel="distance to trained without", ylim=(0, None))
            ax.legend(frameon=False)
        figure.savefig(folder / "distance.png")
        n_seeds = len({result["seed"] for result in results})
        return [Picture("distance.png", f"How far from never having seen them; means over {n_seeds} seeds.")]


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


def _train(images: Images, rows: Tensor, epochs: int, *, seed: int, batch_seed: int | None = None) -> Any:
    """A trainer that has run on these rows."""
    x, y = (part[rows.to(part.device)] for part in (images.x_train, images.y_train))
    network = bmp.Network(mnist_mlp(), bmp.Argmax(), seed=seed).to(x.device)
    trainer = bmp.Trainer(network, x, y, batch_size=BATCH_SIZE, seed=seed if batch_seed is None else batch_seed)
    trainer.run(epochs, progress=False)
    return trainer
