"""Tables from files, and their columns as numbers that an estimator can learn from.

A CSV file is read as text, and what a column means is decided here, once, by the training table: so a code such as
"007" keeps its zeros, and a later file cannot turn a column of texts into numbers by chance. Pandas is imported when it
is needed: `pip install bayesmp[tables]`.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Floats: TypeAlias = NDArray[np.float64]

ENDINGS = (".csv", ".parquet")
MOSTLY = 0.8  # share of a text column that must be numbers for the rest to count as missing
DISTINCT = 0.9  # share of different texts from which a column names its rows instead of describing them
MAX_CATEGORIES = 50  # columns that one column of texts may become; rarer texts share one more
MAX_WHOLE_CLASSES = 10  # whole numbers with more different values are a quantity
MIN_REPEATS = 5  # and so are those that repeat less often than this, on average
ROW_NAMES = {"id", "index", "row", "rowid", "row_id"}  # columns of these names that count rows are left out
LARGEST = 1e100  # squares of larger numbers overflow
MISSING, OTHER = "(missing)", "(other)"  # categories of our own
DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]\d{1,2}:\d{2}.*)?")
DRESSED = re.compile(r"[+-]?[$€£¥]?\s?[+-]?\d[\d.,' ]*[$€£¥%]?")  # $1,200 or 12,5 or 30 %
LEADING_ZERO = re.compile(r"[+-]?0\d+")


class TableError(ValueError):
    """A table that cannot be used as it is; the message says what to do."""


# --- files -----------------------------------------------------------------------------------------------------------


def require_pandas() -> Any:
    """Pandas, or an ImportError that says what to install."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("tables need pandas: pip install 'bayesmp[tables]'") from error
    return pandas


def check_ending(path: Path) -> None:
    """Raise unless the ending says how to read or write the file."""
    if path.suffix.lower() not in ENDINGS:
        raise TableError(f"{str(path)!r} must end in .csv or .parquet, so that it is clear what it is")


def read_table(path: Path) -> DataFrame:
    """The table in a CSV file (UTF-8; commas, semicolons or tabs; names in the first line) or a Parquet file."""
    pandas = require_pandas()
    check_ending(path)
    if not path.is_file():
        others = [other.name for other in path.parent.glob(f"*{path.suffix}")]
        near = difflib.get_close_matches(path.name, others, n=1, cutoff=0.75)
        raise TableError(f"there is no file {str(path)!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    frame = _read_parquet(pandas, path) if path.suffix.lower() == ".parquet" else _read_csv(pandas, path)
    frame.columns = [str(name).strip() for name in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice) > 0:
        raise TableError(f"{path.name} has two columns named {twice[0]!r}; rename one of them")
    if len(frame) == 0:
        raise TableError(f"{path.name} has names of columns but no rows")
    return frame.reset_index(drop=True)


def write_table(frame: DataFrame, path: Path) -> None:
    """Write a CSV or Parquet file, by its ending."""
    if path.suffix.lower() == ".parquet":
        with _needs_pyarrow():
            frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)


def _read_csv(pandas: Any, path: Path) -> DataFrame:
    try:
        with open(path, encoding="utf-8-sig", newline=None) as file:
            first = next((line for line in file if line.strip()), "")
            separator = max(",;\t", key=first.count)
        options = {"sep": separator, "dtype": str, "encoding": "utf-8-sig", "skipinitialspace": True}
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # of rows longer than the first line
            names = pandas.read_csv(path, header=None, nrows=1, **options).iloc[0].dropna().tolist()
            frame: DataFrame = pandas.read_csv(path, index_col=False, **options)
    except UnicodeDecodeError as error:
        raise TableError(f"{path.name} is not UTF-8 text ({error}); save it as UTF-8") from error
    except pandas.errors.EmptyDataError as error:
        raise TableError(f"{path.name} is empty") from error
    except (pandas.errors.ParserError, pandas.errors.ParserWarning) as error:
        raise TableError(f"{path.name} is not a proper CSV file: {str(error).strip()}") from error
    for name in names:
        if names.count(name) > 1:  # pandas would number them
            raise TableError(f"{path.name} has two columns named {name!r}; rename one of them")
    return frame


