"""What examples have sent to the sums of dense layers, and that they do not hear it as an echo."""

import pytest
import torch

import bayesmp as bmp
from bayesmp.sites.sites import SiteIndex
from bayesmp.training.schedules import Batch
from tests.helpers import blobs, mlp

pytestmark = pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # each row left out alone is


@pytest.fixture(autouse=True)
def visits(monkeypatch):
    """Regressions are trained by visits to batches here, not by an objective (training/schedules/objective.py)."""
    monkeypatch.setattr("bayesmp.training.schedules.has_objective", lambda network, n_examples: False)


@pytest.mark.parametrize(
    "sizes",
    [[2, 3], [16, 16, 3], [32, 16, 3], [33, 16, 3], [2, 40, 40, 3]],
    ids=lambda sizes: "-".join(map(str, sizes)),
)
@pytest.mark.parametrize("joint", [True, False])
def test_every_dense_layer_remembers_what_examples_sent(sizes, joint):
    """With few inputs, too: up to 32 of them an example once heard its own echo."""
    network, (x, y) = mlp(sizes, bmp.Softmax()), blobs(13, n_in=sizes[0])
    trainer = bmp.Trainer(network, x, y, batch_size=5, joint=joint)
    trainer.run(1)
    pulls = trainer.schedule.own_pulls
    assert list(pulls) == list(range(0, 2 * len(sizes) - 2, 2)) == [node.index for node in network.graph.weight_nodes]
    for k, pull in pulls.items():
        assert pull.shape == (3, 5, network.layers[k].n_out)
        assert (pull[0] != 0).all() and (pull[1:, :4] != 0).all() and (pull[1:, 4:] == 0).all(), "13 = 5 + 4 + 4"


@pytest.mark.parametrize("head", [bmp.Regression(0.1), bmp.Regression("learn"), bmp.Argmax()], ids=repr)
def test_examples_of_every_head_remember_what_they_sent(head):
    """Targets with noise heard their echo in networks of several dense layers, and labels did not."""
    x, y = blobs(13, n_in=5)
    trainer = bmp.Trainer(mlp([5, 7, 3], head), x, torch.eye(3)[y] if head.has_noise else y, batch_size=5, joint=True)
    trainer.run(1)
    assert list(trainer.schedule.own_pulls) == [0, 2]
    assert all((pull[0] != 0).all() for pull in trainer.schedule.own_pulls.values())


def test_images_are_heard_whole_and_the_dense_layer_behind_them_is_not():
    """The positions of an image share their weights: no one number per example and unit says what it has sent."""
    layers = [bmp.Conv2d(1, 2, 2), bmp.LeakyReLU(), bmp.Flatten(), bmp.Linear(8, 3)]
    network = bmp.Network(layers, bmp.Softmax(), input_shape=(1, 3, 3))
    x, y = blobs(13, n_in=9)
    trainer = bmp.Trainer(network, x.view(-1, 1, 3, 3), y, batch_size=5)
    trainer.run(1)
    assert list(trainer.schedule.own_pulls) == [3]


@pytest.mark.parametrize("batch_size", [2, 6])
def test_without_its_own_pull_an_example_finds_what_the_others_know(batch_size, monkeypatch):
    """Examples that share no weights: to each its own sum is as the prior has it, whatever it has taught the weights.
    On the way errors are five times those of the start for an epoch or two, which would be taken back.

    Up to 1 / 40, the share of one weight in a sum of 40, which the matrix form leaves in.
    """
    n, n_each = 6, 40
    monkeypatch.setattr("bayesmp.training.best_state.has_diverged", lambda run: False)
    x = torch.zeros(n, n, n_each, dtype=torch.float64)
    x[range(n), range(n)] = torch.rand(n, n_each, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    x, y = x.view(n, -1), torch.linspace(2.0, 5.0, n, dtype=torch.float64)[:, None]
    layer = bmp.Linear(n * n_each, 1, bias=False, weight_prior=(0.01, 0.02))
    trainer = bmp.Trainer(bmp.Network([layer], bmp.Regression(0.1)).to(torch.float64), x, y, batch_size=batch_size)
    trainer.run(100)
    unseen, learned = 0.01 * x.sum(1), trainer.network.predict(x).mean.flatten()
    assert ((learned - unseen) > 0.8 * (y[:, 0] - unseen)).all(), "the weights have learned it"
    for row, rows in enumerate(trainer.members):
        batch = Batch(SiteIndex(row, torch.tensor([row])), trainer.x[rows], trainer.y[rows])
        found = trainer.schedule._sweep_batch(batch).trace.outputs.mean[:, 0]
        assert ((found - unseen[rows]).abs() < 0.04 * (learned - unseen)[rows]).all()
