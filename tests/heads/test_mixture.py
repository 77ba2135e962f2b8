"""Ensembles: mixtures of predictions against closed forms by scipy, sampling, and the rule of the benchmarks."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

import bayesmp as bmp
from bayesmp.data import Scaling
from bayesmp.heads import ClassPrediction, RegressionMixture, RegressionPrediction
from benchmarks import evaluation
from tests.helpers import mlp


def member(mean, var, noise_var, spread=0.0, dtype=torch.float64):
    return RegressionPrediction(
        torch.tensor(mean, dtype=dtype),
        torch.tensor(var, dtype=dtype),
        torch.tensor(noise_var, dtype=dtype),
        torch.tensor(spread, dtype=dtype),
    )


def members(dtype=torch.float64):
    """Of two rows: members that nearly agree, and members far apart; the third has tails."""
    return [
        member([1.0, -4.0], [0.25, 1.0], 0.5, dtype=dtype),
        member([1.5, 3.0], [0.5, 0.2], 0.2, dtype=dtype),
        member([0.7, 20.0], [0.1, 0.3], 0.8, 1.5, dtype=dtype),
    ]


def cdf(row, y):
    """Of the mixture of `members`, from the definition, by scipy."""
    z = np.arange(-4, 5)
    shares = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    total = 0.0
    for part in members():
        ratios = np.exp(float(part.noise_spread) * z)
        var = float(part.epistemic_var[row]) + float(part.noise_var) * ratios / (shares * ratios).sum()
        total += (shares * stats.norm.cdf(np.asarray(y)[..., None], float(part.mean[row]), np.sqrt(var))).sum(-1)
    return total / 3


@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_a_mixture_of_regressions_is_the_mixture_of_their_distributions(dtype, rtol):
    mixed = bmp.mixture(members(dtype))
    for row in range(2):
        for p in (1e-6, 0.05, 0.3, 0.5, 0.7, 0.95, 1 - 1e-6):
            expected = optimize.brentq(lambda y, p=p, row=row: cdf(row, y) - p, -200, 200, xtol=1e-12, rtol=1e-14)
            slack = 1e-8 if p > 0.99 else 1e-9  # of scipy's road: 1 - p has fewer digits
            assert float(mixed.quantile(p)[row]) == pytest.approx(expected, rel=max(rtol, slack), abs=rtol)
    y = torch.tensor([0.3, 15.0], dtype=dtype)
    assert mixed.cdf(y).tolist() == pytest.approx([cdf(0, 0.3), cdf(1, 15.0)], rel=10 * rtol)
    step = 1e-5
    slopes = [(cdf(row, at + step) - cdf(row, at - step)) / (2 * step) for row, at in ((0, 0.3), (1, 15.0))]
    assert mixed.log_prob(y).exp().tolist() == pytest.approx(slopes, rel=max(10 * rtol, 1e-6))
    low, high = mixed.interval(0.6)
    assert torch.equal(low, mixed.quantile(0.5 - 0.5 * 0.6)) and high.dtype == dtype
    assert high.tolist() == pytest.approx(mixed.quantile(0.8).tolist(), rel=1e-6)


def test_moments_of_a_mixture_are_those_of_its_density():
    mixed = bmp.mixture(members())
    for row in range(2):
        breaks = [-4.0, 0.7, 1.0, 1.5, 3.0, 20.0]

        def moment(power, row=row, breaks=breaks):
            def value(y):
                return y**power * float(mixed.log_prob(torch.full((2,), y, dtype=torch.float64))[row].exp())

            return integrate.quad(value, -150, 170, points=breaks, limit=400)[0]

        assert moment(0) == pytest.approx(1.0, rel=1e-6)
        assert moment(1) == pytest.approx(float(mixed.mean[row]), rel=1e-6)
        assert moment(2) - moment(1) ** 2 == pytest.approx(float(mixed.var[row]), rel=1e-4)
    assert float(mixed.noise_var) == pytest.approx(0.5)
    means = np.array([[1.0, 1.5, 0.7], [-4.0, 3.0, 20.0]])
    within = np.array([(0.25 + 0.5 + 0.1) / 3, (1.0 + 0.2 + 0.3) / 3])
    assert mixed.epistemic_var.tolist() == pytest.approx((within + means.var(1)).tolist())


def test_draws_of_a_mixture_have_its_quantiles():
    mixed = bmp.mixture(members())
    draws = mixed.sample(40_000, seed=3)
    assert draws.shape == (40_000, 2) and torch.equal(draws, mixed.sample(40_000, seed=3))
    for row in range(2):
        assert stats.kstest(draws[:, row].numpy(), partial(cdf, row)).pvalue > 1e-3
    assert abs(np.corrcoef(draws.T.numpy())[0, 1]) < 0.03  # which member speaks is drawn for each target


def test_members_that_agree_are_one():
    one = member([1.0, -2.0], [0.3, 4.0], 0.5, 0.7)
    mixed = bmp.mixture([one, one, one])
    y = torch.tensor([0.0, 3.0], dtype=torch.float64)
    for found, expected in (
        (mixed.mean, one.mean),
        (mixed.epistemic_var, one.epistemic_var),
        (mixed.noise_var, one.noise_var),
        (mixed.noise_spread, one.noise_spread),
        (mixed.quantile(0.1), one.quantile(0.1)),
        (mixed.log_prob(y), one.log_prob(y)),
        (mixed.cdf(y), one.cdf(y)),
    ):
        torch.testing.assert_close(found, expected)


def test_mixtures_can_be_mixed_cut_and_scaled_back():
    parts = [*members(), member([0.0, 0.0], [1.0, 1.0], 0.1)]
    whole, halves = bmp.mixture(parts), bmp.mixture([bmp.mixture(parts[:2]), bmp.mixture(parts[2:])])
    y = torch.tensor([0.5, 2.0], dtype=torch.float64)
    for name, at in (("quantile", 0.1), ("quantile", 0.8), ("log_prob", y), ("cdf", y)):
        torch.testing.assert_close(getattr(halves, name)(at), getattr(whole, name)(at))
    torch.testing.assert_close(halves.var, whole.var)
    torch.testing.assert_close(whole[1:].quantile(0.3), whole.quantile(0.3)[1:])
    assert len(whole[1:]) == 1 and len(whole) == 2
    joined = RegressionMixture.concatenate([whole[:1], whole[1:]])
    torch.testing.assert_close(joined.quantile(0.3), whole.quantile(0.3))
    scaled = whole.undo(Scaling(np.array(3.0), np.array(2.0)))
    torch.testing.assert_close(scaled.quantile(0.3), 3.0 + 2.0 * whole.quantile(0.3))
    torch.testing.assert_close(scaled.std, 2.0 * whole.std)
    column = [RegressionPrediction(part.mean[:, None], part.epistemic_var[:, None], part.noise_var) for part in parts]
    torch.testing.assert_close(bmp.mixture(column).flat().mean, whole.mean)


def classes(n_members, n_rows=50, n_classes=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(n_members):
        means, epistemic = (torch.randn(n_rows, n_classes, generator=generator, dtype=dtype) for _ in range(2))
        probs = torch.softmax(means, 1)
        share = torch.rand(n_rows, generator=generator, dtype=dtype)
        entropy = -(probs * probs.log()).sum(1)
        found.append(ClassPrediction(probs, means, epistemic.square(), share * entropy))
    return found


def test_a_mixture_of_classes_follows_the_rule_of_the_benchmarks():
    parts = classes(5)
    mixed = bmp.mixture(parts)
    probs, epistemic = evaluation.mixture((part.probs, part.epistemic) for part in parts)
    torch.testing.assert_close(mixed.probs, probs)
    torch.testing.assert_close(mixed.epistemic, epistemic)
    aleatoric = torch.stack([part.aleatoric for part in parts]).mean(0)
    torch.testing.assert_close(mixed.aleatoric, aleatoric)
    draws = torch.stack([part.mean + part.epistemic_var.sqrt() * torch.randn(4000, 50, 4) for part in parts]).flatten(
        0, 1
    )
    torch.testing.assert_close(mixed.mean, draws.mean(0), atol=0.1, rtol=0.0)
    torch.testing.assert_close(mixed.epistemic_var, draws.var(0), atol=0.3, rtol=0.1)


def test_what_members_of_classes_agree_on_cancels():
    (sure,) = classes(1, dtype=torch.float32)
    sure = ClassPrediction(sure.probs, sure.mean, sure.epistemic_var, torch.zeros(50))
    mixed = bmp.mixture([sure] * 7)
    assert mixed.epistemic.dtype == torch.float32 and 0 <= float(mixed.epistemic.max()) < 1e-7
    apart = [ClassPrediction(p[None], p[None], p[None], torch.zeros(1)) for p in torch.eye(4)]
    assert float(bmp.mixture(apart).epistemic) == pytest.approx(np.log(4))


@pytest.mark.slow
def test_an_ensemble_of_networks_from_fit_to_interval():
    x = np.linspace(-1, 1, 30)[:, None]
    y = np.sin(3 * x[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=30)
    nets = [mlp([1, 10, 1], bmp.Regression("learn"), seed=seed) for seed in range(3)]
    bmp.fit_many(nets, x, y, epochs=20, batch_size=10, workers=1, progress=False)
    far = np.linspace(-3, 3, 20)[:, None]
    each = [net.predict(far) for net in nets]
    mixed = bmp.mixture(each)
    assert mixed.mean.shape == (20,)
    low, high = mixed.interval(0.9)
    inside = sum(part.cdf(high) - part.cdf(low) for part in each) / 3
    torch.testing.assert_close(inside, torch.full_like(inside, 0.9), atol=1e-4, rtol=0.0)
    assert (mixed.epistemic_var >= torch.stack([part.epistemic_var for part in each]).mean(0) * (1 - 1e-5)).all()


def test_what_cannot_be_mixed_is_named():
    parts = members()
    with pytest.raises(TypeError, match="a list of predictions, one per network, got a single one"):
        bmp.mixture(parts[0])
    with pytest.raises(ValueError, match="at least one prediction"):
        bmp.mixture([])
    with pytest.raises(TypeError, match=r"network.predict\(x\) for network in networks.*got Tensor in place 1"):
        bmp.mixture([parts[0], parts[1].mean])
    with pytest.raises(TypeError, match="all be of class labels or all of real targets; 0 and 1"):
        bmp.mixture([parts[0], *classes(1)])
    with pytest.raises(ValueError, match=r"0 has shape \(2,\), 1 has \(1,\); predict the same x"):
        bmp.mixture([parts[0], parts[1][:1]])
    with pytest.raises(ValueError, match=r"one dtype: 0 has torch.float64, 1 has torch.float32; .*\.double\(\)"):
        bmp.mixture([parts[0], members(torch.float32)[1]])
    meta = RegressionPrediction(*(torch.ones(2, device="meta") for _ in range(2)), torch.ones(()))
    with pytest.raises(ValueError, match=r"one device: 0 is on cpu, 1 on meta; .*\.cpu\(\)"):
        bmp.mixture([parts[0], meta])
    with pytest.raises(ValueError, match="level must lie strictly between 0 and 1, got 90"):
        bmp.mixture(parts).interval(90)
