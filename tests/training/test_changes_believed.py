"""What is believed after data came or went: nothing of examples that are gone, or that were never visited."""

import pytest
import torch

import bayesmp as bmp
from tests.changed_runs import (
    NOISE_VAR,
    X,
    Y,
    classes_run,
    regression_run,
)
from tests.helpers import linear_data, mlp

# --- the belief ------------------------------------------------------------------------------------------------------


def test_predictions_after_a_change_are_those_of_a_belief_without_the_examples():
    trainer = regression_run(epochs=20)
    network, far = trainer.network, 3.0 * X[:5]
    before = network.predict(far).epistemic_var
    trainer.remove(list(range(20)))
    assert network.has_belief
    found = network.predict(far).epistemic_var
    assert (found > before).all()
    trainer._believe()  # a refresh by hand at the same means
    torch.testing.assert_close(network.predict(far).epistemic_var, found)


def test_the_belief_is_made_once_when_it_is_needed(monkeypatch):
    trainer = regression_run()
    calls = []
    believe = trainer._believe
    monkeypatch.setattr(trainer, "_believe", lambda: (calls.append(1), believe())[1])
    for k in range(5):
        trainer.remove(k)
    assert not calls
    trainer.network.predict(X)
    trainer.network.predict(X)
    assert len(calls) == 1


def test_a_copy_and_a_reset_network_do_not_wait_for_a_run(tmp_path):
    import copy
    import pickle

    trainer = regression_run()
    trainer.remove([0])
    for network in (copy.deepcopy(trainer.network), pickle.loads(pickle.dumps(trainer.network))):
        assert torch.equal(network.predict(X).var, trainer.network.predict(X).var)
    trainer.remove([1])
    trainer.network.save(tmp_path / "net")
    assert torch.equal(bmp.load(tmp_path / "net").predict(X).var, trainer.network.predict(X).var)
    trainer.remove([2])
    trainer.network.reset()
    assert trainer.network.belief is None and not trainer.network.has_learned


def test_before_training_there_is_no_belief_to_renew():
    trainer = regression_run(epochs=0)
    trainer.add(X[40:], Y[40:])
    assert trainer.network.belief is None and not trainer.network.has_belief
    trainer.remove([0])
    fresh = bmp.Trainer(mlp([3, 6, 1], bmp.Regression(NOISE_VAR), dtype=torch.float64), trainer.x, trainer.y)
    assert trainer.n_epochs == fresh.n_epochs == 0
    torch.testing.assert_close(trainer.network.marginal.rho, fresh.network.marginal.rho)  # starts as it would have


def test_scores_of_other_data_do_not_end_a_run():
    """An auto run that was at rest is looked at anew after a change, with refreshes in its first epochs."""
    trainer = bmp.Trainer(mlp([3, 8, 1], bmp.Regression("learn")), X[:50], Y[:50], batch_size=4)
    trainer.run("auto")
    n_before = trainer.n_epochs
    assert trainer.history.stopped.startswith("at rest")
    trainer.replace([0], X[:1], Y[:1] + 3.0)
    trainer.run("auto")
    assert trainer.n_epochs > n_before + 4
    refreshed = [record.epoch - n_before for record in trainer.history if "moved" in record.loo]
    assert [k for k in refreshed if k > 0][:4] == [1, 2, 3, 4]


# --- before new examples are heard -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_loaded", [False, True])
def test_examples_that_were_never_visited_change_nothing(is_loaded, tmp_path):
    """Neither when they come, nor when some of them go again: they have said nothing."""
    x, y = linear_data(60)
    trainer = bmp.Trainer(mlp([3, 6, 1], bmp.Regression("learn"), dtype=torch.float64), x[:40], y[:40], batch_size=8)
    trainer.run(5)
    before, mean = trainer.network.predict(x), trainer.network.marginal.mean.clone()
    ids = trainer.add(x[40:], y[40:])
    if is_loaded:
        trainer.save(tmp_path / "run.safetensors")
        trainer = bmp.Trainer.load(tmp_path / "run.safetensors", trainer.x, trainer.y)
    found = trainer.network.predict(x)
    torch.testing.assert_close(found.epistemic_var, before.epistemic_var, rtol=1e-12, atol=0.0)
    influence = trainer.influence(ids)
    assert not influence.distance.any() and not influence.leverage.any()
    torch.testing.assert_close(influence.loo_nll, -found.log_prob(y)[40:].sum(1), rtol=1e-6, atol=1e-6)
    assert trainer.batches[-1].influence == 0.0 < trainer.batches[0].influence
    trainer.remove(ids[:5])
    torch.testing.assert_close(trainer.network.marginal.mean, mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(trainer.network.predict(x).epistemic_var, before.epistemic_var, rtol=1e-9, atol=0.0)
    trainer.run(1)
    assert trainer.network.predict(x).epistemic_var.mean() < before.epistemic_var.mean(), "now they are heard"


def test_surprise_at_classes_that_were_never_visited_is_that_of_a_prediction():
    trainer, x, y = classes_run()
    ids = trainer.add(x[40:], y[40:])
    found = trainer.influence(ids)
    expected = -trainer.network.predict(x[40:]).log_prob(y[40:])
    torch.testing.assert_close(found.loo_nll.double(), expected.double(), rtol=1e-6, atol=1e-6)
    assert len(trainer.batches) == 3


def test_a_run_of_which_nothing_heard_is_left_is_as_before_training(tmp_path):
    trainer, x, y = classes_run()
    trainer.add(x[40:], y[40:])
    trainer.remove(range(40))
    assert trainer.network.belief is None and trainer.network.predict(x).probs.isfinite().all()
    trainer.save(tmp_path / "run.safetensors")
    trainer.run(3)
    assert trainer.network.belief is not None


def test_a_mended_label_is_judged_as_new_until_it_is_heard():
    """One wrong label with all the leverage: mended, it must not look worse than wrong."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([0.01 * torch.randn(20, 1, generator=generator), torch.tensor([[2.0]])])
    y = x.clone()
    y[-1] = -2.0
    trainer = bmp.Trainer(mlp([1, 1], bmp.Regression(0.01), dtype=torch.float64), x, y, batch_size=7)
    trainer.run(60)
    assert trainer.influence([20]).leverage.item() > 0.5
    trainer.replace([20], y=[[2.0]])
    silent = trainer.influence([20])
    assert silent.distance.item() == silent.leverage.item() == 0.0, "as the docstring says"
    told = -trainer.network.predict(x[20:]).log_prob([[2.0]]).sum()
    assert trainer.influence([20]).loo_nll.item() == pytest.approx(told.item(), rel=1e-5)
    trainer.run(60)
    assert trainer.influence([20]).leverage.item() > 0.5
    assert trainer.influence([20]).loo_nll.item() < 3.0 and trainer.x[20].item() == 2.0
    with pytest.raises(ValueError, match="x, y or both"):
        trainer.replace([20])


def test_a_merged_run_does_not_count_what_was_never_visited():
    x, y = linear_data(60)
    parts = []
    for a, b in ((0, 10), (10, 20)):
        parts.append(bmp.Trainer(mlp([3, 1], bmp.Regression(NOISE_VAR), dtype=torch.float64), x[a:b], y[a:b]))
        parts[-1].run(20)
    before = bmp.merge(parts).network.predict(x).epistemic_var
    parts[0].add(x[20:], y[20:])
    torch.testing.assert_close(bmp.merge(parts).network.predict(x).epistemic_var, before, rtol=1e-9, atol=0.0)
