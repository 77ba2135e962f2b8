"""`bayesmp fit`: a model of a table, and how good it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from bayesmp import tables
from bayesmp.cli import options as parsed
from bayesmp.cli.errors import DEBUG, note, with_errors
from bayesmp.cli.options import Task
from bayesmp.cli.page import write_page
from bayesmp.cli.report import draw, known_to, number, tell_report, tell_training
from bayesmp.training.trainer import MAX_EPOCHS

if TYPE_CHECKING:
    from bayesmp.tables.model import TableModel

FEW_ROWS = 50  # of a table, below which none are held out unless asked for
ROWS_PER_COLUMN = 3  # below which leave-one-out scores may be far too good


@with_errors
def fit(
    table: Path = typer.Argument(
        help="CSV or TSV (names in the first line; also .csv.gz, .tsv.gz), Parquet or Excel (.xlsx) file."
    ),
    target: str = typer.Option(..., help="The column to predict."),
    out: Path = typer.Option(..., help="Where to write the model (.safetensors)."),
    task: Task | None = typer.Option(
        None, help="Default: texts, booleans and few different whole numbers are classes.", show_default=False
    ),
    drop: str = typer.Option("", help="Columns to leave out: a,b,c.", show_default=False),
    categories: str = typer.Option(
        "", help="Columns of numbers that are names of something, such as postal codes: a,b.", show_default=False
    ),
    hidden: str = typer.Option(
        "auto", help="Widths of the hidden layers: 50,50; auto: 50, or 16,16 for a quantity by one or two columns."
    ),
    networks: int = typer.Option(
        1, min=1, help="Networks that predict together: 3 predict better than one, and take up to three times as long."
    ),
    epochs: str = typer.Option("auto", help="Passes over the data; auto: until nothing changes any more."),
    max_epochs: int = typer.Option(MAX_EPOCHS, min=1, help="Bound for auto."),
    seed: int = typer.Option(0, min=0, help="Draws the start, the batches and the rows held out."),
    hold_out: float | None = typer.Option(
        None,
        min=0.0,
        max=0.9,
        help=f"Share of the rows that the report is made with; 0 for no report. Default: 0.2 from {FEW_ROWS} rows on.",
        show_default=False,
    ),
    refit: bool = typer.Option(
        True, "--refit/--no-refit", help="After the report, train the model that is saved on all rows."
    ),
    picture: Path | None = typer.Option(
        None, help="Where to draw the report (.png, .pdf, .svg). Default: beside the model.", show_default=False
    ),
    report: Path | None = parsed.REPORT,
    time_column: str = typer.Option(
        "",
        help="Column of dates or numbers by which the latest rows are held out, not random ones.",
        show_default=False,
    ),
    threshold: float | None = parsed.THRESHOLD,
    cost: str = parsed.COST,
    header: bool | None = parsed.HEADER,
    compact: bool = typer.Option(
        False, "--compact", help="Write a small file, which takes longer to load and predicts the same."
    ),
    no_progress: bool = typer.Option(False, "--no-progress", help="No progress bar."),
    debug: bool = DEBUG,
) -> None:
    """Learn to predict a column of a table from the others, report how well, and save the model.

    Numbers stay numbers, also if written as 1.234,50 or 30 % or 3750 g; missing ones become the median and are marked.
    Texts, booleans, categories and codes such as 01067 become a column of 0 and 1 each; missing ones are a category,
    and rare ones share one. Dates become days since the first one, and time of year, weekday and time of day where
    there are enough of them. Columns that are constant or name the rows are left out. The model file keeps all this,
    and the inputs of at most 2,048 rows, without their targets.
    """
    from bayesmp.estimators import TableEncoder
    from bayesmp.tables.model import (
        TableModel,
        check_enough,
        count_copies,
        tell_outliers,
        tell_skew,
    )  # scikit-learn takes a second to import
    from bayesmp.tables.report import Report, check_two_classes
    from bayesmp.tables.split import hold_out as split
    from bayesmp.tables.split import hold_out_latest
    from bayesmp.tables.verdict import judge_left_out

    options: dict[str, Any] = {
        "hidden": parsed.widths(hidden),
        "n_networks": networks,
        "epochs": parsed.epochs(epochs),
        "max_epochs": max_epochs,
        "random_state": seed,
        "progress": sys.stderr.isatty() and not no_progress,
        "drop": parsed.names(drop),
        "categories": parsed.names(categories),
        "source": table.name,
    }
    if out.suffix != ".safetensors":
        raise typer.BadParameter(f"must end in .safetensors, got {str(out)!r}", param_hint="--out")
    picture = picture or out.with_suffix(".png")
    parsed.check_picture(picture, "--picture")
    if target in (*parsed.names(drop), *parsed.names(categories)):
        raise typer.BadParameter(f"{target!r} is the target", param_hint="--drop, --categories")
    if report is not None:
        parsed.check_report(report)
        if hold_out == 0.0:
            raise typer.BadParameter("needs rows that are held out; leave --hold-out 0 away", param_hint="--report")
    frame = tables.read_table(table, has_names=header, tell=note)
    tables.check_column(target, frame.columns)
    if time_column:
        tables.check_column(time_column, frame.columns)
        if time_column == target:
            raise typer.BadParameter(f"{target!r} is the target", param_hint="--time-column")
    for path in (out, picture, *([report] if report else [])):
        parsed.check_writable(path)
    what, why = tables.Target.decide(frame[target], task.value if task else None)
    y, known = what.read(frame[target])
    called = parsed.threshold(threshold, cost)
    if called is not None:
        check_two_classes(what, len(set(y[known].tolist())))
    typer.echo(f"{table.name}: {tables.plural(len(frame), 'row')}, {tables.plural(frame.shape[1] - 1, 'column')}")
    typer.echo(f"{target}: {why}; this is a {what.task}")
    if not known.all():
        typer.echo(f"{tables.plural(int((~known).sum()), 'row')} without a target left out")
    columns, y = frame.drop(columns=target)[known].reset_index(drop=True), y[known]
    encoder = TableEncoder(drop=parsed.names(drop), categories=parsed.names(categories))
    encoder.decide(columns)
    for sentence in encoder.notes_:
        typer.echo(sentence)
    n_features = len(encoder.get_feature_names_out())
    typer.echo(
        f"{tables.plural(len(encoder.columns_), 'column')} used, as {tables.plural(n_features, 'number')} per row"
    )

    notes = tell_outliers(encoder, what, columns, y)
    if (n_copies := count_copies(encoder, columns, y)) > 0:
        notes.append(
            f"{n_copies:,} of the rows are copies of others, target included: training mostly counts them "
            "once, but they make the report too good; remove them if they are no measurements of their own"
        )
    for sentence in notes:
        note(sentence)

    is_asked = len(y) >= FEW_ROWS or report is not None or time_column
    share = hold_out if hold_out is not None else 0.2 if is_asked else 0.0
    kept, held, told = hold_out_latest(columns[time_column], share) if time_column else split(y, what, share, seed=seed)
    check_enough(len(kept))
    model: TableModel | None = None
    if len(held) > 0:
        typer.echo(f"\ntraining on {len(kept):,} rows, {len(held):,} held out")
        if told:
            typer.echo(told)
        model = TableModel.fit(columns.iloc[kept].reset_index(drop=True), y[kept], what, **options)
        tell_training(model)
        typer.echo("")
        held = held[known_to(model, y[held])]
        rows, numbers = columns.iloc[held].reset_index(drop=True), np.flatnonzero(known)[held] + 1
        found = Report(model, rows, y[held], numbers, f"{len(held):,} held out", threshold=called, with_loo=True)
        tell_report(found)
        if hint := tell_skew(what, y):
            note(hint)
            notes.append(hint)
        draw(found, picture)
        if report is not None:
            said = [*([told] if told else []), *encoder.notes_, *notes]
            write_page(found, report, said, is_refitted=refit)
    else:
        typer.echo("\nno rows are held out; the leave-one-out score, below, predicts each row without itself")
    if model is None or refit:
        is_judged = model is not None
        typer.echo(f"\ntraining on all {len(y):,} rows")
        model = TableModel.fit(columns, y, what, **options)
        tell_training(model)
        left_out = model.loo_scores()
        if not is_judged and (use := judge_left_out(left_out, model.facts.guess, is_classes=bool(model.classes))):
            typer.echo(use)
        typer.echo(f"leave-one-out: {', '.join(f'{name} {number(name, value)}' for name, value in left_out.items())}")
        n_columns = model.estimator.n_features_in_
        if len(y) < ROWS_PER_COLUMN * n_columns:
            note(
                f"{len(y):,} rows for {n_columns:,} columns (categories and gaps counted): leave-one-out may be far "
                "too good; judge by other rows, or leave columns out (--drop)"
            )
    model.save(out, compact=compact)
    typer.echo(f"model: {out}")
