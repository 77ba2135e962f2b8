"""`bayesmp predict` and `bayesmp evaluate`: what a model says about the rows of another table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import typer

from bayesmp import tables
from bayesmp.cli.errors import DEBUG, note, with_errors
from bayesmp.cli.options import HEADER, check_picture, check_writable
from bayesmp.cli.report import by_all, draw, load_model, tell_scores

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
    header: bool | None = HEADER,
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
        check_writable(out)
    loaded, frame = load_model(model), tables.read_table(table, has_names=header, tell=note)
    prediction = _predict(loaded, frame)
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
    header: bool | None = HEADER,
    debug: bool = DEBUG,
) -> None:
    """Score a model on rows it was not trained on, and say whether it is as sure as it is right."""
    if picture is not None:
        check_picture(picture, "--picture")
    loaded, frame = load_model(model), tables.read_table(table, has_names=header, tell=note)
    target = loaded.target
    tables.check_column(target.name, frame.columns)
    y, known = target.read(frame[target.name])
    if not known.all():
        note(f"{tables.plural(int((~known).sum()), 'row')} without a target left out")
    if loaded.classes:
        strange = known & ~numpy.isin(y, loaded.classes)
        if strange.any():
            some = ", ".join(map(repr, numpy.unique(y[strange])[:5].tolist()))
            note(f"{tables.plural(int(strange.sum()), 'row')} with classes unknown to the model left out: {some}")
        known &= ~strange
    if not known.any():
        raise tables.TableError(f"no row of {table.name} has a target {target.name!r} that can be scored")
    y = y[known]
    scored = frame[known].reset_index(drop=True)
    prediction = _predict(loaded, scored)
    if loaded.was_trained_on(scored):
        note("the model was trained on these very rows, so the scores are better than they will be on others")
    elif (n_known := loaded.count_trained_on(scored, y)) > 0:
        some = tables.plural(n_known, "row")
        note(f"{some} of these, or more, are rows that the model was trained on; the scores are too good by them")
    tell_scores(loaded, prediction, y, tables.plural(len(y), "row"))
    if picture is not None:
        draw(loaded, prediction, y, picture)


def _predict(model: TableModel, frame: DataFrame) -> TablePrediction:
    """Predictions, after notes about columns that do not fit."""
    used = {column.name for column in model.encoder.columns_}
    extra = [name for name in frame.columns if name not in used | set(model.encoder.left_out_) | {model.target.name}]
    prediction = model.predict(frame)
    if extra:
        note(f"columns that the model does not know ignored: {', '.join(map(repr, extra))}")
    for sentence in prediction.notes:
        note(sentence)
    return prediction
