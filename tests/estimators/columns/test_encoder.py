"""How the columns of a table become numbers, what is refused and with which advice."""

import json

import numpy as np
import pytest

pandas = pytest.importorskip("pandas")

from bayesmp import TableEncoder  # noqa: E402
from bayesmp.estimators.columns.words import TableError  # noqa: E402
from bayesmp.tables import Target  # noqa: E402


def frame(**columns):
    """A table as it comes from a CSV file: all text."""
    return pandas.DataFrame({name: pandas.Series(values, dtype="str") for name, values in columns.items()})


def features(encoder):
    return list(encoder.get_feature_names_out())


def decided(table, **options):
    encoder = TableEncoder(**options)
    encoder.decide(table)
    return encoder


def encoded(table, encoder=None):
    encoder = encoder or decided(table)
    return dict(zip(encoder.get_feature_names_out(), encoder.encode(table).x.T.tolist(), strict=True))


def test_columns_become_numbers():
    table = frame(
        size=["1.5", None, "4", "2"], town=["a", "b", None, "a"], is_new=["TRUE", "false", "True", "true"]
    )  # fmt: skip
    encoder = decided(table)
    assert encoded(table, encoder) == {
        "size": [1.5, 2.0, 4.0, 2.0],
        "size (missing)": [0, 1, 0, 0],
        "town=a": [1, 0, 0, 1],
        "town=b": [0, 1, 0, 0],
        "town=(missing)": [0, 0, 1, 0],
        "is_new=False": [0, 1, 0, 0],
        "is_new=True": [1, 0, 1, 1],
    }
    assert encoder.notes_ == [
        "column 'size': 1 missing number replaced by the median, and marked",
        "column 'town': 1 missing value, taken as a category",
    ]


def test_typed_columns_are_read_as_their_texts_are():
    """A model made from a Parquet file must understand the same table as CSV."""
    typed = pandas.DataFrame(
        {"n": [1, 2, 3, 3], "b": [True, False, True, True], "c": pandas.Categorical(["x", "y", "y", "x"])}
    )
    encoder = decided(typed)
    np.testing.assert_array_equal(encoder.encode(typed).x, encoder.encode(typed.astype(str)).x)
    assert encoder.encode(typed).x.shape == (4, 5)


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
    encoder = decided(table)
    assert features(encoder) == ["year"]
    assert encoder.left_out_ == {
        "id": "it numbers the rows",
        "name": "it names rows: 20 different texts in 20 rows",
        "country": "all values are 'DE'",
        "zero": "all values are 0",
        "empty": "all values are missing",
    }
    assert len(encoder.notes_) == 5
    with pytest.raises(TableError, match=r"no column is left to learn from .*'year': as asked"):
        decided(table, drop=["year"])


def test_rare_categories_share_one():
    towns = [f"town {k:02}" for k in range(60) for _ in range(1 + (k < 55))] * 2
    encoder = decided(frame(town=towns))
    assert len(features(encoder)) == 51 and features(encoder)[-1] == "town=(other)"
    assert "60 categories" in encoder.notes_[0]
    found = encoder.encode(frame(town=["town 59", "nowhere", "town 00"]))
    assert found.x[:, -1].tolist() == [1, 1, 0] and not found.is_unseen.any()


def test_numbers_with_a_few_texts_between_them():
    values = [str(k) for k in range(9)] + ["?"]
    encoder = decided(frame(a=values))
    assert encoder.notes_[0] == "column 'a' holds numbers but for 1 text such as '?': taken as missing"
    assert features(encoder) == ["a", "a (missing)"]
    with pytest.raises(TableError, match=r"'a' held numbers in the training table, and now 2 texts such as 'x'"):
        encoder.encode(frame(a=["x", "x", "1"]))


def test_a_text_that_meant_a_gap_in_training_means_one_in_any_table():
    """A row with "?" was refused when it came alone, and one among many was told of each time."""
    encoder = decided(frame(a=[*map(str, range(20)), "?", " ?"], b=["2024-03-01", "2024-03-02"] * 10 + ["none"] * 2))
    again = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    for known in (encoder, again):
        found = known.encode(frame(a=["?"], b=["none"]))
        assert found.x.tolist() == [[9.5, 1.0, 0.5, 1.0]] and not found.is_unseen.any() and not found.notes
        with pytest.raises(TableError, match="'a' held numbers in the training table, and now 1 text such as 'x'"):
            known.encode(frame(a=["x"], b=["none"]))


