"""Linear-Gaussian networks against Bayesian linear regression in closed form.

One weight: the factor graph is a tree and both schedules are exact in mean and variance. Several weights: all examples
are tied to all weights, the graph has loops; at convergence the means are those of the closed form and the variances
are not (a fully factorised posterior cannot hold the correlations), so only the means are compared exactly.
"""

import numpy as np
import pytest
import torch

import bayesmp as bmp
from tests.helpers import linear_data, linear_posterior

EPOCHS = {"parallel": 200, "sequential": 14}  # both far past convergence
NOISE_VAR = 0.07


def truth(x, y, layer, prior, noise_var=NOISE_VAR):
    """Means (o, i + 1) and stds of weights and biases, each output on its own; prior: weight and bias (mean, var)."""
    inputs = np.hstack([x.numpy(), np.ones((len(x), 1))]) if layer.has_bias else x.numpy()
    mean, var = (np.hstack([p.numpy() for p in parts]) for parts in zip(*prior, strict=True))
    found = [linear_posterior(inputs, y[:, o].numpy(), mean[o], var[o], noise_var) for o in range(layer.n_out)]
    return np.stack([m for m, _ in found]), np.stack([np.sqrt(np.diag(c)) for _, c in found])


pytestmark = pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # given noise is any here


def given_prior(n_in, n_out, seed=0):
    """Non-trivial (mean, var) of the weights (o, i) and of the biases (o, 1)."""
    rng = np.random.default_rng(seed)
    return [
        (torch.tensor(rng.normal(size=shape)), torch.tensor(rng.uniform(0.2, 1.5, size=shape)))
        for shape in ((n_out, n_in), (n_out, 1))
    ]


def linear_layer(prior, *, bias=True):
    (w_mean, w_var), (b_mean, b_var) = prior
    return bmp.Linear(
        w_mean.shape[1],
        w_mean.shape[0],
        bias=bias,
        weight_prior=(w_mean, w_var),
        bias_prior=(b_mean[:, 0], b_var[:, 0]) if bias else None,
    )


def trained(layer, x, y, schedule, *, batch_size=13, dtype=torch.float64, noise_var=NOISE_VAR, epochs=None):
    network = bmp.Network([layer], bmp.Regression(noise_var)).to(dtype)
    bmp.fit(network, x, y, epochs=epochs or EPOCHS[schedule], schedule=schedule, batch_size=batch_size, debug=True)
    own = network.weights()[0].values()
    means, variances = (
        np.hstack([getattr(m, part).double().reshape(layer.n_out, -1).numpy() for m in own]) for part in ("mean", "var")
    )
    return network, means, np.sqrt(variances)


@pytest.mark.parametrize("n_out", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 7, 100])
@pytest.mark.parametrize("schedule", EPOCHS)
def test_one_weight_per_output_has_the_exact_mean_and_variance(schedule, batch_size, n_out):
    x, y = linear_data(23, n_in=1, n_out=n_out)
    prior = given_prior(1, n_out)[:1]
    layer = linear_layer([*prior, prior[0]], bias=False)
    true_mean, true_std = truth(x, y, layer, prior)
    epochs = 4 if schedule == "sequential" else 80
    network, mean, std = trained(layer, x, y, schedule, batch_size=batch_size, epochs=epochs)
    np.testing.assert_allclose(mean, true_mean, rtol=1e-9)
    np.testing.assert_allclose(std, true_std, rtol=1e-9)

    new = torch.tensor([[-2.0], [0.5]], dtype=torch.float64)
    predicted = network.predict(new)
    np.testing.assert_allclose(predicted.mean, new @ torch.tensor(true_mean.T), rtol=1e-9)
    np.testing.assert_allclose(predicted.epistemic_var, new**2 @ torch.tensor(true_std.T**2), rtol=1e-9)
    np.testing.assert_allclose(predicted.var, new**2 @ torch.tensor(true_std.T**2) + NOISE_VAR, rtol=1e-9)


