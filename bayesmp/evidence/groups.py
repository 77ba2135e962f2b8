"""Which training rows belong together: copies of each other, and rows that the user names as one group.

Rows of a group tell the same, so leave-one-out scores leave them out together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BY_CHANCE = 0.01  # share of all pairs of rows that have equal values, above which there are few values
FEW_DIFFER = 0.1  # share of rows with equal inputs and other targets, next to any rows', below which those are copies


def groups_of(x: Any, groups: Any = None) -> Tensor:
    """The group of each row, (n,) int64, numbered from 0 in the order in which they first appear.

    Rows with equal inputs are in one group, and so are rows with equal entries of `groups`; if a group has a copy of
    another group's row, the two are one.

    Args:
        x: inputs (n, ...), finite numbers; -0.0 equals 0.0.
        groups: one label or number per row, or None.
    """
    rows = _flat_rows(x)
    copies = _numbered(rows)
    if groups is None or len(rows) == 0:
        return torch.from_numpy(_in_order(copies))
    named = np.unique(_as_array(groups), return_inverse=True)[1].reshape(-1)
    return torch.from_numpy(_in_order(_merged(copies, named)))


def check_groups(groups: Any, n_rows: int) -> NDArray[np.int64] | None:
    """Labels of groups, of any type, as one number per row; None for None; or an error.

    Args:
        groups: (n,) numbers or texts: a list, an array, a tensor, or a column of a data frame.
        n_rows: n.
    """
    if groups is None:
        return None
    hint = "; groups says which rows belong together: one label per row, e.g. a column of patients' numbers"
    if isinstance(groups, (str, bytes)) or not hasattr(groups, "__len__"):
        raise TypeError(f"groups must be a list or an array of {n_rows:,} labels, got {groups!r}{hint}")
    is_list = isinstance(groups, (list, tuple))  # NumPy would make texts of numbers and gaps between texts
    labels = np.fromiter(groups, dtype=object) if is_list else _as_array(groups)
    if labels.ndim != 1:
        raise ValueError(f"groups must have shape ({n_rows},), got {labels.shape}{hint}")
    if len(labels) != n_rows:
        raise ValueError(f"groups must have one label per row of X: expected {n_rows:,}, got {len(labels):,}{hint}")
    if labels.dtype.kind != "O":
        missing = np.flatnonzero(labels != labels)  # NaN and NaT
        numbers = np.unique(labels, return_inverse=True)[1].reshape(-1)
    else:
        missing = np.flatnonzero([label is None or str(label) in ("nan", "NaT", "<NA>") for label in labels])
        known: dict[Any, int] = {}
        try:
            numbers = np.array([known.setdefault(label, len(known)) for label in labels])
        except TypeError as error:
            raise TypeError(f"groups must hold numbers or texts: {error}{hint}") from error
    if len(missing) > 0:
        raise ValueError(
            f"groups has a missing label in row {missing[0]} ({len(missing):,} in all); give each row a label, rows "
            "that belong to no others one of their own"
        )
    return numbers.astype(np.int64)


def check_sample_weight(weights: Any, n_rows: int) -> NDArray[np.float64] | None:
    """How often each row counts, (n,) numbers from 0 on, not all of them 0; None for None; or an error.

    Args:
        weights: (n,) numbers: a list, an array, a tensor, or a column of a data frame.
        n_rows: n.
    """
    if weights is None:
        return None
    hint = "; sample_weight says how often each row counts: one number per row, 2 for a row that counts as two"
    try:
        values = np.array(_as_array(weights), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight must hold numbers: {error}{hint}") from error
    if values.shape != (n_rows,):
        raise ValueError(f"sample_weight must have shape ({n_rows},), got {values.shape}{hint}")
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0.0)))
    if len(wrong) > 0:
        raise ValueError(
            f"sample_weight must hold finite numbers from 0 on, got {values[wrong[0]]} in row {wrong[0]} "
            f"({len(wrong):,} such rows in all); 0 leaves a row out"
        )
    if not values.any():
        raise ValueError("sample_weight is zero in all rows, which leaves nothing to learn from")
    return values


def _as_array(values: Any) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _flat_rows(x: Any) -> NDArray[Any]:
    values = _as_array(x)
    flat = values.reshape(len(values), int(np.prod(values.shape[1:])))
    return flat + np.zeros((), flat.dtype)  # a copy in which -0.0 is 0.0, so that equal rows have equal bytes


def _numbered(rows: NDArray[Any]) -> NDArray[np.int64]:
    """A number per row, the same for equal rows.

    Rows are sorted by a hash of 64 bits, which is much faster than to sort the rows themselves. That is done if
    different rows have the same hash.
    """
    if rows.shape[1] == 0:
        return np.zeros(len(rows), dtype=np.int64)
    n_bytes = rows.dtype.itemsize * rows.shape[1]
    as_bytes = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), n_bytes)
    _, first, numbers = np.unique(_hashes(as_bytes), return_index=True, return_inverse=True)
    if not np.array_equal(rows[first[numbers]], rows):
        numbers = np.unique(as_bytes.view(np.dtype((np.void, n_bytes))), return_inverse=True)[1]
    return numbers.reshape(-1).astype(np.int64)


def _hashes(as_bytes: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """A hash per row of bytes: the sum of its words, each mixed and times a random odd number of its place."""
    words = np.pad(as_bytes, ((0, 0), (0, -as_bytes.shape[1] % 8))).view(np.uint64)
    factors = 2 * np.random.default_rng(0).integers(2**63, size=words.shape[1] + 1, dtype=np.uint64) + 1
    words ^= words >> 32  # the low bits of many floats are zero, and products carry upwards only
    words *= factors[-1]
    words ^= words >> 29
    return np.asarray(words @ factors[:-1])


def _merged(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number per row, the same for rows that equal numbers in either array link: the parts of a graph whose nodes are
    these numbers, and whose edges are the rows.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n_first, n_second = int(first.max()) + 1, int(second.max()) + 1
    edges = coo_matrix((np.ones(len(first)), (first, n_first + second)), shape=(n_first + n_second,) * 2)
    return connected_components(edges, directed=False)[1][first]


def _in_order(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same groups, numbered in the order in which they first appear."""
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(-1)].astype(np.int64)


