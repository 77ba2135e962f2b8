"""Ridges: the covariance of inputs and output against explicit matrices, and against the slope of log det."""

import itertools

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.schedules.ridges import Ridges, measure
from tests.helpers import linear_data, mlp

NOISE_VAR = 0.04


def trained(sizes, *, dtype=torch.float64, epochs=15, n=20, leak=0.1):
    """A run on a bent function of its inputs."""
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(n, sizes[0])), dtype=dtype)
    y = torch.sin(2.0 * x[:, :1]) + 0.2 * torch.tensor(rng.normal(size=(n, sizes[-1])), dtype=dtype)
    layers = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [bmp.Linear(n_in, n_out), bmp.LeakyReLU(leak)]
    network = bmp.Network(layers[:-1], bmp.Regression(NOISE_VAR)).to(dtype)
    trainer = bmp.Trainer(network, x, y, batch_size=10, joint=True)
    trainer.run(epochs)
    return trainer, x, y


def rows_of(network, x):
    """Slopes (n, o, w) of all outputs in all weights, layer by layer as matrices (o, i)."""
    _, gradients = network.gradients(x)
    return torch.cat([part.flat() for part in gradients], 2).transpose(0, 1).double()


def below(network, depth):
    """The first layers of a network, whose outputs are then the inputs of what stands above."""
    part = bmp.Network(network.layers[:depth], bmp.Regression(NOISE_VAR)).to(network.dtype)
    n = part.n_weights
    part.marginal = Gaussian(network.marginal.tau[:n].clone(), network.marginal.rho[:n].clone())
    part.sum_share.copy_(network.sum_share[:depth])
    return part


@pytest.mark.parametrize("sizes", [(2, 5, 1), (2, 5, 4, 1)], ids=str)
def test_the_factor_is_that_of_explicit_matrices(sizes):
    trainer, x, _ = trained(sizes)
    network = trainer.network
    trace = network.graph.sweep_out(x, network.weights(), network.regime)
    found = measure(network.graph, trace, network.belief, torch.ones(len(x), 1, dtype=x.dtype))
    rows = rows_of(network, x)[:, 0]
    prior = torch.cat([part.flatten() for part in network.flat.to_matrices(network.prior.rho)]).double()
    covariance = torch.linalg.inv(rows.T @ rows / NOISE_VAR + torch.diag(prior))
    assert found.keys() == {2 * k for k in range(1, len(sizes) - 1)}
    for k, factor in found.items():
        lower = rows_of(below(network, k), x)  # (n, i, w of the layers below)
        with_output = torch.einsum("nkw,wv,nv->nk", lower, covariance[: lower.shape[2]], rows)
        slope = next(
            slope
            for node, slope in network.graph.pull(trace, torch.ones(1, len(x), 1, dtype=x.dtype))
            if node.index == k
        )
        local = trace.locals[k]
        joint = torch.einsum("no,nk->ok", slope[0].double(), with_output)
        weight = network.weights()[k]["weight"].mean
        independent = weight * torch.einsum("no,nk->ok", slope[0].double().square(), local.m_in.var)
        expected = (joint * independent).sum() / independent.square().sum()
        torch.testing.assert_close(factor.double(), expected, rtol=1e-5, atol=1e-7)


def test_the_joint_slope_is_that_of_log_det():
    """In a linear network, by automatic differentiation: half of d log det H / d w_k = rho sum_n Cov[a_nk, f_n]."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    lower, upper = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((4, 3), (4,)))

    def precision(w):
        rows = torch.cat([(w[:, None] * x[:, None, :]).flatten(1), x @ lower.T], 1)  # slopes in both layers
        return rows, rows.T @ rows / NOISE_VAR + 2.0 * torch.eye(rows.shape[1], dtype=torch.float64)

    w = upper.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(0.5 * torch.logdet(precision(w)[1]), w)
    rows, inverse = precision(upper)
    moved = (rows @ torch.linalg.inv(inverse))[:, : lower.numel()].view(-1, *lower.shape)  # Cov[lower weights, f_n]
    with_output = torch.einsum("nki,ni->nk", moved, x)
    torch.testing.assert_close(slope, with_output.sum(0) / NOISE_VAR)


@pytest.mark.parametrize("form", ["full", "anchored"])
def test_solving_for_each_example_is_solving_one_by_one(form):
    sizes, n = ((2, 4, 1), 40) if form == "full" else ((3, 40, 30, 2), 12)
    trainer, x, _ = trained(sizes, n=n, epochs=3)
    network, belief = trainer.network, trainer.network.belief
    assert belief.description()["form"] == form
    slopes = torch.ones(1, len(x), sizes[-1], dtype=x.dtype)
    _, gradients = network.gradients(x, slopes)
    found = belief.solve_each(gradients)
    for n in (0, 5):
        one = belief.solve([part.slopes[0, n].T @ part.inputs[n] for part in gradients])
        for each, expected in zip(found, one, strict=True):
            torch.testing.assert_close(each[n], expected)


@pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # ten points, each left out
def test_where_data_settle_sums_together_the_ridge_is_small_and_with_many_inputs_it_is_not():
    """Ten points on a line, with hundreds of weights: sums are known, units are not. Five inputs: units are unknown
    together with what they are for.
    """
    line, _, _ = trained((1, 16, 16, 1), n=10, epochs=60, dtype=torch.float32)
    table, _, _ = trained((8, 20, 20, 1), n=150, epochs=60, dtype=torch.float32)
    assert all(float(ridge) < 0.35 for ridge in line.schedule.ridges.values())
    assert all(0.4 < float(ridge) <= 2.0 for ridge in table.schedule.ridges.values())


def test_ridges_are_for_noisy_targets_of_several_dense_layers(monkeypatch):
    monkeypatch.setattr("bayesmp.schedules.has_objective", lambda network, n: False)
    x, y = linear_data(30)
    several = bmp.Trainer(mlp([3, 6, 6, 1], bmp.Regression(0.1)), x, y)
    assert list(several.schedule.ridges) == [2, 4] and not several.schedule.own_pulls
    for network in (mlp([3, 1], bmp.Regression(0.1)), mlp([3, 6, 2], bmp.Softmax())):
        target = y if network.head.has_noise else (y[:, 0] > 0).long()
        assert not bmp.Trainer(network, x, target).schedule.ridges
    assert not bmp.Trainer(mlp([3, 6, 1], bmp.Regression(0.1)), x, y, joint=False).schedule.ridges


def test_a_ridge_scales_the_inputs_variance_and_leaves_no_noise():
    network = mlp([3, 6, 1], bmp.Regression(0.1), dtype=torch.float64)
    x = torch.randn(5, 3, dtype=torch.float64)
    ridges = Ridges.of(network.graph, network.prior.rho)
    ridges[2].fill_(0.25)
    plain = network.graph.sweep_out(x, network.weights(), network.regime)
    shared = network.graph.sweep_out(x, network.weights(), network.regime, adjust=ridges.adjust)
    assert isinstance(shared.locals[2].m_in, Moments)
    torch.testing.assert_close(shared.locals[2].m_in.var, 0.25 * plain.locals[2].m_in.var)
    assert not shared.locals[2].m_out.input_var.any() and plain.locals[2].m_out.input_var.all()
    for name in ("mean", "var"):
        torch.testing.assert_close(getattr(shared.outputs, name), getattr(plain.outputs, name))
    assert not network.graph.output_noise(shared).any()
    ridges.reset()
    assert float(ridges[2]) == 1.0
