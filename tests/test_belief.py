"""The joint belief against dense linear algebra: J by autograd of a plain PyTorch function, H^{-1} by inversion."""

import copy
import itertools
import math

import pytest
import torch
from torch.nn import functional

import bayesmp as bmp
from bayesmp.belief import MAX_RANK, AnchoredBasis, Belief, FullBasis, Layout, from_state, plan
from bayesmp.gaussian import Gaussian
from bayesmp.joint import refresh
from bayesmp.layers.base import Gradient
from bayesmp.regime import LINEAR, MOMENTS
from tests.helpers import linear_data, mlp

torch.set_num_threads(1)

DTYPES = [(torch.float64, 1e-6), (torch.float32, 2e-3)]
NOISE_VAR = 0.3


# --- networks, and the same functions in plain PyTorch ---------------------------------------------------------------


def dense(n_out=2, dtype=torch.float64, **priors):
    layers = [bmp.Linear(3, 5, **priors), bmp.LeakyReLU(), bmp.Linear(5, n_out)]
    return ready(bmp.Network(layers, bmp.Regression(NOISE_VAR), seed=1), dtype)


def convolutional(n_out=2, dtype=torch.float64):
    layers = [
        bmp.Conv2d(2, 3, 3, padding=1),
        bmp.LeakyReLU(),
        bmp.AvgPool2d(2),
        bmp.Conv2d(3, 2, 2, bias=False),
        bmp.Flatten(),
        bmp.Linear(2, n_out),
    ]
    return ready(bmp.Network(layers, bmp.Regression(NOISE_VAR), seed=1, input_shape=(2, 4, 4)), dtype)


def ready(network, dtype):
    """At random means, as if trained; sweeps linear, so that slopes are those of the plain function at the means."""
    network.to(dtype)
    generator = torch.Generator().manual_seed(3)
    mean = 0.7 * torch.randn(network.n_weights, generator=generator, dtype=torch.float64).to(dtype)
    network.marginal = Gaussian.from_moments(mean, torch.full_like(mean, 0.01))
    network.regime = LINEAR
    return network


def plain(network, flat, x):
    """The network as a deterministic function of all weights in one flat vector."""
    for layer, weights in zip(network.layers, network.unpack(flat), strict=True):
        match layer:
            case bmp.Linear():
                x = functional.linear(x, weights["weight"], weights.get("bias"))
            case bmp.Conv2d():
                options = {"stride": layer.stride, "padding": layer.padding}
                x = functional.conv2d(x, weights["weight"], weights.get("bias"), **options)
            case bmp.LeakyReLU():
                x = functional.leaky_relu(x, layer.leak)
            case bmp.AvgPool2d():
                x = functional.avg_pool2d(x, layer.kernel, layer.stride)
            case bmp.Flatten():
                x = x.flatten(1)
            case _:
                raise AssertionError(f"no plain form of {layer!r}")
    return x


def jacobian(network, x):
    """(b, o, w) in float64, by reverse-mode autograd."""
    exact = copy.deepcopy(network).to(torch.float64)
    mean = network.marginal.mean.double()
    return torch.func.jacrev(lambda flat: plain(exact, flat, x.double()))(mean)


def precision_matrix(network, x, rho):
    """H = diag(1 / prior var) + sum_n J_n^T diag(rho_n) J_n, for rho (b, o)."""
    rows = jacobian(network, x).flatten(0, 1)
    return torch.diag(network._exact_prior.rho) + rows.T @ (rho.double().flatten()[:, None] * rows)


def true_covariance(network, h, x):
    rows = jacobian(network, x)
    return rows @ torch.linalg.inv(h) @ rows.transpose(1, 2)


def inputs(network, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, *network.input_shape, generator=generator, dtype=torch.float64).to(network.dtype)


def precisions(n, n_out, dtype=torch.float64):
    """Different for every example and output, as a classifier's are."""
    generator = torch.Generator().manual_seed(7)
    return (0.2 + 5.0 * torch.rand(n, n_out, generator=generator, dtype=torch.float64)).to(dtype)


# --- beliefs ---------------------------------------------------------------------------------------------------------


def collect(basis, gradients, rho) -> Belief:
    """The belief of these data in a basis; rows_seen as joint.py would have it."""
    features = basis.features(gradients)
    rows = (features * rho.to(features).sqrt()[..., None]).flatten(0, 1).double()
    seen = []
    for part in gradients:
        matrix = part.flat().unflatten(2, (part.slopes.shape[3], -1))  # (k, b, o, i)
        seen.append(torch.einsum("kboi,bk->i", matrix.square(), rho.to(matrix)) / matrix.shape[2])
    return basis.believe(rows.T @ rows, seen)