def whole_groups(groups: Tensor, n: int) -> Tensor:
    """Rows of whole groups, in rising order: all of them, or those of groups drawn at random until there are n."""
    if len(groups) <= n:
        return torch.arange(len(groups))
    drawn = torch.randperm(int(groups.max()) + 1, generator=torch.Generator().manual_seed(1))
    order = torch.argsort(drawn[groups], stable=True)
    last = drawn[groups][order[n - 1]]
    return order[drawn[groups][order] <= last].sort().values


def copies_count_once(x: Any, y: Any) -> Tensor:
    """How often each row counts, (n,) float64: 1, or 1 / m for each of m rows that are copies of one measurement.

    Measured again, rows with equal inputs differ by the noise. So equal rows are copies where targets are hardly ever
    equal by chance, and rows with equal inputs mostly have equal targets. Targets with few values, as labels have, may
    be equal by chance: there inputs must hardly ever be so, by one of their columns, and rows with equal inputs differ
    ten times as seldom as any two rows do. Else equal rows are measurements like any others.
    """
    rows, targets = _flat_rows(x), _numbered(_flat_rows(y))
    inputs = _numbered(rows)
    weight = torch.ones(len(inputs), dtype=torch.float64)
    equal = _numbered(np.stack([inputs, targets], 1))
    n_pairs, n_equal_pairs = _n_pairs(inputs), _n_pairs(equal)
    equal_by_chance = (_n_pairs(targets) - n_equal_pairs) / max(1.0, 0.5 * len(inputs) ** 2 - n_pairs)
    may_differ = 0.5 if equal_by_chance <= BY_CHANCE else FEW_DIFFER * (1.0 - equal_by_chance)
    if n_pairs > 0 and equal_by_chance > BY_CHANCE and not _has_many_values(rows, inputs):
        return weight
    if n_pairs == 0 or not n_pairs - n_equal_pairs < may_differ * n_pairs:
        return weight
    return weight / torch.from_numpy(np.bincount(equal)[equal])


def measured_together(x: Any, y: Any, groups: Any = None) -> Tensor:
    """The group of each row whose other members know its noise, (n,), numbered as by `groups_of`: rows that are copies
    of one measurement (`copies_count_once`), and rows with equal entries of `groups`.

    Rows that merely have equal inputs are measurements of their own. Left out together, they would leave nothing to
    tell the noise from: where all inputs are equal, what is left is the prior, and noise seems to be what its variance
    leaves of the targets'.
    """
    inputs, targets = _numbered(_flat_rows(x)), _numbered(_flat_rows(y))
    is_copy = (copies_count_once(x, y) < 1.0).numpy()
    alone = np.arange(len(inputs)) + len(inputs)
    copies = np.where(is_copy, _numbered(np.stack([inputs, targets], 1)), alone)
    copies = np.unique(copies, return_inverse=True)[1].reshape(-1)
    if groups is None or len(copies) == 0:
        return torch.from_numpy(_in_order(copies))
    named = np.unique(_as_array(groups), return_inverse=True)[1].reshape(-1)
    return torch.from_numpy(_in_order(_merged(copies, named)))


def first_of_copies(x: Any, y: Any) -> Tensor:
    """The first of the rows that are equal in inputs and targets, of all rows, in rising order."""
    pairs = np.stack([_numbered(_flat_rows(x)), _numbered(_flat_rows(y))], 1)
    return torch.from_numpy(np.sort(np.unique(_numbered(pairs), return_index=True)[1]))


def in_one_order(x: Any, y: Any) -> Tensor | None:
    """An order of rows that depends on which rows there are, and not on how they are arranged; None where no two are
    equal in inputs and targets, so that it does not matter that they are the same rows.
    """
    numbers = _numbered(np.concatenate([_flat_rows(x), _flat_rows(y)], 1))
    if len(np.unique(numbers)) == len(numbers):
        return None
    return torch.from_numpy(np.argsort(numbers, kind="stable"))


def _has_many_values(rows: NDArray[Any], numbers: NDArray[np.int64]) -> bool:
    """Whether different rows hardly ever have the same value in one of their columns; of fewer than 15 nobody knows."""
    different = rows[np.unique(numbers, return_index=True)[1]]
    n_pairs = 0.5 * len(different) * (len(different) - 1)
    columns = (np.unique(column, return_inverse=True)[1].reshape(-1) for column in different.T)
    return any(_n_pairs(column) + 1.0 <= BY_CHANCE * n_pairs for column in columns)


def _n_pairs(numbers: NDArray[np.int64]) -> float:
    """Pairs of rows with equal numbers."""
    counts = np.bincount(numbers).astype(np.float64)
    return float((counts * (counts - 1.0)).sum() / 2.0)