def _read_parquet(pandas: Any, path: Path) -> DataFrame:
    with _needs_pyarrow():
        try:
            frame: DataFrame = pandas.read_parquet(path, engine="pyarrow")
        except (OSError, ValueError) as error:
            raise TableError(f"{path.name} is not a proper Parquet file: {error}") from error
    for name in frame.columns:
        if frame[name].dtype == object:  # decimals, days, booleans with gaps: as a CSV file would have them
            frame[name] = frame[name].map(_as_text, na_action="ignore")
    return frame


@contextmanager
def _needs_pyarrow() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ImportError(
            "Parquet files need pyarrow: pip install 'bayesmp[parquet]', or save the table as CSV"
        ) from error


# --- columns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers.

    Attributes:
        name: in the table.
        kind: "number" or "category".
        median: stands for missing numbers.
        marks_missing: whether a further column says where a number was missing.
        categories: one column of 0 and 1 each; MISSING and OTHER may be among them.
    """

    name: str
    kind: str
    median: float = 0.0
    marks_missing: bool = False
    categories: tuple[str, ...] = ()

    @property
    def features(self) -> list[str]:
        """Names of the numbers it becomes."""
        if self.kind == "category":
            return [f"{self.name}={category}" for category in self.categories]
        return [self.name, f"{self.name} {MISSING}"] if self.marks_missing else [self.name]


@dataclass(frozen=True, eq=False)
class Encoded:
    """A table as numbers (n, features).

    Attributes:
        x: the numbers.
        is_unseen: rows with a category that the training table did not have, (n,).
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
    category that training did not have is 0 in all of them. Columns that are constant, empty, or different in each row
    (names, numbers of rows) are left out.

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
            if column.kind == "number":
                part, said = _encode_numbers(column, frame[column.name])
            else:
                part, unseen, said = _encode_categories(column, frame[column.name])
                is_unseen |= unseen
            parts.append(part)
            notes += said
        return Encoded(np.concatenate(parts, axis=1), is_unseen, notes)

    def to_json(self) -> dict[str, Any]:
        """What was decided, as JSON holds it."""
        return {"columns": [asdict(column) for column in self.columns], "left_out": self.left_out}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> TableEncoder:
        """The encoder that `to_json` described."""
        columns = [Column(**{**part, "categories": tuple(part["categories"])}) for part in saved["columns"]]
        return cls(columns, dict(saved["left_out"]))

    def _add(self, name: str, values: Series, *, is_category: bool) -> None:
        n_missing = int(values.isna().sum())
        if n_missing == len(values):
            return self._leave_out(name, "all values are missing")
        if is_category or _is_categorical(values):
            return self._add_categories(name, values)
        numbers, bad = as_numbers(values)
        if len(bad) > 0:
            self.notes.append(f"column {name!r} holds numbers but for {_some(bad)}: taken as missing")
        present = numbers[~np.isnan(numbers)]
        if (present == present[0]).all() and len(present) == len(values):
            return self._leave_out(name, f"all values are {present[0]:g}")
        counts_rows = name.lower() in ROW_NAMES or name.startswith("Unnamed:")
        if counts_rows and len(np.unique(present)) == len(values) and (present == np.round(present)).all():
            return self._leave_out(name, "it numbers the rows")
        has_missing = len(present) < len(values)
        if has_missing:
            n_missing = len(values) - len(present)
            self.notes.append(
                f"column {name!r}: {plural(n_missing, 'missing number')} replaced by the median, and marked"
            )
        self.columns.append(Column(name, "number", float(np.median(present)), has_missing))

    def _add_categories(self, name: str, values: Series) -> None:
        texts = _as_texts(values)
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


def check_column(name: str, columns: Iterable[str]) -> None:
    """Raise unless there is a column of this name; names that are nearly the same are suggested."""
    known = list(columns)
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=3) or [c for c in known if c.lower() == name.lower()]
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(map(repr, known[:20]))}"
    raise TableError(f"there is no column {name!r}; {hint}")


