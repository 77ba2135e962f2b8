"""Depth and width on the paper's sine data: one panel per network, and a table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from bayesmp import Network, fit, metrics, plots
from bayesmp.data import sine, sine_function
from bayesmp.demo import NOISE_STD, score, sine_network

OUTPUTS = Path(__file__).parent / "outputs"
BATCH_SIZE = 50  # of the depth sweep; the width sweep has 80 points and takes four batches of 20


@dataclass(frozen=True)
class Case:
    """One network and the data it sees."""

    name: str
    hidden: tuple[int, ...]
    n_points: int
    high: float  # training inputs are uniform in [0, high]
    batch_size: int


DEPTHS = [Case(f"{depth} layers of 16", (16,) * (depth - 1), 200, 2.0, BATCH_SIZE) for depth in range(2, 7)]
WIDTHS = [Case(f"width {width}, 2 layers", (width,), 80, 1.0, 20) for width in (4, 8, 16, 32, 64, 128)]
SWEEPS = {"depth": DEPTHS, "width": WIDTHS}


def run_case(case: Case, *, epochs: int, seed: int) -> tuple[Network, dict[str, float | str]]:
    """Train one network; scores on 1000 new noisy points in the range of its data."""
    x, y = sine(case.n_points, high=case.high, noise_std=NOISE_STD, seed=seed)
    network = sine_network(case.hidden, seed=seed)
    history = fit(network, x, y, epochs=epochs, batch_size=case.batch_size, seed=seed, progress=False)
    scores = score(network, *sine(1000, high=case.high, noise_std=NOISE_STD, seed=seed + 1_000_000))
    return network, {
        "network": case.name,
        "train_rmse": metrics.rmse(network.predict(x).mean, y),
        "test_rmse": scores.rmse,
        "test_nll": scores.nll,
        "in_90": scores.coverage[1],
        "seconds": sum(history.column("seconds")),
    }


def draw_case(case: Case, network: Network, row: dict[str, float | str], *, seed: int, ax: Axes) -> None:
    margin = case.high / 2
    grid = np.linspace(-margin, case.high + margin, 401)
    prediction = network.predict(grid[:, None])
    data = sine(case.n_points, high=case.high, noise_std=NOISE_STD, seed=seed)
    plots.regression_bands(grid, prediction.mean, prediction.std, data=data, truth=sine_function, ax=ax)
    ax.set_title(f"{case.name}: RMSE {row['test_rmse']:.3f}, NLL {row['test_nll']:.2f}", fontsize=10, loc="left")
    ax.set(ylim=(-2.5, 3.5), xlabel="", ylabel="")
    ax.get_legend().remove()


def run_sweep(name: str, cases: Sequence[Case], *, epochs: int, seed: int, out: Path) -> list[dict[str, float | str]]:
    """Train all cases, print a row for each, and write outputs/<name>.png."""
    figure, axes = plt.subplots(2, 3, figsize=(12, 6.4), layout="constrained", dpi=110, sharey=True)
    print(f"\n{name:<22}{'train RMSE':>12}{'RMSE':>8}{'NLL':>8}{'in 90 %':>9}{'seconds':>9}")
    rows = []
    for case, ax in zip(cases, axes.flat, strict=False):
        network, row = run_case(case, epochs=epochs, seed=seed)
        draw_case(case, network, row, seed=seed, ax=ax)
        rows.append(row)
        print(
            f"{case.name:<22}{row['train_rmse']:>12.3f}{row['test_rmse']:>8.3f}{row['test_nll']:>8.2f}"
            f"{row['in_90']:>9.2f}{row['seconds']:>9.1f}",
            flush=True,
        )
    for ax in axes.flat[len(cases) :]:
        ax.set_axis_off()
    handles, labels = (part[::-1] for part in axes.flat[0].get_legend_handles_labels())
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    figure.savefig(out / f"{name}.png")
    plt.close(figure)
    print(f"picture: {out / f'{name}.png'}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", choices=["all", *SWEEPS], default="all")
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUTPUTS, help="folder for the pictures and results.json")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = SWEEPS if options.sweep == "all" else {options.sweep: SWEEPS[options.sweep]}
    results = {
        name: run_sweep(name, cases, epochs=options.epochs, seed=options.seed, out=options.out)
        for name, cases in chosen.items()
    }
    record = {"epochs": options.epochs, "seed": options.seed, "results": results}
    (options.out / "results.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