@pytest.mark.parametrize("schedule", EPOCHS)
def test_one_bias_is_the_exact_mean_of_its_data(schedule):
    """Inputs of zero leave the bias alone: its posterior is that of a mean, and the weight keeps its prior."""
    x, y = linear_data(23, n_in=1)
    prior = given_prior(1, 1)
    _, mean, std = trained(linear_layer(prior), 0.0 * x, y, schedule, epochs=6 if schedule == "sequential" else 80)
    true_mean, true_std = truth(0.0 * x, y, linear_layer(prior), prior)
    np.testing.assert_allclose(mean, true_mean, rtol=1e-9)
    np.testing.assert_allclose(std, true_std, rtol=1e-9)


@pytest.mark.parametrize("n_out", [1, 3])
@pytest.mark.parametrize("batch_size", [7, 40])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-4), (torch.float32, 1e-3)])
@pytest.mark.parametrize("schedule", EPOCHS)
def test_several_weights_have_the_exact_means(schedule, dtype, tolerance, batch_size, n_out):
    """Means only, at convergence; in units of the posterior std."""
    x, y = linear_data(40, n_in=4, n_out=n_out)
    prior = given_prior(4, n_out)
    true_mean, true_std = truth(x, y, linear_layer(prior), prior)
    _, mean, std = trained(linear_layer(prior), x, y, schedule, batch_size=batch_size, dtype=dtype)
    assert np.abs((mean - true_mean) / true_std).max() < tolerance
    assert np.abs(np.log(std / true_std)).max() < 0.2, "not exact, but these inputs are nearly uncorrelated"


@pytest.mark.parametrize("n, n_in, epochs", [(60, 20, 150), (15, 40, 500)])
def test_many_weights_have_the_exact_means_too(n, n_in, epochs):
    """Means only: at the fixed point the slopes are exact, the precisions are not.

    Also with more weights than examples, where an example's own message is a large part of what is known about it.
    """
    x, y = linear_data(n, n_in=n_in)
    prior = given_prior(n_in, 1)
    layer = linear_layer(prior)
    true_mean, true_std = truth(x, y, layer, prior)
    _, mean, _ = trained(layer, x, y, "parallel", batch_size=8, epochs=epochs)
    assert np.abs((mean - true_mean) / true_std).max() < 1e-6


def test_correlated_inputs_still_have_the_exact_means():
    """Two inputs that differ by a tenth of their size: the variances are far off, the means are not.

    Parallel only: its metric knows the correlation. The sequential schedule moves one weight at a time and is still
    a posterior std away after 80 epochs.
    """
    x, y = linear_data(40, n_in=2)
    x[:, 1] = x[:, 0] + 0.1 * x[:, 1]
    prior = given_prior(2, 1)
    true_mean, true_std = truth(x, y, linear_layer(prior), prior)
    _, mean, std = trained(linear_layer(prior), x, y, "parallel", epochs=100)
    assert np.abs((mean - true_mean) / true_std).max() < 1e-6
    assert (std[0, :2] < 0.5 * true_std[0, :2]).all(), "where the scheme is not exact"


@pytest.mark.parametrize("schedule", EPOCHS)
def test_given_priors_stay_the_posterior_where_data_say_nothing(schedule):
    """An input that is always zero, and noise so large that targets mean nothing."""
    x, y = linear_data(20, n_in=3)
    x[:, 1] = 0.0
    prior = given_prior(3, 1)
    epochs = 4 if schedule == "sequential" else 40
    _, mean, std = trained(linear_layer(prior), x, y, schedule, epochs=epochs)
    (w_mean, w_var), _ = prior
    assert mean[0, 1] == pytest.approx(w_mean[0, 1].item()) and std[0, 1] == pytest.approx(w_var[0, 1].sqrt().item())
    _, mean, std = trained(linear_layer(prior), x, y, schedule, noise_var=1e12, epochs=epochs)
    np.testing.assert_allclose(mean[0, :3], w_mean[0], atol=1e-6)
    np.testing.assert_allclose(std[0, :3], w_var[0].sqrt(), rtol=1e-6)


@pytest.mark.parametrize("schedule", EPOCHS)
def test_more_noise_gives_a_wider_posterior(schedule):
    x, y = linear_data(20, n_in=1)
    prior = given_prior(1, 1)
    stds = [trained(linear_layer(prior), x, y, schedule, noise_var=v, epochs=8)[2] for v in (0.01, 0.1, 1.0)]
    assert (stds[0] < stds[1]).all() and (stds[1] < stds[2]).all()
