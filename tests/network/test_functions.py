"""Draws of whole functions, and what class probabilities are made of."""

import math

import pytest
import torch

import bayesmp as bmp
from bayesmp.messages.gaussian import Moments
from tests.helpers import blobs, linear_data, mlp

torch.set_num_threads(1)

N_DRAWS = 1500


def trained(kind, dtype=torch.float64):
    if kind == "regression":
        x, y = linear_data(30, n_in=2, n_out=2)
        network = mlp([2, 6, 2], bmp.Regression(0.1), dtype=dtype)
    elif kind == "few data":  # more weights than rows: the anchored form
        x, y = linear_data(8, n_in=2)
        network = mlp([2, 20, 1], bmp.Regression(0.1), dtype=dtype)
    elif kind == "classes":
        x, y = blobs(40)
        network = mlp([2, 6, 3], bmp.Softmax(), dtype=dtype)
    else:
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(20, 1, 4, 4, generator=generator, dtype=torch.float64), torch.arange(20) % 2
        layers = [bmp.Conv2d(1, 2, 3), bmp.LeakyReLU(), bmp.Flatten(), bmp.Linear(8, 2), bmp.Flatten()]
        network = bmp.Network(layers, bmp.Argmax(), input_shape=(1, 4, 4)).to(dtype)
    bmp.fit(network, x, y, epochs=6, batch_size=10)
    return network, x


# --- functions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["regression", "few data", "classes", "images"])
def test_draws_have_the_moments_of_the_prediction(kind):
    """The mean to std / sqrt(n), the variance to sqrt(2 / n), each within five of these errors."""
    network, x = trained(kind)
    new = 1.5 * x[:6] + 0.1
    prediction = network.predict(new)
    draws = network.sample_functions(new, N_DRAWS)
    assert draws.shape == (N_DRAWS, 6, network.n_outputs) and draws.dtype == network.dtype
    error = (draws.mean(0) - prediction.mean) / prediction.epistemic_var.sqrt()
    assert float(error.abs().max()) < 5 / math.sqrt(N_DRAWS)
    ratio = draws.var(0) / prediction.epistemic_var
    assert float((ratio - 1.0).abs().max()) < 5 * math.sqrt(2.0 / N_DRAWS)


@pytest.mark.parametrize("kind", ["regression", "few data"])
def test_draws_are_functions_of_all_inputs_at_once(kind):
    """The same seed gives the same functions, whatever other inputs are asked about; a function is smooth."""
    network, x = trained(kind)
    together = network.sample_functions(x, 3, seed=5)
    apart = torch.cat([network.sample_functions(part, 3, seed=5) for part in (x[:2], x[2:])], 1)
    torch.testing.assert_close(apart, together, rtol=1e-10, atol=1e-10)
    near = network.sample_functions(x + 1e-9, 3, seed=5)
    torch.testing.assert_close(near, together, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(network.sample_functions(x, 3, seed=6), together)
    torch.testing.assert_close(network.sample_functions(x, 2, seed=5), together[:2])
    assert torch.equal(network.sample_functions(x.numpy(), 3, seed=5), together)


def test_draws_leave_the_network_and_the_global_random_numbers_alone():
    network, x = trained("regression")
    state = {name: part.clone() for name, part in network.state().items()}
    before = torch.get_rng_state()
    network.sample_functions(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(part, state[name]) for name, part in network.state().items())


def test_draws_in_single_precision_are_near_those_in_double():
    network, x = trained("regression")
    double = network.sample_functions(x, 4)
    single = network.to(torch.float32).sample_functions(x.float(), 4)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-3)


def test_draws_need_a_belief():
    network = mlp([2, 3, 1], bmp.Regression(0.1))
    with pytest.raises(ValueError, match="train the network first"):
        network.sample_functions(torch.zeros(1, 2))
    bmp.fit(network, *linear_data(10, n_in=2), epochs=1)
    network.reset()
    with pytest.raises(ValueError, match="train the network first"):
        network.sample_functions(torch.zeros(1, 2))


@pytest.mark.parametrize("n", [0, -1, 1.5, True, None])
def test_the_number_of_draws_is_checked(n):
    network, x = trained("few data")
    with pytest.raises(ValueError, match="n must be a positive integer"):
        network.sample_functions(x, n)


def test_the_inputs_of_draws_are_checked():
    network, _ = trained("few data")
    with pytest.raises(ValueError, match=r"x must have shape \(n, 2\)"):
        network.sample_functions(torch.zeros(3, 5))


# --- class probabilities ---------------------------------------------------------------------------------------------


