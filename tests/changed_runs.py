"""Small runs whose data change, and what must hold of them."""

import itertools

import torch

import bayesmp as bmp
from tests.helpers import blobs, linear_data, mlp

NOISE_VAR = 0.09
X, Y = linear_data(60)
SCHEDULES = ("parallel", "sequential")
STORES = ("device", "host", "disk")


def regression_run(n=40, *, schedule="parallel", epochs=3, batch_size=8, head=None, dtype=torch.float64, **options):
    network = mlp([3, 6, 1], head or bmp.Regression(NOISE_VAR), dtype=dtype)
    trainer = bmp.Trainer(network, X[:n], Y[:n], batch_size=batch_size, schedule=schedule, debug=True, **options)
    if epochs:
        trainer.run(epochs)
    return trainer


def sites_of(trainer) -> dict[int, list[torch.Tensor]]:
    """What is stored for each batch, by its id, copied."""
    parts = (trainer.sites.slope, trainer.sites.rho, trainer.sites.head)
    return {batch: [part[row].clone() for part in parts] for row, batch in enumerate(trainer.data.batch_ids)}


def assert_same_sites(found, expected) -> None:
    assert found.keys() == expected.keys()
    for batch in found:
        assert all(torch.equal(a, b) for a, b in zip(found[batch], expected[batch], strict=True)), batch


def assert_holds(trainer, examples: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Exactly these examples, each in one batch, and posterior = prior x sites."""
    assert trainer.ids.tolist() == list(examples)
    assert len(trainer.x) == len(trainer.y) == len(examples)
    for row, (x, y) in enumerate(examples.values()):
        assert torch.equal(trainer.x[row], x.to(trainer.x)) and torch.equal(trainer.y[row], y.to(trainer.y))
    members = [part.tolist() for part in trainer.members]
    assert sorted(itertools.chain(*members)) == list(range(len(examples))) and all(members)
    assert len(trainer.members) == len(trainer.sites) == len(trainer.data.batch_ids) == len(set(trainer.data.batch_ids))
    assert trainer.check_invariant() < 1e-3


def classes_run(**options):
    x, y = blobs(60)
    trainer = bmp.Trainer(mlp([2, 4, 3], bmp.Argmax(), dtype=torch.float64), x[:40], y[:40], batch_size=20, **options)
    trainer.run(3)
    return trainer, x, y
