"""What the program says beside its answers: notes, and errors as one line without a traceback."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import typer

DEBUG = typer.Option(False, "--debug", help="Show where an error came from.")
Command = TypeVar("Command", bound=Callable[..., None])


def with_errors(command: Command) -> Command:
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
                fail(f"an error that should not happen, {type(error).__name__}: {error}; --debug shows where")
            fail(f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.strerror else str(error))

    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    wrapped.__doc__ = "\n\n".join(" ".join(text.split()) for text in paragraphs)  # typer would keep the line breaks
    return wrapped  # type: ignore[return-value]


def note(message: str) -> None:
    """Say something beside the answer."""
    typer.echo(f"note: {message}", err=True)


def fail(message: str) -> NoReturn:
    """Say why not, and end with exit status 1."""
    typer.echo(f"bayesmp: {message}", err=True)
    raise typer.Exit(1)
