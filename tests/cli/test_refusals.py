"""What `bayesmp fit`, `predict` and `evaluate` refuse, and how they say it."""

import os
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

pandas = pytest.importorskip("pandas")

import bayesmp as bmp  # noqa: E402
from bayesmp import cli, tables  # noqa: E402
from tests.cli.conftest import QUICK  # noqa: E402


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["none.csv", "--target", "price"], "there is no file"),
        (["price.csv", "--target", "prize"], "there is no column 'prize'; did you mean 'price'?"),
        (["price.csv", "--target", "country"], "is DE in all rows"),
        (["price.csv", "--target", "price", "--drop", "twon"], "no column 'twon'; did you mean 'town'"),
        (["price.csv", "--target", "town", "--task", "regression"], "a regression needs them"),
        (["empty.csv", "--target", "price"], "empty.csv is empty"),
        (["gaps.csv", "--target", "y"], "no column is left to learn from ('x': all values are missing)"),
        (["short.csv", "--target", "y"], "at least 5 are needed"),
    ],
)
def test_fit_refuses_with_a_sentence(made, call, tmp_path, arguments, message):
    folder, _ = made
    (folder / "empty.csv").touch()
    (folder / "gaps.csv").write_text("x,y\n" + ",1.5\n,2.5\n" * 5)
    (folder / "short.csv").write_text("x,y\n1,1.5\n2,2.5\n")
    said = call("fit", folder / arguments[0], *arguments[1:], "--out", tmp_path / "m.safetensors", code=1)
    assert message in said
    assert "training on" not in said
    assert not (tmp_path / "m.safetensors").exists()


def test_too_few_rows_beside_those_held_out_are_told_before_training(call, tmp_path):
    (tmp_path / "short.csv").write_text("x,y\n" + "".join(f"{row},{row}.5\n" for row in range(8)))
    arguments = ["--target", "y", "--hold-out", "0.5", "--out", tmp_path / "m.safetensors"]
    said = call("fit", tmp_path / "short.csv", *arguments, code=1)
    assert "4 rows with a target: at least 5 are needed" in said
    assert "training on" not in said


@pytest.mark.parametrize(
    "options, message",
    [
        (["--out", "m.txt"], "must end in .safetensors"),
        (["--hidden", "5,x"], "must be whole numbers"),
        (["--epochs", "0"], "positive whole number or auto"),
        (["--picture", "p.gif"], "must end in .png"),
        (["--drop", "id,price"], "'price' is the target"),
        (["--task", "guessing"], "'regression', 'classification'"),
    ],
)
def test_wrong_usage_has_exit_status_2(made, call, tmp_path, options, message):
    out = [] if "--out" in options else ["--out", tmp_path / "m.safetensors"]
    said = call("fit", made[0] / "price.csv", "--target", "price", *out, *options, code=2)
    assert message in said.replace(" │ │ ", " ")


def test_predict_guards_what_it_reads(made, call, tmp_path):
    folder, _ = made
    model, new = folder / "price.safetensors", folder / "price-new.csv"
    before = new.read_bytes()
    assert "would overwrite" in call("predict", model, new, "--out", new, code=2)
    assert "between 0 and 1" in call("predict", model, new, "--level", "90", code=2)
    assert new.read_bytes() == before
    assert "must end in .csv, .tsv or .parquet" in call("predict", model, new, "--out", tmp_path / "o.xls", code=1)
    said = call("predict", model, folder / "kind.csv", code=1)
    assert "3 columns of the training table not found: 'area', 'rooms', 'town'" in said
    assert "no column 'price'" in call("evaluate", model, folder / "kind.csv", code=1)


def test_an_output_that_cannot_be_written_is_told_before_training(made, call, tmp_path):
    folder, _ = made
    (tmp_path / "file").touch()
    said = call("fit", folder / "price.csv", "--target", "price", "--out", tmp_path / "file/m.safetensors", code=1)
    assert "cannot write" in said and "its folder is a file" in said and "training" not in said
    said = call(
        "predict", folder / "price.safetensors", folder / "price-new.csv", "--out", tmp_path / "file/o.csv", code=1
    )
    assert "cannot write" in said
    if os.geteuid() != 0:  # nothing is read-only for root
        (tmp_path / "locked").mkdir(mode=0o500)
        out = tmp_path / "locked/m.safetensors"
        assert "Permission denied" in call("fit", folder / "price.csv", "--target", "price", "--out", out, code=1)


def test_files_that_are_no_models_of_tables(made, call, tmp_path):
    folder, _ = made
    good = (folder / "price.safetensors").read_bytes()
    path = tmp_path / "m.safetensors"
    for content, message in (
        (good[:-10], "not a complete safetensors file"),
        (b"", "not a complete safetensors file"),
        (good[:-4] + b"\x00\x01\x02\x03", "is damaged"),
        (good.replace(b"median", b"midean", 1), "is damaged"),
    ):
        path.write_bytes(content)
        assert message in call("predict", path, folder / "price-new.csv", code=1)
    bmp.Network([bmp.Linear(2, 1)], bmp.Regression(1.0)).save(path)
    assert "holds a network that was saved from Python" in call("info", path, code=1)
    bmp.MPRegressor(epochs=1).fit(np.eye(5), np.arange(5.0)).save(path)
    assert "holds an estimator that was saved from Python" in call("evaluate", path, folder / "price.csv", code=1)
    swapped = call("predict", folder / "price-new.csv", folder / "price.safetensors", code=1)
    assert "is a table; the model comes first, then the table" in swapped
    assert "there is no file" in call("info", tmp_path / "none.safetensors", code=1)


def test_what_is_missing_is_named(made, call, tmp_path, monkeypatch):
    folder, _ = made
    out = tmp_path / "m.safetensors"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.pyplot", None)
        said = call("fit", folder / "sick.csv", "--target", "sick", "--out", out, *QUICK, "--no-refit")
    assert "no picture: plots need matplotlib: pip install 'bayesmp[plots]'" in said
    assert out.exists() and not out.with_suffix(".png").exists()
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "pip install 'bayesmp[tables]'" in call("predict", out, folder / "sick.csv", code=1)


def test_debug_shows_where_an_error_came_from(made):
    result = CliRunner().invoke(cli.app, ["info", "none.safetensors", "--debug"])
    assert result.exit_code == 1 and "Traceback" in result.output and "bayesmp: there is no file" in result.output


def test_errors_nobody_thought_of_have_no_traceback_either(made, call, monkeypatch):
    monkeypatch.setattr(tables, "read_table", lambda path, **options: 1 / 0)
    said = call("predict", made[0] / "sick.safetensors", made[0] / "sick.csv", code=1)
    assert "an error that should not happen, ZeroDivisionError" in said
