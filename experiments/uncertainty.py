"""Far away from the data: does the band hold the true function? A hundred networks, as in the paper, all on the same
data; and each on data of its own.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import bayesmp as bmp
from benchmarks import datasets
from benchmarks.networks import mlp
from benchmarks.references import CASES, FOLDER, NOISE_VAR
from benchmarks.truth import Reference
from experiments.base import Experiment, Options, Picture, Piece, Record, Result, Table, select
from experiments.palette import colour, new_figure, tidy
from experiments.stacked import visit_all

CASE = CASES["uncertainty"]  # 200 points in [-0.5, 0.5], 1-32-32-1
GRID = np.round(np.arange(-20.5, 20.5 + 0.025, 0.05), 2)
FAR = 10.0
SIGMAS = (1, 2, 3)
MASSES = np.arange(0.02, 0.985, 0.02)  # of the central intervals
CHUNKS = {"ours": 10, "sequential": 50}  # networks per piece; sequential ones are trained along one axis
OWN = "-own"  # behind a way of training: each network has its own draw of the data
TITLES = {  # the methods, in order
    "ours": "ours",
    "ours-own": "ours, each network its own data",
    "sequential": "the paper's way, by us",
    "sequential-own": "the paper's way, each network its own data",
}
PAPER = {"left": (0.61, 0.86, 0.93), "right": (0.36, 0.68, 0.90), "correlations": (0.99, 0.96, 0.90)}

Floats = NDArray[np.float64]


class Uncertainty(Experiment):
    name = "uncertainty"
    title = "Far away from the data: a hundred networks"
    about = (
        "Networks 1-32-32-1 with different seeds on one data set, 200 points of the sine function in [-0.5, 0.5]; how "
        "many of them hold the true function within 1, 2 and 3 standard deviations (without noise) at each point of a "
        "grid from -20.5 to 20.5. Then the same with new points for each network. Ours: defaults in batches of 50, "
        "until at rest. Sequential, the paper's way: its prior, all points in one batch, 500 rounds, the networks "
        "along one axis of the same equations."
    )
    parts = tuple(TITLES)
    seeds = 100
    quick_seeds = 2

    def pieces(self, options: Options) -> list[Piece]:
        n = self.n_seeds(options)
        training: dict[str, dict[str, Any]] = {
            "ours": {"batch_size": 50, "max_epochs": 10 if options.quick else 1000},
            "sequential": {"iterations": 1 if options.quick else 500},
        }
        planned = []
        for method in self.chosen_parts(options):
            way = method.removesuffix(OWN)
            for start in range(0, n, CHUNKS[way]):
                seeds = list(range(start, min(n, start + CHUNKS[way])))
                label = f"{method}, seeds {seeds[0]} to {seeds[-1]}"
                planned.append(Piece(label, {"method": method, "seeds": seeds, **training[way]}))
        return planned

    def compute(self, parameters: Mapping[str, Any], options: Options) -> Record:
        method, seeds = parameters["method"], parameters["seeds"]
        is_sequential = method.removesuffix(OWN) == "sequential"
        x, y = training_data(method, seeds)
        prior: dict[str, Any] = {"prior": "paper"} if is_sequential else {}
        networks = [bmp.Network(mlp(*CASE.widths), bmp.Regression(NOISE_VAR), seed=seed, **prior) for seed in seeds]
        started = time.perf_counter()
        if is_sequential:
            x_all, y_all = (torch.as_tensor(np.stack(part)) for part in (x, y))
            seconds = visit_all(networks, x_all, y_all, iterations=parameters["iterations"], scratch=options.scratch)
        else:
            limits = {name: parameters[name] for name in ("batch_size", "max_epochs")}
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*not at rest")
                bmp.fit_many(networks, x, y, workers=1, progress=False, **limits)
            seconds = time.perf_counter() - started
        found = [network.predict(GRID[:, None]) for network in networks]
        names = ("mean", "epistemic_var")
        mean, var = (torch.stack([getattr(each, name).flatten() for each in found]) for name in names)
        return {
            "seconds_per_network": seconds / len(networks),
            "mean": mean.float().numpy(),  # (network, g)
            "std": var.sqrt().float().numpy(),
        }

    def summarise(self, results: Sequence[Result]) -> list[Table]:
        rows: list[dict[str, Any]] = []
        for method, title in TITLES.items():
            own = select(results, method=method)
            if own:
                seconds = np.mean([result["seconds_per_network"] for result in own])
                rows.append(_row(title, Bands.of(own)) | {"seconds": float(seconds)})
        paper = _as_row("the paper (published)", 100, *PAPER.values())
        return [
            Table(
                "Share of networks that hold the true function, in %",
                [*rows, paper, _row("NUTS, one posterior", Bands.of_nuts())],
                "At 1/2/3 standard deviations, median over the points x < -10 or x > 10. Correlation: of the credible "
                "mass of central intervals (2 % to 98 %) with the median coverage on each side, and of both sides' "
                "points together (our reading of the paper). On one data set exact inference has the same band for "
                "each seed, so that its median coverage is a step from 0 to 1, where the interval reaches the truth: "
                "NUTS's has the correlations of the last row, and no step has more than 0.87. There only scatter "
                "between seeds comes near 0.95. With its own data for each network bands differ as the data do, and "
                "bands that are as wide as their errors come near 1. A correlation tells whether the curve is "
                "straight; whether it lies where it should, the shares tell (calibrated: 68/95/100). Seconds per "
                "network; those of the paper's way beside other work, so upper bounds.",
            )
        ]

    def draw(self, results: Sequence[Result], folder: Path) -> list[Picture]:
        return [self._draw_curves(results, folder), self._draw_bands(results, folder)]

    def _draw_curves(self, results: Sequence[Result], folder: Path) -> Picture:
        figure = new_figure(7.2, 4.1)
        axes = figure.subplots(1, 2, sharey=True)
        shown = {method: Bands.of(own) for method in TITLES if (own := select(results, method=method))}
        for method, bands in shown.items():
            for ax, curve in zip(axes, bands.far_coverage(MASSES), strict=True):
                style = "--" if method.endswith(OWN) else "-"
                ax.plot(MASSES, curve, style, color=colour(method), lw=1.8, label=TITLES[method])
        for ax, curve in zip(axes, Bands.of_nuts().far_coverage(MASSES), strict=True):
            ax.plot(MASSES, curve, color=colour("NUTS"), lw=1.2, drawstyle="steps-mid", label="NUTS, one posterior")
        for ax, title in zip(axes, (f"x < -{FAR:g}", f"x > {FAR:g}"), strict=True):
            published = PAPER["left" if title.startswith("x <") else "right"]
            look: dict[str, Any] = {"mfc": "none", "ms": 5, "clip_on": False, "label": "the paper, published"}
            ax.plot(_masses_of_sigmas(), published, "D", color=colour("truth"), **look)
            ax.plot([0, 1], [0, 1], color=colour("truth"), lw=0.8, ls=":", label="calibrated")
            tidy(ax, title=title, xlabel="credible mass of the interval", xlim=(0, 1), ylim=(0, 1.02))
        axes[0].set_ylabel("networks that hold the truth, share")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=9)
        figure.savefig(folder / "coverage.png")
        caption = (
            f"Coverage of the true function far from the data, median over the points; "
            f"{min(len(bands.mean) for bands in shown.values())} networks each, all on one data set (solid) or each "
            "on its own (dashed). The paper: as published, at 1, 2 and 3 standard deviations."
        )
        return Picture("coverage.png", caption)

    def _draw_bands(self, results: Sequence[Result], folder: Path) -> Picture:
        """Of one data set: the first network's own data are the same."""
        panels: dict[str, Bands] = {}
        for method in TITLES:
            own = [result for result in select(results, method=method) if 0 in result["seeds"]]
            if own and not method.endswith(OWN):
                panels[method] = Bands.of(own)
        panels["NUTS"] = Bands.of_nuts()
        figure = new_figure(2.5 * len(panels), 2.9)
        for ax, (method, bands) in zip(
            figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True
        ):
            x, mean, std, key = bands.x, bands.mean[0], bands.std[0], colour(method)
            for width, alpha in ((3, 0.15), (2, 0.2), (1, 0.3)):
                ax.fill_between(x, mean - width * std, mean + width * std, color=key, alpha=alpha, lw=0)
            ax.plot(x, mean, color=key, lw=1.4)
            ax.plot(GRID, datasets.sine_function(GRID), color=colour("truth"), lw=0.7)
            tidy(ax, title=TITLES.get(method, method), xlabel="x", ylim=(-30, 30))
        figure.axes[0].set_ylabel("f(x)")
        figure.savefig(folder / "bands.png")
        return Picture("bands.png", "Seed 0: mean and 1, 2, 3 standard deviations of the function; black: the truth.")