def as_numbers(values: Series) -> tuple[Floats, list[str]]:
    """The numbers of a column, NaN where there is none, and the texts that stood there instead."""
    pandas = require_pandas()
    numbers = pandas.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    too_large = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(too_large) > 0:
        raise TableError(
            f"column {values.name!r} has numbers beyond {LARGEST:g}, first {numbers[too_large[0]]:g} in row "
            f"{too_large[0] + 1}; remove them, or change the unit"
        )
    is_bad = np.isnan(numbers) & values.notna().to_numpy()
    return numbers, [str(value) for value in values[is_bad]]


def refuse_dates(values: Series) -> None:
    """Raise if the column holds dates or times."""
    present = values.dropna()
    is_time = values.dtype.kind in "mM"
    if len(present) == 0 or not (is_time or _is_text(values)):
        return
    first = str(present.iloc[0])
    if is_time or all(DATE.fullmatch(str(value)) for value in present):
        raise TableError(
            f"column {values.name!r} holds dates or times ({first}); turn it into numbers first, e.g. the year, the "
            "month, or days since some day, or leave it out with --drop"
        )


def refuse_dressed_numbers(values: Series) -> None:
    """Raise if all texts of a column look like numbers, but with commas or signs that nothing here can read."""
    present = values.dropna()
    if all(DRESSED.fullmatch(str(value).strip()) for value in present):
        dressed = next((value for value in present if not str(value).strip().lstrip("-").isdigit()), present.iloc[0])
        raise TableError(
            f"column {values.name!r} seems to hold numbers with commas or signs ({dressed}); write them as "
            "plain numbers such as 1234.5, or leave it out with --drop unless it is the target"
        )


def _is_text(values: Series) -> bool:
    return values.dtype.kind not in "biufcmM" and not hasattr(values.dtype, "categories")


def _is_named(values: Series) -> bool:
    """Whether the values are booleans or categories by their type."""
    return not _is_text(values) and values.dtype.kind not in "iufmM"


def _is_categorical(values: Series) -> bool:
    """Whether the column is to become categories; dates are refused."""
    refuse_dates(values)
    if not _is_text(values):
        return _is_named(values)
    numbers, _ = as_numbers(values)
    if float((~np.isnan(numbers)).sum()) >= MOSTLY * float(values.notna().sum()):
        return False
    refuse_dressed_numbers(values)
    return True


def _as_texts(values: Series) -> NDArray[np.object_]:
    """Each value as text without blanks around it; booleans as True and False, however they are written."""
    known = values.notna().to_numpy()
    texts = np.full(len(values), MISSING, dtype=object)
    texts[known] = [_as_text(value) for value in values[known]]
    return texts


