"""Influence against fitting again without each example: exactly for linear models, in dense algebra for classes."""

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.basics.settings import Settings
from bayesmp.evidence.influence import influence_of
from bayesmp.evidence.leave_one_out import take_out
from bayesmp.heads.base import Head
from tests.helpers import blobs, few_anchors, linear_data, linear_posterior, mlp, run_with_past

NOISE_VAR, PRIOR_VAR = 0.09, 0.8


def linear_run(n=24, n_out=1, *, epochs=80, dtype=torch.float64):
    x, y = linear_data(n, n_out=n_out)
    layer = bmp.Linear(3, n_out, weight_prior=(0.0, PRIOR_VAR), bias_prior=(0.0, PRIOR_VAR))
    trainer = bmp.Trainer(bmp.Network([layer], bmp.Regression(NOISE_VAR)).to(dtype), x, y, batch_size=8)
    trainer.run(epochs)
    return trainer


def refitted(x: np.ndarray, y: np.ndarray):
    """By explicit refitting: Cook's distance, the NLL of each target without it, and the leverage, over all outputs."""
    inputs = np.hstack([x, np.ones((len(x), 1))])
    mean, var = np.zeros(inputs.shape[1]), np.full(inputs.shape[1], PRIOR_VAR)
    distance, nll, leverage = (np.zeros((len(x), y.shape[1])) for _ in range(3))
    for o, targets in enumerate(y.T):
        weight, covariance = linear_posterior(inputs, targets, mean, var, NOISE_VAR)
        precision = np.linalg.inv(covariance)
        for k, row in enumerate(inputs):
            kept = np.arange(len(x)) != k
            other, spread = linear_posterior(inputs[kept], targets[kept], mean, var, NOISE_VAR)
            distance[k, o] = (other - weight) @ precision @ (other - weight)
            total = row @ spread @ row + NOISE_VAR
            nll[k, o] = 0.5 * (np.log(2 * np.pi * total) + (targets[k] - row @ other) ** 2 / total)
            leverage[k, o] = row @ covariance @ row / NOISE_VAR
    return distance.sum(1), nll.mean(1), leverage.sum(1)  # the NLL is per target, as in the history


@pytest.mark.parametrize("n_out", [1, 2])
def test_influence_in_a_linear_model_is_that_of_fitting_again(n_out):
    trainer = linear_run(n_out=n_out)
    found = trainer.influence()
    distance, nll, leverage = refitted(trainer.x.numpy(), trainer.y.numpy())
    assert torch.equal(found.ids, trainer.ids) and len(found) == 24
    np.testing.assert_allclose(found.distance, distance, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.loo_nll, nll, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.leverage, leverage, rtol=1e-6)
    np.testing.assert_allclose(found.leverage.sum(), trainer.network.belief.degrees_of_freedom, rtol=1e-6)


def test_removing_an_example_moves_the_means_by_its_distance():
    """The same through the trainer itself: remove, run on, and measure in the belief's own units."""
    trainer = linear_run()
    network = trainer.network
    worst = trainer.influence().top(1, by="distance")
    before = network.marginal.mean.clone()
    inputs = np.hstack([trainer.x.numpy(), np.ones((24, 1))])
    precision = np.eye(4) / PRIOR_VAR + inputs.T @ inputs / NOISE_VAR
    expected = float(trainer.influence(worst).distance)
    trainer.remove(worst)
    trainer.run(80)
    change = (network.marginal.mean - before).numpy()
    np.testing.assert_allclose(change @ precision @ change, expected, rtol=1e-3)


def dense_slopes(network: bmp.Network, x: torch.Tensor) -> torch.Tensor:
    """(n, o, w) slopes of all outputs in all weights, layer after layer."""
    parts = [gradient.flat() for gradient in network.gradients(x)[1]]
    return torch.cat(parts, 2).transpose(0, 1)


