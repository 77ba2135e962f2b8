"""Tables from files: what is read, how columns become numbers, what is refused and with which advice."""

import datetime
import gzip
import sys
from decimal import Decimal

import numpy as np
import pytest

pandas = pytest.importorskip("pandas")

from bayesmp import TableEncoder, tables  # noqa: E402
from bayesmp.tables import TableError, Target  # noqa: E402


def read(path, text, encoding="utf-8"):
    path = path / "table.csv"
    path.write_bytes(text.encode(encoding))
    return tables.read_table(path)


def frame(**columns):
    """A table as it comes from a CSV file: all text."""
    return pandas.DataFrame({name: pandas.Series(values, dtype="str") for name, values in columns.items()})


def encoded(table):
    encoder = TableEncoder()
    encoder.decide(table)
    return dict(zip(encoder.get_feature_names_out(), encoder.encode(table).x.T.tolist(), strict=True))


# --- files


@pytest.mark.parametrize("separator", [",", ";", "\t", ", ", "|"])
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


def test_the_lines_tell_what_separates_columns(tmp_path):
    """A name with commas, decimal commas and quotes: the first line alone had more commas than semicolons."""
    found = read(tmp_path, 'name, first, last;size;note\nx;1,5;"a;b, c"\ny;2,5;d\n')
    assert found.to_dict("list") == {"name, first, last": ["x", "y"], "size": ["1,5", "2,5"], "note": ["a;b, c", "d"]}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"])
def test_text_in_any_usual_encoding_is_read(tmp_path, encoding):
    """What is not UTF-8 was refused."""
    path, said = tmp_path / "table.csv", []
    text = "straße,größe\n" + "é,1\n" * 3 + ("\x81,2\n" if encoding == "latin-1" else "x,2\n")
    path.write_bytes(text.encode(encoding))
    assert tables.read_table(path, tell=said.append).to_dict("list") == {
        "straße": ["é"] * 3 + ["\x81" if encoding == "latin-1" else "x"], "größe": ["1", "1", "1", "2"]
    }  # fmt: skip
    assert said == ([] if "utf" in encoding else [f"table.csv is not UTF-8 text; read as {encoding}"])
    packed = tmp_path / "table.csv.gz"
    packed.write_bytes(gzip.compress(text.encode(encoding)))
    assert tables.read_table(packed).equals(tables.read_table(path))


@pytest.mark.parametrize(
    "content, what", [(b"PK\x03\x04..", "a zip or Excel"), (b"PAR1..", "a Parquet file"), (b"a\0b", "not text")]
)
def test_other_files_with_the_ending_of_a_text_are_told_apart(tmp_path, content, what):
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(TableError, match=f"table.csv is not text.*{what}|table.csv is {what}"):
        tables.read_table(tmp_path / "table.csv")


def test_a_file_without_names_is_asked_about(tmp_path):
    """Its first row became the names."""
    with pytest.raises(TableError, match=r"table.csv, line 1: there are numbers \(1.5, -2, 3e-5\).* give --no-header"):
        read(tmp_path, "1.5,-2,3e-5\n1,2,3\n")
    path = tmp_path / "table.csv"
    assert tables.read_table(path, has_names=False).to_dict("list") == {
        "c1": ["1.5", "1"], "c2": ["-2", "2"], "c3": ["3e-5", "3"]
    }  # fmt: skip
    assert list(tables.read_table(path, has_names=True).columns) == ["1.5", "-2", "3e-5"]
    assert list(read(tmp_path, "2020,town\n1,2\n").columns) == ["2020", "town"]
    with pytest.raises(TableError, match=r"line 3: 3 fields, and 2 in the lines before"):
        read(tmp_path, "a,b\n1,2\n1,2,3\n")


def test_an_excel_file_is_read_and_written(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["code", "size", "day", "is_new", None])
    sheet.append(["007", 1.5, datetime.date(2024, 3, 1), True, None])
    sheet.append([])
    sheet.append(["012", None, datetime.date(2024, 3, 2), False, None])
    book.create_sheet("further")
    path, said = tmp_path / "t.xlsx", []
    book.save(path)
    found = tables.read_table(path, tell=said.append)
    assert found["code"].tolist() == ["007", "012"] and found["size"].isna().tolist() == [False, True]
    assert found["day"].tolist() == ["2024-03-01 00:00:00", "2024-03-02 00:00:00"]
    assert list(found.columns) == ["code", "size", "day", "is_new"]
    assert said == ["t.xlsx has 2 sheets; the first one, 'Sheet', is read"]
    tables.write_table(found, tmp_path / "again.xlsx")
    assert tables.read_table(tmp_path / "again.xlsx").equals(found)
    book = openpyxl.Workbook()
    for row in ([1, 2.5], [3, 4]):
        book.active.append(row)
    book.save(path)
    with pytest.raises(TableError, match=r"t.xlsx, line 1: there are numbers \(1, 2.5\)"):
        tables.read_table(path)
    assert tables.read_table(path, has_names=False).to_dict("list") == {"c1": ["1", "3"], "c2": ["2.5", "4"]}
    path.write_bytes(b"no book")
    with pytest.raises(TableError, match=r"t.xlsx is not a proper Excel file"):
        tables.read_table(path)


def test_missing_files_and_unknown_endings(tmp_path):
    (tmp_path / "houses.csv").touch()
    with pytest.raises(TableError, match=r"no file .*did you mean 'houses.csv'"):
        tables.read_table(tmp_path / "house.csv")
    with pytest.raises(TableError, match=r"must end in .csv, .tsv or .parquet"):
        tables.read_table(tmp_path / "houses.json")
    with pytest.raises(TableError, match=r"save it as .xlsx"):
        tables.read_table(tmp_path / "houses.xls")


def test_what_must_be_installed_is_said(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").touch()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ImportError, match=r"pip install 'bayesmp\[parquet\]'"):
            tables.read_table(tmp_path / "a.parquet")
        with pytest.raises(ImportError, match=r"pip install 'bayesmp\[parquet\]'"):
            tables.write_table(frame(a=["1"]), tmp_path / "b.parquet")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "openpyxl", None)
        patch.setitem(sys.modules, "openpyxl.workbook", None)
        (tmp_path / "a.xlsx").touch()
        with pytest.raises(ImportError, match=r"Excel files need openpyxl: pip install 'bayesmp\[excel\]'"):
            tables.read_table(tmp_path / "a.xlsx")
        with pytest.raises(ImportError, match=r"pip install 'bayesmp\[excel\]'"):
            tables.write_table(frame(a=["1"]), tmp_path / "b.xlsx")
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


def test_a_table_from_a_country_with_decimal_commas(tmp_path):
    table = read(tmp_path, "größe;preis\n1,5;1.200,00\n2,25;950,50\n;12,00\n")
    assert encoded(table) == {"größe": [1.5, 2.25, 1.875], "größe (missing)": [0, 0, 1], "preis": [1200, 950.5, 12]}


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