def test_codes_can_be_taken_as_categories():
    encoder = decided(frame(code=["07", "12", "07", "12"]), categories=["code"])
    assert features(encoder) == ["code=07", "code=12"]
    with pytest.raises(TableError, match="no column 'cod'; did you mean 'code'"):
        decided(frame(code=["1", "2"]), categories=["cod"])


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
        decided(frame(when=values))


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
    encoder = decided(frame(a=values))
    assert encoded(frame(a=values), encoder) == {"a": numbers}
    assert encoder.columns_[0].decimal == decimal
    assert "is read as" in encoder.notes_[0]
    target, why = Target.decide(frame(y=values)["y"])
    assert target.task == "regression" and "is read as" in why
    assert target.read(frame(y=values)["y"])[0].tolist() == numbers


def test_large_numbers_with_commas_are_not_taken_as_missing():
    """Most numbers of the column were below 1,000; the others became gaps, and then the median."""
    values = [*map(str, range(0, 1000, 50)), "1,200", "14,000"]
    encoder = decided(frame(a=values))
    assert encoded(frame(a=values), encoder)["a"][-2:] == [1200, 14000]
    assert encoder.notes_ == ["column 'a': 2 numbers with commas or signs, 1,200 is read as 1200"]


def test_a_later_row_is_read_with_the_decimal_sign_of_training(tmp_path):
    """2,052 alone could be either."""
    for values, number in (["2,05", "1,1", "3,0"], 2.052), (["2,052", "800", "1,234.5"], 2052.0):
        encoder = decided(frame(a=values))
        copy = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
        assert copy.encode(frame(a=["2,052"])).x.tolist() == [[number]]
        target, _ = Target.decide(frame(y=values)["y"])
        assert target.read(frame(y=["2,052"])["y"])[0].tolist() == [number]


def test_codes_with_zeros_in_front_are_categories():
    """A postal code such as 01067 was learned from as the number 1,067, and nothing said so."""
    encoder = decided(frame(code=["01067", "10115", "01067", "10115"]))
    assert features(encoder) == ["code=01067", "code=10115"]
    assert encoder.notes_ == ["column 'code' has codes with zeros in front: taken as categories"]
    padded = frame(a=[f"{k:04}" for k in range(20)])
    assert encoded(padded) == {"a": list(range(20))}
    assert encoded(frame(a=["0.5", "0", "10", "0.5"])) == {"a": [0.5, 0, 10, 0.5]}


def test_a_fifth_of_texts_between_numbers_is_neither_too_much_now_nor_later():
    """`fit` took one text of five as missing, `transform` refused the same table: 1 > (1 - 0.8) * 5 in floats."""
    table = frame(a=["(5)", "6", "7", "8", "9"])
    assert encoded(table)["a (missing)"] == [1, 0, 0, 0, 0]


def test_later_tables_are_read_as_the_first_one():
    first = frame(a=["1", "2", "3"], b=["x", "y", "x"])
    encoder = decided(first)
    found = encoder.encode(frame(extra=["1", "2", "3"], b=["y", "z", None], a=["5", None, "7"]))
    np.testing.assert_array_equal(found.x, [[5, 0, 1], [2, 0, 0], [7, 0, 0]])
    assert found.is_unseen.tolist() == [False, True, True]
    gap = encoder.encode(frame(a=["5", None, "7"], b=["x", "x", "y"]))
    assert gap.is_unseen.tolist() == [False, True, False]  # training had no gaps: what one means was not learned
    assert found.notes == [
        "column 'a': 1 missing number replaced by the median; there were none in training",
        "column 'b': 2 rows with categories that training did not have ('(missing)', 'z')",
    ]


def test_missing_columns_are_named_and_near_names_suggested():
    encoder = decided(frame(size=["1", "2", "3"], town=["x", "y", "x"], rooms=["1", "2", "2"]))
    with pytest.raises(TableError, match=r"2 columns of .* not found: 'town', 'rooms'; is 'Town' meant for 'town'\?"):
        encoder.encode(frame(size=["1"], Town=["x"]))


def test_an_encoder_comes_back_from_json():
    table = frame(a=["1", None, "3"], b=["x", "y", "x"], c=["1", "1", "1"])
    encoder = decided(table)
    copy = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert copy.columns_ == encoder.columns_ and copy.left_out_ == encoder.left_out_ == {"c": "all values are 1"}
    np.testing.assert_array_equal(copy.encode(table).x, encoder.encode(table).x)


# --- units, sentinels, rare texts


