"""Pieces on disk, resuming, failures, tables and the report: with an experiment that only squares numbers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.datasets import MissingDataError
from experiments import PLACES, find
from experiments import __main__ as command_line
from experiments.base import Experiment, Options, Piece, Table, UnavailableError
from experiments.results import grouped
from experiments.store import PieceStore

ROOT = Path(__file__).parent.parent.parent


def test_results_hold_numbers_settings_and_how_they_were_made(squares, run, tmp_path):
    status, printed, found = run("squares")
    assert status == 0
    assert found["tables"][0]["rows"] == [{"number": n, "square": n * n, "length": n} for n in (0, 1, 2, 10)]
    assert [piece["square"] for piece in found["pieces"]] == [0, 1, 4, 100]
    assert found["command"] == "bayesmp experiment squares" and found["settings"]["seeds"] == 3
    assert set(found["hardware"][0]) == {"device", "processor", "cores"} and found["versions"][0]["torch"]
    assert found["missing"] == {}
    table = (tmp_path / "squares" / "table.md").read_text()
    assert "| 10     | 100    | 10     |" in table and "| 10     | 100    | 10     |" in printed
    assert "commit" in table and "A note." in table


def test_what_is_there_is_not_computed_again_unless_asked(squares, run):
    run("squares")
    assert sorted(squares.calls) == [0, 1, 2, 10]
    status, printed, _ = run("squares")
    assert status == 0 and sorted(squares.calls) == [0, 1, 2, 10]
    assert "4 of 4 pieces are there already" in printed
    run("squares", "--fresh")
    assert sorted(squares.calls) == [0, 0, 1, 1, 2, 2, 10, 10]


def test_a_changed_setting_or_version_is_not_mixed_with_old_pieces(squares, run, monkeypatch):
    run("squares", "--seeds", "1")
    assert sorted(squares.calls) == [0, 1]
    run("squares", "--seeds", "2")  # more of the same: only the new one is computed
    assert sorted(squares.calls) == [0, 1, 2]
    monkeypatch.setattr(squares, "version", 2)
    _, _, found = run("squares", "--seeds", "2")
    assert sorted(squares.calls) == [0, 0, 1, 1, 2, 2]
    plan = squares.pieces

    def cubes(self, options):
        return [Piece(piece.label, {**piece.parameters, "power": 3}) for piece in plan(self, options)]

    monkeypatch.setattr(squares, "pieces", cubes)
    _, _, found = run("squares", "--seeds", "2")
    assert [piece["square"] for piece in found["pieces"]] == [0, 1, 8]


def test_a_failure_costs_one_piece_and_is_told(squares, run, monkeypatch):
    monkeypatch.setattr(squares, "fails", {1: RuntimeError("broken"), 2: UnavailableError("needs a package")})
    status, printed, found = run("squares")
    assert status == 1
    assert [piece["square"] for piece in found["pieces"]] == [0, 100]
    assert found["missing"] == {"number 1": "RuntimeError: broken", "number 2": "needs a package"}
    assert "not there: number 1: RuntimeError: broken" in printed
    monkeypatch.setattr(squares, "fails", {2: UnavailableError("needs a package")})
    status, _, found = run("squares")
    assert status == 0, "what cannot run here is no failure"
    assert sorted(squares.calls) == [0, 1, 1, 2, 2, 10]


def test_draw_computes_nothing_and_says_what_is_missing(squares, run):
    status, printed, _ = run("squares", "--draw")
    assert status == 1 and "no piece of squares is in" in printed and squares.calls == []
    run("squares", "--parts", "large")
    status, _, found = run("squares", "--draw")
    assert status == 0 and squares.calls == [10]
    assert found["missing"] == dict.fromkeys(("number 0", "number 1", "number 2"), "not computed")


def test_draw_takes_what_results_hold_where_pieces_are_gone(squares, run, tmp_path, monkeypatch):
    """A clone has results, not pieces; those with arrays were not written whole."""

    def compute(self, parameters, options):
        return {"square": parameters["number"] ** 2}

    monkeypatch.setattr(squares, "compute", compute)
    monkeypatch.setattr(
        squares, "summarise", lambda self, results: [Table("All", [{"square": r["square"]} for r in results])]
    )
    _, _, first = run("squares", "--commit", "abc")
    shutil.rmtree(tmp_path / "squares" / "pieces")
    _, _, again = run("squares", "--draw")
    assert again == first and again["commits"] == [{"commit": "abc"}]
    _, _, mixed = run("squares", "--parts", "large", "--commit", "def")  # the other part stays as it was
    assert [mixed["made"][piece["made"]]["commit"] for piece in mixed["pieces"]] == ["abc", "abc", "abc", "def"]
    assert mixed["missing"] == {} and mixed["command"] == "bayesmp experiment squares"
    assert run("squares", "--draw")[2] == mixed
    monkeypatch.setattr(squares, "version", 2)
    status, printed, _ = run("squares", "--draw")
    assert status == 1 and "no piece of squares" in printed


def test_pieces_with_arrays_are_not_taken_from_results(squares, run, tmp_path):
    first = run("squares")[2]
    shutil.rmtree(tmp_path / "squares" / "pieces")
    status, printed, _ = run("squares", "--draw")
    assert status == 1 and "no piece of squares" in printed
    _, printed, found = run("squares", "--parts", "large")
    assert [piece["label"] for piece in found["pieces"]] == ["number 10"] and found["command"].endswith("--parts large")
    assert "3 pieces of results.json are not among the new results; it is kept as results-before.json" in printed
    assert json.loads((tmp_path / "squares" / "results-before.json").read_text()) == first


def test_a_part_joins_those_that_are_there(squares, run):
    assert len(run("squares", "--parts", "large")[2]["pieces"]) == 1
    _, _, found = run("squares", "--parts", "small")
    assert [piece["square"] for piece in found["pieces"]] == [0, 1, 4, 100] and sorted(squares.calls) == [0, 1, 2, 10]


def test_list_shows_what_is_there(squares, run):
    run("squares", "--parts", "large")
    _, printed, _ = run("squares", "--list")
    assert "missing  number 0" in printed and "there    number 10" in printed
    assert squares.calls == [10]


@pytest.mark.parametrize(
    "options, words",
    [
        (["--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--jobs", "-1"], "--jobs must be at least 1, got -1"),
        (["--parts", "huge"], "squares knows no part 'huge'; its parts are small, large"),
        (["--fresh", "--draw"], "give one of them"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_done(squares, run, options, words):
    status, printed, found = run("squares", *options)
    assert status == 1 and words in printed and found is None and squares.calls == []


@pytest.mark.parametrize("words", [[], ["--help"], ["--list"], ["list"]], ids=str)
def test_experiments_are_listed(words, capsys):
    assert command_line.main(words) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in ("sine-depth", "uci", "truth", "report", "mnist", "uci/boston"))


def test_unknown_experiments_are_told_all_names(run):
    status, printed, _ = run("cosine")
    assert status == 1 and "no experiment 'cosine'; there are: sine-depth, sine-width, uci" in printed


def test_missing_data_say_what_to_do(squares, run, monkeypatch):
    monkeypatch.setattr(squares, "fails", {0: MissingDataError("put the files there")})
    status, printed, _ = run("squares")
    assert status == 1 and "put the files there" in printed and "Traceback" not in printed


def test_damaged_pieces_are_computed_anew(squares, run, tmp_path):
    run("squares")
    store, pieces = PieceStore(tmp_path / "squares" / "pieces", squares()), squares().pieces(Options())
    store.path(pieces[0]).write_text("{")
    store.path(pieces[1]).with_suffix(".npz").write_bytes(b"PK nothing")
    store.path(pieces[2]).with_suffix(".npz").unlink()
    squares.calls.clear()
    _, printed, found = run("squares")
    assert sorted(squares.calls) == [0, 1, 2] and printed.count("is damaged") >= 2
    assert [piece["square"] for piece in found["pieces"]] == [0, 1, 4, 100]


def test_nothing_half_written_is_left_when_a_record_is_not_json(squares, tmp_path):
    store, piece = PieceStore(tmp_path, squares()), squares().pieces(Options())[0]
    with pytest.raises(TypeError):
        store.save(piece, {"square": object()}, seconds=0.0, made={})
    assert os.listdir(tmp_path) == [] and store.load(piece) is None


@pytest.mark.slow
def test_several_processes_give_what_one_gives(run, tmp_path):
    """Workers start afresh and find the experiment by its name, so this needs a real one."""
    one = run("sine-width", "--quick", "--parts", "parallel")[2]
    status = command_line.main(
        ["sine-width", "--quick", "--parts", "parallel", "--jobs", "2", "--out", str(tmp_path / "two")]
    )
    two = json.loads((tmp_path / "two" / "sine-width" / "results.json").read_text())
    assert status == 0
    (rmse_one, rmse_two) = ([piece["rmse"][0] for piece in found["pieces"]] for found in (one, two))
    assert len(rmse_one) == 4 and rmse_one == pytest.approx(rmse_two, rel=1e-6)


def test_computing_needs_neither_matplotlib_nor_scikit_learn_nor_typer(tmp_path):
    """Pieces may be computed on a bare machine, and drawn elsewhere."""
    absent = ("matplotlib", "matplotlib.pyplot", "sklearn", "typer", "pandas", "scipy", "ivon", "laplace", "pytagi")
    lines = [
        "import sys",
        f"sys.modules.update(dict.fromkeys({absent!r}))",
        "from experiments.__main__ import main",
        f"status = main(['epochs', '--quick', '--out', {str(tmp_path)!r}])",
        "status += main(['truth', '--quick', '--parts', 'gap', '--out', sys.argv[1]])",
        "sys.exit(status)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines), str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no pictures: matplotlib is not installed" in done.stdout
    assert "cubic, ivon, seed 0: ivon" in done.stdout and "pip install ivon-opt" in done.stdout
    assert command_line.main(["truth", "--quick", "--parts", "gap", "--draw", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "truth" / "bands.png").exists()


def test_the_report_has_each_experiment_with_its_command(squares, run, tmp_path):
    assert command_line.main(["report", "--results", str(tmp_path), "--to", str(tmp_path / "docs" / "r.md")]) == 1
    run("squares", "--seeds", "2")
    assert command_line.main(["report", "--results", str(tmp_path), "--to", str(tmp_path / "docs" / "r.md")]) == 0
    text = (tmp_path / "docs" / "r.md").read_text()
    assert "## Squares" in text and "`bayesmp experiment squares --seeds 2`" in text
    assert "| 2      | 4      | 2      |" in text


@pytest.mark.parametrize("name", list(PLACES))
@pytest.mark.parametrize("quick", [True, False])
def test_plans_have_no_two_equal_pieces_and_are_json(name, quick, monkeypatch):
    experiment = find(name)
    assert isinstance(experiment, Experiment) and experiment.name == name
    if name in ("uci",):
        monkeypatch.setattr(f"experiments.{name}.find_tables", lambda data_dir: {"boston": 20})
    pieces = experiment.pieces(Options(quick=quick))
    assert len({piece.label for piece in pieces}) == len(pieces) > 0
    for piece in pieces:
        assert json.loads(json.dumps(dict(piece.parameters))) == piece.parameters


def test_missing_pieces_are_told_in_groups():
    missing = {f"boston, tagi, split {k}": "not computed" for k in range(3)}
    missing |= {"boston, tagi, split 3": "crashed", "ours, seeds 0 to 9": "late", "ours, seeds 10 to 19": "late"}
    assert grouped(missing) == [
        "boston, tagi, 3 pieces: not computed",
        "boston, tagi, split 3: crashed",
        "ours, 2 pieces: late",
    ]
