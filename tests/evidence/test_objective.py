"""The objective against independent roads: dense matrices, numerical slopes, closed forms."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch.func import jacrev

from bayesmp.basics.settings import SETTINGS
from bayesmp.evidence import OverRows, OverWeights
from bayesmp.messages.regime import MEANS, MOMENTS
from tests.objective_cases import data_of, descent_of, network_of, random_variances

CASES = [([3, 6, 1], 12), ([3, 6, 1], 60), ([2, 5, 4, 2], 9), ([2, 5, 4, 2], 40)]


def smooth_leaky_relu(z, v):
    std = v.sqrt()
    cdf, pdf = torch.special.ndtr(z / std), torch.exp(-0.5 * (z / std) ** 2) / math.sqrt(2 * math.pi)
    return 0.1 * z + 0.9 * (z * cdf + std * pdf)


def plain_outputs(sizes, mean, x, variances):
    """The smooth network written down once more; weights as (o, i + 1) matrices, one after the other."""
    start = 0
    for k, (n_in, n_out) in enumerate(pairwise(sizes)):
        matrix = mean[start : start + n_out * (n_in + 1)].view(n_out, n_in + 1)
        start += matrix.numel()
        x = x @ matrix[:, :-1].T + matrix[:, -1]
        if k < len(sizes) - 2:
            x = smooth_leaky_relu(x, variances[k])
    return x


def fixed(descent, sizes, n):
    """Variances of the descent's own form, and as a list over the hidden layers."""
    variances = random_variances(descent)
    descent.objective.look(descent.state.mean, 0.1, 1.0, variances)  # fills them
    function = descent.objective.function
    found = []
    for node in function.nodes[:-1]:
        like = type("Local", (), {"m_out": type("M", (), {"mean": torch.zeros(n, node.layer.n_out)})})
        found.append(variances[0](node, like))
    return variances, found


