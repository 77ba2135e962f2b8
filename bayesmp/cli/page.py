"""A report as one page: HTML without anything from elsewhere, its pictures inside; for a screen, a phone, or paper."""

from __future__ import annotations

import base64
import datetime
import io
import platform
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import typer

import bayesmp
from bayesmp import plots, tables
from bayesmp.basics import atomic
from bayesmp.cli.report import by_all
from bayesmp.estimators.columns.dates import tell_day
from bayesmp.heads import RegressionPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bayesmp.tables.effects import Dependence
    from bayesmp.tables.report import Report, Row

BELOW = ("torch", "numpy", "scikit-learn", "pandas")  # whose versions are told
DPI = 160
MOST_DRAWN = 1_000  # rows in the picture of predictions
SHOWN_COLUMNS = 20  # whose importance is shown

STYLE = """
:root { color-scheme: light; --ink: #22262b; --soft: #666d76; --line: #dfe2e6; --blue: #1f5fa6; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 3rem; color: var(--ink); background: #fff;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line); }
p { margin: .4rem 0; max-width: 46rem; }
.soft, figcaption, caption { color: var(--soft); font-size: .875rem; }
.verdict { margin: 1.2rem 0; padding: .8rem 1rem; border-left: .35rem solid; border-radius: .25rem; }
.verdict p:first-child { font-size: 1.1rem; font-weight: 600; }
.good { border-color: #3b8f5a; background: #eef7f1; }
.doubtful { border-color: #d9a00d; background: #fdf7e6; }
.useless { border-color: #b0413e; background: #fbeeed; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9375rem; }
caption { text-align: left; padding-bottom: .4rem; }
th, td { padding: .3rem .5rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
th .soft { font-weight: 400; }
.numbers td, .numbers thead th + th { text-align: right; padding-left: .8rem; overflow-wrap: normal; }
.rows { font-size: .875rem; }
.rows th, .rows td { min-width: 5.6rem; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1.2rem; }
figure { margin: 0; min-width: 0; }
figure b { display: block; }
img { display: block; max-width: 100%; height: auto; }
.bar { height: .6rem; min-width: 1px; background: var(--blue); border-radius: 0 .2rem .2rem 0; }
ul { padding-left: 1.2rem; margin: .4rem 0; }
@media (max-width: 52rem) {
  .rows thead { display: none; }
  .rows tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  .rows td { display: block; border: 0; padding: .05rem 0; }
  .rows td::before { content: attr(data-name) ": "; color: var(--soft); }
  .numbers { font-size: .8125rem; }
  .numbers td, .numbers thead th + th { padding-left: .3rem; }
  .wide { display: none; }
}
"""

EXPLAINED = {
    "R2": "share of the target's variance that is explained; 1 is best, 0 is no better than the mean",
    "RMSE": "typical error, in units of the target",
    "NLL": "mean negative log-probability of what came: errors and error bars in one number; less is better",
    "in 50 % interval": "should be near 50 %",
    "in 90 % interval": "should be near 90 %",
    "accuracy": "share of the rows whose label is right",
    "AUC": "probability that a row of the class gets more of its probability than another row; 0.5 is guessing",
    "Brier": "mean squared distance of the probabilities from what came; 0 is best",
    "ECE": "how far confidence and accuracy lie apart; 0 is best",
    "recall": "share of the rows of the class that are found",
    "precision": "share of the rows called so that are of the class",
    "unlike training": "rows of which the model knows less than of 99 % of the training rows",
}


def write_page(report: Report, path: Path, notes: Sequence[str] = (), *, is_refitted: bool = False) -> None:
    """Write the page of a report, in one piece, and say where."""
    page = page_of(report, notes, is_refitted=is_refitted)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.writing(path) as file:
        file.write(page.encode("utf-8", errors="replace"))
    typer.echo(f"report: {path}")


