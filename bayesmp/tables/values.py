"""What the values of a column are: numbers, texts, names, dates, or numbers that are dressed up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bayesmp.tables.words import TableError

if TYPE_CHECKING:
    from pandas import Series

Floats: TypeAlias = NDArray[np.float64]

MOSTLY = 0.8  # share of a text column that must be numbers for the rest to count as missing
LARGEST = 1e100  # squares of larger numbers overflow
MISSING = "(missing)"  # stands for values that are not there
DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]\d{1,2}:\d{2}.*)?")
DRESSED = re.compile(r"[+-]?[$€£¥]?\s?[+-]?\d[\d.,' ]*[$€£¥%]?")  # $1,200 or 12,5 or 30 %


def require_pandas() -> Any:
    """Pandas, or an ImportError that says what to install."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("tables need pandas: pip install 'bayesmp[tables]'") from error
    return pandas


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
    if len(present) == 0 or not (is_time or is_text(values)):
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


def is_text(values: Series) -> bool:
    """Whether the values are texts by their type, or objects of any kind."""
    return values.dtype.kind not in "biufcmM" and not hasattr(values.dtype, "categories")


def is_named(values: Series) -> bool:
    """Whether the values are booleans or categories by their type."""
    return not is_text(values) and values.dtype.kind not in "iufmM"


def is_categorical(values: Series) -> bool:
    """Whether the column is to become categories; dates are refused."""
    refuse_dates(values)
    if not is_text(values):
        return is_named(values)
    numbers, _ = as_numbers(values)
    if float((~np.isnan(numbers)).sum()) >= MOSTLY * float(values.notna().sum()):
        return False
    refuse_dressed_numbers(values)
    return True


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
