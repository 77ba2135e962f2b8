"""Scale against samples of the product and conditioning of the joint moments, and in networks."""

import pytest
import torch

import bayesmp as bmp
from bayesmp.messages.gaussian import Gaussian, Moments
from tests.messages.truth import DTYPES, assert_proper

torch.set_num_threads(1)
CASES = [(0.5, 2.0, -1.5, 0.3), (0.0, 1.0, 0.0, 1.0), (3.0, 1e-3, 1.0, 4.0), (-2.0, 0.5, 0.1, 0.0)]


def swept(x, w, dtype=torch.float64):
    """One feature, N(x), times a weight N(w)."""
    m_in = Moments(*(torch.tensor([[part]], dtype=dtype) for part in x))
    weight = Moments(*(torch.tensor([part], dtype=dtype) for part in w))
    return m_in, weight, bmp.Scale(1).sweep([m_in], {"weight": weight})


@pytest.mark.parametrize("x_mean, x_var, w_mean, w_var", CASES)
def test_moments_and_messages_are_those_of_the_product(x_mean, x_var, w_mean, w_var):
    """Both ways back: the posterior of x, and of w, under the joint moments of the factor and the product."""
    generator = torch.Generator().manual_seed(0)
    x = x_mean + x_var**0.5 * torch.randn(1_000_000, generator=generator, dtype=torch.float64)
    w = w_mean + w_var**0.5 * torch.randn(1_000_000, generator=generator, dtype=torch.float64)
    cov = torch.stack([x, w, x * w]).cov()
    m_in, weight, local = swept((x_mean, x_var), (w_mean, w_var))
    assert float(local.m_out.mean) == pytest.approx(float((x * w).mean()), abs=0.02)
    assert float(local.m_out.var) == pytest.approx(float(cov[2, 2]), rel=0.02)

    tau, rho = 0.9, 0.6
    (to_x,), to_w = local.back(Gaussian(*(torch.tensor([[part]], dtype=torch.float64) for part in (tau, rho))))
    marginals = m_in * to_x, weight * to_w["weight"]
    for k, (prior_mean, marginal) in enumerate(zip((x_mean, w_mean), marginals, strict=True)):
        gain = float(cov[k, 2] / (cov[2, 2] + 1 / rho))
        expected = prior_mean + gain * (tau / rho - float((x * w).mean()))
        assert float(marginal.mean) == pytest.approx(expected, abs=0.02)
        assert float(marginal.var) == pytest.approx(float(cov[k, k]) - gain * float(cov[k, 2]), rel=0.02, abs=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0.0, 1e-6, 1e6])
def test_extremes_stay_proper(dtype, size):
    for x, w in (((size, 1.0), (1.0, size)), ((1.0, size), (-size, 1.0)), ((0.0, 0.0), (size, size))):
        _, _, local = swept(x, w, dtype)
        assert_proper(local.m_out)
        for tau, rho in ((0.0, 0.0), (1e3, 0.0), (-1e6, 1e6)):
            (to_x,), to_w = local.back(Gaussian(*(torch.tensor([[part]], dtype=dtype) for part in (tau, rho))))
            assert_proper(to_x)
            assert_proper(to_w["weight"])
        gradient = local.gradient(torch.ones(1, 1, 1, dtype=dtype)).flat()
        torch.testing.assert_close(gradient, torch.full_like(gradient, x[0]))


@pytest.mark.parametrize("shape", [(3,), (2, 4, 4), (3, 4)])
def test_inputs_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError, match="takes vectors of 5 features"):
        bmp.Scale(5).output_shape(shape)


@pytest.mark.parametrize("options", [{}, {"schedule": "sequential", "epochs": 30}])
def test_both_ways_of_training_find_the_weights(options):
    """y = -2 x_1 + x_2 / 2 + N(0, 0.01): as good as linear in the weights, so the function is that of least squares."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 2, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[-2.0], [0.5]], dtype=torch.float64)
    y = y + 0.1 * torch.randn(100, 1, generator=generator, dtype=torch.float64)
    covariance = (100.0 * x.T @ x + 4.0 * torch.eye(2, dtype=torch.float64)).inverse()
    mean = covariance @ (100.0 * x.T @ y + 4.0)
    given = bmp.Linear(2, 1, bias=False, weight_prior=(1.0, 1e-6))
    network = bmp.Network([bmp.Scale(2), given], bmp.Regression(0.01))
    bmp.fit(network, x, y, **options)
    found = network.predict(x.float())
    torch.testing.assert_close(found.mean.double(), x @ mean, rtol=0.0, atol=0.005)
    std = (x @ covariance * x).sum(1, keepdim=True).sqrt()
    torch.testing.assert_close(found.epistemic_var.double().sqrt(), std, rtol=0.3, atol=0.0)


def test_a_network_for_images_trains_and_is_saved(tmp_path):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 2, 4, 4, generator=generator)
    y = (x[:, 0].mean((1, 2)) > 0).long()
    layers = [
        bmp.Scale(2),
        bmp.Conv2d(2, 3, 3),
        bmp.Scale(3),
        bmp.Softplus(),
        bmp.AvgPool2d(2),
        bmp.Flatten(),
        bmp.Linear(3, 2),
    ]
    network = bmp.Network(layers, bmp.Argmax())
    bmp.fit(network, x, y, epochs=10, batch_size=20, debug=True)
    found = network.predict(x)
    assert float((found.probs.argmax(1).cpu() == y).double().mean()) > 0.8
    network.save(tmp_path / "network.safetensors")
    assert torch.equal(bmp.load(tmp_path / "network.safetensors").predict(x).probs, found.probs)
