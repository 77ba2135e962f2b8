"""`bayesmp info`: this installation, or what a model is and what it was trained on."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import torch
import typer

import bayesmp
from bayesmp import tables
from bayesmp.basics import persistence
from bayesmp.cli.errors import DEBUG, with_errors
from bayesmp.cli.report import load_model, number

if TYPE_CHECKING:
    from bayesmp.estimators.columns.encoder import Column
    from bayesmp.tables.model import TableModel

SHOWN = 40  # columns of a model that are listed
TELLS_RANGE = 1.25  # times the lower end of the noise that the upper one must have to be told


@with_errors
def info(
    model: Path | None = typer.Argument(None, help="What `bayesmp fit` wrote.", show_default=False),
    debug: bool = DEBUG,
) -> None:
    """Show versions and the device; or what a model is and what it was trained on."""
    rows = _about_installation() if model is None else {**_about_model(load_model(model)), **_about_file(model)}
    width = max(18, *(len(name) + 2 for name in rows))
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}{value}")


def _about_installation() -> dict[str, str]:
    return {
        "bayesmp": f"{bayesmp.__version__}, in {Path(bayesmp.__file__).parent}",
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cpu": f"{torch.get_num_threads()} threads",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def _about_column(column: Column) -> str:
    if column.kind == "category":
        return "category: " + ", ".join(column.categories[:6]) + (", ..." if len(column.categories) > 6 else "")
    missing = ", may be missing" if column.marks_missing else ""
    unit = f" in {column.unit}" if column.unit else ""
    return f"number{unit}{missing}" if column.calendar is None else f"{column.calendar.describe()}{missing}"


def _about_file(path: Path) -> dict[str, str]:
    """How large it is, and what takes the room."""
    with persistence.opened(path, kinds=("estimator",)) as file:
        share = file.n_bytes("belief.") / path.stat().st_size
        is_compact = file.header["network"]["is_compact"]
    hint = "" if is_compact else "; `bayesmp fit --compact` writes a smaller one"
    return {"file": f"{path.stat().st_size / 1e6:.2g} MB, {100.0 * share:.0f} % of it the joint belief{hint}"}


def _about_model(model: TableModel) -> dict[str, str]:
    facts, target, encoder = model.facts, model.target, model.encoder
    network = model.estimator.network_
    widths = [str(network.input_shape[0]), *(str(shape[0]) for shape in network.shapes[1:])]
    widths = [width for k, width in enumerate(widths) if k == 0 or type(network.layers[k - 1]).__name__ == "Linear"]
    rows = {
        "made": f"{facts.made}, bayesmp {model.version}",
        "trained on": f"{tables.plural(facts.n_rows, 'row')} of {facts.source}",
        "target": f"{target.name} ({target.task}{f', in {target.unit}' if target.unit else ''})",
    }
    if model.classes:
        shares = [f"{label} ({100.0 * share:.0f} %)" for label, share in zip(model.classes, facts.guess, strict=True)]
        rows["classes"] = ", ".join(shares)
    else:
        rows["mean, std"] = f"{facts.guess[0]:.4g}, {facts.guess[1]:.4g}"
    rows["columns"] = (
        f"{len(encoder.columns_)}, as {tables.plural(len(encoder.get_feature_names_out()), 'number')} per row"
    )
    for column in encoder.columns_[:SHOWN]:
        rows[f"  {column.name}"] = _about_column(column)
    if len(encoder.columns_) > SHOWN:
        rows["  ..."] = f"and {len(encoder.columns_) - SHOWN:,} more"
    for name, why in encoder.left_out_.items():
        rows[f"  {name}"] = f"not used: {why}"
    is_one = model.n_networks == 1
    rows["network"] = f"{'-'.join(widths)}, {network.n_weights:,} weights"
    if not is_one:
        rows["networks"] = f"{model.n_networks}, {rows.pop('network')} each; they predict together"
    for k, history in enumerate(model.estimator.histories_, start=1):
        rows["training" if is_one else f"training of {k}"] = history.stopped
    scores = [f"{name} {number(name, value)}" for name, value in model.loo_scores().items()]
    rows["leave-one-out"] = ", ".join(scores)
    if facts.noise_std is not None:
        rows["noise"] = f"{facts.noise_std:.4g} (standard deviation)"
        if facts.noise_range and facts.noise_range[1] > TELLS_RANGE * facts.noise_range[0]:
            low, high = facts.noise_range
            rows["noise"] += f"; depends on the input: {low:.4g} to {high:.4g} in 90 % of the rows"
    elif learned := network.head.tell_learned(network.head_log_weights):
        labels = learned.removeprefix("labels ").removeprefix("are ")
        rows["labels"] = labels if is_one else f"{labels} (network 1)"
    return rows