@pytest.mark.parametrize("sizes, n", CASES)
def test_the_value_is_the_evidence_of_the_linearised_network(sizes, n):
    """F by its definition: slopes by automatic differentiation of the network written down once more, the marginal
    likelihood of the linear-Gaussian model by scipy's normal density."""
    x, y = data_of(n, sizes[0], sizes[-1])
    descent = descent_of(network_of(sizes), x, y)
    variances, listed = fixed(descent, sizes, n)
    objective, noise, width = descent.objective, 0.07, 1.7
    mean = descent.state.mean + 0.1 * torch.randn(len(descent.state.mean), dtype=torch.float64)
    look = objective.look(mean, noise, width, variances)

    outputs = plain_outputs(sizes, mean, x, listed)
    torch.testing.assert_close(look.latent, outputs)
    rows = jacrev(lambda m: plain_outputs(sizes, m, x, listed))(mean).flatten(0, 1)
    prior_var = width / objective.prior_rho
    change = objective.prior_mean - mean
    centre = (outputs.flatten() + rows @ change).numpy()  # of y under the prior
    spread = (rows * prior_var) @ rows.T + noise * torch.eye(len(rows), dtype=torch.float64)
    # log p(y) = log p(y | m) + log p(m) - log p(m | y) for any m; in F the last is taken at its own mean's height
    hessian = rows.T @ rows / noise + torch.diag(1 / prior_var)
    evidence = stats.multivariate_normal(centre, spread.numpy()).logpdf(y.flatten().numpy())
    pull = rows.T @ (y - outputs).flatten() / noise + change / prior_var
    missing = 0.5 * float(pull @ torch.linalg.solve(hessian, pull))
    known = SETTINGS.least_miss**2 / (2 * noise) + 0.5 * math.log(noise)
    known += 0.5 * SETTINGS.width_counts * (math.log(width) + 1 / width)
    assert look.value == pytest.approx(-evidence + missing + known, rel=1e-9)
    torch.testing.assert_close(look.slope, pull, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("over_rows", [True, False])
@pytest.mark.parametrize("sizes, n", CASES)
def test_the_slope_of_the_uncertainty_is_that_of_the_log_determinant(sizes, n, over_rows):
    x, y = data_of(n, sizes[0], sizes[-1])
    weight = torch.rand(n, dtype=torch.float64) + 0.5
    descent = descent_of(network_of(sizes), x, y, weight=weight, over_rows=over_rows)
    variances, _ = fixed(descent, sizes, n)
    objective, mean, noise = descent.objective, descent.state.mean, 0.07
    look = objective.look(mean, noise, 1.3, variances)
    slope = objective.uncertainty_slope(mean, look, variances)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        along, step = torch.randn(len(mean), dtype=torch.float64, generator=generator), 1e-5
        ends = [
            objective.look(mean + sign * step * along, noise, 1.3, variances).curvature.half_log_det for sign in (1, -1)
        ]
        assert float(slope @ along) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("sizes, n", CASES)
def test_both_forms_of_the_curvature_agree(sizes, n):
    x, y = data_of(n, sizes[0], sizes[-1])
    network, weight = network_of(sizes), torch.rand(n, dtype=torch.float64) + 0.5
    rows, weights = (descent_of(network, x, y, weight=weight, over_rows=form) for form in (True, False))
    variances, _ = fixed(rows, sizes, n)
    mean, noise = rows.state.mean, 0.05
    a, b = (part.objective.look(mean, noise, 1.3, variances) for part in (rows, weights))
    assert isinstance(a.curvature, OverRows) and isinstance(b.curvature, OverWeights)
    assert a.value == pytest.approx(b.value, rel=1e-9)
    torch.testing.assert_close(a.slope, b.slope)
    torch.testing.assert_close(a.curvature.diagonal, b.curvature.diagonal)
    torch.testing.assert_close(b.curvature.covariance.inverse().diagonal(), b.curvature.diagonal)
    assert a.curvature.degrees_of_freedom == pytest.approx(b.curvature.degrees_of_freedom, rel=1e-8)
    for damping in (0.0, 3.0):
        torch.testing.assert_close(a.curvature.newton(a.slope, damping), b.curvature.newton(a.slope, damping))
    found = rows.objective.function.slopes(mean, x, variances[0])
    found = found.seen_through(a.root)
    torch.testing.assert_close(a.curvature.held(found), b.curvature.held(found))
    torch.testing.assert_close(a.curvature.held_by_own, b.curvature.held(found))
    for one, other in zip(a.curvature.pulls(found), b.curvature.pulls(found), strict=True):
        torch.testing.assert_close(one.inputs, other.inputs)
        torch.testing.assert_close(one.slopes, other.slopes)
    for layer in range(len(sizes) - 1):
        blocks = a.curvature.unit_covariances(layer)
        torch.testing.assert_close(blocks, b.curvature.unit_covariances(layer), rtol=1e-5, atol=1e-6)  # float32
        inputs = found.gradients[layer].inputs[:, 0]
        variance = torch.einsum("ni,oij,nj->no", inputs, blocks, inputs)
        told = a.curvature.unit_variances(layer, inputs)  # by 32 draws
        assert float((told / variance).log().mean().abs()) < 0.25
    others = [part.objective.look(mean, noise, 0.4, variances).value for part in (rows, weights)]
    assert others[0] == pytest.approx(others[1], rel=1e-9), "products of the inputs are kept from the first width"
    given = rows.objective.function.given
    assert given == [0]
    for own in (a.curvature, b.curvature):
        pulls, fewer = own.pulls(found), own.pulls(found, given=given)
        assert fewer[0].inputs is None and all(part.inputs is not None for part in fewer[1:])
        for one, other in zip(pulls, fewer, strict=True):
            torch.testing.assert_close(one.slopes, other.slopes)


def test_noise_and_width_are_the_best_ones():
    """The fixed points of noise and width against a numerical minimum of the objective over both."""
    x, y = data_of(25, 3, 1)
    descent = descent_of(network_of([3, 6, 1]), x, y)
    objective, mean, variances = descent.objective, descent.state.mean, random_variances(descent)

    def value(logs):
        return objective.look(mean, math.exp(logs[0]), math.exp(logs[1]), variances).value

    best = optimize.minimize(value, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10})
    noise, width = 1.0, 1.0
    for _ in range(300):
        look = objective.look(mean, noise, width, variances)
        known = look.curvature.degrees_of_freedom
        noise, width = objective.best_noise(look.data, noise, known, 0.0), objective.best_width(mean, known)
    assert np.log([noise, width]) == pytest.approx(best.x, abs=1e-4)


