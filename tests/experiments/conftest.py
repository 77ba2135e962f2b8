"""An experiment that takes no time, and a way to call the command line."""

import json
from typing import ClassVar

import numpy as np
import pytest

import experiments
from experiments import __main__ as command_line
from experiments.base import Experiment, Piece, Table


class Squares(Experiment):
    """Squares of numbers. It counts its calls in a file, and fails where it is told to."""

    name = "squares"
    title = "Squares"
    about = "Numbers times themselves."
    parts = ("small", "large")
    seeds = 3
    fails: ClassVar[dict[int, Exception]] = {}
    calls: ClassVar[list[int]] = []

    def pieces(self, options):
        numbers = {"small": [0, 1, 2], "large": [10]}
        chosen = [n for part in self.chosen_parts(options) for n in numbers[part]][: self.n_seeds(options) + 1]
        return [Piece(f"number {n}", {"number": n, "power": 2}, cost=n) for n in chosen]

    def compute(self, parameters, options):
        self.calls.append(parameters["number"])
        if parameters["number"] in self.fails:
            raise self.fails[parameters["number"]]
        return {"square": parameters["number"] ** parameters["power"], "line": np.arange(parameters["number"])}

    def summarise(self, results):
        rows = [{"number": r["number"], "square": r["square"], "length": len(r["line"])} for r in results]
        return [Table("All squares", rows, "A note.")]


@pytest.fixture
def squares(monkeypatch):
    """The experiment, known under its name; what it computes is counted anew."""
    monkeypatch.setitem(experiments.PLACES, "squares", f"{__name__}:Squares")
    monkeypatch.setattr("experiments.import_module", lambda name: __import__("types").SimpleNamespace(Squares=Squares))
    monkeypatch.setattr(Squares, "calls", [])
    monkeypatch.setattr(Squares, "fails", {})
    return Squares


@pytest.fixture
def run(tmp_path, capsys):
    """Call the command line; exit status, what it printed, and the results it wrote."""

    def call(name, *options):
        status = command_line.main([name, *options, "--out", str(tmp_path)])
        path = tmp_path / name / "results.json"
        printed = capsys.readouterr()
        return status, printed.out + printed.err, json.loads(path.read_text()) if path.exists() else None

    return call
