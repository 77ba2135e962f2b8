"""Numbers with units, groups of digits or a decimal comma: 1.234,50 or 1,234.50, € 12 or 30 %.

Which of comma and point is the decimal sign is decided by the training table, column by column, and kept: one later row
such as 2,052 could not tell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bayesmp.estimators.columns.words import TableError

if TYPE_CHECKING:
    from pandas import Series

UNITS = "$€£¥%"
AROUND = re.compile(r"[$€£¥%]|(?<=^[+-])\s+")  # units, and blanks behind a sign
FORMATTED = re.compile(r"[+-]?[$€£¥]?\s?[+-]?\d[\d.,'’\s]*[$€£¥%]?")  # $1,200 or 12,5 or 30 %
NUMBERS = {  # by the decimal sign: sign, digits with or without groups of three, decimals
    decimal: re.compile(rf"([+-]?)([1-9]\d{{0,2}}(?:[{group}'’\s]\d{{3}})+|\d+)(?:[{decimal}](\d*))?")
    for decimal, group in ((",", "."), (".", ","))
}


def plain_number(text: str, decimal: str) -> str | None:
    """The number in a text as Python writes it, or None if there is none with this decimal sign.

    `pandas.read_csv(decimal=",", thousands=".")` is not as strict: it drops points wherever they stand, reads 1.5 as 15
    and 10.0.0.1 as 10001, and says nothing.
    """
    found = NUMBERS[decimal].fullmatch(AROUND.sub("", text.strip()).strip())
    return None if found is None else f"{found[1]}{''.join(filter(str.isdigit, found[2]))}.{found[3] or 0}"


def decimal_sign(values: Series) -> str | None:
    """Comma or point, whichever reads the formatted numbers of a column; None if there are none.

    Where both do, as in 2,052, a column in which other numbers have neither sign has groups of three: one with decimals
    would have them in all numbers, or not always three.

    Raises:
        TableError: they cannot be read, or it cannot be told how.
    """
    texts = [str(value).strip() for value in values.dropna()]
    formatted = [text for text in texts if FORMATTED.fullmatch(text)]
    if not formatted:
        return None
    able = [sign for sign in NUMBERS if all(plain_number(text, sign) for text in formatted)]
    if not able or _has_mixed_units(formatted):
        _refuse(values, formatted, "cannot be read in one way")
    if len(able) == 1:
        return able[0]
    if not any("," in text or "." in text for text in formatted):
        return "."
    if not any("," not in text and "." not in text for text in formatted):
        _refuse(values, formatted, "could be read in two ways")
    return "." if any("," in text for text in formatted) else ","


def _has_mixed_units(texts: Sequence[str]) -> bool:
    """Whether there are two currencies, or percentages beside other numbers."""
    units = {next((unit for unit in UNITS if unit in text), "") for text in texts}
    return len(units - {""}) > 1 or ("%" in units and "" in units)


def _refuse(values: Series, texts: Sequence[str], why: str) -> None:
    shown = next((text for text in texts if not text.lstrip("-").isdigit()), texts[0])
    raise TableError(
        f"column {values.name!r} seems to hold numbers with commas or signs ({shown}) that {why}; write them as plain "
        "numbers such as 1234.5, or leave it out with --drop unless it is the target"
    )
