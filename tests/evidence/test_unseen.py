"""Rows that took no part in training judge how wide the belief is, and how far off left-out rows are."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.basics.settings import SETTINGS
from bayesmp.evidence import Descent
from bayesmp.evidence.unseen import Judged, JudgedLabels, belief_scale, miss_scale, miss_scale_of_labels
from bayesmp.messages.gaussian import Moments
from bayesmp.training.schedules import ObjectiveSchedule
from tests.helpers import mlp


def drawn(n, *, scale, noise=0.5, seed=0):
    """Misses that are `scale` times as wide as told, and their variances."""
    generator = torch.Generator().manual_seed(seed)
    var = torch.rand(n, generator=generator, dtype=torch.float64) * 2
    return Judged.of((scale * var + noise).sqrt() * torch.randn(n, generator=generator).double(), var, noise)


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0, 20.0])
def test_the_belief_scale_is_that_of_the_draws(scale):
    assert belief_scale(drawn(20_000, scale=scale)) == pytest.approx(scale, rel=0.06)


def test_without_rows_the_belief_scale_is_the_expected_one_and_few_rows_move_it_little():
    expected = SETTINGS.expected_scale
    nobody = Judged.of(torch.zeros(0), torch.zeros(0), 1.0)
    assert belief_scale(nobody) == pytest.approx(expected, rel=0.03)
    assert expected < belief_scale(drawn(10, scale=20.0)) < belief_scale(drawn(1000, scale=20.0))
    certain = Judged.of(torch.randn(100), torch.zeros(100), 1.0)
    assert belief_scale(certain) == pytest.approx(expected, rel=0.03), "nothing depends on it"


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.5])
def test_the_miss_scale_is_the_ratio_of_the_same_targets(factor):
    unseen = drawn(2000, scale=1.0)
    left_out = replace(unseen, miss=unseen.miss / factor)
    assert miss_scale(unseen, left_out, 1.0) == pytest.approx(factor)
    other = drawn(30, scale=1.0, seed=1)
    shrunk = miss_scale(replace(other, miss=1.5 * other.miss), drawn(30, scale=1.0, seed=2), 1.0)
    assert 1.0 < shrunk < 1.5, "a few other rows do not decide"
    assert miss_scale(Judged.of(torch.zeros(0), torch.zeros(0), 1.0), left_out, 1.0) == 1.0


def drawn_labels(n, *, scale=1.0, spread=1.0, seed=0):
    """Labels of outputs whose covariances are `scale` times those told."""
    generator = torch.Generator().manual_seed(seed)
    mean = 1.5 * torch.randn(n, 3, generator=generator, dtype=torch.float64)
    root = spread * torch.randn(n, 3, 3, generator=generator, dtype=torch.float64)
    outputs = mean + scale**0.5 * (root @ torch.randn(n, 3, 1, generator=generator, dtype=torch.float64))[..., 0]
    y = torch.multinomial(outputs.softmax(1), 1, generator=generator)[:, 0]
    head = bmp.Softmax(gain=1.0)

    def surprise(mean, covariance, y):
        var = covariance.diagonal(dim1=1, dim2=2)
        log_weights = head.certain(head.logits_per_output()).double()
        return -head.predict(Moments(mean, var), log_weights, covariance).log_prob(y)

    return JudgedLabels(mean, root @ root.mT, y, surprise)


@pytest.mark.parametrize("scale", [0.4, 1.0, 4.0])
@pytest.mark.slow
def test_the_belief_scale_of_labels_is_that_of_the_draws(scale):
    assert belief_scale(drawn_labels(10_000, scale=scale)) == pytest.approx(scale, rel=0.3)


def test_without_labels_the_belief_scale_is_the_expected_one():
    nobody = drawn_labels(10).some(torch.arange(0))
    assert belief_scale(nobody) == pytest.approx(SETTINGS.expected_scale_of_labels, rel=0.03)


@pytest.mark.parametrize("factor", [0.6, 1.0, 2.5])
def test_the_miss_scale_of_labels_moves_outputs_as_far_as_unseen_ones(factor):
    unseen = drawn_labels(2000, spread=0.5)
    own = torch.nn.functional.one_hot(unseen.y, 3).double()
    seen = unseen.mean + factor * own  # training had moved them towards their labels
    left_out = replace(unseen, mean=unseen.mean + (factor - 1.0) * own)
    assert miss_scale_of_labels(unseen, seen, left_out, 1.0) == pytest.approx(factor, rel=0.1)
    few = torch.arange(10)
    shrunk = miss_scale_of_labels(unseen.some(few), seen[few], left_out.some(few), 1.0)
    assert abs(math.log(shrunk)) <= abs(math.log(factor)) + 0.1, "a few rows do not decide"
    assert miss_scale_of_labels(unseen.some(few[:0]), seen[:0], left_out.some(few[:0]), 1.0) == 1.0


def sparse_labels(n, *, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 30, generator=generator)
    chance = torch.sigmoid(2 * x[:, 0] - 2 * x[:, 1] + x[:, 2] * x[:, 3])
    return x, (torch.rand(n, generator=generator) < chance).long()


@pytest.mark.slow
def test_scores_of_labels_are_right_beside_many_columns():
    """Which columns matter was learned from the labels that are left out, too: scores were up to .15 nats too good."""
    gaps = []
    for seed in range(2):
        x, y = sparse_labels(250, seed=seed)
        x_new, y_new = sparse_labels(2000, seed=seed + 100)
        network = mlp([30, 20, 2], bmp.Softmax(), seed=seed)
        history = bmp.fit(network, x, y, progress=False)
        gaps.append(history.loo_nll[-1] + float(network.predict(x_new).log_prob(y_new).mean()))
    assert abs(np.mean(gaps)) < 0.06


def test_influence_tells_the_scores_of_the_history_with_what_was_judged():
    x, y = sparse_labels(250, seed=0)
    trainer = bmp.Trainer(mlp([30, 20, 2], bmp.Softmax()), x, y, seed=0)
    history = trainer.run(progress=False)
    assert trainer.network.fitted.miss_scale != 1.0
    assert float(trainer.influence().loo_nll.mean()) == pytest.approx(history.loo_nll[-1], rel=0.03)


# --- in a run --------------------------------------------------------------------------------------------------------


def bent_data(n, *, noise=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 4, generator=generator) - 1
    y = (3 * x[:, :1]).sin() + x[:, 1:2] * x[:, 2:3] + x[:, 3:].abs()
    return x, y + noise * torch.randn(n, 1, generator=generator)


@pytest.mark.slow
def test_intervals_hold_where_there_is_no_noise():
    """They held .80 to .85 of 90 %, and the leave-one-out score was .3 to .9 nats too good."""
    held, gaps, scales = [], [], []
    for seed in range(2):
        x, y = bent_data(120, seed=seed)
        x_new, y_new = bent_data(1000, seed=seed + 100)
        network = mlp([4, 20, 1], bmp.Regression("learn", tails="gaussian"), seed=seed)
        history = bmp.fit(network, x, y, progress=False)
        found = network.predict(x_new)
        low, high = found.interval(0.9)
        held.append(float(((low <= y_new) & (y_new <= high)).float().mean()))
        gaps.append(history.loo_nll[-1] + float(found.log_prob(y_new).mean()))
        scales.append(network.belief_scale)
    assert np.mean(held) > 0.86 and abs(np.mean(gaps)) < 0.25
    assert min(scales) > 1.2


@pytest.mark.slow
def test_a_linear_function_needs_no_wider_belief():
    """It is still judged in a network that could bend it; that it knows which columns matter makes it a little too
    sure.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 40, generator=generator)
    y = x @ torch.randn(40, 1, generator=generator) / 6 + 0.5 * torch.randn(150, 1, generator=generator)
    network = mlp([40, 10, 1], bmp.Regression("learn"), seed=0)
    bmp.fit(network, x, y, progress=False)
    assert 0.6 < network.belief_scale < 2.6


