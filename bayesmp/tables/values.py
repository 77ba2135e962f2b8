"""What the values of a column are: numbers, texts, names, or formatted numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bayesmp.tables.number_formats import FORMATTED, decimal_sign, plain_number
from bayesmp.tables.words import TableError

if TYPE_CHECKING:
    from pandas import Series

Floats: TypeAlias = NDArray[np.float64]

MOSTLY = 0.8  # share of a text column that must be numbers for the rest to count as missing
LARGEST = 1e100  # squares of larger numbers overflow
REPEATED = 0.5  # different codes per row, at most; beyond that, zeros in front only fill up numbers
MISSING = "(missing)"  # stands for values that are not there
CODE = re.compile(r"\d+")
LEADING_ZERO = re.compile(r"[+-]?0\d+")  # 01067, where a number would be written 1067


def require_pandas() -> Any:
    """Pandas, or an ImportError that says what to install."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("tables need pandas: pip install 'bayesmp[tables]'") from error
    return pandas


def as_numbers(values: Series, decimal: str | None = None) -> tuple[Floats, list[str]]:
    """The numbers of a column, NaN where there is none, and the texts that stood there instead.

    Args:
        values: the column.
        decimal: for formatted numbers (1.234,50 or 30 %), their decimal sign; None reads plain numbers alone.
    """
    pandas = require_pandas()
    plain = values
    if decimal is not None and is_text(values):
        rest = decimal == "."  # what else Python reads, such as 1e-5
        plain = values.map(
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
    """What a column of numbers holds: NaN for gaps, the texts that stood there, and the sign of formatted numbers."""

    values: Floats
    others: list[str]
    decimal: str | None


def read_numbers(values: Series) -> Numbers | None:
    """The numbers of a column of the training table, or None if it is to become categories."""
    if is_named(values) or has_codes(values):
        return None
    decimal = sign_needed(values)
    numbers, others = as_numbers(values, decimal)
    if is_text(values) and float((~np.isnan(numbers)).sum()) < MOSTLY * float(values.notna().sum()):
        return None
    return Numbers(numbers, others, decimal)


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


def tell_reading(values: Series, numbers: Floats) -> str:
    """How the first formatted number of a column was read."""
    texts = [(str(text).strip(), number) for text, number in zip(values, numbers, strict=True) if not np.isnan(number)]
    text, number = next(((text, number) for text, number in texts if "," in text or "." in text), texts[0])
    return f"numbers with commas or signs, {text} is read as {number:.12g}"
