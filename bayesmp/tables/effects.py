"""What predictions depend on: how much worse they are without a column, and how they follow it on average."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesmp.estimators.base import Floats
from bayesmp.estimators.columns.encoder import Column
from bayesmp.heads import RegressionPrediction
from bayesmp.heads.classification import Classifier
from bayesmp.tables.scores import Score, standard_error

if TYPE_CHECKING:
    from bayesmp.tables.model import TableModel

SHUFFLES = 5  # of each column
MOST_COLUMNS = 200  # that are judged
LEAST_ROWS, MOST_ROWS, MOST_PREDICTED = 100, 1_000, 100_000  # rows for each shuffle, and predictions in all
AVERAGED_ROWS, DRAWS = 100, 200  # rows under each point of a curve, and functions that its band is made of
POINTS, MOST_KINDS, MOST_CLASSES = 20, 8, 3  # of a curve, of a column of categories, and classes that get a curve
LEVEL = 0.9  # of the bands
OUTER = 0.02  # share of the rows at either end of a column that a curve leaves out


@dataclass(frozen=True)
class Importance:
    """How much worse rows are predicted if a column's values are shuffled among them.

    Attributes:
        column: of the table.
        nll: rise of the NLL per row, in nats.
        score: fall of R2 or of the accuracy.
    """

    column: str
    nll: Score
    score: Score


@dataclass(frozen=True, eq=False)
class Dependence:
    """The prediction, averaged over rows in all of which one column has the same value, for some of its values.

    Attributes:
        column: of the table.
        at: its values, as numbers (g,); dates as in `tables.dates.Dates`.
        labels: its values as texts, where they are categories.
        names: of the classes whose probabilities are told; [""] for a quantity.
        mean, low, high: the average and its band (g, len(names)).
    """

    column: Column
    at: Floats
    labels: list[str]
    names: list[str]
    mean: Floats
    low: Floats
    high: Floats

    @property
    def reach(self) -> float:
        """How far the average moves."""
        return float(np.ptp(self.mean, axis=0).max())


def importances(model: TableModel, x: Floats, y: NDArray[Any], *, seed: int = 0) -> list[Importance]:
    """Of each column, the most important one first; none where there are too many columns.

    The columns that one column of the table became are shuffled together. Errors are standard errors over rows, each
    averaged over its shuffles: they know of chance in the rows as well as in the shuffles, while the error bars of
    sklearn.inspection.permutation_importance know of shuffles alone.

    Args:
        model: that predicts.
        x: encoded rows (n, features) that it was not trained on.
        y: their targets, or labels numbered from 0.
        seed: of the shuffles.
    """
    columns = model.encoder.columns_
    if len(columns) > MOST_COLUMNS or len(y) < 2:
        return []
    rng = np.random.default_rng(seed)
    n_rows = MOST_PREDICTED // (SHUFFLES * len(columns))
    some = rng.permutation(len(y))[: min(max(n_rows, LEAST_ROWS), MOST_ROWS)]
    x, y = x[some], y[some]
    before, found = _per_row(model, x, y), []
    for column, place in zip(columns, places(model), strict=True):
        worse = np.zeros_like(before)
        for _ in range(SHUFFLES):
            shuffled = x.copy()
            shuffled[:, place] = rng.permutation(x[:, place])
            worse += (_per_row(model, shuffled, y) - before) / SHUFFLES
        found.append(Importance(column.name, *(Score(float(each.mean()), standard_error(each)) for each in worse)))
    return sorted(found, key=lambda each: -each.nll.value)


def dependence(model: TableModel, x: Floats, name: str, *, seed: int = 0) -> Dependence | None:
    r"""How predictions follow a column; None if it has one value only in these rows.

    The band holds with 90 % what the average itself would be, if weights were known. It is that of averaged functions,
    \sum_i f(x_i) / n for draws f of the joint belief: what the network does not know is shared by all rows, so an
    average of the rows' own bands would be wrong. Neither noise nor the choice of rows is in it.
    """
    k = [column.name for column in model.encoder.columns_].index(name)
    column, place = model.encoder.columns_[k], places(model)[k]
    rng = np.random.default_rng(seed)
    blocks, labels = _grid(column, x[:, place])
    if len(blocks) < 2:
        return None
    rows = x[rng.permutation(len(x))[:AVERAGED_ROWS]]
    grid = np.repeat(rows[None], len(blocks), axis=0)  # (g, rows, features)
    grid[:, :, place] = blocks[:, None]
    shape, flat = grid.shape[:2], grid.reshape(-1, grid.shape[2])
    known = model.at(flat)
    each = known.mean[:, None] if isinstance(known, RegressionPrediction) else known.probs
    mean = each.double().numpy().reshape(*shape, -1).mean(1)
    drawn = _averaged_draws(model, flat, shape, seed)
    low, high = np.quantile(drawn, [0.5 - 0.5 * LEVEL, 0.5 + 0.5 * LEVEL], axis=0)
    names = [str(label) for label in model.classes] or [""]
    chosen = np.argsort(-np.ptp(mean, axis=0), kind="stable")[:MOST_CLASSES]
    if len(names) == 2:
        chosen = np.array([int(model.facts.guess[1] <= model.facts.guess[0])])  # the rarer one tells all
    at = blocks[:, 0] + (column.calendar.first if column.calendar and not column.calendar.is_clock else 0.0)
    parts = (part[:, chosen] for part in (mean, low, high))
    return Dependence(column, at, labels, [names[c] for c in chosen], *parts)


def places(model: TableModel) -> list[slice]:
    """Which encoded numbers each column has become."""
    ends = np.cumsum([0, *(len(column.features) for column in model.encoder.columns_)]).tolist()
    return [slice(start, stop) for start, stop in pairwise(ends)]


def _per_row(model: TableModel, x: Floats, y: NDArray[Any]) -> Floats:
    """What each row loses, in NLL and in the score (2, n)."""
    known = model.at(x)
    nll = -known.log_prob(y).double().numpy()
    if isinstance(known, RegressionPrediction):
        lost = np.square(known.mean.double().numpy() - y) / max(float(np.var(y)), 1e-300)
    else:
        lost = known.label.numpy() != y
    return np.stack([nll, lost.astype(np.float64)])


def _grid(column: Column, values: Floats) -> tuple[Floats, list[str]]:
    """Values (g, features of the column) that occur: categories by frequency, others spread evenly over their range."""
    kinds, counts = np.unique(values, axis=0, return_counts=True)
    if column.kind == "category":
        seen = np.flatnonzero(kinds.any(1))
        chosen = seen[np.argsort(-counts[seen], kind="stable")[:MOST_KINDS]]
        return kinds[chosen], [column.categories[k] for k in kinds[chosen].argmax(1)]
    if column.marks_missing:
        kinds = kinds[kinds[:, -1] == 0.0]
        values = values[values[:, -1] == 0.0]
    if len(kinds) <= POINTS:
        return kinds, []
    low, high = np.quantile(values[:, 0], [OUTER, 1.0 - OUTER])
    nearest = [int(np.abs(kinds[:, 0] - at).argmin()) for at in np.linspace(low, high, POINTS)]
    return kinds[np.unique(nearest)], []


def _averaged_draws(model: TableModel, x: Floats, shape: tuple[int, ...], seed: int) -> Floats:
    """Draws (d, g, outputs) of the average over the rows, in units of the target; of several networks as many each."""
    estimator = model.estimator
    inputs, found = estimator.x_scaling_.apply(x), []
    for network in estimator.networks_:
        outputs = network.sample_functions(inputs, -(-DRAWS // len(estimator.networks_)), seed=seed)
        head: Any = network.head
        if isinstance(head, Classifier):
            outputs = head.at_certain_outputs(outputs, network.head_log_weights.to(outputs))
        found.append(outputs.reshape(len(outputs), *shape, -1).mean(2))
    drawn = torch.cat(found).double().numpy()
    scaling = getattr(estimator, "y_scaling_", None)
    return drawn if scaling is None else scaling.undo(drawn)
