"""How far does a fit walk through the house? Files of the package whose code runs, and how often it goes from one file
to another, in `MPRegressor.fit` of 120 rows and two epochs.

Whoever wants to follow a fit has to open so many files, and to turn so many pages. Imports are not counted: a first fit
comes before.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import bayesmp as bmp
from benchmarks.options import begin, new_parser

PACKAGE = str(Path(bmp.__file__).parent)
ROWS, EPOCHS = 120, 2


class Walk:
    """Counts, while it is watching, the files in which functions run, and changes between them."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.turns: Counter[tuple[str, str]] = Counter()
        self._last = ""

    def watch(self, do: Callable[[], Any]) -> None:
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            do()
        finally:
            sys.setprofile(before)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(PACKAGE):
            return
        name = os.path.relpath(name, PACKAGE)
        self.calls[name] += 1
        if self._last and name != self._last:
            self.turns[self._last, name] += 1
        self._last = name


def walk_of_fit() -> Walk:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 5))
    y = x[:, 0] + np.sin(x[:, 1]) + 0.1 * rng.normal(size=ROWS)
    walk = Walk()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two epochs are few
        bmp.MPRegressor(epochs=EPOCHS, random_state=0).fit(x, y)
        walk.watch(lambda: bmp.MPRegressor(epochs=EPOCHS, random_state=0).fit(x, y))
    return walk


def main(argv: Sequence[str] | None = None) -> None:
    options = new_parser("walk", __doc__).parse_args(argv)
    _, report = begin("walk", options)
    walk = walk_of_fit()
    rows = [{"files": len(walk.calls), "changes of file": walk.turns.total(), "calls": walk.calls.total()}]
    report.show("a fit", rows)
    report.show("calls in each file", [{"file": name, "calls": count} for name, count in walk.calls.most_common()])


if __name__ == "__main__":
    main()
