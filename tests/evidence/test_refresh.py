"""A pass over the data: leaving one out against fitting again without it, and the noise that follows."""

import math

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.evidence import refresh as joint
from bayesmp.evidence.refresh import _NoiseThatFits, leave_out, refresh
from bayesmp.messages.gaussian import Moments
from tests.helpers import blobs, few_anchors, linear_data, linear_posterior, mlp, run_with_past

torch.set_num_threads(1)

NOISE_VAR = 0.09


def regression(x, y, *, n_prior_var=0.8):
    """Closed form of y = [x 1] W^T with one prior for all: moments of the outputs with and without each example."""
    inputs = np.hstack([x.numpy(), np.ones((len(x), 1))])
    mean, var = np.zeros(inputs.shape[1]), np.full(inputs.shape[1], n_prior_var)
    fitted, covariance, left_mean, left_var = [], [], [], []
    for targets in y.numpy().T:
        weight, spread = linear_posterior(inputs, targets, mean, var, NOISE_VAR)
        fitted.append(inputs @ weight)
        covariance.append(np.einsum("bi,ij,bj->b", inputs, spread, inputs))
        each = [
            linear_posterior(np.delete(inputs, k, 0), np.delete(targets, k), mean, var, NOISE_VAR)
            for k in range(len(x))
        ]
        left_mean.append([row @ weight for row, (weight, _) in zip(inputs, each, strict=True)])
        left_var.append([row @ spread @ row for row, (_, spread) in zip(inputs, each, strict=True)])
    return tuple(torch.tensor(np.array(part).T) for part in (fitted, covariance, left_mean, left_var))


def linear_network(n_in=3, n_out=1, head=None, *, var=0.8, dtype=torch.float64):
    layer = bmp.Linear(n_in, n_out, weight_prior=(0.0, var), bias_prior=(0.0, var))
    return bmp.Network([layer], head or bmp.Regression(NOISE_VAR)).to(dtype)


def look(network, x, y, *, max_examples=10_000, max_rank=1024, **options):
    """A refresh with the network's own belief about its head's constant."""
    head_prior = network.head.prior_log_weights()
    with torch.no_grad():
        return refresh(
            network, x, y, network.head_log_weights, head_prior, max_examples=max_examples, max_rank=max_rank, **options
        )


