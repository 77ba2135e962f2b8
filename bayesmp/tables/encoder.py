"""The columns of a table as numbers to learn from, always in the way the training table asked for."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from bayesmp.basics import typed
from bayesmp.basics.typed import OneOf
from bayesmp.tables.dates import Calendar, Dates, read_as, read_dates, tell_day, tell_order
from bayesmp.tables.files import check_column
from bayesmp.tables.values import (
    MISSING,
    MOSTLY,
    Floats,
    Numbers,
    as_numbers,
    as_texts,
    has_codes,
    read_numbers,
    require_pandas,
    tell_reading,
)
from bayesmp.tables.words import TableError, plural, some_texts

if TYPE_CHECKING:
    from pandas import DataFrame, Series

DISTINCT = 0.9  # share of different texts from which a column names its rows instead of describing them
MAX_CATEGORIES = 50  # columns that one column of texts may become; rarer texts share one more
ROW_NAMES = {"id", "index", "row", "rowid", "row_id"}  # columns of these names that count rows are left out
OTHER = "(other)"  # the category of rare texts


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers.

    Attributes:
        name: in the table.
        kind: "number", "category", or "date", which times of day are, too.
        median: stands for missing numbers and dates.
        marks_missing: whether a further column says where a number or date was missing.
        categories: one column of 0 and 1 each; MISSING and OTHER may be among them.
        decimal: sign of formatted numbers, such as 1.234,50; None for plain ones.
        calendar: which numbers dates become; None for other kinds.
    """

    name: str
    kind: Annotated[str, OneOf(("number", "category", "date"))]
    median: float = 0.0
    marks_missing: bool = False
    categories: tuple[str, ...] = ()
    decimal: Annotated[str, OneOf((".", ","))] | None = None
    calendar: Calendar | None = None

    def __post_init__(self) -> None:
        if (self.kind == "date") != (self.calendar is not None):
            raise ValueError(f"column {self.name!r}: dates have a calendar, and nothing else has, got {self.calendar}")

    @property
    def words(self) -> tuple[str, str]:
        """What it holds, many and one."""
        return ("numbers", "number") if self.calendar is None else self.calendar.words

    @property
    def features(self) -> list[str]:
        """Names of the numbers it becomes."""
        if self.kind == "category":
            return [f"{self.name}={category}" for category in self.categories]
        parts = [""] if self.calendar is None else self.calendar.features
        return [self.name + part for part in (*parts, *([f" {MISSING}"] if self.marks_missing else []))]


@dataclass(frozen=True)
class EncoderHeader:
    """What `TableEncoder.to_json` says."""

    columns: list[Column]
    left_out: dict[str, str]


@dataclass(frozen=True, eq=False)
class Encoded:
    """A table as numbers (n, features).

    Attributes:
        x: the numbers.
        is_unseen: rows with a category, or with a gap in a column, that the training table did not have, or with a date
            that it did not cover, (n,).
        notes: sentences about what had to be done.
    """

    x: Floats
    is_unseen: NDArray[np.bool_]
    notes: list[str]


