"""Validation at the boundary: what was expected, what came, what to do. Nothing here changes any state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bayesmp.basics.telling import warn_user

LARGEST_SIZE = 20.0  # root mean square of a column beyond which it counts as not scaled
FAR = 20.0  # standard deviations of a run's data, from their mean, beyond which new values are told of
LOOKED_AT = 1024  # rows of the run, about, that tell what these are


def as_tensor(value: Any, name: str) -> Tensor:
    """A tensor from a tensor, an array or nested lists, or a ValueError."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (Dataset, DataLoader)):
        where = "loader.dataset" if isinstance(value, DataLoader) else "dataset"
        raise ValueError(
            f"{name} must be a tensor or an array, got a {type(value).__name__}; pass {name} alone, e.g. "
            f"{where}.tensors[0], or torch.stack([x for x, _ in {where}])"
        )
    check_collected(value, name)
    if is_frame(value):
        text = list(map(str, columns_of(value, "OSUTmMcV")))
        if text:
            raise ValueError(
                f"{name} has columns that are not numbers: {', '.join(text[:5])}; encode them first, e.g. with "
                "pandas.get_dummies or scikit-learn's OneHotEncoder"
            )
        value = frame_values(value)
    try:
        array = np.asarray(value)
        _check_bits(array, name)
        if array.dtype.kind in "USO" and name == "y":
            raise ValueError(
                "class labels must be whole numbers from 0 on, got text or objects; "
                "`classes, y = np.unique(labels, return_inverse=True)` numbers them"
            )
        if array.dtype.kind in "USO":
            raise TypeError("it holds text or objects, not numbers")
        return torch.as_tensor(np.require(array, requirements=("C", "W")))  # copies what torch cannot share
    except (TypeError, ValueError) as error:
        if str(error).startswith(("class labels", f"{name} has whole numbers beyond")):
            raise
        raise ValueError(
            f"{name} must be a tensor or an array of numbers, got {type(value).__name__}: {error}"
        ) from error


def _check_bits(array: NDArray[Any], name: str) -> None:
    """Raise if there are whole numbers that int64 does not hold."""
    most = np.iinfo(np.int64).max
    if array.dtype == np.uint64:
        large = [int(array.max())] if array.size > 0 and int(array.max()) > most else []
    else:
        is_whole = array.dtype == object
        large = [value for value in array.flat if isinstance(value, int) and abs(value) > most] if is_whole else []
    if large:
        raise ValueError(f"{name} has whole numbers beyond 64 bits, e.g. {float(large[0]):.3g}; mend such rows")


def check_collected(value: Any, name: str) -> None:
    """Raise if it is a query of polars, which has no rows yet."""
    if type(value).__name__ == "LazyFrame":
        raise TypeError(f"{name} is a LazyFrame, a query that has not been run: call .collect() first")


def is_frame(value: Any) -> bool:
    """Whether it is a table with named columns, of pandas or polars."""
    return hasattr(value, "dtypes") and hasattr(value, "columns")


