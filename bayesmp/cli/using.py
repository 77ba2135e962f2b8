"""`bayesmp predict` and `bayesmp evaluate`: what a model says about the rows of another table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from bayesmp import tables
from bayesmp.cli import options as parsed
from bayesmp.cli.errors import DEBUG, note, with_errors
from bayesmp.cli.page import write_page
from bayesmp.cli.report import by_all, draw, known_to, load_model, tell_report

if TYPE_CHECKING:
    from pandas import DataFrame

    from bayesmp.tables.model import TableModel, TablePrediction


@with_errors
def predict(
    model: Path = typer.Argument(help="What `bayesmp fit` wrote."),
    table: Path = typer.Argument(help="CSV, Parquet or Excel file with the columns of training, in any order."),
    out: Path | None = typer.Option(
        None, help="Where to write the predictions (.csv, .tsv, .parquet or .xlsx); default: to the screen, as CSV."
    ),
    level: float = typer.Option(0.9, help="Probability that an interval holds its target with, between 0 and 1."),
    only: bool = typer.Option(False, "--only", help="Leave the columns of the table out of the result."),
    header: bool | None = parsed.HEADER,
    debug: bool = DEBUG,
) -> None:
    """Predict the target for each row of a table.

    Written behind the table's own columns, for a target y: y_mean, y_std, y_low and y_high (the interval), or for
    classes y_predicted and one y_p_... per class; and unlike_training. This is True where the model has to guess: where
    its epistemic uncertainty (what more data would take away) is beyond that of all but 1 % of the training rows, each
    predicted without itself, or where a category is new, a date beyond those of training, or a number missing in a
    column that had no gaps in training.
    """
    if not 0.0 < level < 1.0:
        raise typer.BadParameter(f"must lie between 0 and 1, got {level:g}", param_hint="--level")
    if out is not None:
        tables.check_ending(out)
        if out.resolve() in (table.resolve(), model.resolve()):
            raise typer.BadParameter("would overwrite what is read; choose another name", param_hint="--out")
        parsed.check_writable(out)
    loaded, frame = load_model(model), tables.read_table(table, has_names=header, tell=note)
    prediction = loaded.predict(frame)
    for sentence in _notes(loaded, frame, prediction):
        note(sentence)
    found = loaded.as_frame(prediction, level=level)
    if not only:
        again = [name for name in frame.columns if name in found.columns]
        if again:
            note(f"columns of the same names replaced: {', '.join(map(repr, again))}")
        found = frame.drop(columns=again).join(found)
    if out is None:
        typer.echo(found.to_csv(index=False), nl=False)
        return
    tables.write_table(found, out)
    n_unlike = int(prediction.is_unlike.sum())
    predicted = f"{tables.plural(len(found), 'row')} predicted {by_all(loaded)}".rstrip()
    typer.echo(f"{predicted}, {n_unlike:,} of them unlike the training data: {out}")


@with_errors
def evaluate(
    model: Path = typer.Argument(help="What `bayesmp fit` wrote."),
    table: Path = typer.Argument(help="CSV, Parquet or Excel file with the columns of training and the target."),
    picture: Path | None = typer.Option(None, help="Where to draw it (.png, .pdf, .svg).", show_default=False),
    report: Path | None = parsed.REPORT,
    threshold: float | None = parsed.THRESHOLD,
    cost: str = parsed.COST,
    header: bool | None = parsed.HEADER,
    debug: bool = DEBUG,
) -> None:
    """Score a model on rows it was not trained on: is it better than a guess, and as sure as it is right?"""
    from bayesmp.tables.report import Report  # scikit-learn takes a second to import

    called = parsed.threshold(threshold, cost)
    if picture is not None:
        parsed.check_picture(picture, "--picture")
    if report is not None:
        parsed.check_report(report)
        parsed.check_writable(report)
    loaded, frame = load_model(model), tables.read_table(table, has_names=header, tell=note)
    target, notes = loaded.target, []
    tables.check_column(target.name, frame.columns)
    y, known = target.read(frame[target.name])
    if not known.all():
        note(f"{tables.plural(int((~known).sum()), 'row')} without a target left out")
    known[known] = known_to(loaded, y[known])
    if not known.any():
        raise tables.TableError(f"no row of {table.name} has a target {target.name!r} that can be scored")
    y = y[known]
    scored = frame[known].reset_index(drop=True)
    if loaded.was_trained_on(scored):
        notes = ["the model was trained on these very rows, so the scores are better than they will be on others"]
    elif (n_known := loaded.count_trained_on(scored, y)) > 0:
        some = tables.plural(n_known, "row")
        notes = [f"{some} of these, or more, are rows that the model was trained on; the scores are too good by them"]
    found = Report(loaded, scored, y, np.flatnonzero(known) + 1, tables.plural(len(y), "row"), threshold=called)
    notes = [*_notes(loaded, frame, found.prediction), *notes]
    for sentence in notes:
        note(sentence)
    tell_report(found)
    if picture is not None:
        draw(found, picture)
    if report is not None:
        write_page(found, report, [f"rows of {table.name}", *notes])


def _notes(model: TableModel, frame: DataFrame, prediction: TablePrediction) -> list[str]:
    """Sentences about columns that do not fit."""
    used = {column.name for column in model.encoder.columns_}
    extra = [name for name in frame.columns if name not in used | set(model.encoder.left_out_) | {model.target.name}]
    ignored = [f"columns that the model does not know ignored: {', '.join(map(repr, extra))}"] if extra else []
    return ignored + prediction.notes
