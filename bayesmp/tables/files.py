"""Tables from CSV, Parquet and Excel files, and back; by pandas, which `pip install bayesmp[tables]` brings."""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import itertools
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bayesmp.basics import atomic
from bayesmp.estimators.columns.values import require_pandas, with_texts
from bayesmp.estimators.columns.words import NUMBER, TableError

if TYPE_CHECKING:
    from pandas import DataFrame

Tell: TypeAlias = Callable[[str], None]

ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".xlsx")
SEPARATORS = ",;\t|"
LOOKED_AT = 50  # lines that tell what separates columns
BLOCK = 2**20  # bytes read at a time
OTHER_FILES = {
    b"PK\x03\x04": "a zip or Excel (.xlsx) file",
    b"PAR1": "a Parquet file",
    b"\xd0\xcf\x11\xe0": "an old Excel file",
}


def ending(path: Path) -> str | None:
    """The one of ENDINGS that the name has, or None."""
    return next((one for one in ENDINGS if path.name.lower().endswith(one)), None)


def check_ending(path: Path) -> None:
    """Raise unless the ending says how to read or write the file."""
    if ending(path) is None:
        raise TableError(
            f"{str(path)!r} must end in .csv, .tsv or .parquet, in .xlsx, or in .csv.gz or .tsv.gz, so that it is "
            "clear what it is" + ("; save it as .xlsx" if path.suffix.lower() == ".xls" else "")
        )


def read_table(path: Path, *, has_names: bool | None = None, tell: Tell = lambda sentence: None) -> DataFrame:
    """The table in a file: CSV or TSV, which may be packed with gzip, Parquet, or the first sheet of an Excel file.

    Args:
        path: CSV and TSV files may be in UTF-8, UTF-16, Windows-1252 or Latin-1, with commas, semicolons, tabs or |.
        has_names: whether the first line names the columns. Default: yes, but a line of numbers is refused. Without
            names they are c1, c2, ...
        tell: gets sentences about what may not be meant.
    """
    pandas = require_pandas()
    check_ending(path)
    if not path.is_file():
        others = [other.name for other in path.parent.glob(f"*{path.suffix}")]
        near = difflib.get_close_matches(path.name, others, n=1, cutoff=0.75)
        raise TableError(f"there is no file {str(path)!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if ending(path) == ".parquet":
        frame = _read_parquet(pandas, path)
    elif ending(path) == ".xlsx":
        frame = _read_excel(pandas, path, has_names, tell)
    else:
        frame = _read_csv(pandas, path, has_names, tell)
    frame.columns = [str(name).strip() for name in frame.columns]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice) > 0:
        raise TableError(f"{path.name} has two columns named {twice[0]!r}; rename one of them")
    if len(frame) == 0:
        raise TableError(f"{path.name} has names of columns but no rows")
    return frame.reset_index(drop=True)


def write_table(frame: DataFrame, path: Path) -> None:
    """Write a CSV, TSV, Parquet or Excel file, by its ending."""
    kind = ending(path) or ".csv"
    with atomic.writing(path) as file:
        if kind == ".parquet":
            with _needs("pyarrow", "parquet", "Parquet"):
                frame.to_parquet(file, index=False)
        elif kind == ".xlsx":
            with _needs("openpyxl", "excel", "Excel"):
                frame.to_excel(file, index=False, engine="openpyxl")
        else:
            frame.to_csv(file, index=False, sep="\t" if "tsv" in kind else ",", compression=_packed(path))


def _packed(path: Path) -> str | None:
    return "gzip" if path.name.lower().endswith(".gz") else None


