"""Wrong labels, found by `trainer.influence`, then removed or mended in the trained run, against training anew."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bayesmp as bmp
from bayesmp import metrics
from benchmarks.datasets import Images
from experiments.base import Picture, Record, Result, Table, in_plain_words
from experiments.palette import colour, new_figure, tidy

N_CLASSES = 10
SHOWN = 20  # of the most surprising images, in the picture
COLUMNS = ("wrong labels left", "distance", "NLL", "accuracy", "seconds")
REFERENCES = {"removed": "trained without the suspects", "mended": "trained with their right labels"}

Train = Callable[[Tensor, Tensor, Tensor, int], bmp.Trainer]


@dataclass(frozen=True)
class Study:
    """One run on labels of which some are wrong.

    Attributes:
        images: with the right labels.
        share: of labels to be made wrong.
        seed: of the wrong labels.
        after: epochs after the change at which one looks, rising.
        train: (x, y, rows, seed of the batches) -> a run trained on these rows.
    """

    images: Images
    share: float
    seed: int
    after: Sequence[int]
    train: Train

    def run(self, x_test: Tensor, y_test: Tensor) -> tuple[Record, dict[str, Any]]:
        """Numbers, a row per state of the network; and the most surprising images."""
        x, right = self.images.x_train, self.images.y_train
        given = swap_labels(right, self.share, self.seed)
        n_wrong = int((given != right).sum())
        everything = torch.ones(len(x), dtype=torch.bool)
        trainer = self.train(x, given, everything, self.seed)

        started = time.perf_counter()
        influence = trainer.influence()
        suspects = influence.top(n_wrong)
        find_seconds = time.perf_counter() - started
        stays = everything.clone()
        stays[suspects] = False
        mended = given.clone()
        mended[suspects] = right[suspects]

        without, without_seconds = _timed(lambda: self.train(x, given, stays, self.seed))
        corrected, corrected_seconds = _timed(lambda: self.train(x, mended, everything, self.seed))
        again = self.train(x, given, stays, self.seed + 1000)
        best = self.train(x, right, everything, self.seed)
        targets = {
            "removed": without.network.predict(x_test).probs,
            "mended": corrected.network.predict(x_test).probs,
        }
        rows: list[dict[str, Any]] = []

        def look(state: str, run: bmp.Trainer, road: str | None, left: int, seconds: float | None = None) -> None:
            probs = run.network.predict(x_test).probs
            away = None if road is None else float((probs - targets[road]).abs().sum(1).mean() / 2)
            scores = {"NLL": metrics.nll(probs, y_test), "accuracy": metrics.accuracy(probs, y_test)}
            rows.append({"state": state, "wrong labels left": left, "distance": away, **scores, "seconds": seconds})

        left = int((given != right)[stays].sum())
        look("with the wrong labels", trainer, "removed", n_wrong)
        copy = _copy(trainer)
        self._follow("removed", lambda: trainer.remove(suspects), trainer, left, look)
        look(REFERENCES["removed"], without, "removed", left, without_seconds)
        look("the same, other batches", again, "removed", left)
        self._follow("mended", lambda: copy.replace(suspects, y=right[suspects]), copy, left, look)
        look(REFERENCES["mended"], corrected, "mended", left, corrected_seconds)
        look("right labels from the start", best, None, 0)
        found: Record = {
            "n_wrong": n_wrong,
            "share_found": float((given != right)[suspects].double().mean()),
            "AUROC": metrics.auroc(influence.loo_nll, (given != right)[influence.ids]),
            "find_seconds": find_seconds,
            "rows": rows,
        }
        first = suspects[:SHOWN]
        labels = {"given": given[first].cpu().numpy(), "right": right[first].cpu().numpy()}
        return found, {"pixels": x[first].cpu().numpy().astype(np.float16), **labels}

    def _follow(self, road: str, change: Callable[[], None], run: bmp.Trainer, left: int, look: Any) -> None:
        """Change the run, go on, and look at the epochs asked for."""
        _, seconds = _timed(change)
        done = 0
        for epochs in self.after:
            if epochs > done:
                started = time.perf_counter()
                run.run(epochs - done, progress=False)
                seconds += time.perf_counter() - started
                done = epochs
            elif road == "mended":
                continue  # a mended label is heard at the next visit
            look(f"suspects {road}" + (f", {epochs} epochs" if epochs else ""), run, road, left, seconds)


def swap_labels(y: Tensor, share: float, seed: int) -> Tensor:
    """A copy of the labels, of which a share, drawn at random, is another class."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(y), generator=generator)[: round(share * len(y))]
    shift = torch.zeros(len(y), dtype=y.dtype)
    shift[rows] = torch.randint(1, N_CLASSES, (len(rows),), generator=generator, dtype=y.dtype)
    return (y + shift.to(y.device)) % N_CLASSES