def rehearsed(monkeypatch, network, x, y, **options):
    """Sizes of the data of all first descents, and the rows that judged."""
    sizes, judged = [], []
    fit, unseen = Descent.fit, ObjectiveSchedule._unseen

    def fit_and_tell(descent):
        sizes.append(len(descent.objective.x))
        fit(descent)

    def unseen_and_tell(schedule, descent, x, y, rows):
        judged.append((descent.objective.x.clone(), rows))
        return unseen(schedule, descent, x, y, rows)

    monkeypatch.setattr(Descent, "fit", fit_and_tell)
    monkeypatch.setattr(ObjectiveSchedule, "_unseen", unseen_and_tell)
    bmp.Trainer(network, x, y, **options).run(1)
    return sizes, judged


@pytest.mark.filterwarnings("ignore:training ended worse than a constant")
@pytest.mark.parametrize(
    "n, sizes",
    [(9, [9]), (10, [8] * 5 + [10]), (60, [48] * 5 + [60]), (400, [320] * 3 + [400]), (2100, [1024])],
)
def test_how_many_rehearsals_there_are(monkeypatch, n, sizes):
    """Until 200 rows have judged, 5 at most; rows that join late judge anyway; too few leave nobody to judge."""
    x, y = bent_data(n, noise=0.3)
    found, judged = rehearsed(monkeypatch, mlp([4, 2, 1], bmp.Regression("learn")), x, y)
    assert found == sizes
    assert len(judged) == (0 if n < 10 else len(sizes) - 1 if n <= 1280 else 1)
    if 10 <= n <= 1280:
        rows = torch.cat([rows for _, rows in judged])
        assert len(rows.unique()) == len(rows) >= min(n, 200)


