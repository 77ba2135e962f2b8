"""Every row judged both ways: which fold holds it out, what is compared, the tables."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks import honesty, left_out
from benchmarks.datasets import Table
from tests.benchmarks.datasets import makers


def test_each_row_is_held_out_once_and_trained_on_by_all_other_folds():
    parts = left_out.folds(23, 5, seed=1)
    assert sorted(np.concatenate(parts).tolist()) == list(range(23))
    x, y = np.arange(46.0).reshape(23, 2), np.arange(23.0)
    seen = np.zeros(23)
    for part, (rest, task) in zip(parts, left_out.fold_tasks(x, y, parts), strict=True):
        seen[rest] += 1
        held_out = task.y_scaling.undo(task.y_held_out.double().numpy())
        assert np.allclose(held_out, part, atol=1e-4) and len(task.x_train) == len(rest) == 23 - len(part)
    assert (seen == 4).all()


def test_judgements_of_the_same_rows_are_compared_row_by_row():
    """Rows that are hard for both cancel."""
    hard = torch.tensor([0.0, 10.0, 20.0, 30.0], dtype=torch.float64)
    found = left_out.compare(hard + torch.tensor([1.0, 2.0, 1.0, 2.0]), hard)
    assert found["difference"] == pytest.approx(1.5)
    assert found["standard error"] == pytest.approx(math.sqrt(1 / 3) / 2)
    other = left_out.apart(hard + 1.5, hard)
    assert other["difference"] == pytest.approx(1.5) and other["standard error"] > 5


def test_a_table_is_judged_by_all_folds(monkeypatch):
    """With a judge that knows the row: each gets back its own figure, whichever fold says it."""
    content = makers.table(n=30)
    rows = (tuple(content[name].astype(np.int64)) for name in ("train_idx", "test_idx"))
    table = Table(content["X"], np.arange(30.0), *rows, "numbered")

    def judge(task, *, seed, max_epochs):
        names = [torch.as_tensor(task.y_scaling.undo(y.double().numpy())) for y in (task.y_train, task.y_held_out)]
        return names[0] + 0.25, names[1], [None] * 7

    monkeypatch.setattr(left_out, "judge", judge)
    row = left_out.table_row("numbered", table, n_folds=4, seed=0, max_epochs=3)
    assert row["difference"] == pytest.approx(0.25, abs=1e-4) and row["standard error"] < 1e-4
    assert row["held-out NLL"] == pytest.approx(table.train_rows[0].mean(), abs=1e-4)
    assert row["rows"] == len(table.train_rows[0]) and row["epochs"] == "7 to 7"


def test_from_the_command_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(left_out, "friedman1", partial(honesty.friedman1, n_train=40))
    makers.write_table_text(tmp_path / "uci/UCI_Datasets/yacht/data", makers.table(n=30))
    path = tmp_path / "o.json"
    options = ["--tasks", "friedman1", "yacht", "--folds", "2", "--max-epochs", "2", "--data-dir", str(tmp_path)]
    left_out.main([*options, "--device", "cpu", "--out", str(path)])
    rows = json.loads(path.read_text())["rows"]
    assert [row["task"] for row in rows] == ["friedman1", "yacht"]
    assert all(math.isfinite(row["difference"]) and row["standard error"] > 0 for row in rows)
    assert "friedman1, seed 0" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        left_out.main(["--folds", "1"])
