"""The command line: parses, calls the library, prints."""

from __future__ import annotations

import functools
import inspect
import os
import platform
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy
import torch
import typer

import bayesmp
from bayesmp import data, demo, plots, tables
from bayesmp.heads import RegressionPrediction
from bayesmp.trainer import MAX_EPOCHS

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pandas import DataFrame

    from bayesmp.table_model import TableModel, TablePrediction

EXPERIMENTS = Path(bayesmp.__file__).parent.parent / "experiments"  # there in a checkout, not in an installed package

FEW_ROWS = 50  # of a table, below which none are held out unless asked for
DEBUG = typer.Option(False, "--debug", help="Show where an error came from.")
Command = TypeVar("Command", bound=Callable[..., None])


class Task(str, Enum):
    """Kinds of targets."""

    regression = "regression"
    classification = "classification"


app = typer.Typer(
    help="Bayesian neural networks trained by message passing.",
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _with_errors(command: Command) -> Command:
    """Errors as one line and exit status 1; with --debug as Python shows them."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise  # typer's own; the last comes of `bayesmp predict ... | head`
        except Exception as error:
            if kwargs.get("debug"):
                traceback.print_exc()
            if not isinstance(error, (ValueError, OSError, ImportError)):
                _fail(f"an error that should not happen, {type(error).__name__}: {error}; --debug shows where")
            _fail(
                f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.strerror else str(error)
            )

    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    wrapped.__doc__ = "\n\n".join(" ".join(text.split()) for text in paragraphs)  # typer would keep the line breaks
    return wrapped  # type: ignore[return-value]


@app.callback()
def main(
    version: bool = typer.Option(False, "--version", help="Show the version and exit.", is_eager=True),
) -> None:
    """Bayesian neural networks trained by message passing."""
    if version:
        typer.echo(f"bayesmp {bayesmp.__version__}")
        raise typer.Exit


@app.command("demo")
def demo_command(
    seed: int = typer.Option(0, min=0, help="Draws the data, the prior means and the batches."),
    out: Path = typer.Option(Path("outputs/sine.png"), help="Where to write the picture (.png, .pdf, .svg)."),
    epochs: int = typer.Option(demo.EPOCHS, min=1, help="Visits to each batch."),
    no_progress: bool = typer.Option(False, "--no-progress", help="No progress bar."),
) -> None:
    """Train a small network on noisy sine data, print how sure it is and how often rightly so, and draw it."""
    try:
        plots.require_matplotlib()  # now, not after the training
    except ImportError as error:
        _fail(str(error))
    if out.suffix not in (".png", ".pdf", ".svg"):
        _fail(f"--out must end in .png, .pdf or .svg, got {out}")
    typer.echo(f"{demo.sine_network(seed=seed)!r}\n")
    result = demo.run_demo(seed=seed, epochs=epochs, progress=False if no_progress else None)
    typer.echo(f"trained on {len(result.x)} points for {epochs} epochs in {result.seconds:.1f} s; on new points:\n")
    typer.echo(demo.format_table(result))
    typer.echo(f"\npicture: {demo.draw(result, out)}")


@app.command()
@_with_errors
def fit(
    table: Path = typer.Argument(help="CSV (UTF-8, names in the first line) or Parquet file."),
    target: str = typer.Option(..., help="The column to predict."),
    out: Path = typer.Option(..., help="Where to write the model (.safetensors)."),
    task: Task | None = typer.Option(
        None, help="Default: texts, booleans and few different whole numbers are classes.", show_default=False
    ),
    drop: str = typer.Option("", help="Columns to leave out: a,b,c.", show_default=False),
    categories: str = typer.Option(
        "", help="Columns of numbers that are names of something, such as postal codes: a,b.", show_default=False
    ),
    hidden: str = typer.Option("50", help="Widths of the hidden layers: 50,50."),
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
    no_progress: bool = typer.Option(False, "--no-progress", help="No progress bar."),
    debug: bool = DEBUG,
) -> None:
    """Learn to predict a column of a table from the others, report how well, and save the model.

    Numbers stay numbers; missing ones become the median and are marked. Texts, booleans and categories become a column
    of 0 and 1 each; missing ones are a category. Columns that are constant or name the rows are left out, dates are
    refused. The model file keeps all this, but not the rows.
    """
    from bayesmp.table_model import TableModel  # scikit-learn takes a second to import
    from bayesmp.table_model import hold_out as split

    options: dict[str, Any] = {
        "hidden": _widths(hidden),
        "epochs": _epochs(epochs),
        "max_epochs": max_epochs,
        "random_state": seed,
        "progress": sys.stderr.isatty() and not no_progress,
        "drop": _names(drop),
        "categories": _names(categories),
        "source": table.name,
    }
    if out.suffix != ".safetensors":
        raise typer.BadParameter(f"must end in .safetensors, got {str(out)!r}", param_hint="--out")
    picture = picture or out.with_suffix(".png")
    if picture.suffix not in (".png", ".pdf", ".svg"):
        raise typer.BadParameter(f"must end in .png, .pdf or .svg, got {str(picture)!r}", param_hint="--picture")
    if target in (*_names(drop), *_names(categories)):
        raise typer.BadParameter(f"{target!r} is the target", param_hint="--drop, --categories")
    frame = tables.read_table(table)
    tables.check_column(target, frame.columns)
    for path in (out, picture):
        _check_writable(path)
    what, why = tables.Target.decide(frame[target], task.value if task else None)
    y, known = what.read(frame[target])
    typer.echo(f"{table.name}: {tables.plural(len(frame), 'row')}, {tables.plural(frame.shape[1] - 1, 'column')}")
    typer.echo(f"{target}: {why}; this is a {what.task}")
    if not known.all():
        typer.echo(f"{tables.plural(int((~known).sum()), 'row')} without a target left out")
    columns, y = frame.drop(columns=target)[known].reset_index(drop=True), y[known]
    encoder = tables.TableEncoder().fit(columns, drop=_names(drop), categories=_names(categories))
    for note in encoder.notes:
        typer.echo(note)
    n_features = len(encoder.features)
    typer.echo(
        f"{tables.plural(len(encoder.columns), 'column')} used, as {tables.plural(n_features, 'number')} per row"
    )

    share = hold_out if hold_out is not None else 0.2 if len(y) >= FEW_ROWS else 0.0
    kept, held = split(y, what, share, seed=seed)
    model: TableModel | None = None
    if len(held) > 0:
        typer.echo(f"\ntraining on {len(kept):,} rows, {len(held):,} held out")
        model = TableModel.fit(columns.iloc[kept].reset_index(drop=True), y[kept], what, **options)
        _tell_training(model)
        prediction = model.predict(columns.iloc[held].reset_index(drop=True))
        typer.echo("")
        _tell_scores(model, prediction, y[held], f"{len(held):,} held out", with_loo=True)
        _draw(model, prediction, y[held], picture)
    else:
        typer.echo("\nno rows are held out; the leave-one-out score, below, predicts each row without itself")
    if model is None or refit:
        typer.echo(f"\ntraining on all {len(y):,} rows")
        model = TableModel.fit(columns, y, what, **options)
        _tell_training(model)
        scores = ", ".join(f"{name} {_number(name, value)}" for name, value in model.loo_scores().items())
        typer.echo(f"leave-one-out: {scores}")
    model.save(out)
    typer.echo(f"model: {out}")


@app.command()
@_with_errors
def predict(
    model: Path = typer.Argument(help="What `bayesmp fit` wrote."),
    table: Path = typer.Argument(help="CSV or Parquet file with the columns of the training table, in any order."),
    out: Path | None = typer.Option(
        None, help="Where to write the predictions (.csv or .parquet); default: to the screen, as CSV."
    ),
    level: float = typer.Option(0.9, help="Probability that an interval holds its target with, between 0 and 1."),
    only: bool = typer.Option(False, "--only", help="Leave the columns of the table out of the result."),
    debug: bool = DEBUG,
) -> None:
    """Predict the target for each row of a table.

    Written behind the table's own columns, for a target y: y_mean, y_std, y_low and y_high (the interval), or for
    classes y_predicted and one y_p_... per class; and unlike_training. This is True where the model has to guess: where
    its epistemic uncertainty (what more data would take away) is beyond that of all but 1 % of the training rows, each
    predicted without itself, or where a category is new.
    """
    if not 0.0 < level < 1.0:
        raise typer.BadParameter(f"must lie between 0 and 1, got {level:g}", param_hint="--level")
    if out is not None:
        tables.check_ending(out)
        if out.resolve() in (table.resolve(), model.resolve()):
            raise typer.BadParameter("would overwrite what is read; choose another name", param_hint="--out")
        _check_writable(out)
    loaded, frame = _load(model), tables.read_table(table)
    prediction = _predict(loaded, frame)
    found = loaded.as_frame(prediction, level=level)
    if not only:
        again = [name for name in frame.columns if name in found.columns]
        if again:
            _note(f"columns of the same names replaced: {', '.join(map(repr, again))}")
        found = frame.drop(columns=again).join(found)
    if out is None:
        typer.echo(found.to_csv(index=False), nl=False)
        return
    tables.write_table(found, out)
    n_unlike = int(prediction.is_unlike.sum())
    typer.echo(f"{tables.plural(len(found), 'row')} predicted, {n_unlike:,} of them unlike the training data: {out}")


@app.command()
@_with_errors
def evaluate(
    model: Path = typer.Argument(help="What `bayesmp fit` wrote."),
    table: Path = typer.Argument(help="CSV or Parquet file with the columns of the training table and the target."),
    picture: Path | None = typer.Option(None, help="Where to draw it (.png, .pdf, .svg).", show_default=False),
    debug: bool = DEBUG,
) -> None:
    """Score a model on rows it was not trained on, and say whether it is as sure as it is right."""
    if picture is not None and picture.suffix not in (".png", ".pdf", ".svg"):
        raise typer.BadParameter(f"must end in .png, .pdf or .svg, got {str(picture)!r}", param_hint="--picture")
    loaded, frame = _load(model), tables.read_table(table)
    target = loaded.target
    tables.check_column(target.name, frame.columns)
    y, known = target.read(frame[target.name])
    if not known.all():
        _note(f"{tables.plural(int((~known).sum()), 'row')} without a target left out")
    if loaded.classes:
        strange = known & ~numpy.isin(y, loaded.classes)
        if strange.any():
            some = ", ".join(map(repr, numpy.unique(y[strange])[:5].tolist()))
            _note(f"{tables.plural(int(strange.sum()), 'row')} with classes unknown to the model left out: {some}")
        known &= ~strange
    if not known.any():
        raise tables.TableError(f"no row of {table.name} has a target {target.name!r} that can be scored")
    y = y[known]
    scored = frame[known].reset_index(drop=True)
    prediction = _predict(loaded, scored)
    if loaded.was_trained_on(scored):
        _note("the model was trained on these very rows, so the scores are better than they will be on others")
    _tell_scores(loaded, prediction, y, tables.plural(len(y), "row"))
    if picture is not None:
        _draw(loaded, prediction, y, picture)


@app.command()
@_with_errors
def info(
    model: Path | None = typer.Argument(None, help="What `bayesmp fit` wrote.", show_default=False),
    debug: bool = DEBUG,
) -> None:
    """Show versions, the device and which data sets are found; or what a model is and what it was trained on."""
    rows = _about_installation() if model is None else _about_model(_load(model))
    width = max(18, *(len(name) + 2 for name in rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}{value}")


def _about_installation() -> dict[str, str]:
    rows = {
        "bayesmp": f"{bayesmp.__version__}, in {Path(bayesmp.__file__).parent}",
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cpu": f"{torch.get_num_threads()} threads",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "data folder": f"{data.data_directory()} (set BAYESMP_DATA to change it)",
    }
    sets = {f"  {name}": "not found" if path is None else str(path) for name, path in data.find_sets().items()}
    return rows | sets


def _about_model(model: TableModel) -> dict[str, str]:
    facts, target, encoder = model.facts, model.target, model.encoder
    network = model.estimator.network_
    widths = [str(network.input_shape[0]), *(str(shape[0]) for shape in network.shapes[1:])]
    widths = [width for k, width in enumerate(widths) if k == 0 or type(network.layers[k - 1]).__name__ == "Linear"]
    rows = {
        "made": f"{facts.made}, bayesmp {model.version}",
        "trained on": f"{tables.plural(facts.n_rows, 'row')} of {facts.source}",
        "target": f"{target.name} ({target.task})",
    }
    if model.classes:
        shares = [f"{label} ({100.0 * share:.0f} %)" for label, share in zip(model.classes, facts.guess, strict=True)]
        rows["classes"] = ", ".join(shares)
    else:
        rows["mean, std"] = f"{facts.guess[0]:.4g}, {facts.guess[1]:.4g}"
    rows["columns"] = f"{len(encoder.columns)}, as {tables.plural(len(encoder.features), 'number')} per row"
    for column in encoder.columns:
        missing = ", may be missing" if column.marks_missing else ""
        many = ", ".join(column.categories[:6]) + (", ..." if len(column.categories) > 6 else "")
        rows[f"  {column.name}"] = f"number{missing}" if column.kind == "number" else f"category: {many}"
    for name, why in encoder.left_out.items():
        rows[f"  {name}"] = f"not used: {why}"
    rows["network"] = f"{'-'.join(widths)}, {network.n_weights:,} weights"
    rows["training"] = f"{model.estimator.history_.stopped}"
    scores = [f"{name} {_number(name, value)}" for name, value in model.loo_scores().items()]
    rows["leave-one-out"] = ", ".join(scores)
    if facts.noise_std is not None:
        rows["noise"] = f"{facts.noise_std:.4g} (standard deviation)"
    return rows


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def experiment(
    context: typer.Context,
    name: str = typer.Argument("", help="Which experiment; without it, they are listed.", show_default=False),
) -> None:
    """Run an experiment of the repository. Options behind its name go to it: bayesmp experiment uci --help."""
    if not (EXPERIMENTS / "__main__.py").exists():
        _fail(
            f"no experiments at {EXPERIMENTS}: they are part of the repository, not of the installed package. "
            "Clone it, run `make setup` there, then `.venv/bin/bayesmp experiment`."
        )
    words = [name, *context.args] if name else []
    paths = [str(EXPERIMENTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-m", EXPERIMENTS.name, *words], env=environment, check=False)
    raise typer.Exit(done.returncode)


def _load(path: Path) -> TableModel:
    from bayesmp.table_model import TableModel

    return TableModel.load(path)


def _predict(model: TableModel, frame: DataFrame) -> TablePrediction:
    """Predictions, after notes about columns that do not fit."""
    used = {column.name for column in model.encoder.columns}
    extra = [name for name in frame.columns if name not in used | set(model.encoder.left_out) | {model.target.name}]
    prediction = model.predict(frame)
    if extra:
        _note(f"columns that the model does not know ignored: {', '.join(map(repr, extra))}")
    for note in prediction.notes:
        _note(note)
    return prediction


def _tell_training(model: TableModel) -> None:
    history = model.estimator.history_
    typer.echo(f"{history.stopped}, {sum(history.column('seconds')):.1f} s")
    if not model.is_at_rest:
        remedy = "raise --max-epochs" if model.estimator.epochs == "auto" else "raise --epochs, or leave it out"
        _note(f"the leave-one-out score or the means still moved; {remedy}")


def _tell_scores(
    model: TableModel, prediction: TablePrediction, y: NDArray[Any], title: str, *, with_loo: bool = False
) -> None:
    """A table of scores, and what they say about calibration."""
    scores = {title: model.score(prediction, y)}
    if with_loo:
        scores["leave-one-out"] = model.loo_scores()
    scores["class shares" if model.classes else "always the mean"] = model.score_guess(y)
    widths = {name: max(14, len(name) + 3) for name in scores}
    typer.echo(" " * 18 + "".join(f"{name:>{widths[name]}}" for name in scores))
    for row in scores[title]:
        cells = [_number(row, scores[name].get(row)).rjust(widths[name]) for name in scores]
        typer.echo(f"{row:<18}" + "".join(cells))
    typer.echo(f"{'unlike training':<18}" + f"{100.0 * prediction.is_unlike.mean():.1f} %".rjust(widths[title]))
    typer.echo(model.verdict(prediction, y))


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if "interval" in name:
        return f"{100.0 * value:.1f} %"
    return f"{value:.3f}" if name != "RMSE" else f"{value:,.0f}" if value >= 10_000 else f"{value:.4g}"


def _draw(model: TableModel, prediction: TablePrediction, y: NDArray[Any], path: Path) -> None:
    """The picture of a report; a sentence if it cannot be drawn."""
    try:
        plots.require_matplotlib()
    except ImportError as error:
        _note(f"no picture: {error}")
        return
    from matplotlib.figure import Figure  # not pyplot: a file needs no window

    known = prediction.known
    if isinstance(known, RegressionPrediction):
        figure = Figure(figsize=(4.8, 4.6), layout="constrained", dpi=150)
        ax = plots.predicted_against_true(known.mean, known.std, y, figure.subplots(), interval=known.interval(0.9))
        ax.set(xlabel=f"true {model.target.name}", ylabel=f"predicted {model.target.name}")
    else:
        side = min(2.6 + 0.36 * len(model.classes), 9.0)
        figure = Figure(figsize=(4.4 + side, max(4.4, side)), layout="constrained", dpi=150)
        left, right = figure.subplots(1, 2, width_ratios=(4.4, side))
        plots.reliability(known.probs, model.indices(y), left)
        plots.confusion(known.probs, model.indices(y), model.classes, right)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    typer.echo(f"picture: {path}")


def _check_writable(path: Path) -> None:
    """Raise now, not after the training, if a file cannot be written there; makes its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
            raise PermissionError(13, "it is a folder, or read-only")
    except OSError as error:
        why = "its folder is a file" if isinstance(error, (FileExistsError, NotADirectoryError)) else error.strerror
        raise tables.TableError(f"cannot write {str(path)!r}: {why}") from error


def _names(text: str) -> Sequence[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _widths(text: str) -> tuple[int, ...]:
    parts = _names(text)
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"must be whole numbers such as 50 or 50,50, got {text!r}", param_hint="--hidden")
    return tuple(map(int, parts))


def _epochs(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdigit() or int(text) < 1:
        raise typer.BadParameter(f"must be a positive whole number or auto, got {text!r}", param_hint="--epochs")
    return int(text)


def _note(message: str) -> None:
    typer.echo(f"note: {message}", err=True)


def _fail(message: str) -> NoReturn:
    typer.echo(f"bayesmp: {message}", err=True)
    raise typer.Exit(1)
