"""More epochs on the same data: does it get surer? Ours, ours with the data counted twice, and others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bayesmp as bmp
from bayesmp import metrics
from bayesmp.messages.gaussian import Gaussian
from bayesmp.training.history import History
from benchmarks import datasets
from benchmarks.networks import mlp
from experiments.base import Experiment, Options, Picture, Piece, Record, Result, Table, select, with_error
from experiments.learners import Floats, Ivon, Laplace, Learner, Ours, Tagi, gaussians
from experiments.palette import colour, new_figure, tidy
from experiments.stacked import StackedVisit

CHECKPOINTS = (10, 50, 200, 500, 1000)
QUICK_CHECKPOINTS = (10, 13)
SLOW_QUICK = (1, 2)  # epochs of the sequential schedule
N_TEST = 1000
LEVEL = 0.9
DIGITS = {"coverage inside": 3, "coverage outside": 3, "NLL inside": 2, "NLL outside": 2}
NLL_TICKS = (-1, 0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class CountingTwice(bmp.Trainer):
    """A trainer that makes the mistake on purpose: an epoch multiplies a further site of each batch in, beside those of
    the epochs before. After n epochs the data are in the posterior n times: prior x (product of sites)^n. Batches are
    visited for it, one after the other, without an objective of all data.

    With known noise, a site to the power n is the site of targets n times as precise.
    """

    noise_var: float  # of one target

    def __init__(self, network: bmp.Network[Any], x: Floats, y: Floats, **options: Any) -> None:
        super().__init__(network, x, y, joint=True, **options)

    def run(self, epochs: int | str = "auto", *, max_epochs: int = 1000, progress: bool | None = None) -> History:
        assert isinstance(epochs, int), "data that count once more each epoch never come to rest"
        for _ in range(epochs):
            self.network.head = bmp.Regression(self.noise_var / (self.n_epochs + 1))
            with warnings.catch_warnings():  # data counted so often do end so
                warnings.filterwarnings("ignore", message="training ended worse than a constant")
                history = super().run(1, progress=progress)
        return history


class OursTwice(Ours):
    """This library with `CountingTwice`; new targets have the noise that they have."""

    def _new_trainer(self, x: Floats, y: Floats, seed: int) -> bmp.Trainer:
        trainer = CountingTwice(self._network, x, y, batch_size=self.batch_size, seed=seed)
        assert self._noise_var is not None
        trainer.noise_var = self._noise_var
        return trainer

    def predictive(self, x: Floats) -> bmp.RegressionPrediction:
        assert isinstance(self._trainer, CountingTwice)
        return replace(super().predictive(x), noise_var=torch.tensor(self._trainer.noise_var))


@dataclass(frozen=True)
class Draw:
    """Standardised training data of a seed, and the noise in these units."""

    x: Floats
    y: Floats
    noise_var: float
    seed: int


class Sequential:
    """The sequential schedule with the paper's prior: all data in one batch, an epoch is a round through it. A network
    per draw; they are trained together and share the orders.

    Args:
        draws: of equal size.
        hidden: widths of the hidden layers.
        counts_twice: each round multiplies second messages in instead of replacing the first ones.
    """

    def __init__(self, draws: Sequence[Draw], hidden: Sequence[int], *, counts_twice: bool = False) -> None:
        layers = mlp(draws[0].x.shape[1], *hidden, 1)
        self.networks = [
            bmp.Network(layers, bmp.Regression(draw.noise_var), seed=draw.seed, prior="paper").to(torch.float64)
            for draw in draws
        ]
        x, y = (torch.as_tensor(np.stack([getattr(draw, part) for draw in draws])) for part in "xy")
        self.counts_twice = counts_twice
        self._visit = StackedVisit(self.networks, x, y[..., None])
        self._generator = torch.Generator().manual_seed(draws[0].seed)

    def train(self, epochs: int) -> None:
        n_examples = self._visit.x.shape[1]
        self._visit.expect(epochs * n_examples)
        for _ in range(epochs):
            if self.counts_twice:
                self._visit.count_again()
            self._visit.iterate(torch.randperm(n_examples, generator=self._generator).tolist())
        for k, network in enumerate(self.networks):
            network.marginal = Gaussian(self._visit.marginal.tau[k].clone(), self._visit.marginal.rho[k].clone())

    def predict(self, k: int, x: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of new targets, by network k."""
        found = self.networks[k].predict(x)
        return found.mean.numpy().ravel(), found.var.numpy().ravel()

    def predictive(self, k: int, x: Floats) -> bmp.RegressionPrediction:
        return gaussians(*self.predict(k, x))


