"""Curvature beyond first order, against dense algebra with slopes by autograd of a plain PyTorch function."""

import copy

import pytest
import torch

import bayesmp as bmp
from bayesmp.belief import Bent, from_state
from bayesmp.bending import NEGLIGIBLE, bend, can_bend, curvature
from bayesmp.gaussian import Gaussian
from bayesmp.settings import Settings
from tests.beliefs import (
    FORMS,
    NOISE_VAR,
    assert_near,
    dense,
    flat_of,
    inputs,
    jacobian,
    matrices_of,
    precision_matrix,
    precisions,
    ready,
)
from tests.helpers import mlp

torch.set_num_threads(1)


def bent(network, belief, n_pulls=4):
    """Around a belief, with random pulls; and U (w, q) in the order of the flat weights."""
    generator = torch.Generator().manual_seed(9)
    pulls = [
        3.0 * torch.randn(var.shape[1], var.shape[0], n_pulls, generator=generator, dtype=torch.float64)
        for var in belief.prior_vars
    ]
    columns = [flat_of(network, [part[..., k].T for part in pulls]) for k in range(n_pulls)]
    return Bent.of(belief, pulls), torch.stack(columns, 1)


@pytest.fixture(params=FORMS)
def case(request):
    """A network, its data and their precisions, the bent belief, and its H by dense algebra."""
    network = dense()
    x, rho = inputs(network, 7), precisions(7, 2)
    belief, pulls = bent(network, FORMS[request.param](network, x, rho))
    return network, x, rho, belief, precision_matrix(network, x, rho) + pulls @ pulls.T


