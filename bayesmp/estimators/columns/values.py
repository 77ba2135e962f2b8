"""What the values of a column are: numbers, texts, names, or formatted numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bayesmp.basics import checks
from bayesmp.estimators.columns.number_formats import FORMATTED, decimal_sign, plain_number
from bayesmp.estimators.columns.units import MOSTLY, the_unit, without_unit
from bayesmp.estimators.columns.words import TableError, plural

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Floats: TypeAlias = NDArray[np.float64]

LARGEST = 1e100  # squares of larger numbers overflow
REPEATED = 0.5  # different codes per row, at most; beyond that, zeros in front only fill up numbers
MISSING = "(missing)"  # stands for values that are not there
CODE = re.compile(r"\d+")
PLAIN = re.compile(r"[+-]?\d*\.?\d*([eE][+-]?\d+)?")
LEADING_ZERO = re.compile(r"[+-]?0\d+")  # 01067, where a number would be written 1067


def require_pandas() -> Any:
    """Pandas, or an ImportError that says what to install."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("tables need pandas: pip install 'bayesmp[tables]'") from error
    return pandas


def as_frame(X: Any, names: Sequence[str] | None = None) -> DataFrame:
    """A table as pandas has it.

    Args:
        X: a data frame of pandas, polars or another library that has such columns; or an array (n, d).
        names: of the columns of an array; without texts as names they are x0, x1, ...
    """
    pandas = require_pandas()
    if not checks.is_frame(X):
        frame = pandas.DataFrame(np.asarray(X))
    elif isinstance(X, pandas.DataFrame):
        frame, names = X.copy(deep=False), list(X.columns)
    else:
        frame, names = pandas.DataFrame({name: X[name].to_list() for name in X.columns}), list(X.columns)
    has_names = names is not None and all(isinstance(name, str) for name in names)
    frame.columns = names if has_names else [f"x{k}" for k in range(frame.shape[1])]
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice) > 0:
        raise TableError(f"there are two columns named {twice[0]!r}; rename one of them")
    return with_texts(frame)


def with_texts(frame: DataFrame) -> DataFrame:
    """Objects of any kind as texts: decimals, days, booleans with gaps, as a CSV file would have them."""
    for name in frame.columns:
        if frame[name].dtype == object:
            frame[name] = frame[name].map(as_text, na_action="ignore")
    return frame


def is_plain(X: Any) -> bool:
    """Whether a table is an array, or a data frame of numbers and booleans without gaps."""
    if not checks.is_frame(X):
        return True
    if checks.columns_of(X, "mMTSU"):
        return False
    try:
        return not bool(np.isnan(checks.frame_values(X)).any())
    except (TypeError, ValueError):
        return False


def as_numbers(values: Series, decimal: str | None = None, unit: str | None = None) -> tuple[Floats, list[str]]:
    """The numbers of a column, NaN where there is none, and the texts that stood there instead.

    Args:
        values: the column.
        decimal: for formatted numbers (1.234,50 or 30 %), their decimal sign; None reads plain numbers alone.
        unit: that all numbers have; others are no numbers then.
    """
    pandas = require_pandas()
    plain = values if unit is None else without_unit(values, unit)
    if decimal is not None and is_text(values):
        rest = decimal == "."  # what else Python reads, such as 1e-5
        plain = plain.map(
            lambda value: plain_number(str(value), decimal) or (str(value) if rest else ""), na_action="ignore"
        )
    numbers = pandas.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    too_large = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(too_large) > 0:
        raise TableError(
            f"column {values.name!r} has numbers beyond {LARGEST:g}, first {numbers[too_large[0]]:g} in row "
            f"{too_large[0] + 1}; remove them, or change the unit"
        )
    is_bad = np.isnan(numbers) & values.notna().to_numpy()
    return numbers, [str(value) for value in values[is_bad]]


def has_codes(values: Series) -> bool:
    """Whether the texts are codes such as 01067: digits alone, some with a zero in front, most of them there again."""
    if not is_text(values):
        return False
    present = values.dropna()
    if not all(CODE.fullmatch(str(value).strip()) for value in present):
        return False
    texts = [str(value).strip() for value in present]
    return any(map(LEADING_ZERO.fullmatch, texts)) and len(set(texts)) <= REPEATED * len(texts)


def is_text(values: Series) -> bool:
    """Whether the values are texts by their type, or objects of any kind."""
    return values.dtype.kind not in "biufcmM" and not hasattr(values.dtype, "categories")


def is_named(values: Series) -> bool:
    """Whether the values are booleans or categories by their type."""
    return not is_text(values) and values.dtype.kind not in "iufmM"


class Numbers(NamedTuple):
    """What a column of numbers holds: NaN for gaps, the texts that stood there, and how numbers are written."""

    values: Floats
    others: list[str]
    decimal: str | None
    unit: str | None


def read_numbers(values: Series) -> Numbers | None:
    """The numbers of a column of the training table, or None if it is to become categories."""
    if is_named(values) or has_codes(values):
        return None
    decimal, unit = number_form(values)
    numbers, others = as_numbers(values, decimal, unit)
    if is_text(values) and float((~np.isnan(numbers)).sum()) < MOSTLY * float(values.notna().sum()):
        return None
    return Numbers(numbers, others, decimal, unit)


def number_form(values: Series) -> tuple[str | None, str | None]:
    """Decimal sign and unit of a column's numbers, where they need one."""
    unit = the_unit(values) if is_text(values) else None
    return sign_needed(values if unit is None else without_unit(values, unit)), unit


def sign_needed(values: Series) -> str | None:
    """The decimal sign of a column with formatted numbers; None if they are plain, or not mostly numbers."""
    if not is_text(values):
        return None
    _, others = as_numbers(values)
    n_others = sum(FORMATTED.fullmatch(text.strip()) is None for text in others)
    n_known = int(values.notna().sum())
    if n_others == len(others) or n_known - n_others < MOSTLY * n_known:
        return None
    return decimal_sign(values)


def as_texts(values: Series) -> NDArray[np.object_]:
    """Each value as text without blanks around it; booleans as True and False, however they are written."""
    known = values.notna().to_numpy()
    texts = np.full(len(values), MISSING, dtype=object)
    texts[known] = [as_text(value) for value in values[known]]
    return texts


def as_text(value: Any) -> str:
    """One value as text; 3.0 is 3, as a file may have either."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    text = str(value).strip()
    return text.capitalize() if text.lower() in ("true", "false") else text


def tell_reading(values: Series, numbers: Floats, unit: str | None) -> str:
    """How the numbers of a column were read, the first formatted one for instance."""
    texts = [(str(text).strip(), number) for text, number in zip(values, numbers, strict=True) if not np.isnan(number)]
    text, number = next(((text, number) for text, number in texts if "," in text or "." in text), texts[0])
    if unit is None:
        n_formatted = sum(PLAIN.fullmatch(text) is None for text, _ in texts)
        what = f"{plural(n_formatted, 'number')} with commas or signs"
    else:
        what = f"{plural(len(texts), 'number')} with the unit {unit!r}, which is left out"
    return f"{what}, {text} is read as {number:.12g}"