LEARNED = "-learned"  # behind a method: it is not told the noise
ALONE: dict[str, Callable[..., Learner]] = {
    "ours": Ours,
    "ours-learned": Ours,
    "twice": OursTwice,
    "tagi": Tagi,
    "laplace": Laplace,
    "laplace-learned": Laplace,
    "ivon": Ivon,
    "ivon-learned": Ivon,
}
TITLES = {  # the methods, in order
    "ours": "ours",
    "ours-learned": "ours, noise learned",
    "twice": "ours, counting twice",
    "sequential": "sequential",
    "sequential-twice": "sequential, counting twice",
    "tagi": "TAGI",
    "laplace": "Laplace",
    "laplace-learned": "Laplace, noise learned",
    "ivon": "IVON",
    "ivon-learned": "IVON, noise learned",
}


@dataclass(frozen=True)
class Task:
    """A function of one input, where data are, where one looks outside of them, and a network for it."""

    function: Callable[[Floats], Floats]
    noise_std: float
    n_train: int
    inside: tuple[float, float]
    outside: tuple[tuple[float, float], ...]
    hidden: tuple[int, ...]

    def draw(self, low: float, high: float, n: int, seed: Sequence[int]) -> tuple[Floats, Floats]:
        rng = np.random.default_rng(seed)
        x = rng.uniform(low, high, (n, 1))
        return x, self.function(x[:, 0]) + self.noise_std * rng.standard_normal(n)


TASKS = {
    "sine": Task(datasets.sine_function, 0.05, 200, (0.0, 2.0), ((-1.0, 0.0), (2.0, 3.0)), (16, 16, 16)),
    "cubic": Task(lambda x: x**3, 3.0, 100, (-4.0, 4.0), ((-6.0, -4.0), (4.0, 6.0)), (50,)),
}


