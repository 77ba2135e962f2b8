"""What rows that a model was not trained on say about it: what the program prints, and shows as a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bayesmp.estimators.base import Floats
from bayesmp.estimators.columns.values import require_pandas
from bayesmp.estimators.columns.words import TableError
from bayesmp.heads import RegressionPrediction
from bayesmp.tables.effects import Dependence, Importance, dependence, importances
from bayesmp.tables.facts import spread_of
from bayesmp.tables.model import TableModel, TablePrediction
from bayesmp.tables.scores import Score, Scores, guess_scores, rounded, scores_of
from bayesmp.tables.target import Target
from bayesmp.tables.verdict import Calls, Threshold, Verdict, calls_of, judge

if TYPE_CHECKING:
    from pandas import DataFrame

SHOWN_ROWS, SHOWN_COLUMNS = 8, 4  # of the most surprising rows
LONG, LONG_TEXT = 10, 60  # signs of numbers and of texts from which they are shortened
SHOWN_CURVES = 6  # of the most important columns


@dataclass(frozen=True)
class Row:
    """One row, as texts.

    Attributes:
        number: in the file, from 1 for the first one below the names.
        cells: the most important columns.
        truth, predicted: the target, and what was said of it.
        how: how surprising the row is.
    """

    number: int
    cells: dict[str, str]
    truth: str
    predicted: str
    how: str


@dataclass(frozen=True, eq=False)
class Report:
    """What these rows say about a model.

    Attributes:
        model: that was not trained on them.
        frame: their columns.
        targets: as `model.target.read` gives them, all of them known to the model.
        numbers: of the rows in their file, from 1.
        title: what they are, such as "50 held out".
        threshold: from which a row is called the rarer of two classes; an error where there are not two.
        with_loo: whether leave-one-out scores of training stand beside theirs.
    """

    model: TableModel
    frame: DataFrame
    targets: NDArray[Any]
    numbers: NDArray[Any]
    title: str
    threshold: Threshold | None = None
    with_loo: bool = False
    prediction: TablePrediction = field(init=False)

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_two_classes(self.model.target, len(self.model.classes))
        object.__setattr__(self, "prediction", self.model.predict(self.frame))

    @cached_property
    def y(self) -> NDArray[Any]:
        """The targets, or labels numbered from 0."""
        return self.model.indices(self.targets) if self.model.classes else self.targets

    @cached_property
    def scores(self) -> Scores:
        found = scores_of(self.prediction.known, self.y)
        if self.calls is not None:
            n, called = self.calls.found + self.calls.missed, self.calls.found + self.calls.alarms
            found[f"recall {self.calls.label}"] = _share(self.calls.recall, n)
            found[f"precision {self.calls.label}"] = _share(self.calls.precision, called)
        return {**found, "unlike training": _share(float(self.prediction.is_unlike.mean()), len(self.y))}

    @cached_property
    def guess(self) -> dict[str, float]:
        """The scores of one who knows no inputs."""
        return guess_scores(self.model.facts.guess, self.y, is_classes=bool(self.model.classes))

    @property
    def rival(self) -> str:
        """What such a guess is."""
        return "class shares" if self.model.classes else "always the mean"

    @cached_property
    def beside(self) -> dict[str, dict[str, float]]:
        """Scores that stand beside those of the rows."""
        left_out = {"leave-one-out": self.model.loo_scores()} if self.with_loo else {}
        return {**left_out, self.rival: self.guess}

    @cached_property
    def calls(self) -> Calls | None:
        """What came of calling rows the rarer of two classes."""
        return calls_of(self.prediction.known, self.y, self.model.facts.guess, self.model.classes, self.threshold)

    @cached_property
    def verdict(self) -> Verdict:
        known, guess = self.prediction.known, self.model.facts.guess
        return judge(known, self.y, self.scores, guess, classes=self.model.classes, threshold=self.threshold)

    @cached_property
    def x(self) -> Floats:
        """The rows as numbers."""
        return self.model.encoder.encode(self.frame).x

    @cached_property
    def importances(self) -> list[Importance]:
        return importances(self.model, self.x, self.y)

    @cached_property
    def curves(self) -> list[Dependence]:
        """How predictions follow the most important columns."""
        names = [each.column for each in self.importances[:SHOWN_CURVES]]
        found = [dependence(self.model, self.x, name) for name in names]
        return [each for each in found if each is not None]

    @cached_property
    def surprising(self) -> list[Row]:
        """The rows that were least expected."""
        order = np.argsort(self._chances, kind="stable")
        return [self._row(int(k), self._surprise(int(k))) for k in order[:SHOWN_ROWS]]

    @cached_property
    def unlike(self) -> list[Row]:
        """Rows unlike the training data, those first of which the network knows least."""
        var = self.prediction.known.epistemic_var
        spread = spread_of(var.reshape(len(var), -1))
        order = [k for k in np.argsort(-spread, kind="stable") if self.prediction.is_unlike[k]]
        return [self._row(int(k), "") for k in order[:SHOWN_ROWS]]

    @cached_property
    def _chances(self) -> Floats:
        """How probable each row's class was, or a target as far off as its own."""
        known = self.prediction.known
        if not isinstance(known, RegressionPrediction):
            return np.asarray(known.log_prob(self.y).double().exp().numpy())
        below = known.cdf(self.y).double().numpy()
        return np.asarray(2.0 * np.minimum(below, 1.0 - below))

    def _surprise(self, k: int) -> str:
        known, chance = self.prediction.known[k : k + 1], float(self._chances[k])
        if not isinstance(known, RegressionPrediction):
            return f"its class had a probability of {chance:.2g}"
        gap = float((self.y[k] - known.mean[0]) / known.std[0])
        rare = f"as {100.0 * chance:.2g} % of the rows should be" if chance > 1e-6 else "as hardly any row should be"
        return f"{abs(gap):.1f} std {'above' if gap > 0 else 'below'} the prediction, {rare}"

    def _row(self, k: int, how: str) -> Row:
        known = self.prediction.known[k : k + 1]
        if isinstance(known, RegressionPrediction):
            truth, predicted = rounded(float(self.y[k])), rounded(float(known.mean[0]), float(known.std[0]))
        else:
            label = int(known.label[0])
            truth = str(self.targets[k])
            predicted = f"{self.model.classes[label]} ({100.0 * float(known.probs[0, label]):.0f} %)"
        names = [each.column for each in self.importances] or [column.name for column in self.model.encoder.columns_]
        cells = {name: _text(self.frame[name].iloc[k]) for name in names[:SHOWN_COLUMNS]}
        return Row(int(self.numbers[k]), cells, truth, predicted, how)


def check_two_classes(target: Target, n_classes: int) -> None:
    """Raise unless a threshold has two classes to decide between."""
    if target.task != "classification" or n_classes != 2:
        what = f"{n_classes} classes" if target.task == "classification" else "a quantity"
        raise TableError(f"--threshold and --cost are for two classes, and {target.name!r} is {what}")


def _text(value: Any) -> str:
    """A value of a table, short enough to be read."""
    if require_pandas().isna(value):
        return "missing"
    if isinstance(value, float):
        return rounded(value)
    text = str(value)
    try:
        return rounded(float(text)) if len(text) > LONG else text
    except ValueError:
        return text if len(text) <= LONG_TEXT else f"{text[: LONG_TEXT - 1]}…"


def _share(value: float, n: int) -> Score:
    return Score(value, (value * (1.0 - value) / n) ** 0.5 if n else 0.0, is_share=True)
