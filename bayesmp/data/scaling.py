"""Standardising with the moments of the training data: one mean and std for images, one per column for tables."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 64  # rows; a float64 copy of a whole image set would take gigabytes, one of a few rows stays in the cache


@dataclass(frozen=True, eq=False)
class Scaling:
    """The map x -> (x - mean) / std, kept so that it can be undone and applied to further data."""

    mean: NDArray[np.float64]  # () for one mean in all, (d,) for one per column
    std: NDArray[np.float64]

    @classmethod
    def fit(cls, x: NDArray[Any], *, per_feature: bool | None = None) -> "Scaling":
        """The moments of x, one row per example.

        Args:
            x: training data, (n, ...).
            per_feature: one mean and std per column. Default: for tables (n, d), but not for images or targets.

        Note:
            A constant column has std 0; it is divided by 1 instead and so becomes 0.
        """
        if x.size == 0:
            raise ValueError(f"cannot standardise by an empty array of shape {x.shape}")
        per_feature = x.ndim == 2 if per_feature is None else per_feature
        axis = 0 if per_feature else None
        mean = np.asarray(x.mean(axis=axis, dtype=np.float64))
        squares = np.zeros_like(mean)
        for start in range(0, len(x), CHUNK):
            squares += np.square(x[start : start + CHUNK] - mean).sum(axis=axis)
        std = np.sqrt(squares / (len(x) if per_feature else x.size))
        if not (np.isfinite(mean).all() and np.isfinite(std).all()):
            raise ValueError("cannot standardise data with NaN or infinite values; impute or drop them")
        # a constant column's std is rounding error of its mean, not always exactly 0; in small units no std is an error
        constant = std <= 1e-12 * np.abs(mean)
        return cls(mean, np.where(constant, 1.0, std))

    def apply(self, x: NDArray[Any]) -> NDArray[Any]:
        """(x - mean) / std, in x's own floating type, or float32 for integers such as pixels."""
        out = x.astype(x.dtype if np.issubdtype(x.dtype, np.floating) else np.float32)
        out -= self.mean.astype(out.dtype)
        out /= self.std.astype(out.dtype)
        return out

    def undo(self, x: NDArray[Any]) -> NDArray[Any]:
        """x * std + mean: predictions back in the units of the data (standard deviations need `* std` alone)."""
        return np.asarray(x * self.std + self.mean)


def standardise(
    train: NDArray[Any], *others: NDArray[Any], per_feature: bool | None = None
) -> tuple[NDArray[Any], ...]:
    """The training data and the others, all scaled with the training data's mean and std.

    Images (n, c, h, w) get one mean and std in all, tables (n, d) one per column; `per_feature` overrides this,
    e.g. for flattened images. Use `Scaling` itself where the map must be undone.
    """
    scaling = Scaling.fit(train, per_feature=per_feature)
    return tuple(scaling.apply(x) for x in (train, *others))
