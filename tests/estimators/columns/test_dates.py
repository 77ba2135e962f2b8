"""Dates and times of day in tables: what they become, by the calendar of pandas, and what is refused."""

import datetime
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

pandas = pytest.importorskip("pandas")

from bayesmp import TableEncoder, cli  # noqa: E402
from bayesmp.estimators.columns.dates import read_as, read_dates  # noqa: E402
from bayesmp.tables import TableError, Target  # noqa: E402

WEEK = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def frame(*values, name="when"):
    return pandas.DataFrame({name: pandas.Series(values, dtype="str")})


def features(encoder):
    return list(encoder.get_feature_names_out())


def decided(table, **options):
    encoder = TableEncoder(**options)
    encoder.decide(table)
    return encoder


def numbers(table, encoder):
    return dict(zip(features(encoder), encoder.encode(table).x.T.tolist(), strict=True))


@pytest.mark.parametrize(
    "text, order, moment",
    [
        ("2024-03-01", None, (2024, 3, 1)),
        ("2024-3-1", None, (2024, 3, 1)),
        ("2024/03/01", None, (2024, 3, 1)),
        ("01.03.2024", None, (2024, 3, 1)),
        ("1.3.2024 7:05", None, (2024, 3, 1, 7, 5)),
        ("2024-03-01T07:05:30", None, (2024, 3, 1, 7, 5, 30)),
        ("2024-03-01 07:05:30.250", None, (2024, 3, 1, 7, 5, 30, 250_000)),
        ("2024-03-01T23:05:00Z", None, (2024, 3, 1, 23, 5)),
        ("2024-03-01 23:05:00+02:00", None, (2024, 3, 1, 23, 5)),  # as the clock showed it
        ("3/1/2024", "month", (2024, 3, 1)),
        ("3/1/2024", "day", (2024, 1, 3)),
        ("3/1/2024, 12:30 AM", "month", (2024, 3, 1, 0, 30)),
        ("3/1/2024 12:30 pm", "month", (2024, 3, 1, 12, 30)),
        ("29.02.2024", None, (2024, 2, 29)),
        ("29.02.2023", None, None),
        ("3/1/2024", None, None),
        ("2024-03-01 25:00", None, None),
        ("2024-03-01 noon", None, None),
        ("2024-03/01", None, None),
        ("0000-00-00", None, None),
        ("13/1/2024", "month", None),
    ],
)
def test_one_date(text, order, moment):
    (days,), others = read_as(frame(text)["when"], False, order)
    if moment is None:
        assert np.isnan(days) and others == [text]
    else:
        expected = (datetime.datetime(*moment) - datetime.datetime(1, 1, 1)) / datetime.timedelta(days=1) + 1
        assert days == pytest.approx(expected, abs=1e-8) and others == []


@pytest.mark.parametrize(
    "text, hours",
    [("7:30", 7.5), ("19:06:36", 19.11), ("07:30 pm", 19.5), ("12:00 a.m.", 0.0), ("24:00", None), ("13:00 pm", None),
     ("7:60", None)],
)  # fmt: skip
def test_one_time_of_day(text, hours):
    (found,), _ = read_as(frame(text)["when"], True, None)
    assert np.isnan(found) if hours is None else found == pytest.approx(hours)


@pytest.mark.parametrize("write", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y-%m-%d %H:%M:%S"])
def test_dates_become_days_and_what_comes_again(write):
    """Two years of days against the calendar of pandas."""
    rng = np.random.default_rng(0)
    days = pandas.Series(pandas.Timestamp("2023-11-05") + pandas.to_timedelta(rng.permutation(731), unit="D"))
    if "%H" in write:
        days += pandas.to_timedelta(rng.integers(0, 86_400, 731), unit="s")
    table = pandas.DataFrame({"when": days.dt.strftime(write)})
    encoder = decided(table)
    found = numbers(table, encoder)
    clock = (days - days.dt.normalize()) / pandas.Timedelta(days=1)
    year = 2 * np.pi * (days.dt.day_of_year - 1 + clock) / (365 + days.dt.is_leap_year)
    expected = {
        "when (days)": (days - pandas.Timestamp("2023-11-05")) / pandas.Timedelta(days=1),
        "when (time of year, sine)": np.sin(year),
        "when (time of year, cosine)": np.cos(year),
    }
    if "%H" in write:
        expected["when (time of day, sine)"] = np.sin(2 * np.pi * clock)
        expected["when (time of day, cosine)"] = np.cos(2 * np.pi * clock)
    expected |= {f"when={day}": days.dt.day_name() == day for day in WEEK}
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values.astype(float), atol=1e-7, err_msg=name)
    said = encoder.notes_[0]
    assert said.startswith("column 'when': dates, taken as days since 2023-11-05, time of year (sine and cosine)")
    assert ("is read as" in said) == (write in ("%m/%d/%Y", "%d-%m-%Y"))
    typed = encoder.encode(pandas.DataFrame({"when": days}))  # as a Parquet file has them
    np.testing.assert_allclose(typed.x, encoder.encode(table).x, atol=1e-7)


