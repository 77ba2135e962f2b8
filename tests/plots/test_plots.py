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
    np.testing.assert_array_equal(ax.lines[2].get_xydata(), [[2, 2.5]])  # a point, or it would not be seen
    assert ax.lines[2].get_marker() == "."
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


def test_a_prediction_can_be_drawn_as_it_is():
    """It wanted mean, std and intervals one by one, where the other pictures take predictions."""
    mean, y = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.05, 1.0, 5.0])
    prediction = bmp.RegressionPrediction(mean, torch.full((3,), 0.01), torch.tensor(0.02))
    found = plots.predicted_against_true(prediction, y, level=0.5)
    expected = plots.predicted_against_true(mean, prediction.std, y, interval=prediction.interval(0.5), level=0.5)
    for one, other in zip(found.containers, expected.containers, strict=True):
        np.testing.assert_array_equal(one.lines[0].get_xydata(), other.lines[0].get_xydata())
    assert found.texts[0].get_text() == expected.texts[0].get_text()
    for wrong in ((prediction, prediction.std, y), (mean, y)):
        with pytest.raises(ValueError, match="give a prediction and the targets, or mean, std and the targets"):
            plots.predicted_against_true(*wrong)


def test_confusion_counts_true_against_predicted():
    probs = np.eye(3)[[0, 1, 1, 2]]
    ax = plots.confusion(probs, np.array([0, 1, 2, 2]), ["a", "b", "a very long name"])
    found = {text.get_position(): text.get_text() for text in ax.texts}
    assert found == {(0, 0): "1", (1, 1): "1", (1, 2): "1", (2, 2): "1"}  # (predicted, true)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "a very long n…"]
    assert draw(ax).startswith(b"\x89PNG")
    many = plots.confusion(np.eye(40), np.arange(40), range(40))
    assert len(many.texts) == 0 and len(many.get_xticks()) == 20


# --- how honest predictions are --------------------------------------------------------------------------------------


def calibrated(n: int, *, factor: float = 1.0, seed: int = 0) -> tuple[bmp.RegressionPrediction, torch.Tensor]:
    """Predictions with true stds times a factor, and targets."""
    rng = np.random.default_rng(seed)
    mean, std = rng.normal(size=n), rng.uniform(0.5, 2.0, n)
    y = mean + std * rng.normal(size=n)
    var = torch.tensor((factor * std) ** 2)
    return bmp.RegressionPrediction(torch.tensor(mean), 0.75 * var, 0.25 * var), torch.tensor(y)


def class_prediction(probs: np.ndarray, epistemic: np.ndarray | None = None) -> bmp.ClassPrediction:
    found = torch.tensor(probs)
    nothing = torch.zeros(len(found), dtype=torch.float64)
    known = nothing if epistemic is None else torch.tensor(epistemic)
    return bmp.ClassPrediction(found, found, found, known)


@pytest.mark.parametrize("factor", [1.0, 0.5, 2.0])
def test_the_calibration_curve_of_intervals_is_that_of_the_normal(factor):
    """With stds off by a factor, the share held is 2 Phi(factor z) - 1 where 2 Phi(z) - 1 is promised."""
    prediction, y = calibrated(20_000, factor=factor)
    ax = plots.calibration_curve(prediction, y)
    curve = ax.lines[-1]
    promised, held = np.asarray(curve.get_xdata()), np.asarray(curve.get_ydata())
    normal = torch.distributions.Normal(0.0, 1.0)
    z = normal.icdf(torch.tensor((1 + promised) / 2))
    np.testing.assert_allclose(held, 2 * normal.cdf(factor * z).numpy() - 1, atol=0.015)
    assert f"{100 * metrics.coverage(prediction.mean, prediction.std, y, 0.9):.1f} % in 90 %" in ax.texts[-1].get_text()
    draw(ax)


