"""UCI regression tables: the standard splits, one hidden layer of 50, one setting for all."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bayesmp as bmp
from bayesmp import metrics
from bayesmp.data import Scaling
from benchmarks import datasets
from benchmarks.datasets import Dataset, Table, formats
from benchmarks.networks import mlp
from experiments import base
from experiments.base import Experiment, Options, Picture, Piece, Record, Result, select, with_error
from experiments.learners import Floats, Laplace, Tagi, gaussians
from experiments.palette import colour, new_figure, tidy

HIDDEN = (50,)
LEVEL = 0.9
N_SPLITS = 20
HELD_OUT = 0.1  # of a split's training rows, by which the others' settings are chosen
LAPLACE_EPOCHS = (50, 100, 200, 400)
TAGI_EPOCHS, TAGI_NOISE = (10, 40, 100), (0.05, 0.1, 0.2, 0.35, 0.6, 0.85)  # noise: std, of standardised targets
SEVERAL = 3  # networks that predict together, in the method of this name
METHODS = {  # name -> in tables and in the palette
    "ours": "ours",
    "ours-3": f"ours, {SEVERAL} networks",
    "laplace": "Laplace",
    "tagi": "TAGI",
}

# test log-likelihoods as published, by set
PUBLISHED: dict[str, dict[str, float]] = {
    "PBP": {"boston": -2.57, "concrete": -3.16, "energy": -2.04, "wine_red": -0.97, "yacht": -1.63},
    "MC dropout": {"boston": -2.46, "concrete": -3.04, "energy": -1.99, "wine_red": -0.93, "yacht": -1.55},
    "deep ensembles": {"boston": -2.41, "concrete": -3.06, "energy": -1.38, "wine_red": -0.94, "yacht": -1.18},
    "TAGI": {"boston": -2.58, "concrete": -3.20, "energy": -1.81, "wine_red": -0.98, "yacht": -1.60},
}

Moments = tuple[Floats, Floats]  # mean and variance of new targets


def find_tables(data_dir: Path | None) -> dict[str, int]:
    """The number of splits of each set that is there: those the library knows, and any other uci/NAME.npz."""
    known = [name for name in datasets.UCI_NAMES if datasets.find_sets(data_dir)[f"uci/{name}"] is not None]
    folder = datasets.data_directory(data_dir) / "uci"
    others = sorted({path.stem for path in folder.glob("*.npz")} - set(known))
    if not known and not others:
        datasets.uci("boston", data_dir)  # raises, and says where files are expected
    return {name: load_table(name, data_dir).n_splits for name in [*known, *others]}


def load_table(name: str, data_dir: Path | None) -> Table:
    """A set the library knows, or uci/NAME.npz in the same form (X, y, train_idx, test_idx)."""
    if name in datasets.UCI_NAMES:
        return datasets.uci(name, data_dir)
    path = datasets.data_directory(data_dir) / "uci" / f"{name}.npz"
    x, y, train_rows, test_rows = formats.read_table_npz(path)
    return Table(x, y, tuple(train_rows), tuple(test_rows), name)


class Uci(Experiment):
    name = "uci"
    title = "UCI regression tables"
    about = (
        "The standard 20 random splits into 90 % and 10 %, one hidden layer of 50 units, one setting for all tables: "
        "the defaults of MPRegressor(hidden=(50,)). Nothing was chosen by test rows."
    )
    seeds = N_SPLITS
    quick_seeds = 1
    parts = (*METHODS, *datasets.UCI_NAMES)

    def pieces(self, options: Options) -> list[Piece]:
        tables = find_tables(options.data_dir)
        chosen = options.parts
        unknown = [part for part in chosen if part not in METHODS and part not in tables]
        if unknown:
            raise ValueError(
                f"uci knows no part {', '.join(map(repr, unknown))}; methods: {', '.join(METHODS)}; "
                f"tables found in the data folder: {', '.join(tables)}"
            )
        methods = [method for method in METHODS if method in chosen] or list(METHODS)
        names = [name for name in tables if name in chosen] or list(tables)
        limits = {"max_epochs": 10} if options.quick else {}
        if options.quick:
            names, methods = names[-1:], [method for method in methods if method == "ours" or method in chosen]
        return [
            Piece(f"{name}, {method}, split {k}", {"table": name, "method": method, "split": k, **limits})
            for name in names
            for method in methods
            for k in range(min(self.n_seeds(options), tables[name]))
        ]

    def compute(self, parameters: Mapping[str, Any], options: Options) -> Record:
        split = load_table(parameters["table"], options.data_dir).split(parameters["split"])
        started = time.perf_counter()
        seed = parameters["split"]
        told: Record = {}
        if parameters["method"] in ("ours", "ours-3"):
            n_networks = 1 if parameters["method"] == "ours" else SEVERAL
            found, told = predict_ours(split, seed=seed, max_epochs=parameters.get("max_epochs"), n_networks=n_networks)
        elif parameters["method"] == "laplace":
            found = gaussians(*predict_laplace(split, seed=seed))
        else:
            found = gaussians(*predict_tagi(split, seed=seed))
        seconds = time.perf_counter() - started
        return {
            "n_train": len(split.x_train),
            "n_test": len(split.x_test),
            "rmse": metrics.rmse(found.mean, split.y_test),
            "log_likelihood": float(found.log_prob(split.y_test).mean()),
            "coverage": metrics.interval_coverage(*found.interval(LEVEL), split.y_test),
            "train_seconds": seconds,
            **told,
        }

    def summarise(self, results: Sequence[Result]) -> list[base.Table]:
        names = list(dict.fromkeys(result["table"] for result in results))
        rows = []
        for name in names:
            for method, title in METHODS.items():
                own = select(results, table=name, method=method)
                if own:
                    rows.append(
                        {
                            "table": name,
                            "method": title,
                            "splits": len(own),
                            "RMSE": with_error([result["rmse"] for result in own]),
                            "log-likelihood": with_error([result["log_likelihood"] for result in own]),
                            "in 90 %": with_error([result["coverage"] for result in own]),
                            "seconds": float(np.mean([result["train_seconds"] for result in own])),
                        }
                    )
        measured = base.Table(
            "Measured by us",
            rows,
            "Mean ± standard error over splits; RMSE in the units of the table; seconds for one split, choice of "
            "settings included. Laplace: laplace-torch, full curvature, prior and noise by marginal likelihood, epochs "
            "of AdamW by a held-out tenth of the training rows; TAGI: pytagi, noise and epochs by the same tenth.",
        )
        return [measured, self._beside_published(results, names)]

    def _beside_published(self, results: Sequence[Result], names: Sequence[str]) -> base.Table:
        rows: list[dict[str, Any]] = []
        for method, title in METHODS.items():
            own = {name: select(results, table=name, method=method) for name in names}
            if any(own.values()):
                cells = {
                    name: with_error([result["log_likelihood"] for result in found], 2) if found else None
                    for name, found in own.items()
                }
                rows.append({"log-likelihood": f"{title} (measured)", **cells})
        for method, values in PUBLISHED.items():
            cells = {name: f"{values[name]:.2f}" if name in values else None for name in names}
            rows.append({"log-likelihood": f"{method} (published)", **cells})
        note = (
            "Published: PBP (Hernández-Lobato and Adams, 2015), MC dropout (Gal and Ghahramani, 2016), deep ensembles "
            "(Lakshminarayanan et al., 2017), TAGI (Goulet et al., 2021)."
        )
        return base.Table("Test log-likelihood beside published numbers", rows, note)

    def draw(self, results: Sequence[Result], folder: Path) -> list[Picture]:
        names = list(dict.fromkeys(result["table"] for result in results))
        figure = new_figure(8.0, 3.2)
        axes = figure.subplots(1, len(names), squeeze=False)[0]
        methods = [method for method in METHODS if select(results, method=method)]
        for ax, name in zip(axes, names, strict=True):
            labels: list[str] = []
            for title, values in PUBLISHED.items():
                if name in values:
                    ax.plot(values[name], len(labels), "D", mfc="none", color=colour(title), ms=6)
                    labels.append(f"{title}, published")
            for method in methods:
                values_here = [r["log_likelihood"] for r in select(results, table=name, method=method)]
                if not values_here:
                    continue
                mean, error = base.mean_and_error(values_here)
                ax.errorbar(mean, len(labels), xerr=error, fmt="o", color=colour(METHODS[method]), ms=6, capsize=3)
                labels.append(f"{METHODS[method]}, measured")
            ax.set_yticks(range(len(labels)), labels=labels if ax is axes[0] else [""] * len(labels))
            ax.set_ylim(-0.6, len(labels) - 0.4)
            ax.margins(x=0.12)
            low, high = ax.get_xlim()
            digits = 1 if high - low > 0.3 else 2
            ends = (low + 0.2 * (high - low), high - 0.2 * (high - low))
            ax.set_xticks([round(end, digits) for end in ends])
            tidy(ax, title=name)
            ax.title.set_fontsize(10)
        figure.supxlabel("test log-likelihood per row, in nats (more is better)", fontsize=10)
        figure.savefig(folder / "log_likelihood.png")
        n_splits = max(len(select(results, table=name, method=methods[0])) for name in names)
        caption = f"Test log-likelihood: means over {n_splits} splits with standard errors, and published means."
        return [Picture("log_likelihood.png", caption)]


def predict_ours(
    split: Dataset, *, seed: int, max_epochs: int | None = None, n_networks: int = 1
) -> tuple[bmp.RegressionPrediction, Record]:
    """What MPRegressor(hidden=(50,), n_networks=n_networks, random_state=seed) says about the test rows, without
    scikit-learn.
    """
    x_scaling, y_scaling = Scaling.fit(split.x_train), Scaling.fit(split.y_train[:, None])
    x, y = x_scaling.apply(split.x_train), y_scaling.apply(split.y_train[:, None])
    limit: dict[str, Any] = {} if max_epochs is None else {"max_epochs": max_epochs}
    draws, each, histories = np.random.RandomState(seed), [], []
    for _ in range(n_networks):
        drawn = int(draws.randint(2**31 - 1))
        network = bmp.Network(mlp(split.x_train.shape[1], *HIDDEN, 1), bmp.Regression("learn"), seed=drawn)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="training was not at rest")  # "stopped" says it
            histories.append(bmp.fit(network, x, y, seed=drawn, progress=False, **limit))
        each.append(network.to(torch.float64).predict(x_scaling.apply(split.x_test)).undo(y_scaling))
    found = each[0] if n_networks == 1 else bmp.mixture(each)
    longest = max(histories, key=len)
    told = {"epochs": len(longest), "stopped": longest.stopped, "noise_spread": float(found.noise_spread)}
    return found.flat(), told


def predict_laplace(split: Dataset, *, seed: int) -> Moments:
    """Laplace with the number of epochs that suits a held-out part of the training rows best."""

    def score(x: Floats, y: Floats, x_held: Floats, y_held: Floats) -> dict[int, float]:
        learner, done, scores = Laplace(x, y, HIDDEN, noise_var=None, seed=seed), 0, {}
        for epochs in LAPLACE_EPOCHS:
            learner.train(epochs - done)
            done = epochs
            scores[epochs] = metrics.gaussian_nll(*learner.predict(x_held), y_held)
        return scores

    def final(x: Floats, y: Floats, best: int) -> Callable[[Floats], Moments]:
        learner = Laplace(x, y, HIDDEN, noise_var=None, seed=seed)
        learner.train(best)
        return learner.predict

    return _choose_and_predict(split, score, final, seed=seed)


def predict_tagi(split: Dataset, *, seed: int) -> Moments:
    """TAGI with the noise and the number of epochs that suit a held-out part of the training rows best."""

    def score(x: Floats, y: Floats, x_held: Floats, y_held: Floats) -> dict[tuple[float, int], float]:
        scores = {}
        for noise in TAGI_NOISE:
            learner, done = Tagi(x, y, HIDDEN, noise_var=noise**2, seed=seed), 0
            for epochs in TAGI_EPOCHS:
                learner.train(epochs - done)
                done = epochs
                mean, var = learner.predict(x_held)
                is_fine = np.isfinite(mean).all() and (var > 0).all()
                scores[noise, epochs] = metrics.gaussian_nll(mean, var, y_held) if is_fine else np.inf
        return scores

    def final(x: Floats, y: Floats, best: tuple[float, int]) -> Callable[[Floats], Moments]:
        learner = Tagi(x, y, HIDDEN, noise_var=best[0] ** 2, seed=seed)
        learner.train(best[1])
        return learner.predict

    return _choose_and_predict(split, score, final, seed=seed)


def _choose_and_predict(
    split: Dataset,
    score: Callable[[Floats, Floats, Floats, Floats], dict[Any, float]],
    final: Callable[[Floats, Floats, Any], Callable[[Floats], Moments]],
    *,
    seed: int,
) -> Moments:
    """Train with the setting of the lowest NLL on held-out training rows; moments for the test rows in their units.

    Args:
        split: the data.
        score: NLL by setting, from x, y to train on and x, y held out; all standardised.
        final: a trained predictor, from all x, y and the best setting.
        seed: draws the rows held out.
    """
    x_scaling, y_scaling = Scaling.fit(split.x_train), Scaling.fit(split.y_train)
    x, y = x_scaling.apply(split.x_train), y_scaling.apply(split.y_train)
    rows = np.random.default_rng(seed).permutation(len(x))
    held, kept = np.split(rows, [round(HELD_OUT * len(rows))])
    scores = score(x[kept], y[kept], x[held], y[held])
    predict = final(x, y, min(scores, key=lambda setting: scores[setting]))
    mean, var = predict(x_scaling.apply(split.x_test))
    return mean * y_scaling.std + y_scaling.mean, var * y_scaling.std**2