def covariances(n, n_classes, scale, seed=0):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(n, n_classes, n_classes, generator=generator, dtype=torch.float64)
    mean = torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    return 1.5 * mean, scale * root @ root.transpose(1, 2) / n_classes


def predict(head, mean, covariance):
    log_weights = head.prior_log_weights().to(mean)
    return head.predict(Moments(mean, covariance.diagonal(dim1=1, dim2=2)), log_weights, covariance)


HEADS = {"softmax": bmp.Softmax(scale=6.0), "argmax": bmp.Argmax(scale=1.5)}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("var, largest, average", [(0.1, 0.005, 0.001), (1.0, 0.025, 0.004)])
def test_probabilities_are_the_average_over_the_outputs(head, n_classes, var, largest, average):
    """100,000 draws of the outputs through the link know a mean to .001; 64 fixed points do well where logits are known
    to a fraction of a nat, and to some .01 where they are not.
    """
    mean, covariance = covariances(5, n_classes, var)
    mean, covariance = mean / head.scale, covariance / head.scale**2
    found = predict(head, mean, covariance)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(100_000, 5, n_classes, generator=generator, dtype=torch.float64)
    outputs = mean + torch.einsum("bij,sbj->sbi", torch.linalg.cholesky(covariance), noise)
    each = torch.softmax(head.scale * outputs, -1)
    error = (found.probs - each.mean(0)).abs()
    assert float(error.max()) < largest and float(error.mean()) < average
    entropy = -torch.special.xlogy(each, each).sum(-1)
    whole = -torch.special.xlogy(each.mean(0), each.mean(0)).sum(-1)
    assert float((found.epistemic - (whole - entropy.mean(0))).abs().max()) < 3 * largest


@pytest.mark.parametrize(
    "head", [bmp.Softmax(), bmp.Argmax(), bmp.Argmax(scale=None), bmp.Softmax(scale=3.0)], ids=repr
)
@pytest.mark.parametrize("scale", [1e-8, 1.0, 100.0])
def test_the_entropy_has_two_parts(head, scale):
    mean, covariance = covariances(20, 4, scale)
    for dtype in (torch.float32, torch.float64):
        found = predict(head, mean.to(dtype), covariance.to(dtype))
        torch.testing.assert_close(found.probs.sum(1), torch.ones(20, dtype=dtype))
        torch.testing.assert_close(found.entropy, found.epistemic + found.aleatoric)
        assert (found.epistemic >= 0).all() and (found.aleatoric >= -1e-5).all()
        assert (found.entropy <= math.log(4) + 1e-5).all()


@pytest.mark.parametrize("head", [bmp.Softmax(), bmp.Argmax(), bmp.Argmax(scale=None)], ids=repr)
def test_certain_outputs_leave_nothing_to_learn(head):
    mean, _ = covariances(20, 4, 1.0)
    for covariance in (torch.zeros(20, 4, 4, dtype=torch.float64), None):
        found = head.predict(Moments(mean, torch.zeros_like(mean)), head.prior_log_weights(), covariance)
        assert float(found.epistemic.max()) < 1e-8
        torch.testing.assert_close(found.aleatoric, found.entropy)


def test_what_all_outputs_share_says_nothing_about_the_class():
    """A common shift of all outputs moves no probability; the opposite shifts of two do."""
    mean = torch.tensor([[1.0, 0.0, 0.0]]).double()
    shared = 25.0 * torch.ones(1, 3, 3).double()
    opposed = 25.0 * torch.tensor([[[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]]).double()
    head = bmp.Softmax(scale=1.0)
    found, certain, other = (predict(head, mean, part) for part in (shared, 0.0 * shared, opposed))
    torch.testing.assert_close(found.probs, certain.probs, rtol=1e-2, atol=1e-3)
    assert float(found.epistemic) < 1e-3 and float(other.epistemic) > 0.3


@pytest.mark.parametrize("joint", [True, False])
def test_a_trained_classifier_tells_both_parts(joint):
    """Far from the data it is the weights that are not known; between two classes it is the label."""
    network, _ = trained("classes", torch.float32)
    grid = torch.cartesian_prod(torch.linspace(-4, 4, 9), torch.linspace(-4, 4, 9))
    found = network.predict(grid, joint=joint)
    assert (found.epistemic >= 0).all() and (found.aleatoric >= -1e-5).all()
    torch.testing.assert_close(found.entropy, found.epistemic + found.aleatoric)
    assert found.probs.isfinite().all() and torch.equal(found.label, found.probs.argmax(1))