def test_noise_with_tails_is_drawn_with_its_own_intervals():
    """Targets drawn from heavy tails lie on the diagonal; by a Gaussian of their std they would not."""
    n = 20_000
    zeros, spread = torch.zeros(n, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    prediction = bmp.RegressionPrediction(zeros, zeros + 0.1, torch.ones((), dtype=torch.float64), spread)
    y = prediction.sample(1, seed=1)[0].numpy()
    curves = [plots.calibration_curve(part, y).lines[-1] for part in (prediction, (zeros, prediction.std))]
    off = [np.abs(np.asarray(curve.get_xdata()) - np.asarray(curve.get_ydata())).max() for curve in curves]
    assert off[0] < 0.015 and off[1] > 0.1
    some = prediction[:500]
    ax = plots.predicted_against_true(some.mean, some.std, y[:500], interval=some.interval(0.5), level=0.5)
    held = metrics.interval_coverage(*some.interval(0.5), y[:500])
    assert f"{100 * held:.0f} % in their 50 % interval" in ax.texts[-1].get_text()
    draw(ax)


def test_the_grey_area_holds_95_percent_of_what_calibrated_models_do():
    (area,) = plots.calibration_curve(*calibrated(100)).collections
    edge = area.get_paths()[0].vertices
    for level in (0.5, 0.9):
        ends = edge[np.isclose(edge[:, 0], level), 1]
        drawn = [calibrated(100, seed=seed) for seed in range(400)]
        held = np.array([metrics.coverage(found.mean, found.std, y, level) for found, y in drawn])
        assert 0.91 < np.mean((held >= ends.min()) & (held <= ends.max())) < 0.985


def test_calibration_takes_what_users_hold():
    prediction, y = calibrated(50)
    pair = (prediction.mean.numpy(), prediction.std.numpy())
    drawn = [plots.calibration_curve(part, y).lines[-1].get_ydata() for part in (prediction, pair)]
    np.testing.assert_array_equal(*drawn)
    two = bmp.RegressionPrediction(*(part.reshape(25, 2) for part in (prediction.mean, prediction.epistemic_var)), 0.1)
    assert "50 targets" in plots.calibration_curve(two, y.reshape(25, 2)).texts[-1].get_text()
    probs = np.random.default_rng(0).dirichlet(np.ones(3), 60)
    labels = probs.argmax(1)
    shown = [
        plots.calibration_curve(part, labels).collections[-1].get_offsets() for part in (probs, class_prediction(probs))
    ]
    np.testing.assert_array_equal(*shown)


def test_a_list_of_two_is_means_and_stds_unless_it_is_two_rows_of_probabilities():
    prediction, y = calibrated(50)
    pair = [prediction.mean.tolist(), prediction.std.tolist()]
    expected = plots.calibration_curve(prediction, y).lines[-1].get_ydata()
    for given in (pair, [prediction.mean, prediction.std], [prediction.mean[:, None], prediction.std[:, None]]):
        np.testing.assert_array_equal(plots.calibration_curve(given, y.tolist()).lines[-1].get_ydata(), expected)
    rows = [[0.2, 0.8], [0.4, 0.6]]
    assert plots.calibration_curve(rows, [0, 1]).get_xlabel() == "confidence"
    assert plots.calibration_curve([[0.0, 1.0], [1.0, 1.0]], [0.0, 1.0]).get_xlabel() == "promised share"
    with pytest.raises(ValueError, match=r"one shape, got \(50,\) and \(49,\)"):
        plots.calibration_curve([prediction.mean, prediction.std[1:]], y)


def test_calibration_refuses_what_it_cannot_draw():
    prediction, y = calibrated(50)
    with pytest.raises(ValueError, match="one target per prediction: expected 50, got 7"):
        plots.calibration_curve(prediction, y[:7])
    with pytest.raises(ValueError, match=r"pair \(mean, std\); got ndarray of shape \(50,\)"):
        plots.calibration_curve(prediction.mean.numpy(), y)
    with pytest.raises(ValueError, match=r"one shape, got \(50,\) and \(49,\)"):
        plots.calibration_curve((prediction.mean, prediction.std[1:]), y)


def test_reliability_counts_the_examples_of_each_bin():
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.ones(4), size=3000)
    y = rng.integers(0, 4, 3000)
    ax = plots.reliability(class_prediction(probs), y, n_bins=10)
    n_in_bin = metrics.reliability_bins(probs, y, n_bins=10)[2]
    counts, chance = ax.containers
    used = n_in_bin > 0
    np.testing.assert_allclose([bar.get_height() for bar in counts], 0.22 * n_in_bin[used] / n_in_bin.max())
    np.testing.assert_allclose([bar.get_x() + bar.get_width() / 2 for bar in counts], (np.flatnonzero(used) + 0.5) / 10)
    shown = [text.get_text() for text in ax.texts[: used.sum()]]
    assert shown == [str(n) if n < 1000 else f"{n / 1000:.1f}k" for n in n_in_bin[used]]
    assert len(chance) == (n_in_bin >= 10).sum()
    draw(ax)


def test_confidence_is_drawn_for_right_and_wrong_ones_apart():
    probs = np.array([[0.95, 0.05], [0.9, 0.1], [0.45, 0.55], [0.05, 0.95], [1.0, 0.0]])
    ax = plots.confidence_histogram(class_prediction(probs), np.array([0, 0, 0, 1, 0]), n_bins=5)  # width .1 from .5
    right, wrong = ([bar.get_height() for bar in container] for container in ax.containers)
    assert right == pytest.approx([0, 0, 0, 0, 1.0]) or right == pytest.approx([0, 0, 0, 0.25, 0.75])  # .9 is an edge
    assert wrong == pytest.approx([1.0, 0, 0, 0, 0])
    assert legend(ax) == ["right: 4, mean 0.95", "wrong: 1, mean 0.55"]
    draw(ax)


def test_confidence_without_errors_has_an_empty_kind():
    ax = plots.confidence_histogram(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 1]))
    assert legend(ax) == ["right: 2, mean 0.85", "wrong: 0"]
    prediction, y = calibrated(5)
    with pytest.raises(ValueError, match="pass a prediction of classes"):
        plots.confidence_histogram(prediction, y)


