"""What is said about a model of a table: how its training went, how well it predicts, and a picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bayesmp import plots, tables
from bayesmp.basics import atomic
from bayesmp.cli.errors import note
from bayesmp.heads import RegressionPrediction
from bayesmp.training.stopping import refreshes, tell_unrest
from bayesmp.training.trainer import NOT_AT_REST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bayesmp.tables.model import TableModel, TablePrediction


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


def tell_scores(
    model: TableModel, prediction: TablePrediction, y: NDArray[Any], title: str, *, with_loo: bool = False
) -> None:
    """A table of scores, and what they say about calibration."""
    scores = {title: model.score(prediction, y)}
    if with_loo:
        scores["leave-one-out"] = model.loo_scores()
    scores["class shares" if model.classes else "always the mean"] = model.score_guess(y)
    widths = {name: max(14, len(name) + 3) for name in scores}
    typer.echo(f"{by_all(model):<18}" + "".join(f"{name:>{widths[name]}}" for name in scores))
    for row in scores[title]:
        cells = [number(row, scores[name].get(row)).rjust(widths[name]) for name in scores]
        typer.echo(f"{row:<18}" + "".join(cells))
    typer.echo(f"{'unlike training':<18}" + f"{100.0 * prediction.is_unlike.mean():.1f} %".rjust(widths[title]))
    if math.isnan(scores[title].get("R2", 0.0)):
        typer.echo("R2 needs at least two rows, with different targets")
    typer.echo(model.verdict(prediction, y))


def number(name: str, value: float | None) -> str:
    """The value of the score of this name, as tables show it."""
    if value is None or math.isnan(value):
        return "–"
    if "interval" in name:
        return f"{100.0 * value:.1f} %"
    return f"{value:.3f}" if name != "RMSE" else f"{value:,.0f}" if value >= 10_000 else f"{value:.4g}"


def draw(model: TableModel, prediction: TablePrediction, y: NDArray[Any], path: Path) -> None:
    """The picture of a report; a sentence if it cannot be drawn."""
    try:
        plots.require_matplotlib()
    except ImportError as error:
        note(f"no picture: {error}")
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
    if by_all(model):
        figure.suptitle(f"predicted {by_all(model)}", fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.writing(path) as file:
        figure.savefig(file, format=path.suffix.removeprefix("."))
    typer.echo(f"picture: {path}")
