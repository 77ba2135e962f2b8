"""Every example left out: the distance to the posterior mean, leverages of beliefs that are not exact."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, make_friedman1

import bayesmp as bmp
from bayesmp.basics.settings import Settings
from bayesmp.belief import Plan
from bayesmp.evidence import pass_over_data as evidence
from bayesmp.evidence.balance import find_balance, solve
from bayesmp.evidence.each_left_out import can_leave_each_out, leave_each_out, turning_of
from bayesmp.evidence.leave_one_out import leave_out, outside_share, pull_of, with_own, without_own
from bayesmp.evidence.refresh import refresh
from tests.evidence.test_refresh import NOISE_VAR, linear_network, look, regression
from tests.helpers import blobs, mlp

torch.set_num_threads(1)


def positive(n, size, seed, *, scale=1.0):
    """n random covariances (n, size, size) in float64."""
    root = torch.randn(n, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scale * root @ root.transpose(1, 2) / size


def classes(n, dtype):
    """Three classes that overlap, 36 inputs of which two tell."""
    x, y = blobs(n, n_classes=3, n_in=36, seed=1)
    return x.to(dtype), y


def a_classifier(n=60, hidden=40, *, epochs=30, dtype=torch.float64):
    """A trained network of wide layers."""
    x, y = classes(n, dtype)
    network = mlp((36, hidden, 3), bmp.Argmax(), dtype=dtype)
    trainer = bmp.Trainer(network, x, y, batch_size=20, seed=0)
    trainer.run(epochs, progress=False)
    return trainer


def rough_belief(trainer, rank):
    """The belief over so few anchors, although there is room for all rows."""
    network, x, y = trainer.network, trainer.x, trainer.y
    plan, generator = Plan("anchored", rank, False, 0), torch.Generator().manual_seed(0)
    basis = evidence.make_basis(network, x, plan, network.layout.prior_vars, generator, n_rows=3 * len(x))
    return evidence.Examples(network, basis, x, y, 1.0, keeps=True).ask(network.head_log_weights)[0].belief


def slopes_of(network, x):
    """J (n o, weights) in units of the prior's std, in float64."""
    rows = torch.cat([part.flat() for part in network.gradients(x)[1]], 2).transpose(0, 1).flatten(0, 1).double()
    return rows * torch.cat([var.flatten() for var in network.layout.prior_vars]).double().sqrt()


@pytest.mark.parametrize("n", [3, 12])
def test_leaving_out_from_any_means_is_fitting_again(n):
    """A linear model whose means are not at the posterior mean: the step is the way there, and with it what is left out
    is what fitting again without the example gives, wherever the means are.
    """
    x, generator = torch.randn(n, 3, dtype=torch.float64), torch.Generator().manual_seed(n)
    y = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    network = linear_network(3, 2)
    network.marginal = bmp.Gaussian(
        torch.randn(network.n_weights, generator=generator, dtype=torch.float64) * network.marginal.rho,
        network.marginal.rho,
    )
    belief = look(network, x, y).belief
    m_out, gradients = network.gradients(x)
    covariance = belief.covariance(gradients)
    slope, precision = pull_of(network.head, m_out.mean, covariance, torch.zeros_like(y), y, network.head_log_weights)
    steps = find_balance(network, belief, x, slope, precision).steps
    fitted, _, left_mean, left_var = regression(x, y)
    torch.testing.assert_close(m_out.mean + steps, fitted, rtol=1e-7, atol=1e-9)
    without, _ = without_own(covariance, precision, limit=1.0 - 1e-9)
    shift = (without @ (slope - precision * steps)[..., None])[..., 0]
    torch.testing.assert_close(m_out.mean + steps - shift, left_mean, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(without.diagonal(dim1=1, dim2=2), left_var, rtol=1e-7, atol=1e-9)
    assert float(precision.max()) == pytest.approx(1.0 / NOISE_VAR)


def test_conjugate_gradients_solve_with_a_rough_guess():
    matrix = positive(1, 30, 0)[0] + 0.1 * torch.eye(30, dtype=torch.float64)
    slope = torch.randn(30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rough = torch.linalg.inv(matrix + positive(1, 30, 2, scale=0.05)[0])
    found = solve(lambda v: matrix @ v, lambda v: rough @ v, slope, max_steps=40, tolerance=0.0)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, slope), rtol=1e-7, atol=1e-9)
    exact = torch.linalg.inv(matrix)
    first = solve(lambda v: matrix @ v, lambda v: exact @ v, slope, max_steps=1, tolerance=0.0)
    torch.testing.assert_close(first, exact @ slope)
    nothing = solve(lambda v: matrix @ v, lambda v: rough @ v, torch.zeros_like(slope), max_steps=5, tolerance=0.0)
    assert not bool(nothing.any())


