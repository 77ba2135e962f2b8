"""Plots are drawn to a buffer; the tests look at what is on the axes."""

import io
import sys

import numpy as np
import pytest
import torch

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402

import bayesmp as bmp  # noqa: E402
from bayesmp import metrics, plots  # noqa: E402
from bayesmp.data import sine, sine_function  # noqa: E402

GRID = np.linspace(-1.0, 3.0, 50)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def draw(ax) -> bytes:
    """The picture as PNG; drawing it shows that nothing on the axes is broken."""
    buffer = io.BytesIO()
    ax.figure.savefig(buffer, format="png")
    return buffer.getvalue()


def line(ax, label):
    (found,) = [line for line in ax.lines if line.get_label() == label]
    return found


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_regression_bands_on_a_figure_of_their_own():
    x, y = sine(30)
    ax = plots.regression_bands(GRID, 0.5 * GRID, np.full(50, 0.2), data=(x, y), truth=sine_function, noise_std=0.05)
    assert draw(ax).startswith(b"\x89PNG")
    assert legend(ax) == ["data", "truth", "mean", "±1 std", "±2 std", "±3 std"]
    np.testing.assert_allclose(line(ax, "truth").get_ydata(), sine_function(GRID))
    assert ax.get_xlim() == (-1.0, 3.0)


def test_regression_bands_use_the_given_axes_and_need_no_extras():
    _, own = plt.subplots()
    ax = plots.regression_bands(GRID, GRID, np.ones(50), ax=own)
    assert ax is own
    assert legend(ax) == ["mean", "±1 std", "±2 std", "±3 std"]
    draw(ax)


def test_regression_bands_are_multiples_of_the_std_with_the_narrow_ones_in_front():
    ax = plots.regression_bands([0.0, 1.0], [0.0, 0.0], [3.0, 3.0], noise_std=4.0)  # total std 5
    bands = sorted(ax.collections, key=lambda band: band.get_zorder())
    assert [band.get_paths()[0].get_extents().ymax for band in bands] == pytest.approx([15.0, 10.0, 5.0])
    assert [band.get_paths()[0].get_extents().ymin for band in bands] == pytest.approx([-15.0, -10.0, -5.0])


def test_regression_bands_sort_the_inputs_and_take_columns_and_tensors():
    order = np.random.default_rng(0).permutation(50)
    x = torch.tensor(GRID[order])[:, None]
    ax = plots.regression_bands(x, 2 * x, torch.ones(50, 1), truth=3 * x)
    np.testing.assert_allclose(line(ax, "mean").get_xdata(), GRID)
    np.testing.assert_allclose(line(ax, "mean").get_ydata(), 2 * GRID)
    np.testing.assert_allclose(line(ax, "truth").get_ydata(), 3 * GRID)


def test_regression_bands_refuse_what_does_not_match():
    with pytest.raises(ValueError, match="must match, got 50, 49 and 50"):
        plots.regression_bands(GRID, GRID[:-1], GRID)
    with pytest.raises(ValueError, match="one number per point"):
        plots.regression_bands(np.zeros((50, 2)), GRID, GRID)


@pytest.mark.parametrize(
    "history",
    [
        {"epoch": [1, 2, 3], "nll": [3.0, 2.0, 1.5], "accuracy": [0.1, 0.5, 0.7], "note": ["a", "b", "c"]},
        [
            {"epoch": 1, "nll": 3.0, "accuracy": 0.1, "note": "a"},
            {"epoch": 2, "nll": 2.0, "accuracy": 0.5},
            {"epoch": 3, "nll": 1.5, "accuracy": 0.7},
        ],
    ],
    ids=["by name", "by epoch"],
)
def test_training_history_draws_the_numbers_and_names_each_line_at_its_end(history):
    ax = plots.training_history(history)
    assert len(ax.lines) == 2
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [1, 2, 3])
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [3.0, 2.0, 1.5])
    assert {text.get_text() for text in ax.texts} == {"nll  1.5", "accuracy  0.7"}
    draw(ax)


