"""The one-dimensional regression data of the paper."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def sine_function(x: ArrayLike) -> NDArray[np.float64]:
    r"""The true function of the toy data: f(x) = 0.5 x + 0.2 sin(2 \pi x) + 0.3 sin(4 \pi x), any shape."""
    x = np.asarray(x, dtype=np.float64)
    return np.asarray(0.5 * x + 0.2 * np.sin(2 * np.pi * x) + 0.3 * np.sin(4 * np.pi * x))


def sine(
    n: int = 200, *, low: float = 0.0, high: float = 2.0, noise_std: float = 0.05, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Inputs x (n, 1), uniform in [low, high], and targets y (n,) = f(x) + N(0, noise_std^2).

    The defaults are those of the paper's experiment on depth. The same seed gives the same data on every machine.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if not low < high:
        raise ValueError(f"low must be below high, got low={low}, high={high}")
    if noise_std < 0.0:
        raise ValueError(f"noise_std must not be negative, got {noise_std}")
    rng = np.random.default_rng(seed)
    x = rng.uniform(low, high, size=(n, 1))
    y = sine_function(x[:, 0]) + noise_std * rng.standard_normal(n)
    return x, y
