"""The paper's CIFAR-10 network: ours against what a user would pick instead, on the same data, loop and device, in one
run.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

import bayesmp as bmp
from benchmarks.baselines import (
    PREDICT_BATCH,
    AdamWConfig,
    has_ivon,
    train_adamw,
    train_adamw_held_out,
    train_ivon,
    train_mc_dropout,
)
from benchmarks.datasets import Images
from benchmarks.evaluation import DEFINITIONS, class_scores, entropy, hold_out, separation
from benchmarks.networks import cifar10_cnn
from benchmarks.options import add_data_options, begin, data_source, new_parser
from benchmarks.ours import train_ours
from benchmarks.runs import Run, ensemble
from benchmarks.tables import Report, format_cell, mean_row
from benchmarks.timing import seconds_per_call

BASELINES = (
    "adamw",
    "adamw-compiled",
    "adamw-temperature",
    "adamw-early",
    "adamw-ensemble",
    "mc-dropout",
    "ivon",
)
N_MEMBERS = 4  # of AdamW's ensemble
N_MENDING = 5000  # training images that AdamW's temperature and best epoch are chosen by; at most a fifth of them

LEFT_OUT = {"NLL": "nll", "error": "error"}  # columns of our rows, and their names in the history

ROWS = """\
All methods: one network, one loop, the same number of epochs; AdamW and dropout: lr 1e-3, cosine to zero. "held out":
the last training images are not trained on; they decide AdamW's temperature, or the epoch whose weights are taken.
Ensembles: probabilities averaged over seeds. Dropout: after every activation, weight decay 0.01; a plain pass, and
samples averaged (MC dropout). Ratios: to AdamW eager in this run."""
OOD = """\
OOD-AUROC: entropy, CIFAR-10 test against SVHN test; epistemic: the same for what a method says it does not know, which
is for ensembles and samples the mutual information, entropy of the mean minus mean entropy."""


class Comparison:
    """Evaluates runs as they end; the first one is the reference for time."""

    def __init__(self, images: Images, unfamiliar: Tensor | None, report: Report) -> None:
        self.images, self.unfamiliar, self.report = images, unfamiliar, report
        self.rows: list[dict[str, Any]] = []
        self.histories: dict[str, Any] = {}
        self.reference: Run | None = None
        self.forward_seconds: float | None = None

    def add(self, run: Run, *, seed: int | str) -> None:
        """Score a run, print the table so far, save everything."""
        self.reference = self.reference or run
        probs, epistemic = run.predict_both(self.images.x_test)
        row: dict[str, Any] = {"method": run.name, "seed": str(seed), **class_scores(probs, self.images.y_test)}
        if run.name == "ours":  # what they know of NLL and error without such images
            row |= {f"leave-one-out {name}": run.history[-1][f"loo_{key}"] for name, key in LEFT_OUT.items()}
        if self.unfamiliar is not None:
            probs_out, epistemic_out = run.predict_both(self.unfamiliar)
            row["OOD-AUROC"] = separation(entropy(probs), entropy(probs_out))
            row["OOD-AUROC epistemic"] = (
                None if epistemic is None or epistemic_out is None else separation(epistemic, epistemic_out)
            )
        row |= run.cost(self.reference)
        row |= self._prediction_cost(run)
        self.rows.append(row)
        self.histories[f"{run.name}, seed {seed}"] = list(run.history)
        self.report.save("histories", self.histories)
        self.report.save("results", self.rows)
        print(
            f"\n{run.name}, seed {seed}: "
            + ", ".join(f"{key} {format_cell(value)}" for key, value in list(row.items())[2:]),
            flush=True,
        )

    def show(self) -> None:
        ours = [row for row in self.rows if row["method"] == "ours"]
        mean = [mean_row(ours, method="ours", seed="mean")] if len(ours) > 1 else []
        self.report.show("results", [*self.rows, *mean])

    def _prediction_cost(self, run: Run) -> dict[str, float]:
        """Seconds to predict the test set, which lies on the device, and their ratio to a deterministic pass."""
        device = self.images.x_train.device
        x = self.images.x_test.to(device)
        seconds = seconds_per_call(lambda: run.predict(x), device, repeats=run.repeats)
        if self.forward_seconds is None:  # the first run is deterministic
            self.forward_seconds = seconds
        return {"predict s": seconds, "predict ratio": seconds / self.forward_seconds}


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("cifar10", __doc__)
    add_data_options(parser)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="of our runs; baselines take the first")
    parser.add_argument("--limit", type=int, help="use the first N training images only")
    parser.add_argument("--test-limit", type=int, help="use the first N test images only")
    parser.add_argument("--skip-svhn", action="store_true", help="no out-of-distribution score")
    parser.add_argument(
        "--hold-out",
        type=int,
        default=0,
        metavar="N",
        help="to choose variants: train without the last N training images and score on them, not on the test sets",
    )
    parser.add_argument("--baselines", default=",".join(BASELINES), help="comma-separated; adamw always runs")
    parser.add_argument("--watch", type=int, help="also score the test set every N epochs of our runs (not timed)")
    options = parser.parse_args(argv)
    baselines = [name for name in options.baselines.split(",") if name]
    unknown = sorted(set(baselines) - set(BASELINES))
    if unknown:
        parser.error(f"unknown baselines {unknown}; known: {', '.join(BASELINES)}")

    device, report = begin("cifar10", options)
    source = data_source(options)
    print(DEFINITIONS + "\n" + ROWS)
    unfamiliar = None
    if options.hold_out:
        images = hold_out(source.cifar10(device), options.hold_out, limit=options.limit)
        print(f"Scores: on the last {options.hold_out:,} training images, which no method sees in training.")
    else:
        images = source.cifar10(device, limit=options.limit, test_limit=options.test_limit)
        if not options.skip_svhn:
            unfamiliar = source.svhn_test(images.scaling)
            print(OOD)
    comparison = Comparison(images, unfamiliar, report)
    x, y = images.x_train, images.y_train
    first_seed = options.seeds[0] if options.seeds else 0
    our_runs: list[Run] = []
    shared: dict[str, Any] = {"epochs": options.epochs, "batch_size": options.batch_size}

    def watch(network: bmp.Network) -> dict[str, Any]:
        scores = class_scores(network.predict(images.x_test).probs, images.y_test)
        print("  " + ", ".join(f"{name} {value:.4f}" for name, value in scores.items()), flush=True)
        return {f"test {name}": value for name, value in scores.items()}

    def ours(seed: int) -> list[Run]:
        run, _ = train_ours(
            cifar10_cnn(),
            x,
            y,
            seed=seed,
            watch=None if options.watch is None else watch,
            watch_every=options.watch or 1,
            predict_batch=PREDICT_BATCH,
            **shared,
        )
        our_runs.append(run)
        return [run]

    def our_ensemble() -> list[Run]:
        return [ensemble(f"ours, ensemble of {len(our_runs)}", our_runs)] if len(our_runs) > 1 else []

    def adamw(seed: int, *, compiled: bool = False) -> list[Run]:
        return [train_adamw(cifar10_cnn(), x, y, seed=seed, config=AdamWConfig(compiled=compiled), **shared)]

    def adamw_ensemble() -> list[Run]:
        assert comparison.reference is not None  # the first member
        others = [run for seed in range(first_seed + 1, first_seed + N_MEMBERS) for run in adamw(seed)]
        return [ensemble(f"AdamW, ensemble of {N_MEMBERS}", [comparison.reference, *others])]

    def adamw_held_out() -> list[Run]:
        n_held_out = min(N_MENDING, len(x) // 5)
        runs = train_adamw_held_out(cifar10_cnn(), x, y, n_held_out=n_held_out, seed=first_seed, **shared)
        return [run for name, run in zip(("adamw-temperature", "adamw-early"), runs, strict=True) if name in baselines]

    train_adamw(cifar10_cnn(), x[:512], y[:512], epochs=1, batch_size=128)  # loads the device's libraries
    parts: list[tuple[Callable[[], list[Run]], int | str]] = [(partial(adamw, first_seed), first_seed)]
    if "adamw-compiled" in baselines:
        parts.append((partial(adamw, first_seed, compiled=True), first_seed))
    if {"adamw-temperature", "adamw-early"} & set(baselines):
        parts.append((adamw_held_out, first_seed))
    if "adamw-ensemble" in baselines:
        parts.append((adamw_ensemble, f"{first_seed}–{first_seed + N_MEMBERS - 1}"))
    if "mc-dropout" in baselines:
        parts.append((partial(train_mc_dropout, cifar10_cnn(), x, y, seed=first_seed, **shared), first_seed))
    parts += [(partial(ours, seed), seed) for seed in options.seeds]
    parts.append((our_ensemble, ", ".join(map(str, options.seeds))))
    if "ivon" in baselines and has_ivon():
        parts.append((partial(train_ivon, cifar10_cnn(), x, y, seed=first_seed, **shared), first_seed))
    elif "ivon" in baselines:
        print("IVON is left out: the package ivon-opt is not installed")
    for train, seed in parts:
        try:
            for run in train():
                comparison.add(run, seed=seed)
        except (RuntimeError, ValueError):  # one method's failure must not cost the others' results
            traceback.print_exc()
            if comparison.reference is None:
                raise
    comparison.show()


if __name__ == "__main__":
    main()
