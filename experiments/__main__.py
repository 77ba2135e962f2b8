"""The command line of the experiments: `python -m experiments NAME`, or `bayesmp experiment NAME`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.datasets import MissingDataError, data_directory, find_sets
from benchmarks.tables import format_table
from experiments import PLACES, find
from experiments.base import Experiment, Options, Piece, Result
from experiments.report import write_report
from experiments.results import grouped, write_results, written
from experiments.runner import Outcome, compute_missing
from experiments.store import PieceStore

ROOT = Path(__file__).parent.parent
RESULTS, QUICK_RESULTS = ROOT / "results", ROOT / "outputs" / "quick"  # only the former is under version control


def main(argv: Sequence[str]) -> int:
    """Run, draw, list or report; returns the exit status."""
    if not argv or argv[0] in ("-h", "--help", "--list", "list"):
        print("experiments, to be run with `bayesmp experiment NAME` (--help shows the options of each):")
        for name in PLACES:
            print(f"  {name:<14}{find(name).title}")
        print(f"  {'report':<14}docs/results.md from all results")
        print(f"data sets, in {data_directory()} (set BAYESMP_DATA to change it):")
        for name, path in find_sets().items():
            print(f"  {name:<14}{path or 'not found'}")
        return 0
    name, *rest = argv
    try:
        if name == "report":
            return _report(rest)
        experiment = find(name)
        arguments = _parser(experiment).parse_args(rest)
        return _run(experiment, arguments)
    except (ValueError, RuntimeError, MissingDataError) as error:
        print(f"bayesmp experiment: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; finished pieces are kept, and the same command goes on", file=sys.stderr)
        return 130


def _parser(experiment: Experiment) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"bayesmp experiment {experiment.name}",
        description=f"{experiment.title}. {experiment.about}",
    )
    parser.add_argument("--quick", action="store_true", help="a small version, in seconds: shows that it runs")
    if experiment.uses_seeds:
        parser.add_argument("--seeds", type=int, metavar="N", help=f"how many; default: {experiment.seeds}")
    if experiment.parts:
        parser.add_argument(
            "--parts", metavar="A,B", help=f"run these parts alone: {', '.join(experiment.parts)}", default=""
        )
    parser.add_argument("--data-dir", type=Path, help="folder of the data; default: $BAYESMP_DATA, ~/.cache/bayesmp")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, ...; default: cpu")
    parser.add_argument(
        "--out", type=Path, help="folder that gets a folder NAME; default: results, with --quick outputs/quick"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes, one thread each")
    parser.add_argument("--fresh", action="store_true", help="compute all pieces anew; default: those not there yet")
    parser.add_argument(
        "--draw", action="store_true", help="tables and pictures from the pieces and results there; no computing"
    )
    parser.add_argument("--list", action="store_true", help="show the pieces and which are there; nothing else")
    parser.add_argument("--commit", help="of the code, to be written into the results; default: what git says")
    return parser


def _run(experiment: Experiment, arguments: argparse.Namespace) -> int:
    seeds = getattr(arguments, "seeds", None)
    for option, value in (("--seeds", seeds), ("--jobs", arguments.jobs)):
        if value is not None and value < 1:
            raise ValueError(f"{option} must be at least 1, got {value}")
    if arguments.fresh and arguments.draw:
        raise ValueError("--fresh computes all pieces anew and --draw computes none; give one of them")
    options = Options(
        quick=arguments.quick,
        seeds=seeds,
        parts=tuple(part.strip() for part in getattr(arguments, "parts", "").split(",") if part.strip()),
        data_dir=arguments.data_dir,
        device=arguments.device,
    )
    pieces = experiment.pieces(options)
    folder = (arguments.out or (QUICK_RESULTS if options.quick else RESULTS)) / experiment.name
    store = PieceStore(folder / "pieces", experiment)
    if arguments.list:
        for piece in pieces:
            print(f"{'there  ' if store.load(piece) else 'missing'}  {piece.label}")
        return 0
    if arguments.fresh:
        print(f"{store.forget(pieces)} finished pieces removed")
    outcomes: list[Outcome] = []
    if not arguments.draw:
        print(f"{experiment.title}: {len(pieces)} pieces", flush=True)
        outcomes = compute_missing(experiment, pieces, store, options, jobs=arguments.jobs, commit=arguments.commit)
    kept = written(experiment, pieces, folder) if arguments.draw else {}
    if options.parts and not arguments.draw:  # the other parts stay in the results, as far as they are there
        whole = experiment.pieces(replace(options, parts=()))
        asked = {piece.label for piece in pieces}
        kept = written(experiment, [piece for piece in whole if piece.label not in asked], folder)
        there = [piece for piece in whole if piece.label in asked or piece.label in kept or store.load(piece)]
        pieces = [*there, *(piece for piece in pieces if piece not in there)]  # a quick version may have other parts
    return _show(experiment, pieces, store, folder, outcomes, options, kept)


def _show(
    experiment: Experiment,
    pieces: Sequence[Piece],
    store: PieceStore,
    folder: Path,
    outcomes: Sequence[Outcome],
    options: Options,
    kept: Mapping[str, Result],
) -> int:
    """Write and print what the pieces say, and where there is none what was written of it; 1 if any failed."""
    loaded = [store.load(piece) or kept.get(piece.label) for piece in pieces]
    results = [result for result in loaded if result is not None]
    reasons = {outcome.label: outcome.why for outcome in outcomes if outcome.why}
    missing = {
        piece.label: reasons.get(piece.label, "not computed")
        for piece, result in zip(pieces, loaded, strict=True)
        if result is None
    }
    if not results:
        raise ValueError(f"no piece of {experiment.name} is in {store.folder}; run it without --draw first")
    if {piece.label for piece in pieces} == {piece.label for piece in experiment.pieces(replace(options, parts=()))}:
        options = replace(options, parts=())
    settings = {"quick": options.quick, "seeds": experiment.n_seeds(options), "parts": list(options.parts)}
    command = repeat_command(experiment, options)
    tables = write_results(experiment, results, folder, command=command, settings=settings, missing=missing)
    for table in tables:
        print(f"\n{table.title}\n\n{format_table(table.rows)}" + (f"\n\n{table.note}" if table.note else ""))
    for line in grouped(missing):
        print(f"not there: {line}")
    print(f"\nresults: {folder}", flush=True)
    return 1 if any(outcome.state == "failed" for outcome in outcomes) else 0


def repeat_command(experiment: Experiment, options: Options) -> str:
    """The command that gives these results, without what depends on the machine."""
    words = ["bayesmp experiment", experiment.name]
    words += ["--quick"] if options.quick else []
    words += [f"--seeds {options.seeds}"] if options.seeds is not None else []
    words += [f"--parts {','.join(options.parts)}"] if options.parts else []
    words += [f"--device {options.device}"] if options.device != "cpu" else []
    return " ".join(words)


def _report(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bayesmp experiment report", description="Write docs/results.md from the results of all experiments."
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder with a folder per experiment")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "results.md", help="file to write")
    arguments = parser.parse_args(argv)
    names = write_report(arguments.results, arguments.to)
    print(f"{', '.join(names)}: {arguments.to}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:  # of `bayesmp experiment | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