class Epochs(Experiment):
    name = "epochs"
    title = "More epochs on the same data"
    about = (
        "One-dimensional regression, the noise known unless it says learned: the paper's sine function (200 points, "
        "three hidden layers of 16) and y = x³ (100 points in [-4, 4], noise 3, one hidden layer of 50), both "
        "standardised. After more and more epochs: NLL and the share of new noisy targets inside the 90 % intervals, "
        "in the range of the data and beside it (as wide again in all for sine, half as wide for the cubic). A network "
        "that is told the noise has no room for its errors as long as its means are not there yet; one that learns it, "
        "as ours does by default, calls them noise. Counting twice: ours, with a further "
        "site of each batch multiplied in at each epoch instead of replacing the one before (sites to the power n "
        "after n epochs); the sequential schedule, where each message is multiplied in once more at each epoch "
        "instead of replacing its last one. Both for this experiment only."
    )
    parts = tuple(TITLES)
    seeds = 5
    quick_seeds = 1

    def pieces(self, options: Options) -> list[Piece]:
        planned = []
        seeds = list(range(self.n_seeds(options)))
        for task in ("cubic",) if options.quick else TASKS:
            for method in self.chosen_parts(options):
                is_stacked = method not in ALONE
                at = (SLOW_QUICK if is_stacked else QUICK_CHECKPOINTS) if options.quick else CHECKPOINTS
                own = {"task": task, "method": method, "at": list(at)}
                label = f"{task}, {method}"
                if is_stacked:
                    planned.append(Piece(f"{label}, seeds 0 to {seeds[-1]}", {**own, "seeds": seeds}, cost=50.0))
                else:
                    planned += [Piece(f"{label}, seed {seed}", {**own, "seed": seed}) for seed in seeds]
        return planned

    def compute(self, parameters: Mapping[str, Any], options: Options) -> Record:
        task, method = TASKS[parameters["task"]], parameters["method"]
        seeds = parameters["seeds"] if method not in ALONE else [parameters["seed"]]
        scales, draws = zip(*[_standardised(task, seed) for seed in seeds], strict=True)
        predictives: list[Callable[[Floats], bmp.RegressionPrediction]]
        if method in ALONE:
            (draw,) = draws
            noise_var = None if method.endswith(LEARNED) else draw.noise_var
            learner = ALONE[method](draw.x, draw.y, task.hidden, noise_var=noise_var, seed=draw.seed)
            train, predictives = learner.train, [learner.predictive]
        else:
            stack = Sequential(draws, task.hidden, counts_twice=method == "sequential-twice")
            train, predictives = stack.train, [partial(stack.predictive, k) for k in range(len(seeds))]
        curves: list[Record] = [{} for _ in seeds]
        done = 0
        for until in parameters["at"]:
            train(until - done)
            done = until
            for curve, seed, scale, predictive in zip(curves, seeds, scales, predictives, strict=True):
                for place, (x, y) in _tests(task, seed).items():
                    for name, value in _scores(predictive(scale.x(x)), scale.y(y)).items():
                        curve.setdefault(f"{name} {place}", []).append(value)
        joined = curves[0] if method in ALONE else {name: [curve[name] for curve in curves] for name in curves[0]}
        return {"epochs": list(parameters["at"]), **joined}

    def summarise(self, results: Sequence[Result]) -> list[Table]:
        note = (
            f"Mean ± standard error over seeds; {N_TEST:,} new targets in each range, in standardised units. "
            "Calibrated: 0.90. Sequential: the paper's way (its prior, all points in one batch, one example at a "
            "time, in float64). TAGI: pytagi, batches of 10; Laplace: laplace-torch, full curvature at the weights "
            "that AdamW has reached; IVON: ivon-opt, 100 samples; its settings were chosen on another draw, with the "
            "noise known. Noise learned: by ours with tails and by place (NLL and intervals are those of its own "
            "predictions), by Laplace with the marginal likelihood, by IVON as the mean squared error of an epoch's "
            "draws, which maximises its bound; not by TAGI, whose way needs another output, nor by the paper's."
        )
        tables = []
        for task in dict.fromkeys(result["task"] for result in results):
            rows = []
            for method in TITLES:
                own = select(results, task=task, method=method)
                curves = {name: _pooled(own, name) for name in DIGITS} if own else {}
                n_seeds = sum(len(_seeds(result)) for result in own)
                for k, epochs in enumerate(own[0]["epochs"] if own else ()):
                    row: dict[str, Any] = {"method": TITLES[method], "epochs": epochs, "seeds": n_seeds}
                    row |= {name: with_error(values[:, k].tolist(), DIGITS[name]) for name, values in curves.items()}
                    rows.append(row)
            tables.append(Table(f"More epochs, {task}", rows, note))
        return tables

    def draw(self, results: Sequence[Result], folder: Path) -> list[Picture]:
        n_seeds = len({seed for result in results for seed in _seeds(result)})
        means = (
            f"Means over {n_seeds} seeds, in the range of the data and beside it; dotted: what intervals should hold."
        )
        learned = [result for result in results if result["method"].endswith(LEARNED)]
        known = [result for result in results if result not in learned]
        pictures = []
        if known:
            _draw_curves(known, folder / "epochs.png")
            pictures.append(Picture("epochs.png", f"The noise known. {means}"))
        if learned:
            told = [result for result in known if result["method"] + LEARNED in TITLES]
            _draw_curves([*told, *learned], folder / "noise.png")
            pictures.append(Picture("noise.png", f"The noise known (solid) and learned (dashed). {means}"))
        return pictures


