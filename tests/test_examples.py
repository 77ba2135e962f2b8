"""What may be handed in as training data, and where it lies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import bayesmp as bmp
from bayesmp.basics import examples
from tests.helpers import blobs, linear_data, mlp


class Pairs(Dataset):
    """Arrays and Python numbers, as many Datasets give them."""

    def __init__(self, x, y):
        self.x, self.y = x.numpy(), y.tolist()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def trained(*data, **options) -> bmp.Network:
    network = mlp([2, 6, 3], bmp.Argmax(), seed=0)
    bmp.fit(network, *data, epochs=3, batch_size=16, progress=False, **options)
    return network


@pytest.mark.parametrize(
    "wrap", [TensorDataset, Pairs, lambda x, y: (x, y), lambda x, y: DataLoader(Pairs(x, y), 7, shuffle=True)]
)
def test_a_dataset_gives_what_its_tensors_give(wrap):
    """Whatever batches or order a loader has: those of a run are its own."""
    x, y = blobs(60)
    expected, found = trained(x, y), trained(wrap(x, y))
    assert torch.equal(found.marginal.tau, expected.marginal.tau)
    assert torch.equal(found.predict(x).probs, expected.predict(x).probs)


def test_a_dataset_of_real_targets():
    x, y = linear_data(40)
    network = mlp([3, 4, 1], bmp.Regression(0.1), seed=0)
    trainer = bmp.Trainer(network, Pairs(x, y.flatten()), batch_size=10)
    assert trainer.x.shape == x.shape and trainer.y.shape == (40, 1)


def test_a_run_that_was_started_with_a_dataset_goes_on_with_one(tmp_path):
    x, y = blobs(30)
    network = mlp([2, 4, 3], bmp.Argmax(), seed=0)
    trainer = bmp.Trainer(network, TensorDataset(x, y))
    trainer.run(1, progress=False)
    trainer.save(tmp_path / "run.safetensors")
    assert bmp.Trainer.load(tmp_path / "run.safetensors", TensorDataset(x, y)).n_epochs == 1


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(2), 0)])


class Triples(Pairs):
    def __getitem__(self, index):
        return self.x[index], self.y[index], index


@pytest.mark.parametrize(
    "data, words",
    [
        (lambda x, y: (Stream(),), "fixed members, which an IterableDataset cannot give"),
        (lambda x, y: (Triples(x, y),), r"pair \(x, y\).*got 3 entries"),
        (lambda x, y: (TensorDataset(x, y), y), "either the Dataset alone, or tensors"),
        (lambda x, y: (x,), "y is missing"),
        (lambda x, y: (TensorDataset(x[:0], y[:0]),), "the Dataset is empty"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(data, words):
    with pytest.raises(ValueError, match=words):
        trained(*data(*blobs(20)))


def test_an_unknown_place_is_refused():
    with pytest.raises(ValueError, match=r"data_store must be one of.*got 'gpu'"):
        trained(*blobs(20), data_store="gpu")


@pytest.mark.parametrize("place", ["auto", "device", "host"])
def test_on_the_cpu_all_places_are_one(place):
    x, y = blobs(40)
    assert torch.equal(trained(x, y, data_store=place).marginal.tau, trained(x, y).marginal.tau)


def test_inputs_stay_on_the_host_when_the_device_has_no_room(monkeypatch):
    x, moved = torch.zeros(100, 10), []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, **where: moved.append(str(where["device"])) or self)
    for free in (20_000, 4_000):  # 4 kB of inputs
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        examples.place_inputs(x, torch.device("cuda"), torch.float32, "auto")
    assert moved == ["cuda", "cpu"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU has memory beside the host's")
def test_inputs_on_the_host_change_nothing():
    x, y = blobs(60)
    found = []
    for place in ("device", "host"):
        network = mlp([2, 6, 3], bmp.Argmax(), seed=0).to("cuda")
        trainer = bmp.Trainer(network, x, y, batch_size=16, data_store=place)
        trainer.run(4, progress=False)
        assert trainer.x.is_cuda == (place == "device")
        found.append(network.predict(x).probs)
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


def test_read_only_and_turned_arrays_are_taken():
    x, y = (np.asarray(part) for part in blobs(20))
    x.setflags(write=False)
    assert trained(x, y).predict(x[::-1]).probs.shape == (20, 3)