@pytest.mark.parametrize("head", [bmp.Argmax(), bmp.Softmax()], ids=repr)
def test_influence_of_classes_is_that_of_dense_algebra(head):
    """With H written out over all weights, each example is taken out of it and of the sum of slopes; H without it is
    solved, nothing is updated. The surrogate is quadratic, so that is exact. Without an objective; with one, see
    objective/test_labels.py."""
    x, y = blobs(40, spread=1.0)
    network = mlp([2, 4, 3], head, dtype=torch.float64)
    trainer = bmp.Trainer(network, x, y, batch_size=10, joint=True)
    trainer.run(15)
    found = trainer.influence()
    head = network.head  # its own, which knows the shares of the classes
    with torch.no_grad():
        slopes = dense_slopes(network, x)
        log_weights = network.head_log_weights
        mean = network.gradients(x)[0].mean
        prior = torch.cat([1.0 / part.flatten() for part in network.layout.prior_vars])
        m_out = network.gradients(x)[0]
        rho = head.to_latent(m_out, y, log_weights).rho  # as the belief was made
        whole = torch.diag(prior) + torch.einsum("now,no,nov->wv", slopes, rho, slopes)
        covariance = slopes @ torch.linalg.inv(whole) @ slopes.transpose(1, 2)
        var = covariance.diagonal(dim1=1, dim2=2)
        message = head.to_latent(bmp.Moments(mean, var), y, log_weights)  # as examples speak when they are judged
        slope = message.tau - message.rho * mean
        away = network.flat.to_matrices(network.marginal.mean - network.prior.mean)
        pull = torch.einsum("now,no->w", slopes, slope) - prior * torch.cat([part.flatten() for part in away])
        slope = slope - message.rho * (slopes @ torch.linalg.solve(whole, pull))  # as they pull at the posterior mean
        for k in range(len(x)):
            without = whole - slopes[k].T @ torch.diag(message.rho[k]) @ slopes[k]
            change = -torch.linalg.solve(without, slopes[k].T @ slope[k])
            torch.testing.assert_close(found.distance[k], change @ whole @ change, rtol=1e-4, atol=1e-8)
            left_var = (slopes[k] @ torch.linalg.solve(without, slopes[k].T)).diagonal()
            left = bmp.Moments((mean[k] + slopes[k] @ change)[None], left_var[None])
            nll = head.train_metrics(left, y[k : k + 1], log_weights)["nll"]
            torch.testing.assert_close(found.loo_nll[k], nll, rtol=1e-4, atol=1e-6)


def test_an_output_that_hears_nothing_has_no_influence():
    """Precisions of 0 leave nothing to divide by."""

    class Deaf(bmp.Regression):
        def to_latent(self, m_out, y, log_weights):
            return bmp.Gaussian(torch.zeros_like(y), torch.zeros_like(y))

    zero = torch.zeros(2, 2, dtype=torch.float64)
    covariance = torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    taken = take_out(Deaf(1.0), zero, covariance, zero, zero, zero[0, :1], limit=0.95)
    assert torch.equal(taken.distance, zero[0]) and torch.equal(taken.leverage, zero[0])


def test_mislabelled_examples_are_the_surprising_ones():
    """Of 300 points 30 have a wrong label: at least 25 of the 30 most surprising ones."""
    x, y = blobs(300, spread=0.4)
    wrong = torch.arange(0, 300, 10)
    y = y.clone()
    y[wrong] = (y[wrong] + 1) % 3
    trainer = bmp.Trainer(mlp([2, 8, 3], bmp.Argmax()), x, y)
    trainer.run(12)
    assert len(set(trainer.influence().top(30).tolist()) & set(wrong.tolist())) >= 25


def test_influence_where_the_belief_is_not_exact():
    """Leverages add up to the degrees of freedom also where some anchors stand for all; one example alone has the same
    influence as among all."""
    x, y = blobs(360, n_in=40)
    trainer = bmp.Trainer(mlp([40, 36, 3], bmp.Argmax()), x, y)
    trainer.run(3)
    belief = trainer.network.belief
    assert not belief.is_exact
    found = trainer.influence()
    torch.testing.assert_close(float(found.leverage.sum()), belief.degrees_of_freedom, rtol=0.02, atol=0.0)
    some = trainer.influence([5, 3])
    assert some.ids.tolist() == [5, 3]
    torch.testing.assert_close(some.distance, found.distance[[5, 3]], rtol=1e-4, atol=0.0)
    score = float(found.loo_nll.mean())  # as in the history, whose belief is of fewer anchors
    assert abs(score - trainer.history.loo_nll[-1]) < 0.1 * abs(score) + 0.05


def test_the_past_holds_its_share_of_the_degrees_of_freedom(monkeypatch):
    """After `as_prior` the rows of today were said to hold what the past holds, too: leverages added up to 205 where
    the belief had 419 degrees of freedom, 229 of them the past's.
    """
    few_anchors(monkeypatch)
    trainer = run_with_past(150, 100, noise_var=NOISE_VAR)
    belief, past = trainer.network.belief, trainer.network.past
    assert not belief.is_exact
    left = belief.degrees_of_freedom - belief.leverage(past)
    assert belief.leverage(past) > 0.3 * belief.degrees_of_freedom
    found = float(trainer.influence().leverage.sum())
    assert found == pytest.approx(left, rel=1e-6)
    some = trainer.influence([7, 3])  # one alone holds as much as among all
    torch.testing.assert_close(some.leverage, trainer.influence().leverage[[7, 3]])
    assert found < 0.98 * _plain_leverage(trainer), "else the factor is 1, and this test sees nothing"


def _plain_leverage(trainer) -> float:
    """What the rows of a run with Gaussian noise would hold if the belief were exact."""
    network = trainer.network
    covariance = network.belief.covariance(network.gradients(trainer.x)[1])
    return float(covariance.sum()) / NOISE_VAR


