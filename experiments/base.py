"""What an experiment is: a plan of pieces, a way to compute one of them, tables and pictures of all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Record = dict[str, Any]


class UnavailableError(Exception):
    """A piece cannot be computed here: a package is missing or does not work. The others can, and the table says so."""


@dataclass(frozen=True)
class Options:
    """What was asked for, and where things are.

    Attributes:
        quick: the small version, for tests and for a first look.
        seeds: how many; None: as many as the experiment thinks right.
        parts: the parts of the experiment to run; empty: all.
        data_dir: folder of the data sets; None: $BAYESMP_DATA, else ~/.cache/bayesmp.
        device: of torch. Where a piece was computed is written into it, but does not make it another piece.
        scratch: a file in which the piece that is computed may keep what it has so far; removed when it is done.
    """

    quick: bool = False
    seeds: int | None = None
    parts: tuple[str, ...] = ()
    data_dir: Path | None = None
    device: str = "cpu"
    scratch: Path | None = None


@dataclass(frozen=True)
class Piece:
    """The smallest thing that is computed and kept: one seed, one split or one method.

    Attributes:
        label: for people.
        parameters: all that its result depends on, as JSON has it. Other parameters are another piece, so results of
            other settings are never mixed in.
        cost: roughly how long it takes, relative to the others; long ones begin first.
    """

    label: str
    parameters: Mapping[str, Any]
    cost: float = 1.0


@dataclass(frozen=True, eq=False)
class Result:
    """A piece that was computed: numbers, arrays, how long it took, and with what it was made."""

    piece: Piece
    numbers: Record
    arrays: Mapping[str, NDArray[Any]]
    seconds: float
    made: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        """A parameter, a number or an array, by its name."""
        for part in (self.piece.parameters, self.numbers, self.arrays):
            if name in part:
                return part[name]
        raise KeyError(f"the piece {self.piece.label!r} has no {name!r}")


@dataclass(frozen=True)
class Table:
    """Rows under a title; the note says what columns mean and where other people's numbers come from."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A file in the folder of the results, and what it shows."""

    file: str
    caption: str


class Experiment(ABC):
    """One question, asked of the library and of others.

    `compute` needs torch and numpy, and what a method itself needs; `draw` needs matplotlib. Both may run on different
    machines: pieces are files.

    Attributes:
        name: as on the command line.
        title: one line.
        about: what is done, in a few sentences, for the report.
        version: goes up when the same parameters would give another result, so that old pieces are not used.
        parts: names that --parts takes; empty: it is not divided.
        seeds: how many if not asked for otherwise; quick_seeds: in the quick version.
        uses_seeds: whether --seeds means anything here.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    version: ClassVar[int] = 1
    parts: ClassVar[tuple[str, ...]] = ()
    seeds: ClassVar[int] = 1
    quick_seeds: ClassVar[int] = 1
    uses_seeds: ClassVar[bool] = True

    @abstractmethod
    def pieces(self, options: Options) -> list[Piece]:
        """What is to be computed."""

    @abstractmethod
    def compute(self, parameters: Mapping[str, Any], options: Options) -> Record:
        """Compute one piece: numbers, texts and lists by name; numpy arrays are kept as such. Of the options it may
        look at where things are (data_dir, device, scratch), not at what was asked for.
        """

    @abstractmethod
    def summarise(self, results: Sequence[Result]) -> list[Table]:
        """Tables of the pieces that are there, in the order of the plan; perhaps not all of it."""

    def draw(self, results: Sequence[Result], folder: Path) -> list[Picture]:
        """Write pictures into the folder; matplotlib is there."""
        return []

    def n_seeds(self, options: Options) -> int:
        if options.seeds is not None:
            return options.seeds
        return self.quick_seeds if options.quick else self.seeds

    def chosen_parts(self, options: Options) -> tuple[str, ...]:
        """The parts asked for, all if none; a ValueError for others."""
        unknown = [part for part in options.parts if part not in self.parts]
        if unknown:
            known = f"its parts are {', '.join(self.parts)}" if self.parts else "it has no parts"
            raise ValueError(f"{self.name} knows no part {', '.join(map(repr, unknown))}; {known}")
        return options.parts or self.parts


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and its standard error where there are several values."""
    found = np.asarray(values, dtype=np.float64)
    error = float(found.std(ddof=1) / np.sqrt(len(found))) if len(found) > 1 else None
    return float(found.mean()), error


def with_error(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard error as text."""
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f}" if error is None else f"{mean:.{digits}f} ± {error:.{digits}f}"


def in_plain_words(state: str) -> str:
    """A state of training as people say it: pieces count "1 epochs"."""
    return state.replace(", 1 epochs", ", 1 epoch")


def select(results: Sequence[Result], **wanted: Any) -> list[Result]:
    """Those whose parameters have these values."""
    return [
        result
        for result in results
        if all(result.piece.parameters.get(name) == value for name, value in wanted.items())
    ]