def table(results: Sequence[Result]) -> Table:
    """Means over seeds, a row per state."""
    columns = {name: _means(results, name) for name in COLUMNS}
    rows = [
        {"state": in_plain_words(state), "seeds": len(results), **{name: columns[name].get(state) for name in COLUMNS}}
        for state in (row["state"] for row in results[0]["rows"])
    ]
    share, auroc, seconds, n = (
        float(np.mean([result[name] for result in results]))
        for name in ("share_found", "AUROC", "find_seconds", "n_wrong")
    )
    note = (
        f"{n:.0f} labels are wrong. As many suspects, the most surprising given all others, are taken from "
        f"`trainer.influence()`, in {seconds:.2g} seconds: {share:.0%} of them are wrong; AUROC of finding wrong "
        f"labels {auroc:.3f}. Distance of removed ones: to the network trained without them; of mended ones: to the "
        "one trained with right labels in their place. NLL and accuracy on the test images; seconds from the change "
        "on, or of the training anew."
    )
    return Table("Wrong labels, found by influence", rows, note)


def draw_roads(results: Sequence[Result], folder: Path) -> Picture:
    """Distance to training anew and test NLL, by epochs after the change."""
    figure = new_figure(7.2, 3.3)
    left, right = figure.subplots(1, 2)
    shades = {"removed": colour("ours"), "mended": colour("ours, mended")}
    for ax, name in ((left, "distance"), (right, "NLL")):
        means = _means(results, name)
        for road, shade in shades.items():
            own = {state: mean for state, mean in means.items() if state.startswith(f"suspects {road}")}
            epochs = [int(state.split()[2]) if "epochs" in state else 0 for state in own]
            ax.plot(epochs, list(own.values()), "o-", color=shade, label=f"suspects {road}")
            if name == "NLL":
                ax.axhline(means[REFERENCES[road]], color=shade, lw=1.0, ls="--")
        ax.axhline(means["with the wrong labels"], color=colour("truth"), lw=0.8, label="with the wrong labels")
    level = _means(results, "distance")["the same, other batches"]
    left.axhline(level, color=colour("truth"), lw=0.8, ls=":", label="two trainings without them")
    right.plot([], [], color=colour("truth"), lw=1.0, ls="--", label="trained anew")
    tidy(left, xlabel="epochs after the change", ylabel="distance to training anew", ylim=(0, None))
    tidy(right, xlabel="epochs after the change", ylabel="test NLL, nats")
    handles = {
        label: handle for ax in (left, right) for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(folder / "wrong_labels.png")
    caption = f"Wrong labels removed or mended in the trained run; means over {len(results)} seeds."
    return Picture("wrong_labels.png", caption)


def draw_suspects(result: Result, folder: Path) -> Picture:
    """The most surprising images with the labels they were given."""
    figure = new_figure(7.2, 2.3)
    axes = figure.subplots(2, SHOWN // 2)
    for ax in axes.flat:
        ax.axis("off")
    for ax, pixels, given, right in zip(axes.flat, result["pixels"], result["given"], result["right"], strict=False):
        ax.imshow(pixels.astype(np.float32).reshape(28, 28), cmap="gray_r")
        is_wrong = given != right
        ax.set_title(
            f"{given}, is {right}" if is_wrong else f"{given}",
            fontsize=8,
            color=colour("AdamW" if is_wrong else "truth"),
        )
    figure.savefig(folder / "suspects.png")
    return Picture(
        "suspects.png",
        f"Seed {result['seed']}: the {min(SHOWN, len(result['given']))} most surprising images with the labels given; "
        "orange: wrong, with the right one.",
    )


def _means(results: Sequence[Result], name: str) -> dict[str, float]:
    """By state, over seeds; states without a value are left out."""
    columns = {
        row["state"]: [result["rows"][k][name] for result in results] for k, row in enumerate(results[0]["rows"])
    }
    return {state: float(np.mean(values)) for state, values in columns.items() if None not in values}


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    found = call()
    return found, time.perf_counter() - started


def _copy(trainer: bmp.Trainer) -> bmp.Trainer:
    with tempfile.TemporaryDirectory() as folder:
        trainer.save(Path(folder) / "run")
        return bmp.Trainer.load(Path(folder) / "run", trainer.x, trainer.y)
