"""Depth and width on the paper's sine data: the parallel schedule beside the paper's own way."""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

import bayesmp as bmp
from bayesmp import metrics, plots
from bayesmp.layers.base import Layer
from benchmarks import datasets
from benchmarks.networks import sine_mlp
from experiments.base import Experiment, Options, Picture, Piece, Record, Result, Table, select, with_error
from experiments.palette import colour, new_figure, tidy
from experiments.stacked import visit_all

NOISE_STD = 0.05
N_TEST = 1000
N_GRID = 161
COLUMNS = 3  # panels beside each other
RMSE_TICKS, NLL_TICKS = (0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0), (-1.5, -1, 0, 1, 2, 5, 10, 20, 50, 100)
OTHER_DRAW = 2_000_000  # added to a seed for data to test on; 1,000,000 served to choose the batch size
METHODS = {"parallel": "ours", "sequential": "sequential"}  # name in tables -> in the palette
TITLES = {"parallel": "parallel (ours)", "sequential": "sequential (the paper's way)"}

Floats = NDArray[np.float64]


class Sine(Experiment):
    """A sweep over one size of a network; the subclass says which."""

    parts: ClassVar[tuple[str, ...]] = tuple(METHODS)
    seeds = 10
    quick_seeds = 2
    size: ClassVar[str]  # what is swept: "layers" or "width"
    sizes: ClassVar[tuple[int, ...]]
    quick_sizes: ClassVar[tuple[int, ...]]
    setting: ClassVar[Mapping[str, Any]]  # of the data and of both methods

    @abstractmethod
    def layers(self, size: int) -> list[Layer]:
        """Those of the network of this size."""

    def pieces(self, options: Options) -> list[Piece]:
        shared = dict(self.setting)
        if options.quick:
            shared |= {"n_points": 40, "max_epochs": 20, "iterations": 2}
        iterations, max_epochs = shared.pop("iterations"), shared.pop("max_epochs")
        seeds = list(range(self.n_seeds(options)))
        planned = []
        for size in self.quick_sizes if options.quick else self.sizes:
            if "parallel" in self.chosen_parts(options):
                own = {**shared, "method": "parallel", self.size: size, "max_epochs": max_epochs}
                planned += [
                    Piece(f"parallel, {self.size} {size}, seed {seed}", {**own, "seeds": [seed]}, cost=size)
                    for seed in seeds
                ]
            if "sequential" in self.chosen_parts(options):
                own = {**shared, "method": "sequential", self.size: size, "iterations": iterations, "seeds": seeds}
                label = f"sequential, {self.size} {size}, seeds 0 to {seeds[-1]}"
                planned.append(Piece(label, own, cost=1000.0 * size))
        return planned

    def compute(self, parameters: Mapping[str, Any], options: Options) -> Record:
        seeds, size, high = parameters["seeds"], parameters[self.size], parameters["high"]
        draws = [datasets.sine(parameters["n_points"], high=high, noise_std=NOISE_STD, seed=seed) for seed in seeds]
        is_parallel = parameters["method"] == "parallel"
        prior: dict[str, Any] = {} if is_parallel else {"prior": "paper"}
        networks = [bmp.Network(self.layers(size), bmp.Regression(NOISE_STD**2), seed=seed, **prior) for seed in seeds]
        started = time.perf_counter()
        epochs = []
        if is_parallel:
            (network,), ((x, y),) = networks, draws
            network.to(options.device)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="training was not at rest")  # the table has the epochs
                worse = "training ended worse than a constant"  # narrow ones are, with the noise known; it has scores
                warnings.filterwarnings("ignore", message=worse)
                batch = {"batch_size": parameters["batch_size"], "max_epochs": parameters["max_epochs"]}
                epochs = [len(bmp.fit(network, x, y, seed=seeds[0], progress=False, **batch))]
            seconds = time.perf_counter() - started
        else:
            x_all, y_all = (torch.as_tensor(np.stack(part)) for part in zip(*draws, strict=True))
            seconds = visit_all(networks, x_all, y_all, iterations=parameters["iterations"], scratch=options.scratch)
        grid = np.linspace(-high / 2, 1.5 * high, N_GRID)
        scores = [self._scores(network, high, seed) for network, seed in zip(networks, seeds, strict=True)]
        bands = [_moments(network, grid[:, None]) for network in networks]
        return {
            **{name: [score[name] for score in scores] for name in scores[0]},
            "seconds_per_network": seconds / len(networks),
            "epochs": epochs,
            "grid": grid.astype(np.float32),
            "mean": np.stack([mean for mean, _ in bands]).astype(np.float32),  # (seed, g)
            "std": np.stack([std for _, std in bands]).astype(np.float32),
        }

    def _scores(self, network: bmp.Network, high: float, seed: int) -> dict[str, float]:
        """On new noisy points in the range of the training data."""
        x, y = datasets.sine(N_TEST, high=high, noise_std=NOISE_STD, seed=seed + OTHER_DRAW)
        mean, std = _moments(network, x)
        return {
            "rmse": metrics.rmse(mean, y),
            "nll": metrics.gaussian_nll(mean, std**2, y),
            "coverage": metrics.coverage(mean, std, y, 0.9),
        }

    def summarise(self, results: Sequence[Result]) -> list[Table]:
        rows = []
        for size in _sizes(results, self.size):
            for method in METHODS:
                own = select(results, method=method, **{self.size: size})
                if not own:
                    continue
                rmse, nll, coverage = (_pooled(own, name) for name in ("rmse", "nll", "coverage"))
                rows.append(
                    {
                        self.size: size,
                        "schedule": method,
                        "seeds": len(rmse),
                        "RMSE": with_error(rmse),
                        "worst": max(rmse),
                        "NLL": with_error(nll, 2),
                        "in 90 %": with_error(coverage, 2),
                        "seconds per network": float(np.mean([result["seconds_per_network"] for result in own])),
                    }
                )
        note = (
            f"On {N_TEST:,} new noisy points in the range of the data; mean ± standard error over seeds, each with "
            "data and prior means of its own. Knowing the function would give RMSE 0.050, NLL −1.58 and 0.90. "
            "Sequential: the paper's way (its prior, all points in one batch, one example at a time, in float64), all "
            "seeds at once, so its seconds are a share of theirs, compiling included; other work ran beside it, so "
            "they are upper bounds. The paper shows pictures only"
            + ("; there 4 to 5 layers fit well." if self.size == "layers" else ".")
        )
        return [Table(self.title, rows, note)]

    def draw(self, results: Sequence[Result], folder: Path) -> list[Picture]:
        return [self._draw_scores(results, folder), self._draw_bands(results, folder)]

    def _draw_scores(self, results: Sequence[Result], folder: Path) -> Picture:
        figure = new_figure()
        sizes = _sizes(results, self.size)
        for ax, (name, title, ideal) in zip(
            figure.subplots(1, 2), (("rmse", "RMSE", NOISE_STD), ("nll", "NLL, nats,", -1.58)), strict=True
        ):
            for shift, (method, key) in zip((-0.08, 0.08), METHODS.items(), strict=True):
                own = {size: select(results, method=method, **{self.size: size}) for size in sizes}
                places = [k for k, size in enumerate(sizes) if own[size]]
                if not places:
                    continue
                values = [_pooled(own[sizes[k]], name) for k in places]
                for k, found in zip(places, values, strict=True):
                    ax.plot([k + shift] * len(found), found, ".", color=colour(key), alpha=0.35, ms=5)
                medians = [float(np.median(found)) for found in values]
                ax.plot([k + shift for k in places], medians, "o-", color=colour(key), ms=4, label=TITLES[method])
            ax.axhline(ideal, color=colour("truth"), lw=0.8, ls=":", label="knowing the function")
            ax.set_xticks(range(len(sizes)), labels=[str(size) for size in sizes])
            tidy(ax, xlabel=_axis_title(self.size), ylabel=f"{title} on new points")
        figure.axes[0].set_yscale("log")
        ticks = [tick for tick in RMSE_TICKS if tick <= figure.axes[0].get_ylim()[1]]
        figure.axes[0].set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks], minor=False)
        figure.axes[0].minorticks_off()
        figure.axes[1].set_yscale("symlog", linthresh=2.0)
        ticks = [tick for tick in NLL_TICKS if tick <= max(2.0, figure.axes[1].get_ylim()[1])]
        figure.axes[1].set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks], minor=False)
        figure.axes[1].minorticks_off()
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
        figure.savefig(folder / "scores.png")
        n_seeds = max(len(_pooled(select(results, method=m), "rmse")) // max(1, len(sizes)) for m in METHODS)
        return Picture("scores.png", f"RMSE and NLL: a dot per seed ({n_seeds} seeds), lines through the medians.")

    def _draw_bands(self, results: Sequence[Result], folder: Path) -> Picture:
        sizes = _some(_sizes(results, self.size), COLUMNS)
        methods = [method for method in METHODS if select(results, method=method)]
        figure = new_figure(1.9 * len(sizes) + 0.6, 1.9 * len(methods) + 0.5)
        axes = figure.subplots(len(methods), len(sizes), squeeze=False, sharex=True, sharey=True)
        for row, method in zip(axes, methods, strict=True):
            for ax, size in zip(row, sizes, strict=True):
                found = [r for r in select(results, method=method, **{self.size: size}) if 0 in r["seeds"]]
                if not found:
                    ax.set_axis_off()
                    continue
                self._draw_panel(found[0], method, ax)
                ax.set_title(f"{method}, {_of_size(self.size, size)}", fontsize=9)
        for ax in axes[-1]:
            ax.set_xlabel("x")
        for row in axes:
            row[0].set_ylabel("y")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
        figure.savefig(folder / "bands.png")
        return Picture(
            "bands.png", "Seed 0: mean, and two standard deviations of a new target, noise included. Parallel: ours."
        )

    def _draw_panel(self, result: Result, method: str, ax: Any) -> None:
        high, n_points = result["high"], result["n_points"]
        grid, mean, std = result["grid"], result["mean"][0], result["std"][0]
        key = colour(METHODS[method])
        ax.fill_between(grid, mean - 2 * std, mean + 2 * std, color=key, alpha=0.25, lw=0, label="2 std")
        ax.plot(grid, mean, color=key, lw=1.4, label="mean")
        ax.plot(grid, datasets.sine_function(grid), color=colour("truth"), lw=0.8, ls="--", label="truth")
        x, y = datasets.sine(n_points, high=high, noise_std=NOISE_STD, seed=0)
        ax.plot(x[:, 0], y, ".", color=plots.INK, ms=1.6, alpha=0.5, label="data")
        ax.set_ylim(-2.0, 3.0 if high > 1 else 2.5)
        tidy(ax)


class SineDepth(Sine):
    name = "sine-depth"
    title = "Sine data: 2 to 6 linear layers"
    about = (
        "Networks of width 16 on 200 points of f(x) = 0.5 x + 0.2 sin 2πx + 0.3 sin 4πx, x in [0, 2], with noise of "
        "standard deviation 0.05, which they know. Ours: defaults in batches of 50, trained until at rest (at most "
        "1000 epochs). The paper's way: 500 rounds."
    )
    size = "layers"
    sizes = (2, 3, 4, 5, 6)
    quick_sizes = (2, 3)
    setting: ClassVar[Mapping[str, Any]] = {
        "n_points": 200,
        "high": 2.0,
        "batch_size": 50,
        "max_epochs": 1000,
        "iterations": 500,
    }

    def layers(self, size: int) -> list[Layer]:
        return sine_mlp(size)


class SineWidth(Sine):
    name = "sine-width"
    title = "Sine data: width 4 to 128"
    about = (
        "Two linear layers on 80 points of the same function, x in [0, 1]. Ours: defaults in batches of 20, trained "
        "until at rest (at most 1000 epochs). The paper's way: 500 rounds."
    )
    size = "width"
    sizes = (4, 8, 16, 32, 64, 128)
    quick_sizes = (4, 8)
    setting: ClassVar[Mapping[str, Any]] = {
        "n_points": 80,
        "high": 1.0,
        "batch_size": 20,
        "max_epochs": 1000,
        "iterations": 500,
    }

    def layers(self, size: int) -> list[Layer]:
        return sine_mlp(2, size)


def _moments(network: bmp.Network, x: Floats) -> tuple[Floats, Floats]:
    """Predictive mean and standard deviation (n,) of new targets, in float64."""
    found = network.predict(x)
    return metrics.as_array(found.mean).astype(np.float64).ravel(), metrics.as_array(found.std).astype(float).ravel()


def _pooled(results: Sequence[Result], name: str) -> list[float]:
    """The values of all seeds."""
    return [value for result in results for value in result[name]]


def _sizes(results: Sequence[Result], size: str) -> list[int]:
    return sorted({result[size] for result in results})


def _some(sizes: list[int], n: int) -> list[int]:
    """At most n of them, from the first to the last."""
    return [sizes[round(k)] for k in np.linspace(0, len(sizes) - 1, min(n, len(sizes)))]


def _of_size(what: str, size: int) -> str:
    return f"{size} layers" if what == "layers" else f"width {size}"


def _axis_title(size: str) -> str:
    return "linear layers" if size == "layers" else "units in the hidden layer"