@dataclass(frozen=True, eq=False)
class Bands:
    """What networks believe of the function, without noise."""

    x: Floats  # (g,)
    mean: Floats  # (network, g)
    std: Floats

    @classmethod
    def of(cls, results: Sequence[Result]) -> Bands:
        """All networks of these pieces."""
        mean, std = (np.concatenate([result[name] for result in results]) for name in ("mean", "std"))
        return cls(GRID, mean.astype(np.float64), std.astype(np.float64))

    @classmethod
    def of_nuts(cls) -> Bands:
        """The exact posterior on the one data set: one band, whatever the seed."""
        reference = Reference.load(FOLDER / "uncertainty.npz", CASE)
        return cls(reference.grid[:, 0], reference.f_mean[None], reference.f_std[None])

    def far_coverage(self, masses: Floats) -> tuple[Floats, Floats]:
        """Median coverage over the points far on the left, and far on the right, by mass."""
        covered = coverage_at(self.mean, self.std, datasets.sine_function(self.x), masses)
        return np.median(covered[:, self.x < -FAR], axis=1), np.median(covered[:, self.x > FAR], axis=1)


def training_data(method: str, seeds: Sequence[int]) -> tuple[list[Floats], list[Floats]]:
    """Inputs (n, 1) and targets (n,) for the network of each seed: the same for all, or its own draw."""
    draws = [CASE.training_data(seed if method.endswith(OWN) else 0) for seed in seeds]
    return [x for x, _ in draws], [y for _, y in draws]


