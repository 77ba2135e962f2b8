"""Labels of any type, probabilities, unfamiliar rows, leave-one-out scores, classes that come later."""

import numpy as np
import pytest
from sklearn.exceptions import DataConversionWarning

import bayesmp as bmp
from bayesmp import metrics
from tests import helpers

OPTIONS = {"hidden": (8,), "epochs": 30, "random_state": 0}


def blobs(n=200, n_classes=3, seed=0):
    x, y = helpers.blobs(n, n_classes, spread=0.7, seed=seed)
    return x.numpy(), y.numpy()


@pytest.fixture(scope="module")
def fitted():
    x, y = blobs()
    return bmp.MPClassifier(**OPTIONS).fit(x, np.array(["red", "green", "blue"])[y])


LABELS = [
    np.array(["red", "green", "blue"]),
    np.array(["red", "green", "blue"], dtype=object),
    np.array([3, -1, 10]),
    np.array([0.0, 2.0, 1.0]),
    np.array([True, False]),
    np.array(["no", "yes"]),
    np.array([1, 0], dtype=np.uint8),
]


@pytest.mark.parametrize("labels", LABELS, ids=lambda labels: f"{len(labels)} of {labels.dtype}")
def test_labels_of_any_type_come_back(labels):
    x, y = blobs(n_classes=len(labels))
    model = bmp.MPClassifier(**OPTIONS).fit(x, labels[y])
    found, probs = model.predict(x), model.predict_proba(x)
    assert model.classes_.tolist() == sorted(labels.tolist())
    assert found.dtype == model.classes_.dtype and probs.shape == (200, len(labels))
    assert model.score(x, labels[y]) > 0.9
    np.testing.assert_allclose(probs.sum(1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(model.classes_[probs.argmax(1)], found)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(x)), probs)


def test_probabilities_are_honest(fitted):
    x, y = blobs(1000, seed=1)
    order = np.array(["blue", "green", "red"]).searchsorted(np.array(["red", "green", "blue"])[y])
    assert metrics.ece(fitted.predict_proba(x), order) < 0.06
    assert -metrics.nll(fitted.predict_proba(x), order) == pytest.approx(fitted.loo_score_, abs=0.1)
    assert 1.0 - metrics.accuracy(fitted.predict_proba(x), order) == pytest.approx(fitted.loo_error_, abs=0.03)


def test_unfamiliar_rows_stand_out(fitted):
    """On a wide circle around the data nothing was seen, the less the wider it is; in the middle the classes meet."""
    x, _ = blobs(seed=1)
    angle = np.linspace(0.0, 2 * np.pi, 60)
    circle = np.stack([np.cos(angle), np.sin(angle)], 1)
    around = (x, 0.01 * circle, 5.0 * circle, 15.0 * circle)
    familiar, middle, near, far = (fitted.predict_epistemic(rows).mean() for rows in around)
    assert (fitted.predict_epistemic(x) >= 0.0).all()
    assert far > near > 4 * familiar and middle > 4 * familiar


def test_one_class_is_refused():
    with pytest.raises(ValueError, match=r"at least two classes.*got one class: \['a'\]"):
        bmp.MPClassifier().fit([[1.0], [2.0]], ["a", "a"])


def test_real_targets_are_refused():
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        bmp.MPClassifier().fit([[1.0], [2.0], [3.0]], [0.5, 1.7, 2.2])


def test_a_column_of_labels_is_taken_with_a_warning():
    x, y = blobs(30)
    with pytest.warns(DataConversionWarning, match="column-vector"):
        model = bmp.MPClassifier((4,), epochs=2).fit(x, y[:, None])
    assert model.predict(x).shape == (30,)


class TestPartialFit:
    @pytest.mark.slow
    def test_classes_may_come_later(self):
        x, y = blobs(300)
        order = np.argsort(y, kind="stable")  # the first rows are all of class 0
        x, y = x[order], y[order]
        model = bmp.MPClassifier(**OPTIONS).partial_fit(x[:60], y[:60], classes=[0, 1, 2])
        assert model.classes_.tolist() == [0, 1, 2] and model.predict_proba(x).shape == (300, 3)
        for rows in (slice(60, 200), slice(200, 300)):
            model.partial_fit(x[rows], y[rows])
        whole = bmp.MPClassifier(**OPTIONS).fit(x, y)
        assert model.score(x, y) > 0.9
        assert model.loo_score_ == pytest.approx(whole.loo_score_, abs=0.05)
        assert np.abs(model.predict_proba(x) - whole.predict_proba(x)).mean() < 0.05

    def test_the_first_call_must_name_all_classes(self):
        with pytest.raises(ValueError, match="classes must be passed in the first call"):
            bmp.MPClassifier().partial_fit(*blobs(20))

    def test_later_calls_must_name_the_same(self):
        x, y = blobs(30)
        model = bmp.MPClassifier((2,), epochs=1).partial_fit(x, y, classes=[0, 1, 2])
        model.partial_fit(x, y, classes=[2, 1, 0])
        with pytest.raises(ValueError, match=r"classes must be those of the first call, \[0 1 2\], got \[0 1\]"):
            model.partial_fit(x, y, classes=[0, 1])

    def test_unknown_labels_are_refused(self):
        x, y = blobs(30)
        model = bmp.MPClassifier((2,), epochs=1).fit(x, y)
        with pytest.raises(ValueError, match=r"labels that are not among the classes \[0 1 2\]: \[7\]"):
            model.partial_fit(x, np.where(y == 0, 7, y))
        with pytest.raises(ValueError, match="not among the classes"):
            bmp.MPClassifier().partial_fit(x, y, classes=[0, 1])


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_label_in_a_list_is_no_class(missing):
    with pytest.raises(ValueError, match="missing label in row 2"):
        bmp.MPClassifier().fit([[0.0], [1.0], [2.0]], ["a", "b", missing])
