"""The columns of a table as numbers to learn from, always in the way the training table asked for."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from bayesmp.basics import checks, typed
from bayesmp.basics.telling import warn_user
from bayesmp.basics.typed import OneOf
from bayesmp.estimators.columns.dates import Calendar, Dates, read_as, read_dates, tell_day, tell_order
from bayesmp.estimators.columns.sentinels import tell_sentinels
from bayesmp.estimators.columns.units import MOSTLY, tell_several
from bayesmp.estimators.columns.values import (
    MISSING,
    Floats,
    Numbers,
    as_frame,
    as_numbers,
    as_texts,
    has_codes,
    is_named,
    read_numbers,
    require_pandas,
    tell_reading,
)
from bayesmp.estimators.columns.words import TableError, check_column, plural, some_texts

if TYPE_CHECKING:
    from pandas import DataFrame, Series

DISTINCT = 0.9  # share of different texts from which a column names its rows instead of describing them
MAX_CATEGORIES = 50  # columns that one column of texts may become; rarer texts share one more
FEWEST, MANY_ROWS = 2, 20  # rows that a category must be in; of a column with so many values
SAID = 5  # sentences of a warning
ROW_NAMES = {"id", "index", "row", "rowid", "row_id"}  # columns of these names that count rows are left out
OTHER = "(other)"  # the category of rare texts


class TableWarning(UserWarning):
    """What had to be done with the columns of a table, where that may not be what is wanted."""


def warn_of(notes: Sequence[str]) -> None:
    """One warning with these sentences, if there are any, at the line that called this library or scikit-learn."""
    if notes:
        more = f"; and {len(notes) - SAID:,} more" if len(notes) > SAID else ""
        warn_user("; ".join(notes[:SAID]) + more, TableWarning)


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers.

    Attributes:
        name: in the table.
        kind: "number", "category", or "date", which times of day are, too.
        median: stands for missing numbers and dates.
        marks_missing: whether a further column says where a number or date was missing.
        categories: one column of 0 and 1 each; MISSING and OTHER may be among them.
        pooled: marks of the rare texts that OTHER stands for, which may be names of people.
        decimal: sign of formatted numbers, such as 1.234,50; None for plain ones.
        unit: of numbers in texts, such as 3750 g; None for others.
        gaps: marks of the texts that stood for missing numbers or dates, such as "?".
        calendar: which numbers dates become; None for other kinds.
    """

    name: str
    kind: Annotated[str, OneOf(("number", "category", "date"))]
    median: float = 0.0
    marks_missing: bool = False
    categories: tuple[str, ...] = ()
    pooled: tuple[str, ...] = ()
    decimal: Annotated[str, OneOf((".", ","))] | None = None
    unit: str | None = None
    calendar: Calendar | None = None
    gaps: tuple[str, ...] = ()

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


