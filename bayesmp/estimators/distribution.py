"""Predictions of a regression as distributions, with the methods that SciPy's frozen distributions have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr, ndtri
from sklearn.utils import check_random_state

Floats = NDArray[np.float64]
HALVINGS = 200  # of the bracket of a quantile, at most; it ends when no number lies between its ends


@dataclass(frozen=True, eq=False)
class PredictiveDistribution:
    """Distributions of new targets, one per row and target: mixtures of Gaussians, exact.

    Arguments of methods broadcast against `shape`: a number, one for each row, or with further axes in front.
    `distribution[rows]` takes some of the rows.

    Attributes:
        means, stds: of the parts of each mixture, (*shape, m).
        shares: how probable the parts are, (m,).
    """

    means: Floats
    stds: Floats
    shares: Floats

    @property
    def shape(self) -> tuple[int, ...]:
        """(n,), or (n, targets)."""
        return self.means.shape[:-1]

    def mean(self) -> Floats:
        """Means, of the shape."""
        return np.asarray(self.means @ self.shares)

    def var(self) -> Floats:
        """Variances, of the shape."""
        apart = np.square(self.means - self.mean()[..., None])
        return np.asarray((np.square(self.stds) + apart) @ self.shares)

    def std(self) -> Floats:
        """Standard deviations, of the shape."""
        return np.sqrt(self.var())

    def median(self) -> Floats:
        """The values with as much above as below."""
        return self.ppf(0.5)

    def logpdf(self, y: Any) -> Floats:
        """Log-density at y."""
        each = -0.5 * np.square(self._scores(y)) - np.log(self.stds) - 0.5 * np.log(2.0 * np.pi)
        return np.asarray(logsumexp(each, axis=-1, b=self.shares))

    def pdf(self, y: Any) -> Floats:
        """Density at y."""
        return np.asarray(np.exp(self.logpdf(y)))

    def cdf(self, y: Any) -> Floats:
        """Probability that a new target lies below y."""
        return np.asarray(ndtr(self._scores(y)) @ self.shares)

    def sf(self, y: Any) -> Floats:
        """Probability that a new target lies above y."""
        return np.asarray(ndtr(-self._scores(y)) @ self.shares)

    def ppf(self, q: Any) -> Floats:
        """The values below which a new target lies with probability q; NaN where q is no probability."""
        q = np.asarray(q, dtype=np.float64)
        return self._quantile(np.minimum(q, 1.0 - q), is_upper=q > 0.5)

    def isf(self, q: Any) -> Floats:
        """The values above which a new target lies with probability q."""
        q = np.asarray(q, dtype=np.float64)
        return self._quantile(np.minimum(q, 1.0 - q), is_upper=q <= 0.5)

    def interval(self, confidence: float = 0.9) -> tuple[Floats, Floats]:
        """Ends of the central intervals that hold a new target with this probability."""
        tail = 0.5 - 0.5 * confidence
        return self.ppf(tail), self.isf(tail)

    def rvs(self, size: Any = None, random_state: Any = None) -> Floats:
        """Draws of this size, by default one for each distribution, independent of each other."""
        draws = check_random_state(random_state)
        size = self.shape if size is None else np.broadcast_shapes(self.shape, np.empty(size).shape)
        part = draws.choice(len(self.shares), size=size, p=self.shares)[..., None]
        means, stds = (np.broadcast_to(one, (*size, len(self.shares))) for one in (self.means, self.stds))
        mean, std = (np.take_along_axis(one, part, -1)[..., 0] for one in (means, stds))
        return np.asarray(mean + std * draws.standard_normal(size))

    def __len__(self) -> int:
        return len(self.means)

    def __getitem__(self, rows: Any) -> PredictiveDistribution:
        return PredictiveDistribution(self.means[rows], self.stds[rows], self.shares)

    def _scores(self, y: Any) -> Floats:
        """How far y lies above the mean of each part, in its stds."""
        return np.asarray((np.asarray(y, dtype=np.float64)[..., None] - self.means) / self.stds)

    def _quantile(self, tail: Floats, *, is_upper: Any) -> Floats:
        """Where the lower or the upper tail of this probability ends: between those of the parts, by halving."""
        tail, is_upper = tail[..., None], np.asarray(is_upper)[..., None]
        sign = np.where(is_upper, -1.0, 1.0)
        with np.errstate(invalid="ignore"):
            ends = self.means + sign * self.stds * ndtri(tail)
            low, high = ends.min(-1), ends.max(-1)
            for _ in range(HALVINGS):
                middle = 0.5 * (low + high)
                if not ((low < middle) & (middle < high)).any():
                    break
                score = sign * (middle[..., None] - self.means) / self.stds
                is_far = (ndtr(score) @ self.shares < tail[..., 0]) == (sign[..., 0] > 0.0)
                low, high = np.where(is_far, middle, low), np.where(is_far, high, middle)
            return np.asarray(0.5 * (low + high))
