"""Options as text, and what they mean; files that can be written, found out before the work is done."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bayesmp import tables
from bayesmp.basics import atomic

if TYPE_CHECKING:
    from bayesmp.tables.verdict import Threshold

THRESHOLD = typer.Option(
    None,
    min=0.0,
    max=1.0,
    help="Of two classes: the probability of the rarer one from which a row is called that in the report.",
    show_default=False,
)
COST = typer.Option(
    "", help="Or what errors cost, 5:1 if missing the rarer class costs five times a false alarm.", show_default=False
)
REPORT = typer.Option(None, help="Where to write the report as one page (.html).", show_default=False)
PICTURES = (".png", ".pdf", ".svg")
HEADER = typer.Option(
    None,
    "--header/--no-header",
    help="Whether the first line names the columns; without names they are c1, c2, ... Default: it does, if it holds "
    "anything but numbers.",
    show_default=False,
)


class Task(str, Enum):
    """Kinds of targets."""

    regression = "regression"
    classification = "classification"


def names(text: str) -> Sequence[str]:
    """Names of columns, from a,b,c."""
    return [name.strip() for name in text.split(",") if name.strip()]


def widths(text: str) -> tuple[int, ...] | str:
    """Widths of hidden layers, from 50,50; or auto."""
    if text == "auto":
        return text
    parts = names(text)
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise typer.BadParameter(
            f"must be whole numbers such as 50 or 50,50, or auto, got {text!r}", param_hint="--hidden"
        )
    return tuple(map(int, parts))


def epochs(text: str) -> int | str:
    """A number of epochs, or auto."""
    if text == "auto":
        return text
    if not text.isdigit() or int(text) < 1:
        raise typer.BadParameter(f"must be a positive whole number or auto, got {text!r}", param_hint="--epochs")
    return int(text)


def threshold(at: float | None, cost: str) -> Threshold | None:
    """From a probability, or costs 5:1 of a missed row and a false alarm."""
    from bayesmp.tables.verdict import Threshold  # scikit-learn takes a second to import

    if not cost:
        return None if at is None else Threshold(at)
    if at is not None:
        raise typer.BadParameter("choose the threshold itself; give one of the two", param_hint="--cost")
    try:
        missed, alarm = (float(part) for part in cost.split(":"))
    except ValueError:
        missed = alarm = math.nan
    if not (0.0 < missed < math.inf and 0.0 < alarm < math.inf):
        raise typer.BadParameter(f"must be two positive numbers such as 5:1, got {cost!r}", param_hint="--cost")
    return Threshold.of_costs(missed, alarm)


def check_report(path: Path) -> None:
    """Raise unless the ending is that of a page."""
    if path.suffix not in (".html", ".htm"):
        raise typer.BadParameter(f"must end in .html, got {str(path)!r}", param_hint="--report")


def check_picture(path: Path, hint: str) -> None:
    """Raise unless the ending is that of a picture."""
    if path.suffix not in PICTURES:
        raise typer.BadParameter(f"must end in .png, .pdf or .svg, got {str(path)!r}", param_hint=hint)


def check_writable(path: Path) -> None:
    """Raise now, not after the training, if a file cannot be written there; makes its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if not os.access(atomic.target_of(path), os.W_OK) and path.exists():
            raise PermissionError(13, "it is read-only")
    except OSError as error:
        is_folder = isinstance(error, (FileExistsError, NotADirectoryError))
        why = "its folder is a file" if is_folder else error.strerror or str(error)
        raise tables.TableError(f"cannot write {str(path)!r}: {why}") from error
