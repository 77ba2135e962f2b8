"""The command line, called as a user would."""

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import bayesmp
from bayesmp import cli
from bayesmp.cli import demo, showing

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


@pytest.mark.slow
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


def test_info_shows_versions(call):
    result = call("info")
    assert result.exit_code == 0, result.output
    for text in (bayesmp.__version__, "torch", "threads"):
        assert text in result.output


@pytest.fixture
def echo(tmp_path, monkeypatch):
    """An experiments package that writes its arguments into a file and ends with status 3; the file."""
    package, got = tmp_path / "experiments", tmp_path / "got"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(f"import sys\nopen({str(got)!r}, 'w').write(str(sys.argv[1:]))\nsys.exit(3)")
    monkeypatch.setattr(showing, "EXPERIMENTS", package)
    return got


def test_an_experiment_gets_its_options_and_its_exit_status_comes_back(call, echo):
    assert call("experiment", "uci", "--fast", "2").exit_code == 3
    assert echo.read_text() == "['uci', '--fast', '2']"
    assert call("experiment").exit_code == 3
    assert echo.read_text() == "[]"
    assert call("experiment", "--help").exit_code == 3
    assert echo.read_text() == "['--help']"


def test_experiments_are_those_of_the_package_not_of_the_folder_one_is_in(call, echo, tmp_path, monkeypatch):
    """A folder `experiments` in the working directory must not be taken for ours."""
    if sys.version_info < (3, 11):
        pytest.skip("before Python 3.11 the working directory comes first")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "experiments").mkdir(parents=True)
    (elsewhere / "experiments" / "__init__.py").touch()
    (elsewhere / "experiments" / "__main__.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(elsewhere)
    assert call("experiment", "uci").exit_code == 3


def test_without_a_checkout_experiment_explains_what_it_needs(call, tmp_path, monkeypatch):
    monkeypatch.setattr(showing, "EXPERIMENTS", tmp_path)
    result = call("experiment", "uci")
    assert result.exit_code == 1
    assert "part of the repository" in result.output


@pytest.mark.slow
def test_an_experiment_runs_from_the_shell(tmp_path):
    command = [sys.executable, "-m", "bayesmp", "experiment", "sine-width", "--quick", "--parts", "parallel", "--out"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sine-width" / "scores.png").exists() and (tmp_path / "sine-width" / "results.json").exists()
