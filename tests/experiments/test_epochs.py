"""Data counted twice, on purpose; and the learners beside ours."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp import metrics
from experiments import epochs, learners
from experiments.base import UnavailableError


def line(n=40):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.5, 1.5, (n, 1))
    return x, 0.8 * x[:, 0] + 0.1 * rng.standard_normal(n)


def test_counting_twice_gives_the_posterior_of_data_counted_as_often():
    """One weight and no hidden layer: after n epochs the closed form has n copies of every row. Precisions are those of
    the matrix form, which leaves a row's own share in; means are exact.
    """
    x, y = line()
    network = bmp.Network([bmp.Linear(1, 1, bias=False)], bmp.Regression(0.01))
    trainer = epochs.CountingTwice(network, x, y, batch_size=20)
    trainer.noise_var = 0.01
    for n_epochs in (5, 30):
        trainer.run(n_epochs - trainer.n_epochs, progress=False)
        precision = float(network.prior.rho[0]) + n_epochs * float((x**2).sum()) / 0.01
        mean = (float(network.prior.tau[0]) + n_epochs * float((x[:, 0] * y).sum()) / 0.01) / precision
        alone, counted = n_epochs * x**2 / 0.01, precision
        for _ in range(100):
            counted = float(network.prior.rho[0]) + float((alone / (1.0 + alone / counted)).sum())
        assert float(network.marginal.rho[0]) == pytest.approx(counted, rel=0.025)  # on the way to it
        assert float(network.marginal.mean[0]) == pytest.approx(mean, rel=1e-3)


def sequential(hidden, *, counts_twice, n_epochs):
    x, y = line()
    learner = epochs.Sequential([epochs.Draw(x, y, 0.01, 0)], hidden, counts_twice=counts_twice)
    learner.train(n_epochs)
    return learner.networks[0]


def test_messages_multiplied_in_twice_count_data_as_often():
    """Without hidden layers precisions are nearly those of independent weights: four rounds are four copies of the
    data.
    """
    x, _ = line()
    for counts_twice, copies in ((False, 1), (True, 4)):
        network = sequential((), counts_twice=counts_twice, n_epochs=4)
        design = np.column_stack([x[:, 0], np.ones(len(x))])
        expected = network.prior.rho.numpy() + copies * (design**2).sum(0) / 0.01
        ratio = network.marginal.rho.numpy() / expected
        assert (ratio > 0.8).all() and (ratio <= 1.0 + 1e-9).all(), "what both weights share is not counted for each"
    once, twice = (sequential((8,), counts_twice=counts_twice, n_epochs=12) for counts_twice in (False, True))
    assert (twice.marginal.rho / once.marginal.rho).median() > 4.0


def test_networks_trained_together_have_the_noise_of_their_own_data():
    """Each draw is standardised by its own deviation, so the known noise differs; alone they learn the same."""
    x, y = line(n=12)
    draws = [epochs.Draw(x, y, 0.01, 0), epochs.Draw(x, y[::-1].copy(), 0.3, 0)]
    together = epochs.Sequential(draws, (4,))
    together.train(3)
    for k, draw in enumerate(draws):
        alone = epochs.Sequential([draw], (4,))
        alone.train(3)
        np.testing.assert_allclose(together.predict(k, x), alone.predict(0, x), rtol=1e-6)
    assert together.predict(1, x)[1].min() > 0.3 > together.predict(0, x)[1].min()


def test_ours_does_not_get_surer_and_counting_twice_does():
    x, y = line()
    bands = {}
    for kind in (epochs.Ours, epochs.OursTwice):
        learner, found = kind(x, y, (8,), noise_var=0.01, seed=0), []
        for n_epochs in (20, 120):  # seven times as many
            learner.train(n_epochs)
            _, var = learner.predict(np.array([[0.5]]))
            found.append(float(var[0]) - 0.01)
        bands[kind] = found
    assert 0.95 < bands[epochs.Ours][1] / bands[epochs.Ours][0] < 1.05
    assert bands[epochs.OursTwice][1] < 0.5 * bands[epochs.OursTwice][0]
    assert bands[epochs.OursTwice][1] < bands[epochs.Ours][1] / 10


def test_known_noise_is_scored_as_a_gaussian():
    x, y = line()
    learner = epochs.Ours(x, y, (8,), noise_var=0.01, seed=0)
    learner.train(20)
    mean, var = learner.predict(x)
    found = epochs._scores(learner.predictive(x), y)
    assert found["NLL"] == pytest.approx(metrics.gaussian_nll(mean, var, y), abs=1e-5)
    assert found["coverage"] == metrics.coverage(mean, np.sqrt(var), y, 0.9)


def test_learned_noise_is_scored_with_its_tails_and_where_it_lies():
    """By another road: its probability function tells what the intervals hold, and its slope the density."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1.5, 1.5, (400, 1))
    y = 0.8 * x[:, 0] + 0.3 * np.exp(x[:, 0]) * rng.standard_t(3, 400)
    learner = epochs.Ours(x[:200], y[:200], (8,), noise_var=None, seed=0)
    learner.train(60)
    new, targets = x[200:], y[200:]
    prediction = learner.predictive(new)
    noise = prediction.aleatoric_var.numpy()
    assert noise[new[:, 0] > 1].mean() > 2 * noise[new[:, 0] < -1].mean() and not prediction.is_gaussian
    found = epochs._scores(prediction, targets)
    below = prediction.cdf(targets).numpy()
    assert found["coverage"] == pytest.approx(np.mean((below >= 0.05) & (below <= 0.95)), abs=0.006)
    step = 1e-2
    slope = (prediction.cdf(targets + step) - prediction.cdf(targets - step)).double().numpy() / (2 * step)
    seen = slope > 1e-3  # beyond, float32 cannot tell
    each = -prediction.log_prob(targets).double().numpy()
    assert seen.mean() > 0.9
    np.testing.assert_allclose(each[seen], -np.log(slope[seen]), atol=0.02)
    assert found["NLL"] == pytest.approx(each.mean())
    mean, var = learner.predict(new)
    assert abs(found["NLL"] - metrics.gaussian_nll(mean, var, targets)) > 0.01