def _draw_curves(results: Sequence[Result], file: Path) -> None:
    """Scores by epoch, a row of panels per task."""
    tasks = list(dict.fromkeys(result["task"] for result in results))
    figure = new_figure(7.6, 2.9 * len(tasks))
    axes = figure.subplots(len(tasks), 3, squeeze=False)
    columns = (
        ("coverage inside", "share in 90 %, inside"),
        ("coverage outside", "share in 90 %, outside"),
        ("NLL outside", "NLL outside, nats"),
    )
    for row, task in zip(axes, tasks, strict=True):
        for ax, (name, title) in zip(row, columns, strict=True):
            for method in TITLES:
                own = select(results, task=task, method=method)
                if own:
                    means = _pooled(own, name).mean(axis=0)
                    is_variant = method.endswith(LEARNED) or "counting twice" in TITLES[method]
                    look = {"color": colour(TITLES[method]), "label": TITLES[method]}
                    ax.plot(own[0]["epochs"], means, "o--" if is_variant else "o-", ms=3.5, lw=1.5, **look)
            ax.set_xscale("log")
            ticks = sorted({epochs for result in select(results, task=task) for epochs in result["epochs"]})
            ax.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks], rotation=45, fontsize=8)
            ax.minorticks_off()
            tidy(ax, xlabel="epochs", ylabel=f"{task}: {title}")
            if "coverage" in name:
                ax.axhline(LEVEL, color=colour("truth"), lw=0.8, ls=":")
                ax.set_ylim(-0.03, 1.03)
            else:
                ax.set_yscale("symlog", linthresh=2.0)
                lowest = min(line.get_ydata().min() for line in ax.get_lines())
                ax.set_ylim(-1.5 if lowest < 1.0 else 1.0, max(2.0, 1.3 * ax.get_ylim()[1]))
                levels = [level for level in NLL_TICKS if ax.get_ylim()[0] <= level <= ax.get_ylim()[1]]
                ax.set_yticks(levels, labels=[f"{level:g}" for level in levels])
                ax.minorticks_off()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=3 if len(labels) < 7 else 4, frameon=False, fontsize=9
    )
    figure.savefig(file, dpi=115)  # many panels, and the guide wants small files


@dataclass(frozen=True)
class Scale:
    """From the units of a task to those that networks see."""

    x_mean: float
    x_std: float
    y_mean: float
    y_std: float

    def x(self, x: Floats) -> Floats:
        return (x - self.x_mean) / self.x_std

    def y(self, y: Floats) -> Floats:
        return (y - self.y_mean) / self.y_std


def _standardised(task: Task, seed: int) -> tuple[Scale, Draw]:
    """Training data of a seed."""
    x, y = task.draw(*task.inside, task.n_train, [seed, 0])
    scale = Scale(x.mean(), x.std(), y.mean(), y.std())
    return scale, Draw(scale.x(x), scale.y(y), float((task.noise_std / scale.y_std) ** 2), seed)


def _tests(task: Task, seed: int) -> dict[str, tuple[Floats, Floats]]:
    """New points, in the range of the data and beside it."""
    found = {}
    for place, intervals in {"inside": (task.inside,), "outside": task.outside}.items():
        draws = [task.draw(*ends, N_TEST, [seed, 1, k]) for k, ends in enumerate(intervals)]
        found[place] = (np.concatenate([x for x, _ in draws]), np.concatenate([y for _, y in draws]))
    return found


def _pooled(results: Sequence[Result], name: str) -> Floats:
    """A score of all seeds, (seed, checkpoint): pieces hold one seed or several."""
    return np.concatenate([np.atleast_2d(result[name]) for result in results])


def _seeds(result: Result) -> list[int]:
    seeds: list[int] = [result["seed"]] if result["method"] in ALONE else result["seeds"]
    return seeds


def _scores(found: bmp.RegressionPrediction, y: Floats) -> dict[str, float]:
    """NaN where a method has diverged."""
    if not (found.mean.isfinite().all() and found.var.isfinite().all() and (found.var > 0).all()):
        return {"NLL": float("nan"), "coverage": float("nan")}
    low, high = found.interval(LEVEL)
    return {"NLL": -float(found.log_prob(y).double().mean()), "coverage": metrics.interval_coverage(low, high, y)}
