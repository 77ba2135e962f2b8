"""The command line: parses, calls the library, prints."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import numpy
import torch
import typer

import bayesmp
from bayesmp import data, demo, plots

EXPERIMENTS = Path(bayesmp.__file__).parent.parent / "experiments"  # there in a checkout, not in an installed package

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
def info() -> None:
    """Show versions, the device, and which data sets are found."""
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
    for name, value in (rows | sets).items():
        typer.echo(f"{name:<18}{value}")


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def experiment(
    context: typer.Context,
    name: str = typer.Argument("", help="Which experiment; without it, they are listed.", show_default=False),
) -> None:
    """Run an experiment of the repository. Options behind its name go to it: bayesmp experiment sine --help."""
    if name in ("-h", "--help"):
        typer.echo("Usage: bayesmp experiment [NAME] [OPTIONS OF THE EXPERIMENT]\n")
        name = ""
    found = {path.parent.name: path for path in sorted(EXPERIMENTS.glob("*/run.py"))}
    if not found:
        _fail(
            f"no experiments at {EXPERIMENTS}: they are part of the repository, not of the installed package. "
            "Clone it, run `make setup` there, then `.venv/bin/bayesmp experiment`."
        )
    if not name:
        typer.echo("experiments, to be run with `bayesmp experiment NAME`:")
        for title, path in found.items():
            typer.echo(f"  {title:<14}{_first_line(path)}")
        return
    if name not in found:
        _fail(f"no experiment {name!r}; there are: {', '.join(found)}")
    raise typer.Exit(subprocess.run([sys.executable, str(found[name]), *context.args], check=False).returncode)


def _first_line(script: Path) -> str:
    """What the script's docstring says first."""
    return script.read_text(encoding="utf-8").split("\n", 1)[0].strip('r"')


def _fail(message: str) -> NoReturn:
    typer.echo(f"bayesmp: {message}", err=True)
    raise typer.Exit(1)