def full(network, x, rho) -> Belief:
    basis = FullBasis([var.double().sqrt() for var in network.layout.prior_vars])
    return collect(basis, network.gradients(x)[1], rho)


def anchored(network, x, rho, n_anchors=None) -> Belief:
    """Every row of the data as an anchor, or random mixtures of the outputs of some examples."""
    if n_anchors is None:
        rows = torch.arange(len(x)).repeat_interleave(network.n_outputs)
        mixes = torch.eye(network.n_outputs, dtype=x.dtype).repeat(len(x), 1)
    else:
        generator = torch.Generator().manual_seed(5)
        rows = torch.randperm(len(x), generator=generator)[:n_anchors]
        mixes = torch.randn(n_anchors, network.n_outputs, generator=generator, dtype=torch.float64).to(x)
    anchors = network.gradients(x[rows], mixes[None])[1]
    basis = AnchoredBasis.of(anchors, network.layout.prior_vars, is_exact=n_anchors is None)
    return collect(basis, network.gradients(x)[1], rho)


FORMS = {"full": full, "anchored": anchored}
NETWORKS = {"dense": dense, "convolutional": convolutional}


def flat_of(network, matrices):
    """Matrices (o, i) per layer as the flat vector of all weights."""
    parts = [{} for _ in network.layers]
    for node, matrix in zip(network.graph.weight_nodes, matrices, strict=True):
        parts[node.index] = node.layer.from_matrix(matrix)
    return torch.cat([parts[slot.layer][slot.name].reshape(-1) for slot in network.slots])


def matrices_of(network, flat):
    parts = network.unpack(flat)
    return [node.layer.to_matrix(parts[node.index]) for node in network.graph.weight_nodes]


def assert_near(found, truth, tolerance):
    """In units of the largest true value: what is left over from larger numbers has their rounding."""
    assert found.isfinite().all()
    assert float((found.double() - truth).abs().max()) <= tolerance * float(truth.abs().max())


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


# --- the rule --------------------------------------------------------------------------------------------------------


def layout(n_out, n_in):
    return Layout([torch.ones(n_out, n_in)], [torch.zeros(n_out, n_in)])


@pytest.mark.parametrize(
    "n_weights, n_rows, form, rank, is_exact",
    [
        (40, 40, "full", 40, True),
        (40, 39, "anchored", 39, True),
        (MAX_RANK, 10 * MAX_RANK, "full", MAX_RANK, True),
        (MAX_RANK + 1, 10 * MAX_RANK, "anchored", 300, False),
        (MAX_RANK + 1, MAX_RANK, "anchored", MAX_RANK, True),
        (5 * MAX_RANK, MAX_RANK + 1, "anchored", 300, False),
        (5 * MAX_RANK, 1, "anchored", 1, True),
    ],
)
def test_the_smaller_of_weights_and_rows_decides(n_weights, n_rows, form, rank, is_exact):
    found = plan(layout(1, n_weights), n_rows, max_rank=300)
    assert (found.form, found.rank, found.is_exact) == (form, rank, is_exact)
    assert found.n_bytes > 0


def test_the_plan_tells_the_memory_of_the_belief():
    """Within a factor of two: what its tensors take."""
    for n_in, n in ((5, 200), (60, 30)):
        network = mlp([n_in, 20, 1], bmp.Regression(0.1))
        x, rho = inputs(network, n), torch.ones(n, 1)
        found = plan(network.layout, n)
        belief = FORMS[found.form](network, x, rho)
        n_bytes = sum(part.nbytes for part in belief.state().values())
        assert found.n_bytes / 2 < n_bytes < 2 * found.n_bytes


