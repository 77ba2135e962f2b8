"""What is said about a model of a table: how its training went, how well it predicts, and a picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from bayesmp import plots, tables
from bayesmp.basics import atomic
from bayesmp.cli.errors import note
from bayesmp.heads import RegressionPrediction
from bayesmp.training.stopping import refreshes, tell_unrest
from bayesmp.training.trainer import NOT_AT_REST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bayesmp.tables.model import TableModel
    from bayesmp.tables.report import Report

SHOWN = 10  # columns whose importance is told


def load_model(path: Path) -> TableModel:
    """The model of a file."""
    if tables.ending(path) is not None:
        raise tables.TableError(f"{str(path)!r} is a table; the model comes first, then the table, if one is needed")
    from bayesmp.tables.model import TableModel  # scikit-learn takes a second to import

    return TableModel.load(path)


def tell_training(model: TableModel) -> None:
    """Say how training ended, and what to do if it was too early."""
    estimator = model.estimator
    for k, history in enumerate(estimator.histories_, start=1):
        who = "" if model.n_networks == 1 else f"network {k}: "
        typer.echo(f"{who}{history.stopped}, {sum(history.column('seconds')):.1f} s")
    if not model.is_at_rest:
        if estimator.epochs == "auto":
            restless = next(history for history in estimator.histories_ if NOT_AT_REST in history.stopped)
            note(tell_unrest(refreshes(restless), "raise --max-epochs"))
        else:
            note("the leave-one-out score or the means still moved; raise --epochs, or leave it out")


def by_all(model: TableModel) -> str:
    """That several networks predict together, in words; nothing where there is one."""
    return "" if model.n_networks == 1 else f"by {model.n_networks} networks"


def known_to(model: TableModel, y: NDArray[Any]) -> NDArray[np.bool_]:
    """Which targets can be scored: all but classes that the model does not know, of which a note tells."""
    if not model.classes:
        return np.ones(len(y), dtype=bool)
    known = np.isin(y, model.classes)
    if not known.all():
        some = ", ".join(map(repr, np.unique(y[~known])[:5].tolist()))
        note(f"{tables.plural(int((~known).sum()), 'row')} with classes unknown to the model left out: {some}")
    return known


def tell_report(report: Report) -> None:
    """The verdict, the scores beside those of a guess, and what predictions depend on."""
    for sentence in report.verdict.sentences:
        typer.echo(sentence)
    heads = [report.title, *report.beside]
    cells = [[str(score), *(score.like(others.get(name)) for others in report.beside.values())]
             for name, score in report.scores.items()]  # fmt: skip
    typer.echo("")
    _tell_table(by_all(report.model), heads, list(report.scores), cells)
    if math.isnan(report.scores.get("R2", report.scores["NLL"]).value):
        typer.echo("R2 needs at least two rows, with different targets")
    some = report.importances[:SHOWN]
    if some:
        typer.echo("")
        heads = ["rise of NLL", f"fall of {'accuracy' if report.model.classes else 'R2'}"]
        rows = [[str(each.nll), str(each.score)] for each in some]
        _tell_table("column shuffled", heads, [each.column for each in some], rows)
        if (n_more := len(report.importances) - SHOWN) > 0:
            typer.echo(f"... and {tables.plural(n_more, 'column')} more")


def _tell_table(title: str, heads: list[str], names: list[str], cells: list[list[str]]) -> None:
    """Columns of texts, aligned at the right."""
    columns = list(zip(heads, *cells, strict=True))
    widths = [max(14, *(len(text) + 3 for text in column)) for column in columns]
    first = max(18, *(len(name) + 1 for name in (title, *names)))
    for name, row in zip([title, *names], [heads, *cells], strict=True):
        typer.echo(f"{name:<{first}}" + "".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)))


def number(name: str, value: float) -> str:
    """The value of the leave-one-out score of this name."""
    if math.isnan(value):
        return "–"
    return f"{value:.3f}" if name != "RMSE" else f"{value:,.0f}" if value >= 10_000 else f"{value:.4g}"


def draw(report: Report, path: Path) -> None:
    """The picture of a report; a sentence if it cannot be drawn."""
    try:
        plots.require_matplotlib()
    except ImportError as error:
        note(f"no picture: {error}")
        return
    from matplotlib.figure import Figure  # not pyplot: a file needs no window

    model, known, name = report.model, report.prediction.known, plots.plain(report.model.target.name)
    if isinstance(known, RegressionPrediction):
        figure = Figure(figsize=(4.8, 4.6), layout="constrained", dpi=150)
        plots.predicted_against_true(known, report.y, ax=figure.subplots()).set(
            xlabel=f"true {name}", ylabel=f"predicted {name}"
        )
    else:
        side = min(2.6 + 0.36 * len(model.classes), 9.0)
        figure = Figure(figsize=(4.4 + side, max(4.4, side)), layout="constrained", dpi=150)
        left, right = figure.subplots(1, 2, width_ratios=(4.4, side))
        plots.reliability(known.probs, report.y, left)
        plots.confusion(known.probs, report.y, model.classes, right)
    if by_all(model):
        figure.suptitle(f"predicted {by_all(model)}", fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.writing(path) as file:
        figure.savefig(file, format=path.suffix.removeprefix("."))
    typer.echo(f"picture: {path}")
