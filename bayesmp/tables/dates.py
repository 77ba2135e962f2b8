"""Dates and times of day, read from the texts of a column, and in the way the training table asked for ever after.

2024-03-01 is read as it stands, 01.03.2024 with the day first. In 3/1/2024 either may be first: the training table has
to tell, by a number above 12. A zone behind a time is not heard: what counts is what the clock showed.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bayesmp.tables.values import MOSTLY, Floats, is_text
from bayesmp.tables.words import TableError
from bayesmp.typed import OneOf, Range

if TYPE_CHECKING:
    from pandas import Series

DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})(,?[T\s]\s*\d{1,2}:\d{2}.*)?")
CLOCK = re.compile(
    r"(\d{1,2}):(\d{2})(?::(\d{2}(?:[.,]\d+)?))?\s?(?:([aApP])\.?[mM]\.?)?\s?(?:Z|UTC|[+-]\d{2}(?::?\d{2})?)?"
)  # 7:30, 19:05:59 or 7:30 pm, and the zone behind it
YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?:,?[T\s]\s*(.+))?")
YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})(?:,?[T\s]\s*(.+))?")

Turns: TypeAlias = Callable[[Floats], Floats]

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ONE_YEAR = 365.0  # days that training must cover for the time of year to be learned
TWO_WEEKS = 14.0  # and for weekdays
FEW_WEEKDAYS = 2  # no more different ones than this tell nothing of a week
ROWS_PER_WEEKDAY = 30  # fewer learn more noise from seven more columns than weekdays are worth (lab notes, "Dates")
MONTH_ENDS = 4  # days of the month that the ends of months have, 28 to 31; their weekdays are chance
AT_ONCE = 1_000  # values that are looked at, until too many are no dates
SECONDS = 86_400.0  # of a day
EPOCH = datetime.date(1970, 1, 1).toordinal()  # of numpy's days


class Dates(NamedTuple):
    """What a column of dates or times holds: NaN for gaps, the texts that stood there, and how they were read.

    Attributes:
        values: days since the first of January of year 1, which is day 1; of times alone, hours.
        others: texts that are no dates.
        is_clock: whether they are times of day without a date.
        order: "day" or "month", whichever comes first in 3/1/2024; None if there are no such dates.
    """

    values: Floats
    others: list[str]
    is_clock: bool
    order: str | None


@dataclass(frozen=True)
class Calendar:
    """Which numbers the dates of a column become.

    Attributes:
        is_clock, order: as in `Dates`.
        first, last: of the training table, as in `Dates`; whole days, or hours.
        has_year: whether the time of year is among them, as sine and cosine.
        has_day: the same for the time of day.
        weekdays: numbers of those that are, from 0 for Monday; each is a column of 0 and 1.
    """

    is_clock: bool
    order: Annotated[str, OneOf(("day", "month"))] | None
    first: float
    last: float
    has_year: bool = False
    has_day: bool = False
    weekdays: tuple[Annotated[int, Range(0, 6)], ...] = ()

    @classmethod
    def of(cls, found: Dates) -> Calendar:
        """The calendar that a column of the training table asks for."""
        present = found.values[~np.isnan(found.values)]
        if found.is_clock:
            return cls(True, None, float(present.min()), float(present.max()), has_day=True)
        first, last = float(np.floor(present.min())), float(np.floor(present.max()))
        weekdays = np.unique(_weekday(present))
        tells_weekdays = (
            last - first >= TWO_WEEKS
            and FEW_WEEKDAYS < len(weekdays) <= len(present) / ROWS_PER_WEEKDAY
            and len(np.unique(_day_of_month(present))) > MONTH_ENDS
        )
        return cls(
            False,
            found.order,
            first,
            last,
            has_year=last - first >= ONE_YEAR,
            has_day=len(np.unique(np.round(present % 1.0 * SECONDS))) > 1,
            weekdays=tuple(weekdays.tolist()) if tells_weekdays else (),
        )

    @property
    def features(self) -> list[str]:
        """Names of the numbers, without that of the column."""
        names = [" (hours)" if self.is_clock else " (days)"]
        names += [f" ({what}, {part})" for what in self._cycles() for part in ("sine", "cosine")]
        return names + [f"={WEEKDAYS[day]}" for day in self.weekdays]

    def encode(self, values: Floats) -> Floats:
        """The numbers (n, features) of dates without gaps."""
        parts = [values if self.is_clock else values - self.first]
        for turns in self._cycles().values():
            angle = 2.0 * np.pi * turns(values)
            parts += [np.sin(angle), np.cos(angle)]
        parts += [(_weekday(values) == day).astype(np.float64) for day in self.weekdays]
        return np.stack(parts, axis=1)

    def is_outside(self, values: Floats) -> NDArray[np.bool_]:
        """Whether dates lie before the first or behind the last of training, or on weekdays that it did not have."""
        if self.is_clock:
            return np.zeros(len(values), dtype=bool)
        days = np.floor(values)
        outside = (days < self.first) | (days > self.last)
        return outside | ~np.isin(_weekday(values), self.weekdays) if self.weekdays else outside

    def tell(self) -> str:
        """What dates become, in words."""
        found = ["hours" if self.is_clock else f"days since {tell_day(self.first)}"]
        found += [f"{name} (sine and cosine)" for name in self._cycles()]
        found += ["weekday"] if self.weekdays else []
        return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"

    def describe(self) -> str:
        """What the dates of training are and become."""
        if self.is_clock:
            return f"time of day: {self.tell()}"
        return f"date from {tell_day(self.first)} to {tell_day(self.last)}: {self.tell()}"

    def _cycles(self) -> dict[str, Turns]:
        """What comes again and again, by name: how many turns were made."""
        of_day = _turns_of_clock if self.is_clock else _turns_of_day
        year = {"time of year": _turns_of_year} if self.has_year else {}
        return year | ({"time of day": of_day} if self.has_day else {})


def read_dates(values: Series) -> Dates | None:
    """The dates or times of a column of the training table, or None if it holds none.

    Raises:
        TableError: it seems to hold some, but they cannot be read, or it cannot be told how.
    """
    if values.dtype.kind == "m":
        _refuse(values, "durations", "write them as numbers, e.g. of hours")
    if values.dtype.kind != "M" and not is_text(values):
        return None
    present = values.dropna()
    is_clock = _are_mostly(CLOCK, present)
    if not is_clock and not _are_mostly(DATE, present):
        return None
    texts = as_date_texts(present)
    order = None if is_clock else _order(values, texts)
    found = Dates(*read_as(values, is_clock, order), is_clock, order)
    if len(texts) - len(found.others) < MOSTLY * len(texts):
        remedy = "write times as 19:30" if is_clock else "write them as 2024-03-01, the year with four digits"
        _refuse(values, "dates or times that cannot be read", remedy, found.others[0])
    return found


def read_as(values: Series, is_clock: bool, order: str | None) -> tuple[Floats, list[str]]:
    """The dates of a column as numbers, NaN where there is none, and the texts that stood there; as in `Dates`."""
    numbers = np.full(len(values), np.nan)
    texts = as_date_texts(values)
    known = {text: _hours(text) if is_clock else _days(text, order) for text in set(texts)}
    present = values.notna().to_numpy()
    numbers[present] = [np.nan if known[text] is None else known[text] for text in texts]
    return numbers, [text for text in texts if known[text] is None]


def refuse_dates(values: Series) -> None:
    """Raise if the column, a target, holds dates or times."""
    if values.dtype.kind not in "mM" and not is_text(values):
        return
    texts = as_date_texts(values)
    is_date = any(all(map(kind.fullmatch, texts)) for kind in (DATE, CLOCK))
    if len(texts) > 0 and (values.dtype.kind in "mM" or is_date):
        raise TableError(
            f"column {values.name!r} holds dates or times ({texts[0]}), and is the target: turn it into numbers first, "
            "e.g. hours, or days since some day"
        )


def tell_day(day: float) -> str:
    """A day as 2024-03-01."""
    return datetime.date.fromordinal(int(day)).isoformat()


def tell_order(values: Series, found: Dates) -> str:
    """How the first date was read in which day and month could be exchanged; nothing if there is none."""
    for text, day in zip(values, found.values, strict=True):
        if found.order is not None and not np.isnan(day) and _is_open(str(text).strip()):
            return f", {str(text).strip()} is read as {tell_day(day)}"
    return ""


def as_date_texts(values: Series) -> list[str]:
    """The values that are there as texts; those of dates by their type are such as 2024-03-01 07:30:00."""
    return [str(value).strip() for value in values.dropna()]


def _are_mostly(kind: re.Pattern[str], values: Series) -> bool:
    """Whether most of the values are of this kind; a column of others is left early, as most columns are."""
    n_others, allowed = 0, len(values) - MOSTLY * len(values) + 1e-9
    for start in range(0, len(values), AT_ONCE):
        texts = as_date_texts(values.iloc[start : start + AT_ONCE])
        n_others += sum(kind.fullmatch(text) is None for text in texts)
        if n_others > allowed:
            return False
    return len(values) > 0


def _is_open(text: str) -> bool:
    """Whether it is a date such as 3/1/2024, in which the day or the month may come first."""
    found = YEAR_LAST.fullmatch(text)
    return found is not None and found[2] != "."


def _order(values: Series, texts: Sequence[str]) -> str | None:
    """Which of day and month comes first; None if there are no dates that leave it open."""
    matches = [found for text in set(texts) if (found := YEAR_LAST.fullmatch(text)) and found[2] != "."]
    days_first = [found[0] for found in matches if int(found[1]) > 12 >= int(found[3])]
    months_first = [found[0] for found in matches if int(found[3]) > 12 >= int(found[1])]
    if days_first and months_first:
        both = f"{days_first[0]} has the day first, {months_first[0]} the month"
        _refuse(values, "dates in two orders", f"{both}; write them as 2024-03-01")
    if matches and not days_first and not months_first:
        _refuse(
            values,
            "dates of which the day or the month may come first",
            "no number above 12 tells; write them as 2024-03-01",
            next(filter(_is_open, texts)),
        )
    return "day" if days_first else "month" if months_first else None


def _days(text: str, order: str | None) -> float | None:
    """Days since the beginning of year 1, or None if the text is no date."""
    if found := YEAR_FIRST.fullmatch(text):
        year, _, month, day, clock = found.groups()
    elif found := YEAR_LAST.fullmatch(text):
        day, separator, month, year, clock = found.groups()
        if separator != "." and order is None:
            return None
        if separator != "." and order == "month":
            day, month = month, day
    else:
        return None
    hours = 0.0 if clock is None else _hours(clock)
    try:
        return None if hours is None else datetime.date(int(year), int(month), int(day)).toordinal() + hours / 24.0
    except ValueError:  # 31 February
        return None


def _hours(text: str) -> float | None:
    """Hours since midnight, or None if the text is no time of day."""
    found = CLOCK.fullmatch(text.strip())
    if found is None:
        return None
    hour, minute, second = int(found[1]), int(found[2]), float((found[3] or "0").replace(",", "."))
    if found[4]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if found[4] in "pP" else 0)
    return hour + minute / 60.0 + second / 3600.0 if hour < 24 and minute < 60 and second < 60.0 else None


def _weekday(days: Floats) -> NDArray[np.int64]:
    return (np.floor(days).astype(np.int64) + 6) % 7


def _as_numpy(days: Floats) -> NDArray[np.datetime64]:
    return (np.floor(days).astype(np.int64) - EPOCH).astype("datetime64[D]")


def _day_of_month(days: Floats) -> NDArray[np.int64]:
    found = _as_numpy(days)
    return (found - found.astype("datetime64[M]").astype("datetime64[D]")).astype(np.int64)


def _turns_of_year(days: Floats) -> Floats:
    """The share of its year that has gone by."""
    years = _as_numpy(days).astype("datetime64[Y]")
    start, end = (part.astype("datetime64[D]").astype(np.float64) for part in (years, years + 1))
    return np.asarray((days - EPOCH - start) / (end - start))


def _turns_of_day(days: Floats) -> Floats:
    return days % 1.0


def _turns_of_clock(hours: Floats) -> Floats:
    return hours / 24.0


def _refuse(values: Series, what: str, remedy: str, shown: str | None = None) -> None:
    shown = shown if shown is not None else str(values.dropna().iloc[0])
    raise TableError(
        f"column {values.name!r} holds {what} ({shown}): {remedy}; or leave it out with --drop, or, if these are only "
        "names, take them as categories with --categories"
    )
