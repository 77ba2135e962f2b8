"""Merged runs: natural parameters add, and settling leads to where training on all data leads."""

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.evidence import Descent
from tests.basics.test_persistence import assert_same_run
from tests.helpers import blobs, linear_data, linear_posterior, mlp

NOISE_VAR = 0.09
X, Y = linear_data(60)
SCHEDULES = ("parallel", "sequential")


def run(x=X, y=Y, *, sizes=(3, 4, 1), head=None, seed=0, epochs=2, batch_size=8, dtype=torch.float64, **options):
    trainer = bmp.Trainer(mlp(sizes, head or bmp.Regression(NOISE_VAR), seed=seed, dtype=dtype), x, y,
                          batch_size=batch_size, **options)  # fmt: skip
    if epochs:
        trainer.run(epochs)
    return trainer


@pytest.mark.parametrize("store", ["device", "disk"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_natural_parameters_add(schedule, store):
    parts = [run(X[a:b], Y[a:b], schedule=schedule, site_store=store) for a, b in ((0, 10), (10, 30), (30, 36))]
    merged = bmp.merge(parts)
    prior, expected = parts[0].network.prior, parts[0].network.marginal
    for part in parts[1:]:
        expected = expected * part.network.marginal / prior
    torch.testing.assert_close(merged.network.marginal.tau, expected.tau)
    torch.testing.assert_close(merged.network.marginal.rho, expected.rho)
    assert merged.check_invariant() < 1e-12
    row = 0
    for part in parts:
        for k in range(len(part.sites)):
            found, known = merged.sites.site(row), part.sites.site(k)
            torch.testing.assert_close(found.tau, known.tau)
            torch.testing.assert_close(found.rho, known.rho)
            row += 1
    assert merged.ids.tolist() == list(range(36))
    assert torch.equal(merged.x, X[:36]) and torch.equal(merged.y, Y[:36])
    assert [note.what for note in merged.history.changes] == ["merged"] * 3 and merged.n_epochs == 0


def test_the_runs_stay_as_they_are_and_the_merged_one_is_a_run_like_others(tmp_path):
    a, b = run(X[:20], Y[:20, 0]), run(X[20:40], Y[20:40, 0])
    twin = run(X[:20], Y[:20, 0])
    merged = bmp.merge([a, b])
    assert_same_run(a, twin)
    assert merged.network is not a.network
    assert merged.network.predict(X).mean.shape == (60,)  # as the targets were
    ids = merged.add(X[40:], Y[40:])
    merged.remove(ids[:3])
    merged.run(2)
    merged.save(tmp_path / "run")
    loaded = bmp.Trainer.load(tmp_path / "run", merged.x, merged.y)
    merged.run(1)
    loaded.run(1)
    assert_same_run(loaded, merged)
    a.run(1)
    twin.run(1)
    assert_same_run(a, twin)


@pytest.mark.parametrize("schedule, epochs", [("parallel", 60), ("sequential", 8)])
def test_a_linear_model_settles_where_the_closed_form_of_all_data_is(schedule, epochs):
    def part(rows):
        layer = bmp.Linear(3, 1, weight_prior=(0.0, 0.8), bias_prior=(0.0, 0.8))
        network = bmp.Network([layer], bmp.Regression(NOISE_VAR)).to(torch.float64)
        trainer = bmp.Trainer(network, X[rows], Y[rows], batch_size=6, schedule=schedule)
        trainer.run(epochs)
        return trainer

    merged = bmp.merge([part(slice(0, 12)), part(slice(12, 24))])
    merged.run(epochs)
    inputs = np.hstack([X[:24].numpy(), np.ones((24, 1))])
    weight, _ = linear_posterior(inputs, Y[:24, 0].numpy(), np.zeros(4), np.full(4, 0.8), NOISE_VAR)
    tolerance = {"parallel": 1e-5, "sequential": 2e-3}[schedule]
    np.testing.assert_allclose(merged.network.marginal.mean, weight, rtol=0.0, atol=tolerance)


def test_merged_classes_settle_near_training_on_all():
    """A few epochs bring the held-out NLL to that of all data."""
    x, y = blobs(240, spread=1.0)
    new_x, new_y = blobs(400, spread=1.0, seed=9)
    parts = [run(x[k::2], y[k::2], sizes=(2, 8, 3), head=bmp.Argmax(), batch_size=20, epochs=15) for k in range(2)]
    whole = run(x, y, sizes=(2, 8, 3), head=bmp.Argmax(), batch_size=20, epochs=15)
    merged = bmp.merge(parts)
    merged.run(5)

    def nll(trainer):
        return -float(trainer.network.predict(new_x).log_prob(new_y).mean())

    assert abs(nll(merged) - nll(whole)) < 0.02


def test_a_merged_run_goes_on_from_the_merged_means(monkeypatch):
    merged = bmp.merge([run(X[:20], Y[:20], epochs=5), run(X[20:40], Y[20:40], epochs=5)])
    means, step, starts = merged.network.marginal.mean.clone(), Descent.step_or_stay, []

    def noted(descent):
        starts.append(descent.state.mean.clone())
        return step(descent)

    monkeypatch.setattr(Descent, "step_or_stay", noted)
    merged.run(1)
    torch.testing.assert_close(merged.schedule.function.to_flat(starts[0]), means)


SPLIT = ((0, 12), (12, 18))  # first row and number of rows


def test_wide_layers_keep_what_examples_have_sent():
    x, y = blobs(30, n_in=40)
    parts = [
        run(x[k : k + n], y[k : k + n], sizes=(40, 20, 3), head=bmp.Softmax(), batch_size=8, joint=True, epochs=2)
        for k, n in SPLIT
    ]
    merged = bmp.merge(parts)
    found = merged.schedule.own_pulls[0]
    row = 0
    for part in parts:
        pulls = part.schedule.own_pulls[0]
        assert torch.equal(found[row : row + len(pulls), : pulls.shape[1]], pulls)
        row += len(pulls)
    merged.run(1)
    assert merged.check_invariant() < 1e-12


def half(k):
    return X[20 * k : 20 * k + 20], Y[20 * k : 20 * k + 20]


BAD = {
    "one": (lambda: [run(*half(0))], "two or more Trainers"),
    "networks": (lambda: [run(*half(0)).network, run(*half(1)).network], r"got \[Network, Network\]"),
    "twice": (lambda: [run(*half(0))] * 2, "there twice"),
    "not trained": (lambda: [run(*half(0)), run(*half(1), epochs=0)], "run 1 has not been trained yet"),
    "layers": (lambda: [run(*half(0)), run(*half(1), sizes=(3, 5, 1))], "differ in layers"),
    "head": (lambda: [run(*half(0)), run(*half(1), head=bmp.Regression(0.5))], "differ in head"),
    "start": (lambda: [run(*half(0)), run(*half(1), seed=1)], "differ in prior means, starting means"),
    "dtype": (lambda: [run(*half(0)), run(*half(1), dtype=torch.float32)], "differ in dtype"),
    "schedule": (lambda: [run(*half(0)), run(*half(1), schedule="sequential")], "differ in schedule"),
    "data": (lambda: [run(*half(0)), run(X[15:30], Y[15:30])], "runs 0 and 1 have examples in common.*id 0 in run 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_runs_that_cannot_be_one_are_refused(name):
    make, words = BAD[name]
    with pytest.raises(ValueError, match=words):
        bmp.merge(make())


def test_another_prior_is_refused():
    other = mlp([3, 4, 1], bmp.Regression(NOISE_VAR), dtype=torch.float64)
    other.prior = bmp.Gaussian(other.prior.tau, 2.0 * other.prior.rho)
    trainer = bmp.Trainer(other, *half(1), batch_size=8)
    trainer.run(1)
    with pytest.raises(ValueError, match="differ in prior variances"):
        bmp.merge([run(*half(0)), trainer])


def test_equal_examples_can_be_accepted():
    merged = bmp.merge([run(*half(0)), run(X[15:30], Y[15:30])], shared=True)
    assert len(merged.ids) == 35


def test_another_start_is_refused():
    other = mlp([3, 4, 1], bmp.Regression(NOISE_VAR), dtype=torch.float64)
    other.start = other.start + 0.1
    trainer = bmp.Trainer(other, *half(1), batch_size=8)
    trainer.run(1)
    with pytest.raises(ValueError, match="because they differ in starting means"):
        bmp.merge([run(*half(0)), trainer])


def test_runs_with_a_past_are_refused():
    network = run(X[:20], Y[:20]).network
    parts = [bmp.Trainer(network.as_prior(), X[a:b], Y[a:b], batch_size=8) for a, b in ((20, 30), (30, 40))]
    for part in parts:
        part.run(1)
    with pytest.raises(ValueError, match="past"):
        bmp.merge(parts)