def _read_csv(pandas: Any, path: Path, has_names: bool | None, tell: Tell) -> DataFrame:
    packed = _packed(path)
    try:
        encoding = _encoding(path)
        if encoding not in ("utf-8-sig", "utf-16"):
            tell(f"{path.name} is not UTF-8 text; read as {encoding}")
        with (gzip.open if packed else open)(path, "rt", encoding=encoding, newline="") as file:
            lines = list(itertools.islice((line for line in file if line.strip()), LOOKED_AT))
        options = {
            "sep": _separator(lines),
            "dtype": str,
            "encoding": encoding,
            "skipinitialspace": True,
            "compression": packed,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # of rows longer than the first line
            names = pandas.read_csv(path, header=None, nrows=1, **options).iloc[0].dropna().tolist()
            has_names = _check_names(path, names, has_names)
            frame: DataFrame = pandas.read_csv(path, index_col=False, header=0 if has_names else None, **options)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TableError(f"{path.name} is not a complete gzip file: {error}") from error
    except pandas.errors.EmptyDataError as error:
        raise TableError(f"{path.name} is empty") from error
    except (pandas.errors.ParserError, pandas.errors.ParserWarning) as error:
        raise TableError(_tell_parser(path, str(error).strip())) from error
    if not has_names:
        return _numbered(frame)
    for name in names:
        if names.count(name) > 1:  # pandas would number them
            raise TableError(f"{path.name} has two columns named {name!r}; rename one of them")
    return frame


def _encoding(path: Path) -> str:
    """The encoding of a text file: UTF-8 or UTF-16 if it is that, else that of Windows in the West, or Latin-1."""
    with (gzip.open if _packed(path) else open)(path, "rb") as file:
        start = file.read(BLOCK)
        for magic, what in OTHER_FILES.items():
            if start.startswith(magic):
                raise TableError(f"{path.name} is not text but {what}; give it the ending of one")
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        if b"\0" in start:
            raise TableError(f"{path.name} is not text that can be read; save it as UTF-8")
        left = {encoding: codecs.getincrementaldecoder(encoding)() for encoding in ("utf-8-sig", "cp1252")}
        while start:
            for encoding, decoder in list(left.items()):
                try:
                    decoder.decode(start)
                except UnicodeDecodeError:
                    del left[encoding]
            start = file.read(BLOCK)
    for encoding, decoder in list(left.items()):
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:  # half a letter
            del left[encoding]
    return next(iter(left), "latin-1")


def _separator(lines: list[str]) -> str:
    """What cuts all lines into as many parts, the most; else what is most frequent in the first line."""
    parts = {one: [len(row) for row in csv.reader(lines, delimiter=one, skipinitialspace=True)] for one in SEPARATORS}
    parts = {one: counts[:-1] if len(lines) == LOOKED_AT else counts for one, counts in parts.items()}  # last: cut off?
    even = {one: counts[0] for one, counts in parts.items() if counts and counts[0] > 1 and len(set(counts)) == 1}
    if even:
        return max(even, key=lambda one: even[one])
    return max(SEPARATORS, key="".join(lines[:1]).count)


def _check_names(path: Path, first: list[Any], has_names: bool | None) -> bool:
    """Whether the first line has names; an error if that is open, and it holds numbers."""
    if has_names is None and first and all(NUMBER.fullmatch(str(cell).strip()) for cell in first):
        raise TableError(
            f"{path.name}, line 1: there are numbers ({', '.join(map(str, first[:3]))}) where the names of the columns "
            "should be; if the file has no line of names, give --no-header (the columns are then named c1, c2, ...), "
            "and if these are the names, --header"
        )
    return has_names is not False


def _numbered(frame: DataFrame) -> DataFrame:
    """A table without names of columns, with names c1, c2, ..."""
    frame.columns = [f"c{k}" for k in range(1, frame.shape[1] + 1)]
    return frame


def _tell_parser(path: Path, said: str) -> str:
    """What pandas says of a line that does not fit, with the line."""
    if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", said):
        expected, line, seen = found.groups()
        return (
            f"{path.name}, line {line}: {seen} fields, and {expected} in the lines before; it is not a proper CSV file"
        )
    return f"{path.name} is not a proper CSV file: {said}"


def _read_excel(pandas: Any, path: Path, has_names: bool | None, tell: Tell) -> DataFrame:
    with _needs("openpyxl", "excel", "Excel"):
        try:
            with pandas.ExcelFile(path, engine="openpyxl") as book:
                cells: DataFrame = pandas.read_excel(book, header=None, dtype=str).dropna(how="all")
                sheets = book.sheet_names
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise TableError(f"{path.name} is not a proper Excel file: {error}") from error
    if len(sheets) > 1:
        tell(f"{path.name} has {len(sheets)} sheets; the first one, {sheets[0]!r}, is read")
    if len(cells) == 0:
        raise TableError(f"{path.name} is empty")
    if not _check_names(path, cells.iloc[0].dropna().tolist(), has_names):
        return _numbered(cells)
    nameless = [k + 1 for k in range(cells.shape[1]) if pandas.isna(cells.iat[0, k]) and cells.iloc[:, k].notna().any()]
    if nameless:
        raise TableError(f"{path.name}: column {nameless[0]} has no name in the first row; give it one")
    cells = cells.loc[:, cells.iloc[0].notna()]
    return cells.iloc[1:].set_axis(cells.iloc[0].tolist(), axis=1)


def _read_parquet(pandas: Any, path: Path) -> DataFrame:
    with _needs("pyarrow", "parquet", "Parquet"):
        try:
            frame: DataFrame = pandas.read_parquet(path, engine="pyarrow")
        except (OSError, ValueError) as error:
            raise TableError(f"{path.name} is not a proper Parquet file: {error}") from error
    return with_texts(frame)


@contextmanager
def _needs(package: str, extra: str, what: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{what} files need {package}: pip install 'bayesmp[{extra}]', or save the table as CSV"
        ) from error
