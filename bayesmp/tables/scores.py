"""How good predictions are, row by row, so that each score comes with its standard error; and numbers rounded to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.metrics import accuracy_score, log_loss, r2_score, roc_auc_score, root_mean_squared_error

from bayesmp import metrics
from bayesmp.estimators.base import Floats
from bayesmp.heads import ClassPrediction, RegressionPrediction

LEAST_PROB = 1e-12  # of a label, in its logarithm
PLAIN = 1e-4, 1e9  # numbers between these are written without an exponent


@dataclass(frozen=True)
class Score:
    """A score, and the standard error that it has because rows are few; NaN where that is not known."""

    value: float
    error: float = math.nan
    is_share: bool = field(default=False, kw_only=True)  # told in per cent

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "–"
        if not self.error > 0.0:
            return f"{100.0 * self.value:.1f} %" if self.is_share else f"{self.value:.3g}"
        unit = 100.0 if self.is_share else 1.0
        return rounded(unit * self.value, unit * self.error) + (" %" if self.is_share else "")

    def like(self, value: float | None) -> str:
        """Another value of this score, with as many digits."""
        if value is None or math.isnan(value):
            return "–"
        shown = str(Score(value, self.error, is_share=self.is_share))
        if shown.startswith("("):  # with an exponent
            return f"{value:.4g}"
        return shown.partition(" ±")[0] + (" %" if self.is_share and "±" in shown else "")


Scores = dict[str, Score]


def rounded(value: float, error: float = math.nan) -> str:
    """A number and its standard error, with the digits that the error leaves: 12 ± 3, not 12.34567 ± 3.2109.

    The error has one digit, or two if it begins with 1. Without an error the number has four.
    """
    if not math.isfinite(error) or error <= 0.0 or not math.isfinite(value):
        return f"{value:,.0f}" if PLAIN[1] > abs(value) >= 10_000.0 else f"{value:.4g}"
    place = math.floor(math.log10(error))
    place -= round(error * 10.0 ** (1 - place)) < 20  # two digits of 0.014, one of 0.03
    largest = max(abs(value), error)
    if PLAIN[0] <= error and largest < PLAIN[1]:
        parts = [round(part, -place) for part in (value, error)]
        digits = max(0, -place)
        return " ± ".join(f"{part + 0.0:,.{digits}f}" for part in parts)  # + 0.0: no -0
    exponent = math.floor(math.log10(largest))
    value, error = (part / 10.0**exponent for part in (value, error))
    digits = max(0, exponent - place)
    return f"({value:.{digits}f} ± {error:.{digits}f})e{exponent:+d}"


def scores_of(known: RegressionPrediction | ClassPrediction, y: NDArray[Any]) -> Scores:
    """The scores of predictions of targets y (n,), or of labels numbered from 0."""
    log_prob = known.log_prob(y).double().numpy()
    if isinstance(known, RegressionPrediction):
        mean = known.mean.double().numpy()
        found = {**_errors(mean, y), "NLL": _mean(-log_prob)}
        for level in (0.5, 0.9):
            low, high = (end.numpy() for end in known.interval(level))
            found[f"in {100 * level:.0f} % interval"] = _mean((low <= y) & (y <= high), is_share=True)
        return found
    probs = _probabilities(known.probs)
    auc = {"AUC": _auc(probs, y)} if len(np.unique(y)) == probs.shape[1] else {}
    return {
        "accuracy": _mean(probs.argmax(1) == y),
        **auc,
        "NLL": _mean(-np.log(np.maximum(probs[np.arange(len(y)), y], LEAST_PROB))),
        "Brier": _mean(losses(known, y)),
        "ECE": Score(metrics.ece(probs, y)),
    }


def guess_scores(guess: tuple[float, ...], y: NDArray[Any], *, is_classes: bool) -> dict[str, float]:
    """What these scores are for one who knows the mean and std of the training targets, or the shares of the classes,
    but no inputs.
    """
    n = len(y)
    if not is_classes:
        mean, var = (np.full(n, value) for value in (guess[0], guess[1] ** 2))
        nll = metrics.gaussian_nll(mean, var, y)
        return {**{name: score.value for name, score in _errors(mean, y).items()}, "NLL": nll}
    probs, labels = np.tile(guess, (n, 1)), range(len(guess))
    return {
        "accuracy": float(accuracy_score(y, probs.argmax(1))),
        "AUC": 0.5,
        "NLL": float(log_loss(y, probs, labels=labels)),
        "Brier": metrics.brier(probs, y),
    }


def losses(known: RegressionPrediction | ClassPrediction, y: NDArray[Any]) -> Floats:
    """What the score counts for each row (n,): squared errors, or squared distances of probabilities from the class."""
    if isinstance(known, RegressionPrediction):
        return np.square(known.mean.double().numpy() - y)
    return squared_distances(_probabilities(known.probs), y)


def squared_distances(probs: Floats, y: NDArray[Any]) -> Floats:
    """The Brier score of each row."""
    return np.asarray(np.square(probs - np.eye(probs.shape[1])[y]).sum(1))


def _probabilities(probs: torch.Tensor) -> Floats:
    found: Floats = probs.double().numpy()
    return found / found.sum(1, keepdims=True)


def _mean(each: NDArray[Any], *, is_share: bool = False) -> Score:
    """The mean over rows; its error is that of independent rows."""
    return Score(float(np.mean(each)), standard_error(each), is_share=is_share)


def standard_error(each: NDArray[Any]) -> float:
    """Of the mean of independent values (n,); NaN for one."""
    return float(np.std(each, ddof=1)) / math.sqrt(len(each)) if len(each) > 1 else math.nan


def _errors(mean: Floats, y: NDArray[Any]) -> Scores:
    """R2 and RMSE; their errors by how much each row pulls at them (the delta method)."""
    square, spread = np.square(y - mean), float(np.var(y))
    rmse = float(root_mean_squared_error(y, mean))
    error = standard_error(square) / (2.0 * rmse) if rmse > 0.0 else math.nan
    if len(y) < 2 or spread == 0.0:
        return {"R2": Score(math.nan), "RMSE": Score(rmse, error)}
    r2 = float(r2_score(y, mean))
    pull = (1.0 - r2) * (np.square(y - y.mean()) - spread) / spread - (square - square.mean()) / spread
    return {"R2": Score(r2, standard_error(pull)), "RMSE": Score(rmse, error)}


def _auc(probs: Floats, y: NDArray[Any]) -> Score:
    """Area under the ROC curve; of more than two classes the mean of each against the rest. The error is DeLong's, from
    how many rows of the other kind each row stands above.
    """
    is_one = probs.shape[1] == 2
    columns = [1] if is_one else range(probs.shape[1])
    value = float(roc_auc_score(y, probs[:, 1]) if is_one else roc_auc_score(y, probs, multi_class="ovr"))
    pull = np.zeros(len(y))
    for column in columns:
        is_in, score = y == column, probs[:, column]
        above = (rankdata(score) - np.where(is_in, _ranks(score, is_in), _ranks(score, ~is_in))) / np.where(
            is_in, (~is_in).sum(), is_in.sum()
        )
        hits = np.where(is_in, above, 1.0 - above)
        pull += (hits - hits[is_in].mean()) / np.where(is_in, is_in.mean(), 1.0 - is_in.mean()) / len(columns)
    return Score(value, standard_error(pull))


def _ranks(score: Floats, chosen: NDArray[np.bool_]) -> Floats:
    """Ranks among the chosen rows; 0 elsewhere."""
    found = np.zeros(len(score))
    found[chosen] = rankdata(score[chosen])
    return found
