"""docs/results.md from all results/NAME/results.json."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from experiments import PLACES
from experiments.results import as_markdown
from experiments.store import write_whole

PICTURES = "images/results"
HEADER = """\
# Results

Made by `bayesmp experiment report` from `results/*/results.json`; do not edit. Each part has the command that repeats
it, the commit and the machine. Published numbers of others are marked as such; all else was measured by us.
"""


def write_report(results: Path, target: Path) -> list[str]:
    """Write the report; returns the names of the experiments in it.

    Args:
        results: folder with a folder per experiment.
        target: the file to write; pictures are copied to `images/results` beside it, so that the guide can show them.
    """
    found = read_results(results)
    if not found:
        raise ValueError(f"no results in {results}; run an experiment first: bayesmp experiment NAME")
    parts = [HEADER, "\n".join(f"- [{content['title']}](#{name})" for name, content in found.items()), ""]
    for name, content in found.items():
        for picture in content["pictures"]:
            copy = target.parent / PICTURES / f"{name}-{picture['file']}"
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(results / name / picture["file"], copy)
        parts += [f'<a id="{name}"></a>', "", as_markdown(content, level=2, pictures_in=f"{PICTURES}/{name}-")]
    write_whole(target, "\n".join(parts))
    return list(found)


def read_results(results: Path) -> dict[str, dict[str, Any]]:
    """What each results.json holds, in the order of the list of experiments."""
    found = {}
    for name in PLACES:
        path = results / name / "results.json"
        if not path.exists():
            continue
        try:
            found[name] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); make it anew: bayesmp experiment {name} --draw") from error
    return found
