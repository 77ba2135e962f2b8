"""What estimators say about themselves, in the words of those who have no trainer, no head and no scaling."""

import dataclasses
import re

import numpy as np
import pytest

import bayesmp as bmp
from bayesmp.diagnosis.faces import ESTIMATOR, NETWORK

OTHERS = r"trainer|Trainer|Regression\(|history\.|Scaling|the noise was given"  # what an estimator's user does not have


def table(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(50.0, 10.0, (n, 3))
    return x, 5.0 * x[:, 0] + 10.0 * rng.normal(size=n)


@pytest.fixture(scope="module")
def model():
    return bmp.MPRegressor((8,), epochs=5, random_state=0).fit(*table(100, 0))


def test_an_estimators_advice_can_be_followed(model):
    """Rows in other units after few epochs: all that is said is about what fit and predict take."""
    x, y = table(100, 1)
    diagnosis = model.diagnose(x * [1.0, 20.0, 1.0], y)
    assert {"not_converged", "inputs_unlike_training"} <= set(diagnosis.kinds)
    assert not re.search(OTHERS, str(diagnosis)) and "Not judged" not in str(diagnosis)
    assert "give rows in the units of fit" in " ".join(str(diagnosis).split())
    units = model.diagnose(x, 1000.0 * y)
    assert units.kinds == ["targets_not_scaled", "not_converged"] and "in the units of fit" in str(units)


def test_a_network_is_still_told_of_its_trainer(model):
    x, y = table(100, 1)
    found = model.network_.diagnose(model._x_scaling.apply(x), model._y_scaling.apply(y))
    assert "trainer.diagnose()" in str(found) and "let the trainer run on" in " ".join(str(found).split())


def test_no_words_for_estimators_are_about_what_they_lack():
    for entry in dataclasses.fields(ESTIMATOR):
        words = getattr(ESTIMATOR, entry.name)
        assert not re.search(OTHERS, words.replace("bayesmp.Network with a small noise, e.g. Regression(0.01)", "")), (
            words
        )
        assert words != getattr(NETWORK, entry.name)
        assert ("{factor}" in words) == (entry.name == "prior")
