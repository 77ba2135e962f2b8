"""The methods of the stress benchmark, each on one line and one seed: ours, a constant, a linear model, boosting.

Targets are in units of the training rows' std (constant ones in units of their size), NLL in nats. R2 is 1 less the
squared error over the variance of the targets that are scored, the mean over outputs. A prediction that is not finite
is scored NaN, never an error. Where all training targets are equal, the others have no std but an assumed one, so their
NLL is NaN.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import bayesmp as bmp
from bayesmp import metrics
from bayesmp.data import Scaling
from benchmarks.estimators import LEVEL, Split, scaled
from benchmarks.stress_lines import by_name

OURS, CONSTANT, LINEAR, BOOSTING = METHODS = ("ours", "constant", "linear", "boosting")

LEAST_STD = 1e-6  # of a method whose residuals vanish: without it its NLL would be -inf
ALPHAS = np.logspace(-3, 5, 17)
QUICK_ROWS, QUICK_CELLS, QUICK_OUTPUTS = 100_000, 1_000_000, 10  # up to which boosting takes seconds
FEWEST_ROWS = 30  # from which boosting splits

Floats: TypeAlias = NDArray[np.float64]
Scores: TypeAlias = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Independent predictions N(mean, std^2), (n, o) both, as `RegressionPrediction` has them."""

    mean: Floats
    std: Floats

    def nll(self, y: Floats) -> float:
        return metrics.gaussian_nll(self.mean, np.square(self.std), y)

    def coverage(self, y: Floats) -> float:
        return metrics.coverage(self.mean, self.std, y, LEVEL)


@dataclass(frozen=True, eq=False)
class Learned:
    """What our network predicts, in the same form."""

    prediction: bmp.RegressionPrediction

    @property
    def mean(self) -> Floats:
        return self.prediction.mean.numpy()

    @property
    def std(self) -> Floats:
        return self.prediction.std.numpy()

    def nll(self, y: Floats) -> float:
        return -float(self.prediction.log_prob(y).mean())

    def coverage(self, y: Floats) -> float:
        return metrics.interval_coverage(*self.prediction.interval(LEVEL), y)


def measure(method: str, line_name: str, seed: int) -> Scores | None:
    """Scores of a method on the test rows of a line; None where it takes no part. Seconds are those of fitting."""
    line = by_name(line_name)
    part = line.make(seed)
    if method == OURS:
        return ours(part, seed, classes=line.classes, settings=line.settings)
    if method == BOOSTING and not boosting_is_quick(part, classes=line.classes):
        return None
    fits: dict[str, Callable[[Split, int], Any]] = (
        {CONSTANT: frequencies, LINEAR: logistic, BOOSTING: boosted_classes}
        if line.classes
        else {CONSTANT: constant, LINEAR: ridge, BOOSTING: boosted}
    )
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of methods that met their bound on iterations
        found = fits[method](part, seed)
    seconds = time.perf_counter() - started
    scores = class_scores(found, part.y_test) if line.classes else regression_scores(found, targets(part)[1])
    if not line.classes and np.ptp(part.y_train) == 0.0:
        scores["NLL"] = np.nan
    return scores | {"seconds": seconds}


# --- ours ------------------------------------------------------------------------------------------------------------


def ours(part: Split, seed: int, *, classes: bool, settings: Any) -> Scores:
    """Scores of our estimator, what only it can tell, what it warned of, and the peak memory of this process."""
    kind = bmp.MPClassifier if classes else bmp.MPRegressor
    model = kind(random_state=seed, **settings)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        started, busy = time.perf_counter(), time.process_time()
        model.fit(part.x_train, part.y_train)
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
        if classes:
            scores = class_scores(model.predict_proba(part.x_test), part.y_test)
            unit = np.ones(1)
        else:
            scaling, y_test = targets(part)
            unit = scaling.std
            found = model.predict_outputs(part.x_test).undo(model.y_scaling_).undo(_inverse(scaling))
            scores = regression_scores(Learned(found), y_test)
    left_out = -float(model.loo_score_) - float(np.log(unit).mean())
    return {
        **scores,
        "leave-one-out NLL": left_out,
        "leave-one-out - test": left_out - scores["NLL"],
        "epochs": int(model.n_iter_),
        "stopped": model.history_.stopped,
        "seconds": seconds,
        "CPU seconds": busy,
        "peak MB": peak_mb(),
        "rows": len(part.x_train),
        "columns": part.x_train.shape[1],
        "warnings": sorted({f"{one.category.__name__}: {one.message}" for one in told}),
    }