class TableEncoder(TransformerMixin, BaseEstimator):
    """Turns the columns of a table into numbers, always in the way the training table asked for: a transformer of
    scikit-learn. `MPRegressor`, `MPClassifier` and `bayesmp fit` use it where a table is not numbers alone.

    Numbers stay numbers; missing ones become the median, and a further column says where they were missing. Texts,
    booleans and categories become a column of 0 and 1 per category; missing ones are a category of their own. Rare
    categories share one, and so do those that training did not have, or these are 0 in all of them. Numbers may be
    written as 1.234,50 or 30 % or 3750 g, and codes with zeros in front that repeat (01067) are categories. Dates
    become days since the first one, and where training covers enough of them the time of year, the time of day and the
    weekday (`Calendar`). Columns that are constant, empty, or different in each row (names, numbers of rows) are left
    out. Numbers such as -999 that may stand for missing ones are told of, and stay.

    Args:
        drop: columns to leave out.
        categories: columns of numbers that are names of something, such as postal codes.

    Attributes:
        columns_: those that are used, in the order of their features.
        left_out_: others of the training table, and why.
        notes_: sentences about what `fit` did. It warns (TableWarning) of those that one may not want.
        n_features_in_, feature_names_in_: the columns seen in `fit`.
    """

    columns_: list[Column]
    left_out_: dict[str, str]
    notes_: list[str]

    def __init__(self, *, drop: Sequence[str] = (), categories: Sequence[str] = ()) -> None:
        self.drop = drop
        self.categories = categories

    def fit(self, X: Any, y: Any = None) -> TableEncoder:
        """Decide what each column of the training table means.

        Args:
            X: a data frame of pandas or polars, or an array (n, d), whose columns are named x0, x1, ...
            y: not used.
        """
        warn_of(self.decide(self._check(X, reset=True)))
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Floats:
        """`fit`, and the numbers (n, features) of the training table."""
        frame = self._check(X, reset=True)
        warn_of(self.decide(frame))
        return self.encode(frame).x

    def transform(self, X: Any) -> Floats:
        """The numbers (n, features) for a table with the columns of the training table.

        A TableWarning tells of what training did not have: categories, gaps, texts between numbers, later dates.
        """
        check_is_fitted(self)
        encoded = self.encode(self._check(X, reset=False))
        warn_of(encoded.notes)
        return encoded.x

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Names of the numbers that a row becomes, such as "size" and "town=Ulm"."""
        check_is_fitted(self)
        return np.array([feature for column in self.columns_ for feature in column.features], dtype=object)

    def decide(self, frame: DataFrame) -> list[str]:
        """`fit` for a data frame with texts as names; the sentences to warn of, which are those of `notes_` that one
        may not want.
        """
        if len(frame) < 2:
            raise TableError("one row (n_samples = 1) does not tell what the columns mean: at least two are needed")
        for name in (*self.drop, *self.categories):
            check_column(name, frame.columns)
        self.columns_, self.left_out_, self.notes_ = [], dict.fromkeys(self.drop, "as asked"), []
        doubts: list[str] = []
        for name in frame.columns:
            if name not in self.drop:
                doubts += self._add(name, frame[name], is_category=name in self.categories)
        if not self.columns_:
            reasons = "; ".join(f"{name!r}: {why}" for name, why in self.left_out_.items())
            raise TableError(f"no column is left to learn from ({reasons or 'there is only the target'})")
        return doubts

    def encode(self, frame: DataFrame) -> Encoded:
        """`transform` for a data frame that has the same columns, in any order; others are ignored."""
        names = [column.name for column in self.columns_]
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
        for column in self.columns_:
            part, unseen, said = ENCODERS[column.kind](column, frame[column.name])
            is_unseen |= unseen
            parts.append(part)
            notes += said
        return Encoded(np.concatenate(parts, axis=1), is_unseen, notes)

    def to_json(self) -> dict[str, Any]:
        """What was decided, as JSON holds it."""
        return {"columns": [asdict(column) for column in self.columns_], "left_out": self.left_out_}

    @classmethod
    def of(cls, header: EncoderHeader) -> TableEncoder:
        """The encoder that was described."""
        found = cls()
        found.columns_, found.left_out_, found.notes_ = header.columns, header.left_out, []
        return found

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> TableEncoder:
        """The encoder that `to_json` described."""
        return cls.of(typed.read(EncoderHeader, saved, "encoder"))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def _check(self, X: Any, *, reset: bool) -> DataFrame:
        """X as a data frame, with the columns of `fit`."""
        checks.check_collected(X, "X")
        if not checks.is_frame(X):
            X = check_array(X, dtype=None, ensure_all_finite=False)
        validate_data(self, X, skip_check_array=True, reset=reset)
        return as_frame(X, getattr(self, "feature_names_in_", None))

    def _add(self, name: str, values: Series, *, is_category: bool) -> list[str]:
        """Decide about one column; the sentences to warn of."""
        if values.isna().all():
            return self._leave_out(name, "all values are missing")
        dates = None if is_category else read_dates(values)
        if dates is not None:
            calendar = Calendar.of(dates)
            said = f"{calendar.words[0]}, taken as {calendar.tell()}{tell_order(values, dates)}"
            return self._add_measured(Column(name, "date", calendar=calendar), values, dates, said)
        numbers = None if is_category else read_numbers(values)
        if numbers is not None:
            column = Column(name, "number", decimal=numbers.decimal, unit=numbers.unit)
            is_formatted = numbers.decimal is not None or numbers.unit is not None
            said = tell_reading(values, numbers.values, numbers.unit) if is_formatted else ""
            return self._add_measured(column, values, numbers, said)
        doubts = []
        if not is_category and not is_named(values):
            if has_codes(values):
                self._note(f"column {name!r} has codes with zeros in front: taken as categories")
            elif said := tell_several(values):
                doubts = self._note(f"column {name!r} holds {said}, taken as texts: write them in one unit")
        return doubts + self._add_categories(name, values)

    def _add_measured(self, column: Column, values: Series, found: Numbers | Dates, said: str) -> list[str]:
        """A column of numbers, dates or times: what it holds, and how that was read."""
        name, (many, one) = column.name, column.words
        present = found.values[~np.isnan(found.values)]
        n_missing = len(values) - len(present)
        if n_missing == 0 and (present == present[0]).all():
            return self._leave_out(name, f"all values are {values.iloc[0] if column.calendar else f'{present[0]:g}'}")
        counts_rows = column.kind == "number" and (name.lower() in ROW_NAMES or name.startswith("Unnamed:"))
        if counts_rows and len(np.unique(present)) == len(values) and (present == np.round(present)).all():
            return self._leave_out(name, "it numbers the rows")
        doubts = []
        if said:
            told = self._note(f"column {name!r}: {said}")
            doubts += told if column.kind == "number" else []
        if found.others:
            doubts += self._note(f"column {name!r} holds {many} but for {some_texts(found.others)}: taken as missing")
        if column.kind == "number" and (told_of := tell_sentinels(f"column {name!r}", present)):
            doubts += self._note(told_of)
        if n_missing > 0:
            missing = plural(n_missing, f"missing {one}")
            self._note(f"column {name!r}: {missing} replaced by the median, and marked")
        gaps = tuple(sorted({_mark(text) for text in found.others}))
        self.columns_.append(replace(column, median=float(np.median(present)), marks_missing=n_missing > 0, gaps=gaps))
        return doubts

    def _add_categories(self, name: str, values: Series) -> list[str]:
        texts = as_texts(values)
        present = texts[texts != MISSING]
        found, counts = np.unique(present, return_counts=True)
        has_missing = len(present) < len(texts)
        if len(found) == 1 and not has_missing:
            return self._leave_out(name, f"all values are {found[0]!r}")
        if len(found) > DISTINCT * len(present) and len(present) > 2:
            return self._leave_out(name, f"it names rows: {len(found):,} different texts in {len(present):,} rows")
        n_frequent = int((counts >= FEWEST).sum()) if len(present) >= MANY_ROWS else len(found)
        n_kept = min(n_frequent, MAX_CATEGORIES)
        pooled: tuple[str, ...] = ()
        if n_kept < len(found):
            self._note(
                f"column {name!r} has {len(found):,} categories: the {n_kept} most frequent count, the others share one"
            )
            order = np.argsort(-counts, kind="stable")
            pooled = tuple(sorted(map(_mark, found[order[n_kept:]])))
            found = np.append(np.sort(found[order[:n_kept]]), OTHER)
        if has_missing:
            n_missing = len(texts) - len(present)
            self._note(f"column {name!r}: {plural(n_missing, 'missing value')}, taken as a category")
            found = np.append(found, MISSING)
        self.columns_.append(Column(name, "category", categories=tuple(map(str, found)), pooled=pooled))
        return []

    def _leave_out(self, name: str, why: str) -> list[str]:
        self.left_out_[name] = why
        return self._note(f"column {name!r} left out: {why}")

    def _note(self, sentence: str) -> list[str]:
        self.notes_.append(sentence)
        return [sentence]


def _encode_measured(column: Column, values: Series) -> tuple[Floats, NDArray[np.bool_], list[str]]:
    """Numbers, dates or times; a gap is in the middle of what turns, and on no weekday."""
    calendar, (many, one) = column.calendar, column.words
    if calendar is None:
        found, bad = as_numbers(values, column.decimal, column.unit)
    else:
        found, bad = read_as(values, calendar.is_clock, calendar.order)
    known = set(column.gaps)
    bad = [text for text in bad if _mark(text) not in known]
    if len(values) - len(bad) < MOSTLY * len(values):
        how = "19:30" if calendar and calendar.is_clock else "2024-03-01"
        advice = f", which cannot be read as those were; write them as {how}" if calendar else ""
        advice = f", without the unit {column.unit!r} that those had" if column.unit else advice
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
    new, notes = sorted(set(texts[which < 0])), []
    if OTHER in column.categories:
        which[(which < 0) & (texts != MISSING)] = column.categories.index(OTHER)
        pooled = set(column.pooled)
        new = [text for text in new if _mark(text) not in pooled]
    if new:
        shown = ", ".join(map(repr, new[:5])) + (", ..." if len(new) > 5 else "")
        rows = plural(int(np.isin(texts, new).sum()), "row")
        taken = f", taken as {OTHER!r}" if OTHER in column.categories and new != [MISSING] else ""
        notes.append(f"column {column.name!r}: {rows} with categories that training did not have ({shown}){taken}")
    return (which[:, None] == np.arange(len(column.categories))).astype(np.float64), which < 0, notes


def _mark(text: str) -> str:
    """A text, to be known again and not to be read."""
    return hashlib.blake2b(text.strip().encode(errors="surrogatepass"), digest_size=6).hexdigest()


ENCODERS = {"number": _encode_measured, "date": _encode_measured, "category": _encode_categories}