@pytest.mark.parametrize(
    "start, step, n, parts",
    [
        ("2024-01-01", "1D", 14, set()),  # 13 days from end to end
        ("2024-01-01", "1D", 15, {"weekday"}),
        ("2024-01-01", "7D", 40, set()),  # always Mondays
        ("2024-01-01", "1D", 365, {"weekday"}),
        ("2024-01-01", "1D", 366, {"weekday", "year"}),
        ("2020-01-31", pandas.offsets.MonthEnd(), 36, {"year"}),  # the ends of months fall on weekdays by chance
        ("2024-01-01 08:30", "1D", 10, set()),  # always half past eight
        ("2024-01-01 08:30", "1h", 50, {"clock"}),
    ],
)
def test_what_training_does_not_cover_is_not_learned(start, step, n, parts):
    days = pandas.Series(pandas.date_range(start, periods=n, freq=step)).astype(str)
    names = features(decided(frame(*[*days] * 14)))
    found = {
        part for part, mark in {"weekday": "=", "year": "of year", "clock": "of day"}.items() if mark in "".join(names)
    }
    assert found == parts


def test_few_rows_learn_no_weekdays():
    days = pandas.Series(pandas.date_range("2024-01-01", periods=210)).astype(str)
    assert len(features(decided(frame(*days)))) == 8
    assert features(decided(frame(*days[1:]))) == ["when (days)"]


def test_times_of_day_turn_at_midnight():
    table = frame("23:59", "0:01", "12:00", "6:00", "6:00")
    encoder = decided(table)
    assert features(encoder) == [
        "when (hours)",
        "when (time of day, sine)",
        "when (time of day, cosine)",
    ]
    assert encoder.notes_ == ["column 'when': times of day, taken as hours and time of day (sine and cosine)"]
    x = encoder.encode(table).x
    assert np.linalg.norm(x[0, 1:] - x[1, 1:]) < 0.01
    np.testing.assert_allclose(x[2:4], [[12, 0, -1], [6, 1, 0]], atol=1e-12)


def test_gaps_in_dates_are_filled_and_marked():
    days = [f"2024-01-{day:02}" for day in range(1, 30)]
    encoder = decided(frame(*days * 8, None, "unknown", "31.02.2024"))
    assert encoder.notes_[1:] == [
        "column 'when' holds dates but for 2 texts such as 'unknown': taken as missing",
        "column 'when': 3 missing dates replaced by the median, and marked",
    ]
    found = encoder.encode(frame("2024-01-02", None, "?", "02.01.2024", "2024-01-03"))
    assert features(encoder)[-1] == "when (missing)" and found.x[:, -1].tolist() == [0, 1, 1, 0, 0]
    assert found.x[:, 0].tolist() == [1, 14, 14, 1, 2]
    assert not found.x[1:3, 1:-1].any() and found.x[0].tolist() == found.x[3].tolist()
    assert not found.is_unseen.any() and found.notes == ["column 'when': 1 text such as '?' taken as missing"]


def test_dates_beyond_training_are_flagged():
    days = [f"2024-01-{day:02}" for day in (*range(1, 6), *range(8, 13), *range(15, 20))]
    encoder = decided(frame(*days * 10))
    later = frame("2023-12-31", "2024-01-01", "2024-01-19 18:00", "2024-01-20", "2024-01-06", "2024-01-22")
    found = encoder.encode(later)
    assert found.is_unseen.tolist() == [True, False, False, True, True, True]  # the 6th is a Saturday
    assert found.notes == [
        "column 'when': 4 rows with dates or weekdays that training did not cover (2024-01-01 to 2024-01-19)"
    ]
    found = encoder.encode(frame("2024-01-02", None))
    assert found.is_unseen.tolist() == [False, True] and "there were none in training" in found.notes[0]


def test_a_date_that_is_always_the_same_is_left_out():
    assert decided(frame("1.1.2024", "1.1.2024", "1.1.2024").assign(a=["1", "2", "3"])).left_out_ == {
        "when": "all values are 1.1.2024"
    }


