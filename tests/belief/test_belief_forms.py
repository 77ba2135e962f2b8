"""Which form the joint belief takes; files, devices and precisions; extremes."""

import pytest
import torch

import bayesmp as bmp
from bayesmp.belief import MAX_RANK, Layout, from_state, plan
from bayesmp.evidence.pass_over_data import FEW_SHARED, plan_belief
from bayesmp.layers.base import Gradient
from tests.beliefs import (
    FORMS,
    NETWORKS,
    NOISE_VAR,
    anchored,
    assert_near,
    dense,
    inputs,
    jacobian,
    precisions,
    ready,
)
from tests.helpers import linear_data, mlp

torch.set_num_threads(1)


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


def test_small_networks_with_shared_weights_have_twice_as_many_anchors():
    """And are exact up to as many rows or weights."""
    layers = [bmp.Conv2d(1, 8, 5, stride=2), bmp.LeakyReLU(0.1), bmp.Flatten(), bmp.Linear(8 * 12 * 12, 3)]
    small = bmp.Network(layers, bmp.Argmax(), seed=0, input_shape=(1, 28, 28))
    assert MAX_RANK < small.n_weights <= FEW_SHARED
    found = [plan_belief(small, n) for n in (10, 600, 5000)]
    assert [(part.rank, part.is_exact) for part in found] == [(30, True), (1800, True), (2 * MAX_RANK, False)]
    assert plan_belief(small, 5000, max_rank=512).rank == 512, "as refreshes in training ask for"
    tiny = bmp.Network([bmp.Conv2d(1, 8, 14), bmp.Flatten()], bmp.Regression(0.1), seed=0, input_shape=(1, 14, 14))
    assert MAX_RANK < tiny.n_weights <= 2 * MAX_RANK
    assert plan_belief(tiny, 5000).form == "full"
    for other in (
        mlp([784, 12, 3], bmp.Argmax()),
        bmp.Network(
            [bmp.Conv2d(1, 8, 3), bmp.Flatten(), bmp.Linear(8 * 26 * 26, 4)], bmp.Argmax(), input_shape=(1, 28, 28)
        ),
    ):
        assert plan_belief(other, 5000).rank == MAX_RANK


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
