"""Examples that count more or less than once: a weight is a power of the likelihood."""

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.messages.gaussian import Moments
from bayesmp.network.varying_noise import learn_varying_noise
from bayesmp.training.constant_guess import constant_nll
from tests.basics.test_persistence import assert_same_run
from tests.helpers import blobs, is_same, linear_data, linear_posterior, mlp
from tests.objective_cases import data_of, descent_of, network_of

NOISE_VAR = 0.07
NEW = torch.tensor([[0.5, -1.0, 2.0], [0.0, 0.0, 0.0], [3.0, 1.0, -2.0]], dtype=torch.float64)
pytestmark = pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # given noise is any here


def line(noise_var=NOISE_VAR):
    layer = bmp.Linear(3, 1, weight_prior=(0.2, 0.8), bias_prior=(-0.1, 0.5))
    return bmp.Network([layer], bmp.Regression(noise_var)).to(torch.float64)


def truth(x, y, weight, new=NEW):
    """Mean and variance of the function at new inputs: each row's term as often as its weight says."""
    rows = np.hstack([x.numpy(), np.ones((len(x), 1))]) * weight.sqrt()[:, None].numpy()
    prior_mean, prior_var = np.array([0.2, 0.2, 0.2, -0.1]), np.array([0.8, 0.8, 0.8, 0.5])
    targets = (y[:, 0] * weight.sqrt()).numpy()
    mean, covariance = linear_posterior(rows, targets, prior_mean, prior_var, NOISE_VAR)
    at = np.hstack([new.numpy(), np.ones((len(new), 1))])
    return at @ mean, ((at @ covariance) * at).sum(1)


def assert_is_truth(network, x, y, weight, *, rtol=1e-6):
    found = network.predict(NEW)
    mean, var = truth(x, y, weight)
    np.testing.assert_allclose(found.mean.flatten(), mean, rtol=rtol, atol=1e-8)
    np.testing.assert_allclose(found.epistemic_var.flatten(), var, rtol=1e-6)


def weights_of(n, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0.1, 4.0, n))


# --- what a weight is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["whole", "any"])
def test_a_linear_network_has_the_posterior_in_closed_form(kind):
    """Whole weights: that of rows repeated so often; 0 leaves them out."""
    x, y = linear_data(30)
    weight = torch.arange(30) % 4 * 1.0 if kind == "whole" else weights_of(30)
    network = line()
    bmp.fit(network, x, y, sample_weight=weight, epochs=30, batch_size=7)
    assert_is_truth(network, x, y, weight)
    if kind == "whole":
        again = weight.long()
        x, y = x.repeat_interleave(again, 0), y.repeat_interleave(again, 0)
        assert_is_truth(network, x, y, torch.ones(len(x), dtype=torch.float64))


@pytest.mark.parametrize("sizes", [[3, 5, 1], [3, 4, 2]])
@pytest.mark.parametrize("over_rows", [True, False])
def test_the_objective_counts_a_row_of_weight_two_as_two_rows(sizes, over_rows):
    """With its slope and curvature, which say where training goes."""
    x, y = data_of(12, 3, sizes[-1])
    again = torch.arange(12) % 3 + 1
    rows = torch.arange(12).repeat_interleave(again)
    found = []
    for weight, chosen in ((again.double(), torch.arange(12)), (torch.ones(len(rows), dtype=torch.float64), rows)):
        network = network_of(sizes, seed=1)
        descent = descent_of(network, x[chosen], y[chosen], weight=weight, over_rows=over_rows)
        for _ in range(7):
            descent.step()
        found.append((descent.look().value, descent.state.mean, descent.state.noise, descent.state.width))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=1e-6, atol=1e-7)