@pytest.mark.parametrize(
    "values, message",
    [
        (
            ["3/1/2024", "4/1/2024", "12/12/2024"],
            "the day or the month may come first .3/1/2024.* write them as 2024-03",
        ),
        (["3/13/2024", "4/1/2024", "13/1/2024"], "in two orders .*13/1/2024 has the day first, 3/13/2024 the month"),
        (["31.12.23", "1.1.24", "2.1.24"], "cannot be read .31.12.23.*the year with four digits"),
        (["35:20", "61:10", "44:59"], "cannot be read .35:20.*19:30"),
    ],
)
def test_dates_that_cannot_be_told_are_refused_with_advice(values, message):
    with pytest.raises(TableError, match=f"column 'when' holds dates.*{message}.*--drop.*--categories"):
        decided(frame(*values))
    assert decided(frame(*values * 2), categories=["when"]).columns_[0].kind == "category"


def test_durations_are_refused():
    with pytest.raises(TableError, match=r"durations.*e.g. of hours"):
        decided(pandas.DataFrame({"when": pandas.to_timedelta([1, 2, 3], unit="h")}))


def test_a_date_as_a_target_is_refused():
    for values in (["7:30", "8:15"] * 5, ["2024-01-02", "2024-01-03"] * 5):
        with pytest.raises(TableError, match=r"'y' holds dates or times .* is the target: turn it into numbers"):
            Target.decide(frame(*values, name="y")["y"])


@pytest.mark.parametrize("values", [["a", "b"] * 9, ["1.5", "2024"] * 9, ["10.0.0.1", "2024-01-01"] * 9, [None, "x"]])
def test_other_columns_hold_no_dates(values):
    assert read_dates(frame(*values)["when"]) is None


@pytest.mark.parametrize("n_others, is_dates", [(1_500, True), (1_501, False)])
def test_dates_that_come_late_are_found(n_others, is_dates):
    """A fifth of a column may be other texts, wherever they stand."""
    found = read_dates(frame(*["none"] * n_others, *["2024-01-01", "2024-01-02"] * 3_000)["when"])
    assert (found is not None) == is_dates
    if found is not None:
        assert len(found.others) == n_others and np.nanmin(found.values) + 1 == np.nanmax(found.values)


def test_a_later_table_is_read_as_the_first_one():
    first = frame("3/1/2024", "4/30/2024", "5/1/2024", "5/2/2024")
    encoder = decided(first)
    copy = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert copy.columns_ == encoder.columns_
    later = frame("3/2/2024", "2024-03-02", "02.03.2024")
    assert copy.encode(later).x[:, 0].tolist() == [1, 1, 1]
    with pytest.raises(
        TableError, match="'when' held dates in the training table, and now 3 texts such as '13/3/2024'"
    ):
        copy.encode(frame("13/3/2024", "14/3/2024", "15/3/2024"))


@pytest.mark.slow
def test_a_table_with_dates_from_fit_to_predict(tmp_path):
    rng = np.random.default_rng(0)
    days = pandas.Series(pandas.date_range("2022-01-01", periods=800))
    y = 3 * np.sin(2 * np.pi * days.dt.day_of_year / 365.25) + (days.dt.day_of_week >= 5) + 0.1 * rng.normal(size=800)
    table = pandas.DataFrame({"day": days.dt.strftime("%d.%m.%Y"), "sold": y})
    table.sample(300, random_state=0).to_csv(tmp_path / "t.csv", index=False)
    new = pandas.DataFrame({"day": ["01.07.2023", "01.07.2030"]})
    new.to_csv(tmp_path / "new.csv", index=False)

    def call(*arguments):
        result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.output

    model = tmp_path / "m.safetensors"
    said = call("fit", tmp_path / "t.csv", "--target", "sold", "--out", model, "--epochs", "40", "--hidden", "16")
    assert re.search(r"column 'day': dates, taken as days since 2022-01-0\d, time of year .* and weekday", said)
    assert float(re.search(r"R2 +(\S+)", said)[1]) > 0.9
    assert re.search(r"day +date from 2022-\S+ to 2024-\S+: days since", call("info", model))
    said = call("predict", model, tmp_path / "new.csv", "--out", tmp_path / "out.csv")
    assert "1 row with dates or weekdays that training did not cover" in said
    assert pandas.read_csv(tmp_path / "out.csv")["unlike_training"].tolist() == [False, True]