def page_of(report: Report, notes: Sequence[str] = (), *, is_refitted: bool = False) -> str:
    """The page. Every text of the user's passes through `escape`."""
    model, verdict = report.model, report.verdict
    name, source = escape(model.target.name), escape(model.facts.source or "a table")
    title = f"How well {name} is predicted"
    about = f"{report.title}; trained on {tables.plural(model.facts.n_rows, 'row')} of "
    more = " The model that was saved was then trained on all rows, these among them." if is_refitted else ""
    parts = [
        f"<header><h1>{title}</h1><p class='soft'>{escape(about)}{source}. {escape(by_all(model))}{more}</p></header>",
        f"<div class='verdict {verdict.mark}'>{_paragraphs(_sentence(each) for each in verdict.sentences)}</div>",
        _section("Scores, beside a guess without inputs", _scores(report)),
        *_pictures(report),
        _section("What the predictions depend on", _importance(report)),
        _section("How predictions follow the columns", _curves(report)),
        _section("The most surprising rows", _rows(report, report.surprising, has_how=True)),
        _section("Rows unlike the training data", _unlike(report)),
        _section("Columns and settings", _settings(report, notes)),
    ]
    return (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{title}</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<style>{STYLE}</style></head>\n<body>\n" + "\n".join(filter(None, parts)) + "\n</body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _scores(report: Report) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in (report.title, *report.beside))
    lines = []
    for name, score in report.scores.items():
        said = EXPLAINED.get(name) or EXPLAINED.get(name.split()[0], "")
        cells = [str(score), *(score.like(others.get(name)) for others in report.beside.values())]
        numbers = "".join(map(_number, cells))
        lines.append(f"<tr><th>{escape(name)}<div class='soft wide'>{said}</div></th>{numbers}</tr>")
    return (
        "<table class='numbers'><caption>± is the standard error: how far the score may be off because rows are few."
        f"</caption><thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def _number(text: str) -> str:
    """A cell that breaks before its ±, if it must."""
    return f"<td>{_unbroken(text)}</td>"


def _unbroken(text: str) -> str:
    return escape(text).replace("± ", "±&nbsp;").replace(" %", "&nbsp;%")


def _pictures(report: Report) -> list[str]:
    """Calibration, and predictions against the truth."""
    model, known, y, name = report.model, report.prediction.known, report.y, escape(report.model.target.name)
    drawn = slice(None) if len(y) <= MOST_DRAWN else numpy.random.default_rng(0).permutation(len(y))[:MOST_DRAWN]
    if isinstance(known, RegressionPrediction):
        calibration = (
            "The share of the targets that intervals held, against the share that they promised. On the dashed line "
            "the model is as sure as it is right; below it, it is too sure. 95 % of honest models lie in the grey area."
        )
        against = (
            f"Each point is a row: its true {name} to the right, the prediction upwards, with its 90 % interval. The "
            "orange ones miss the truth. Good predictions lie near the dashed line."
        )
        second = _picture("Predictions against the truth", lambda ax: plots.predicted_against_true(
            known[drawn], y[drawn], ax=ax), (4.6, 4.6), against)  # fmt: skip
    else:
        calibration = (
            "How often labels are right (upwards), for how sure the model is of them (to the right). On the dashed "
            "line it is as sure as it is right; below it, it is too sure. The bars at the bottom count rows, the grey "
            "marks show what chance alone does."
        )
        against = "Rows by their true class (left) and the most probable one (below); the diagonal is right."
        side = min(1.8 + 0.4 * len(model.classes), 7.0)
        second = _picture("Classes and what they are taken for", lambda ax: plots.confusion(
            known.probs, y, model.classes, ax), (side, side), against)  # fmt: skip
    first = _picture("As sure as right?", lambda ax: plots.calibration_curve(known, y, ax), (4.6, 4.6), calibration)
    if not first:
        return []
    return [_section("Calibration, and predictions against the truth", f"<div class='pictures'>{first}{second}</div>")]


def _picture(title: str, draw: Callable[[Axes], Any], size: tuple[float, float], caption: str) -> str:
    """A picture inside the page; nothing without Matplotlib."""
    try:
        plots.require_matplotlib()
    except ImportError:
        return ""
    from matplotlib.figure import Figure  # not pyplot: a file needs no window

    figure, file = Figure(figsize=size, layout="constrained", dpi=DPI), io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # of names in scripts that the font does not have
        draw(figure.subplots())
        figure.savefig(file, format="png")
    data, width = base64.b64encode(file.getvalue()).decode(), round(96 * size[0])
    image = f"<img alt='{escape(title)}' width='{width}' src='data:image/png;base64,{data}'>"
    return f"<figure><b>{escape(title)}</b>{image}<figcaption>{caption}</figcaption></figure>"


def _importance(report: Report) -> str:
    found = report.importances
    if not found:
        return "<p>Not measured: there are too many columns, or too few rows.</p>"
    largest = max(max(each.nll.value for each in found), 1e-300)
    lines = []
    for each in found[:SHOWN_COLUMNS]:
        width = 100.0 * max(each.nll.value, 0.0) / largest
        lines.append(
            f"<tr><th>{escape(each.column)}<div class='bar' style='width:{width:.1f}%'></div></th>"
            f"{_number(str(each.nll))}{_number(str(each.score))}</tr>"
        )
    what = "accuracy" if report.model.classes else "R2"
    n_more = len(found) - SHOWN_COLUMNS
    more = f" {tables.plural(n_more, 'column')} more say less." if n_more > 0 else ""
    return (
        "<table class='numbers'><caption>How much worse these rows are predicted if the values of a column are "
        "shuffled among them: the mean of five shuffles, with its standard error. Near 0 the column is not needed. "
        f"Columns that say the same stand in for each other, and look less important than they are.{more}</caption>"
        f"<thead><tr><th>column</th><th>rise of NLL</th><th>fall of {what}</th></tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def _curves(report: Report) -> str:
    name = escape(report.model.target.name)
    what = f"probability of each class of {name}" if report.model.classes else f"predicted {name}"
    caption = (
        f"The average {what}, if all rows had this value and kept their other ones. With 90 % probability the band "
        "holds this average: it tells what the model does not know, and not how single rows scatter. Curves show what "
        "the model has learned, which need not be a cause."
    )
    found = []
    for curve in report.curves:
        found.append(_picture(curve.column.name, partial(_draw_curve, curve), (4.4, 3.2), ""))
    return f"<p class='soft'>{caption}</p><div class='pictures'>{''.join(found)}</div>" if any(found) else ""


def _draw_curve(curve: Dependence, ax: Axes) -> None:
    plots.partial_dependence(curve.at, curve.mean, curve.low, curve.high, ax, labels=curve.labels, names=curve.names)
    calendar = curve.column.calendar
    if calendar is not None and not calendar.is_clock:
        ax.locator_params(axis="x", nbins=4, integer=True)
        ax.xaxis.set_major_formatter(lambda day, _: tell_day(day))
        ax.tick_params(axis="x", rotation=20)
    elif not curve.labels:
        ax.locator_params(axis="x", nbins=6)


def _unlike(report: Report) -> str:
    n = int(report.prediction.is_unlike.sum())
    if n == 0:
        return "<p>None of these rows: of each the model knows as much as of the rows that it was trained on.</p>"
    said = (
        f"{n:,} of {len(report.y):,} rows. The model knows less of them than of 99 % of the training rows, or a value "
        "is new to it: it has to guess. Look at them before you use their predictions."
    )
    return f"<p>{said}</p>{_rows(report, report.unlike, has_how=False)}"


def _rows(report: Report, rows: Sequence[Row], *, has_how: bool) -> str:
    target = report.model.target.name
    lines = []
    for row in rows:
        line = {"row": f"{row.number:,}", f"true {target}": row.truth, f"predicted {target}": row.predicted}
        lines.append(line | ({"how surprising": row.how} if has_how else {}) | row.cells)
    heads = "".join(f"<th>{escape(head)}</th>" for head in lines[0])
    cells = ["".join(f"<td data-name='{escape(k)}'>{_unbroken(v)}</td>" for k, v in line.items()) for line in lines]
    body = "".join(f"<tr>{each}</tr>" for each in cells)
    caption = "Rows are counted from 1, the first one below the names. ± is the model's own standard deviation."
    return (
        f"<table class='rows'><caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    )


def _settings(report: Report, notes: Sequence[str]) -> str:
    model, estimator = report.model, report.model.estimator
    n_numbers = tables.plural(len(model.encoder.get_feature_names_out()), "number")
    settings = {
        "written": datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="minutes"),
        "columns": f"{len(model.encoder.columns_)}, as {n_numbers} per row",
        "network": f"{model.n_networks} x {estimator.network_.n_weights:,} weights",
        "training": estimator.history_.stopped,
        "settings": ", ".join(f"{name}={value}" for name, value in estimator.get_params().items()),
        "bayesmp": bayesmp.__version__ if not model.version else f"{bayesmp.__version__}, model by {model.version}",
        "versions": ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in BELOW)]),
    }
    for column, why in model.encoder.left_out_.items():
        settings[f"not used: {column}"] = why
    lines = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in settings.items())
    said = "".join(f"<li>{escape(text)}</li>" for text in notes)
    return f"{f'<ul>{said}</ul>' if said else ''}<table>{lines}</table>"