def frame_values(frame: Any) -> NDArray[np.float64]:
    """A table of numbers as an array, gaps as NaN."""
    if hasattr(frame, "iloc"):  # pandas, some of whose gaps NumPy does not know
        return np.asarray(frame.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(frame, dtype=np.float64)


def columns_of(frame: Any, kinds: str) -> list[Any]:
    """Names of the columns whose types are of these NumPy kinds; T: a text or category that NumPy does not know."""
    return [name for name, dtype in zip(frame.columns, frame.dtypes, strict=True) if _kind(dtype) in kinds]


def _kind(dtype: Any) -> str:
    """The letter that NumPy has for a column's type, or would have for one of polars; T for texts and categories."""
    name = str(dtype).lower()
    if name.startswith(("categor", "enum", "str", "utf8")):
        return "T"
    if hasattr(dtype, "kind"):
        return str(dtype.kind)
    letters = {"bool": "b", "int": "i", "uint": "u", "float": "f", "decimal": "f", "date": "M", "duration": "m"}
    return next((letter for start, letter in letters.items() if name.startswith(start)), "O")


def check_inputs(x: Any, input_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """x as a floating-point (b, *input_shape) tensor with b >= 1 whose numbers, and their squares, are finite in this
    dtype; or a ValueError.
    """
    x = as_tensor(x, "x").detach()
    expected = f"(n, {', '.join(map(str, input_shape))})"
    if x.is_complex():
        raise ValueError(f"x must hold real numbers, got {x.dtype}; split it into real and imaginary parts")
    x = x if x.is_floating_point() else x.to(dtype)
    if x.ndim == 1 and input_shape == (1,):
        x = x[:, None]
    if x.ndim != 1 + len(input_shape) or tuple(x.shape[1:]) != input_shape:
        hint = _hint(tuple(x.shape), input_shape)
        raise ValueError(f"x must have shape {expected} to fit the first layer, got {tuple(x.shape)}{hint}")
    if x.shape[0] == 0:
        raise ValueError(f"x must hold at least one example, got an empty tensor of shape {tuple(x.shape)}")
    _check_finite(x, "x", "impute or drop such rows")
    _check_size(x, "x", dtype, torch.finfo(dtype).max ** 0.5, "are too large to compute with: their squares overflow")
    return x


def _hint(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """What people mean who hand in inputs of this shape, if it can be told."""
    if shape == expected:
        return "; for a single example pass x[None]"
    if len(expected) == 3 and expected[0] == 1 and shape[1:] == expected[1:]:
        return "; for images without an axis of channels pass x[:, None]"
    if len(shape) == 4 and (shape[3], *shape[1:3]) == expected:
        return "; for images with channels last pass x.permute(0, 3, 1, 2), or x.transpose(0, 3, 1, 2) of an array"
    if len(expected) == 1 and len(shape) > 2 and math.prod(shape[1:]) == expected[0]:
        return "; begin with a Flatten layer, or pass x.reshape(len(x), -1)"
    return ""


def _is_off_scale(size: float) -> bool:
    return size > LARGEST_SIZE or 0.0 < size < 1.0 / LARGEST_SIZE


def warn_of_scale(x: Tensor, y: Tensor) -> None:
    """Warn of inputs or real targets that are far from order one, which priors expect, and say what to do."""
    columns, targets = x.detach().flatten(1).double(), y.detach().double()
    size = columns.square().mean(0).sqrt()
    column, largest = int(size.argmax()), float(size.max())
    if largest > LARGEST_SIZE:
        where = f"column {column}" if x.ndim == 2 else "an input"
        seen = f"x is not scaled: {where} has {_moments(columns[:, column])}"
    elif _is_off_scale(largest):
        seen = f"x is not scaled: no column is larger than {largest:.3g} (root mean square)"
    elif y.is_floating_point() and _is_off_scale(float(targets.square().mean().sqrt())):
        seen = f"y is not scaled: it has {_moments(targets)}"
    else:
        return
    remedy = "scale them with bayesmp.data.standardise, or use MPRegressor and MPClassifier, which do"
    warn_user(f"{seen}; priors expect numbers of order one; {remedy}")


def _moments(values: Tensor) -> str:
    return f"mean {float(values.mean()):.3g} and standard deviation {float(values.std(correction=0)):.3g}"


def warn_if_far(new: Tensor, seen: Tensor, name: str) -> None:
    """Warn of new inputs or real targets far from all that a run has seen, and say what to do."""
    if not new.is_floating_point():
        return
    std, mean = torch.std_mean(seen[:: max(1, len(seen) // LOOKED_AT)].flatten(1), 0, correction=0)
    gap = (new.flatten(1) - mean) / std.clamp_min(1.0)  # of what hardly varied, as of columns of order one
    row, column = divmod(int(gap.abs().argmax()), gap.shape[1])
    distance = float(gap[row, column].abs())
    if distance > FAR:
        where = f"in column {column} of row {row}" if gap.shape[1] > 1 else f"in row {row}"
        warn_user(
            f"{name} is not scaled as the data of the run: {float(new.flatten(1)[row, column]):.3g} {where} lies "
            f"{distance:.0f} standard deviations from their mean; scale new data as the first ones were, or mend such "
            "rows"
        )


def tell_outlier(name: str, value: float, row: int) -> str:
    """That values stand apart (`estimators.scaling.values_apart`), in words."""
    return (
        f"{name} has values so far from the others, e.g. {value:.3g} in row {row}, that nearer ones stand for them; "
        "correct or remove such rows if they are wrong, else take logarithms or ranks"
    )


def check_lengths(x: Tensor, y: Tensor) -> None:
    """Raise unless there is one target per example."""
    if y.ndim == 0 or y.shape[0] != x.shape[0]:
        got = "a single number" if y.ndim == 0 else f"{y.shape[0]} targets"
        raise ValueError(f"y must have one target per row of x: expected {x.shape[0]} targets, got {got}")


def check_examples(x: Tensor, y: Tensor, dtype: torch.dtype) -> None:
    """Raise unless there is one target per example, and something can be learned from all numbers in this dtype: beside
    one with more digits than it has, those of order one are nothing. Predictions bear more (`check_inputs`).
    """
    check_lengths(x, y)
    for values, name in ((x, "x"), (y, "y")):
        if values.is_floating_point():
            _check_size(values, name, dtype, 1.0 / torch.finfo(dtype).eps, "leave no digits to those of order one")


def check_real_targets(y: Any, n_outputs: int) -> Tensor:
    """y as a finite (b, n_outputs) tensor; (b,) is accepted for one output."""
    y = as_tensor(y, "y").detach()
    if y.dtype == torch.bool or y.is_complex():
        raise ValueError(f"regression targets must be real numbers, got {y.dtype}; convert them with y.float()")
    y = y if y.is_floating_point() else y.to(torch.get_default_dtype())
    if y.ndim == 1 and n_outputs == 1:
        y = y[:, None]
    if y.ndim != 2 or y.shape[1] != n_outputs:
        expected = "(n,) or (n, 1)" if n_outputs == 1 else f"(n, {n_outputs})"
        raise ValueError(f"y must have shape {expected} to fit the last layer, got {tuple(y.shape)}")
    _check_finite(y, "y", "drop such rows")
    return y


def _check_finite(values: Tensor, name: str, remedy: str) -> None:
    finite = values.isfinite().flatten(1).all(dim=1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise ValueError(f"{name} has NaN or infinite values, first in row {row}; {remedy}")


def _check_size(values: Tensor, name: str, dtype: torch.dtype, largest: float, why: str) -> None:
    """Raise if there are numbers beyond the largest, all of which are finite as they came, in this dtype."""
    size = values.to(dtype).abs().flatten(1).amax(1)
    if not bool((size <= largest).all()):
        row = int((~(size <= largest)).nonzero()[0])
        part = values[row].flatten()
        raise ValueError(
            f"{name} has numbers that {why} in {dtype}, which takes up to {largest:.2g}; first "
            f"{float(part[part.abs().argmax()]):.3g} in row {row}; standardise {name}, or mend such rows"
        )


def check_labels(y: Any, n_classes: int) -> Tensor:
    """y as a (b,) int64 tensor of labels in 0 .. n_classes - 1."""
    y = as_tensor(y, "y")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise ValueError(f"class labels must have shape (n,), got {tuple(y.shape)}; for one-hot rows pass y.argmax(1)")
    if y.is_complex() or (y.is_floating_point() and not bool((y == y.round()).all())):
        raise ValueError(
            f"class labels must be whole numbers 0 .. {n_classes - 1}, got {y.dtype} with other values; for real "
            "targets use the head Regression"
        )
    is_bad = (y < 0) | (y >= n_classes)  # before they are made integers, which have no infinity
    if bool(is_bad.any()):
        bad = int(is_bad.nonzero()[0])
        raise ValueError(
            f"class labels must lie in 0 .. {n_classes - 1} (the last layer has {n_classes} outputs), "
            f"got {y[bad].item():g} in row {bad}; relabel, or widen the last layer"
        )
    return y.long()


def check_positive_int(value: Any, name: str) -> int:
    """A positive int, or a ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return int(value)


def check_probability(value: Any, name: str) -> float:
    """One number with 0 < value < 1, or an error."""
    try:
        found = float(value) if np.ndim(value) == 0 else None
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise TypeError(f"{name} must be one number between 0 and 1, got {value!r}; call it once for each {name}")
    if not 0.0 < found < 1.0:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value}")
    return found


def check_epochs(value: Any, *, least: int) -> int | str:
    """A number of epochs, or "auto"; or a ValueError. With `least` 1 there must be something to train."""
    if isinstance(value, str) and value == "auto":
        return value
    is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if is_int and value >= least:
        return int(value)
    expected = "a positive integer" if least > 0 else "0, a positive integer"
    hint = ""
    if is_int and value == 0:
        hint = "; to look at a network before training call its predict, which then speaks from the prior"
    elif is_int and least == 0:
        hint = "; it is the number of further epochs, after those already run"
    raise ValueError(f"epochs must be {expected} or 'auto', got {value!r}{hint}")
