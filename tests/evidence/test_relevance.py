"""How much each input matters: the factors against the maximum of the exact evidence, both forms of the curvature, what
they bring, and where they are kept.
"""

import math

import pytest
import torch

import bayesmp as bmp
from bayesmp.basics.settings import SETTINGS
from bayesmp.messages.gaussian import Gaussian
from tests.helpers import linear_data, mlp
from tests.objective_cases import data_of, descent_of, network_of, random_variances

torch.set_num_threads(1)

NOISE_VAR = 0.09


def few_matter(n=120, n_in=6, *, seed=0):
    """A bent function of the first two of some columns, (n, n_in) and (n,)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, n_in, generator=generator)
    y = torch.sin(1.5 * x[:, 0]) + x[:, 1] + 0.2 * torch.randn(n, generator=generator)
    return x, y / y.std()


def trained(head=None, *, epochs=5, n_in=6, seed=0, **options):
    x, y = few_matter(n_in=n_in, seed=seed)
    head = bmp.Regression("learn") if head is None else head
    n_out = 1 if head.has_noise else 2
    trainer = bmp.Trainer(mlp((n_in, 8, n_out), head), x, y if head.has_noise else (y > 0).long(), seed=0, **options)
    trainer.run(epochs, progress=False)
    return trainer


@pytest.mark.parametrize("var", [0.01, 0.3, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_factors_are_those_of_the_largest_evidence(var, dtype):
    """Bayesian linear regression: y ~ N(0, X diag(s r v) X^T + noise). At the factors that a run ends with, neither one
    for all nor one for an input makes it larger.
    """
    x, y = linear_data(n=40, n_in=3)
    x = torch.cat([x, torch.randn(40, 2, generator=torch.Generator().manual_seed(1))], 1)  # which tell nothing
    layer = bmp.Linear(5, 1, weight_prior=(0.0, var), bias_prior=(0.0, var))
    network = bmp.Network([layer], bmp.Regression(NOISE_VAR))
    trainer = bmp.Trainer(network.to(dtype), x, y, batch_size=20, learn_prior=True)
    trainer.run(400, progress=False)
    inputs = torch.cat([x, torch.ones(40, 1)], 1).double()
    logs = torch.tensor([network.prior_width, *network.relevance.tolist()], dtype=torch.float64).log()
    logs.requires_grad_(True)
    width, relevance = logs[0].exp(), logs[1:].exp()
    variances = var * width * torch.cat([relevance, torch.ones(1, dtype=torch.float64)])
    covariance = (inputs * variances) @ inputs.T + NOISE_VAR * torch.eye(40, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(torch.zeros(40, dtype=torch.float64), covariance)
    known = SETTINGS.width_counts * (logs[0] + 1 / width) + SETTINGS.relevance_counts * (logs[1:] + 1 / relevance).sum()
    (0.5 * known - normal.log_prob(y[:, 0].double())).backward()
    assert float(logs.grad.abs().max()) < 0.02
    assert network.relevance[3:].max() < network.relevance[:3].min()
    factors = network.prior.var.double() / var / network.prior_width
    torch.testing.assert_close(factors[:5], network.relevance, rtol=1e-5, atol=0.0)
    assert float(factors[5]) == pytest.approx(1.0, rel=1e-6), "a bias is no input"


@pytest.mark.parametrize("over_rows", [True, False])
@pytest.mark.parametrize("n_out", [1, 2])
def test_the_objective_has_the_prior_that_factors_make(over_rows, n_out):
    """F with factors is F under the prior that has them, but for what is known of them."""
    x, y = data_of(14, 3, n_out)
    network = network_of([3, 4, n_out])
    descent = descent_of(network, x, y, over_rows=over_rows)
    objective, mean, variances = descent.objective, descent.state.mean, random_variances(descent)
    factors = torch.tensor([0.1, 2.0, 0.7], dtype=torch.float64)
    look = objective.look(mean, 0.1, 1.3, variances, relevance=[factors])
    network.prior = Gaussian.from_moments(network.prior.mean.double(), network.prior.var.double())
    network.widen_prior(1.0, [factors])
    plain = descent_of(network, x, y, over_rows=over_rows)
    same = plain.objective.look(mean, 0.1, 1.3, variances)
    known = 0.5 * SETTINGS.relevance_counts * float((factors.log() + 1.0 / factors).sum())
    assert look.value == pytest.approx(same.value + known, rel=1e-9)
    torch.testing.assert_close(look.slope, same.slope)


@pytest.mark.parametrize("n_out", [1, 2])
def test_freedom_by_input_in_both_forms_and_by_autograd(n_out):
    """d (1/2 log det H / P) / d log r_d = -gamma_d / 2 + o / 2 - o / 2: with weights held, log det H - log det P falls
    with P as the freedom says.
    """
    x, y = data_of(14, 3, n_out)
    found = []
    for over_rows in (True, False):
        descent = descent_of(network_of([3, 4, n_out]), x, y, over_rows=over_rows)
        variances, mean = random_variances(descent), descent.state.mean
        factors = torch.tensor([0.1, 2.0, 0.7], dtype=torch.float64)
        curvature = descent.objective.look(mean, 0.1, 1.3, variances, relevance=[factors]).curvature
        slopes = []
        for k in range(3):
            ends = []
            for sign in (1, -1):
                moved = factors.clone()
                moved[k] *= math.exp(sign * 1e-4)
                ends.append(descent.objective.look(mean, 0.1, 1.3, variances, relevance=[moved]).curvature.half_log_det)
            slopes.append((ends[0] - ends[1]) / 1e-4)  # of 2 x 1/2 log det H / P
        found.append(curvature.freedom_by_input(0))
        torch.testing.assert_close(found[-1][:3], torch.tensor(slopes, dtype=torch.float64), rtol=1e-5, atol=1e-7)
        layers = [curvature.freedom_by_input(layer).sum() for layer in (0, 1)]
        assert float(sum(layers)) == pytest.approx(curvature.degrees_of_freedom, rel=1e-8)
    torch.testing.assert_close(*found)


def test_inputs_that_tell_nothing_are_left_out_and_the_rest_is_told_better():
    x, y = few_matter(100, 20)
    scores = []
    for learn_prior in (None, False):
        network = mlp((20, 20, 1), bmp.Regression("learn"))
        bmp.fit(network, x, y, seed=0, learn_prior=learn_prior, progress=False)
        x_new, y_new = few_matter(1000, 20, seed=1)
        scores.append(-float(network.predict(x_new).log_prob(y_new).mean()))
        if learn_prior is None:
            relevance = network.relevance
            assert relevance[:2].min() > 5 * relevance[2:].median()
        else:
            assert network.relevance is None
    assert scores[0] < scores[1] - 0.03


@pytest.mark.parametrize(
    "head, options",
    [(bmp.Regression(0.1), {}), (bmp.Argmax(), {}), (bmp.Regression("learn"), {"learn_prior": False})],
    ids=["noise-given", "messages", "not-asked"],
)
def test_nothing_is_said_of_inputs_where_the_prior_stays(head, options):
    network = trained(head, epochs=2, **options).network
    assert network.relevance is None and network.relevances == ()


def test_labels_tell_of_inputs():
    relevance = trained(bmp.Softmax()).network.relevance
    assert relevance.shape == (6,) and relevance[:2].min() > relevance[2:].max()


def test_shared_weights_have_no_inputs_of_their_own():
    x = torch.randn(40, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    network = bmp.Network([bmp.Conv2d(1, 2, 3), bmp.Flatten(), bmp.Linear(8, 1)], bmp.Regression("learn"))
    trainer = bmp.Trainer(network, x, x[:, 0, 0, 0], batch_size=20)
    trainer.run(2, progress=False)
    assert trainer.has_objective and network.relevance is None


def test_files_hold_the_factors(tmp_path):
    trainer = trained()
    network = trainer.network
    network.save(tmp_path / "model.safetensors")
    loaded = bmp.load(tmp_path / "model.safetensors")
    assert torch.equal(loaded.relevance, network.relevance)
    assert torch.equal(loaded.prior.rho, network.prior.rho)
    trainer.save(tmp_path / "run.safetensors")
    trainer.run(3, progress=False)
    again = bmp.Trainer.load(tmp_path / "run.safetensors", *few_matter())
    again.run(3, progress=False)
    assert torch.equal(again.network.relevance, network.relevance)
    assert torch.equal(again.network.marginal.tau, network.marginal.tau)


def test_the_factors_go_with_the_data_and_with_a_prior_that_is_assigned():
    trainer = trained()
    network = trainer.network
    assert network.relevance is not None
    assert network.as_prior().relevance is None, "they are in its variances"
    network.prior = network.prior
    assert network.relevance is None
    trainer.run(2, progress=False)
    assert network.relevance is None
    torch.testing.assert_close(network.prior.var, network.rule_prior.var.float())
    other = trained().network
    other.reset()
    assert other.relevance is None
    torch.testing.assert_close(other.prior.var.double(), other.rule_prior.var, rtol=1e-6, atol=0.0)


def test_merged_runs_have_factors_between_theirs():
    parts = [trained(seed=seed) for seed in (0, 1)]
    merged = bmp.merge(parts)
    a, b = (part.network.relevance for part in parts)
    torch.testing.assert_close(merged.network.relevance, (a * b).sqrt())
    assert merged.check_invariant() < 1e-4
    merged.run(3, progress=False)
    assert merged.check_invariant() < 1e-4
