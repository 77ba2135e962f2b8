"""What estimators say about themselves, in units that their users know, and without what they cannot do."""

import re

import numpy as np
import pytest

import bayesmp as bmp
from bayesmp.diagnosis.advice import SENTENCES


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
    assert not re.search(r"[tT]rainer|Scaling", str(diagnosis)) and "Not judged" not in str(diagnosis)
    assert "Give rows in the units of training" in " ".join(str(diagnosis).split())
    units = model.diagnose(x, 1000.0 * y)
    assert units.kinds == ["targets_not_scaled", "not_converged"] and "in its units" in " ".join(str(units).split())


def test_a_network_is_told_of_its_trainer(model):
    x, y = table(100, 1)
    found = model.network_.diagnose(model.x_scaling_.apply(x), model.y_scaling_.apply(y))
    assert "trainer.diagnose()" in str(found)


def test_one_voice_speaks_to_all():
    """What only users of networks have is named as such: the noise that was given, a Network, the Trainer's batches."""
    for name, (_, text) in SENTENCES.items():
        if "Regression(" in text:
            assert "give a Network" in text or "If the noise was given" in text, name
        assert "trainer" not in text or name == "one_batch_dominates", name
