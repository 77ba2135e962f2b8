"""Regression with error bars, as scikit-learn calls it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state

from bayesmp.basics import checks
from bayesmp.data import Scaling
from bayesmp.estimators.base import Floats, Posed, as_array, has_dates
from bayesmp.estimators.distribution import PredictiveDistribution
from bayesmp.estimators.files import SavedEstimator
from bayesmp.estimators.scaling import usual_range
from bayesmp.heads import Regression, RegressionPrediction

CONSTANT_NOISE_VAR = 1e-4  # targets that are all equal tell no noise; relative to their square, this is taken

UNEQUAL = 1.5  # ratio of residuals from which on a network for each target is worth a word
FEW_COLUMNS, DEEPER = 2, (16, 16)  # up to which two hidden layers of these widths bend sooner than a wide one
JUDGED_ROWS, FEW_ROWS = 1024, 30  # rows that residuals are taken from, at most; and the fewest they can be judged by


MANY_AT_ENDS = 0.05  # of targets between 0 and 1 that are 0 or 1: a share that is worth a word
SMALL_COUNT = 10  # median of whole numbers below which their steps are worth a word


class TargetWarning(UserWarning):
    """Targets are of a kind that MPRegressor does not know of."""


class MPRegressor(RegressorMixin, SavedEstimator):
    """A Bayesian network for real targets: a mean, and how far a new target may lie from it.

    Inputs and targets are standardised inside by the training data, and predictions come back in the units of y. Inputs
    far outside of their column are bent nearer (`bayesmp.estimators.TableScaling`), and the few targets that stand
    apart from all others, of which an OutlierWarning tells, are learned and scored as the furthest of the others.

    The variance of the noise, its tails, and how it depends on the inputs are learned. Training takes several targets
    for equally noisy, relative to the variance of each. Where they are not, which a warning tells,
    MultiOutputRegressor(MPRegressor()) of scikit-learn has a network for each.

    Args:
        hidden: widths of the hidden layers (LeakyReLU between them), () for none; "auto" is (50,), and (16, 16) for one
            or two columns, where a wide layer is slow to bend; or all layers of the network; or a function (n_inputs,
            n_outputs) -> layers, which fits any table.
        n_networks: networks that differ in what random_state draws, and predict together (`bayesmp.mixture`). Three
            mostly predict better than one where a function is to be found, and about as well where noise is what is
            left; they take three times as long, or less where there are cores for them, and err on the careful side.
        n_jobs: processes that train networks side by side, -1 for one per core; None takes what joblib.parallel_config
            says, or else what pays. A single network is trained in this process.
        epochs: passes over the data, or "auto": until the leave-one-out score and the means are at rest.
        max_epochs: bound for "auto"; a ConvergenceWarning comes if it was met first.
        batch_size: rows that share a site, at most.
        random_state: draws the means at which training starts and the batches.
        verbose: show a progress bar, and what came out.

    Attributes:
        networks_: the trained Networks; they see standardised inputs and targets.
        network_: the first of them, which random_state draws for n_networks=1, too.
        histories_: what their training told, one record per epoch.
        history_: the first of them.
        n_iter_: epochs of the last `fit` or `partial_fit`; of several networks, those of the longest training.
        loo_score_: leave-one-out score, higher is better: mean log-density of each training target, in its own units,
            predicted without its row (nats; mean over targets, too); from a random part of more than 1,024 rows. NaN
            for fewer than three rows; of targets that are all equal it follows from the noise assumed (Note).
            Of several networks it is that of their mixture.
        loo_error_: leave-one-out root mean squared error in units of y; with several targets, in standard deviations of
            each of them. NaN for fewer than three rows.
        n_features_in_, feature_names_in_: the columns seen in `fit`.

    Note:
        Targets that are all equal give neither scale nor noise: both are then taken from their size, the noise as 1 %;
        `fit` warns of it.
        The rows seen are kept, so that `partial_fit` can add to them; a pickle or a saved file holds them, too.
    """

    y_scaling_: Scaling
    target_shape_: tuple[int, ...]  # of one row of y: () or (targets,)

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> MPRegressor:
        """Learn from X (n, d) and y (n,) or (n, targets); whatever was learned before is forgotten.

        Args:
            X, y: rows and targets.
            groups: labels (n,) that say which rows belong together, e.g. measurements of one patient. Rows that are
                equal belong together anyhow.
            sample_weight: how often each row counts, (n,): its likelihood is raised to this power, so 2 counts as two
                independent rows with the same content, and 0 leaves the row out. Copies of a row, which count once
                together, count as often as their weights say on average.
        """
        x, y = self._check_data(X, y, is_first=True)
        if bool((y == y[0]).all()):
            what = "there is one row only" if len(y) == 1 else f"all {len(y):,} targets are equal"
            warnings.warn(
                f"{what}, so nothing can be learned about y but its size; standard deviations are guesses (1 % of it)",
                stacklevel=2,
            )
        self._tell_kind(y)
        self.train_on(x, y, is_first=True, groups=groups, sample_weight=sample_weight)
        self._tell_unequal_noise()
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> MPRegressor:
        """Learn from further rows without forgetting the earlier ones.

        The rows are added to those seen before, and training goes on with all of them from the means reached so far,
        as long as `epochs` says. Every row counts once: do not pass rows again that were seen already. The result is
        near that of one `fit` on all rows, and takes as long.

        Args:
            X, y: further rows and targets.
            sample_weight: how often each of them counts, as for `fit`; once if not given.
        """
        is_first = not self.__sklearn_is_fitted__()
        self.train_on(*self._check_data(X, y, is_first=is_first), is_first=is_first, sample_weight=sample_weight)
        self._tell_unequal_noise()
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Floats | tuple[Floats, Floats]:
        """The mean for each row; with `return_std` or `return_cov` a pair with it.

        Args:
            X: (n, d).
            return_std: give the standard deviation of a new target, too: what is not known of the function, and the
                noise.
            return_cov: give the covariances of the function between the rows, too, (n, n), or (n, n, targets); without
                the noise, so that its diagonal is the square of `predict_epistemic`.
        """
        if return_std and return_cov:
            raise ValueError("return either return_std or return_cov, not both")
        x = self.scaled_inputs(X)
        prediction = self.predict_scaled(x)
        mean = self._shaped(self.y_scaling_.undo(prediction.mean.numpy()))
        if return_cov:
            return mean, self._covariance(x)
        return (mean, self._in_units(prediction.std.numpy())) if return_std else mean

    def predict_dist(self, X: Any) -> PredictiveDistribution:
        """The distribution of a new target for each row, with methods as SciPy's distributions have them: `cdf`, `sf`,
        `pdf`, `logpdf`, `ppf`, `isf`, `interval`, `mean`, `std`, `rvs`.
        """
        means, variances, shares = (
            part.double().numpy() for part in self.predict_outputs(X).undo(self.y_scaling_).gaussians()
        )
        n_parts = len(shares)
        shape = len(means), *self.target_shape_, n_parts
        return PredictiveDistribution(means.reshape(shape), np.sqrt(variances).reshape(shape), shares / shares.sum())

    def predict_quantile(self, X: Any, q: Any) -> Floats:
        """The values below which new targets lie with probability q.

        Args:
            X: (n, d).
            q: a probability, or a list of k of them, whose quantiles are then the last axis: (n, k).
        """
        levels = np.asarray(q, dtype=np.float64)
        if levels.ndim > 1 or not ((levels > 0.0) & (levels < 1.0)).all():
            raise ValueError(f"q must be a probability between 0 and 1, or a list of them, got {q!r}")
        found = self.predict_dist(X)
        return np.stack([found.ppf(level) for level in levels], -1) if levels.ndim else found.ppf(levels)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Floats:
        """Draws of new targets for all rows together, (n, n_samples), or (n, targets, n_samples).

        Each draw has one function for all rows, so that rows near each other err together, and noise of its own for
        each target. `network_.sample_functions` draws functions without noise.

        Args:
            X: (n, d).
            n_samples: number of draws.
            random_state: of the draws.
        """
        n_samples, draws = checks.check_positive_int(n_samples, "n_samples"), check_random_state(random_state)
        x = self.scaled_inputs(X)
        which = draws.randint(len(self.networks_), size=n_samples)
        found = np.empty((n_samples, len(x), self.network_.n_outputs))
        for k, network in enumerate(self.networks_):
            n_own, (seed, noise_seed) = int((which == k).sum()), draws.randint(2**31 - 1, size=2).tolist()
            if n_own == 0:
                continue
            functions = network.sample_functions(x, n_own, seed=seed).double()
            prediction = network.predict(x)
            around = replace(prediction, mean=0.0 * prediction.mean, epistemic_var=0.0 * prediction.epistemic_var)
            found[which == k] = functions + around.sample(n_own, seed=noise_seed).reshape(functions.shape)
        in_units = np.stack([self.y_scaling_.undo(draw) for draw in found], -1)
        return in_units.reshape(len(x), *self.target_shape_, n_samples)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Floats, Floats]:
        """Lower and upper ends of the intervals that hold new targets with this probability each."""
        level = checks.check_probability(level, "level")
        low, high = (self.y_scaling_.undo(end.numpy()) for end in self.predict_outputs(X).interval(level))
        return self._shaped(low), self._shaped(high)

    def predict_epistemic(self, X: Any) -> Floats:
        """Standard deviation of the function itself, without the noise: large for rows unlike the training data, and
        what more data would take away.
        """
        return self._in_units(self.predict_outputs(X).epistemic_var.sqrt().numpy())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def usual_hidden(self, n_inputs: int) -> tuple[int, ...]:
        return DEEPER if n_inputs <= FEW_COLUMNS else super().usual_hidden(n_inputs)

    def _check_data(self, X: Any, y: Any, *, is_first: bool) -> tuple[Floats, Floats]:
        y = as_array(y)
        if has_dates(y):
            raise ValueError(
                "y holds dates or times, and MPRegressor predicts numbers: pass days as numbers, e.g. "
                "(y - y.min()) / numpy.timedelta64(1, 'D') of dates, or y / numpy.timedelta64(1, 'D') of durations"
            )
        x, y = self.checked_table(X, y, y_numeric=True, multi_output=True, reset=is_first)
        try:
            y = np.asarray(y, dtype=np.float64)
        except ValueError as error:
            raise ValueError(f"{error}; MPRegressor predicts numbers, and MPClassifier labels of any type") from error
        if not is_first and y.shape[1:] != self.target_shape_:
            expected = ", ".join(["n", *map(str, self.target_shape_)])
            raise ValueError(f"y must have shape ({expected}) as in the calls before, got {y.shape}")
        self.target_shape_ = y.shape[1:]
        return x, y.reshape(len(y), -1)

    def _tell_kind(self, y: Floats) -> None:
        """Warn of targets that are no measurements: small counts, and shares that often are 0 or 1."""
        for column in y.T:
            values, low, high = np.unique(column), column.min(), column.max()
            if len(column) < FEW_ROWS or len(values) < 2:
                continue
            at_ends = np.isin(column, (0.0, 1.0)).mean()
            if low >= 0.0 and len(values) == 2 and np.isin(values, (0.0, 1.0)).all():
                told = "y holds 0 and 1 only, and MPRegressor takes them for measurements: use MPClassifier"
            elif low >= 0.0 and high <= 1.0 and at_ends >= MANY_AT_ENDS:
                told = (
                    f"y lies between 0 and 1, and {100 * at_ends:.0f} % of it at these ends. MPRegressor knows of no "
                    "ends: means and intervals reach beyond them. Clip what it predicts, or let an MPClassifier learn "
                    "which targets lie at an end, and an MPRegressor the others"
                )
            elif low >= 0.0 and not np.mod(column, 1.0).any() and np.median(column) < SMALL_COUNT:
                told = (
                    f"y holds small whole numbers ({low:.0f} to {high:.0f}), and MPRegressor takes them for "
                    "measurements: means and intervals lie between them, and may lie below 0. If there are few "
                    "different values, use MPClassifier; else round the ends of intervals, or learn sqrt(y) and square "
                    "the quantiles"
                )
            else:
                continue
            warnings.warn(told, TargetWarning, stacklevel=3)
            return

    def _covariance(self, x: Floats) -> Floats:
        """Of the function of all networks as one between these rows, in the units of y."""
        each = torch.stack([network.covariance(x) for network in self.networks_]).mean(0)  # (targets, n, n)
        means = torch.stack([network.predict(x).mean for network in self.networks_])
        apart = (means - means.mean(0)).permute(2, 1, 0)
        found = (each + apart @ apart.mT / len(means)).permute(1, 2, 0).numpy() * np.square(self.y_scaling_.std)
        return np.asarray(found.reshape(len(x), len(x), *self.target_shape_), dtype=np.float64)

    def check_given(self, X: Any, y: Any) -> tuple[Floats, NDArray[Any]]:
        x, y = self._check_data(X, y, is_first=False)
        return x, self.y_scaling_.apply(y)

    def pose_targets(self, y: NDArray[Any]) -> Posed:
        clipped = np.clip(y, *usual_range(y))
        scaling = Scaling.fit(clipped)
        targets = scaling.apply(clipped)
        is_constant = np.abs(targets.std(0) - 1.0) > 0.5  # of any other column the std is 1
        targets[:, is_constant] = 0.0
        size = np.where(scaling.mean == 0.0, 1.0, np.abs(scaling.mean))
        scaling = Scaling(scaling.mean, np.where(is_constant, size, scaling.std))
        head = Regression(CONSTANT_NOISE_VAR if is_constant.all() else "learn")
        return Posed(head, targets, y.shape[1], scaling)

    def _tell_unequal_noise(self) -> None:
        """Warn if residuals show that training, with one noise for all targets, fits some too closely."""
        assert self.seen_x_ is not None and self.seen_y_ is not None
        x, y = self.seen_x_[:JUDGED_ROWS], self.seen_y_[:JUDGED_ROWS]
        varies = np.ptp(y, axis=0) > 1e-12 * np.abs(y).max(0)
        if varies.sum() < 2 or len(y) < FEW_ROWS:
            return
        mean = self.predict_scaled(self.x_scaling_.apply(x)).mean.numpy()
        targets = self.y_scaling_.apply(np.clip(y, *usual_range(self.seen_y_)))
        rms = np.sqrt(np.square(targets - mean).mean(0))[varies]
        if rms.max() > UNEQUAL * rms.min():
            warnings.warn(
                f"the targets are noisy to different degrees (residuals of {rms.min():.2g} to {rms.max():.2g} of their "
                "standard deviation), and training takes them for equally noisy; scikit-learn's "
                "MultiOutputRegressor(MPRegressor(...)) has a network for each",
                stacklevel=3,
            )

    def loo_in_units(self, nll: float, error: float) -> tuple[float, float]:
        std = self.y_scaling_.std
        return -nll - float(np.log(std).mean()), error * float(std[0]) if len(std) == 1 else error

    def predict_outputs(self, X: Any) -> RegressionPrediction:
        found: RegressionPrediction = self.predict_scaled(self.scaled_inputs(X))
        return found

    def _in_units(self, std: Floats) -> Floats:
        return self._shaped(std * self.y_scaling_.std)

    def _shaped(self, values: Floats) -> Floats:
        """(n, targets) in the shape that y had."""
        return values.reshape(len(values), *self.target_shape_)