def test_putting_an_example_back_undoes_leaving_it_out():
    without = positive(5, 3, 3)
    precision = torch.rand(5, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    precision[0, 1] = 0.0
    covariance = with_own(without, precision)
    naive = torch.linalg.solve(torch.eye(3, dtype=torch.float64) + without * precision[:, None, :], without)
    torch.testing.assert_close(covariance, naive)
    torch.testing.assert_close(without_own(covariance, precision, limit=1.0 - 1e-9)[0], without)


def test_the_share_of_what_is_outside_makes_leverages_add_up():
    inside, outside = positive(40, 3, 5, scale=0.2), positive(40, 3, 6)
    precision = 0.5 + torch.rand(40, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64)

    def held(share):
        found = torch.linalg.solve(eye + (inside + share * outside) * precision[:, None, :], inside + share * outside)
        return float((found.diagonal(dim1=1, dim2=2) * precision).sum())

    assert outside_share(inside, outside, precision, held(0.37)) == pytest.approx(0.37, abs=0.005)
    assert outside_share(inside, outside, precision, held(1.6)) == pytest.approx(1.6, abs=0.01)
    assert outside_share(inside, outside, precision, 2.0 * held(4.0)) == pytest.approx(4.0, abs=0.02)
    assert outside_share(inside, outside, precision, 0.5 * held(0.0)) < 0.01
    broken = outside - 1e-3 * torch.eye(3, dtype=torch.float64)  # as rounding leaves it where numbers are large
    found = outside_share(1e3 * inside, 1e3 * broken, precision, 100.0)
    assert 0.0 < found < 0.05


def test_a_belief_parts_its_covariance_as_dense_algebra_does():
    """J D^{-1} J^T less its projection on the anchors, in the metric of D."""
    trainer = a_classifier(epochs=3)
    network, x = trainer.network, trainer.x
    with torch.no_grad():
        belief = rough_belief(trainer, 50)
        assert not belief.is_exact
        inside, outside = belief.split_covariance(network.gradients(x)[1])
        torch.testing.assert_close(inside + outside, belief.covariance(network.gradients(x)[1]), rtol=1e-4, atol=1e-7)
        parts = zip(belief.bases, belief.prior_vars, strict=True)
        blocks = [torch.block_diag(*[base.weights(torch.eye(var.shape[1])).to(x)] * len(var)) for base, var in parts]
        root = torch.linalg.cholesky(torch.block_diag(*blocks))
        rows = torch.cat([part.flat() for part in network.gradients(x)[1]], 2).transpose(0, 1) @ root
        span = torch.cat([anchor.formed() for anchor in belief.basis.anchors], 1) @ root
        basis = torch.linalg.svd(span, full_matrices=False).Vh
        rest = rows - rows @ basis.T @ basis
    torch.testing.assert_close(outside, rest @ rest.transpose(1, 2), rtol=2e-3, atol=1e-6)


def test_leverages_and_steps_of_a_rough_belief_are_those_of_dense_algebra():
    """Steps by conjugate gradients exactly; leverages in sums, from random signs."""
    trainer = a_classifier()
    network, x, y = trainer.network, trainer.x, trainer.y
    with torch.no_grad():
        exact = look(network, x, y).belief
        rough = rough_belief(trainer, 60)
        assert exact.is_exact and not rough.is_exact
        m_out, gradients = network.gradients(x)
        covariance = exact.covariance(gradients)
        slope, precision = pull_of(
            network.head, m_out.mean, covariance, torch.zeros_like(m_out.mean), y, network.head_log_weights
        )
        settings = Settings(balance_steps=60, balance_tolerance=1e-12, leverage_draws=16)
        found = find_balance(network, rough, x, slope, precision, settings=settings)
        rows = slopes_of(network, x)
        root = precision.flatten().sqrt()
        held = root[:, None] * (rows @ rows.T) * root
        leverage = torch.linalg.solve(torch.eye(len(held), dtype=held.dtype) + held, held).diagonal().view(60, 3).sum(1)
        prior = network.prior
        away = (network.flat.to_matrices(network.marginal.mean - prior.mean), network.layout.prior_vars)
        coordinates = torch.cat([(d / var.sqrt()).flatten() for d, var in zip(*away, strict=True)])
        hessian = rows.T @ (precision.flatten()[:, None] * rows) + torch.eye(rows.shape[1], dtype=rows.dtype)
        moved = rows @ torch.linalg.solve(hessian, rows.T @ slope.flatten() - coordinates)
    torch.testing.assert_close(found.steps.flatten(), moved, rtol=1e-3, atol=1e-5)
    assert found.leverage is not None
    assert float(found.leverage.sum()) == pytest.approx(float(leverage.sum()), rel=0.06)
    noise = (found.leverage - leverage).square().mean().sqrt()
    assert float(noise) < 0.5 * float(leverage.mean())


@pytest.mark.parametrize("n", [200, 90])
def test_scores_of_a_rough_belief_are_near_those_of_the_exact_one(n):
    """The fewer anchors there are for 600 or 270 rows, the more careful it is; it is never too sure of itself."""
    trainer = a_classifier(n=n)
    network, x, y = trainer.network, trainer.x, trainer.y
    settings = Settings(balance_steps=100, balance_tolerance=1e-8, leverage_draws=20)  # so that no luck is in it

    def score(belief):
        each = leave_each_out(network, belief, x, y, network.head_log_weights, settings=settings)
        return float(network.head.nll(each.outputs, y, network.head_log_weights).mean())

    with torch.no_grad():
        exact = look(network, x, y).belief
        assert exact.is_exact
        truth = score(exact)
        for rank, allowed in ((60, 1.75), (120, 1.25), (240, 1.1)):
            assert 0.98 < score(rough_belief(trainer, rank)) / truth < allowed, rank


def test_scores_of_labels_are_those_of_training_again_without_each_example():
    """On average, not one by one: other features would have been learned."""
    x, y = classes(24, torch.float32)
    losses = []
    for k in range(len(x)):
        stays = torch.arange(len(x)) != k
        other = mlp((36, 40, 3), bmp.Argmax(scale=6.0))
        bmp.Trainer(other, x[stays], y[stays], batch_size=20, seed=0).run(12, progress=False)
        losses.append(-float(other.predict(x[k : k + 1]).log_prob(y[k : k + 1])))
    own = mlp((36, 40, 3), bmp.Argmax(scale=6.0))
    history = bmp.Trainer(own, x, y, batch_size=20, seed=0).run(12, progress=False)
    with_own_label = -float(own.predict(x).log_prob(y).mean())
    truth = float(np.mean(losses))
    assert with_own_label < 0.3 * truth
    assert 0.5 * truth < history.loo_nll[-1] < 1.5 * truth


@pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # few rows, each of which holds its output
def test_scores_of_noisy_targets_are_those_of_training_again_without_each_example():
    """Most rows hold much of their own outputs here. The formula that takes the trained means for the posterior mean is
    off by far: what is missing to it counts as pulls of the rows.
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 4, generator=generator)
    noise = 0.2 * torch.randn(24, 1, generator=generator)
    y = torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3] + noise

    def train(rows):
        network = mlp((4, 30, 1), bmp.Regression(0.05))
        trainer = bmp.Trainer(network, x[rows], y[rows], seed=0, joint=True)
        trainer.run(20, progress=False)
        return trainer

    errors = [train(torch.arange(24) != k).network.predict(x[k : k + 1]).mean.reshape(()) - y[k, 0] for k in range(24)]
    truth = float(torch.stack(errors).square().mean().sqrt())
    trainer = train(torch.arange(24))
    network = trainer.network
    assert trainer.history.loo_error[-1] == pytest.approx(truth, rel=0.3)
    with torch.no_grad():
        m_out, gradients = network.gradients(x)
        covariance = network.belief.covariance(gradients).to(x)
        nothing = torch.zeros_like(y)
        plain, _ = leave_out(network.head, m_out.mean, covariance, nothing, y, network.head_log_weights, limit=0.95)
    assert float((plain.mean - y).square().mean().sqrt()) > 1.5 * truth
    told = trainer.influence(torch.arange(24)).loo_nll.mean()
    assert float(told) == pytest.approx(trainer.history.loo_nll[-1], rel=0.02)


def small_cnn(*, seed=0):
    """For images (1, 8, 8) of ten classes, with weights that are shared over positions."""
    layers = [bmp.Conv2d(1, 8, 3), bmp.LeakyReLU(0.1), bmp.Flatten(), bmp.Linear(288, 10)]
    return bmp.Network(layers, bmp.Argmax(), seed=seed, input_shape=(1, 8, 8))


def test_features_turn_behind_noisy_targets_and_before_shared_weights():
    settings = Settings(turning=0.3)
    assert turning_of(mlp((3, 8, 1), bmp.Regression("learn")), settings) == 0.3
    assert turning_of(mlp((3, 1), bmp.Regression("learn")), settings) == 0.0, "leave-one-out is exact there"
    assert turning_of(mlp((3, 8, 2), bmp.Argmax()), settings) == 0.0
    assert turning_of(small_cnn(), settings) == 0.3


def test_turning_tells_what_new_rows_say():
    """After many epochs rows that are left out of a network that was made with them are judged too well."""
    gaps = {0.0: [], Settings().turning: []}
    for seed in range(3):
        x, y = make_friedman1(2300, n_features=10, noise=1.0, random_state=seed)
        x, y = (torch.as_tensor((part - part[:300].mean(0)) / part[:300].std(0)).float() for part in (x, y))
        network = mlp((10, 30, 1), bmp.Regression("learn"), seed=seed)
        trainer = bmp.Trainer(network, x[:300], y[:300], seed=seed, joint=True)
        trainer.run(300, progress=False)
        constant = network.head_log_weights
        new = -float(network.predict(x[300:]).log_prob(y[300:]).mean())
        for turning, found in gaps.items():
            settings = Settings(turning=turning)
            each = leave_each_out(network, network.belief, trainer.x, trainer.y, constant, settings=settings)
            found.append(float(network.head.nll(each.outputs, trainer.y, constant).mean()) - new)
    plain, turned = (sum(found) / len(found) for found in gaps.values())
    assert plain < -0.04
    assert abs(turned) < 0.7 * abs(plain)


@pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # six rows
def test_noisy_targets_noisy_sweeps_and_many_examples_have_their_own_rules():
    x = torch.randn(6, 36, generator=torch.Generator().manual_seed(0))
    regression = mlp((36, 60, 3), bmp.Regression("learn"))
    bmp.Trainer(regression, x, x[:, :3], seed=0, joint=True).run(
        5, progress=False
    )  # before, activations are taken for noise
    assert can_leave_each_out(regression, x)
    assert not can_leave_each_out(regression, x, settings=Settings(refresh_examples=5))
    assert not can_leave_each_out(regression, torch.randn(700, 36)), "2,100 rows, 2,403 weights"
    trainer = a_classifier(n=24, epochs=1, dtype=torch.float32)
    assert can_leave_each_out(trainer.network, x)
    assert not can_leave_each_out(trainer.network, x, weight=2.0)
    assert not can_leave_each_out(trainer.network, x, settings=Settings(judged_examples=5))
    assert can_leave_each_out(trainer.network, x, may_take_long=True, settings=Settings(judged_examples=5))
    assert can_leave_each_out(trainer.network, x, weight=2.0, may_take_long=True)
    assert not can_leave_each_out(trainer.network, x, weight=9.0, may_take_long=True)
    images, pixels = small_cnn(), torch.randn(6, 1, 8, 8)
    assert not can_leave_each_out(images, pixels)
    assert can_leave_each_out(images, pixels, may_take_long=True)


def test_examples_that_stand_for_several_have_the_leverage_of_one_of_them():
    """Every example twice, and every example once with a weight of two, are the same data."""
    trainer = a_classifier(epochs=5)
    network, x, y = trainer.network, trainer.x, trainer.y
    settings = Settings(balance_steps=80, balance_tolerance=1e-12, leverage_draws=24)
    with torch.no_grad():
        rough = rough_belief(trainer, 60)
        m_out, gradients = network.gradients(x)
        pulls = pull_of(
            network.head,
            m_out.mean,
            rough.covariance(gradients).to(x),
            torch.zeros_like(m_out.mean),
            y,
            network.head_log_weights,
        )
        found = find_balance(network, rough, x, *pulls, weight=2.0, settings=settings)
        rows = slopes_of(network, torch.cat([x, x]))
        root = torch.cat([pulls[1], pulls[1]]).flatten().sqrt()
        held = root[:, None] * (rows @ rows.T) * root
        leverage = torch.linalg.solve(torch.eye(len(held), dtype=held.dtype) + held, held).diagonal()
    assert found.leverage is not None
    assert float(found.leverage.sum()) == pytest.approx(0.5 * float(leverage.sum()), rel=0.06)
    assert not bool(found.steps.any()), "a part of the data does not tell where the posterior mean is"


def test_examples_beside_the_judged_ones_are_heard_but_not_told():
    trainer = a_classifier(n=80, epochs=10)
    network, x, y, constant = trainer.network, trainer.x, trainer.y, trainer.network.head_log_weights
    with torch.no_grad():
        exact = look(network, x, y).belief
        all_of_them = leave_each_out(network, exact, x, y, constant)
        some = leave_each_out(network, exact, x, y, constant, n_judged=30)
    assert some.mean.shape == (30, 3)
    torch.testing.assert_close(some.taken.without, all_of_them.taken.without[:30])
    gap = (some.outputs.mean - all_of_them.outputs.mean[:30]).abs().max()
    assert float(gap) < 0.05 * float(all_of_them.taken.shift.abs().max()), "the others' pulls differ in their variance"


@pytest.mark.parametrize("kind", ["dense", "shared"])
def test_scores_at_the_end_of_a_run_are_those_of_new_images(kind, monkeypatch):
    """More examples than are judged, and a belief over few anchors: as with many images, where leverages that were cut
    at one half made these scores several times too good.
    """
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = torch.as_tensor(x[order] / 16.0).float(), torch.as_tensor(y[order])
    network = small_cnn()
    if kind == "dense":
        network = mlp((64, 40, 10), bmp.Argmax())
    else:
        x = x.view(-1, 1, 8, 8)
    trainer = bmp.Trainer(network, x[:900], y[:900], batch_size=64, seed=0)
    trainer.run(25 if kind == "dense" else 10, progress=False)
    found = refresh(
        network,
        trainer.x,
        trainer.y,
        network.head_log_weights,
        network.head_prior,
        max_examples=900,
        max_rank=256,
        is_last=True,
        settings=Settings(judged_examples=400),
    )
    new = -float(network.predict(x[900:]).log_prob(y[900:]).mean())
    told = -float(network.predict(x[:900]).log_prob(y[:900]).mean())
    assert told < 0.6 * new, "in training they look much better"
    assert 0.6 * new < found.scores["nll"] < 1.4 * new