def peak_mb() -> float | None:
    """The most memory that this process has held; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # on Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0  # Linux counts in KiB


# --- the others, regression: targets standardised, (n, o) ------------------------------------------------------------


def targets(part: Split) -> tuple[Scaling, Floats]:
    """The units of the training targets, and the test targets in them, (n, o)."""
    y = np.asarray(part.y_train, dtype=np.float64).reshape(len(part.y_train), -1)
    mean, std = y.mean(0), y.std(0)
    size = np.where(mean == 0.0, 1.0, np.abs(mean))
    scaling = Scaling(mean, np.where(std > 1e-12 * size, std, size))
    return scaling, scaling.apply(part.y_test.reshape(len(part.y_test), -1))


def standardised(part: Split) -> Floats:
    return targets(part)[0].apply(part.y_train.reshape(len(part.y_train), -1))


def constant(part: Split, seed: int) -> Gaussians:
    """Mean and std of the training targets."""
    y = standardised(part)
    return around(np.tile(y.mean(0), (len(part.x_test), 1)), y.std(0))


def ridge(part: Split, seed: int) -> Gaussians:
    """Ridge regression, its strength chosen for each output by leave-one-out; its std is that of these residuals."""
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import StandardScaler

    y, scaler = standardised(part), StandardScaler().fit(part.x_train)
    model = RidgeCV(ALPHAS, alpha_per_target=True).fit(scaler.transform(part.x_train), y)
    mean = model.predict(scaler.transform(part.x_test)).reshape(len(part.x_test), -1)
    return around(mean, np.sqrt(np.abs(np.atleast_1d(model.best_score_))))


def boosted(part: Split, seed: int) -> Gaussians:
    """Boosted trees for each output; the std is that of the residuals on a fifth of the rows that were held out."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import train_test_split

    y, means, stds = standardised(part), [], []
    x_fit, x_held, y_fit, y_held = train_test_split(part.x_train, y, test_size=0.2, random_state=seed)
    for k in range(y.shape[1]):
        model = HistGradientBoostingRegressor(random_state=seed)
        residuals = y_held[:, k] - model.fit(x_fit, y_fit[:, k]).predict(x_held)
        stds.append(float(np.sqrt(np.mean(np.square(residuals)))))
        means.append(model.fit(part.x_train, y[:, k]).predict(part.x_test))
    return around(np.stack(means, 1), np.array(stds))


def around(mean: Floats, std: Floats) -> Gaussians:
    """These means with one std for each output."""
    return Gaussians(mean, np.broadcast_to(np.maximum(std, LEAST_STD), mean.shape))


def boosting_is_quick(part: Split, *, classes: bool) -> bool:
    rows, columns = part.x_train.shape
    outputs = int(part.y_train.max()) + 1 if classes else targets(part)[1].shape[1]
    is_enough = rows >= FEWEST_ROWS and (not classes or np.bincount(part.y_train).min() > 1)
    return is_enough and rows <= QUICK_ROWS and rows * columns <= QUICK_CELLS and outputs <= QUICK_OUTPUTS


# --- the others, labels 0 ... c - 1 ----------------------------------------------------------------------------------


def frequencies(part: Split, seed: int) -> Floats:
    """How often each label came, half a row more for each, so that none is impossible."""
    counts = np.bincount(part.y_train) + 0.5
    return np.tile(counts / counts.sum(), (len(part.x_test), 1))


def logistic(part: Split, seed: int) -> Floats:
    from sklearn.linear_model import LogisticRegression

    return scaled(LogisticRegression(max_iter=1000)).fit(part.x_train, part.y_train).predict_proba(part.x_test)


def boosted_classes(part: Split, seed: int) -> Floats:
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(random_state=seed)
    return model.fit(part.x_train, part.y_train).predict_proba(part.x_test)


# --- scores ----------------------------------------------------------------------------------------------------------


def regression_scores(found: Gaussians | Learned, y: Floats) -> Scores:
    """R2, NLL and coverage of predictions for targets y (n, o)."""
    if not (np.isfinite(found.mean).all() and np.isfinite(found.std).all()):
        return {"score": np.nan, "NLL": np.nan, "coverage": np.nan, "finite": False}
    with np.errstate(all="ignore"):
        score, nll = r2(found.mean, y), found.nll(y)
    return {"score": score, "NLL": nll, "coverage": found.coverage(y), "finite": _finite(score, nll)}


def class_scores(probs: Floats, y: NDArray[Any]) -> Scores:
    """Accuracy and NLL of probabilities for labels y (n,)."""
    if not np.isfinite(probs).all():
        return {"score": np.nan, "NLL": np.nan, "finite": False}
    score, nll = metrics.accuracy(probs, y), metrics.nll(probs, y, floor=1e-12)
    return {"score": score, "NLL": nll, "finite": _finite(score, nll)}


def r2(mean: Floats, y: Floats) -> float:
    """1 - squared error / variance of y, (n, o) both, the mean over outputs; an output that is constant has its unit as
    the variance.
    """
    var = y.var(0)
    return float(np.mean(1.0 - np.square(y - mean).mean(0) / np.where(var > 1e-12, var, 1.0)))


def _finite(*values: float) -> bool:
    return bool(np.isfinite(values).all())


def _inverse(scaling: Scaling) -> Scaling:
    """The scaling whose `undo` is this one's `apply`."""
    return Scaling(-scaling.mean / scaling.std, 1.0 / scaling.std)
