"""The metric of all layers: where correlations between weights count."""

import pytest

import bayesmp as bmp
from tests.helpers import blobs

NETWORKS = {
    "one layer": [bmp.Linear(4, 3)],
    "two layers": [bmp.Linear(4, 6), bmp.LeakyReLU(), bmp.Linear(6, 3)],
    "images": [bmp.Flatten(), bmp.Linear(4, 6), bmp.ReLU(), bmp.Linear(6, 6), bmp.LeakyReLU(), bmp.Linear(6, 3)],
    "convolution": [bmp.Conv2d(1, 2, 2, padding=1), bmp.LeakyReLU(), bmp.Flatten(), bmp.Linear(18, 3)],
}


@pytest.fixture(autouse=True)
def visits(monkeypatch):
    """Labels are trained by visits to batches here, not by an objective (training/schedules/objective.py)."""
    monkeypatch.setattr("bayesmp.training.schedules.has_objective", lambda network, n_examples: False)


@pytest.mark.parametrize(
    "name, options, is_joint",
    [
        ("one layer", {}, False),
        ("one layer", {"joint": True}, True),
        ("two layers", {}, True),
        ("two layers", {"joint": False}, False),
        ("two layers", {"schedule": "sequential"}, False),
        ("images", {}, True),
        ("convolution", {}, False),
        ("convolution", {"joint": True}, True),
    ],
    ids=str,
)
def test_dense_networks_of_several_layers_count_correlations(name, options, is_joint):
    """Every layer with weights, or none; 1 is the model of independent weights."""
    x, y = blobs(40, n_in=4)
    x = x.view(-1, 1, 2, 2) if name in ("images", "convolution") else x
    network = bmp.Network(NETWORKS[name], bmp.Softmax(), input_shape=x.shape[1:])
    bmp.fit(network, x, y, epochs=3 if options.get("schedule") == "sequential" else 20, batch_size=10, **options)
    for share, tensors in zip(network.sum_share.tolist(), network.unpack(network.prior.rho), strict=True):
        assert 0.0 < share < 0.9 if is_joint and tensors else share == 1.0
