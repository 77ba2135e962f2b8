"""The joint belief against dense linear algebra: J by autograd of a plain PyTorch function, H^{-1} by inversion."""

import copy
import itertools
import math

import pytest
import torch

import bayesmp as bmp
from bayesmp.evidence.refresh import refresh
from bayesmp.messages.gaussian import Gaussian
from bayesmp.messages.regime import MOMENTS
from tests.beliefs import (
    DTYPES,
    FORMS,
    NETWORKS,
    NOISE_VAR,
    anchored,
    assert_near,
    convolutional,
    dense,
    flat_of,
    full,
    inputs,
    jacobian,
    matrices_of,
    plain,
    precision_matrix,
    precisions,
    ready,
    true_covariance,
)
from tests.helpers import mlp

torch.set_num_threads(1)


# --- truth -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_out", [1, 3])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("dtype, tolerance", DTYPES)
def test_gradients_are_the_jacobian_of_the_plain_function(make, n_out, dtype, tolerance):
    network = make(n_out, dtype)
    x = inputs(network, 4)
    m_out, gradients = network.gradients(x)
    found = torch.cat([part.flat() for part in gradients], 2).transpose(0, 1)
    truth = jacobian(network, x)
    each = [torch.cat([m.flatten() for m in matrices_of(network, row)]) for row in truth.flatten(0, 1)]
    assert_near(found.flatten(0, 1), torch.stack(each), tolerance)
    exact = copy.deepcopy(network).to(torch.float64)
    assert_near(m_out.mean, plain(exact, network.marginal.mean.double(), x.double()), tolerance)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_sharp_weights_make_both_regimes_the_same(make):
    """Matched moments at a weight variance of zero are the linearised network: the same gradients."""
    network = make()
    network.marginal = Gaussian.from_moments(network.marginal.mean, torch.full_like(network.marginal.mean, 1e-20))
    x = inputs(network, 4)
    linear = [part.flat() for part in network.gradients(x)[1]]
    network.regime = MOMENTS
    for found, truth in zip(network.gradients(x)[1], linear, strict=True):
        torch.testing.assert_close(found.flat(), truth)


@pytest.mark.parametrize("n_out", [1, 2])
def test_what_data_settle_is_not_rounded_away(n_out):
    """Many rows on a line, little noise: they settle directions along which their slopes differ by a millionth of them.
    In single precision variances there came out several times too large.
    """
    network = ready(mlp([1, 12, 12, 12, n_out], bmp.Regression(0.0025)), torch.float32)
    x = torch.linspace(0.0, 2.0, 100)[:, None]
    rho = torch.full((100, n_out), 400.0)
    belief, truth = anchored(network, x, rho), precision_matrix(network, x, rho)
    new = torch.linspace(0.01, 1.99, 70)[:, None]
    found = belief.covariance(network.gradients(new)[1]).diagonal(dim1=1, dim2=2)
    wanted = true_covariance(network, truth, new).diagonal(dim1=1, dim2=2)
    prior = true_covariance(network, torch.diag(network._exact_prior.rho), new).diagonal(dim1=1, dim2=2)
    assert float((wanted / prior).min()) < 1e-4, "else nothing is rounded"
    torch.testing.assert_close(found.double(), wanted, rtol=0.01, atol=0.0)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("n_out", [1, 3])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("dtype, tolerance", DTYPES)
def test_covariance_is_that_of_the_dense_inverse(make, n_out, form, dtype, tolerance):
    network = make(n_out, dtype)
    x, new, rho = inputs(network, 7), inputs(network, 5, seed=1), precisions(7, n_out)
    belief = form(network, x, rho)
    h = precision_matrix(network, x, rho)
    for rows in (x, new):
        assert_near(belief.covariance(network.gradients(rows)[1]), true_covariance(network, h, rows), tolerance)
    assert belief.is_exact