# --- files, devices, extremes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", [*FORMS.values(), lambda *args: anchored(*args, 4)], ids=[*FORMS, "inexact"])
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_belief_comes_back_from_its_state(make, form, dtype):
    network = make(2, dtype)
    belief = form(network, inputs(network, 7), precisions(7, 2))
    again = from_state(belief.description(), {name: part.clone() for name, part in belief.state().items()})
    gradients = network.gradients(inputs(network, 5, seed=1))[1]
    assert type(again) is type(belief) and again.is_exact == belief.is_exact
    assert torch.equal(again.covariance(gradients), belief.covariance(gradients))
    assert again.degrees_of_freedom == belief.degrees_of_freedom
    draws = [part.sample(torch.Generator().manual_seed(0)) for part in (belief, again)]
    assert all(torch.equal(a, b) for a, b in zip(*draws, strict=True))
    assert again.description() == belief.description()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_a_belief_in_another_precision_says_the_same(make, form):
    network = make(2)
    belief = form(network, inputs(network, 7), precisions(7, 2))
    new = inputs(network, 5, seed=1)
    truth = belief.covariance(network.gradients(new)[1])
    single = belief.to(torch.device("cpu"), torch.float32)
    network.to(torch.float32)
    assert_near(single.covariance(network.gradients(new.float())[1]).float(), truth, 1e-3)
    back = single.to(torch.device("cpu"), torch.float64)
    network.to(torch.float64)
    assert_near(back.covariance(network.gradients(new)[1]), truth, 1e-3)


def repeated(x):
    return x[:1].expand_as(x).clone()


DATA = {"random": lambda x: x, "repeated": repeated, "zero": torch.zeros_like, "large": lambda x: 1e3 * x}


@pytest.mark.parametrize("form", [*FORMS.values(), lambda *args: anchored(*args, 5)], ids=[*FORMS, "inexact"])
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
@pytest.mark.parametrize("var", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_stay_finite(var, data, form, dtype):
    """Broad and narrow priors, rows that all say the same, inputs of zero, with and without a bias."""
    for bias in (True, False):
        layers = [bmp.Linear(3, 5, bias=bias, weight_prior=(0.0, var)), bmp.LeakyReLU()]
        layers += [bmp.Linear(5, 2, bias=bias, weight_prior=(0.0, var))]
        network = ready(bmp.Network(layers, bmp.Regression(NOISE_VAR), seed=1), dtype)
        x = data(inputs(network, 12))
        belief = form(network, x, torch.full((12, 2), 1.0 / NOISE_VAR, dtype=dtype))
        gradients = network.gradients(torch.cat([x, inputs(network, 3, seed=1)]))[1]
        covariance = belief.covariance(gradients)
        assert covariance.isfinite().all() and (covariance.diagonal(dim1=1, dim2=2) >= 0).all()
        assert -1e-6 <= belief.degrees_of_freedom <= network.n_weights
        drawn = belief.sample(torch.Generator().manual_seed(0))
        assert all(part.isfinite().all() for part in (*drawn, *belief.solve(drawn)))


def test_data_that_say_nothing_leave_the_prior():
    network = dense()
    x = inputs(network, 6)
    gradients = network.gradients(x)[1]
    rows = jacobian(network, x)
    truth = (rows / network.prior.rho) @ rows.transpose(1, 2)
    for form in FORMS.values():
        belief = form(network, x, torch.zeros(6, 2))
        assert_near(belief.covariance(gradients), truth, 1e-9)
        assert belief.degrees_of_freedom == pytest.approx(0.0, abs=1e-9)


def test_a_sharp_example_leaves_no_variance_at_itself():
    """Noise of 1e-8: the variance left over is a difference of nearly equal numbers, and never below zero."""
    for dtype in (torch.float32, torch.float64):
        network = dense(1, dtype)
        x = inputs(network, 8)
        for form in FORMS.values():
            belief = form(network, x, torch.full((8, 1), 1e8))
            var = belief.covariance(network.gradients(x)[1])
            nothing = form(network, x, torch.zeros(8, 1)).covariance(network.gradients(x)[1])
            assert (var >= 0).all() and (var <= 2e-5 * nothing).all()


def test_rows_of_a_gradient_are_laid_out_as_the_layer_does():
    """`Gradient.flat` against `Layer.to_matrix`, for one position and for several."""
    generator = torch.Generator().manual_seed(0)
    for n_positions in (1, 4):
        inputs_, slopes = torch.randn(2, n_positions, 3, generator=generator), torch.randn(5, 2, n_positions, 4)
        found = Gradient(inputs_, slopes).flat()
        truth = torch.einsum("kbpo,bpi->kboi", slopes, inputs_).flatten(2)
        torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-5)


def test_training_leaves_the_form_that_the_rule_says():
    x, y = linear_data(30, n_in=3)
    small, wide = mlp([3, 3, 1], bmp.Regression(0.1)), mlp([3, 20, 1], bmp.Regression(0.1))
    for network, form in ((small, "full"), (wide, "anchored")):
        bmp.fit(network, x, y, epochs=2)
        assert network.belief is not None and network.belief.description()["form"] == form
