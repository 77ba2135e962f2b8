"""What examples have sent to the sums of wide layers, and that they do not hear it as an echo."""

import pytest
import torch

import bayesmp as bmp
from bayesmp.schedules import Batch
from bayesmp.sites import SiteIndex
from tests.helpers import blobs

pytestmark = pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # each row left out alone is


@pytest.fixture(autouse=True)
def visits(monkeypatch):
    """Regressions are trained by visits to batches here, not by an objective (schedules/objective.py)."""
    monkeypatch.setattr("bayesmp.schedules.has_objective", lambda network, n_examples: False)


@pytest.mark.parametrize(
    "layers, wide",
    [
        ([(16, 16, None), (16, 3, None)], []),
        ([(33, 16, None), (16, 3, None)], [0]),
        ([(2, 40, None), (40, 40, None), (40, 3, None)], [2, 4]),
        ([(50, 40, None), (40, 40, True), (40, 3, None)], [0, 4]),
        ([(2, 8, False), (8, 3, None)], [0]),
    ],
    ids=str,
)
def test_every_linear_layer_in_matrix_form_remembers_what_examples_sent(layers, wide):
    parts = [part for n_in, n_out, exact in layers for part in (bmp.Linear(n_in, n_out, exact=exact), bmp.LeakyReLU())]
    x, y = blobs(13, n_in=layers[0][0])
    trainer = bmp.Trainer(bmp.Network(parts[:-1], bmp.Softmax()), x, y, batch_size=5)
    trainer.run(1)
    pulls = trainer.schedule.own_pulls
    assert list(pulls) == wide
    for k, pull in pulls.items():
        assert pull.shape == (3, 5, parts[k].n_out)
        assert (pull[0] != 0).all() and (pull[1:, :4] != 0).all() and (pull[1:, 4:] == 0).all(), "13 = 5 + 4 + 4"


@pytest.mark.parametrize("batch_size", [2, 6])
def test_without_its_own_pull_an_example_finds_what_the_others_know(batch_size, monkeypatch):
    """Examples that share no weights: to each its own sum is as the prior has it, whatever it has taught the weights.
    On the way errors are five times those of the start for an epoch or two, which would be taken back.

    Up to 1 / 40, the share of one weight in a sum of 40, which the matrix form leaves in.
    """
    n, n_each = 6, 40
    monkeypatch.setattr("bayesmp.best_state.has_diverged", lambda run: False)
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