@pytest.mark.parametrize(
    "values, unit, numbers",
    [
        (["3750 g", "3800 g", "3250 g"], "g", [3750, 3800, 3250]),
        (["1,234.5 km/h", "12 km/h", "3 km/h"], "km/h", [1234.5, 12, 3]),
        (["1.234,5kg", "2,25kg", "-3kg"], "kg", [1234.5, 2.25, -3]),
        (["EUR 5.5", "EUR 7", "9 EUR"], "EUR", [5.5, 7, 9]),
        (["21.5 °C", "-3 °C", "8 °C"], "°C", [21.5, -3, 8]),
        (["30 m2", "40 m2", "50 m²"] + ["60 m2"] * 20, "m2", None),
        (["30 sq ft", "40 sq ft", "50 sq ft"], "sq ft", [30, 40, 50]),
    ],
)
def test_a_unit_that_all_numbers_share_is_left_out(values, unit, numbers):
    table = frame(a=values)
    encoder = decided(table)
    assert encoder.columns_[0].unit == unit
    assert f"with the unit {unit!r}, which is left out, {values[0]} is read as" in encoder.notes_[0]
    if numbers is None:
        assert "holds numbers but for 1 text such as '50 m²': taken as missing" in encoder.notes_[1]
    else:
        assert encoded(table, encoder) == {"a": numbers}
        target, why = Target.decide(table["a"])
        assert target.task == "regression" and target.unit == unit and "is left out" in why
        assert target.read(table["a"])[0].tolist() == numbers
    copy = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert copy.columns_ == encoder.columns_
    with pytest.raises(TableError, match=rf"'a' held numbers .* now 1 text such as '3750', without the unit '{unit}'"):
        copy.encode(frame(a=["3750"]))


@pytest.mark.parametrize(
    "values",
    [
        ["rose 1", "rose 2", "rose 3"],
        ["7a", "7b", "12a", "12c", "9d", "8b"],
        ["01a", "02a", "03a"],
        ["4x4", "2x2", "4x2"],
        ["Q1", "Q2", "Q3"],
        ["1st", "2nd", "3rd"],
    ],
)
def test_names_with_numbers_are_no_quantities(values):
    encoder = decided(frame(a=values * 5))
    assert encoder.columns_[0].kind == "category" and encoder.notes_ == []


def test_several_units_are_told_and_refused_as_a_target():
    """94 classes of body mass were made of them."""
    values = [f"{3000 + 50 * k} g" for k in range(20)] + [f"{3 + k / 10} kg" for k in range(20)]
    encoder = decided(frame(mass=values * 3))
    assert (
        encoder.notes_[0]
        == "column 'mass' holds numbers in several units (g, kg), taken as texts: write them in one unit"
    )
    with pytest.raises(TableError, match=r"the target 'y' holds numbers in several units \(g, kg\): write them in one"):
        Target.decide(frame(y=values * 3)["y"])
    target, _ = Target.decide(frame(y=[f"{3000 + 50 * k} g" for k in range(20)] * 5)["y"])
    assert target.task == "regression"


@pytest.mark.parametrize(
    "value, others, is_told",
    [
        (-999, np.arange(20, 81), True),
        (9999, np.arange(100, 5000, 50), True),
        (-99, np.arange(0, 1000, 7), True),  # alone below zero
        (99, np.arange(18, 81), False),  # an age
        (-9, np.arange(20, 81), False),
        (100000, np.arange(20, 81), False),
        (-99, np.arange(-200, 200), False),
    ],
)
def test_numbers_that_may_stand_for_missing_ones_are_told_and_stay(value, others, is_told):
    values = [*map(str, others), str(value), str(value)]
    encoder = decided(frame(a=values))
    told = [f"column 'a' has {value} in 2 rows, far from all other values"] if is_told else []
    assert [note.split(":")[0] for note in encoder.notes_] == told
    assert encoded(frame(a=values), encoder)["a"][-1] == value
    assert decided(frame(a=values[:-1])).notes_ == []  # once is no code


def test_a_text_in_one_row_shares_a_category_with_others_like_it_and_with_new_ones():
    encoder = decided(frame(town=["a", "b"] * 15 + ["typo", "tpyo"]))
    assert features(encoder) == ["town=a", "town=b", "town=(other)"]
    assert encoder.notes_ == ["column 'town' has 4 categories: the 2 most frequent count, the others share one"]
    found = encoder.encode(frame(town=["typo", "new", "a"]))
    assert found.x.tolist() == [[0, 0, 1], [0, 0, 1], [1, 0, 0]] and not found.is_unseen.any()
    assert found.notes == [
        "column 'town': 1 row with categories that training did not have ('new'), taken as '(other)'"
    ]
    assert "typo" not in json.dumps(encoder.to_json())  # rare texts may be names of people
    gap = encoder.encode(frame(town=["typo", None, "a"]))
    assert gap.is_unseen.tolist() == [False, True, False]
    assert gap.notes == ["column 'town': 1 row with categories that training did not have ('(missing)')"]
    assert features(decided(frame(town=["a", "b", "a"]))) == ["town=a", "town=b"]  # too few rows to call one rare
