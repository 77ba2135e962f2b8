"""What callers switch on around a call, autocast, inference mode or a default device, changes nothing in it."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch

import bayesmp as bmp
from tests.helpers import mlp

RNG = np.random.default_rng(0)
X = torch.as_tensor(RNG.normal(size=(60, 3)), dtype=torch.float32)
Y = X[:, 0] * X[:, 1]


def trained(head: bmp.Regression | bmp.Argmax) -> torch.Tensor:
    is_regression = isinstance(head, bmp.Regression)
    network = mlp([3, 8, 1] if is_regression else [3, 8, 2], head)
    trainer = bmp.Trainer(network, X, Y if is_regression else (Y > 0).long(), batch_size=20)
    trainer.run(8, progress=False)
    trainer.run(2, progress=False)
    found = network.predict(X)
    draws = network.sample_functions(X, 2)
    return torch.cat([found.mean.flatten(), found.epistemic_var.flatten(), draws.flatten()])


@pytest.mark.parametrize("head", [bmp.Regression("learn"), bmp.Argmax()], ids=["noise", "labels"])
@pytest.mark.parametrize(
    "around",
    [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.autocast("cpu", dtype=torch.float16),
        lambda: torch.inference_mode(),
        lambda: torch.device("meta"),
    ],
    ids=["bfloat16", "float16", "inference", "device"],
)
def test_numbers_are_the_same_within(around, head):
    """Means were off by .01 with bfloat16; float16 died in an overflow; tensors came out on the default device."""
    expected = trained(head)
    with around():
        found = trained(head)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("parts", ["network", "trainer", "both"])
def test_a_run_that_was_begun_in_inference_mode_goes_on_outside(parts):
    def within(is_there: bool) -> AbstractContextManager[object]:
        return torch.inference_mode(is_there)

    with within(parts != "trainer"):
        network = mlp([3, 8, 1], bmp.Regression("learn"))
    with within(parts != "network"):
        trainer = bmp.Trainer(network, X, Y)
        trainer.run(3, progress=False)
    trainer.run(3, progress=False)
    straight = bmp.Trainer(mlp([3, 8, 1], bmp.Regression("learn")), X, Y)
    straight.run(6, progress=False)
    torch.testing.assert_close(network.predict(X).mean, straight.network.predict(X).mean)
    trainer.remove(trainer.ids[:2])
    trainer.run(1, progress=False)


@pytest.mark.slow
def test_estimators_and_files_take_it(tmp_path):
    expected = bmp.MPRegressor(epochs=5, random_state=0).fit(X.numpy(), Y.numpy()).predict(X.numpy())
    network = mlp([3, 8, 1], bmp.Regression("learn"))
    bmp.fit(network, X, Y, epochs=3, progress=False)
    network.save(tmp_path / "a.safetensors")
    with torch.autocast("cpu"), torch.inference_mode(), torch.device("meta"):
        found = bmp.MPRegressor(epochs=5, random_state=0).fit(X.numpy(), Y.numpy()).predict(X.numpy())
        loaded = bmp.load(tmp_path / "a.safetensors").predict(X)
    np.testing.assert_array_equal(found, expected)
    assert torch.equal(loaded.var, network.predict(X).var)
