"""Reference posteriors: three small regression problems, and what long runs of NUTS say about them.

`make.py` makes the files `NAME.npz` that lie here; nothing else here needs its packages.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayesmp import data

FOLDER = Path(__file__).parent
NOISE_STD = 0.05
NOISE_VAR = NOISE_STD**2  # known to the model


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, where its training inputs lie, and where its output is looked at."""

    widths: tuple[int, ...]
    intervals: tuple[tuple[float, float], ...]  # of the inputs, from left to right
    n_per_interval: int
    grid: tuple[float, float, int]  # from, to, points

    def training_data(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Inputs (n, 1), uniform in each interval, and targets (n,); with one interval those of `data.sine`."""
        rng = np.random.default_rng(0)
        x = np.concatenate([rng.uniform(low, high, size=(self.n_per_interval, 1)) for low, high in self.intervals])
        return x, data.sine_function(x[:, 0]) + NOISE_STD * rng.standard_normal(len(x))

    def grid_points(self) -> NDArray[np.float64]:
        """Inputs (n, 1) of the comparison."""
        return np.linspace(*self.grid)[:, None]

    def regions(self, x_train: NDArray[np.float64], grid: NDArray[np.float64]) -> dict[str, NDArray[np.bool_]]:
        """Which grid points lie inside the data, near (within half their range), far, and in a gap between intervals.

        Args:
            x_train: (n, 1).
            grid: (g, 1).
        """
        points, low, high = grid[:, 0], float(x_train.min()), float(x_train.max())
        half = (high - low) / 2
        inside = (points >= low) & (points <= high)
        near = ((points < low) & (points > low - half)) | ((points > high) & (points < high + half))
        found = {"inside": inside, "near": near, "far": (points < low - half) | (points > high + half)}
        ends = [left[1] for left in self.intervals[:-1]]
        starts = [right[0] for right in self.intervals[1:]]
        gap = np.zeros_like(inside)
        for end, start in zip(ends, starts, strict=True):
            gap |= (points > end) & (points < start)
        if gap.any():
            found["inside"] = inside & ~gap
            found["gap"] = gap
        return found


CASES = {
    "sine": Case(widths=(1, 16, 16, 16, 1), intervals=((0.0, 2.0),), n_per_interval=200, grid=(-1.0, 3.0, 201)),
    "uncertainty": Case(widths=(1, 32, 32, 1), intervals=((-0.5, 0.5),), n_per_interval=200, grid=(-20.5, 20.5, 411)),
    "gap": Case(widths=(1, 32, 32, 1), intervals=((-1.0, -0.3), (0.5, 1.2)), n_per_interval=60, grid=(-2.5, 2.5, 251)),
}