def test_covariance_and_solutions_are_those_of_the_dense_inverse(case):
    network, x, _, belief, h = case
    sigma = torch.linalg.inv(h)
    for rows in (x, inputs(network, 5, seed=1)):
        truth = jacobian(network, rows)
        assert_near(belief.covariance(network.gradients(rows)[1]), truth @ sigma @ truth.transpose(1, 2), 1e-8)
    slope = torch.randn(network.n_weights, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_near(flat_of(network, belief.solve(matrices_of(network, slope))), sigma @ slope, 1e-8)
    gradients = network.gradients(x, torch.tensor([1.0, -2.0], dtype=torch.float64).expand(1, len(x), 2))[1]
    rows = jacobian(network, x) @ sigma
    for k, found in enumerate(zip(*belief.solve_each(gradients), strict=True)):
        assert_near(flat_of(network, found), rows[k, 0] - 2.0 * rows[k, 1], 1e-8)


def test_leverages_add_up_to_the_degrees_of_freedom(case):
    network, x, rho, belief, _ = case
    found = belief.covariance(network.gradients(x)[1]).diagonal(dim1=1, dim2=2)
    assert belief.degrees_of_freedom == pytest.approx(float((found * rho).sum()), rel=1e-9)
    variances, past = belief.as_past()
    assert all(torch.equal(a, b) for a, b in zip(variances, belief.plain.as_past()[0], strict=True))
    assert belief.leverage(past) == pytest.approx(belief.degrees_of_freedom, rel=1e-6), "this past is all data"


def test_draws_have_the_covariance_of_the_dense_inverse(case):
    network, _, _, belief, h = case
    generator, n = torch.Generator().manual_seed(2), 20_000
    draws = torch.stack([flat_of(network, belief.sample(generator)) for _ in range(n)])
    root = torch.linalg.cholesky(h)
    white = draws @ root  # covariance I
    off = white.T @ white / n - torch.eye(len(h), dtype=torch.float64)
    assert float(off.abs().max()) < 6.0 * (2.0 / n) ** 0.5
    assert float(white.mean(0).abs().max()) < 5.0 / n**0.5


def test_it_comes_back_from_its_state_and_keeps_its_precision(case):
    network, _, _, belief, _ = case
    gradients = network.gradients(inputs(network, 5, seed=1))[1]
    again = from_state(belief.description(), {name: part.clone() for name, part in belief.state().items()})
    assert isinstance(again, Bent) and type(again.plain) is type(belief.plain)
    assert torch.equal(again.covariance(gradients), belief.covariance(gradients))
    single = belief.to(torch.device("cpu"), torch.float32)
    assert_near(single.covariance(gradients), belief.covariance(gradients), 1e-6)


@pytest.mark.parametrize("n_out", [1, 2])
def test_the_curvature_is_what_other_weights_cannot_make_up_for(n_out):
    """v^T E v is the mean over d of min_u |dJ(d) v + J u|^2 in the data's precision + |u|^2 in the prior's."""
    network = dense(n_out)
    x, rho = inputs(network, 6), precisions(6, n_out)
    generator = torch.Generator().manual_seed(4)
    changes = [0.5 * torch.randn(network.n_weights, generator=generator, dtype=torch.float64) for _ in range(3)]
    prior = network._exact_prior
    stds = torch.cat([part.sqrt().flatten() for part in matrices_of(network, prior.var)])
    found = curvature(network, x, rho, changes, stds)
    v = torch.randn(network.n_weights, generator=generator, dtype=torch.float64)
    rows, costs = jacobian(network, x).flatten(0, 1), []
    for change in changes:
        other = copy.deepcopy(network)
        other.marginal = Gaussian.from_moments(network.marginal.mean + change, network.marginal.var)
        moved = (jacobian(other, x).flatten(0, 1) - rows) @ v
        # least squares: data and prior as rows of one system in u
        scale = rho.flatten().sqrt()
        system = torch.cat([scale[:, None] * rows, torch.diag(prior.rho.sqrt())])
        target = torch.cat([-scale * moved, torch.zeros(network.n_weights, dtype=torch.float64)])
        u = torch.linalg.lstsq(system, target[:, None], driver="gelsd").solution[:, 0]
        costs.append(float((system @ u - target).square().sum()))
    white = torch.cat([part.flatten() for part in matrices_of(network, v)]) / stds
    assert float(white @ found @ white) == pytest.approx(sum(costs) / len(costs), rel=1e-8)


def test_bending_adds_the_curvature_of_draws():
    """All of it but for eigenvalues that do not count; variances are nowhere larger than without."""
    network = dense(1)
    x, rho = inputs(network, 8), torch.full((8, 1), 1.0 / NOISE_VAR, dtype=torch.float64)
    y = torch.zeros(8, 1, dtype=torch.float64)
    belief, settings = FORMS["anchored"](network, x, rho), Settings(bend_draws=6)
    assert can_bend(network, belief)
    found = bend(network, belief, x, y, settings=settings)
    assert isinstance(found, Bent)
    generator = torch.Generator().manual_seed(0)
    torch.randperm(8, generator=generator)
    drawn = [settings.bend_share**0.5 * flat_of(network, belief.sample(generator)) for _ in range(3)]
    stds = torch.cat([part.sqrt().flatten() for part in matrices_of(network, network._exact_prior.var)])
    truth = curvature(network, x, rho, [*drawn, *(-change for change in drawn)], stds)
    pulls = torch.cat([part.transpose(0, 1).flatten(0, 1) for part in found.pulls]) * stds[:, None]
    missed = torch.linalg.eigvalsh(truth - pulls @ pulls.T)
    assert float(missed.abs().max()) <= NEGLIGIBLE and float(torch.linalg.eigvalsh(truth)[-1]) > 10 * NEGLIGIBLE
    gradients = network.gradients(inputs(network, 50, seed=1))[1]
    plain, narrower = (part.covariance(gradients).flatten() for part in (belief, found))
    assert bool((narrower <= plain * (1 + 1e-12)).all()) and bool((narrower < 0.9 * plain).any())


def test_some_examples_stand_for_all():
    """Each of them twice in the data: half of the rows, with twice their precision, say the same."""
    network = dense(1)
    half = inputs(network, 8)
    x, y = half.repeat(2, 1), torch.zeros(16, 1, dtype=torch.float64)
    belief = FORMS["full"](network, x, torch.full((16, 1), 1.0 / NOISE_VAR, dtype=torch.float64))
    gradients = network.gradients(inputs(network, 20, seed=1))[1]
    whole = bend(network, belief, x, y).covariance(gradients).flatten()
    some = bend(network, belief, x, y, settings=Settings(bend_rows=8)).covariance(gradients).flatten()
    assert float((some / whole).log().abs().mean()) < 0.2  # not the same eight, but as many of them


def test_where_slopes_never_turn_nothing_is_added():
    network = ready(mlp([3, 1], bmp.Regression(NOISE_VAR)), torch.float64)
    x, rho = inputs(network, 8), torch.full((8, 1), 1.0 / NOISE_VAR, dtype=torch.float64)
    belief = FORMS["full"](network, x, rho)
    assert bend(network, belief, x, torch.zeros(8, 1, dtype=torch.float64)) is belief


def test_trained_networks_predict_with_it(tmp_path):
    """Regressions do, labels do not; a file holds all of it, and the past starts from what is under it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 1, generator=generator) * 2 - 1
    y = (3 * x).sin()
    network = mlp([1, 8, 8, 1], bmp.Regression(0.01))
    bmp.fit(network, x, y, epochs=30, batch_size=10, joint=True, progress=False)
    assert isinstance(network.belief, Bent)
    new = torch.linspace(-2, 2, 50)[:, None]
    bands = network.predict(new).epistemic_var
    network.save(tmp_path / "network")
    again = bmp.load(tmp_path / "network")
    assert torch.equal(again.predict(new).epistemic_var, bands)
    tomorrow = network.as_prior()
    assert torch.equal(tomorrow.predict(new).epistemic_var, bands)
    bmp.fit(tomorrow, x + 2, y, epochs=3, batch_size=10, joint=True, progress=False)
    assert isinstance(tomorrow.belief, Bent) and tomorrow.belief.n_rows == 80
    network.belief = network.belief.plain
    assert bool((network.predict(new).epistemic_var >= bands).all())
    labels = mlp([1, 8, 8, 2], bmp.Softmax())
    bmp.fit(labels, x, (y[:, 0] > 0).long(), epochs=5, batch_size=10, progress=False)
    assert labels.belief is not None and not isinstance(labels.belief, Bent)


def test_examples_are_left_out_of_the_belief_to_first_order():
    """As refreshes do, so that `influence` and the history say the same."""
    x = torch.rand(40, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1
    network = mlp([1, 8, 8, 1], bmp.Regression(0.01))
    trainer = bmp.Trainer(network, x, (3 * x).sin(), batch_size=10, seed=0, joint=True)
    trainer.run(30, progress=False)
    told = trainer.influence(torch.arange(40))
    assert isinstance(network.belief, Bent)
    settled = network.belief.to_first_order.degrees_of_freedom
    assert float(told.leverage.sum()) == pytest.approx(settled, rel=1e-3)
    assert abs(settled - network.belief.degrees_of_freedom) > 0.1
    assert float(told.loo_nll.mean()) == pytest.approx(trainer.history.loo_nll[-1], abs=0.01)
