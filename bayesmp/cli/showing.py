"""`bayesmp demo` and `bayesmp experiment`: what message passing does, shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import typer

import bayesmp
from bayesmp import plots
from bayesmp.cli import demo
from bayesmp.cli.errors import fail

EXPERIMENTS = Path(bayesmp.__file__).parent.parent / "experiments"  # there in a checkout, not in an installed package


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
        fail(str(error))
    if out.suffix not in (".png", ".pdf", ".svg"):
        fail(f"--out must end in .png, .pdf or .svg, got {out}")
    typer.echo(f"{demo.sine_network(seed=seed)!r}\n")
    result = demo.run_demo(seed=seed, epochs=epochs, progress=False if no_progress else None)
    typer.echo(f"trained on {len(result.x)} points for {epochs} epochs in {result.seconds:.1f} s; on new points:\n")
    typer.echo(demo.format_table(result))
    typer.echo(f"\npicture: {demo.draw(result, out)}")


def experiment(
    context: typer.Context,
    name: str = typer.Argument("", help="Which experiment; without it, they are listed.", show_default=False),
) -> None:
    """Run an experiment of the repository. Options behind its name go to it: bayesmp experiment uci --help."""
    if not (EXPERIMENTS / "__main__.py").exists():
        fail(
            f"no experiments at {EXPERIMENTS}: they are part of the repository, not of the installed package. "
            "Clone it, run `make setup` there, then `.venv/bin/bayesmp experiment`."
        )
    words = [name, *context.args] if name else []
    paths = [str(EXPERIMENTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-m", EXPERIMENTS.name, *words], env=environment, check=False)
    raise typer.Exit(done.returncode)
