"""Tables from files: what is read, how columns become numbers, what is refused and with which advice."""

import datetime
import json
import sys
from decimal import Decimal

import numpy as np
import pytest

pandas = pytest.importorskip("pandas")

from bayesmp import tables  # noqa: E402
from bayesmp.tables import TableEncoder, TableError, Target  # noqa: E402


def read(path, text, encoding="utf-8"):
    path = path / "table.csv"
    path.write_bytes(text.encode(encoding))
    return tables.read_table(path)


def frame(**columns):
    """A table as it comes from a CSV file: all text."""
    return pandas.DataFrame({name: pandas.Series(values, dtype="str") for name, values in columns.items()})


def encoded(table, encoder=None):
    encoder = encoder or TableEncoder().fit(table)
    return dict(zip(encoder.features, encoder.transform(table).x.T.tolist(), strict=True))


# --- files


@pytest.mark.parametrize("separator", [",", ";", "\t", ", "])
def test_a_csv_file_is_read_whatever_separates_it(tmp_path, separator):
    found = read(tmp_path, f"\ufeffa{separator}b\n007{separator}x\n{separator}y\n")
    assert list(found.columns) == ["a", "b"]
    assert found["a"][0] == "007" and found["a"].isna().tolist() == [False, True]
    assert found["b"].tolist() == ["x", "y"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "table.csv is empty"),
        ("\n\n", "table.csv is empty"),
        ("a,b\n", "names of columns but no rows"),
        ("a,b\n1,2,3\n", "not a proper CSV"),
        ("a,b\n1,2\n1,2,3\n", "not a proper CSV"),
        ("a, a \n1,2\n", "two columns named 'a'"),
        ("a,b,a\n1,2,3\n", "two columns named 'a'"),
    ],
)
def test_a_broken_csv_file_is_named(tmp_path, text, message):
    with pytest.raises(TableError, match=message):
        read(tmp_path, text)


def test_text_in_another_encoding_is_refused(tmp_path):
    with pytest.raises(TableError, match="save it as UTF-8"):
        read(tmp_path, "straße,b\n1,2\n", encoding="latin-1")


def test_missing_files_and_unknown_endings(tmp_path):
    (tmp_path / "houses.csv").touch()
    with pytest.raises(TableError, match=r"no file .*did you mean 'houses.csv'"):
        tables.read_table(tmp_path / "house.csv")
    with pytest.raises(TableError, match=r"must end in .csv or .parquet"):
        tables.read_table(tmp_path / "houses.xlsx")


