"""PyTorch's default dtype is the user's own: networks stay in their precision, and give the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp import kernels
from tests.helpers import mlp

RNG = np.random.default_rng(0)
X, IMAGES = RNG.normal(size=(60, 3)), RNG.normal(size=(40, 1, 8, 8))
Y, LABELS = X[:, 0] * X[:, 1], np.arange(40) % 3


@pytest.fixture
def default_float64() -> Iterator[Callable[[bool], None]]:
    before = torch.get_default_dtype()
    yield lambda is_wide: torch.set_default_dtype(torch.float64 if is_wide else before)
    torch.set_default_dtype(before)


def learned_noise() -> torch.Tensor:
    network = mlp([3, 8, 1], bmp.Regression("learn"))
    bmp.fit(network, X, Y, epochs=20, progress=False)
    found = network.predict(X)
    return torch.cat([found.mean, found.var, found.quantile(0.9), found.log_prob(Y)])


def one_at_a_time() -> torch.Tensor:
    network = mlp([3, 4, 1], bmp.Regression(0.1))
    bmp.fit(network, X[:20], Y[:20], epochs=2, schedule="sequential", progress=False)
    return network.predict(X).var


def labels(head: bmp.Argmax | bmp.Softmax) -> torch.Tensor:
    network = mlp([3, 8, 8, 2], head)
    bmp.fit(network, X, (Y > 0).astype(int), epochs=30, batch_size=10, progress=False)
    found = network.predict(X)
    return torch.cat([found.probs.flatten(), found.epistemic])


def images() -> torch.Tensor:
    layers = [bmp.Conv2d(1, 4, 3), bmp.LeakyReLU(0.1), bmp.MaxPool2d(2), bmp.Flatten(), bmp.Linear(36, 3)]
    network = bmp.Network(layers, bmp.Argmax(), input_shape=(1, 8, 8), seed=0)
    bmp.fit(network, IMAGES, LABELS, epochs=20, batch_size=10, progress=False)
    return network.predict(IMAGES).probs


def changed_data() -> torch.Tensor:
    network = mlp([3, 8, 1], bmp.Regression("learn"))
    trainer = bmp.Trainer(network, X, Y)
    trainer.run(5, progress=False)
    ids = trainer.add(X[:5], Y[:5])
    trainer.run(2, progress=False)
    trainer.remove(ids)
    trainer.run(2, progress=False)
    return torch.cat([network.predict(X).mean, torch.as_tensor(trainer.influence().loo_nll)])


@pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # images, before their visits
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize(
    "train",
    [
        learned_noise,
        one_at_a_time,
        lambda: labels(bmp.Argmax()),
        lambda: labels(bmp.Softmax()),
        images,
        changed_data,
    ],
    ids=["noise", "sequential", "argmax", "softmax", "images", "changes"],
)
def test_numbers_do_not_depend_on_the_default_dtype(train, backend, default_float64):
    """Tensors that compiled loops write to were made in the default dtype: with float64 nothing could be trained."""
    kernels.set_backend(backend)
    expected = train()
    default_float64(True)
    found = train()
    assert found.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=5e-5, atol=5e-6)  # what thirty epochs make of another rounding


def test_a_file_is_loaded_in_its_own_precision(tmp_path, default_float64):
    network = mlp([3, 8, 1], bmp.Regression("learn"))
    bmp.fit(network, X, Y, epochs=5, progress=False)
    network.save(tmp_path / "a.safetensors")
    expected = network.predict(X).var
    default_float64(True)
    assert torch.equal(bmp.load(tmp_path / "a.safetensors").predict(X).var, expected)


def test_estimators_and_modules_take_it(default_float64):
    expected = bmp.MPRegressor(epochs=5, random_state=0).fit(X, Y).predict(X)
    default_float64(True)
    np.testing.assert_allclose(
        bmp.MPRegressor(epochs=5, random_state=0).fit(X, Y).predict(X), expected, rtol=1e-5, atol=1e-6
    )
    module = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    network = bmp.from_torch(module, bmp.Regression(0.1))
    bmp.fit(network, X, Y, epochs=2, progress=False)
    assert network.dtype == torch.float64 and bmp.to_torch(network)[0].weight.dtype == torch.float64
