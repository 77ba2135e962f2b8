"""The program `bayesmp`: its commands, in the order in which its help shows them."""

from __future__ import annotations

import typer

import bayesmp
from bayesmp.cli.fitting import fit
from bayesmp.cli.showing import demo_command, experiment
from bayesmp.cli.telling import info
from bayesmp.cli.using import evaluate, predict

app = typer.Typer(
    help="Bayesian neural networks trained by message passing.",
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def main(
    version: bool = typer.Option(False, "--version", help="Show the version and exit.", is_eager=True),
) -> None:
    """Bayesian neural networks trained by message passing."""
    if version:
        typer.echo(f"bayesmp {bayesmp.__version__}")
        raise typer.Exit


app.command("demo")(demo_command)
for command in (fit, predict, evaluate, info):
    app.command()(command)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})(
    experiment
)
