"""A model of a table: how its columns become numbers, the estimator that learned from them, and what it was told.

The command line is made of this: `TableModel.fit`, `predict`, `score`, `save` and `load`.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import io
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from bayesmp.basics import checks, persistence
from bayesmp.estimators import MPClassifier, MPRegressor
from bayesmp.estimators.base import Floats, OutlierWarning
from bayesmp.estimators.columns.encoder import EncoderHeader, TableEncoder
from bayesmp.estimators.scaling import APART, FAR_APART, values_apart
from bayesmp.heads import ClassPrediction, RegressionPrediction
from bayesmp.tables import TableError, Target, plural, require_pandas
from bayesmp.tables.facts import Facts, judge_training, spread_of

if TYPE_CHECKING:
    from pandas import DataFrame

MIN_ROWS = 5
MARKED_ROWS = 1_024  # of the training data that can be known again one by one
SKEWED, EVEN = 2.0, 1.0  # skewness from which logarithms are worth a word, and what they may have themselves at most


@dataclass(frozen=True)
class TableHeader:
    """What a file says of a table beside the estimator."""

    encoder: EncoderHeader
    target: Target
    facts: Facts


def check_enough(n_rows: int) -> None:
    """Raise if these are too few rows with a target."""
    if n_rows < MIN_ROWS:
        raise TableError(f"{plural(n_rows, 'row')} with a target: at least {MIN_ROWS} are needed to learn from")


@dataclass(frozen=True, eq=False)
class TablePrediction:
    """Predictions for the rows of a table, in the units of the target.

    Attributes:
        known: a RegressionPrediction or a ClassPrediction.
        is_unlike: rows unlike the training data (n,).
        notes: sentences about what had to be done with the columns.
    """

    known: RegressionPrediction | ClassPrediction
    is_unlike: NDArray[np.bool_]
    notes: list[str]


@dataclass(eq=False, repr=False)
class TableModel:
    """Predicts one column of a table from the others."""

    encoder: TableEncoder
    target: Target
    estimator: MPRegressor | MPClassifier
    facts: Facts
    version: str = ""  # of the library that wrote the file it came from

    def __repr__(self) -> str:
        source = f" of {self.facts.source}" if self.facts.source else ""
        columns = ", ".join(repr(column.name) for column in self.encoder.columns_)
        return (
            f"TableModel({self.target.task} of {self.target.name!r} on {columns}; {self.facts.n_rows:,} rows{source})"
        )

    @classmethod
    def fit(
        cls,
        frame: DataFrame,
        y: NDArray[Any],
        target: Target,
        *,
        drop: Sequence[str] = (),
        categories: Sequence[str] = (),
        source: str = "",
        progress: bool = False,
        **options: Any,
    ) -> TableModel:
        """Learn from a table.

        Args:
            frame: the columns to predict from.
            y: the targets, as `target.read` gives them.
            target: what they are.
            drop, categories: as for TableEncoder.
            source: name of the file they came from.
            progress: show a progress bar.
            options: for MPRegressor or MPClassifier.
        """
        check_enough(len(y))
        encoder = TableEncoder(drop=drop, categories=categories)
        encoder.decide(frame)
        x = encoder.encode(frame).x
        kind = MPRegressor if target.task == "regression" else MPClassifier
        estimator = kind(verbose=progress, **options)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # the bar is on stderr
            warnings.simplefilter("ignore", ConvergenceWarning)  # `is_at_rest` tells
            warnings.simplefilter("ignore", OutlierWarning)  # `tell_outliers` does, by the names of the table
            estimator.fit(x, y)
        estimator.verbose = False
        unlike, noise_std, noise_range = judge_training(estimator, x)
        made, known_by = datetime.date.today().isoformat(), _fingerprint(x)
        some = np.random.default_rng(0).permutation(len(y))[:MARKED_ROWS]
        marks = tuple(_row_marks(x[some], y[some]))
        facts = Facts(source, made, len(y), _guess(target, y), unlike, noise_std, known_by, marks, noise_range)
        return cls(encoder, target, estimator, facts)

    @property
    def is_at_rest(self) -> bool:
        """Whether training ended by itself, that of all networks."""
        return all("not at rest" not in history.stopped for history in self.estimator.histories_)

    @property
    def n_networks(self) -> int:
        """How many networks predict together."""
        return len(self.estimator.networks_)

    @property
    def classes(self) -> list[Any]:
        """The labels, in the order of the probabilities."""
        return list(self.estimator.classes_.tolist()) if isinstance(self.estimator, MPClassifier) else []

    def predict(self, frame: DataFrame) -> TablePrediction:
        """Predictions for a table that has the columns of the training table.

        A row is unlike the training data if the network is less sure of its outputs there than it is of all but 1 % of
        the training rows when it has to predict them without themselves, or if a category was never seen.
        """
        encoded = self.encoder.encode(frame)
        known = self.estimator.predict_outputs(encoded.x)
        is_unlike = (spread_of(known.epistemic_var) > self.facts.unlike) | encoded.is_unseen
        return TablePrediction(self._in_units(known), is_unlike, encoded.notes)

    def at(self, x: Floats) -> RegressionPrediction | ClassPrediction:
        """Predictions, in the units of the target, for rows as `encoder.transform` gives them."""
        return self._in_units(self.estimator.predict_outputs(x))

    def _in_units(self, known: RegressionPrediction | ClassPrediction) -> RegressionPrediction | ClassPrediction:
        if not isinstance(known, RegressionPrediction):
            return known
        assert self.estimator.y_scaling_ is not None
        known = known.undo(self.estimator.y_scaling_)
        return replace(known.flat(), noise_var=known.noise_var.reshape(()))

    def was_trained_on(self, frame: DataFrame) -> bool:
        """Whether these are the rows it was trained on."""
        return _fingerprint(self.encoder.encode(frame).x) == self.facts.fingerprint

    def count_trained_on(self, frame: DataFrame, y: NDArray[Any]) -> int:
        """How many of these rows are like one of the training rows that are known one by one, target included."""
        known = set(self.facts.row_marks)
        return sum(mark in known for mark in _row_marks(self.encoder.encode(frame).x, y))

    def as_frame(self, prediction: TablePrediction, *, level: float = 0.9) -> DataFrame:
        """Predictions as columns: mean, std and interval of the target, or label and probabilities; and the flag."""
        pandas = require_pandas()
        known, name = prediction.known, self.target.name
        if isinstance(known, RegressionPrediction):
            low, high = known.interval(level)
            parts = {"mean": known.mean, "std": known.std, "low": low, "high": high}
            columns: dict[str, Any] = {f"{name}_{part}": values.numpy() for part, values in parts.items()}
        else:
            labels = self.estimator.classes_[known.label.numpy()]
            columns = {f"{name}_predicted": labels}
            probs = known.probs.numpy()
            columns |= {f"{name}_p_{label}": probs[:, k] for k, label in enumerate(self.classes)}
        return pandas.DataFrame({**columns, "unlike_training": prediction.is_unlike})

    def loo_scores(self) -> dict[str, float]:
        """The leave-one-out scores of training under the names of `scores_of`."""
        nll, error = -self.estimator.loo_score_, self.estimator.loo_error_
        if self.target.task == "regression":
            return {"R2": 1.0 - (error / self.facts.guess[1]) ** 2, "RMSE": error, "NLL": nll}
        return {"accuracy": 1.0 - error, "NLL": nll}

    def indices(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """Labels as numbers from 0; they must be among the classes."""
        return np.searchsorted(self.estimator.classes_, y).astype(np.int64)

    def save(self, path: persistence.PathLike, *, compact: bool = False) -> None:
        """Write it to a safetensors file, a smaller one if `compact` (`Network.save`); the training rows themselves do
        not go into it."""
        table = {"encoder": self.encoder.to_json(), "target": asdict(self.target), "facts": asdict(self.facts)}
        self.estimator.save(path, data=False, compact=compact, extra={persistence.TABLE: table})

    @classmethod
    def load(cls, path: persistence.PathLike) -> TableModel:
        """The model of a file that `save` wrote."""
        with persistence.opened(path, kinds=("model", "run", "estimator")) as file:
            header = file.header
            if persistence.TABLE not in header:
                found = persistence.EXPECTED[header["kind"]]
                raise TableError(
                    f"{str(path)!r} holds {found} that was saved from Python; only files that `bayesmp fit` made know "
                    "what the columns of a table mean"
                )
            table = file.entry(TableHeader, persistence.TABLE)
            encoder = TableEncoder.of(table.encoder)
        kind = MPRegressor if table.target.task == "regression" else MPClassifier
        model = cls(encoder, table.target, kind.read(path, is_part=True), table.facts, header["library"])
        with file.understood():
            model._check()
        return model

    def _check(self) -> None:
        """Raise unless the parts of a file belong together."""
        n_columns, n_numbers = len(self.encoder.get_feature_names_out()), self.estimator.n_features_in_
        if n_columns != n_numbers:
            raise ValueError(f"its columns become {n_columns} numbers, and the estimator takes {n_numbers}")
        n_guess = 2 if isinstance(self.estimator, MPRegressor) else len(self.classes)
        if len(self.facts.guess) != n_guess:
            raise ValueError(f"table.facts.guess must have {n_guess} numbers, got {len(self.facts.guess)}")
        if isinstance(self.estimator, MPRegressor) and self.estimator.target_shape_ != ():
            raise ValueError("a table has one target")


def tell_outliers(encoder: TableEncoder, target: Target, frame: DataFrame, y: NDArray[Any]) -> list[str]:
    """Sentences about columns in which values stand apart from all others; rows are counted from 1."""
    x = encoder.encode(frame).x
    parts = [(f"column {name!r}", x[:, k : k + 1], FAR_APART) for k, name in enumerate(encoder.get_feature_names_out())]
    if target.task == "regression":
        parts.append((f"the target {target.name!r}", y.astype(np.float64)[:, None], APART))
    found = [(name, part, values_apart(part, times)) for name, part, times in parts]
    return [checks.tell_outlier(name, part[rows[0], 0], rows[0] + 1) for name, part, rows in found if rows]


def tell_skew(target: Target, y: NDArray[Any]) -> str:
    """A sentence about a positive target whose logarithm would be learned better; nothing about others."""
    if target.task != "regression" or float(y.min()) <= 0.0:
        return ""
    if _skewness(y) < SKEWED or abs(_skewness(np.log(y))) > EVEN:
        return ""
    middle, largest = float(np.median(y)), float(y.max())
    return (
        f"the target {target.name!r} is positive and very skewed (half of it below {middle:.3g}, the largest "
        f"{largest:.3g}): its logarithm is easier to learn. Add a column with it, make that the target, and leave this "
        f"one out with --drop {target.name}"
    )


def _skewness(values: NDArray[Any]) -> float:
    gap = values.astype(np.float64) - values.mean()
    return float((gap**3).mean() / max((gap**2).mean() ** 1.5, 1e-300))


def count_copies(encoder: TableEncoder, frame: DataFrame, y: NDArray[Any]) -> int:
    """How many rows are copies of others, target included; 0 where rows may well be equal by chance.

    Measured numbers hardly ever are: a column of them, or the target, has different values in most of the different
    rows, and more than ten.
    """
    x = encoder.encode(frame).x
    n_different = len(set(_row_marks(x, y)))
    has_measured = any(len(np.unique(column)) > max(10.0, 0.5 * n_different) for column in (*x.T, y))
    return len(y) - n_different if has_measured else 0


def _row_marks(x: Floats, y: NDArray[Any]) -> list[str]:
    rows = zip(np.ascontiguousarray(x, dtype=np.float64), y.tolist(), strict=True)
    return [hashlib.blake2b(row.tobytes() + repr(target).encode(), digest_size=6).hexdigest() for row, target in rows]


def _fingerprint(x: Floats) -> str:
    return persistence.fingerprint(torch.as_tensor(np.ascontiguousarray(x)))


def _guess(target: Target, y: NDArray[Any]) -> tuple[float, ...]:
    if target.task == "regression":
        mean, std = float(y.mean()), float(y.std())
        return mean, std or abs(mean) or 1.0  # rows held out may be the only ones that differ
    counts = np.unique(y, return_counts=True)[1]
    return tuple((counts / counts.sum()).tolist())
