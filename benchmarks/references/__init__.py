"""Reference posteriors: small problems, and what long runs of NUTS say about them.

`CASES` are the three that the experiment `truth` reports; choices in the library were made with a look at them.
`PANEL` are others, on which nothing is chosen. `make.py` makes the files `NAME.npz` that lie here; nothing else here
needs its packages.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.references.cases import NOISE_STD, NOISE_VAR, Array, Case, Lattice, Moons, Shells, Uniform

__all__ = ["ALL", "CASES", "FOLDER", "NOISE_STD", "NOISE_VAR", "PANEL", "Case", "Lattice", "Moons", "Shells", "Uniform"]

FOLDER = Path(__file__).parent


def cubic(x: Array) -> Array:
    """X^3 for X in [-4, 4], in units that make both of order one: x = X / 2, y = X^3 / 32."""
    return np.asarray(x[:, 0] ** 3 / 4)


def wave(x: Array) -> Array:
    """A smooth function of one input in [-1, 1]."""
    return np.sin(3.0 * x[:, 0])


def plane(x: Array) -> Array:
    """A smooth function of two inputs in [-1, 1]^2."""
    return np.asarray(np.sin(2.0 * x[:, 0]) * np.cos(x[:, 1]) + 0.5 * x[:, 1])


def friedman(x: Array) -> Array:
    """Friedman's first function of its five inputs; both standardised, so that u = 1/2 + x / sqrt(12) is in [0, 1]."""
    u = 0.5 + x / np.sqrt(12)
    y = 10 * np.sin(np.pi * u[:, 0] * u[:, 1]) + 20 * (u[:, 2] - 0.5) ** 2 + 10 * u[:, 3] + 5 * u[:, 4]
    return np.asarray((y - FRIEDMAN_MEAN) / FRIEDMAN_STD)


FRIEDMAN_MEAN, FRIEDMAN_STD = 14.41, 4.87  # over the cube, without noise
HALF_CUBE = float(np.sqrt(3))

CASES = {
    "sine": Case(
        hidden=(16, 16, 16), data=Uniform(intervals=((0.0, 2.0),), n_per_interval=200), grid=Lattice(-1.0, 3.0, 201)
    ),
    "uncertainty": Case(
        hidden=(32, 32), data=Uniform(intervals=((-0.5, 0.5),), n_per_interval=200), grid=Lattice(-20.5, 20.5, 411)
    ),
    "gap": Case(
        hidden=(32, 32),
        data=Uniform(intervals=((-1.0, -0.3), (0.5, 1.2)), n_per_interval=60),
        grid=Lattice(-2.5, 2.5, 251),
    ),
}
PANEL = {
    "cubic": Case(
        hidden=(50,),
        data=Uniform(intervals=((-2.0, 2.0),), n_per_interval=40, function=cubic, noise_std=3 / 32),
        grid=Lattice(-6.0, 6.0, 121),
    ),
    "wide": Case(hidden=(64,), data=Uniform(intervals=((0.0, 2.0),), n_per_interval=100), grid=Lattice(-2.0, 4.0, 121)),
    "few": Case(
        hidden=(16, 16),
        data=Uniform(intervals=((-1.0, 1.0),), n_per_interval=10, function=wave),
        grid=Lattice(-3.0, 3.0, 121),
    ),
    "plane": Case(
        hidden=(16, 16),
        data=Uniform(n_in=2, intervals=((-1.0, 1.0),), n_per_interval=100, function=plane, noise_std=0.1),
        grid=Lattice(-3.0, 3.0, 19),
    ),
    "table": Case(
        hidden=(20,),
        data=Uniform(
            n_in=5,
            intervals=((-HALF_CUBE, HALF_CUBE),),
            n_per_interval=150,
            function=friedman,
            noise_std=1 / FRIEDMAN_STD,
        ),
        grid=Shells(100),
    ),
    "classes": Case(hidden=(16, 16), data=Moons(n_per_class=40, blur=0.2), grid=Lattice(-4.5, 4.5, 19)),
}
ALL = CASES | PANEL