# --- leave one out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_out", [1, 3])
@pytest.mark.parametrize("n", [3, 12])
@pytest.mark.parametrize("dtype, rtol", [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_leaving_out_is_fitting_again_without(n, n_out, dtype, rtol):
    """Bayesian linear regression: mean and variance exact, also with fewer examples than weights."""
    x, y = linear_data(n, n_in=3, n_out=n_out)
    mean, var, left_mean, left_var = regression(x, y)
    covariance = torch.diag_embed(var).to(dtype)
    found, n_clipped = leave_out(
        bmp.Regression(NOISE_VAR), mean.to(dtype), covariance, torch.zeros(n, n_out, dtype=dtype), y.to(dtype),
        torch.zeros(1, dtype=dtype), limit=0.9999,
    )  # fmt: skip
    assert n_clipped == 0
    torch.testing.assert_close(found.mean.double(), left_mean, rtol=rtol, atol=rtol)
    torch.testing.assert_close(found.var.double(), left_var, rtol=10 * rtol, atol=0.0)


def test_leaving_out_correlated_outputs_is_fitting_again_without():
    """Two outputs that share their weights, f = (w x, w x + v): the example is left out as a whole."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 2, 4, generator=generator, dtype=torch.float64)  # (b, o, w): slopes of two outputs
    y = torch.randn(6, 2, generator=generator, dtype=torch.float64)

    def posterior(keep):
        kept, targets = rows[keep].flatten(0, 1), y[keep].flatten()
        covariance = torch.linalg.inv(torch.eye(4, dtype=torch.float64) + kept.T @ kept / NOISE_VAR)
        return covariance @ kept.T @ targets / NOISE_VAR, covariance

    weight, spread = posterior(torch.arange(6))
    covariance = rows @ spread @ rows.transpose(1, 2)
    zero = torch.zeros(6, 2, dtype=torch.float64)
    found, _ = leave_out(bmp.Regression(NOISE_VAR), rows @ weight, covariance, zero, y, zero[0, :1], limit=0.99999)
    for k in range(6):
        weight, spread = posterior(torch.arange(6) != k)
        torch.testing.assert_close(found.mean[k], rows[k] @ weight)
        torch.testing.assert_close(found.var[k], (rows[k] @ spread @ rows[k].T).diagonal())


@pytest.mark.parametrize("turning", [0.0, 0.5])
def test_features_that_turn_take_a_share_of_what_an_example_holds(turning):
    """For one output the error without the example is r / (1 - h) + t h r, and its variance W + t C."""
    x, y = linear_data(12, n_in=3, n_out=1)
    mean, var, _, left_var = regression(x, y)
    zero = torch.zeros(12, 1, dtype=torch.float64)
    found, _ = leave_out(
        bmp.Regression(NOISE_VAR), mean, var[..., None], zero, y, zero[0], limit=0.9999, turning=turning
    )
    residual, held = y - mean, var / NOISE_VAR
    torch.testing.assert_close(y - found.mean, residual / (1.0 - held) + turning * held * residual)
    torch.testing.assert_close(found.var, left_var + turning * var)


class Speaks(bmp.Regression):
    """A head that speaks about its outputs with given precisions."""

    def __init__(self, rho):
        super().__init__(1.0)
        self.rho = rho

    def to_latent(self, m_out, y, log_weights):
        return bmp.Gaussian(self.rho * y, self.rho)


@pytest.mark.parametrize("dtype, rtol", [(torch.float64, 1e-6), (torch.float32, 1e-3)])
def test_leaving_out_outputs_that_hear_almost_nothing(dtype, rtol):
    """A confident classifier speaks about some outputs with a precision of 1e-30, about others with 1; about some not
    at all. (I - C Q)^{-1} C in plain linear algebra; for Q = 0 it is C.
    """
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(5, 3, 3, generator=generator, dtype=torch.float64)
    covariance = 0.05 * root @ root.transpose(1, 2)
    precision = torch.tensor(
        [[1.0, 1e-30, 1e-12], [0.0, 0.0, 0.0], [1e-30, 1e-20, 1e-25], [0.5, 0.0, 1e-18], [1.0] * 3]
    )
    precision = precision.double()
    mean, y = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    without = torch.linalg.solve(
        torch.eye(3, dtype=torch.float64) - covariance @ torch.diag_embed(precision), covariance
    )
    true_mean = mean - (without @ (precision * (y - mean))[..., None])[..., 0]
    one = torch.zeros(1, dtype=dtype)
    found, _ = leave_out(
        Speaks(precision.to(dtype)), mean.to(dtype), covariance.to(dtype), torch.zeros(5, 3, dtype=dtype), y.to(dtype),
        one, limit=0.95,
    )  # fmt: skip
    torch.testing.assert_close(found.var.double(), without.diagonal(dim1=1, dim2=2), rtol=rtol, atol=0.0)
    torch.testing.assert_close(found.mean.double(), true_mean, rtol=rtol, atol=rtol)


def test_noise_that_sweeps_count_weakens_the_example():
    """With noise s in the output's way an example speaks with rho / (1 + rho s): one output, by hand."""
    mean, var, y, noise = (torch.tensor([[v]], dtype=torch.float64) for v in (0.3, 0.02, 1.0, 0.5))
    rho = 1.0 / (NOISE_VAR + noise)
    found, _ = leave_out(
        bmp.Regression(NOISE_VAR), mean, var[..., None], noise, y, torch.zeros(1, dtype=torch.float64), limit=0.95
    )
    without = var / (1.0 - rho * var)
    torch.testing.assert_close(found.var, without)
    torch.testing.assert_close(found.mean, mean - without * rho * (y - mean))


def test_leverages_are_cut_at_the_limit_and_counted():
    """An example that holds its own outputs: nothing would be left without it, so it keeps 1 - limit."""
    mean = torch.zeros(4, 1, dtype=torch.float64)
    leverage = torch.tensor([0.5, 0.94, 0.96, 1.2], dtype=torch.float64)
    covariance = (leverage * NOISE_VAR)[:, None, None]
    found, n_clipped = leave_out(
        bmp.Regression(NOISE_VAR), mean, covariance, mean, mean + 1.0, torch.zeros(1, dtype=torch.float64), limit=0.95
    )
    assert n_clipped == 2
    kept = leverage.clamp_max(0.95)
    torch.testing.assert_close(found.var[:, 0], NOISE_VAR * kept / (1.0 - kept))
    assert found.mean.isfinite().all()


# --- a refresh -------------------------------------------------------------------------------------------------------


def gaussian_scores(y, mean, var):
    squared, total = (y - mean).square(), var + NOISE_VAR
    nll = 0.5 * (squared / total + (2.0 * math.pi * total).log())
    return {"nll": float(nll.mean()), "rmse": float(squared.mean().sqrt())}


@pytest.mark.parametrize("schedule, epochs", [("parallel", 200), ("sequential", 16)])
@pytest.mark.parametrize("n_out", [1, 2])
def test_scores_of_a_linear_network_are_those_of_the_closed_form(n_out, schedule, epochs):
    """Trained to rest, means and joint belief are exact, and so is what they say without each example."""
    x, y = linear_data(14, n_in=3, n_out=n_out)
    network = linear_network(n_out=n_out)
    bmp.fit(network, x, y, epochs=epochs, schedule=schedule)
    mean, var, left_mean, left_var = regression(x, y)
    predicted = network.predict(x)
    torch.testing.assert_close(predicted.mean, mean, rtol=0.0, atol=1e-3)
    torch.testing.assert_close(predicted.epistemic_var, var, rtol=1e-6, atol=0.0)
    found = look(network, x, y)
    assert found.scores == pytest.approx(gaussian_scores(y, left_mean, left_var), rel=1e-3)
    assert found.constant is None and found.n_clipped == 0


@pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # left out, as the closed form says
def test_fewer_examples_than_weights_have_the_scores_of_the_closed_form():
    """The anchored form: 6 rows, 31 weights."""
    x, y = linear_data(6, n_in=30)
    network = linear_network(30)
    bmp.fit(network, x, y, epochs=400)
    assert network.belief.description()["form"] == "anchored"
    *_, left_mean, left_var = regression(x, y)
    settings = Settings(max_leverage=(1.0 - 1e-7, 0.5))
    found = look(network, x, y, settings=settings)
    assert found.scores == pytest.approx(gaussian_scores(y, left_mean, left_var), rel=1e-3)


def test_the_learned_noise_of_a_linear_model_is_near_the_truth():
    """40 points know a variance to sqrt(2 / 36) = 24 %; over seeds the estimate is fair."""
    ratios = []
    for seed in range(6):
        x, y = linear_data(40, n_in=3, noise_std=0.3, seed=seed)
        scale = y.std()
        network = linear_network(head=bmp.Regression("learn"))
        bmp.fit(network, x, y / scale, epochs=60)
        ratios.append(float(network.predict(x).noise_var * scale**2) / 0.09)
    assert all(0.4 < ratio < 2.5 for ratio in ratios)
    assert 0.75 < float(np.mean(ratios)) < 1.35


@pytest.mark.parametrize("start", [1e-5, 0.07, 3.0, 100.0])
@pytest.mark.parametrize("steepness", [0.0, 0.5, 1.0, 1.05, 3.0, 10.0])
def test_the_noise_that_fits_is_found_however_steeply_the_belief_answers(start, steepness):
    """Steepness 1 went to and fro for ever: .004 told of .51, and .51 told of .004."""
    fitting, assumed = _NoiseThatFits(), start
    for _ in range(SETTINGS.noise_rounds):
        told = min(50.0, max(1e-4, 0.2 * (assumed / 0.2) ** -steepness))
        if abs(np.log(told / assumed)) < 0.01:
            break
        assumed = fitting.after(assumed, told)
    assert told == pytest.approx(0.2, rel=0.1) and assumed == pytest.approx(0.2, rel=0.01)


def test_noise_and_belief_come_to_fit_each_other_from_either_side():
    """81 weights, 80 points, one of them far from the others.

    With little noise all examples hold their own outputs and look like much noise when they are left out; with much
    noise the broad outputs explain everything, and none is left. Going to and fro between the two ended at a noise
    variance of 28 for targets of variance 0.5, and training followed; later it still ended anywhere from .09 to .48.
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(80, 2, generator=generator)
    y = (2.0 * x[:, :1]).sin() + 0.1 * torch.randn(80, 1, generator=generator)
    network = mlp([2, 20, 1], bmp.Regression("learn"), seed=2)
    bmp.fit(network, x, y, epochs=14, batch_size=20, joint=True)  # by messages
    assert float(network.predict(x).noise_var) < float(y.var())
    grid, told = network.head.grid, []
    for start in (1e-5, 1e-2, 1.0, 100.0):
        network.head_log_weights = torch.where((grid / start).log().abs() < 0.06, 0.0, -1e4).float()
        found = look(network, x, y)
        told.append(float(network.head.expected(found.constant - found.constant.max())))
    assert max(told) < 1.02 * min(told)


def captured(monkeypatch):
    """What `leave_out` is handed in a refresh."""
    seen = []

    def spy(head, mean, covariance, noise, y, log_weights, *, limit, **rest):
        rho = head.to_latent(Moments(mean, covariance.diagonal(dim1=1, dim2=2)), y, log_weights).rho
        seen.append(float((covariance.diagonal(dim1=1, dim2=2) * rho).sum()))
        return leave_out(head, mean, covariance, noise, y, log_weights, limit=limit, **rest)

    monkeypatch.setattr(joint, "leave_out", spy)
    return seen


def test_leverages_add_up_to_the_degrees_of_freedom(monkeypatch):
    """By themselves where the belief is exact; by one factor for all where it is not, or where part is judged."""
    seen = captured(monkeypatch)
    few_anchors(monkeypatch, 64)
    x, y = linear_data(1100, n_in=10)
    wide = mlp([10, 120, 1], bmp.Regression(NOISE_VAR), dtype=torch.float64)
    small = mlp([10, 5, 1], bmp.Regression(NOISE_VAR), dtype=torch.float64)
    for network, is_exact in ((small, True), (wide, False)):
        seen.clear()
        found = look(network, x, y, max_rank=64)
        assert found.belief.is_exact == is_exact
        assert sum(seen) == pytest.approx(found.belief.degrees_of_freedom, rel=1e-6 if is_exact else 1e-3)
    seen.clear()
    found = look(wide, x, y, max_rank=64, settings=Settings(judged_examples=100))
    n_judged = len(found.outputs)
    assert n_judged >= 100 and sum(seen) == pytest.approx(found.belief.degrees_of_freedom * n_judged / 1100, rel=1e-3)


def test_what_is_left_out_is_as_uncertain_as_what_is_predicted(monkeypatch):
    """The factor that makes leverages add up is about the hold of examples on their own outputs. The variance at other
    inputs, for which they stand when left out, is the belief's own: it was made smaller with them, and no test saw it.
    """
    few_anchors(monkeypatch, 30)
    trainer = run_with_past(150, 100, noise_var=NOISE_VAR)
    network = trainer.network
    found = look(network, trainer.x, trainer.y, max_rank=30)
    own = found.belief.covariance(network.gradients(trainer.x)[1])[:, 0, 0]
    left = found.belief.degrees_of_freedom - found.belief.leverage(network.past)
    share = left / float(own.sum() / NOISE_VAR)
    assert 0.5 < share < 0.9, "else there is nothing to see"
    held = share * own / NOISE_VAR
    is_whole = held < Settings().max_leverage[1]
    assert int((~is_whole).sum()) == found.n_clipped < 10
    expected = own / (1.0 - held) + Settings().turning * own
    torch.testing.assert_close(found.judged[2].var[is_whole, 0], expected[is_whole], rtol=1e-6, atol=0.0)
    surprise = trainer.influence().loo_nll  # of the same belief, by the same rule
    assert float(surprise.mean()) == pytest.approx(found.scores["nll"], rel=1e-6)


@pytest.mark.parametrize("assumed", [0.12, 2.5])
def test_the_variance_of_labels_goes_half_of_the_way_in_one_refresh(assumed):
    """To the geometric mean of what was assumed and what was told; from either side. All of the way it went to and
    fro.
    """
    x, y = blobs(120, spread=1.5)
    network = mlp([2, 6, 3], bmp.Argmax(), dtype=torch.float64)
    bmp.fit(network, x, y, epochs=3)
    head = network.head
    head.know_targets(y, 3)
    grid = head.grid[head.heard]
    weights = network.head_log_weights.clone()
    weights[head.heard] = torch.where((grid / assumed).log().abs() < 0.06, 0.0, -1e4)
    network.head_log_weights = weights
    start = float(head.in_training(weights))
    found = look(network, x, y)
    message = head.to_heard(found.judged[2], found.judged[1]) + head.prior_log_weights()[head.heard]
    told = 1.0 / float(torch.softmax(message, 0) @ (1.0 / grid))
    assert abs(math.log(told / start)) > 0.3, "else half of the way is all of it"
    ended = float(head.in_training(head.prior_log_weights() + found.constant))
    assert ended == pytest.approx(math.sqrt(start * told), rel=0.01)


def test_clipped_examples_are_counted_in_a_refresh():
    """One far example of a broad prior holds its own output; a lower limit clips more."""
    x, y = linear_data(12, n_in=3)
    x[0] *= 1e4
    network = linear_network(var=100.0)
    found = look(network, x, y)
    assert found.n_clipped >= 1 and math.isfinite(found.scores["nll"])
    assert look(network, x, y, settings=Settings(max_leverage=(0.01, 0.01))).n_clipped == 12


@pytest.mark.parametrize("head", [bmp.Regression("learn"), bmp.Softmax(), bmp.Argmax()], ids=repr)
def test_a_refresh_changes_nothing_and_says_the_same_twice(head):
    x, y = linear_data(40, n_in=2) if isinstance(head, bmp.Regression) else blobs(40)
    network = mlp([2, 6, 1 if isinstance(head, bmp.Regression) else 3], head)
    bmp.fit(network, x, y, epochs=3)
    x = x.float()
    y = y.float() if isinstance(head, bmp.Regression) else y
    state = {name: part.clone() for name, part in network.state().items()}
    regime, belief = network.regime, network.belief
    first, second, other = (look(network, x, y, max_examples=20, seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(part, state[name]) for name, part in network.state().items())
    assert network.regime == regime and network.belief is belief
    assert first.scores == second.scores and first.scores != other.scores
    assert torch.equal(first.constant, second.constant) and torch.equal(first.outputs, second.outputs)
    for name, part in first.belief.state().items():
        assert torch.equal(part, second.belief.state()[name])


def test_part_of_the_data_stands_for_all():
    """Every example twice: half of them, counted twice, are the same data."""
    x, y = linear_data(30, n_in=3)
    network = linear_network()
    bmp.fit(network, x, y, epochs=20)
    whole = look(network, torch.cat([x, x]), torch.cat([y, y]))
    half = look(network, torch.cat([x, x]), torch.cat([y, y]), max_examples=30, seed=3)
    ratio = half.belief.degrees_of_freedom / whole.belief.degrees_of_freedom
    assert ratio == pytest.approx(1.0, rel=0.02)
    gradients = network.gradients(x)[1]
    ratios = half.belief.covariance(gradients) / whole.belief.covariance(gradients)
    assert float(ratios.min()) > 0.5 and float(ratios.max()) < 2.0


def test_the_plan_of_a_run_is_known_before_it_starts():
    network = mlp([10, 200, 1], bmp.Regression(NOISE_VAR))
    assert joint.memory_plan(network, 100).is_exact and not joint.memory_plan(network, 3000).is_exact


def test_the_score_of_a_classifier_counts_wrong_classes():
    """Against labels without any relation to x, leaving one out errs; on separable classes it does not."""
    x, y = blobs(60, spread=0.3)
    for labels, low, high in (
        (y, 0.0, 0.05),
        (y[torch.randperm(60, generator=torch.Generator().manual_seed(0))], 0.3, 1.0),
    ):
        network = mlp([2, 8, 3], bmp.Softmax())
        history = bmp.fit(network, x, labels, epochs=20)
        assert low <= history.loo_error[-1] <= high


@pytest.mark.parametrize("seed", [0, 2])
def test_noise_is_not_learned_by_heart(seed):
    """A weak signal in much noise, of which half of all runs took the noise for signal: too little noise in training
    made leave-one-out worse, and was taken for too much of it.
    """
    rng = np.random.default_rng(seed)
    x, new = rng.normal(size=(250, 5)), rng.normal(size=(500, 5))
    y, truth = 0.5 * x[:, 0] + rng.normal(size=250), 0.5 * new[:, 0]
    model = bmp.MPRegressor(random_state=seed).fit(x, y)
    assert np.mean((model.predict(new) - truth) ** 2) < 0.15
    assert model.score(x, y) < 0.5
