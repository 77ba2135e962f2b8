"""The scaling of the estimators, in which no value of a column lies far out; and which values stand apart."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesmp.data import Scaling, as_array

APART = 5.0  # times as far from the median as all others of its side: a target that stands apart
FAR_APART = 100.0  # the same for an input that is worth a word; nothing hangs on it, and heavy tails reach far
FEW = 0.01  # share of the values that may stand apart together, or one value; more are a group of their own
FEWEST_TOLD = 10  # values; of fewer chance lets one stand apart too often

RARE = 3.0  # stds from the centre at which the ones of a rare mark lie
CLIP = 4.0  # stds from the centre at which a value counts fully; values further out count as if they lay there
LIMIT = 8.0  # stds from the centre at which the furthest training value lies, at most
ROUNDS = 50  # of centre and std in turn, at most; a handful suffice
SETTLED = 1e-9  # stds; a centre that moves less is found
REACH = 480  # powers of two that the largest size lies above 1, when squares are summed; 16 million of them fit
ROUNDING = 1e-12  # of a value; nearer values are equal


@dataclass(frozen=True, eq=False)
class TableScaling:
    """One map per column, x -> bend((x - centre) / std), such that no training value lies far out.

    Columns whose values lie within CLIP stds and are not nearly all equal are standardised, and nothing else. The other
    columns have a robust centre and std, which solve

        centre = mean of c,     std^2 = weighted mean of (c - centre)^2,     c = x clipped to centre -+ CLIP std

    A wild value moves them by no more than one at CLIP std does. Weights are 1, but if more than 1 - 1 / RARE^2 of the
    values are equal, these have less: together RARE^2 - 1 times as much as all others. So the ones of a rare mark lie
    at RARE, however rare they are; by its standard deviation a single one among n zeros lies at sqrt(n).

    Beyond CLIP, where the furthest training value would lie beyond LIMIT, the map bends:

        bend(z) = CLIP + w log(1 + (z - CLIP) / w),     with w such that this value comes to lie at LIMIT

    which is monotone and smooth, and grows without bound, so new rows further out still look so. Each end of a column
    has its own w; w = inf is a straight line.
    """

    centre: NDArray[np.float64]  # (d,)
    std: NDArray[np.float64]
    low_width: NDArray[np.float64]  # w below the centre
    high_width: NDArray[np.float64]

    @classmethod
    def fit(cls, x: Any) -> "TableScaling":
        """The maps for the columns of x, (n, d): an array, a tensor, a DataFrame of numbers, or nested lists."""
        x = as_array(x)
        plain = Scaling.fit(x, per_feature=True)
        centre, std = plain.mean.copy(), plain.std.copy()
        for k in range(x.shape[1]):
            column = x[:, k].astype(np.float64)
            centre[k], std[k] = _robust_moments(column, float(centre[k]), float(std[k]))
        lowest, highest = (_standardised(end, centre, std) for end in (x.min(0), x.max(0)))
        return cls(centre, std, _bend_widths(-lowest), _bend_widths(highest))

    def apply(self, x: Any) -> NDArray[Any]:
        """x, (n, d), as the network sees it; in x's own floating type, or float32 for integers."""
        x = as_array(x)
        z = x.astype(x.dtype if np.issubdtype(x.dtype, np.floating) else np.float32)
        z = _standardised(z, self.centre.astype(z.dtype), self.std.astype(z.dtype))
        for k in np.flatnonzero(np.isfinite(self.low_width) | np.isfinite(self.high_width)):
            z[:, k] = _bend(z[:, k], self.low_width[k], self.high_width[k])
        return z

    def undo(self, z: Any) -> NDArray[Any]:
        """What `apply` makes z of."""
        z = as_array(z).astype(np.float64)
        for k in np.flatnonzero(np.isfinite(self.low_width) | np.isfinite(self.high_width)):
            z[:, k] = _unbend(z[:, k], self.low_width[k], self.high_width[k])
        return np.asarray(z * self.std + self.centre)


def _robust_moments(x: NDArray[np.float64], mean: float, std: float) -> tuple[float, float]:
    """Centre and std of a column, as `TableScaling` has them, from its mean and standard deviation."""
    middle = float(np.median(x))
    differs = np.abs(x - middle) > ROUNDING * abs(middle)
    n_different = int(differs.sum())
    is_nearly_equal = n_different * RARE**2 < len(x)
    if n_different == 0 or (not is_nearly_equal and float(np.abs(_standardised(x, mean, std)).max()) <= CLIP):
        return mean, std
    n_equal = n_different * (RARE**2 - 1.0) if is_nearly_equal else 0.0  # rows at the middle, as many as count
    counted, centre = x[differs] if is_nearly_equal else x, middle
    for _ in range(ROUNDS):
        std = _clipped_rms(np.abs(counted - centre), n_equal, abs(middle - centre))
        moved = float(np.clip(_standardised(x, centre, std), -CLIP, CLIP).mean())
        centre += moved * std
        if abs(moved) <= SETTLED:
            break
    return centre, std


