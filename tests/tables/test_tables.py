"""Tables from files: what is read, how columns become numbers, what is refused and with which advice."""

import datetime
import gzip
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
    with pytest.raises(TableError, match=r"must end in .csv, .tsv or .parquet"):
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
    pandas.DataFrame({"day": [datetime.date(2024, 1, 2 + k) for k in range(3)]}).to_parquet(tmp_path / "t.parquet")
    assert encoded(tables.read_table(tmp_path / "t.parquet")) == {"day (days)": [0, 1, 2]}
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
        (["2,052", "1,234", "5,678"], "two ways.* plain numbers"),
        (["1,2", "3.4", "5,6"], "cannot be read in one way"),
        (["$5", "€6", "7"], "cannot be read in one way"),
        (["30 %", "0.3", "5%"], "cannot be read in one way"),
        (["10.0.0.1", "10.0.0.2", "1.1.1.1"], "cannot be read in one way"),
        (["030 12345", "040 6789", "030 11111"], "cannot be read in one way"),
        (["1", "inf", "2"], "numbers beyond 1e\\+100, first inf in row 2"),
        (["1", "2", "-1e200"], "first -1e\\+200 in row 3"),
    ],
)
def test_what_cannot_be_read_is_refused_with_advice(values, message):
    with pytest.raises(TableError, match=f"column 'when' .*{message}"):
        TableEncoder().fit(frame(when=values))


@pytest.mark.parametrize(
    "values, numbers, decimal",
    [
        (["1,5", "2,25", "-3,0"], [1.5, 2.25, -3], ","),
        (["2,052", "-0,061", "1,1"], [2.052, -0.061, 1.1], ","),  # 0,061 is no group of three
        (["1.234,50", "12,00", "1.000.000,10"], [1234.5, 12, 1000000.1], ","),
        (["1 200,5", "30,1", "2"], [1200.5, 30.1, 2], ","),
        (["1,234.50", "12.00", "-1,000,000.10"], [1234.5, 12, -1000000.1], "."),
        (["$1,200", "$ 300", "-$5"], [1200, 300, -5], "."),
        (["30 %", "5%", "12.5%"], [30, 5, 12.5], "."),
        (["1e-5", "1,200", "7"], [1e-5, 1200, 7], "."),
    ],
)
def test_formatted_numbers_are_read_and_how_is_said(values, numbers, decimal):
    encoder = TableEncoder().fit(frame(a=values))
    assert encoded(frame(a=values), encoder) == {"a": numbers}
    assert encoder.columns[0].decimal == decimal
    assert "is read as" in encoder.notes[0]
    target, why = Target.decide(frame(y=values)["y"])
    assert target.task == "regression" and "is read as" in why
    assert target.read(frame(y=values)["y"])[0].tolist() == numbers


def test_large_numbers_with_commas_are_not_taken_as_missing():
    """Most numbers of the column were below 1,000; the others became gaps, and then the median."""
    values = [*map(str, range(0, 1000, 50)), "1,200", "14,000"]
    encoder = TableEncoder().fit(frame(a=values))
    assert encoded(frame(a=values), encoder)["a"][-2:] == [1200, 14000]
    assert encoder.notes == ["column 'a': numbers with commas or signs, 1,200 is read as 1200"]


def test_a_later_row_is_read_with_the_decimal_sign_of_training(tmp_path):
    """2,052 alone could be either."""
    for values, number in (["2,05", "1,1", "3,0"], 2.052), (["2,052", "800", "1,234.5"], 2052.0):
        encoder = TableEncoder().fit(frame(a=values))
        copy = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
        assert copy.transform(frame(a=["2,052"])).x.tolist() == [[number]]
        target, _ = Target.decide(frame(y=values)["y"])
        assert target.read(frame(y=["2,052"])["y"])[0].tolist() == [number]


def test_a_table_from_a_country_with_decimal_commas(tmp_path):
    table = read(tmp_path, "größe;preis\n1,5;1.200,00\n2,25;950,50\n;12,00\n")
    assert encoded(table) == {"größe": [1.5, 2.25, 1.875], "größe (missing)": [0, 0, 1], "preis": [1200, 950.5, 12]}


def test_codes_with_zeros_in_front_are_categories():
    """A postal code such as 01067 was learned from as the number 1,067, and nothing said so."""
    encoder = TableEncoder().fit(frame(code=["01067", "10115", "01067", "10115"]))
    assert encoder.features == ["code=01067", "code=10115"]
    assert encoder.notes == ["column 'code' has codes with zeros in front: taken as categories"]
    padded = frame(a=[f"{k:04}" for k in range(20)])
    assert encoded(padded) == {"a": list(range(20))}
    assert encoded(frame(a=["0.5", "0", "10", "0.5"])) == {"a": [0.5, 0, 10, 0.5]}


def test_a_fifth_of_texts_between_numbers_is_neither_too_much_now_nor_later():
    """`fit` took one text of five as missing, `transform` refused the same table: 1 > (1 - 0.8) * 5 in floats."""
    table = frame(a=["(5)", "6", "7", "8", "9"])
    assert encoded(table)["a (missing)"] == [1, 0, 0, 0, 0]


def test_a_tsv_file_comes_back(tmp_path):
    table = frame(a=["1", "2"], b=["x,y", "z"])
    tables.write_table(table, tmp_path / "t.tsv")
    assert (tmp_path / "t.tsv").read_text().startswith("a\tb\n")
    assert tables.read_table(tmp_path / "t.tsv").equals(table)


@pytest.mark.parametrize("ending, separator", [("csv.gz", ","), ("tsv.gz", "\t"), ("CSV.GZ", ",")])
def test_a_packed_file_is_read_and_written(tmp_path, ending, separator):
    table, path = frame(a=["1", "2"], b=["größe", "z"]), tmp_path / f"t.{ending}"
    path.write_bytes(gzip.compress("a;b\n1;größe\n2;z\n".encode()))
    assert tables.read_table(path).equals(table)
    tables.write_table(table, path)
    assert gzip.decompress(path.read_bytes()).decode().startswith(f"a{separator}b\n")
    assert tables.read_table(path).equals(table)
    whole = path.read_bytes()
    for broken in (b"a,b\n1,2\n", whole[:-9], whole[:-8] + b"\x01" * 8):
        path.write_bytes(broken)
        with pytest.raises(TableError, match="is not a complete gzip file"):
            tables.read_table(path)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(TableError, match="is empty"):
        tables.read_table(path)


def test_a_first_line_without_names_is_told():
    with pytest.raises(TableError, match=r"no column 'y': the first line holds numbers \(0.5, -3\)"):
        tables.check_column("y", ["0.5", "-3"])


def test_later_tables_are_read_as_the_first_one():
    first = frame(a=["1", "2", "3"], b=["x", "y", "x"])
    encoder = TableEncoder().fit(first)
    found = encoder.transform(frame(extra=["1", "2", "3"], b=["y", "z", None], a=["5", None, "7"]))
    np.testing.assert_array_equal(found.x, [[5, 0, 1], [2, 0, 0], [7, 0, 0]])
    assert found.is_unseen.tolist() == [False, True, True]
    gap = encoder.transform(frame(a=["5", None, "7"], b=["x", "x", "y"]))
    assert gap.is_unseen.tolist() == [False, True, False]  # training had no gaps: what one means was not learned
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
    assert "2 different values" in Target.decide(frame(y=["ja", "ja ", "nein"] * 5)["y"])[1]
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
        (["1,125", "2,125", "2,125", "1,125", "1,125"], "plain numbers"),
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
