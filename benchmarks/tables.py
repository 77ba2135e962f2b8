"""Tables on the screen, and the same numbers in a JSON file that is rewritten whenever something is known."""

from __future__ import annotations

import json
import math
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

OUTPUTS = Path(__file__).parent / "outputs"  # not under version control

Row = Mapping[str, Any]


def format_table(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """A Markdown table of the rows; columns in order of first appearance if not given, a dash where a row lacks one."""
    names = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else list(columns)
    cells = [names, *([format_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(names))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def format_cell(value: Any) -> str:
    """Numbers with four significant digits, truth as yes or no."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def mean_row(rows: Sequence[Row], **labels: str) -> dict[str, Any]:
    """The mean of each column that holds numbers in all rows, under these labels."""
    found: dict[str, Any] = dict(labels)
    for name in rows[0]:
        values = [row.get(name) for row in rows]
        if name not in found and all(isinstance(value, (int, float)) for value in values):
            found[name] = math.fsum(float(value) for value in values if value is not None) / len(rows)
    return found


class Report:
    """Results of one benchmark: printed as they come, and kept in a JSON file that is complete at every moment."""

    def __init__(self, path: str | Path | None, name: str, device: torch.device, settings: Mapping[str, Any]) -> None:
        self.path = OUTPUTS / f"{name}.json" if path is None else Path(path)
        self.content: dict[str, Any] = {
            "benchmark": name,
            "settings": {key: str(value) if isinstance(value, Path) else value for key, value in settings.items()},
            "environment": environment(device),
        }
        print(f"\n# {name}: " + ", ".join(f"{key} {value}" for key, value in self.content["environment"].items()))

    def save(self, key: str, value: Any) -> None:
        """Put a result into the file; an earlier one under the same key is replaced."""
        self.content[key] = value
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(self.path.name + ".part")
        partial.write_text(json.dumps(self.content, indent=1, default=float))
        partial.replace(self.path)

    def show(self, key: str, rows: Sequence[Row], columns: Sequence[str] | None = None) -> None:
        """Print a table and save its rows."""
        print("\n" + format_table(rows, columns), flush=True)
        self.save(key, list(rows))


def environment(device: torch.device) -> dict[str, Any]:
    """What the figures depend on beside the code."""
    is_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if is_gpu else f"CPU ({torch.get_num_threads()} threads)",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "matmul": torch.get_float32_matmul_precision(),
        "commit": _commit(),
    }


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()
