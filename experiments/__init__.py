"""The experiments of the project, each by one command: `bayesmp experiment NAME`.

An experiment (base.py) is a plan of pieces, a way to compute one, and tables and pictures of all of them. Pieces are
kept on disk as they end (store.py), in one process or several (runner.py); results go to results/NAME (results.py) and
from there to docs/results.md (report.py). Methods have the same colour in every picture (palette.py).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.base import Experiment

# name -> where it is, in the order of the report
PLACES = {
    "sine-depth": "experiments.sine:SineDepth",
    "sine-width": "experiments.sine:SineWidth",
    "uci": "experiments.uci:Uci",
    "truth": "experiments.truth:Truth",
    "uncertainty": "experiments.uncertainty:Uncertainty",
    "epochs": "experiments.epochs:Epochs",
    "mnist": "experiments.mnist:Mnist",
    "cifar10": "experiments.cifar10:Cifar10",
    "graph": "experiments.graph:Graph",
    "forget": "experiments.forget:Forget",
}


def find(name: str) -> Experiment:
    """The experiment of this name, or a ValueError that lists all."""
    if name not in PLACES:
        raise ValueError(f"no experiment {name!r}; there are: {', '.join(PLACES)}")
    module, kind = PLACES[name].split(":")
    found: Experiment = getattr(import_module(module), kind)()
    return found
