"""The demo: a small network on the paper's sine data, scored and drawn where it has data and where it has none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayesmp import metrics, plots
from bayesmp.basics import atomic
from bayesmp.data import NOISE_STD, sine, sine_function
from bayesmp.heads import Regression, RegressionPrediction
from bayesmp.layers import Layer, LeakyReLU, Linear
from bayesmp.network.network import Network
from bayesmp.training.history import History
from bayesmp.training.trainer import Trainer

EPOCHS = 400  # two to three seconds of one core
BATCH_SIZE = 50
HIDDEN = (16, 16, 16)
LEAK = 0.1
DATA_RANGE = (0.0, 2.0)
SHOWN_RANGE = (-1.0, 3.0)
N_TEST = 1000  # fresh noisy points for each row of the table
TEST_SEEDS = 1_000_000  # added to the seed: no run trains on another run's test points

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """How well new noisy points are predicted."""

    rmse: float
    nll: float
    coverage: tuple[float, float]  # share of the points in the 50 and in the 90 % interval


@dataclass(frozen=True)
class DemoResult:
    """A trained network, what it was trained on, and how it does inside and outside the data's range."""

    network: Network
    history: History
    x: Floats
    y: Floats
    inside: Scores
    outside: Scores

    @property
    def seconds(self) -> float:
        """Time spent in training."""
        return sum(self.history.column("seconds"))


def sine_network(hidden: Sequence[int] = HIDDEN, *, seed: int = 0) -> Network:
    """Linear layers of these widths with LeakyReLU between them, from one input to one output, known noise."""
    sizes = [1, *hidden, 1]
    layers: list[Layer] = []
    for n_in, n_out in pairwise(sizes):
        layers += [Linear(n_in, n_out), LeakyReLU(LEAK)]
    return Network(layers[:-1], Regression(NOISE_STD**2), seed=seed)


def run_demo(*, seed: int = 0, epochs: int = EPOCHS, progress: bool | None = None) -> DemoResult:
    """Train on 200 noisy points of the sine data and score the result on new ones.

    Args:
        seed: draws the data, the prior means and the batches.
        epochs: visits to each of the four batches.
        progress: as for `Trainer.run`.
    """
    low, high = DATA_RANGE
    x, y = sine(low=low, high=high, noise_std=NOISE_STD, seed=seed)
    network = sine_network(seed=seed)
    history = Trainer(network, x, y, batch_size=BATCH_SIZE, seed=seed).run(epochs, progress=progress)
    inside = sine(N_TEST, low=low, high=high, noise_std=NOISE_STD, seed=TEST_SEEDS + seed)
    below = sine(N_TEST // 2, low=SHOWN_RANGE[0], high=low, noise_std=NOISE_STD, seed=TEST_SEEDS + seed)
    above = sine(N_TEST // 2, low=high, high=SHOWN_RANGE[1], noise_std=NOISE_STD, seed=TEST_SEEDS + seed)
    outside = (np.concatenate([below[0], above[0]]), np.concatenate([below[1], above[1]]))
    return DemoResult(network, history, x, y, score(network, *inside), score(network, *outside))


def score(network: Network, x: Floats, y: Floats) -> Scores:
    """Scores of the network's predictive Gaussians at x (n, 1) against y (n,)."""
    prediction = network.predict(x)
    mean, std = prediction.mean, prediction.std
    return Scores(
        metrics.rmse(mean, y),
        metrics.gaussian_nll(mean, std.square(), y),
        (metrics.coverage(mean, std, y, 0.5), metrics.coverage(mean, std, y, 0.9)),
    )


def format_table(result: DemoResult) -> str:
    """The scores as a table; its last row is what knowing the true function would give."""
    (low, high), (left, right) = DATA_RANGE, SHOWN_RANGE
    entropy = 0.5 * math.log(2.0 * math.pi * math.e * NOISE_STD**2)
    rows = [
        (f"inside the data, x in [{low:g}, {high:g}]", result.inside),
        (f"outside, x in [{left:g}, {low:g}] or [{high:g}, {right:g}]", result.outside),
        ("if the function were known", Scores(NOISE_STD, entropy, (0.5, 0.9))),
    ]
    lines = [f"{'':<36}{'RMSE':>8}{'NLL':>9}{'in 50 %':>10}{'in 90 %':>10}"]
    lines.append("-" * len(lines[0]))
    for name, scores in rows:
        half, most = (f"{100 * share:.0f} %" for share in scores.coverage)
        lines.append(f"{name:<36}{scores.rmse:>8.3f}{scores.nll:>9.2f}{half:>10}{most:>10}")
    return "\n".join(lines)


def draw(result: DemoResult, path: str | Path) -> Path:
    """Write the picture (data, true function, mean, bands of 1 to 3 std) to a file, and return its absolute path."""
    plots.require_matplotlib()
    from matplotlib.figure import Figure  # not pyplot: a file needs no window

    path = Path(path).expanduser().resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(7.6, 4.0), layout="constrained", dpi=150)
    grid = np.linspace(*SHOWN_RANGE, 801)
    prediction: RegressionPrediction = result.network.predict(grid[:, None])
    plots.regression_bands(
        grid, prediction.mean, prediction.std, data=(result.x, result.y), truth=sine_function, ax=figure.subplots()
    )
    with atomic.writing(path) as file:
        figure.savefig(file, format=path.suffix.removeprefix(".") or None)
    return path