@dataclass(eq=False)
class TableEncoder:
    """Turns the columns of a table into numbers, always in the way the training table asked for.

    Numbers stay numbers; missing ones become the median, and a further column says where they were missing. Texts,
    booleans and categories become a column of 0 and 1 per category; missing ones are a category of their own. A
    category that training did not have is 0 in all of them. Numbers may be written as 1.234,50 or 30 %, and codes with
    zeros in front that repeat (01067) are categories. Dates become days since the first one, and where training covers
    enough of them the time of year, the time of day and the weekday (`Calendar`). Columns that are constant, empty, or
    different in each row (names, numbers of rows) are left out.

    Attributes:
        columns: those that are used, in the order of their features.
        left_out: others of the training table, and why.
        notes: sentences about what `fit` did.
    """

    columns: list[Column] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def features(self) -> list[str]:
        """Names of the numbers that a row becomes."""
        return [feature for column in self.columns for feature in column.features]

    def fit(self, frame: DataFrame, *, drop: Sequence[str] = (), categories: Sequence[str] = ()) -> TableEncoder:
        """Decide what each column of the training table means.

        Args:
            frame: without the target.
            drop: columns to leave out.
            categories: columns of numbers that are names of something, such as postal codes.
        """
        for name in (*drop, *categories):
            check_column(name, frame.columns)
        self.columns, self.left_out, self.notes = [], dict.fromkeys(drop, "as asked"), []
        for name in frame.columns:
            if name not in drop:
                self._add(name, frame[name], is_category=name in categories)
        if not self.columns:
            reasons = "; ".join(f"{name!r}: {why}" for name, why in self.left_out.items())
            raise TableError(f"no column is left to learn from ({reasons or 'there is only the target'})")
        return self

    def transform(self, frame: DataFrame) -> Encoded:
        """The numbers for a table with the same columns, in any order; others are ignored."""
        names = [column.name for column in self.columns]
        missing = [name for name in names if name not in frame.columns]
        if missing:
            free = [name for name in frame.columns if name not in names]
            near = {name: difflib.get_close_matches(name, free, n=1) for name in missing}
            hints = [f"is {found[0]!r} meant for {name!r}?" for name, found in near.items() if found]
            raise TableError(
                f"{plural(len(missing), 'column')} of the training table not found: "
                f"{', '.join(map(repr, missing))}" + (f"; {' '.join(hints)}" if hints else "")
            )
        parts, notes = [], []
        is_unseen = np.zeros(len(frame), dtype=bool)
        for column in self.columns:
            part, unseen, said = ENCODERS[column.kind](column, frame[column.name])
            is_unseen |= unseen
            parts.append(part)
            notes += said
        return Encoded(np.concatenate(parts, axis=1), is_unseen, notes)

    def to_json(self) -> dict[str, Any]:
        """What was decided, as JSON holds it."""
        return {"columns": [asdict(column) for column in self.columns], "left_out": self.left_out}

    @classmethod
    def of(cls, header: EncoderHeader) -> TableEncoder:
        """The encoder that was described."""
        return cls(header.columns, header.left_out)

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> TableEncoder:
        """The encoder that `to_json` described."""
        return cls.of(typed.read(EncoderHeader, saved, "encoder"))

    def _add(self, name: str, values: Series, *, is_category: bool) -> None:
        if values.isna().all():
            return self._leave_out(name, "all values are missing")
        dates = None if is_category else read_dates(values)
        if dates is not None:
            calendar = Calendar.of(dates)
            said = f"{calendar.words[0]}, taken as {calendar.tell()}{tell_order(values, dates)}"
            return self._add_measured(Column(name, "date", calendar=calendar), values, dates, said)
        numbers = None if is_category else read_numbers(values)
        if numbers is not None:
            said = "" if numbers.decimal is None else tell_reading(values, numbers.values)
            return self._add_measured(Column(name, "number", decimal=numbers.decimal), values, numbers, said)
        if not is_category and has_codes(values):
            self.notes.append(f"column {name!r} has codes with zeros in front: taken as categories")
        return self._add_categories(name, values)

    def _add_measured(self, column: Column, values: Series, found: Numbers | Dates, said: str) -> None:
        """A column of numbers, dates or times: what it holds, and how that was read."""
        name, (many, one) = column.name, column.words
        present = found.values[~np.isnan(found.values)]
        n_missing = len(values) - len(present)
        if n_missing == 0 and (present == present[0]).all():
            return self._leave_out(name, f"all values are {values.iloc[0] if column.calendar else f'{present[0]:g}'}")
        counts_rows = column.kind == "number" and (name.lower() in ROW_NAMES or name.startswith("Unnamed:"))
        if counts_rows and len(np.unique(present)) == len(values) and (present == np.round(present)).all():
            return self._leave_out(name, "it numbers the rows")
        if said:
            self.notes.append(f"column {name!r}: {said}")
        if found.others:
            self.notes.append(f"column {name!r} holds {many} but for {some_texts(found.others)}: taken as missing")
        if n_missing > 0:
            gaps = plural(n_missing, f"missing {one}")
            self.notes.append(f"column {name!r}: {gaps} replaced by the median, and marked")
        self.columns.append(replace(column, median=float(np.median(present)), marks_missing=n_missing > 0))

    def _add_categories(self, name: str, values: Series) -> None:
        texts = as_texts(values)
        present = texts[texts != MISSING]
        found, counts = np.unique(present, return_counts=True)
        has_missing = len(present) < len(texts)
        if len(found) == 1 and not has_missing:
            return self._leave_out(name, f"all values are {found[0]!r}")
        if len(found) > DISTINCT * len(present) and len(present) > 2:
            return self._leave_out(name, f"it names rows: {len(found):,} different texts in {len(present):,} rows")
        if len(found) > MAX_CATEGORIES:
            self.notes.append(
                f"column {name!r} has {len(found):,} categories: the {MAX_CATEGORIES} most frequent count, the others "
                "share one"
            )
            found = np.append(np.sort(found[np.argsort(-counts, kind="stable")[:MAX_CATEGORIES]]), OTHER)
        if has_missing:
            n_missing = len(texts) - len(present)
            self.notes.append(f"column {name!r}: {plural(n_missing, 'missing value')}, taken as a category")
            found = np.append(found, MISSING)
        self.columns.append(Column(name, "category", categories=tuple(map(str, found))))

    def _leave_out(self, name: str, why: str) -> None:
        self.left_out[name] = why
        self.notes.append(f"column {name!r} left out: {why}")