def test_noise_and_scores_are_those_of_repeated_rows():
    """Learned noise with tails that varies; rows that are repeated are told not to be copies by weights of 1."""
    x, y = linear_data(40, noise_std=0.4)
    again = torch.arange(40) % 3 + 1
    found = []
    for rows, weight in (
        (torch.arange(40), again.double()),
        (torch.arange(40).repeat_interleave(again), torch.ones(int(again.sum()), dtype=torch.float64)),
    ):
        network = line("learn")
        history = bmp.fit(network, x[rows], y[rows], sample_weight=weight, epochs=40)
        found.append((network.predict(NEW), history.loo_nll[-1], history.loo_error[-1]))
    (a, *scores), (b, *expected) = found
    torch.testing.assert_close(a.mean, b.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(a.epistemic_var, b.epistemic_var, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(a.var, b.var, rtol=0.02, atol=0.0)  # noise at x has features with the scale of all rows
    assert scores == pytest.approx(expected, rel=1e-3)
    plain = line("learn")
    bmp.fit(plain, x, y, epochs=40)
    assert (plain.predict(NEW).epistemic_var > 1.2 * a.epistemic_var).all(), "weights of 2 on average say more"


@pytest.mark.parametrize("tails", ["learn", "gaussian"])
def test_messages_to_the_noise_are_powers(tails):
    head = bmp.Regression("learn", tails=tails)
    generator = torch.Generator().manual_seed(0)
    mean, y = torch.randn(2, 9, 2, generator=generator, dtype=torch.float64)
    again = torch.tensor([0, 1, 2, 3, 1, 1, 5, 1, 2])
    rows = torch.arange(9).repeat_interleave(again)
    m_out = Moments(mean, 0.1 + mean.square())
    found = head.to_constant(m_out, y, again.double())
    torch.testing.assert_close(found, head.to_constant(m_out.map(lambda part: part[rows]), y[rows]))


def test_noise_at_inputs_hears_weights():
    head = bmp.Regression("learn")
    generator = torch.Generator().manual_seed(0)
    hidden = torch.rand(80, 1, generator=generator, dtype=torch.float64)
    y = (0.1 + hidden) * torch.randn(80, 1, generator=generator, dtype=torch.float64)
    mean, again = 0.1 * hidden, torch.arange(80) % 3
    rows = torch.arange(80).repeat_interleave(again)
    prior = head.prior_log_weights()

    def learned(chosen, weight):
        parts = (part[chosen] for part in (hidden, mean, mean, y))
        hidden_, mean_, left, y_ = parts
        return learn_varying_noise(head, hidden_, mean_, Moments(left, 0.01 + 0 * left), y_, prior, weight=weight)

    found, expected = learned(torch.arange(80), again.double()), learned(rows, None)
    assert float((found.noise[0] / expected.noise[0]).log().abs()) < 0.1, "features are standardised by all rows"
    torch.testing.assert_close(learned(rows, torch.ones(len(rows))).noise, expected.noise)


def test_labels_count_by_their_weights():
    """Class 0 with weight 3 is three times as probable where inputs tell nothing."""
    x, y = torch.zeros(60, 1), torch.arange(60) % 2
    network = mlp([1, 2], bmp.Softmax())
    bmp.fit(network, x, y, sample_weight=1.0 + 2.0 * (y == 0), epochs=30)
    assert float(network.predict(x[:1]).probs[0, 0]) == pytest.approx(0.75, abs=0.03)


def test_weights_of_one_change_nothing():
    x, y = linear_data(40)
    runs = [bmp.Trainer(mlp([3, 5, 1], bmp.Regression("learn")), x, y, sample_weight=w) for w in (None, np.ones(40))]
    for run in runs:
        run.run(6)
    assert is_same(*(run.network.predict(x) for run in runs))
    assert runs[0].history.loo_nll == runs[1].history.loo_nll


def test_with_weights_nothing_is_taken_for_a_copy():
    x, y = (part.repeat(2, 1) for part in linear_data(30))
    for weight, counts in ((None, 0.5), (torch.ones(60), 1.0), (torch.full((60,), 0.5), 0.5)):
        network = line()
        bmp.fit(network, x, y, sample_weight=weight, epochs=20)
        assert_is_truth(network, x, y, torch.full((60,), counts, dtype=torch.float64))


# --- at the door -----------------------------------------------------------------------------------------------------


WRONG = {
    "negative": ([1.0, -1.0, 1.0, 1.0], "got -1.0 in row 1"),
    "missing": ([1.0, 1.0, float("nan"), 1.0], "got nan in row 2"),
    "infinite": ([1.0, 1.0, 1.0, float("inf")], "got inf in row 3"),
    "nothing": ([0.0] * 4, "zero in all rows"),
    "short": ([1.0, 2.0], r"must have shape \(4,\), got \(2,\)"),
    "wide": ([[1.0]] * 4, r"got \(4, 1\)"),
    "one number": (2.0, r"got \(\)"),
    "text": (["a", "b", "c", "d"], "must hold numbers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_weights_are_refused(case):
    weight, message = WRONG[case]
    x, y = linear_data(4)
    with pytest.raises(ValueError, match=message):
        bmp.Trainer(line(), x, y, sample_weight=weight)


@pytest.mark.parametrize(
    "network, options",
    [
        (mlp([2, 4, 3], bmp.Argmax()), {}),
        (mlp([2, 4, 3], bmp.Softmax()), {"schedule": "sequential"}),
        (mlp([2, 4, 3], bmp.Softmax()), {"joint": True}),
    ],
    ids=["argmax", "sequential", "joint"],
)
def test_messages_have_no_weights_and_say_so(network, options):
    x, y = blobs(30)
    with pytest.raises(ValueError, match="sample_weight needs training with an objective"):
        bmp.fit(network, x, y, sample_weight=np.ones(30), **options)


def test_a_large_softmax_network_has_an_objective_for_its_weights():
    x, y = blobs(1200)
    sizes = [2, 450, 3]
    assert not bmp.Trainer(mlp(sizes, bmp.Softmax()), x, y).has_objective
    assert bmp.Trainer(mlp(sizes, bmp.Softmax()), x, y, sample_weight=np.ones(1200)).has_objective


# --- data with identity ----------------------------------------------------------------------------------------------


def run_of(x, y, weight, epochs=20, **options):
    trainer = bmp.Trainer(line(), x, y, sample_weight=weight, batch_size=8, **options)
    trainer.run(epochs)
    return trainer


def test_rows_of_weight_zero_keep_their_places_among_the_ids():
    x, y = linear_data(30)
    weight = weights_of(30)
    weight[[0, 7, 29]] = 0.0
    trainer = run_of(x, y, weight)
    assert trainer.ids.tolist() == [k for k in range(30) if k not in (0, 7, 29)]
    assert trainer.add(x[:1], y[:1]).tolist() == [30]
    with pytest.raises(ValueError, match="no example with the id 7"):
        trainer.remove(7)


def test_weights_stay_with_their_examples_when_others_come_and_go():
    x, y = linear_data(60)
    weight = weights_of(60)
    trainer = run_of(x[:40], y[:40], weight[:40])
    assert_is_truth(trainer.network, x[:40], y[:40], weight[:40])
    trainer.add(x[40:], y[40:], sample_weight=weight[40:])
    trainer.remove([3, 4, 50])
    stays = torch.tensor([k for k in range(60) if k not in (3, 4, 50)])
    y[10] = 1.5
    trainer.replace(10, x[10:11], y[10:11])
    trainer.run(20)
    assert torch.equal(trainer.data.sample_weight, weight[stays])
    assert_is_truth(trainer.network, x[stays], y[stays], weight[stays])


def test_examples_with_weights_join_others_without():
    x, y = linear_data(60)
    weight = weights_of(60)
    trainer = run_of(x[:40], y[:40], None)
    trainer.add(x[40:], y[40:], sample_weight=weight[40:])
    trainer.run(20)
    weight[:40] = 1.0
    assert_is_truth(trainer.network, x, y, weight)
    with pytest.raises(ValueError, match="must be above 0"):
        trainer.add(x[:2], y[:2], sample_weight=[1.0, 0.0])


def test_a_removal_before_the_next_epoch_hears_weights():
    x, y = linear_data(40)
    weight = weights_of(40)
    trainer = run_of(x, y, weight)
    trainer.add(x[:8] + 1.0, y[:8], sample_weight=np.full(8, 3.0))  # silent
    trainer.remove(range(5))
    assert_is_truth(trainer.network, x[5:], y[5:], weight[5:], rtol=1e-3)  # one step, of which damping takes a little


def test_a_change_that_fails_leaves_the_weights(monkeypatch):
    x, y = linear_data(20)
    trainer = run_of(x, y, weights_of(20), epochs=2)
    before = trainer.data.sample_weight

    def fails(*parts, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(trainer.schedule), "rearrange", fails)
    with pytest.raises(KeyboardInterrupt):
        trainer.add(x, y, sample_weight=np.ones(20))
    assert trainer.data.sample_weight is before and trainer.schedule.sample_weight is before


def test_files_and_checkpoints_hold_weights(tmp_path):
    x, y = linear_data(30)
    weight = weights_of(30)
    trainer = run_of(x, y, weight, epochs=4)
    trainer.save(tmp_path / "run")
    again = bmp.Trainer.load(tmp_path / "run", x, y)
    assert torch.equal(again.data.sample_weight, weight)
    for run in (trainer, again):
        run.run(3)
    assert_same_run(trainer, again)

    options = {"checkpoint": tmp_path / "folder", "batch_size": 8}
    bmp.fit(line(), x, y, epochs=3, sample_weight=weight, **options)
    with pytest.raises(ValueError, match="another sample_weight"):
        bmp.fit(line(), x, y, epochs=5, sample_weight=2.0 * weight, **options)
    with pytest.raises(ValueError, match="another sample_weight"):
        bmp.fit(line(), x, y, epochs=5, **options)
    network = line()
    bmp.fit(network, x, y, epochs=20, sample_weight=weight, **options)
    assert_is_truth(network, x, y, weight)
    resumed = bmp.Trainer.resume(tmp_path / "folder", x, y)
    assert torch.equal(resumed.data.sample_weight, weight)


def test_merged_runs_count_examples_as_before():
    x, y = linear_data(60)
    weight = weights_of(60)
    weight[40:] = 1.0
    runs = [run_of(x[:40], y[:40], weight[:40]), run_of(x[40:], y[40:], None)]
    merged = bmp.merge(runs)
    assert torch.equal(merged.data.sample_weight, weight)
    merged.run(20)
    assert_is_truth(merged.network, x, y, weight)


def test_influence_hears_weights():
    """A heavy row holds more of its own output."""
    x, y = linear_data(30)
    weight = torch.ones(30, dtype=torch.float64)
    light = run_of(x, y, weight).influence().leverage
    weight[4] = 9.0
    heavy = run_of(x, y, weight).influence().leverage
    assert heavy[4] > 2.0 * light[4] and heavy[5] < light[5]


def test_many_networks_take_weights():
    x, y = linear_data(30)
    weight = weights_of(30)
    networks = [line(), line()]
    bmp.fit_many(networks, [x, x], [y, y + 1.0], sample_weight=weight, epochs=20, workers=1)
    assert_is_truth(networks[0], x, y, weight)
    assert_is_truth(networks[1], x, y + 1.0, weight)


@pytest.mark.parametrize("labels", [True, False])
def test_metrics_and_the_constant_that_they_are_held_against_are_weighted(labels):
    """Weights that make one class frequent looked like a run that is worse than the shares of the classes."""
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    y = (x[:, 0] > torch.sin(9 * x[:, 0])).long() if labels else torch.exp(x)
    again = (torch.arange(40) > 25) * 6 + 1
    rows = torch.arange(40).repeat_interleave(again)
    found = []
    for chosen, weight in ((torch.arange(40), again.double()), (rows, torch.ones(len(rows), dtype=torch.float64))):
        network = mlp([1, 2 if labels else 1], bmp.Softmax() if labels else bmp.Regression("learn"))
        trainer = bmp.Trainer(network, x[chosen], y[chosen], sample_weight=weight)
        record = trainer.run(6)[-1]
        found.append([constant_nll(trainer), *record.metrics.values()])
    assert found[0] == pytest.approx(found[1], rel=1e-3)
    plain = bmp.Trainer(mlp([1, 2 if labels else 1], trainer.network.head), x, y)
    assert abs(constant_nll(plain) - found[0][0]) > 0.01