def test_noise_of_new_targets_is_found_by_ours():
    x, y = line(200)
    learner = epochs.Ours(x, y, (8,), noise_var=None, seed=0)
    learner.train(60)
    assert float(learner.predictive(x).noise_var) == pytest.approx(0.01, rel=0.3)


def test_ivon_finds_the_noise_of_a_line():
    pytest.importorskip("ivon")
    x, y = line(200)
    learner = learners.Ivon(x, y, (8,), noise_var=None, seed=0)
    learner.train(200)
    mean, var = learner.predict(x)
    assert 0.006 < learner._noise_var < 0.02 and (var > learner._noise_var).all()
    assert 0.8 < metrics.coverage(mean, np.sqrt(var), y) < 0.99


def test_ivon_learns_a_line():
    pytest.importorskip("ivon")
    x, y = line()
    learner = learners.Ivon(x, y, (8,), noise_var=0.01, seed=0)
    learner.train(150)
    mean, var = learner.predict(x)
    assert np.sqrt(np.mean((mean - y) ** 2)) < 0.2 and (var > 0.01).all()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of packages that laplace-torch needs
def test_laplace_has_the_moments_of_the_closed_form_on_a_linear_model():
    """Without hidden layers the posterior is Gaussian, so Laplace is exact for the prior precision it has found."""
    pytest.importorskip("laplace")
    x, y = line()
    learner = learners.Laplace(x, y, (), noise_var=0.01, seed=0)
    learner.train(300)
    design = np.column_stack([x[:, 0], np.ones(len(x))])
    prior = float(torch.as_tensor(learner._fitted.prior_precision).detach().mean())
    covariance = np.linalg.inv(design.T @ design / 0.01 + prior * np.eye(2))
    _, var = learner.predict(x)
    np.testing.assert_allclose(var, np.einsum("ni,ij,nj->n", design, covariance, design) + 0.01, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_laplace_finds_the_noise_that_makes_data_most_likely():
    """A linear model has its evidence in closed form, N(y; 0, design design' / prior + noise); the best of a grid."""
    pytest.importorskip("laplace")
    x, y = line()
    learner = learners.Laplace(x, y, (), noise_var=None, seed=0)
    learner.train(1500)  # to the least squares, nearly
    design = np.column_stack([x[:, 0], np.ones(len(x))])
    prior = float(torch.as_tensor(learner._fitted.prior_precision).detach().mean())

    def evidence(noise_var):
        covariance = design @ design.T / prior + noise_var * np.eye(len(x))
        return -0.5 * (np.linalg.slogdet(covariance)[1] + y @ np.linalg.solve(covariance, y))

    grid = np.geomspace(1e-3, 1e-1, 400)
    best = grid[np.argmax([evidence(noise_var) for noise_var in grid])]
    assert float(torch.as_tensor(learner._fitted.sigma_noise).detach()) ** 2 == pytest.approx(best, rel=0.03)


def test_the_evidence_from_eigenvalues_is_the_one_with_the_determinant():
    """With numbers in place of laplace-torch: -1/2 (log det of the posterior - of the prior + scatter) + likelihood."""
    root = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    curvature, prior, noise = root @ root.T, torch.tensor([0.7]).double(), torch.tensor(0.3).double()  # of rank 3
    fitted = SimpleNamespace(
        prior_precision=prior,
        sigma_noise=noise,
        log_likelihood=torch.tensor(-1.5),
        log_det_prior_precision=4 * prior.log().sum(),
        scatter=torch.tensor(2.0),
    )
    log_det = torch.logdet(curvature / 0.09 + 0.7 * torch.eye(4, dtype=torch.float64))
    found = learners.log_evidence(fitted, torch.linalg.eigvalsh(curvature).clamp_min(0.0))
    assert float(found) == pytest.approx(-1.5 - 0.5 * (float(log_det) - 4 * np.log(0.7) + 2.0))


def test_missing_packages_are_told_with_a_remedy(monkeypatch):
    with pytest.raises(UnavailableError, match="no_such_module is not installed: pip install some-package"):
        learners.require("no_such_module", "some-package")


def test_the_quick_version_runs_and_tells_what_cannot_run(run, tmp_path, monkeypatch):
    monkeypatch.setattr(learners, "require", _refuse)
    status, printed, found = run("epochs", "--quick")
    assert status == 0, printed
    assert {row["method"] for row in found["tables"][0]["rows"]} == {
        "ours",
        "ours, noise learned",
        "ours, counting twice",
        "sequential",
        "sequential, counting twice",
    }
    refused = ("tagi", "laplace", "laplace-learned", "ivon", "ivon-learned")
    assert set(found["missing"]) == {f"cubic, {method}, seed 0" for method in refused}
    assert "not here" in found["missing"]["cubic, tagi, seed 0"]
    assert [picture["file"] for picture in found["pictures"]] == ["epochs.png", "noise.png"]
    assert all((tmp_path / "epochs" / picture["file"]).exists() for picture in found["pictures"])


def test_learned_noise_alone_can_be_run_and_drawn(run, tmp_path):
    status, printed, found = run("epochs", "--quick", "--parts", "ours-learned")
    assert status == 0, printed
    assert [picture["file"] for picture in found["pictures"]] == ["noise.png"]
    (piece,) = found["pieces"]
    assert piece["coverage inside"][-1] > 0.8, "the noise leaves room for means that are not there yet"


def _refuse(module, package):
    raise UnavailableError(f"{package} is not here")
