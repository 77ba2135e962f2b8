"""Honesty over the epochs: which rows are held out, checkpoints of one run, the tables."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks import honesty
from benchmarks.datasets import MissingDataError, Table
from tests.benchmarks.datasets import makers

CPU = torch.device("cpu")
tiny_task = partial(honesty.friedman1, n_train=40, n_held_out=30)


@pytest.fixture
def table():
    """Every target is the number of its row."""
    content = makers.table(n=30)
    rows = (tuple(content[name].astype(np.int64)) for name in ("train_idx", "test_idx"))
    return Table(content["X"], np.arange(30.0), *rows, "numbered")


def rows_of(task, y):
    return {round(value) for value in task.y_scaling.undo(y.double().numpy()).tolist()}


def test_friedman1_is_the_published_function_with_noise_of_std_1():
    """y = 10 sin(pi x0 x1) + 20 (x2 - 1/2)^2 + 10 x3 + 5 x4 (Friedman, 1991), in units of the training part."""
    task = honesty.friedman1(0, n_train=4000, n_held_out=1000)
    assert task.x_train.shape == (4000, 10) and task.x_held_out.shape == (1000, 10)
    torch.testing.assert_close(task.x_train.mean(0), torch.zeros(10), atol=1e-5, rtol=0.0)
    assert float(task.y_train.std(correction=0)) == pytest.approx(1.0, rel=1e-5)
    x = task.x_train.double() * math.sqrt(1 / 12) + 0.5  # of uniform features, but for sampling error
    truth = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    noise = torch.as_tensor(task.y_scaling.undo(task.y_train.double().numpy())) - truth
    assert float(noise.std()) == pytest.approx(1.0, rel=0.1)
    assert task.noise_std * float(task.y_scaling.std) == pytest.approx(1.0)
    assert not torch.equal(task.x_train, honesty.friedman1(1, n_train=4000).x_train)


@pytest.mark.parametrize("seed", [0, 3])
def test_a_tenth_of_the_training_part_is_held_out_and_the_test_part_left_alone(table, seed):
    task = honesty.table_task(table, seed)
    train, held_out = rows_of(task, task.y_train), rows_of(task, task.y_held_out)
    assert len(held_out) == 3 and not train & held_out
    assert train | held_out == set(table.train_rows[seed].tolist())
    assert task.hidden == (50,) and task.noise_std is None


def test_the_test_part_is_scored_when_asked_for(table):
    task = honesty.table_task(table, 1, on_test=True)
    assert rows_of(task, task.y_train) == set(table.train_rows[1].tolist())
    assert rows_of(task, task.y_held_out) == set(table.test_rows[1].tolist())


def test_checkpoints_are_those_of_one_run():
    """Looking at it on the way does not change where a run ends."""
    rows = honesty.train_in_pieces(tiny_task(0), [2, 5], seed=1, device=CPU)
    (alone,) = honesty.train_in_pieces(tiny_task(0), [5], seed=1, device=CPU)
    assert [row["epochs"] for row in rows] == ["2", "5"]
    assert all(rows[1][name] == alone[name] for name in alone if name != "seconds")
    assert rows[0]["NLL"] != rows[1]["NLL"] and rows[0]["seconds"] < rows[1]["seconds"]
    assert 0.0 <= rows[1][honesty.COVERAGE] <= 1.0 and math.isfinite(rows[1]["leave-one-out NLL"])


def test_a_run_that_did_not_come_to_rest_says_so():
    row = honesty.train_until_rest(tiny_task(0), max_epochs=3, seed=0, device=CPU)
    assert (row["epochs"], row["stopped after"], row["at rest"]) == ("auto", 3, False)
    table = honesty.over_seeds([row, {**row, "seed": 1, "stopped after": 2, "at rest": True}])
    assert table[0]["stopped after"] == "3, not at rest; 2"
    assert table[0]["NLL"] == pytest.approx(row["NLL"])


def run(seed, epochs, nll, loo=0.0):
    return {"epochs": epochs, "seed": seed, "NLL": nll, "leave-one-out NLL": loo}


def test_the_rise_is_from_the_best_checkpoint_of_each_seed_to_its_last():
    runs = [run(0, "25", 0.5), run(0, "200", 0.2), run(0, "1000", 0.3, 0.25), run(0, "auto", 0.6)]
    runs += [run(1, "25", 0.4), run(1, "200", 0.3), run(1, "1000", 0.1, 0.25), run(1, "auto", 0.1)]
    row = honesty.summary_row("task", runs)
    assert row["NLL rise, best to last"] == pytest.approx(0.05) and row["worst seed"] == pytest.approx(0.1)
    assert row["auto - best"] == pytest.approx(0.2)
    assert row["leave-one-out - held-out, last"] == pytest.approx(0.05)
    assert honesty.summary_row("task", [run(0, "25", 0.5)])["auto - best"] is None


@pytest.mark.slow
def test_tables_from_the_command_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(honesty, "friedman1", tiny_task)
    makers.write_table_text(tmp_path / "uci/UCI_Datasets/yacht/data", makers.table(n=30))
    path = tmp_path / "o.json"
    options = ["--tasks", "friedman1", "yacht", "--seeds", "2", "--epochs", "3", "1", "--max-epochs", "2"]
    honesty.main([*options, "--device", "cpu", "--data-dir", str(tmp_path), "--out", str(path)])
    found = json.loads(path.read_text())
    for name in ("friedman1", "yacht"):
        assert [row["epochs"] for row in found[name]] == ["1", "3", "auto"]
        assert ("noise std / true" in found[name][0]) == (name == "friedman1")
        assert [(row["seed"], row["epochs"]) for row in found["runs"][name]] == [
            (seed, epochs) for seed in (0, 1) for epochs in ("1", "3", "auto")
        ]
    assert [row["task"] for row in found["summary"]] == ["friedman1", "yacht"]
    assert "40 rows to train on, 30 held out" in capsys.readouterr().out


def test_the_full_version_gives_way_to_what_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(honesty, "friedman1", tiny_task)
    monkeypatch.setattr(honesty, "FULL_EPOCHS", (1, 2))
    path = tmp_path / "o.json"
    shared = ["--tasks", "friedman1", "--full", "--max-epochs", "0", "--device", "cpu", "--out", str(path)]
    honesty.main([*shared, "--seeds", "1"])
    found = json.loads(path.read_text())
    assert [(row["seed"], row["epochs"]) for row in found["runs"]["friedman1"]] == [(0, "1"), (0, "2")]


def test_missing_tables_are_told_before_anything_is_trained(tmp_path):
    with pytest.raises(MissingDataError, match="energy"):
        honesty.main(["--data-dir", str(tmp_path), "--out", str(tmp_path / "o.json")])


def test_options_that_make_no_sense_are_refused(capsys):
    with pytest.raises(SystemExit):
        honesty.main(["--epochs", "0"])
    assert "must be positive" in capsys.readouterr().err
