"""Numbers with a unit in a column of texts: 3750 g, 1,200.5 km/h, EUR 5. Signs such as € and % are number_formats'."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import Series

ONE_UNIT = 0.95  # share of the numbers that must have the same unit; fewer others are mistakes
MOSTLY = 0.8  # share of a text column that must be numbers, or dates, for the rest to count as missing
LOOKED_AT = 1_000  # first texts, of which less than half have a unit in most columns; then the others are not looked at
MANY_KINDS = 10  # more different texts with several units are quantities, not codes such as 7a and 7b
MOST_UNITS = 5  # that quantities of one column are written in
CURRENCIES = "EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN"  # stand in front, too; other words there are names

_NUMBER = r"[+-]?\s?[.,]?\d(?:[\d.,'’\s]*\d)?"
_UNIT = r"(?:[^\W\d_]|[°‰])[^\s\d,;:]{0,11}[23]?(?:\s[^\W\d_]{1,10}){0,2}"  # km/h, m2, °C, years old
BEHIND = re.compile(rf"({_NUMBER})\s?({_UNIT})")
IN_FRONT = re.compile(rf"({CURRENCIES})\s?({_NUMBER})")
ZERO_IN_FRONT = re.compile(r"0\d")


def split_unit(text: str) -> tuple[str, str] | None:
    """Number and unit of a text, or None; the number may be formatted, and is none with a zero in front."""
    text = text.strip()
    if found := IN_FRONT.fullmatch(text):
        unit, number = found.groups()
    elif found := BEHIND.fullmatch(text):
        number, unit = found.groups()
    else:
        return None
    return None if ZERO_IN_FRONT.match(number) else (number, unit)


def units_of(values: Series) -> list[str]:
    """The units in a column of texts, the most frequent one first; none unless most texts are numbers with a unit.

    Where one unit has nearly all numbers it is the only one.
    """
    present = values.dropna()
    if _count(present.iloc[:LOOKED_AT]).total() < 0.5 * min(len(present), LOOKED_AT):
        return []
    counts = _count(present)
    if counts.total() < max(MOSTLY * len(present), 1):
        return []
    (first, n_first), *_ = counts.most_common(1)
    if n_first >= ONE_UNIT * counts.total():
        return [first]
    return [unit for unit, _ in counts.most_common()]


def the_unit(values: Series) -> str | None:
    """The unit that the numbers of a column of texts have; None if there is none, or more than one."""
    found = units_of(values)
    return found[0] if len(found) == 1 else None


def without_unit(values: Series, unit: str) -> Series:
    """The numbers of a column as texts; an empty text where there is none with this unit."""
    return values.map(lambda value: _number_of(str(value), unit), na_action="ignore")


def tell_several(values: Series) -> str:
    """That quantities are written in several units, in words; nothing where they are not."""
    units = units_of(values)
    if not 1 < len(units) <= MOST_UNITS or values.nunique() <= MANY_KINDS:
        return ""
    return f"numbers in several units ({', '.join(units)})"


def _count(values: Series) -> Counter[str]:
    """How often each unit is there."""
    found: Counter[str] = Counter()
    for text, n in values.astype(str).value_counts().items():
        if parts := split_unit(text):
            found[parts[1]] += int(n)
    return found


def _number_of(text: str, unit: str) -> str:
    parts = split_unit(text)
    return parts[0] if parts and parts[1] == unit else ""
