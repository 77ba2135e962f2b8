"""Which rows are held out: of each class some, or the latest."""

import numpy as np
import pytest

pandas = pytest.importorskip("pandas")

from bayesmp.tables import TableError, Target  # noqa: E402
from bayesmp.tables.split import hold_out, hold_out_latest  # noqa: E402

NUMBER, KIND = Target("y", "regression"), Target("y", "classification")


def test_each_class_is_held_out_alike_and_none_altogether():
    y = np.array(["a"] * 50 + ["b"] * 10 + ["c"])
    kept, held, _ = hold_out(y, KIND, 0.2, seed=0)
    assert sorted([*kept, *held]) == list(range(61))
    assert [int((y[held] == label).sum()) for label in "abc"] == [10, 2, 0]
    kept, held, _ = hold_out(np.arange(10.0), NUMBER, 0.3, seed=1)
    assert len(kept) == 7 and len(held) == 3
    assert len(hold_out(y, KIND, 0.0, seed=0).held) == 0


def test_the_latest_rows_are_held_out_and_how_far_ahead_is_told():
    days = pandas.date_range("2024-01-01", periods=10).strftime("%Y-%m-%d").to_series(name="day")
    kept, held, told = hold_out_latest(days[::-1], 0.3)
    assert held.tolist() == [0, 1, 2] and kept.tolist() == [*range(3, 10)]
    assert "the latest 3 rows by 'day', 2024-01-08 to 2024-01-10; training ends at 2024-01-07" in told
    assert "up to 3 days ahead, and says nothing of later ones" in told


def test_rows_of_one_time_stay_together_and_gaps_are_trained_on():
    years = pandas.Series([2021, 2022, 2022, 2022, np.nan, 2020], name="year")
    kept, held, told = hold_out_latest(years, 0.2)
    assert held.tolist() == [1, 2, 3] and kept.tolist() == [0, 4, 5]
    assert "2022 to 2022; training ends at 2021" in told and "up to 1 ahead" in told
    assert "1 row without a time trained on" in told
    same = hold_out_latest(pandas.Series([1, 1, 1, 1, 2], name="t"), 0.9)  # some must be left to train on
    assert same.held.tolist() == [4]


@pytest.mark.parametrize(
    "values, message",
    [
        (["7:30", "8:30", "9:30"], "times of day, which come again every day"),
        (["a", "b", "a"], "has no dates or numbers"),
        ([3, 3, 3], "the same time in all rows"),
    ],
)
def test_columns_that_are_no_time_are_refused(values, message):
    with pytest.raises(TableError, match=message):
        hold_out_latest(pandas.Series(values, name="t"), 0.5)