def _as_text(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    text = str(value).strip()
    return text.capitalize() if text.lower() in ("true", "false") else text


def _encode_numbers(column: Column, values: Series) -> tuple[Floats, list[str]]:
    numbers, bad = as_numbers(values)
    if len(bad) > (1.0 - MOSTLY) * len(values):
        raise TableError(f"column {column.name!r} held numbers in the training table, and now {_some(bad)}")
    is_missing = np.isnan(numbers)
    notes = [f"column {column.name!r}: {_some(bad)} taken as missing"] if bad else []
    if is_missing.any() and not column.marks_missing:
        notes.append(
            f"column {column.name!r}: {plural(int(is_missing.sum()), 'missing number')} replaced by the median; there "
            "were none in training"
        )
    filled = np.where(is_missing, column.median, numbers)
    return np.stack([filled, is_missing] if column.marks_missing else [filled], axis=1), notes


def _encode_categories(column: Column, values: Series) -> tuple[Floats, NDArray[np.bool_], list[str]]:
    texts = _as_texts(values)
    categories = np.array(column.categories, dtype=object)
    hits = texts[:, None] == categories
    if OTHER in column.categories:
        is_other = ~hits.any(1) & (texts != MISSING)
        hits[:, column.categories.index(OTHER)] |= is_other
    unseen = ~hits.any(1)
    notes = []
    if unseen.any():
        kinds = sorted(set(texts[unseen]))
        shown = ", ".join(map(repr, kinds[:5])) + (", ..." if len(kinds) > 5 else "")
        notes.append(
            f"column {column.name!r}: {plural(int(unseen.sum()), 'row')} with categories that training did not have "
            f"({shown})"
        )
    return hits.astype(np.float64), unseen, notes


def _some(texts: Sequence[str]) -> str:
    kinds = list(dict.fromkeys(texts))
    return f"{plural(len(texts), 'text')} such as {kinds[0]!r}"


def plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


# --- targets ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What is to be predicted.

    Attributes:
        name: of its column.
        task: "regression" or "classification".
        is_whole: whether classes are whole numbers; else they are texts.
    """

    name: str
    task: str
    is_whole: bool = False

    @classmethod
    def decide(cls, values: Series, task: str | None = None) -> tuple[Target, str]:
        """The target that a column of the training table is, and a sentence that says why.

        Texts, booleans and a few different whole numbers are classes, other numbers are not; `task` overrides it.
        """
        name = str(values.name)
        if values.isna().all():
            raise TableError(f"the target {name!r} has no values")
        if task != "classification":
            refuse_dates(values)
        numbers, bad = (np.empty(0), []) if _is_named(values) else as_numbers(values)
        present = numbers[~np.isnan(numbers)]
        is_number = len(present) > 0 and len(present) >= MOSTLY * (len(present) + len(bad))
        if not is_number and bad and task != "classification":
            refuse_dressed_numbers(values)
        n_kinds = len(np.unique(present)) if is_number else values.nunique()
        is_whole = is_number and bool((present == np.round(present)).all())
        few = is_whole and n_kinds <= MAX_WHOLE_CLASSES and len(present) >= MIN_REPEATS * n_kinds
        has_zeros = _is_text(values) and any(LEADING_ZERO.fullmatch(str(value)) for value in values.dropna())
        if few and task != "regression" and (bad or has_zeros):  # names of classes, such as 1, 2, x, or 01, 02
            is_number, is_whole, n_kinds = False, False, values.nunique()
        chosen = task or ("classification" if not is_number or few else "regression")
        first, n_known = values.dropna().iloc[0], int(values.notna().sum())
        if chosen == "regression" and not is_number:
            raise TableError(f"the target {name!r} is not numbers ({first}); a regression needs them")
        if n_kinds < 2:
            raise TableError(f"the target {name!r} is {first} in all rows: there is nothing to learn")
        if chosen == "classification" and n_kinds > 0.5 * n_known:
            remedy = ": use --task regression" if is_number else ""
            raise TableError(
                f"the target {name!r} has {n_kinds:,} different values in {n_known:,} rows; classes must repeat{remedy}"
            )
        target = cls(name, chosen, chosen == "classification" and is_whole)
        kind = "whole numbers" if is_whole else "numbers" if is_number else "values"
        why = f"{n_kinds:,} different {kind}, taken as {'classes' if chosen == 'classification' else 'a quantity'}"
        if task is not None:
            why += " (as asked)"
        elif is_whole and n_kinds <= MAX_CATEGORIES:
            other = "regression" if chosen == "classification" else "classification"
            why += f" (--task {other} would change that)"
        if bad and (chosen == "regression" or is_whole):
            why += f"; {_some(bad)} taken as missing"
        return target, why

    def read(self, values: Series) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The targets of a table, and for which rows they are known."""
        if self.task == "classification" and not self.is_whole:
            texts = _as_texts(values)
            return texts.astype(str), texts != MISSING
        numbers, _ = as_numbers(values)
        known = ~np.isnan(numbers)
        if not self.is_whole:
            return numbers, known
        known &= np.nan_to_num(numbers) == np.round(np.nan_to_num(numbers))
        return np.where(known, numbers, 0.0).astype(np.int64), known
