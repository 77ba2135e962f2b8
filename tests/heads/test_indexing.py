"""Rows and columns of predictions."""

import pytest
import torch

import bayesmp as bmp
from bayesmp.data import Scaling
from tests.helpers import mlp


@pytest.mark.parametrize("noise", [0.1, "learn"])
@pytest.mark.parametrize("varies", [True, False])
def test_rows_and_columns_of_a_prediction_are_what_they_were(noise, varies):
    """Also in units of several targets, behind which each has its own noise; of ensembles, too."""
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    y = torch.stack([x[:, 0], 100 * x[:, 1] + 3], 1).numpy()
    scaling = Scaling.fit(y)
    network = mlp((2, 6, 2), bmp.Regression(noise, varies=varies))
    bmp.fit(network, x, scaling.apply(y), epochs=3, progress=False)
    found = network.predict(x)
    for whole in (found.undo(scaling), bmp.mixture([found, found]).undo(scaling)):
        for rows in (slice(None), slice(2), 3):
            part = whole[rows][..., 1]
            torch.testing.assert_close(part.var, whole.var[rows][..., 1])
            torch.testing.assert_close(part.interval(0.8)[0], whole.interval(0.8)[0][rows][..., 1])
            targets = torch.as_tensor(y).to(whole.mean)
            torch.testing.assert_close(part.log_prob(targets[rows][..., 1]), whole.log_prob(targets)[rows][..., 1])
            torch.testing.assert_close(part.cdf(targets[rows][..., 1]), whole.cdf(targets)[rows][..., 1])
    with pytest.raises(ValueError, match=r"flat\(\) takes predictions of one output"):
        found.flat()
