"""Tables from CSV and Parquet files, and back. Pandas is imported when it is needed: `pip install bayesmp[tables]`."""

from __future__ import annotations

import difflib
import gzip
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesmp.basics import atomic
from bayesmp.tables.values import as_text, require_pandas
from bayesmp.tables.words import TableError

if TYPE_CHECKING:
    from pandas import DataFrame

ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
PLAIN_NUMBER = re.compile(r"[+-]?\d*\.?\d+(\.\d+)?")  # pandas numbers a name that is there twice: 1.5.1


def ending(path: Path) -> str | None:
    """The one of ENDINGS that the name has, or None."""
    return next((one for one in ENDINGS if path.name.lower().endswith(one)), None)


def check_ending(path: Path) -> None:
    """Raise unless the ending says how to read or write the file."""
    if ending(path) is None:
        raise TableError(
            f"{str(path)!r} must end in .csv, .tsv or .parquet, or in .csv.gz or .tsv.gz, so that it is clear what it "
            "is"
        )


def read_table(path: Path) -> DataFrame:
    """The table in a CSV or TSV file (UTF-8; commas, semicolons or tabs; names in the first line), which may be packed
    with gzip, or in a Parquet file.
    """
    pandas = require_pandas()
    check_ending(path)
    if not path.is_file():
        others = [other.name for other in path.parent.glob(f"*{path.suffix}")]
        near = difflib.get_close_matches(path.name, others, n=1, cutoff=0.75)
        raise TableError(f"there is no file {str(path)!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    frame = _read_parquet(pandas, path) if ending(path) == ".parquet" else _read_csv(pandas, path)
    frame.columns = [str(name).strip() for name in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice) > 0:
        raise TableError(f"{path.name} has two columns named {twice[0]!r}; rename one of them")
    if len(frame) == 0:
        raise TableError(f"{path.name} has names of columns but no rows")
    return frame.reset_index(drop=True)


def write_table(frame: DataFrame, path: Path) -> None:
    """Write a CSV, TSV or Parquet file, by its ending."""
    kind = ending(path) or ".csv"
    with atomic.writing(path) as file:
        if kind == ".parquet":
            with _needs_pyarrow():
                frame.to_parquet(file, index=False)
        else:
            frame.to_csv(file, index=False, sep="\t" if "tsv" in kind else ",", compression=_packed(path))


def _packed(path: Path) -> str | None:
    return "gzip" if path.name.lower().endswith(".gz") else None


def _read_csv(pandas: Any, path: Path) -> DataFrame:
    packed = _packed(path)
    try:
        with (gzip.open if packed else open)(path, "rt", encoding="utf-8-sig", newline=None) as file:
            first = next((line for line in file if line.strip()), "")
            separator = max(",;\t", key=first.count)
        options = {
            "sep": separator,
            "dtype": str,
            "encoding": "utf-8-sig",
            "skipinitialspace": True,
            "compression": packed,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # of rows longer than the first line
            names = pandas.read_csv(path, header=None, nrows=1, **options).iloc[0].dropna().tolist()
            frame: DataFrame = pandas.read_csv(path, index_col=False, **options)
    except UnicodeDecodeError as error:
        raise TableError(f"{path.name} is not UTF-8 text ({error}); save it as UTF-8") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TableError(f"{path.name} is not a complete gzip file: {error}") from error
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
            frame[name] = frame[name].map(as_text, na_action="ignore")
    return frame


@contextmanager
def _needs_pyarrow() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ImportError(
            "Parquet files need pyarrow: pip install 'bayesmp[parquet]', or save the table as CSV"
        ) from error


def check_column(name: str, columns: Iterable[str]) -> None:
    """Raise unless there is a column of this name; names that are nearly the same are suggested."""
    known = list(columns)
    if name in known:
        return
    if known and all(map(PLAIN_NUMBER.fullmatch, known)):
        raise TableError(
            f"there is no column {name!r}: the first line holds numbers ({', '.join(known[:3])}), where the names "
            "of the columns should be"
        )
    near = difflib.get_close_matches(name, known, n=3) or [c for c in known if c.lower() == name.lower()]
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(map(repr, known[:20]))}"
    raise TableError(f"there is no column {name!r}; {hint}")