def test_a_weight_is_so_many_copies():
    """A row of weight 3 says what three rows say; the form over rows and that over weights agree on it."""
    x, y = data_of(8, 3, 1)
    weight = torch.ones(8, dtype=torch.float64)
    weight[2] = 3.0
    network = network_of([3, 6, 1])
    once = descent_of(network, x, y, weight=weight)
    again = descent_of(network, torch.cat([x, x[[2, 2]]]), torch.cat([y, y[[2, 2]]]))
    looks = [part.look() for part in (once, again)]
    assert looks[0].value == pytest.approx(looks[1].value, rel=1e-10)
    torch.testing.assert_close(looks[0].slope, looks[1].slope)


@pytest.mark.parametrize("n", [20, 200])
def test_every_step_lowers_what_it_is_to_lower(n):
    """Step by step, with noise, width and spread as they were before the step."""
    x, y = data_of(n, 3, 1)
    descent = descent_of(network_of([3, 8, 1]), x, y)
    for _ in range(SETTINGS.fitting_steps + 20):
        before, only_fits = descent.state, descent.fits_only
        descent.step()
        after = descent.state
        variances = descent.from_state(before).variances()
        at = before.noise, before.width, variances
        means = before.mean, after.mean
        looks = [descent.objective.look(mean, *at, relevance=before.relevance) for mean in means]
        values = [look.value - (look.curvature.half_log_det if only_fits else 0.0) for look in looks]
        assert values[1] < values[0] or descent.state.n_refused > 0


def test_a_linear_network_ends_at_the_closed_form():
    """One layer: F is the exact evidence, and the end of the descent ridge regression with its best noise and width."""
    x, y = data_of(40, 3, 1)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.3 * y
    descent = descent_of(network_of([3, 1]), x, y)
    for _ in range(SETTINGS.fitting_steps + 60):
        descent.step()
    objective, state = descent.objective, descent.state
    wide = torch.cat([x, torch.ones(40, 1, dtype=torch.float64)], 1)
    rho = objective.rho_at(state.width, state.relevance)
    hessian = wide.T @ wide / state.noise + torch.diag(rho)
    mean = torch.linalg.solve(hessian, wide.T @ y[:, 0] / state.noise + rho * objective.prior_mean)
    torch.testing.assert_close(state.mean, mean, rtol=1e-6, atol=1e-8)
    look = descent.look()
    assert state.noise == pytest.approx(
        objective.best_noise(look.data, state.noise, look.curvature.degrees_of_freedom, 0.0), rel=1e-4
    )

    torch.testing.assert_close(look.curvature.unit_covariances(0)[0], torch.linalg.inv(hessian))


@pytest.mark.parametrize("sizes, n", CASES)
@pytest.mark.parametrize("over_rows", [True, False])
def test_both_forms_know_the_diagonal_of_the_curvature(sizes, n, over_rows):
    x, y = data_of(n, sizes[0], sizes[-1])
    descent = descent_of(network_of(sizes), x, y, over_rows=over_rows)
    variances, listed = fixed(descent, sizes, n)
    mean, noise, width = descent.state.mean, 0.07, 1.7
    rows = jacrev(lambda m: plain_outputs(sizes, m, x, listed))(mean).flatten(0, 1)
    look = descent.objective.look(mean, noise, width, variances)
    expected = rows.square().sum(0) / noise + descent.objective.prior_rho / width
    torch.testing.assert_close(look.curvature.diagonal, expected)


