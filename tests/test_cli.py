"""The command line, called as a user would."""

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import bayesmp
from bayesmp import cli, demo

pytest.importorskip("matplotlib")


@pytest.fixture
def call():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(cli.app, list(arguments))


def test_demo_prints_a_table_and_writes_a_picture(call, tmp_path):
    out = tmp_path / "new folder" / "sine.png"
    result = call("demo", "--epochs", "3", "--no-progress", "--out", str(out), "--seed", "1")
    assert result.exit_code == 0, result.output
    assert "for 3 epochs" in result.output
    for row in ("inside the data, x in [0, 2]", "outside, x in [-1, 0] or [2, 3]"):
        (numbers,) = re.findall(rf"^{re.escape(row)}\s+(.*)$", result.output, flags=re.MULTILINE)
        assert re.fullmatch(r"\d+\.\d{3}\s+-?\d+\.\d\d\s+\d+ %\s+\d+ %", numbers)
    assert str(out) in result.output.replace("\n", "")
    assert out.read_bytes().startswith(b"\x89PNG")


def test_the_demo_is_the_same_for_the_same_seed():
    one, same, other = (demo.run_demo(seed=seed, epochs=2, progress=False) for seed in (0, 0, 1))
    assert one.inside == same.inside
    assert one.inside != other.inside


def test_demo_refuses_a_picture_it_cannot_write_before_it_trains(call):
    result = call("demo", "--out", "sine.xyz")
    assert result.exit_code == 1
    assert "must end in .png, .pdf or .svg" in result.output


def test_demo_without_matplotlib_says_what_to_install(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    result = call("demo")
    assert result.exit_code == 1
    assert "pip install 'bayesmp[plots]'" in result.output


def test_info_shows_versions_and_data(call, tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESMP_DATA", str(tmp_path))
    (tmp_path / "boston.npz").touch()
    result = call("info")
    assert result.exit_code == 0, result.output
    for text in (bayesmp.__version__, "torch", "threads", str(tmp_path)):
        assert text in result.output
    assert re.search(r"mnist +not found", result.output)
    assert re.search(rf"uci/boston +{re.escape(str(tmp_path))}", result.output)


def test_experiments_are_listed_and_misspelt_ones_refused(call):
    result = call("experiment")
    assert result.exit_code == 0
    assert re.search(r"sine +Depth and width", result.output)
    result = call("experiment", "cosine")
    assert result.exit_code == 1
    assert "no experiment 'cosine'; there are:" in result.output


def test_an_experiment_gets_its_options_and_its_exit_status_comes_back(call, tmp_path, monkeypatch):
    script = tmp_path / "echo" / "run.py"
    script.parent.mkdir()
    lines = [
        '"""Writes what it got."""',
        "import sys",
        f"open({str(tmp_path / 'got')!r}, 'w').write(str(sys.argv[1:]))",
    ]
    script.write_text("\n".join([*lines, "sys.exit(3)"]))
    monkeypatch.setattr(cli, "EXPERIMENTS", tmp_path)
    assert "Writes what it got." in call("experiment").output
    assert call("experiment", "echo", "--fast", "2").exit_code == 3
    assert (tmp_path / "got").read_text() == "['--fast', '2']"


def test_without_a_checkout_experiment_explains_what_it_needs(call, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "EXPERIMENTS", tmp_path)
    result = call("experiment", "sine")
    assert result.exit_code == 1
    assert "part of the repository" in result.output


@pytest.mark.slow
def test_the_sine_experiment_runs(tmp_path):
    command = [sys.executable, "-m", "bayesmp", "experiment", "sine", "--epochs", "1", "--sweep", "depth", "--out"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "depth.png").exists() and (tmp_path / "results.json").exists()
