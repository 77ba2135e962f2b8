"""The example of tasks in a row, in a form that takes seconds."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "split_mnist.py"


def load_example(monkeypatch):
    spec = importlib.util.spec_from_file_location("split_mnist", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # after so few epochs it does
@pytest.mark.slow
def test_tasks_in_a_row(tmp_path, monkeypatch, capsys):
    """On scikit-learn's digits: with `as_prior` old classes stay, by training on alone they do not."""
    monkeypatch.setenv("BAYESMP_DATA", str(tmp_path / "nothing here"))
    options = ["--setting", "class", "--images", "30", "--epochs", "4", "--hidden", "20"]
    found = load_example(monkeypatch).main([*options, "--picture", str(tmp_path / "tasks.png")])["class"]
    means = {method: float(np.mean(scores[-1])) for method, scores in found.items()}
    assert means["as_prior"] > max(means["start"], means["AdamW"]) + 0.3
    assert (tmp_path / "tasks.png").stat().st_size > 10_000
    assert "scikit-learn's digits" in capsys.readouterr().out
