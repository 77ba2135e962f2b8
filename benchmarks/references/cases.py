"""What a reference posterior is about: a network, the data it learns from, and where its output is looked at.

The output is looked at inside the data, near them and far away. Distances are those to the box that just holds the
training inputs, in ranges of the input that lies furthest outside: near is up to half a range, far is beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import bayesmp as bmp
from benchmarks import datasets
from benchmarks.networks import mlp

Array = NDArray[np.float64]
NOISE_STD = 0.05
NOISE_VAR = NOISE_STD**2
NEAR = 0.5  # ranges: where near ends and far begins
N_ARC = 400  # points on each moon, over which its density is averaged


def sine(x: Array) -> Array:
    """`datasets.sine_function` of the only input."""
    return datasets.sine_function(x[:, 0])


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Targets function(x) + N(0, noise_std^2), the noise known to the model; inputs uniform in one or more cubes."""

    n_in: int = 1
    intervals: tuple[tuple[float, float], ...]  # the sides of the cubes, from left to right
    n_per_interval: int
    function: Callable[[Array], Array] = sine  # (n, i) -> (n,)
    noise_std: float = NOISE_STD

    def __post_init__(self) -> None:
        if self.n_in > 1 and len(self.intervals) > 1:
            raise ValueError(
                f"gaps between intervals are known for one input only; got {len(self.intervals)} intervals of "
                f"{self.n_in} inputs: give one interval"
            )

    @property
    def head(self) -> bmp.Regression:
        return bmp.Regression(self.noise_std**2)

    @property
    def gaps(self) -> list[tuple[float, float]]:
        return [(left[1], right[0]) for left, right in zip(self.intervals[:-1], self.intervals[1:], strict=True)]

    def draw(self, seed: int = 0) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        cubes = [rng.uniform(low, high, size=(self.n_per_interval, self.n_in)) for low, high in self.intervals]
        x = np.concatenate(cubes)
        return x, self.function(x) + self.noise_std * rng.standard_normal(len(x))

    def truth(self, x: Array) -> Array:
        """What the network's output should be at x (n, i)."""
        return self.function(x)


@dataclass(frozen=True, kw_only=True)
class Moons:
    """Two half circles that reach into each other, one per class, blurred by N(0, blur^2) in both inputs."""

    n_per_class: int
    blur: float
    n_in: int = 2

    @property
    def head(self) -> bmp.Softmax:
        return bmp.Softmax(scale=None)  # predicts with the likelihood that it trains with: the scale is the gain

    @property
    def gaps(self) -> list[tuple[float, float]]:
        return []

    def draw(self, seed: int = 0) -> tuple[Array, Array]:
        """Inputs (n, 2) and classes (n,), 0 or 1."""
        rng = np.random.default_rng(seed)
        angles = rng.uniform(0.0, np.pi, size=(2, self.n_per_class))
        x = np.concatenate([moon(label, angles[label]) for label in (0, 1)])
        y = np.repeat([0.0, 1.0], self.n_per_class)
        return x + self.blur * rng.standard_normal(x.shape), y

    def truth(self, x: Array) -> Array:
        """log P(1 | x) - log P(0 | x) of these blurred moons at x (n, 2)."""
        angles = (np.arange(N_ARC) + 0.5) * np.pi / N_ARC
        parts = []
        for label in (0, 1):
            squares = ((x[:, None] - moon(label, angles)) ** 2).sum(2) / (2 * self.blur**2)  # (n, arc)
            nearest = squares.min(1)
            parts.append(np.log(np.exp(nearest[:, None] - squares).mean(1)) - nearest)
        return np.asarray(parts[1] - parts[0])


def moon(label: int, angles: Array) -> Array:
    """Points (n, 2) of a class's half circle of radius one; both together have their centre at zero."""
    side = 1.0 if label == 0 else -1.0
    return side * np.stack([np.cos(angles) - 0.5, np.sin(angles) - 0.25], axis=1)


@dataclass(frozen=True)
class Lattice:
    """A straight line of points per input, and all their combinations."""

    start: float
    stop: float
    n: int  # per input

    def points(self, x_train: Array) -> Array:
        axes = [np.linspace(self.start, self.stop, self.n)] * x_train.shape[1]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, x_train.shape[1])


@dataclass(frozen=True)
class Shells:
    """For inputs too many for a lattice: n fresh rows in the box of the data, n near it and n far from it.

    One input of a row that is not inside is shifted out of the box, each input in turn, up and down in turn; to at
    most `reach` ranges away.
    """

    n: int
    reach: float = 1.0

    def points(self, x_train: Array) -> Array:
        rng = np.random.default_rng(1)
        low, high = x_train.min(0), x_train.max(0)
        shells = [rng.uniform(low, high, size=(self.n, len(low)))]
        rows = np.arange(self.n)
        moved, is_up = rows % len(low), rows // len(low) % 2 == 0
        for distances in ((0.0, NEAR), (NEAR, self.reach)):
            shell = rng.uniform(low, high, size=(self.n, len(low)))
            beyond = rng.uniform(*distances, size=self.n) * (high - low)[moved]
            shell[rows, moved] = np.where(is_up, high[moved] + beyond, low[moved] - beyond)
            shells.append(shell)
        return np.concatenate(shells)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, its training data, and where its output is looked at."""

    hidden: tuple[int, ...]
    data: Uniform | Moons
    grid: Lattice | Shells

    @property
    def widths(self) -> tuple[int, ...]:
        return self.data.n_in, *self.hidden, 2 if self.is_classes else 1

    @property
    def is_classes(self) -> bool:
        """Whether labels are learned; then the output looked at is the logit of class 1."""
        return isinstance(self.data, Moons)

    def network(self, seed: int) -> bmp.Network:
        """The network with its default prior and what is known of the likelihood."""
        return bmp.Network(mlp(*self.widths), self.data.head, seed=seed)

    def training_data(self, seed: int = 0) -> tuple[Array, Array]:
        """Inputs (n, i) and targets (n,); the sine's in one interval are those of `datasets.sine`.

        Seed 0 is what the reference posterior has seen; others are further draws of the same kind.
        """
        return self.data.draw(seed)

    def grid_points(self) -> Array:
        """Inputs (g, i) of the comparison."""
        return self.grid.points(self.training_data()[0])

    def regions(self, x_train: Array, grid: Array) -> dict[str, NDArray[np.bool_]]:
        """Which grid points lie inside the data, near (within half their range), far, and in a gap between intervals.

        Args:
            x_train: (n, i).
            grid: (g, i).
        """
        low, high = x_train.min(0), x_train.max(0)
        beyond = (np.maximum(low - grid, grid - high) / (NEAR * (high - low))).max(1)
        found = {"inside": beyond <= 0, "near": (beyond > 0) & (beyond < 1), "far": beyond > 1}
        gap = np.zeros_like(found["inside"])
        for end, start in self.data.gaps:
            gap |= (grid[:, 0] > end) & (grid[:, 0] < start)
        if gap.any():
            found["inside"] = found["inside"] & ~gap
            found["gap"] = gap
        return found
