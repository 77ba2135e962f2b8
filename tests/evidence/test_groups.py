"""Groups of rows against a naive search over all pairs."""

import numpy as np
import pandas as pd
import pytest
import torch

from bayesmp.evidence import groups
from bayesmp.evidence.groups import check_groups, groups_of


def naive(x, named=None) -> list[int]:
    """Rows are linked pair by pair until nothing changes."""
    n = len(x)
    number = list(range(n))
    changed = True
    while changed:
        changed = False
        for i in range(n):
            for j in range(n):
                is_linked = bool((x[i] == x[j]).all()) or (named is not None and named[i] == named[j])
                if is_linked and number[i] != number[j]:
                    number[i] = number[j] = min(number[i], number[j])
                    changed = True
    first: dict[int, int] = {}
    return [first.setdefault(k, len(first)) for k in number]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 2, 3, 5])
@pytest.mark.parametrize("has_names", [False, True])
def test_groups_are_those_of_all_pairs(dtype, d, has_names):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.integers(-1, 3, size=(30, d)).astype(dtype) * dtype(0.1)
        named = rng.integers(0, 25, 30) if has_names else None
        found = groups_of(x, named)
        assert found.dtype == torch.int64 and found.tolist() == naive(x, named)
        assert groups_of(torch.as_tensor(x), named).tolist() == found.tolist()


def test_rows_that_are_all_different_have_numbers_of_their_own():
    x = np.random.default_rng(0).normal(size=(50, 3))
    assert groups_of(x).tolist() == list(range(50))
    nearly = x[:1] + np.array([[0.0], [1e-15]])
    assert groups_of(nearly).tolist() == [0, 1]


def test_minus_zero_is_zero():
    assert groups_of(np.array([[0.0, 1.0], [-0.0, 1.0], [0.0, 2.0]])).tolist() == [0, 0, 1]


def test_groups_that_share_a_copy_are_one():
    """0 and 1 by name, 1 and 2 as copies, 2 and 3 by name."""
    x = np.array([[0.0], [1.0], [1.0], [2.0], [3.0]])
    assert groups_of(x, ["a", "a", "b", "b", "c"]).tolist() == [0, 0, 0, 0, 1]


def test_images_are_compared_whole():
    x = np.zeros((3, 2, 2))
    x[1, 1, 1] = 1.0
    assert groups_of(x).tolist() == [0, 1, 0]


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
def test_tables_without_rows_or_columns(shape):
    assert groups_of(np.zeros(shape)).tolist() == [0] * shape[0]
    assert groups_of(np.zeros(shape), np.zeros(shape[0])).tolist() == [0] * shape[0]


def test_rows_with_the_same_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(groups, "_hashes", lambda as_bytes: np.zeros(len(as_bytes), dtype=np.uint64))
    x = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    assert groups_of(x).tolist() == [0, 1, 0]


def test_round_numbers_have_different_hashes():
    """Their last bits are all zero, and a product carries upwards only."""
    x = np.stack(np.meshgrid(np.arange(200.0), 0.5 * np.arange(200.0)), -1).reshape(-1, 2)
    assert len(np.unique(groups._hashes(x.view(np.uint8)))) == len(x)


@pytest.mark.parametrize(
    "labels",
    [
        ["b", "a", "b", 1, 1],
        [("x", 1), "a", ("x", 1), 2, 2],
        np.array([2.5, 0.0, 2.5, -1.0, -1.0]),
        torch.tensor([2, 0, 2, 7, 7]),
        pd.Series(["b", "a", "b", "c", "c"]),
        pd.Series(["b", "a", "b", "c", "c"], dtype="category"),
        pd.Series([3, 4, 3, 5, 5], dtype="Int64"),
        pd.to_datetime(["2020-01-02", "2020-01-01", "2020-01-02", "2021-01-01", "2021-01-01"]),
    ],
    ids=str,
)
def test_labels_of_any_type_are_numbered(labels):
    found = check_groups(labels, 5)
    assert groups_of(np.arange(5.0)[:, None], found).tolist() == [0, 1, 0, 2, 2]


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
def test_a_missing_label_is_named(missing):
    for labels in (["a", missing, "b"], pd.Series(["a", missing, "b"], dtype=object)):
        with pytest.raises(ValueError, match=r"groups has a missing label in row 1 \(1 in all\)"):
            check_groups(labels, 3)