@pytest.mark.parametrize("room", [16_384, 40])
def test_a_look_without_slope_is_the_same_look(room, monkeypatch):
    """Also where some of the examples tell the curvature of all."""
    monkeypatch.setattr("bayesmp.evidence.objective.LEAST_TOLD", room)
    monkeypatch.setattr("bayesmp.evidence.objective.TOLD_PER_WEIGHT", 1)
    x, y = data_of(200, 3, 1)
    descent = descent_of(network_of([3, 8, 1]), x, y)
    assert (descent.objective.witnesses is None) == (room > 200)
    state, variances = descent.state, descent.variances()
    full, quick = (
        descent.objective.look(state.mean, 0.1, 1.0, variances, with_slope=wanted) for wanted in (True, False)
    )
    assert quick.value == pytest.approx(full.value, rel=1e-12) and quick.data == pytest.approx(full.data)
    torch.testing.assert_close(quick.latent, full.latent)
    assert bool(full.slope.isfinite().all()) and bool(quick.slope.isnan().all())


def test_what_was_seen_is_seen_once():
    """The same look answers until the descent moves on."""
    x, y = data_of(30, 3, 1)
    descent = descent_of(network_of([3, 8, 1]), x, y)
    first = descent.look()
    assert descent.look() is first
    descent.step()
    again = descent.look()
    assert again is not first and again.value == pytest.approx(descent.from_state(descent.state).look().value)


def test_products_of_given_inputs_are_formed_once_for_a_prior():
    """They cost the most of a look at many columns."""
    descent = descent_of(network_of([3, 8, 1]), *data_of(12, 3, 1), over_rows=True)
    mean, variances = descent.state.mean, descent.variances()
    first, again, wider = (descent.objective.look(mean, 0.1, width, variances).curvature for width in (1.0, 1.0, 2.0))
    assert again.kernels[0] is first.kernels[0]
    torch.testing.assert_close(wider.kernels[0], 2.0 * first.kernels[0])


def test_what_is_averaged_over_follows_the_belief_at_its_pace():
    descent = descent_of(network_of([3, 8, 1]), *data_of(30, 3, 1))
    before = descent.state.spread[0]
    told = descent.step().look.curvature.unit_covariances(0)
    assert SETTINGS.spread_pace < 1.0
    torch.testing.assert_close(descent.state.spread[0], before.lerp(told, SETTINGS.spread_pace))


def test_means_alone_are_the_means_of_moments():
    """Sweeps of known weights leave out variances that nobody reads, and smooth as the full equations do."""
    function = descent_of(network_of([3, 6, 5, 2]), *data_of(20, 3, 2)).objective.function
    assert function.regime is MEANS
    descent = descent_of(network_of([3, 6, 5, 2]), *data_of(20, 3, 2))
    (variances,) = random_variances(descent)
    quick = function.slopes(descent.state.mean, descent.objective.x, variances)
    function.regime = MOMENTS
    full = function.slopes(descent.state.mean, descent.objective.x, variances)
    torch.testing.assert_close(quick.flat(), full.flat())
    torch.testing.assert_close(quick.outputs, full.outputs)


def test_less_is_averaged_over_where_the_objective_rests_lower_so():
    """A wiggly function in a deep narrow network: averaged over all of the belief, its bends are lost; a straight line
    gains nothing.
    """
    x = torch.linspace(-2, 2, 120, dtype=torch.float64)[:, None]
    ends = []
    for y in (torch.sin(4 * x), 0.5 * x):
        noisy = y + 0.05 * torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        descent = descent_of(network_of([1, 12, 12, 12, 1]), x, noisy)
        descent.fit()
        descent.rest()
        found = descent.smoothed_as_it_pays()
        assert found.look().value <= descent.look().value
        ends.append(found.state.smoothing)
    assert ends[0] < 0.5 and ends[1] == 1.0
