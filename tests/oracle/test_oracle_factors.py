"""Each factor of the oracle against a truth derived by another road: quadrature, Gaussian conditioning."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr

from . import heads, leaky_relu, sums
from .messages import NOTHING, Message
from .normal import half_line
from .truths import assert_trees_close, log_normal, moments
from .variables import Variable, Weight

# ---- normal.py


@pytest.mark.parametrize("x", [-30.0, -8.0, -3.0001, -2.9999, -1.0, 0.0, 0.7, 6.0])
def test_half_line_has_the_moments_of_a_truncated_gaussian(x):
    mode = max(x, 0.0)
    width = 40.0 / max(1.0, -x)
    mean, var, log_mass = moments(
        lambda u: log_normal(u, x, 1.0), [0.0, mode + width / 20, mode + width / 4, mode + width]
    )
    part = half_line(x)
    assert part.mean == pytest.approx(mean, rel=1e-9)
    assert part.var == pytest.approx(var, rel=1e-9)
    assert part.shrink == pytest.approx(1.0 - var, abs=1e-9)
    assert part.log_mass == pytest.approx(log_mass, rel=1e-9)
    assert part.log_mass == pytest.approx(log_ndtr(x), rel=1e-12)


# ---- leaky_relu.py

LRELU_CASES = [
    (0.1, 0.3, 0.8, 0.5, 0.4),
    (0.1, -1.2, 0.5, 1.5, 0.7),
    (0.1, 2.0, 3.0, -0.3, 0.05),
    (0.3, -0.2, 1.4, -0.5, 2.0),
    (0.0, 0.4, 0.9, 0.8, 0.3),
    (0.0, -0.6, 0.5, -0.4, 1.0),
]


def tilted_moments(alpha, m_z, m_a, value):
    """Moments of value(z) under N(z; m_z) N(lrelu(z); m_a), and the log normaliser, all by quadrature."""

    def density(z):
        a = z if z >= 0 else alpha * z
        return math.exp(log_normal(z, m_z.mean, m_z.var) + (log_normal(a, m_a.mean, m_a.var) if m_a.rho else 0.0))

    reach = 14.0 * math.sqrt(m_z.var)
    pieces = [m_z.mean - reach, m_z.mean - reach / 4, m_z.mean + reach / 4, m_z.mean + reach, 0.0]

    def integral(f):
        pairs = itertools.pairwise(sorted(pieces))
        return math.fsum(
            quad(lambda z: f(z) * density(z), a, b, epsabs=1e-15, epsrel=1e-11, limit=300)[0] for a, b in pairs
        )

    mass = integral(lambda z: 1.0)
    mean = integral(value) / mass
    return mean, integral(lambda z: (value(z) - mean) ** 2) / mass, math.log(mass)


@pytest.mark.parametrize(("alpha", "mean", "var"), [case[:3] for case in LRELU_CASES])
def test_direct_leaky_relu_has_the_moments_of_its_output(alpha, mean, var):
    m_z = Message.from_moments(mean, var)
    expected = tilted_moments(alpha, m_z, NOTHING, lambda z: max(z, alpha * z))
    message = leaky_relu.to_output(m_z, NOTHING, alpha)
    assert (message.mean, message.var) == pytest.approx(expected[:2], rel=1e-8)


@pytest.mark.parametrize(("alpha", "mean", "var", "mean_a", "var_a"), LRELU_CASES)
def test_leaky_relu_messages_have_the_tilted_moments(alpha, mean, var, mean_a, var_a):
    """Forward (marginal): m_out * m_a has the tilted moments of a, or m_out is direct. Backward: those of z."""
    m_z, m_a = Message.from_moments(mean, var), Message.from_moments(mean_a, var_a)
    mean_out, var_out, log_mass = tilted_moments(alpha, m_z, m_a, lambda z: max(z, alpha * z))
    mixture = leaky_relu.mix(leaky_relu.tilted_halves(m_z, m_a, alpha), of_output=True)
    assert mixture[1:] == pytest.approx((mean_out, var_out), rel=1e-8)
    assert mixture.log_mass + log_normal(0.0, mean_a, var_a) == pytest.approx(log_mass, abs=1e-8)

    direct = leaky_relu.direct_to_output(m_z, alpha)
    expected = Message.from_moments(mean_out, var_out) / m_a
    message = leaky_relu.to_output(m_z, m_a, alpha)
    wanted = expected if expected.rho >= direct.rho else direct
    assert (message.tau, message.rho) == pytest.approx((wanted.tau, wanted.rho), rel=1e-6)

    mean_in, var_in, _ = tilted_moments(alpha, m_z, m_a, lambda z: z)
    message = leaky_relu.to_input(m_z, m_a, alpha)
    if var_in < var:
        marginal = message * m_z
        assert (marginal.mean, marginal.var) == pytest.approx((mean_in, var_in), rel=1e-7)
    else:
        assert (message.tau, message.rho) == pytest.approx(((mean_in - mean) / var, 1e-8), rel=1e-7)


def test_leaky_relu_cases_reach_both_branches_of_both_directions():
    branches = set()
    for alpha, mean, var, mean_a, var_a in LRELU_CASES:
        m_z, m_a = Message.from_moments(mean, var), Message.from_moments(mean_a, var_a)
        is_direct = leaky_relu.to_output(m_z, m_a, alpha) == leaky_relu.direct_to_output(m_z, alpha)
        branches |= {("out", is_direct), ("in", leaky_relu.to_input(m_z, m_a, alpha).rho == 1e-8)}
    assert len(branches) == 4


def test_leaky_relu_fallback_tau_is_the_derivative_of_the_log_normaliser():
    alpha, mean, var, m_a, step = 0.1, -0.5, 1.3, Message.from_moments(1.0, 0.6), 1e-5

    def log_mass(mean):
        return leaky_relu.mix(leaky_relu.tilted_halves(Message.from_moments(mean, var), m_a, alpha), of_output=False)[0]

    moment = leaky_relu.mix(leaky_relu.tilted_halves(Message.from_moments(mean, var), m_a, alpha), of_output=False).mean
    derivative = (log_mass(mean + step) - log_mass(mean - step)) / (2 * step)
    assert (moment - mean) / var == pytest.approx(derivative, rel=1e-8)


def test_leaky_relu_is_linear_for_a_surely_positive_input_and_direct_where_messages_contradict():
    m_z, m_a = Message.from_moments(30.0, 0.5), Message.from_moments(29.0, 0.7)
    assert leaky_relu.to_output(m_z, m_a, 0.1).mean == pytest.approx(30.0)
    backward = leaky_relu.to_input(m_z, m_a, 0.1)
    assert (backward.tau, backward.rho) == pytest.approx((m_a.tau, m_a.rho), rel=1e-9)
    far = Message.from_moments(60.0, 0.7)
    assert leaky_relu.to_output(m_z, far, 0.1) == leaky_relu.direct_to_output(m_z, 0.1)
    dead = leaky_relu.to_output(Message.from_moments(-60.0, 1.0), NOTHING, 0.0)
    assert (dead.mean, dead.var) == pytest.approx((0.0, leaky_relu.MIN_VAR))


# ---- sums.py


def test_weighted_sum_to_term_is_gaussian_conditioning():
    """Forward message times m_term = marginal of b_d in the joint Gaussian with z observed through m_z."""
    a, mean, var = np.array([0.7, -1.3, 2.0]), np.array([0.2, 0.5, -0.4]), np.array([0.3, 1.1, 0.6])
    m_z = Message(0.9, 1.7)
    posterior_cov = np.linalg.inv(np.diag(1 / var) + m_z.rho * np.outer(a, a))
    posterior_mean = posterior_cov @ (mean / var + m_z.tau * a)
    for d in range(3):
        message = sums.weighted_sum_to_term(m_z, a[d], mean[d], var[d], a @ mean, a**2 @ var)
        marginal = message * Message.from_moments(mean[d], var[d])
        assert (marginal.mean, marginal.var) == pytest.approx((posterior_mean[d], posterior_cov[d, d]), rel=1e-10)


def test_inner_product_is_vmp_products_below_an_exact_sum():
    """The definition in two steps: product factors by VMP, then Gaussian conditioning in their sum with the bias."""
    rng = np.random.default_rng(1)
    inputs, weights, bias, output = [Variable() for _ in range(3)], [], Weight(Message(0.4, 2.5)), Variable()
    for a in inputs:
        a.forward, a.backward = Message(rng.normal(), rng.uniform(1, 3)), Message(rng.normal(), rng.uniform(0.1, 1))
        weights.append(Weight(Message(rng.normal(), rng.uniform(1, 4))))
    bias.collect(Message(0.3, 0.2))
    bias.replace_message(0)
    moments_a = [(a.marginal.mean, a.marginal.var) for a in inputs]
    factor = sums.InnerProduct(list(zip(inputs, weights, strict=True)), bias, output, 0)
    factor.forward()
    output.backward = Message(1.1, 0.8)
    for a in inputs:
        a.reset_backward()
    factor.backward()
    for weight in [*weights, bias]:
        weight.replace_message(0)

    means = [ma * w.cavity.mean for (ma, _), w in zip(moments_a, weights, strict=True)] + [0.4 / 2.5]
    variances = [
        (ma**2 + va) * (w.cavity.mean**2 + w.cavity.var) - (ma * w.cavity.mean) ** 2
        for (ma, va), w in zip(moments_a, weights, strict=True)
    ] + [1 / 2.5]
    assert output.forward.mean == pytest.approx(sum(means))
    assert output.forward.var == pytest.approx(sum(variances))
    cov = np.linalg.inv(np.diag(1 / np.array(variances)) + 0.8)
    mean = cov @ (np.array(means) / variances + 1.1)
    for k in range(4):
        to_term = Message.from_moments(mean[k], cov[k, k]) / Message.from_moments(means[k], variances[k])
        if k == 3:
            assert_trees_close([(bias.messages[0].tau, bias.messages[0].rho)], [(to_term.tau, to_term.rho)])
            continue
        (ma, va), w = moments_a[k], weights[k].cavity
        to_weight, to_input = weights[k].messages[0], inputs[k].backward
        assert (to_weight.tau, to_weight.rho) == pytest.approx((to_term.tau * ma, to_term.rho * (ma**2 + va)))
        assert (to_input.tau, to_input.rho) == pytest.approx((to_term.tau * w.mean, to_term.rho * (w.mean**2 + w.var)))


def test_max_pool_weighs_by_the_chance_to_be_largest():
    inputs, output = [Variable() for _ in range(3)], Variable()
    for h, (mean, var) in zip(inputs, [(0.3, 0.5), (0.9, 0.2), (-0.4, 1.5)], strict=True):
        h.forward = Message.from_moments(mean, var)
    pool = sums.MaxPool(inputs, output)
    pool.forward()
    wins = [ndtr(-0.6 / 1.0) * ndtr(0.7 / math.sqrt(2.3)), ndtr(0.6 / 1.0) * ndtr(1.3 / math.sqrt(2.0))]
    wins.append(ndtr(-0.7 / math.sqrt(2.3)) * ndtr(-1.3 / math.sqrt(2.0)))
    assert pool.p == pytest.approx([w / sum(wins) for w in wins], rel=1e-12)
    assert output.forward.mean == pytest.approx(np.dot(pool.p, [0.3, 0.9, -0.4]))
    assert output.forward.var == pytest.approx(np.dot(np.square(pool.p), [0.5, 0.2, 1.5]))


# ---- heads.py


@pytest.mark.parametrize("std", [0.3, 1.5, 9.0])
@pytest.mark.parametrize("true_class", [0, 2])
def test_softmax_head_has_the_tilted_moments_of_each_logit(std, true_class):
    means, variances = [0.5, -1.0, 1.2], [std**2, 0.5 * std**2, 2 * std**2]
    outputs = [Variable() for _ in means]
    for output, mean, var in zip(outputs, means, variances, strict=True):
        output.forward = Message.from_moments(mean, var)
    heads.SoftmaxHead(outputs, true_class).backward()
    t = [m / math.sqrt(1 + math.pi / 8 * v) for m, v in zip(means, variances, strict=True)]
    for d, output in enumerate(outputs):

        def log_density(a, d=d):
            logits = np.array([*t[:d], a, *t[d + 1 :]])
            return log_normal(a, means[d], variances[d]) + logits[true_class] - np.logaddexp.reduce(logits)

        reach = 12 * math.sqrt(variances[d])
        mean, var, _ = moments(log_density, np.linspace(means[d] - reach, means[d] + reach, 9).tolist())
        marginal = output.backward * output.forward
        assert (marginal.mean, marginal.var) == pytest.approx((mean, var), rel=1e-8)


def two_logits(noise, target_var, true_class=0):
    outputs = [Variable(), Variable()]
    outputs[0].forward, outputs[1].forward = Message.from_moments(0.2, 0.7), Message.from_moments(0.6, 0.4)
    heads.ArgmaxHead(outputs, true_class, noise, 1.0, target_var).backward()
    return outputs


@pytest.mark.parametrize("true_class", [0, 1])
def test_argmax_head_with_two_classes_is_exact_before_scaling(true_class):
    """N(a_c) N(a_i) Pr[a_c - a_i + noise >= 0]: exact moments of a_c; of a_i once the scaling is undone."""
    outputs = two_logits(0.3, None, true_class)
    best, other = outputs[true_class], outputs[1 - true_class]
    m_c, m_i = best.forward, other.forward

    def tilted(m, m_partner, sign):
        spread = math.sqrt(m_partner.var + 0.3)
        return moments(
            lambda a: log_normal(a, m.mean, m.var) + float(log_ndtr(sign * (a - m_partner.mean) / spread)),
            [m.mean - 10, m.mean, m.mean + 10],
        )[:2]

    marginal = best.backward * m_c
    assert (marginal.mean, marginal.var) == pytest.approx(tilted(m_c, m_i, 1), rel=1e-9)
    probability = ndtr(-(m_c.mean - m_i.mean) / math.sqrt(m_c.var + m_i.var + 0.3))
    marginal = other.backward ** (1 / probability) * m_i
    assert (marginal.mean, marginal.var) == pytest.approx(tilted(m_i, m_c, -1), rel=1e-9)


def test_argmax_regulariser_multiplies_in_and_three_classes_multiply_over_pairs():
    free, pulled = two_logits(0.3, None), two_logits(0.3, 0.1)
    extra = [(p.backward / f.backward) for p, f in zip(pulled, free, strict=True)]
    assert_trees_close([(e.tau, e.rho) for e in extra], [(10.0, 10.0), (-10.0, 10.0)])
    third = Variable()
    third.forward = free[1].forward
    outputs = [*two_logits(0.3, None), third]
    heads.ArgmaxHead(outputs, 0, 0.3, 1.0, None).backward()
    assert outputs[0].backward == free[0].backward ** 2
    assert outputs[1].backward == outputs[2].backward == free[1].backward


@pytest.mark.parametrize("mean", [-40.0, -2.0, 0.0, 1.0, 5.0])
def test_positive_to_input_is_truncated_moments_over_forward(mean):
    m_z, part = Message.from_moments(mean, 1.7), half_line(mean / math.sqrt(1.7))
    expected = Message.from_moments(math.sqrt(1.7) * part.mean, 1.7 * part.var) / m_z
    message = heads.positive_to_input(mean, 1.7)
    assert (message.tau, message.rho) == pytest.approx((expected.tau, expected.rho), rel=1e-9, abs=1e-12)
