"""The two schedules are two roads to one posterior: where it is unique they must agree.

In a linear-Gaussian model both are exact in the means, and the joint belief makes the variances exact, too. In a
network with a hidden layer they make different approximations; with features that the prior already holds (so that
both find the same units) the differences are a few per cent of the spread of y.
"""

import pytest
import torch

import bayesmp as bmp
from tests.helpers import linear_data

torch.set_num_threads(1)


def both(make_network, x, y, new, epochs, *, joint=None):
    predictions, histories = [], []
    for schedule, n_epochs in zip(("parallel", "sequential"), epochs, strict=True):
        network = make_network()
        options = {"schedule": schedule, "joint": joint if schedule == "parallel" else None}
        histories.append(bmp.fit(network, x, y, epochs=n_epochs, batch_size=20, **options))
        predictions.append(network.predict(new))
    return *predictions, *histories


@pytest.mark.parametrize("noise_var, tolerance", [(0.05, 1e-4), ("learn", 0.05)])
@pytest.mark.parametrize("n_out", [1, 2])
def test_linear_gaussian_models_agree(n_out, noise_var, tolerance):
    """Up to how far the sequential schedule has converged; a learned noise is judged by each in its own way, and only
    the parallel one knows noise that depends on the input.
    """
    x, y = linear_data(40, n_in=3, n_out=n_out)
    y = y / y.std(0)
    new, _ = linear_data(20, n_in=3, seed=9)

    def make():
        return bmp.Network([bmp.Linear(3, n_out)], bmp.Regression(noise_var, varies=False)).to(torch.float64)

    parallel, sequential, *histories = both(make, x, y, new, (100, 10))
    torch.testing.assert_close(parallel.mean, sequential.mean, rtol=0.0, atol=tolerance)
    torch.testing.assert_close(parallel.std, sequential.std, rtol=tolerance, atol=0.0)
    torch.testing.assert_close(parallel.epistemic_var, sequential.epistemic_var, rtol=2 * tolerance, atol=0.0)
    assert histories[0].loo_nll[-1] == pytest.approx(histories[1].loo_nll[-1], abs=0.02)


def features(spread, noise_var):
    """A hidden layer of six units with given kinks, known up to this variance."""
    weight, bias = torch.linspace(-1.5, 1.5, 6)[:, None], 0.7 * torch.tensor([1.0, -1.0] * 3)
    hidden = bmp.Linear(1, 6, weight_prior=(weight, spread), bias_prior=(bias, spread))
    output = bmp.Linear(6, 1, weight_prior=(torch.tensor([[0.3, -0.3] * 3]), 0.5))
    return bmp.Network([hidden, bmp.LeakyReLU(), output], bmp.Regression(noise_var, varies=False))


@pytest.mark.slow
@pytest.mark.parametrize("noise_var", [0.04, "learn"])
@pytest.mark.parametrize("spread, mean_gap, std_factor", [(0.01, 0.06, 1.05), (0.1, 0.15, 1.15)])
def test_networks_with_a_hidden_layer_agree(spread, mean_gap, std_factor, noise_var):
    """Root mean square gap of the means in units of the std of y, and the ratio of the predictive stds; both pass
    messages.
    """
    generator = torch.Generator().manual_seed(0)
    x = 4.0 * torch.rand(30, 1, generator=generator) - 2.0
    y = (1.2 * x).sin() + 0.2 * torch.randn(30, 1, generator=generator)
    new = torch.linspace(-2.0, 2.0, 21)[:, None]
    parallel, sequential, *_ = both(lambda: features(spread, noise_var), x, y, new, (100, 9), joint=True)
    for prediction in (parallel, sequential):
        error = (prediction.mean - (1.2 * new).sin()).square().mean().sqrt()
        assert float(error) < 0.35 * float(y.std())
    assert float((parallel.mean - sequential.mean).square().mean().sqrt()) < mean_gap * float(y.std())
    ratio = parallel.std / sequential.std
    assert 1.0 / std_factor < float(ratio.min()) and float(ratio.max()) < std_factor
