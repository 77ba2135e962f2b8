"""From pieces to results/NAME: results.json, table.md and pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesmp import plots
from benchmarks.tables import format_table
from experiments.base import Experiment, Picture, Piece, Result, Table
from experiments.store import write_whole

VERSIONS = ("bayesmp", "torch", "numpy", "python")
MACHINE = ("device", "processor", "cores")
BEFORE = "results-before.json"
SHOWN = 8  # missing pieces that a table names


def write_results(
    experiment: Experiment,
    results: Sequence[Result],
    folder: Path,
    *,
    command: str,
    settings: Mapping[str, Any],
    missing: Mapping[str, str],
) -> list[Table]:
    """Write tables, pictures (if matplotlib is there) and all figures into the folder; returns the tables.

    Args:
        experiment: what was run.
        results: the pieces that are there.
        folder: results/NAME.
        command: by which it can be repeated.
        settings: what was asked for.
        missing: pieces that are not there, by label, with the reason.
    """
    tables = experiment.summarise(results)
    pictures = draw_if_possible(experiment, results, folder)
    made = [result.made for result in results]
    ways = [dict(each) for k, each in enumerate(made) if each not in made[:k]]
    content = {
        "experiment": experiment.name,
        "version": experiment.version,
        "title": experiment.title,
        "about": experiment.about,
        "command": command,
        "settings": dict(settings),
        "commits": _distinct(made, ("commit",)),
        "versions": _distinct(made, VERSIONS),
        "hardware": _distinct(made, MACHINE),
        "dates": sorted({str(each.get("date", "unknown")) for each in made}),
        "minutes": round(sum(result.seconds for result in results) / 60, 2),
        "missing": dict(missing),
        "tables": [{"title": table.title, "note": table.note, "rows": list(table.rows)} for table in tables],
        "pictures": [{"file": picture.file, "caption": picture.caption} for picture in pictures],
        "made": ways,
        "pieces": [
            {
                "label": result.piece.label,
                **result.piece.parameters,
                **result.numbers,
                "seconds": result.seconds,
                "made": ways.index(dict(result.made)),
                "arrays": sorted(result.arrays),
            }
            for result in results
        ],
    }
    keep_lost(folder, {result.piece.label for result in results})
    write_whole(folder / "results.json", json.dumps(content, indent=1) + "\n")
    write_whole(folder / "table.md", as_markdown(content))
    return tables


def keep_lost(folder: Path, labels: set[str]) -> None:
    """A copy of results.json, if it holds pieces that are not among these."""
    path = folder / "results.json"
    try:
        content = path.read_text(encoding="utf-8")
        lost = {entry["label"] for entry in json.loads(content)["pieces"]} - labels
    except (FileNotFoundError, KeyError, ValueError):
        return
    if lost:
        write_whole(folder / BEFORE, content)
        print(f"{len(lost)} pieces of results.json are not among the new results; it is kept as {BEFORE}", flush=True)


def written(experiment: Experiment, pieces: Sequence[Piece], folder: Path) -> dict[str, Result]:
    """Pieces of this plan that results.json in the folder holds whole, by label: all but those with arrays."""
    try:
        content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        ways, entries = content["made"], content["pieces"]
    except (FileNotFoundError, KeyError):
        return {}
    if content.get("version") != experiment.version:
        return {}
    found = {}
    for piece in pieces:
        for entry in entries:
            if entry["label"] != piece.label or entry.get("arrays", [""]):
                continue
            if all(entry.get(name) == value for name, value in _as_json(piece.parameters).items()):
                own = {"label", "seconds", "made", "arrays", *piece.parameters}
                numbers = {name: value for name, value in entry.items() if name not in own}
                found[piece.label] = Result(piece, numbers, {}, entry["seconds"], ways[entry["made"]])
    return found


def _as_json(parameters: Mapping[str, Any]) -> dict[str, Any]:
    back: dict[str, Any] = json.loads(json.dumps(dict(parameters)))
    return back


def draw_if_possible(experiment: Experiment, results: Sequence[Result], folder: Path) -> list[Picture]:
    """The experiment's pictures; none, and a sentence, without matplotlib."""
    try:
        plots.require_matplotlib()
    except ImportError:
        print("no pictures: matplotlib is not installed; --draw makes them elsewhere, from the same pieces", flush=True)
        return []
    folder.mkdir(parents=True, exist_ok=True)
    return experiment.draw(results, folder)


def as_markdown(content: Mapping[str, Any], *, level: int = 1, pictures_in: str = "") -> str:
    """What results.json holds, for people: the tables, how they came to be, and the pictures."""
    lines = [f"{'#' * level} {content['title']}", "", content["about"], ""]
    for table in content["tables"]:
        lines += [f"**{table['title']}**", "", format_table(table["rows"]), ""]
        lines += [table["note"], ""] if table["note"] else []
    for picture in content["pictures"]:
        lines += [f"![{picture['caption']}]({pictures_in}{picture['file']})", "", f"*{picture['caption']}*", ""]
    if content["missing"]:
        shown = [f"- {line}" for line in grouped(content["missing"])]
        if len(shown) > SHOWN:
            shown = [*shown[: SHOWN - 1], f"- and {len(shown) - SHOWN + 1} more; `results.json` names them"]
        lines += ["Not there:", "", *shown, ""]
    lines += [f"`{content['command']}`: {made_with(content)}.", ""]
    return "\n".join(lines)


def grouped(missing: Mapping[str, str]) -> list[str]:
    """What is missing and why, a line for all pieces that differ in their seed, split or run alone."""
    groups: dict[tuple[str, str], list[str]] = {}
    for label, why in missing.items():
        stem = re.sub(r",? (seed|split|run)s? \d+( to \d+)?$", "", label)
        groups.setdefault((stem, why), []).append(label)
    return [
        f"{labels[0]}: {why}" if len(labels) == 1 else f"{stem}, {len(labels)} pieces: {why}"
        for (stem, why), labels in groups.items()
    ]


def made_with(content: Mapping[str, Any]) -> str:
    """Commit, versions, machine and time, in a line."""
    commits = "commit " + ", ".join(each["commit"] for each in content["commits"])
    versions = "; ".join(", ".join(f"{name} {value}" for name, value in each.items()) for each in content["versions"])
    machines = "; ".join(f"{each['device']}, {each['processor']}" for each in content["hardware"])
    dates = " to ".join(dict.fromkeys((content["dates"][0], content["dates"][-1]))) if content["dates"] else ""
    return f"{commits}; {versions}; {machines}; {content['minutes']:.3g} minutes of computing in all; {dates}"


def _distinct(made: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """The different values that pieces have under these names, together."""
    found = [{name: each.get(name, "unknown") for name in names} for each in made]
    return [each for k, each in enumerate(found) if each not in found[:k]]
