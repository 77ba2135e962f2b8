"""What a run does with a refresh of the belief: what it hears, and what it keeps at its end."""

from dataclasses import replace

import pytest
import torch

import bayesmp as bmp
from tests.helpers import blobs, linear_data, mlp

torch.set_num_threads(1)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_refresh_tells_the_constant_and_how_many_leverages_were_cut(monkeypatch, share):
    """Where examples hold their own outputs, leverages are cut, and scores are far too good. The constant is heard all
    the same; that such a state is not believed to be the best one is tested in test_best_state.py.
    """
    x, y = linear_data(40)
    trainer = bmp.Trainer(mlp([3, 8, 1], bmp.Regression("learn")), x, y, batch_size=20, joint=True)
    trainer.run(1)
    constants, refresh = [], trainer._belief_maker.refresh

    def cut(*arguments, **options):
        refreshed = refresh(*arguments, **options)
        assert len(refreshed.outputs) == 40
        return replace(refreshed, n_clipped=round(share * 40))

    monkeypatch.setattr(trainer._belief_maker, "refresh", cut)
    monkeypatch.setattr(trainer.schedule, "hear_constant", constants.append)
    trainer._refresh_in_training(1)
    assert len(constants) == 1
    assert trainer.history[-1].loo["clipped"] == share


def test_the_variance_of_labels_stays_what_training_had_when_a_run_ends():
    """The belief is made with it. A last refresh tells another one, from the belief that is made with this one; taken
    over, belief and link would not be of one piece. The link is that of the last refresh.
    """
    x, y = blobs(80, spread=0.5)
    trainer = bmp.Trainer(mlp([2, 6, 3], bmp.Argmax()), x, y, batch_size=20)
    trainer.run(2)
    network, head = trainer.network, trainer.network.head
    in_training = trainer.sites.head_posterior(trainer.schedule.head_prior)
    assert torch.equal(network.head_log_weights[head.heard], in_training[head.heard])
    maker = trainer._belief_maker
    refreshed = maker.refresh(trainer.data, maker.size_at_end(trainer.data), seed=0)
    would_be = trainer.schedule.head_prior + refreshed.constant
    variances = [float(head.in_training(weights.double())) for weights in (in_training, would_be)]
    assert abs(variances[1] / variances[0] - 1.0) > 0.05, "else there is nothing to see"
    links = [torch.softmax(weights[head.links].double(), 0) for weights in (network.head_log_weights, would_be)]
    torch.testing.assert_close(*links, rtol=1e-4, atol=1e-6)
