"""Options as text, and what they mean; files that can be written, found out before the work is done."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import typer

from bayesmp import tables
from bayesmp.basics import atomic

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
