"""Standardising against numpy's own moments, and that of tables in which values lie far out."""

import numpy as np
import pytest

from bayesmp.data import CHUNK, Scaling, standardise
from bayesmp.estimators.scaling import APART, CLIP, FAR_APART, LIMIT, RARE, TableScaling, usual_range, values_apart


def test_images_get_one_mean_and_std():
    rng = np.random.default_rng(0)
    train = rng.integers(0, 256, (2 * CHUNK + 3, 3, 4, 5), dtype=np.uint8)  # the last chunk is not full
    test = rng.integers(0, 256, (7, 3, 4, 5), dtype=np.uint8)
    scaled, scaled_test = standardise(train, test)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, (train - train.mean()) / train.std(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scaled_test, (test - train.mean()) / train.std(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_get_one_mean_and_std_per_column(dtype):
    x = (np.random.default_rng(1).normal(size=(CHUNK + 50, 3)) * [1, 10, 0.1] + [0, 5, -100]).astype(dtype)
    (scaled,) = standardise(x)
    assert scaled.dtype == dtype
    np.testing.assert_allclose(scaled.mean(axis=0, dtype=np.float64), 0, atol=1e-3 if dtype is np.float32 else 1e-10)
    np.testing.assert_allclose(scaled.std(axis=0, dtype=np.float64), 1, rtol=1e-3 if dtype is np.float32 else 1e-10)


def test_the_choice_can_be_made_by_hand():
    x = np.array([[0.0, 10.0], [2.0, 12.0]])
    np.testing.assert_allclose(standardise(x, per_feature=True)[0], [[-1, -1], [1, 1]])
    np.testing.assert_allclose(standardise(x, per_feature=False)[0], (x - 6) / np.sqrt(26))


def test_targets_have_one_mean_and_std_and_come_back():
    y = np.array([3.0, 5.0, 10.0])
    scaling = Scaling.fit(y)
    assert scaling.mean.shape == ()
    np.testing.assert_allclose(scaling.mean, 6.0)
    np.testing.assert_allclose(scaling.undo(scaling.apply(y)), y)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_a_constant_column_becomes_zero(value):
    x = np.column_stack([np.arange(100.0), np.full(100, value)])
    (scaled,) = standardise(x)
    np.testing.assert_allclose(scaled[:, 1], 0.0, atol=1e-6)
    assert np.isfinite(scaled).all()


def test_a_column_in_small_units_is_not_constant():
    """Everything below 1e-12 counted as a rounding error once, so nanograms in tonnes became zeros."""
    x = 1e-15 * np.arange(6.0)[:, None]
    np.testing.assert_allclose(standardise(x)[0], standardise(np.arange(6.0)[:, None])[0])


def test_the_input_is_not_changed():
    x = np.arange(6.0).reshape(3, 2)
    before = x.copy()
    standardise(x, x)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="NaN or infinite"), np.errstate(invalid="ignore"):
        Scaling.fit(np.array([1.0, bad]))


def test_an_empty_array_is_refused():
    with pytest.raises(ValueError, match="empty"):
        standardise(np.zeros((0, 3)))


# --- tables in which values lie far out ------------------------------------------------------------------------------


def clipped_moments(x, centre, std, weights=1.0):
    """Both sides of the equations that `TableScaling` solves."""
    clipped = np.clip(x, centre - CLIP * std, centre + CLIP * std)
    weights = np.broadcast_to(weights, x.shape)
    return clipped.mean(), np.sqrt((weights * (clipped - centre) ** 2).sum() / weights.sum())


def ordinary(n=1000):
    rng = np.random.default_rng(0)
    return {
        "normal": rng.normal(3.0, 5.0, n),
        "uniform": rng.uniform(size=n),
        "integers": rng.integers(0, 7, n).astype(float),
        "two values": np.where(np.arange(n) < 0.2 * n, 7.0, 5.0),
        "large": 1e9 + rng.normal(size=n),
        "mark that is not rare": (np.arange(n) < 112).astype(float),
        "constant": np.full(n, 0.1),
    }


@pytest.mark.parametrize("kind", ordinary())
def test_ordinary_columns_are_standardised_and_nothing_else(kind):
    x = ordinary()[kind][:, None]
    found, plain = TableScaling.fit(x), Scaling.fit(x)
    np.testing.assert_array_equal(found.apply(x), plain.apply(x))
    far = plain.undo(np.array([[-30.0], [30.0]]))
    np.testing.assert_array_equal(found.apply(far), plain.apply(far))


@pytest.mark.parametrize("n", [100, 1000, 10000])
@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("zero, one", [(0.0, 1.0), (7.0, -3.0)])
def test_a_rare_mark_lies_at_three_stds(n, k, zero, one):
    """By the standard deviation it lies at sqrt(n / k). Its weighted std has a closed form."""
    x = np.where(np.arange(n) < k, one, zero)[:, None]
    found = TableScaling.fit(x)
    share, size = k / n, abs(one - zero)
    np.testing.assert_allclose(found.centre, zero + share * (one - zero), rtol=1e-12)
    square = (1 - share) ** 2 / RARE**2 + (1 - 1 / RARE**2) * share**2
    np.testing.assert_allclose(found.std, size * np.sqrt(square if share < 1 / RARE**2 else share * (1 - share)))
    z = found.apply(x)[:, 0]
    assert 0.97 * RARE < abs(z[0]) <= RARE and abs(z[-1]) < 0.3
    np.testing.assert_allclose(found.apply(zero + 2 * (x - zero))[0, 0], 2 * z[0] - z[-1])  # a straight line


def test_the_scale_of_a_mark_is_continuous_in_its_share():
    n = 9000
    stds = [TableScaling.fit((np.arange(n) < k).astype(float)[:, None]).std[0] for k in (999, 1000, 1001)]
    np.testing.assert_allclose(stds, stds[1], rtol=1e-3)
    assert TableScaling.fit((np.arange(n) < 10).astype(float)[:, None]).std == pytest.approx(stds[1], rel=0.07)


def heavy(n=2000):
    rng = np.random.default_rng(0)
    wild = rng.normal(size=n)
    wild[5] = 1000.0
    nearly = np.where(rng.uniform(size=n) < 0.03, np.exp(2.0 * rng.normal(size=n)), 0.0)
    return {
        "wild": wild,
        "wilder": np.where(np.arange(n) == 5, -1e30, wild),
        "Cauchy": rng.standard_cauchy(n),
        "log-normal": np.exp(2.0 * rng.normal(size=n)),
        "nearly all zero": nearly,
        "cubes": rng.normal(size=n) ** 3,
    }


@pytest.mark.parametrize("kind", heavy())
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_training_value_lies_far_out(kind, dtype):
    """And nothing else is lost: the order stays, most values keep a scale of order one, and the map can be undone."""
    x = heavy()[kind].astype(dtype)
    found = TableScaling.fit(x[:, None])
    z = found.apply(x[:, None])[:, 0]
    assert z.dtype == dtype and np.abs(z).max() == pytest.approx(LIMIT, rel=1e-5)
    differ = x[x != np.median(x)]
    order = np.argsort(x, kind="stable")
    assert (np.diff(z[order]) >= 0).all() and len(np.unique(z)) == len(np.unique(x))
    assert 0.1 < np.ptp(np.quantile(found.apply(differ[:, None]), [0.25, 0.75])) < 5.0
    tolerance = 1e-2 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(found.undo(z[:, None])[:, 0], x, rtol=tolerance, atol=tolerance * float(found.std[0]))


@pytest.mark.parametrize("kind", heavy())
def test_centre_and_std_solve_their_equations(kind):
    x = heavy()[kind]
    found = TableScaling.fit(x[:, None])
    weights = np.ones(len(x))
    if kind == "nearly all zero":
        weights[x == 0.0] = (RARE**2 - 1) * (x != 0.0).sum() / (x == 0.0).sum()
    centre, std = clipped_moments(x, found.centre[0], found.std[0], weights)
    assert found.std == pytest.approx(std, rel=1e-6)
    assert abs(found.centre[0] - centre) < 1e-6 * std


def test_one_wild_value_hardly_moves_the_others():
    x = np.random.default_rng(0).normal(size=(2000, 1))
    before = TableScaling.fit(x).apply(x)
    for value in (30.0, 1000.0, -1e30, 1e300):
        x[5] = value
        after = np.delete(TableScaling.fit(x).apply(x) - before, 5)
        assert np.abs(after).max() < 0.05


def test_ends_bend_on_their_own_and_never_stop_rising():
    x = np.random.default_rng(0).normal(size=(1000, 1))
    x[5] = 100.0
    found = TableScaling.fit(x)
    assert np.isinf(found.low_width) and np.isfinite(found.high_width)
    points = np.linspace(-200.0, 200.0, 4001)
    z = found.apply((found.centre + found.std * points)[:, None])[:, 0]
    is_straight = points <= CLIP
    np.testing.assert_allclose(z[is_straight], points[is_straight], atol=1e-9)
    slopes = np.diff(z) / np.diff(points)
    assert (slopes > 0).all() and slopes.max() < 1.0 + 1e-9 and np.abs(np.diff(slopes)).max() < 0.2
    w = found.high_width[0]
    np.testing.assert_allclose(z[-1], CLIP + w * np.log1p((200.0 - CLIP) / w))


def test_a_constant_column_with_rounding_errors_has_no_scale():
    x = np.full((100, 1), 0.1)
    x[::2] += 1e-17
    x[1] = 0.1 + 1.4e-17
    found = TableScaling.fit(x)
    np.testing.assert_allclose(found.apply(x), 0.0, atol=1e-12)
    x[3] = 1.0
    assert np.abs(TableScaling.fit(x).apply(x)).max() == pytest.approx(RARE, rel=0.02)


def test_whole_numbers_become_float32():
    x = np.arange(10)[:, None]
    assert TableScaling.fit(x).apply(x).dtype == np.float32


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_values_stand_apart_if_they_are_few_and_far(side):
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-1.0, 1.0, 1000))
    x[0], x[-1] = -1.0, 1.0
    for values, n_apart in (
        ([0.9 * APART], 0),
        ([1.2 * APART], 1),
        ([1.2 * APART, 1e9], 2),
        ([1e9] * 10, 10),
        ([1e9] * 11, 0),  # more than FEW are a group of their own
        ([0.9 * APART, 0.7 * APART**2], 0),  # each not far from the next
        ([0.9 * APART, 0.9 * APART * 6.0], 1),
    ):
        found = side * x
        middle = slice(500 - len(values) // 2, 500 - len(values) // 2 + len(values))
        found[middle] = side * np.array(values)
        low, high = usual_range(found[:, None])
        assert ((found < low) | (found > high)).sum() == n_apart, values
        assert values_apart(found[:, None]) == ({0: int(np.abs(found).argmax())} if n_apart else {})


def test_values_stand_apart_from_what_differs():
    mark = (np.arange(100) == 3) * 1e6
    counts = (np.arange(100) < 20) * 1.0
    sentinel = np.where(np.arange(100) == 50, -999.0, counts)
    skewed = np.exp(np.random.default_rng(0).normal(size=100))
    below = np.where(np.arange(100) == 50, -50.0, skewed)
    columns = np.stack([mark, counts, sentinel, skewed, below, np.full(100, 3.0)], 1)
    assert values_apart(columns) == {2: 50, 4: 50}
    assert values_apart(columns, FAR_APART) == {2: 50}
    low, high = usual_range(columns)
    assert low.tolist() == [0.0, 0.0, 0.0, skewed.min(), np.delete(skewed, 50).min(), 3.0]
    assert high.tolist() == [1e6, 1.0, 1.0, skewed.max(), np.delete(skewed, 50).max(), 3.0]


def test_among_few_values_none_stands_apart():
    x = np.arange(9.0)
    x[-1] = 1e6
    assert values_apart(x[:, None]) == {}
    assert values_apart(np.append(x, 3.0)[:, None]) == {0: 8}
    assert values_apart(np.ones((1, 2))) == {}


def test_a_side_with_values_next_to_the_median_has_the_scale_of_the_quartiles():
    """Of ten values, the second highest is the median but for a little; the highest is as far as the others' spread."""
    x = np.array([-1.0, -0.9, -0.8, -0.5, -0.3, 0.0, 0.01, 0.02, 0.03, 1.0])
    assert values_apart(x[:, None]) == {}
    x[-1] = 1e3
    assert values_apart(x[:, None]) == {0: 9}