def test_no_groups_are_none():
    assert check_groups(None, 3) is None


def test_doubled_measurements_count_once():
    """Every row twice: each of the two counts half."""
    x, y = np.random.default_rng(0).normal(size=(2, 20))
    weight = groups.copies_count_once(np.concatenate([x, x])[:, None], np.concatenate([y, y]))
    assert weight.tolist() == [0.5] * 40


def test_a_measurement_made_again_counts_fully():
    """Equal inputs with different targets tell the noise; equal rows among them are no copies."""
    x = np.repeat(np.arange(4.0), 25)[:, None]
    y = np.random.default_rng(0).integers(0, 3, 100).astype(float)
    assert groups.copies_count_once(x, y).tolist() == [1.0] * 100


@pytest.mark.parametrize("n_values", [2, 40, 400])
@pytest.mark.parametrize("n_different, is_copy", [(0, True), (6, True), (40, False)])
def test_targets_of_few_values_are_equal_by_chance(n_values, n_different, is_copy):
    """Labels that are all the same in the second copy of a table are copied; people who mostly agree are not."""
    y = np.tile(np.arange(200) % n_values, 2).astype(float)
    y[:n_different] = (y[:n_different] + 1) % n_values
    x = np.tile(np.arange(200.0), 2)[:, None]
    weight = groups.copies_count_once(x, y)
    is_copy |= n_values == 400  # targets that are never equal by chance
    assert (weight[n_different:200] < 1).all() == is_copy and (weight[:n_different] == 1).all()


@pytest.mark.parametrize("spread, expected", [(0.0, 1.0), (1e-3, 0.5)])
def test_labels_of_inputs_that_are_equal_by_chance_are_measured_again(spread, expected):
    """A truth table that is written down many times is certain; two equal rows of numbers are one row twice."""
    table = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    x = np.tile(table, (50, 1)) + spread * np.random.default_rng(0).normal(size=(200, 2))
    y = np.tile([0, 1, 1, 0], 50)
    weight = groups.copies_count_once(np.concatenate([x, x]), np.concatenate([y, y]))
    assert (weight == expected).all()


@pytest.mark.parametrize("n_inputs, expected", [(3, 1.0), (14, 1.0), (15, 0.05), (40, 0.05)])
def test_few_inputs_do_not_tell_whether_they_are_equal_by_chance(n_inputs, expected):
    """Twenty patients at each of three doses, all of whom answered alike, were counted as three."""
    x = np.tile(np.linspace(0.0, 1.0, n_inputs), 20)[:, None]
    assert (groups.copies_count_once(x, (x[:, 0] > 0.5).astype(int)) == expected).all()


def test_half_of_the_repeated_rows_decides():
    """Of rows with equal inputs, mostly equal targets make copies, mostly different ones measurements."""
    x, y = np.arange(300.0)[:, None], np.arange(300.0)
    again = np.arange(6)
    for n_other, expected in ((2, [0.5] * 4), (4, [1.0] * 2)):
        targets = np.concatenate([y, np.where(again < n_other, -1.0, y[again])])
        weight = groups.copies_count_once(np.concatenate([x, x[again]]), targets)
        assert weight[n_other:6].tolist() == expected
        assert (weight[6:300] == 1).all()


def test_groups_are_drawn_whole():
    numbers = torch.arange(100) // 4
    rows = groups.whole_groups(numbers, 30)
    assert 30 <= len(rows) < 34
    drawn, counts = numbers[rows].unique(return_counts=True)
    assert counts.tolist() == [4] * len(drawn)
    assert groups.whole_groups(numbers, 100).tolist() == list(range(100))