@pytest.mark.parametrize("dtype, tolerance", DTYPES)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_solve_is_the_dense_inverse(make, form, dtype, tolerance):
    network = make(2, dtype)
    x, rho = inputs(network, 7), precisions(7, 2)
    generator = torch.Generator().manual_seed(2)
    slope = torch.randn(network.n_weights, generator=generator, dtype=torch.float64)
    found = form(network, x, rho).solve(matrices_of(network, slope.to(dtype)))
    assert all(part.dtype == dtype for part in found)
    h = precision_matrix(network, x, rho)
    assert_near(flat_of(network, found), torch.linalg.solve(h, slope.to(dtype).double()), tolerance)


@pytest.mark.parametrize("n_rows", [6, 60], ids=["fewer rows than weights", "more rows than weights"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_priors_that_differ_per_weight_are_kept_apart(form, n_rows):
    generator = torch.Generator().manual_seed(4)
    var = 10.0 ** (2.0 * torch.rand(5, 3, generator=generator, dtype=torch.float64) - 1.0)
    network = dense(weight_prior=(0.0, var), bias_prior=(0.0, var[:, 0]))
    x, rho = inputs(network, n_rows), precisions(n_rows, 2)
    new = inputs(network, 5, seed=1)
    truth = true_covariance(network, precision_matrix(network, x, rho), new)
    assert_near(form(network, x, rho).covariance(network.gradients(new)[1]), truth, 1e-6)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_all_rows_as_anchors_are_all_weights(make):
    """Exact also where there are more rows than weights, so that many anchors say the same."""
    network = make(2)
    for n in (3, 80):
        x, rho = inputs(network, n), precisions(n, 2)
        gradients = network.gradients(inputs(network, 5, seed=1))[1]
        truth, found = full(network, x, rho), anchored(network, x, rho)
        assert_near(found.covariance(gradients), truth.covariance(gradients), 1e-6)
        assert found.degrees_of_freedom == pytest.approx(truth.degrees_of_freedom, rel=1e-6)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_list_with_one_entry_asks_about_one_layer(make, form):
    """None where a layer takes no part: the same as slopes of zero there."""
    network = make(2)
    x, rho = inputs(network, 7), precisions(7, 2)
    belief, inverse = form(network, x, rho), torch.linalg.inv(precision_matrix(network, x, rho))
    new = inputs(network, 4, seed=1)
    gradients, rows = network.gradients(new)[1], jacobian(network, new)
    for k, node in enumerate(network.graph.weight_nodes):
        own = torch.cat([torch.full((s.stop - s.start,), float(s.layer == node.index)) for s in network.slots]).double()
        asked = [part if j == k else None for j, part in enumerate(gradients)]
        truth = (rows * own) @ inverse @ (rows * own).transpose(1, 2)
        assert_near(belief.covariance(asked), truth, 1e-6)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_degrees_of_freedom_are_the_sum_of_leverages(make, form):
    network = make(3)
    for n in (4, 30):
        x, rho = inputs(network, n), precisions(n, 3)
        belief = form(network, x, rho)
        leverages = belief.covariance(network.gradients(x)[1]).diagonal(dim1=1, dim2=2) * rho
        assert belief.degrees_of_freedom == pytest.approx(float(leverages.sum()), rel=1e-6)
        assert 0.0 < belief.degrees_of_freedom < min(network.n_weights, 3 * n)
        h = precision_matrix(network, x, rho)
        trace = network.n_weights - float((network.prior.rho * torch.linalg.inv(h).diagonal()).sum())
        assert belief.degrees_of_freedom == pytest.approx(trace, rel=1e-6)


@pytest.mark.parametrize("n_anchors", [None, 6], ids=["exact", "inexact"])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_draws_have_the_covariance_that_is_told(make, n_anchors):
    """Projected on the gradients of some outputs; 2,000 draws know a variance to 1 / sqrt(1000) = 3.2 %."""
    network = make(2)
    x, rho = inputs(network, 9), precisions(9, 2)
    beliefs = [anchored(network, x, rho, n_anchors)] + ([full(network, x, rho)] if n_anchors is None else [])
    asked = network.gradients(inputs(network, 3, seed=1))[1]
    rows = torch.cat([part.flat() for part in asked], 2).flatten(0, 1)  # (k b, w)
    for belief in beliefs:
        generator = torch.Generator().manual_seed(0)
        drawn = [torch.cat([m.flatten() for m in belief.sample(generator)]) for _ in range(2000)]
        values = torch.stack(drawn).double() @ rows.T  # (s, k b)
        found = torch.cov(values.T).view(2, 3, 2, 3).diagonal(dim1=1, dim2=3).permute(2, 0, 1)  # (b, k, k)
        truth = belief.covariance(asked)
        scale = truth.diagonal(dim1=1, dim2=2).sqrt()
        assert float(((found - truth) / (scale[:, :, None] * scale[:, None, :])).abs().max()) < 5 * 0.032
        assert float((values.mean(0).abs() / values.std(0)).max()) < 5 / math.sqrt(2000)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_draws_are_made_again_by_the_same_seed(form):
    network = dense()
    belief = form(network, inputs(network, 5), precisions(5, 2))
    first, second, other = (belief.sample(torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize("n_out", [1, 2])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("n", [5, 90], ids=["anchored", "full"])
def test_a_refresh_makes_the_belief_of_the_dense_inverse(make, n_out, n):
    """The whole pass of joint.py, on both sides of the rule."""
    network = make(n_out)
    x = inputs(network, n)
    y = torch.randn(n, n_out, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    head = network.head
    found = refresh(network, x, y, network.head_log_weights, head.prior_log_weights(), max_examples=1000, max_rank=512)
    h = precision_matrix(network, x, torch.full((n, n_out), 1.0 / NOISE_VAR))
    new = inputs(network, 5, seed=1)
    assert_near(found.belief.covariance(network.gradients(new)[1]), true_covariance(network, h, new), 1e-6)


# --- fewer anchors than rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make, ranks", [(dense, (6, 12, 24, 60)), (convolutional, (12, 36, 60, 100))])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_more_anchors_bring_the_variance_down_to_the_exact_one(make, ranks, dtype):
    """On average over the data, and for every one of them it stays between zero and the prior's."""
    network = make(2, dtype)
    n = 100
    x, rho = inputs(network, n), precisions(n, 2, dtype)
    gradients = network.gradients(x)[1]
    exact = full(network, x, rho).covariance(gradients).diagonal(dim1=1, dim2=2)
    nothing = anchored(network, x[:1], 0.0 * rho[:1])
    prior = nothing.covariance(gradients).diagonal(dim1=1, dim2=2)
    excess = []
    for n_anchors in ranks:
        belief = anchored(network, x, rho, n_anchors)
        var = belief.covariance(gradients).diagonal(dim1=1, dim2=2)
        assert not belief.is_exact
        assert (var >= 0).all() and (var <= prior * (1 + 1e-4)).all()
        assert 0.0 <= belief.degrees_of_freedom <= network.n_weights
        excess.append(float((var.double() / exact).log().mean()))
    assert all(later < earlier for earlier, later in itertools.pairwise(excess))
    assert abs(excess[-1]) < 0.01


def test_inexact_solve_and_covariance_belong_to_the_same_matrix():
    """g^T H^{-1} g by `solve` and by `covariance`, also where what the anchors miss is spread over the layers."""
    network = dense()
    x, rho = inputs(network, 60), precisions(60, 2)
    belief = anchored(network, x, rho, 7)
    gradients = network.gradients(inputs(network, 1, seed=1))[1]
    covariance = belief.covariance(gradients)[0]
    shapes = [var.shape for var in network.layout.prior_vars]
    slopes = [[part.flat()[k, 0].view(shape) for part, shape in zip(gradients, shapes, strict=True)] for k in (0, 1)]
    for k in (0, 1):
        solved = belief.solve(slopes[k])
        for j in (0, 1):
            product = sum((a * b).sum() for a, b in zip(slopes[j], solved, strict=True))
            assert float(product) == pytest.approx(float(covariance[j, k]), rel=1e-9)