def test_what_must_be_installed_is_said(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").touch()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ImportError, match=r"pip install 'bayesmp\[parquet\]'"):
            tables.read_table(tmp_path / "a.parquet")
        with pytest.raises(ImportError, match=r"pip install 'bayesmp\[parquet\]'"):
            tables.write_table(frame(a=["1"]), tmp_path / "b.parquet")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'bayesmp\[tables\]'"):
        tables.read_table(tmp_path / "a.parquet")


def test_a_parquet_file_comes_back(tmp_path):
    pytest.importorskip("pyarrow")
    table = pandas.DataFrame({"a": [1.5, None, 3.0], "b": [True, False, True], "c": ["x", None, "z"]})
    tables.write_table(table, tmp_path / "t.parquet")
    found = encoded(tables.read_table(tmp_path / "t.parquet").assign(c=["x", "z", "z"]))
    assert found["a"] == [1.5, 2.25, 3.0] and found["b=True"] == [1, 0, 1] and found["c=z"] == [0, 1, 1]
    table = pandas.DataFrame({"d": [Decimal("1.5"), Decimal("2.5"), None], "b": [True, None, False], "n": [1, 2, 3]})
    table.astype({"b": object}).to_parquet(tmp_path / "t.parquet")
    found = encoded(tables.read_table(tmp_path / "t.parquet"))
    assert found["d"] == [1.5, 2.5, 2.0] and found["b=True"] == [1, 0, 0] and found["b=(missing)"] == [0, 1, 0]
    pandas.DataFrame({"day": [datetime.date(2024, 1, 2)] * 3}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(TableError, match="holds dates"):
        TableEncoder().fit(tables.read_table(tmp_path / "t.parquet"))
    (tmp_path / "broken.parquet").write_bytes(b"no parquet")
    with pytest.raises(TableError, match="not a proper Parquet file"):
        tables.read_table(tmp_path / "broken.parquet")


# --- columns


def test_columns_become_numbers():
    table = frame(
        size=["1.5", None, "4", "2"], town=["a", "b", None, "a"], is_new=["TRUE", "false", "True", "true"]
    )  # fmt: skip
    encoder = TableEncoder().fit(table)
    assert encoded(table, encoder) == {
        "size": [1.5, 2.0, 4.0, 2.0],
        "size (missing)": [0, 1, 0, 0],
        "town=a": [1, 0, 0, 1],
        "town=b": [0, 1, 0, 0],
        "town=(missing)": [0, 0, 1, 0],
        "is_new=False": [0, 1, 0, 0],
        "is_new=True": [1, 0, 1, 1],
    }
    assert encoder.notes == [
        "column 'size': 1 missing number replaced by the median, and marked",
        "column 'town': 1 missing value, taken as a category",
    ]


def test_typed_columns_are_read_as_their_texts_are():
    """A model made from a Parquet file must understand the same table as CSV."""
    typed = pandas.DataFrame(
        {"n": [1, 2, 3, 3], "b": [True, False, True, True], "c": pandas.Categorical(["x", "y", "y", "x"])}
    )
    encoder = TableEncoder().fit(typed)
    np.testing.assert_array_equal(encoder.transform(typed).x, encoder.transform(typed.astype(str)).x)
    assert encoder.transform(typed).x.shape == (4, 5)


def test_columns_that_tell_nothing_are_left_out():
    n = 20
    table = frame(
        id=map(str, range(n)),
        name=[f"person {k}" for k in range(n)],
        country=["DE"] * n,
        zero=["0"] * n,
        empty=[None] * n,
        year=map(str, range(2000, 2000 + n)),
    )
    encoder = TableEncoder().fit(table)
    assert encoder.features == ["year"]
    assert encoder.left_out == {
        "id": "it numbers the rows",
        "name": "it names rows: 20 different texts in 20 rows",
        "country": "all values are 'DE'",
        "zero": "all values are 0",
        "empty": "all values are missing",
    }
    assert len(encoder.notes) == 5
    with pytest.raises(TableError, match=r"no column is left to learn from .*'year': as asked"):
        TableEncoder().fit(table, drop=["year"])


def test_rare_categories_share_one():
    towns = [f"town {k:02}" for k in range(60) for _ in range(1 + (k < 55))] * 2
    encoder = TableEncoder().fit(frame(town=towns))
    assert len(encoder.features) == 51 and encoder.features[-1] == "town=(other)"
    assert "60 categories" in encoder.notes[0]
    found = encoder.transform(frame(town=["town 59", "nowhere", "town 00"]))
    assert found.x[:, -1].tolist() == [1, 1, 0] and not found.is_unseen.any()


def test_numbers_with_a_few_texts_between_them():
    values = [str(k) for k in range(9)] + ["?"]
    encoder = TableEncoder().fit(frame(a=values))
    assert encoder.notes[0] == "column 'a' holds numbers but for 1 text such as '?': taken as missing"
    assert encoder.features == ["a", "a (missing)"]
    with pytest.raises(TableError, match=r"'a' held numbers in the training table, and now 2 texts such as 'x'"):
        encoder.transform(frame(a=["x", "x", "1"]))


def test_codes_can_be_taken_as_categories():
    encoder = TableEncoder().fit(frame(code=["07", "12", "07", "12"]), categories=["code"])
    assert encoder.features == ["code=07", "code=12"]
    with pytest.raises(TableError, match="no column 'cod'; did you mean 'code'"):
        TableEncoder().fit(frame(code=["1", "2"]), categories=["cod"])


@pytest.mark.parametrize(
    "values, message",
    [
        (["2024-01-02", None, "2023-12-31"], "dates .*--drop"),
        (["31.12.2023", "1.1.2024", "2.1.2024"], "dates"),
        (["2024-01-02 10:00:01", "2024-01-02T11:30", "2024-01-02 12:00"], "dates"),
        (["1,5", "2,25", "3,0"], "plain numbers"),
        (["$1,200", "$ 300", "-$5"], "plain numbers"),
        (["30 %", "5%", "12.5%"], "plain numbers"),
        (["1", "inf", "2"], "numbers beyond 1e\\+100, first inf in row 2"),
        (["1", "2", "-1e200"], "first -1e\\+200 in row 3"),
    ],
)
def test_what_cannot_be_read_is_refused_with_advice(values, message):
    with pytest.raises(TableError, match=f"column 'when' .*{message}"):
        TableEncoder().fit(frame(when=values))
    if "dates" in message:
        typed = frame(when=["a", "b", "c"]).assign(when=pandas.to_datetime(["2024-01-02"] * 3))
        with pytest.raises(TableError, match="holds dates"):
            TableEncoder().fit(typed)


def test_later_tables_are_read_as_the_first_one():
    first = frame(a=["1", "2", "3"], b=["x", "y", "x"])
    encoder = TableEncoder().fit(first)
    found = encoder.transform(frame(extra=["1", "2", "3"], b=["y", "z", None], a=["5", None, "7"]))
    np.testing.assert_array_equal(found.x, [[5, 0, 1], [2, 0, 0], [7, 0, 0]])
    assert found.is_unseen.tolist() == [False, True, True]
    assert found.notes == [
        "column 'a': 1 missing number replaced by the median; there were none in training",
        "column 'b': 2 rows with categories that training did not have ('(missing)', 'z')",
    ]


def test_missing_columns_are_named_and_near_names_suggested():
    encoder = TableEncoder().fit(frame(size=["1", "2", "3"], town=["x", "y", "x"], rooms=["1", "2", "2"]))
    with pytest.raises(TableError, match=r"2 columns of .* not found: 'town', 'rooms'; is 'Town' meant for 'town'\?"):
        encoder.transform(frame(size=["1"], Town=["x"]))


def test_an_encoder_comes_back_from_json():
    table = frame(a=["1", None, "3"], b=["x", "y", "x"], c=["1", "1", "1"])
    encoder = TableEncoder().fit(table)
    copy = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert copy.columns == encoder.columns and copy.left_out == encoder.left_out == {"c": "all values are 1"}
    np.testing.assert_array_equal(copy.transform(table).x, encoder.transform(table).x)


# --- targets


@pytest.mark.parametrize(
    "values, expected",
    [
        (["0.5", "1.5", "2.0", "3.0"] * 10, ("regression", False)),
        ([str(k) for k in range(40)], ("regression", False)),
        (["0", "1"] * 20, ("classification", True)),
        (["0.0", "1.0"] * 20, ("classification", True)),
        (["3", "7", None, "5"] * 10, ("classification", True)),
        (["yes", "no"] * 20, ("classification", False)),
        (["True", "False"] * 20, ("classification", False)),
        (["1", "2", "3"], ("regression", False)),
        (["01", "02"] * 20, ("classification", False)),
        (["1", "2", "3", "1", "x"] * 20, ("classification", False)),
        ([*map(str, range(40)), "?"], ("regression", False)),
    ],
)
def test_the_task_is_found_out(values, expected):
    target, _ = Target.decide(frame(y=values)["y"])
    assert (target.task, target.is_whole) == expected


def test_the_task_is_said_and_can_be_overridden():
    grades = frame(y=["1", "2", "3"] * 10)["y"]
    assert "3 different whole numbers, taken as classes (--task regression" in Target.decide(grades)[1]
    target, why = Target.decide(grades, "regression")
    assert target.task == "regression" and "as asked" in why
    assert "1 text such as '?' taken as missing" in Target.decide(frame(y=[*map(str, range(40)), "?"])["y"])[1]
    with pytest.raises(TableError, match="a regression needs them"):
        Target.decide(frame(y=["a", "b"] * 5)["y"], "regression")


@pytest.mark.parametrize(
    "values, message",
    [
        (["3"] * 9, "is 3 in all rows"),
        (["x"] * 9 + [None], "is x in all rows"),
        ([None] * 9, "has no values"),
        ([f"name {k}" for k in range(9)], "9 different values in 9 rows; classes must repeat"),
        (["2024-01-02", "2024-01-03"], "holds dates"),
        (["1,5", "2,5", "2,5", "1,5", "1,5"], "plain numbers"),
    ],
)
def test_targets_that_cannot_be_learned(values, message):
    with pytest.raises(TableError, match=message):
        Target.decide(frame(y=values)["y"])


def test_targets_are_read_and_gaps_told():
    values, known = Target("y", "classification", True).read(frame(y=["1", None, "2.0", "x"])["y"])
    assert known.tolist() == [True, False, True, False] and values[known].tolist() == [1, 2]
    values, known = Target("y", "classification").read(frame(y=["true", None, " b"])["y"])
    assert known.tolist() == [True, False, True] and values[known].tolist() == ["True", "b"]
    values, known = Target("y", "regression").read(frame(y=["1.5", None])["y"])
    assert known.tolist() == [True, False] and values[0] == 1.5


def test_a_few_numbers_that_repeat_may_have_been_meant_as_classes():
    values = pandas.Series([2.5, -1.0] * 20, name="y")
    target, why = Target.decide(values)
    assert target.task == "regression" and "(--task classification would change that)" in why
    assert "--task" not in Target.decide(pandas.Series(np.linspace(0.05, 1.0, 40), name="y"))[1]