def test_a_known_noise_is_a_model_that_nobody_judges(monkeypatch):
    x, y = bent_data(60, noise=0.3)
    network = mlp([4, 4, 1], bmp.Regression(0.09))
    sizes, judged = rehearsed(monkeypatch, network, x, y)
    assert sizes == [60] and not judged and network.belief_scale == 1.0


@pytest.mark.parametrize("n", [60, 2100])
@pytest.mark.parametrize("layers, is_linear", [([], True), ([bmp.LeakyReLU()], False)], ids=["linear", "bent"])
def test_the_belief_about_a_linear_model_is_exact_and_nobody_judges_it(monkeypatch, layers, is_linear, n):
    """Its intervals were up to a fifth too wide; each fit took five rehearsals. A bend above it is judged."""
    x, y = bent_data(n, noise=0.3)
    network = bmp.Network([bmp.Linear(4, 1), *layers], bmp.Regression("learn"))
    assert network.graph.is_linear == is_linear
    sizes, judged = rehearsed(monkeypatch, network, x, y)
    assert (len(sizes) == 1 and not judged) if is_linear else judged
    assert (network.belief_scale == network.fitted.miss_scale == 1.0) == is_linear


def test_rows_of_one_group_never_judge_each_other(monkeypatch):
    x, y = bent_data(60, noise=0.3)
    groups = torch.arange(60) // 7
    _, judged = rehearsed(monkeypatch, mlp([4, 4, 1], bmp.Regression("learn")), x, y, groups=groups)
    assert len(judged) > 1
    for seen, rows in judged:
        known = {int(groups[(x.double() == row).all(1).nonzero()[0]]) for row in seen}
        assert not known & set(groups[rows].tolist())


def test_scores_are_those_of_unseen_rows():
    """Scale and misses of the schedule are in the score; the noise is told by what the formula says."""
    x, y = bent_data(80, noise=0.2)
    trainer = bmp.Trainer(mlp([4, 8, 1], bmp.Regression("learn")), x, y)
    trainer.run(3)
    schedule, maker = trainer.schedule, trainer._belief_maker
    before = maker.refresh(trainer.data, maker.size_at_end(trainer.data), seed=0)
    schedule.belief_scale, schedule.log_miss = 4.0 * schedule.belief_scale, schedule.log_miss + 80 * math.log(2.0)
    after = maker.refresh(trainer.data, maker.size_at_end(trainer.data), seed=0)
    torch.testing.assert_close(after.left_out.var, 4.0 * before.left_out.var)
    targets = before.judged[1]
    torch.testing.assert_close(targets - after.left_out.mean, 2.0 * (targets - before.left_out.mean))
    torch.testing.assert_close(after.constant, before.constant)


def test_draws_and_influence_are_as_wide_as_predictions():
    x, y = bent_data(60, noise=0.1)
    trainer = bmp.Trainer(mlp([4, 8, 1], bmp.Regression("learn")), x, y)
    history = trainer.run(5)
    network = trainer.network
    draws = network.sample_functions(x[:5], 4000)
    torch.testing.assert_close(draws.var(0), network.predict(x[:5]).epistemic_var, rtol=0.12, atol=0.0)
    assert float(trainer.influence().loo_nll.mean()) == pytest.approx(history.loo_nll[-1], rel=1e-3)
    plain = copy.copy(network)
    plain.belief_scale = 1.0
    ratio = network.predict(x).epistemic_var / plain.predict(x).epistemic_var
    torch.testing.assert_close(ratio, torch.full_like(ratio, network.belief_scale))


def test_what_was_judged_is_kept_in_files_and_dropped_by_reset(tmp_path):
    x, y = bent_data(60, noise=0.1)
    trainer = bmp.Trainer(mlp([4, 8, 1], bmp.Regression("learn")), x, y)
    trainer.run(3)
    network = trainer.network
    assert network.belief_scale != 1.0 and "times those of first order" in repr(network)
    network.save(tmp_path / "model.safetensors")
    loaded = bmp.load(tmp_path / "model.safetensors")
    assert loaded.belief_scale == network.belief_scale and loaded.fitted.miss_scale == network.fitted.miss_scale
    assert torch.equal(loaded.predict(x).var, network.predict(x).var)
    trainer.save(tmp_path / "run.safetensors")
    again = bmp.Trainer.load(tmp_path / "run.safetensors", x, y)
    assert again.schedule.counters() == trainer.schedule.counters()
    network.reset()
    assert network.belief_scale == 1.0
