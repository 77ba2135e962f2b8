"""Data before training: standardised with the moments of the training data, one mean and std for images, one per column
for tables; and the paper's toy data.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

__all__ = ["Scaling", "sine", "sine_function", "standardise"]

CHUNK = 64  # rows; a float64 copy of a whole image set would take gigabytes, one of a few rows stays in the cache


@dataclass(frozen=True, eq=False)
class Scaling:
    """The map x -> (x - mean) / std, kept so that it can be undone and applied to further data."""

    mean: NDArray[np.float64]  # () for one mean in all, (d,) for one per column
    std: NDArray[np.float64]

    @classmethod
    def fit(cls, x: Any, *, per_feature: bool | None = None) -> "Scaling":
        """The moments of x, one row per example.

        Args:
            x: training data, (n, ...): an array, a tensor, a DataFrame of numbers, or nested lists.
            per_feature: one mean and std per column. Default: for tables (n, d), but not for images or targets.

        Note:
            A constant column has std 0; it is divided by 1 instead and so becomes 0.
        """
        x = as_array(x)
        if x.size == 0:
            raise ValueError(f"cannot standardise by an empty array of shape {x.shape}")
        per_feature = x.ndim == 2 if per_feature is None else per_feature
        axis = 0 if per_feature else None
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            mean, std = _moments(x, axis)
            lost = ~np.isfinite(std) | (std == 0.0)  # squares beyond the range of float64, or nothing to square
            if lost.any():
                size = np.abs(x).max(axis=axis).astype(np.float64)
                size = np.where(size > 0.0, size, 1.0)
                mean, std = np.where(lost, np.multiply(_moments(x / size, axis), size), (mean, std))
        if not (np.isfinite(mean).all() and np.isfinite(std).all()):
            raise ValueError("cannot standardise data with NaN or infinite values; impute or drop them")
        # a constant column's std is rounding error of its mean, not always exactly 0; in small units no std is an error
        constant = std <= 1e-12 * np.abs(mean)
        first = x[0] if per_feature else x.flat[0]  # the value itself, so that equal numbers become 0 exactly
        return cls(np.where(constant, first, mean).astype(np.float64), np.where(constant, 1.0, std))

    def apply(self, x: Any) -> Any:
        """(x - mean) / std, in x's own floating type, or float32 for integers such as pixels; a tensor for a tensor."""
        if isinstance(x, Tensor):
            return torch.as_tensor(self.apply(x.detach().cpu().numpy())).to(x.device)
        x = as_array(x)
        out = x.astype(x.dtype if np.issubdtype(x.dtype, np.floating) else np.float32)
        out -= self.mean.astype(out.dtype)
        out /= self.std.astype(out.dtype)
        return out

    def undo(self, x: Any) -> Any:
        """x * std + mean: predictions back in the units of the data; a tensor for a tensor.

        Standard deviations need `* std` alone; `prediction.undo(scaling)` does the right thing for each of its parts.
        """
        if isinstance(x, Tensor):
            return x * torch.as_tensor(self.std).to(x) + torch.as_tensor(self.mean).to(x)
        return np.asarray(as_array(x) * self.std + self.mean)


def standardise(train: Any, *others: Any, per_feature: bool | None = None) -> tuple[Any, ...]:
    """The training data and the others, all scaled with the training data's mean and std: arrays, or tensors for
    tensors.

    Images (n, c, h, w) get one mean and std in all, tables (n, d) one per column; `per_feature` overrides this,
    e.g. for flattened images. Use `Scaling` itself where the map must be undone, as for targets:

        scaling = Scaling.fit(y_train)
        fit(network, x_train, scaling.apply(y_train))
        prediction = network.predict(x_test).undo(scaling)
    """
    scaling = Scaling.fit(train, per_feature=per_feature)
    return tuple(scaling.apply(x) for x in (train, *others))


def _moments(x: NDArray[Any], axis: int | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and std, of each column (axis 0) or of all."""
    mean = np.asarray(x.mean(axis=axis, dtype=np.float64))
    squares = np.zeros_like(mean)
    for start in range(0, len(x), CHUNK):
        squares += np.square(x[start : start + CHUNK] - mean).sum(axis=axis)
    return mean, np.asarray(np.sqrt(squares / (x.size if axis is None else len(x))))


def as_array(x: Any) -> NDArray[Any]:
    """An array of numbers, or a ValueError."""
    if isinstance(x, Tensor):
        return x.detach().cpu().numpy()
    try:
        array = np.asarray(x)
        array = array.astype(np.float64) if array.dtype == object else array
    except (TypeError, ValueError) as error:
        array, why = np.asarray(""), str(error)
    else:
        why = f"it holds {array.dtype}"
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"only numbers can be standardised, got {type(x).__name__}: {why}; encode columns of text first, e.g. with "
            "pandas.get_dummies"
        )
    return array


NOISE_STD = 0.05  # of the paper's toy data


def sine_function(x: ArrayLike) -> NDArray[np.float64]:
    r"""The true function of the paper's data: f(x) = 0.5 x + 0.2 sin(2 \pi x) + 0.3 sin(4 \pi x), any shape."""
    x = np.asarray(x, dtype=np.float64)
    return np.asarray(0.5 * x + 0.2 * np.sin(2 * np.pi * x) + 0.3 * np.sin(4 * np.pi * x))


def sine(
    n: int = 200, *, low: float = 0.0, high: float = 2.0, noise_std: float = NOISE_STD, seed: int = 0
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
    return x, sine_function(x[:, 0]) + noise_std * rng.standard_normal(n)
