"""Run the code of a page of the guide: blocks in order, in one namespace, in a folder of its own.

In a page,
- ```python blocks are run;
- a ```text block behind one is what it prints: words must agree, numbers to within 20 % or .03;
- an ```output block behind one is shown only: what it says depends on the machine;
- lines of ```sh blocks that begin with `bayesmp` are run by the command line; the others are read only.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?|-?\.\d+")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page on which it begins."""

    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, e.g. "regression.md"."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = [Block(m.group(1), m.group(2), text.count("\n", 0, m.start()) + 1) for m in FENCE.finditer(text)]
    if text.count("\n```") + text.startswith("```") != 2 * len(found):
        raise ValueError(f"{page} has a block without a language, or one that does not end")
    return found


def run(page: str, folder: Path) -> dict[str, Any]:
    """Run a page in a folder, and return the names it leaves behind; an AssertionError if it prints something else."""
    names: dict[str, Any] = {"__name__": f"guide/{page}"}
    printed, before = "", Path.cwd()
    os.chdir(folder)
    try:
        for block in blocks(page):
            if block.language == "python":
                printed = _run_python(block, page, names)
            elif block.language == "sh":
                printed = "".join(_run_shell(line) for line in _commands(block.text))
            elif block.language == "text":
                check(block.text, printed, f"{page}, line {block.line}")
    finally:
        os.chdir(before)
    return names


def _run_python(block: Block, page: str, names: dict[str, Any]) -> str:
    code = "\n" * block.line + block.text  # so that errors name the line of the page
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, str(DOCS / page), "exec"), names)
    return out.getvalue()


def _commands(text: str) -> list[str]:
    return [line for line in text.replace("\\\n", " ").splitlines() if line.startswith("bayesmp ")]


def _run_shell(line: str) -> str:
    from typer.testing import CliRunner

    from bayesmp.cli import app

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
    if result.exit_code != 0:
        raise AssertionError(f"{line!r} failed:\n{result.output}")
    return result.output


def check(shown: str, printed: str, where: str) -> None:
    """Raise unless a page shows what was printed: the same words, and numbers that are near."""
    words = [re.sub(r"\s+", " ", NUMBER.sub("#", text)).strip() for text in (shown, printed)]
    near = [
        _near(float(a.replace(",", "")), float(b.replace(",", "")))
        for a, b in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=False)
    ]
    if words[0] != words[1] or not all(near):
        raise AssertionError(f"{where} shows\n{shown}\nbut the code prints\n{printed}")


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= max(0.03, 0.2 * max(abs(a), abs(b)))