def _clipped_rms(sizes: NDArray[np.float64], n_equal: float, equal_size: float) -> float:
    """The largest s with n s^2 = sum of min(size, CLIP s)^2, n values in all, n_equal more of them of one size.

    With the k largest clipped, s^2 = (sum of the squares of the others) / (n - CLIP^2 k). The right k is the first for
    which the others lie within CLIP s.

    Note:
        Squares are formed in units in which the largest size is 2^REACH, so that they neither overflow nor vanish.
    """
    shift = REACH - int(np.frexp(sizes.max())[1])
    n = len(sizes) + n_equal
    n_inner = max(len(sizes) - int(n / CLIP**2) - 1, 0)  # never clipped
    parted = np.ldexp(np.partition(sizes, n_inner), shift)
    rising = np.sort(parted[n_inner:])
    inner = np.square(parted[:n_inner]).sum() + n_equal * np.ldexp(equal_size, shift) ** 2
    sums = inner + np.cumsum(np.square(rising))[::-1]  # without the k largest
    left = n - CLIP**2 * np.arange(len(rising))
    sums, left, largest = sums[left > 0.0], left[left > 0.0], rising[::-1][left > 0.0]
    stds = np.sqrt(sums / left)
    return float(np.ldexp(stds[np.argmax(largest <= CLIP * stds * (1.0 + ROUNDING))], -shift))


def _standardised(x: NDArray[Any], centre: Any, std: Any) -> NDArray[Any]:
    return np.asarray((x - centre) / std)


def _bend_widths(furthest: NDArray[np.float64]) -> NDArray[np.float64]:
    """The widths w with which values so far from the centre come to lie at LIMIT; inf for those within it.

    With u = (furthest - CLIP) / w, log(1 + u) / u = (LIMIT - CLIP) / (furthest - CLIP), which falls in u: bisection.
    """
    widths = np.full(furthest.shape, np.inf)
    is_far = furthest > LIMIT
    beyond = furthest[is_far] - CLIP
    ratio = beyond / (LIMIT - CLIP)
    low, high = np.log(ratio - 1.0), np.log(ratio) + np.log(1e3)  # u / (1 + u) < log(1 + u) < 1000
    for _ in range(100):
        middle = 0.5 * (low + high)
        u = np.exp(middle)
        is_low = np.log1p(u) * ratio > u
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    widths[is_far] = beyond / np.exp(high)
    return widths


def _bend(z: NDArray[Any], low_width: float, high_width: float) -> NDArray[Any]:
    """z, but CLIP + w log(1 + (|z| - CLIP) / w) beyond CLIP; w is that of its side."""
    return _beyond_clip(z, low_width, high_width, lambda t, w: w * np.log1p(t / w))


def _unbend(z: NDArray[Any], low_width: float, high_width: float) -> NDArray[Any]:
    """The inverse of `_bend`."""
    return _beyond_clip(z, low_width, high_width, lambda t, w: w * np.expm1(t / w))


def _beyond_clip(
    z: NDArray[Any], low_width: float, high_width: float, change: Callable[[NDArray[Any], float], NDArray[Any]]
) -> NDArray[Any]:
    z = z.copy()
    for side, width in ((-1, low_width), (1, high_width)):
        is_beyond = side * z > CLIP
        if np.isfinite(width) and is_beyond.any():
            z[is_beyond] = side * (CLIP + change(side * z[is_beyond] - CLIP, width))
    return z


def usual_range(x: NDArray[np.float64], times: float = APART) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lowest and the highest value of each column of x, (n, d), leaving out the few that stand apart.

    The k outermost values of one side stand apart if their distances to the median are more than `times` that of
    the next one of their side, and more than `times` the distance between the quartiles. Where both are 0, the
    outermost of the other side counts. A column in which no other value differs from the median has no scale, and in it
    nothing stands apart; nor does anything among less than FEWEST_TOLD values.
    """
    rising = np.sort(x, axis=0)
    n, columns = len(x), np.arange(x.shape[1])
    if n < FEWEST_TOLD:
        return rising[0], rising[-1]
    median = rising[n // 2]
    spread = rising[(3 * n) // 4] - rising[n // 4]
    below, above = median - rising, (rising - median)[::-1]
    n_low, n_high = (_n_apart(side, other[0], spread, times) for side, other in ((below, above), (above, below)))
    return rising[n_low, columns], rising[n - 1 - n_high, columns]


def _n_apart(
    sizes: NDArray[np.float64], other_side: NDArray[np.float64], spread: NDArray[np.float64], times: float
) -> NDArray[Any]:
    """How many of the first rows of sizes, (n, d), which fall, stand apart."""
    n_few = max(1, int(FEW * len(sizes)))
    inner = np.maximum(sizes[1 : n_few + 1], spread)
    inner = np.where(inner > 0.0, inner, other_side)
    is_apart = (sizes[:n_few] / times > inner) & (inner > 0.0)
    return np.where(is_apart, np.arange(1, n_few + 1)[:, None], 0).max(axis=0)


def values_apart(x: NDArray[np.float64], times: float = APART) -> dict[int, int]:
    """Columns of x, (n, d), in which values stand apart (`usual_range`); for each the row of the furthest one."""
    low, high = usual_range(x, times)
    out = np.maximum(x - high, low - x)
    return {int(k): int(out[:, k].argmax()) for k in np.flatnonzero(out.max(axis=0) > 0.0)}