# --- unfamiliar inputs -----------------------------------------------------------------------------------------------


def test_the_ood_curve_is_that_of_scikit_learn():
    """Scores with many ties."""
    from sklearn.metrics import roc_auc_score, roc_curve

    rng = np.random.default_rng(0)
    inside, outside = rng.integers(0, 8, 200), rng.integers(3, 12, 80)
    ax = plots.ood_curve(inside, outside)
    y, score = np.repeat([0, 1], [200, 80]), np.concatenate([inside, outside])
    false_alarms, hits, _ = roc_curve(y, score, drop_intermediate=False)
    np.testing.assert_allclose(ax.lines[-1].get_xdata(), false_alarms)
    np.testing.assert_allclose(ax.lines[-1].get_ydata(), hits)
    assert legend(ax) == [f"score: AUROC {roc_auc_score(y, score):.3f}"]
    assert np.trapezoid(hits, false_alarms) == pytest.approx(metrics.auroc(score, y))
    draw(ax)


def test_the_ood_curve_of_predictions_takes_the_score_asked_for():
    sure, unsure = np.array([[0.99, 0.01], [0.9, 0.1]]), np.array([[0.6, 0.4], [0.95, 0.05]])
    pair = class_prediction(sure, np.array([0.01, 0.02])), class_prediction(unsure, np.array([0.3, 0.4]))
    assert legend(plots.ood_curve(*pair)) == ["epistemic: AUROC 1.000", "entropy: AUROC 0.750"]
    assert legend(plots.ood_curve(*pair, by="entropy")) == ["entropy: AUROC 0.750"]
    near, far = calibrated(30)[0], calibrated(30, factor=3.0, seed=1)[0]
    expected = metrics.auroc(torch.cat([near.epistemic_var, far.epistemic_var]), np.repeat([0, 1], 30))
    assert legend(plots.ood_curve(near, far)) == [f"epistemic_var: AUROC {expected:.3f}"]
    with pytest.raises(ValueError, match=r"by must name scores.*\['epistemic_var'\]; got \['entropy'\]"):
        plots.ood_curve(near, far, by="entropy")
    with pytest.raises(ValueError, match=r"of one kind.*ClassPrediction and RegressionPrediction"):
        plots.ood_curve(pair[0], far)
    with pytest.raises(ValueError, match=r"one number per input, shape \(n,\), got \(2, 2\)"):
        plots.ood_curve(sure, unsure)


# --- weights ---------------------------------------------------------------------------------------------------------


def test_signal_to_noise_draws_the_quantiles_of_each_layer():
    x, y = sine(40)
    network = bmp.Network([bmp.Linear(1, 6), bmp.LeakyReLU(), bmp.Linear(6, 1)], bmp.Regression(0.1))
    with pytest.raises(ValueError, match="has not been trained yet"):
        plots.signal_to_noise(network)
    bmp.fit(network, x, y, epochs=3)
    ax = plots.signal_to_noise(network)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0  Linear(1, 6)", "2  Linear(6, 1)"]
    for height, rows in enumerate((slice(0, 12), slice(12, 19))):
        ratio = (network.marginal.mean[rows].abs() / network.marginal.var[rows].sqrt()).double()
        thin, thick, dot = (part for part in ax.lines if set(part.get_ydata()) == {height})
        for part, levels in ((thin, (0.05, 0.95)), (thick, (0.25, 0.75)), (dot, (0.5,))):
            expected = torch.quantile(ratio, torch.tensor(levels, dtype=torch.float64)).clamp_min(1e-3)
            np.testing.assert_allclose(part.get_xdata(), expected, rtol=1e-5)
    draw(ax)
    with pytest.raises(ValueError, match="expected a bayesmp network or a fitted estimator, got list"):
        plots.signal_to_noise([1])


def test_a_calibration_curve_wants_positive_std():
    with pytest.raises(ValueError, match="std must be positive"):
        plots.calibration_curve((np.zeros(5), -np.ones(5)), np.zeros(5))


def test_curves_of_one_column_have_their_bands_and_names_as_they_stand():
    """Between two dollar signs Matplotlib would look for a formula, and fail."""
    at = np.linspace(0.0, 1.0, 5)
    ax = plots.partial_dependence(at, at**2, at**2 - 0.1, at**2 + 0.1)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), at**2)
    assert len(ax.collections) == 1 and ax.get_legend() is None
    ends = np.stack([at, 1.0 - at], axis=1)[:3]
    names, labels = [r"$\frac{$", "b"], ["$$", r"\$x$", "a long name of a category"]
    ax = plots.partial_dependence([0, 1, 2], ends, ends - 0.1, ends + 0.2, labels=labels, names=names)
    ax.figure.canvas.draw()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [plots.plain(name) for name in names]
    assert len(ax.get_xticklabels()) == 3 and ax.get_xticklabels()[2].get_text() == "a long name o…"
