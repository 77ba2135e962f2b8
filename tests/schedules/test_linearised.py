"""Networks of wide dense layers take activations as linear around their inputs' means, and stay calm doing so."""

import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import train_test_split

import bayesmp as bmp
from bayesmp.gaussian import Moments
from bayesmp.metrics import accuracy, nll
from bayesmp.regime import LINEAR, MOMENTS
from tests.helpers import blobs, mlp

LOADERS = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}


@pytest.mark.parametrize("leak", [0.0, 0.1])
def test_a_linearised_activation_is_its_value_and_slope_at_the_mean(leak):
    """The limit of narrow inputs: E and Var of LeakyReLU(x) / scale for x ~ N(mean, scale^2 var), scale -> 0."""
    mean, var = torch.tensor([-2.0, -0.3, 0.4, 5.0]).double(), torch.tensor([0.5, 2.0, 3.0, 0.1]).double()
    layer, scale = bmp.LeakyReLU(leak), 1e-4
    found = layer.sweep([Moments(mean, var)], {}, LINEAR)
    limit = layer.sweep([Moments(mean, scale**2 * var)], {}, MOMENTS)
    torch.testing.assert_close(found.m_out.mean, limit.m_out.mean)
    torch.testing.assert_close(found.m_out.var, limit.m_out.var / scale**2)
    torch.testing.assert_close(found.slope, limit.slope)


@pytest.mark.parametrize(
    "sizes, options, expected",
    [
        ([40, 36, 3], {}, True),
        ([40, 36, 34, 3], {}, True),
        ([40, 16, 3], {}, False),  # the last layer is exact
        ([3, 36, 3], {}, False),  # the first one is
        ([40, 3], {}, False),  # a single layer
        ([40, 36, 3], {"joint": False}, False),
        ([40, 36, 3], {"schedule": "sequential"}, False),
    ],
)
def test_which_networks_are_linearised(sizes, options, expected):
    x, y = blobs(30, n_in=sizes[0])
    network = mlp(sizes, bmp.Argmax())
    bmp.Trainer(network, x, y, batch_size=10, **options).run(1)
    assert network.regime == (LINEAR if expected else MOMENTS)
    network.reset()
    assert network.regime == MOMENTS


def test_targets_with_noise_are_not_fitted_by_linear_activations():
    """Friedman's function among 35 inputs that say nothing, noise std 1: the linear regime takes noise for signal,
    finds .15 of it and an NLL of 1.05 instead of .84.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1200, 40, generator=generator)
    f = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    x, y = (x - 0.5) / 0.29, (f + torch.randn(1200, generator=generator) - 14.4) / 5
    network = mlp([40, 36, 36, 1], bmp.Regression("learn"))
    bmp.fit(network, x[:400], y[:400], epochs=60, batch_size=50, progress=False)
    found = network.predict(x[400:])
    assert network.regime == MOMENTS
    assert 5 * float(found.noise_var.sqrt()) > 0.9
    assert -float(found.log_prob(y[400:]).mean()) < 0.92


def test_training_sees_a_share_of_the_variance_and_predictions_all_of_it():
    x, y = blobs(40, n_in=40)
    network = mlp([40, 36, 3], bmp.Argmax(), dtype=torch.float64)
    trainer = bmp.Trainer(network, x, y, batch_size=10)
    trainer.run(2, progress=False)
    for seen, own in zip(trainer.schedule._weights(), network.weights(), strict=True):
        for name in own:
            torch.testing.assert_close(seen[name].mean, own[name].mean)
            torch.testing.assert_close(seen[name].var, trainer.schedule.settings.linear_share * own[name].var)


def test_predictions_of_a_linearised_network_are_those_of_its_means_with_linear_variances(tmp_path):
    """By hand: outputs of the network of means; variances of one sweep pushed through slopes and squared weights, of
    the joint belief through the gradients.
    """
    x, y = blobs(40, n_in=40)
    network = mlp([40, 36, 3], bmp.Argmax(), dtype=torch.float64)
    bmp.fit(network, x, y, epochs=4, batch_size=10)
    prediction = network.predict(x, joint=False)

    (first, second), x = [own for own in network.weights() if own], x.double()
    hidden = x @ first["weight"].mean.T + first["bias"].mean
    hidden_var = x.square() @ first["weight"].var.T + first["bias"].var
    slope = torch.where(hidden < 0, 0.1, 1.0).double()
    mean = (slope * hidden) @ second["weight"].mean.T + second["bias"].mean
    second_moment = second["weight"].mean.square() + second["weight"].var
    var = (slope.square() * hidden_var) @ second_moment.T + (slope * hidden).square() @ second["weight"].var.T
    torch.testing.assert_close(prediction.mean, mean)
    torch.testing.assert_close(prediction.epistemic_var, var + second["bias"].var)

    joint = network.predict(x)
    torch.testing.assert_close(joint.mean, mean)
    gradients = gradients_by_hand(x, slope, slope * hidden, second["weight"].mean)
    torch.testing.assert_close(joint.epistemic_var, quadratic(network.belief, gradients), rtol=1e-6, atol=1e-9)

    network.save(tmp_path / "model.safetensors")
    again = bmp.load(tmp_path / "model.safetensors")
    assert again.regime == LINEAR
    assert torch.equal(again.predict(x, joint=False).probs, prediction.probs)
    assert torch.equal(again.predict(x).probs, joint.probs)


def gradients_by_hand(x, slope, active, weight):
    """Gradients of every output at every example in the matrices of both layers, (b, o, ...), by the chain rule."""
    one = torch.ones(len(x), 1, dtype=torch.float64)
    below, above = torch.cat([x, one], 1), torch.cat([active, one], 1)
    first = torch.einsum("oh,bh,bi->bohi", weight, slope, below)
    second = torch.einsum("op,bi->bopi", torch.eye(len(weight), dtype=torch.float64), above)
    return first, second


def quadratic(belief, gradients):
    """(b, o): J H^{-1} J^T of each output, one solve at a time."""
    n, n_outputs = gradients[0].shape[:2]
    found = torch.empty(n, n_outputs, dtype=torch.float64)
    for b, o in torch.cartesian_prod(torch.arange(n), torch.arange(n_outputs)):
        own = [part[b, o] for part in gradients]
        found[b, o] = sum((part * solved).sum() for part, solved in zip(own, belief.solve(own), strict=True))
    return found


@pytest.mark.parametrize("name, limit", [("digits", 0.2), ("breast cancer", 0.15), ("wine", 0.2)])
def test_small_tables_train_to_the_end_without_a_burst(name, limit):
    """Echoes of an example's own label through all layers once grew without bound on the first two; a last batch of
    five rows once upset the third.
    """
    x, y = LOADERS[name](return_X_y=True)
    x = (x - x.mean(0)) / (x.std(0) + 1e-9)
    x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)
    network = bmp.Network(
        [bmp.Linear(x.shape[1], 32), bmp.LeakyReLU(), bmp.Linear(32, int(y.max()) + 1)], head=bmp.Argmax()
    )
    bmp.fit(network, x_train, y_train, epochs=40)
    probs = network.predict(x_test).probs
    assert nll(probs, y_test) < limit and accuracy(probs, y_test) > 0.93