def test_training_history_draws_what_a_run_returns():
    """It once failed with a TypeError on the very object that `fit` gives back."""
    network = bmp.Network([bmp.Linear(1, 4), bmp.LeakyReLU(), bmp.Linear(4, 1)], bmp.Regression(0.1))
    history = bmp.fit(network, *sine(40), epochs=3)
    ax = plots.training_history(history)
    names = {text.get_text().split()[0] for text in ax.texts}
    assert names == {"rmse", "nll", "step", "loo_nll"}
    draw(ax)


def test_training_history_leaves_gaps_where_a_number_was_not_measured():
    rows = [{"nll": 3.0, "test_nll": None}, {"nll": 2.0, "test_nll": 2.5}, {"nll": 1.0}]
    ax = plots.training_history(rows)
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), [np.nan, 2.5, np.nan])
    assert {text.get_text() for text in ax.texts} == {"nll  1", "test_nll  2.5"}
    draw(ax)


def test_training_history_draws_what_is_asked_for():
    _, own = plt.subplots()
    ax = plots.training_history({"a": [1.0], "b": [2.0]}, own, names=["b"])
    assert ax is own
    assert [text.get_text() for text in ax.texts] == ["b  2"]
    with pytest.raises(ValueError, match="no c; it has a, b"):
        plots.training_history({"a": [1.0], "b": [2.0]}, names=["c"])


def test_an_empty_history_gives_empty_axes():
    assert len(plots.training_history([]).lines) == 0


def test_labels_at_the_ends_do_not_overlap():
    ax = plots.training_history({name: [0.0, 1.0 + 1e-3 * i] for i, name in enumerate("abcd")})
    heights = sorted(text.get_position()[1] for text in ax.texts)
    assert min(np.diff(heights)) > 0.06


def test_reliability_shows_each_bin_that_has_examples():
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.ones(4), size=200)
    y = rng.integers(0, 4, 200)
    ax = plots.reliability(probs, torch.tensor(y), n_bins=10)
    confidence, right, n_in_bin = metrics.reliability_bins(probs, y, n_bins=10)
    _, points = ax.collections
    np.testing.assert_allclose(points.get_offsets(), np.column_stack([confidence, right])[n_in_bin > 0])
    assert f"ECE {metrics.ece(probs, y, n_bins=10):.3f}" in ax.texts[-1].get_text()
    draw(ax)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'bayesmp\[plots\]'"):
        plots.training_history({"a": [1.0]})


def test_predictions_against_the_truth_show_what_was_missed():
    mean, std, y = np.array([0.0, 1.0, 2.0]), np.full(3, 0.1), np.array([0.05, 1.0, 5.0])
    ax = plots.predicted_against_true(mean, std, y)
    hits, misses = (container.lines[0] for container in ax.containers)
    np.testing.assert_array_equal(hits.get_xdata(), [0.05, 1.0])
    np.testing.assert_array_equal(misses.get_xdata(), [5.0])
    assert "67 % in their 90 % interval" in ax.texts[0].get_text()
    assert draw(ax).startswith(b"\x89PNG")


def test_confusion_counts_true_against_predicted():
    probs = np.eye(3)[[0, 1, 1, 2]]
    ax = plots.confusion(probs, np.array([0, 1, 2, 2]), ["a", "b", "a very long name"])
    found = {text.get_position(): text.get_text() for text in ax.texts}
    assert found == {(0, 0): "1", (1, 1): "1", (1, 2): "1", (2, 2): "1"}  # (predicted, true)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "a very long n…"]
    assert draw(ax).startswith(b"\x89PNG")
    many = plots.confusion(np.eye(40), np.arange(40), range(40))
    assert len(many.texts) == 0 and len(many.get_xticks()) == 20
