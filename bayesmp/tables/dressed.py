"""Numbers that are dressed up: 1.234,50 or 1,234.50, € 12 or 30 %.

Which of comma and point is the decimal sign is decided by the training table, column by column, and kept: one later row
such as 2,052 could not tell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bayesmp.tables.words import TableError

if TYPE_CHECKING:
    from pandas import Series

UNITS = "$€£¥%"
AROUND = re.compile(r"[$€£¥%]|(?<=^[+-])\s+")  # units, and blanks behind a sign
DRESSED = re.compile(r"[+-]?[$€£¥]?\s?[+-]?\d[\d.,'’\s]*[$€£¥%]?")  # $1,200 or 12,5 or 30 %
NUMBERS = {  # by the decimal sign: sign, digits with or without groups of three, decimals
    ",": re.compile(r"([+-]?)([1-9]\d{0,2}(?:[.'’\s]\d{3})+|\d+)(?:,(\d*))?"),
    ".": re.compile(r"([+-]?)([1-9]\d{0,2}(?:[,'’\s]\d{3})+|\d+)(?:\.(\d*))?"),
}


def undress(text: str, decimal: str) -> str | None:
    """The number in a text as Python writes it, or None if there is none with this decimal sign."""
    found = _match(text, decimal)
    if found is None:
        return None
    sign, whole, rest = found.groups()
    digits = whole if whole.isdigit() else "".join(filter(str.isdigit, whole))
    return f"{sign}{digits}.{rest or 0}"


def decimal_sign(values: Series) -> str | None:
    """Comma or point, whichever reads the dressed numbers of a column; None if there are none.

    Where both do, as in 2,052, a column in which other numbers have neither sign has groups of three: one with decimals
    would have them in all numbers, or not always three.

    Raises:
        TableError: they cannot be read, or it cannot be told how.
    """
    texts = [str(value).strip() for value in values.dropna()]
    dressed = [text for text in texts if DRESSED.fullmatch(text)]
    if not dressed:
        return None
    able = [sign for sign in NUMBERS if all(_match(text, sign) for text in dressed)]
    if not able or _has_mixed_units(dressed):
        _refuse(values, dressed, "cannot be read in one way")
    if len(able) == 1:
        return able[0]
    if not any("," in text or "." in text for text in dressed):
        return "."
    if not any("," not in text and "." not in text for text in dressed):
        _refuse(values, dressed, "could be read in two ways")
    return "." if any("," in text for text in dressed) else ","


def _match(text: str, decimal: str) -> re.Match[str] | None:
    if text[-1:].isdigit() and (text[0].isdigit() or text[1:2].isdigit()):  # the most common: nothing around it
        found = NUMBERS[decimal].fullmatch(text)
        if found is not None:
            return found
    return NUMBERS[decimal].fullmatch(AROUND.sub("", text.strip()).strip())


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