def coverage_at(mean: Floats, std: Floats, truth: Floats, masses: Floats) -> Floats:
    """The share of networks whose central interval of each mass holds the truth, (m, g).

    Args:
        mean, std: (network, g).
        truth: (g,).
        masses: (m,), between 0 and 1.
    """
    distance = np.abs(truth - mean) / std
    widths = np.array([NormalDist().inv_cdf(0.5 + 0.5 * mass) for mass in masses])
    return np.stack([(distance <= width).mean(axis=0) for width in widths])


def mass_correlations(left: Floats, right: Floats) -> tuple[float, float, float]:
    """Correlation of MASSES with the coverage on each side, and with both sides' points pooled; 0 for a flat curve."""

    def correlation(masses: Floats, curve: Floats) -> float:
        return float(np.corrcoef(masses, curve)[0, 1]) if np.ptp(curve) > 0 else 0.0

    pooled = correlation(np.tile(MASSES, 2), np.concatenate([left, right]))
    return correlation(MASSES, left), correlation(MASSES, right), pooled


def _masses_of_sigmas() -> Floats:
    return np.array([2.0 * NormalDist().cdf(sigma) - 1.0 for sigma in SIGMAS])


def _row(title: str, bands: Bands) -> dict[str, Any]:
    shares = bands.far_coverage(_masses_of_sigmas())
    return _as_row(title, len(bands.mean), *shares, mass_correlations(*bands.far_coverage(MASSES)))


def _as_row(title: str, n: int, left: Any, right: Any, correlations: Any) -> dict[str, Any]:
    def percent(shares: Any) -> str:
        return "/".join(f"{100 * share:.0f}" for share in shares)

    names = ("corr. x < 0", "corr. x > 0", "corr. both")
    found = {"": title, "networks": n, "x < -10, 1/2/3 std": percent(left), "x > 10, 1/2/3 std": percent(right)}
    return found | dict(zip(names, correlations, strict=True))