def _encode_measured(column: Column, values: Series) -> tuple[Floats, NDArray[np.bool_], list[str]]:
    """Numbers, dates or times; a gap is in the middle of what turns, and on no weekday."""
    calendar, (many, one) = column.calendar, column.words
    if calendar is None:
        found, bad = as_numbers(values, column.decimal)
    else:
        found, bad = read_as(values, calendar.is_clock, calendar.order)
    if len(values) - len(bad) < MOSTLY * len(values):
        how = "19:30" if calendar and calendar.is_clock else "2024-03-01"
        advice = f", which cannot be read as those were; write them as {how}" if calendar else ""
        raise TableError(f"column {column.name!r} held {many} in the training table, and now {some_texts(bad)}{advice}")
    is_missing = np.isnan(found)
    notes = [f"column {column.name!r}: {some_texts(bad)} taken as missing"] if bad else []
    filled = np.where(is_missing, column.median, found)
    x, unseen = filled[:, None], np.zeros(len(filled), dtype=bool)
    if calendar is not None:
        x, unseen = calendar.encode(filled), calendar.is_outside(filled) & ~is_missing
        x[is_missing, 1:] = 0.0
    if unseen.any():
        assert calendar is not None
        limits = f"{tell_day(calendar.first)} to {tell_day(calendar.last)}"
        notes.append(
            f"column {column.name!r}: {plural(int(unseen.sum()), 'row')} with dates or weekdays that training did not "
            f"cover ({limits})"
        )
    if column.marks_missing:
        return np.column_stack([x, is_missing]), unseen, notes
    if is_missing.any():
        gaps = plural(int(is_missing.sum()), f"missing {one}")
        notes.append(f"column {column.name!r}: {gaps} replaced by the median; there were none in training")
    return x, unseen | is_missing, notes  # what a gap means was not learned: these rows are guesses


def _encode_categories(column: Column, values: Series) -> tuple[Floats, NDArray[np.bool_], list[str]]:
    texts = as_texts(values)
    which = require_pandas().Index(column.categories, dtype=object).get_indexer(texts)
    if OTHER in column.categories:
        which[(which < 0) & (texts != MISSING)] = column.categories.index(OTHER)
    unseen = which < 0
    notes = []
    if unseen.any():
        kinds = sorted(set(texts[unseen]))
        shown = ", ".join(map(repr, kinds[:5])) + (", ..." if len(kinds) > 5 else "")
        notes.append(
            f"column {column.name!r}: {plural(int(unseen.sum()), 'row')} with categories that training did not have "
            f"({shown})"
        )
    return (which[:, None] == np.arange(len(column.categories))).astype(np.float64), unseen, notes


ENCODERS = {"number": _encode_measured, "date": _encode_measured, "category": _encode_categories}
