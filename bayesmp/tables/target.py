"""What is to be predicted: a quantity or classes, decided once by the training table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from bayesmp.basics.typed import OneOf
from bayesmp.estimators.columns.dates import refuse_dates
from bayesmp.estimators.columns.units import MOSTLY, tell_several
from bayesmp.estimators.columns.values import (
    LEADING_ZERO,
    MISSING,
    as_numbers,
    as_texts,
    is_named,
    is_text,
    number_form,
    tell_reading,
)
from bayesmp.estimators.columns.words import TableError, some_texts

if TYPE_CHECKING:
    from pandas import Series

MAX_WHOLE_CLASSES = 10  # whole numbers with more different values are a quantity
MIN_REPEATS = 5  # and so are those that repeat less often than this, on average
MAX_NAMED = 50  # whole numbers with no more different values than this may have been meant as classes


@dataclass(frozen=True)
class Target:
    """What is to be predicted.

    Attributes:
        name: of its column.
        task: "regression" or "classification".
        is_whole: whether classes are whole numbers; else they are texts.
        decimal: sign of formatted numbers, such as 1.234,50; None for plain ones.
        unit: of numbers in texts, such as 3750 g; None for others.
    """

    name: str
    task: Annotated[str, OneOf(("regression", "classification"))]
    is_whole: bool = False
    decimal: Annotated[str, OneOf((".", ","))] | None = None
    unit: str | None = None

    @classmethod
    def decide(cls, values: Series, task: str | None = None) -> tuple[Target, str]:
        """The target that a column of the training table is, and a sentence that says why.

        Texts, booleans and a few different whole numbers are classes, other numbers are not; `task` overrides it.
        """
        name = str(values.name)
        if values.isna().all():
            raise TableError(f"the target {name!r} has no values")
        if task != "classification":
            refuse_dates(values)
            if is_text(values) and (several := tell_several(values)):
                raise TableError(f"the target {name!r} holds {several}: write them in one")
        decimal, unit = number_form(values) if task != "classification" else (None, None)
        numbers, bad = (np.empty(0), []) if is_named(values) else as_numbers(values, decimal, unit)
        present = numbers[~np.isnan(numbers)]
        is_number = len(present) > 0 and len(present) >= MOSTLY * (len(present) + len(bad))
        n_kinds = len(np.unique(present)) if is_number else _count_texts(values)
        is_whole = is_number and bool((present == np.round(present)).all())
        repeats = len(present) >= MIN_REPEATS * n_kinds
        few = is_whole and n_kinds <= MAX_WHOLE_CLASSES and repeats
        has_zeros = is_text(values) and any(LEADING_ZERO.fullmatch(str(value)) for value in values.dropna())
        if few and task != "regression" and (bad or has_zeros):  # names of classes, such as 1, 2, x, or 01, 02
            is_number, is_whole, n_kinds = False, False, _count_texts(values)
        chosen = task or ("classification" if not is_number or few else "regression")
        first, n_known = values.dropna().iloc[0], int(values.notna().sum())
        if chosen == "regression" and not is_number:
            raise TableError(f"the target {name!r} is not numbers ({first}); a regression needs them")
        if n_kinds < 2:
            raise TableError(f"the target {name!r} is {first} in all rows: there is nothing to learn")
        if chosen == "classification" and n_kinds > 0.5 * n_known:
            remedy = ": use --task regression" if is_number else ""
            raise TableError(
                f"the target {name!r} has {n_kinds:,} different values in {n_known:,} rows; classes must repeat{remedy}"
            )
        target = cls(name, chosen, chosen == "classification" and is_whole, decimal, unit)
        kind = "whole numbers" if is_whole else "numbers" if is_number else "values"
        why = f"{n_kinds:,} different {kind}, taken as {'classes' if chosen == 'classification' else 'a quantity'}"
        if task is not None:
            why += " (as asked)"
        elif (is_whole and n_kinds <= MAX_NAMED) or (is_number and n_kinds <= MAX_WHOLE_CLASSES and repeats):
            other = "regression" if chosen == "classification" else "classification"
            why += f" (--task {other} would change that)"
        if bad and (chosen == "regression" or is_whole):
            why += f"; {some_texts(bad)} taken as missing"
        if decimal is not None or unit is not None:
            why += f"; {tell_reading(values, numbers, unit)}"
        return target, why

    def read(self, values: Series) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The targets of a table, and for which rows they are known."""
        if self.task == "classification" and not self.is_whole:
            texts = as_texts(values)
            return texts.astype(str), texts != MISSING
        numbers, _ = as_numbers(values, self.decimal, self.unit)
        known = ~np.isnan(numbers)
        if not self.is_whole:
            return numbers, known
        known &= np.nan_to_num(numbers) == np.round(np.nan_to_num(numbers))
        return np.where(known, numbers, 0.0).astype(np.int64), known


def _count_texts(values: Series) -> int:
    """How many different texts; blanks around them make no difference."""
    return len(set(as_texts(values.dropna())))