def test_few_rows_beside_a_large_past_hold_something(monkeypatch):
    """What is left of two large numbers that are not known better than themselves may be nothing, or less."""
    few_anchors(monkeypatch)
    trainer = run_with_past(150, 3, noise_var=NOISE_VAR)
    belief = trainer.network.belief
    monkeypatch.setattr(type(belief), "leverage", lambda self, past: 1.5 * self.degrees_of_freedom)
    found = trainer.influence()
    assert bool((found.leverage > 0).all()) and bool(found.loo_nll.isfinite().all())


@pytest.mark.slow
def test_scores_of_single_examples_average_to_those_of_the_history():
    x, y = blobs(60)
    for head in (bmp.Argmax(), bmp.Argmax(scale=None), bmp.Softmax(), bmp.Softmax(scale=None)):
        trainer = bmp.Trainer(mlp([2, 4, 3], head, dtype=torch.float64), x, y, batch_size=20)
        trainer.run(7)  # no refresh in training at epoch 7, so the record has the score of the last belief
        mean = float(trainer.influence().loo_nll.mean())
        assert mean == pytest.approx(trainer.history.loo_nll[-1], rel=3e-3), head  # covariances still settle


@pytest.mark.parametrize(
    "head", [bmp.Argmax(), bmp.Argmax(scale=None), bmp.Softmax(), bmp.Regression("learn")], ids=repr
)
def test_nll_by_example_is_that_of_single_rows(head):
    """Heads of users have only the sum over a batch; the one by example must agree with it."""
    generator = torch.Generator().manual_seed(0)
    mean, var = torch.randn(5, 3, generator=generator), torch.rand(5, 3, generator=generator)
    y = torch.randn(5, 3, generator=generator) if isinstance(head, bmp.Regression) else torch.tensor([0, 1, 2, 0, 1])
    log_weights = head.prior_log_weights().float()
    found = head.nll(bmp.Moments(mean, var), y, log_weights)
    torch.testing.assert_close(found, Head.nll(head, bmp.Moments(mean, var), y, log_weights))


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_has_the_influence_of_its_rows():
    trainer = linear_run(epochs=3)
    distance = dict(zip(trainer.ids.tolist(), trainer.influence().distance.tolist(), strict=True))
    for batch in trainer.batches:
        assert batch.influence == pytest.approx(sum(distance[k] for k in batch.rows.tolist()))
    with pytest.raises(AttributeError):
        batch.influence = 0.0


def test_influence_needs_a_belief_and_follows_it():
    x, y = linear_data(20)
    trainer = bmp.Trainer(mlp([3, 4, 1], bmp.Regression(NOISE_VAR)), x, y, batch_size=5)
    assert [batch.influence for batch in trainer.batches] == [None] * 4
    with pytest.raises(ValueError, match=r"this run has none: run\(\) makes it"):
        trainer.influence()
    trainer.run(2)
    first = trainer.influence()
    assert trainer.influence() is first  # found once
    trainer.replace([0], x[:1], y[:1] + 5.0)
    second = trainer.influence()
    assert second.loo_nll[0] > first.loo_nll[0] + 1.0
    with pytest.raises(ValueError, match="by must be one of"):
        second.top(3, by="surprise")
    with pytest.raises(ValueError, match="positive integer"):
        second.top(-1)


@pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # six rows, learned by heart
def test_a_cut_leverage_stays_finite():
    x, y = linear_data(6, n_in=30)
    network = mlp([30, 8, 1], bmp.Regression(1e-4), dtype=torch.float64)
    trainer = bmp.Trainer(network, x, y)
    trainer.run(5)
    found = influence_of(
        network, network.belief, trainer.x, trainer.y, torch.arange(6), settings=Settings(max_leverage=(0.5, 0.5))
    )
    assert all(part.isfinite().all() for part in found) and (found[0] >= 0).all()


def test_influence_is_shown_as_a_table_and_comes_as_rows():
    """The repr was four tensors in full."""
    trainer = linear_run(epochs=5)
    found = trainer.influence()
    lines = str(found).split("\n")
    assert lines[0] == "Influence of 24 examples, the 8 most surprising first:" and lines[-1] == "..."
    assert lines[1].split() == ["id", "distance", "loo_nll", "leverage"] and len(lines) == 11
    assert [int(line.split()[0]) for line in lines[2:-1]] == found.top(8).tolist()
    assert float(lines[2].split()[2]) == pytest.approx(float(found.loo_nll.max()), rel=0.01)
    assert len({len(line) for line in lines[1:-1]}) == 1, "columns stand below each other"
    rows = found.to_rows()
    assert [row["id"] for row in rows] == found.ids.tolist() and list(rows[0]) == lines[1].split()
    assert [row["leverage"] for row in rows] == found.leverage.tolist()
    few = repr(trainer.influence([5, 3]))
    assert few.startswith("Influence of 2 examples, the most surprising first:") and "..." not in few
    assert repr(trainer.influence([5])).startswith("Influence of 1 example, ")
