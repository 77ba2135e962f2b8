"""Dates and times of day, read from the texts of a column, and in the way the training table asked for ever after.

2024-03-01 is read as it stands, 01.03.2024 with the day first. In 3/1/2024 either may be first: the training table has
to tell, by a number above 12. A zone behind a time is not heard: what counts is what the clock showed.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bayesmp.basics.typed import OneOf, Range
from bayesmp.estimators.columns.units import MOSTLY
from bayesmp.estimators.columns.values import Floats, is_text, require_pandas
from bayesmp.estimators.columns.words import TableError

if TYPE_CHECKING:
    from pandas import Series

DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})(,?[T\s]\s*\d{1,2}:\d{2}.*)?")
CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?(\s?[aApP]\.?[mM]\.?)?(\s?(Z|UTC|[+-]\d{2}(:?\d{2})?))?")
OPEN = re.compile(r"(\d{1,2}([-/])\d{1,2}\2\d{4})(\D.*)?")  # 3/1/2024: the day or the month may come first

DATES = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y")
ORDERS = {None: (), "day": ("%d/%m/%Y", "%d-%m-%Y"), "month": ("%m/%d/%Y", "%m-%d-%Y")}
CLOCKS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p", "%I:%M:%S.%f %p")

Turns: TypeAlias = Callable[[Floats], Floats]

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ONE_YEAR = 365.0  # days that training must cover for the time of year to be learned
TWO_WEEKS = 14.0  # and for weekdays
FEW_WEEKDAYS = 2  # no more different ones than this tell nothing of a week
ROWS_PER_WEEKDAY = 30  # fewer learn more noise from seven more columns than weekdays are worth (lab notes, "Dates")
MONTH_ENDS = 4  # days of the month that the ends of months have, 28 to 31; their weekdays are chance
AT_ONCE = 1_000  # values that are looked at, until too many are no dates
SECONDS = 86_400.0  # of a day
EPOCH = datetime.date(1970, 1, 1).toordinal()  # of pandas' days


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
        days = _as_pandas(present)
        weekdays = np.unique(days.day_of_week)
        tells_weekdays = (
            last - first >= TWO_WEEKS
            and FEW_WEEKDAYS < len(weekdays) <= len(present) / ROWS_PER_WEEKDAY
            and len(np.unique(days.day)) > MONTH_ENDS
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
    def words(self) -> tuple[str, str]:
        """What the column holds, many and one."""
        return ("times of day", "time") if self.is_clock else ("dates", "date")

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
        parts += [(_as_pandas(values).day_of_week == day).astype(np.float64) for day in self.weekdays]
        return np.stack(parts, axis=1)

    def is_outside(self, values: Floats) -> NDArray[np.bool_]:
        """Whether dates lie before the first or behind the last of training, or on weekdays that it did not have."""
        if self.is_clock:
            return np.zeros(len(values), dtype=bool)
        days = np.floor(values)
        outside = (days < self.first) | (days > self.last)
        return outside | ~np.isin(_as_pandas(values).day_of_week, self.weekdays) if self.weekdays else outside

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
        year: dict[str, Turns] = {"time of year": _turns_of_year} if self.has_year else {}
        day: dict[str, Turns] = {"time of day": lambda values: values / 24.0 if self.is_clock else values % 1.0}
        return year | (day if self.has_day else {})


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
    order = None if is_clock else _order(values)
    found = Dates(*read_as(values, is_clock, order), is_clock, order)
    if len(present) - len(found.others) < MOSTLY * len(present):
        remedy = "write times as 19:30" if is_clock else "write them as 2024-03-01, the year with four digits"
        _refuse(values, "dates or times that cannot be read", remedy, found.others[0])
    return found


def read_as(values: Series, is_clock: bool, order: str | None) -> tuple[Floats, list[str]]:
    """The dates of a column as numbers, NaN where there is none, and the texts that stood there; as in `Dates`."""
    numbers = np.full(len(values), np.nan)
    texts = as_date_texts(values)
    different = list(dict.fromkeys(texts))
    read = _hours(different) if is_clock else _days(different, order)
    known = dict(zip(different, read.tolist(), strict=True))
    numbers[values.notna().to_numpy()] = [known[text] for text in texts]
    return numbers, [text for text in texts if np.isnan(known[text])]


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
    for text, day in zip(values.astype(str).str.strip(), found.values, strict=True):
        if found.order is not None and not np.isnan(day) and OPEN.fullmatch(text):
            return f", {text} is read as {tell_day(day)}"
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


def _order(values: Series) -> str | None:
    """Which of day and month comes first; None if there are no dates that leave it open."""
    texts = [text for text in dict.fromkeys(as_date_texts(values)) if OPEN.fullmatch(text)]
    is_day, is_month = (~np.isnan(_days(texts, order)) for order in ("day", "month"))
    days_first = [text for text, day, month in zip(texts, is_day, is_month, strict=True) if day and not month]
    months_first = [text for text, day, month in zip(texts, is_day, is_month, strict=True) if month and not day]
    if days_first and months_first:
        both = f"{days_first[0]} has the day first, {months_first[0]} the month"
        _refuse(values, "dates in two orders", f"{both}; write them as 2024-03-01")
    if texts and not days_first and not months_first:
        _refuse(
            values,
            "dates of which the day or the month may come first",
            "no number above 12 tells; write them as 2024-03-01",
            texts[0],
        )
    return "day" if days_first else "month" if months_first else None


def _days(texts: Sequence[str], order: str | None) -> Floats:
    """Days since the beginning of year 1, NaN where a text is no date."""
    parts = [re.split(r",?[T\s]\s*", text, maxsplit=1) for text in texts]
    days = _read([part[0] for part in parts], (*DATES, *ORDERS[order]))
    hours = _hours([part[1] if len(part) > 1 else "0:00" for part in parts])
    return np.asarray((days - np.datetime64(0, "D")) / np.timedelta64(1, "D") + EPOCH + hours / 24.0)


def _hours(texts: Sequence[str]) -> Floats:
    """Hours since midnight, NaN where a text is no time of day."""
    plain = [re.sub(r"\s?(Z|UTC|[+-]\d{2}(:?\d{2})?)$", "", text).replace(",", ".") for text in texts]
    found = _read([re.sub(r"\s?([aApP])\.?[mM]\.?$", r" \1m", text) for text in plain], CLOCKS)
    return np.asarray((found - found.astype("datetime64[D]")) / np.timedelta64(1, "h"))


def _read(texts: Sequence[str], formats: Sequence[str]) -> NDArray[np.datetime64]:
    """Each text by the first format that reads it, NaT where none does."""
    pandas = require_pandas()
    which, different = pandas.factorize(np.array(texts, dtype=object))
    found = np.full(len(different), np.datetime64("NaT", "us"))
    for one in formats:
        left = np.isnat(found)
        if left.any():
            found[left] = pandas.to_datetime(different[left], format=one, errors="coerce")
    return np.asarray(found[which])


def _as_pandas(days: Floats) -> Any:
    """Days as pandas has them, which knows their weekdays and years."""
    whole = (np.floor(days).astype(np.int64) - EPOCH).astype("datetime64[D]")
    return require_pandas().DatetimeIndex(whole.astype("datetime64[s]"))


def _turns_of_year(days: Floats) -> Floats:
    """The share of its year that has gone by."""
    found = _as_pandas(days)
    return np.asarray((found.day_of_year - 1 + days % 1.0) / (365 + found.is_leap_year))


def _refuse(values: Series, what: str, remedy: str, shown: str | None = None) -> None:
    shown = shown if shown is not None else str(values.dropna().iloc[0])
    raise TableError(
        f"column {values.name!r} holds {what} ({shown}): {remedy}; or leave it out (--drop), or, if these are only "
        "names, take them as categories (--categories)"
    )
