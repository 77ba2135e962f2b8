"""Layers that change nothing change nothing; and layers of a user's own, with and without weights, take full part."""

from dataclasses import dataclass

import pytest
import torch

import bayesmp as bmp
from bayesmp.kernels import chain
from bayesmp.layers.base import NO_MEMORY, Gradient, Layer, Local
from bayesmp.layers.priors import WeightPrior
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.linear import SumMoments
from bayesmp.messages.regime import MOMENTS
from tests.helpers import blobs, is_same, linear_data, linear_posterior

torch.set_num_threads(1)


# --- a layer without weights -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScaleLocal(Local):
    m_out: object
    factor: float

    def back(self, m_back):
        if not isinstance(self.m_out, Moments):
            return [None], {}
        return [Gaussian(self.factor * m_back.tau, self.factor**2 * m_back.rho)], {}

    def tangent(self, d_ins, d_weights):
        return None if d_ins[0] is None else self.factor * d_ins[0]

    def pullback(self, slope):
        return [self.factor * slope]

    def noise(self, below):
        return self.factor**2 * below[0]


class Scale(Layer):
    """y = factor x, element by element."""

    def __init__(self, factor):
        self.factor = float(factor)

    def config(self):
        return {"factor": self.factor}

    def output_shape(self, shape_in):
        return shape_in

    def sweep(self, m_ins, weights, regime=MOMENTS, memory=NO_MEMORY):
        (m_in,) = m_ins
        if not isinstance(m_in, Moments):
            return ScaleLocal(self.factor * m_in, self.factor)
        return ScaleLocal(Moments(self.factor * m_in.mean, self.factor**2 * m_in.var), self.factor)

    def __repr__(self):
        return f"Scale({self.factor:g})"


def body(n_hidden, n_out):
    inner = [bmp.Linear(n_hidden, n_hidden), bmp.ReLU()]
    return [bmp.Linear(2, n_hidden), bmp.LeakyReLU(), *inner, bmp.Linear(n_hidden, n_out)]


def with_identities(layers, place):
    """The same network with layers that change nothing at one place, or at all of them."""
    first, then = layers[0], layers[1:]
    return {
        "start": [bmp.Flatten(), *layers],
        "behind weights": [first, bmp.Flatten(), *then],
        "behind an activation": [first, then[0], Scale(1.0), *then[1:]],
        "end": [*layers, bmp.Flatten()],
        "twice at the end": [*layers, Scale(2.0), Scale(0.5)],
        "everywhere": [bmp.Flatten()] + [part for layer in layers for part in (layer, Scale(1.0), bmp.Flatten())],
    }[place]


PLACES = ["start", "behind weights", "behind an activation", "end", "twice at the end", "everywhere"]
HEADS = {
    "learned noise": lambda: bmp.Regression("learn"),
    "known noise": lambda: bmp.Regression(0.1),
    "argmax": bmp.Argmax,
}


def problem(head):
    if isinstance(head, bmp.Regression):
        return *linear_data(24, n_in=2), 1
    return *blobs(24), 3


def trained(layers, head, x, y, **options):
    network = bmp.Network(layers, head, seed=1)
    history = bmp.fit(network, x, y, batch_size=8, debug=True, **options)
    return network, history


def assert_same(found, truth, x):
    """Everything that training leaves, bit for bit."""
    assert torch.equal(found.marginal.tau, truth.marginal.tau) and torch.equal(found.marginal.rho, truth.marginal.rho)
    assert torch.equal(found.head_log_weights, truth.head_log_weights)
    for name, part in truth.belief.state().items():
        assert torch.equal(found.belief.state()[name], part)
    new = x[:7].float() + 0.1
    for options in ({"joint": True}, {"joint": False}):
        a, b = found.predict(new, **options), truth.predict(new, **options)
        assert is_same(a, b)
    assert torch.equal(found.sample_functions(new, 2), truth.sample_functions(new, 2))


@pytest.mark.parametrize("make_head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize(
    "n_hidden, places, options",
    [(20, PLACES, {}), (4, ["end", "everywhere"], {}), (20, ["everywhere"], {"joint": False})],
    ids=["wide", "exact", "apart"],
)
@pytest.mark.slow
def test_identity_layers_change_nothing_in_the_parallel_schedule(make_head, n_hidden, places, options, monkeypatch):
    """Wide layers (matrix form, own pulls), narrow ones (exact sums), and without shares of sums.

    All by layers: without identities it would be a visit in two calls (dense_chain.py), the same but for rounding.
    """
    monkeypatch.setattr(chain, "product", lambda: None)
    x, y, n_out = problem(make_head())
    truth, told = trained(body(n_hidden, n_out), make_head(), x, y, epochs=3, **options)
    for place in places:
        layers = with_identities(body(n_hidden, n_out), place)
        network, history = trained(layers, make_head(), x, y, epochs=3, **options)
        assert_same(network, truth, x)
        assert history.loo_nll == told.loo_nll and history.column("rejected_share") == told.column("rejected_share")


@pytest.mark.parametrize("make_head", HEADS.values(), ids=HEADS)
def test_flatten_changes_nothing_where_visits_are_two_calls(make_head):
    """As by default: chains of dense layers are chains with Flatten() anywhere, too."""
    x, y, n_out = problem(make_head())
    truth, _ = trained(body(20, n_out), make_head(), x, y, epochs=3)
    layers = [bmp.Flatten()]
    for layer in body(20, n_out):
        layers += [layer, bmp.Flatten()]
    network, _ = trained(layers, make_head(), x, y, epochs=3)
    assert_same(network, truth, x)


@pytest.mark.parametrize("make_head", HEADS.values(), ids=HEADS)
def test_identity_layers_change_nothing_in_the_sequential_schedule(make_head):
    x, y, n_out = problem(make_head())
    x, y = x[:8], y[:8]
    truth, _ = trained(body(3, n_out), make_head(), x, y, epochs=2, schedule="sequential")
    for place in PLACES:
        layers = with_identities(body(3, n_out), place)
        network, _ = trained(layers, make_head(), x, y, epochs=2, schedule="sequential")
        assert_same(network, truth, x)


def test_identity_layers_change_nothing_around_convolutions():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 1, 4, 4, generator=generator), torch.arange(20) % 2

    def layers(*between):
        return [bmp.Conv2d(1, 2, 3), bmp.ReLU(), *between, bmp.AvgPool2d(2), bmp.Flatten(), bmp.Linear(2, 2)]

    truth, _ = trained(layers(), bmp.Argmax(), x, y, epochs=3)
    network, _ = trained([Scale(1.0), *layers(Scale(2.0), Scale(0.5)), bmp.Flatten()], bmp.Argmax(), x, y, epochs=3)
    assert_same(network, truth, x)


def test_a_scale_is_a_scale():
    """Not only the identity: with the factor taken out of the weights' prior, the model is the same one."""
    x, y = linear_data(30, n_in=3)
    prior = {"weight_prior": (0.0, 0.8), "bias_prior": (0.0, 0.8)}
    inner = {"weight_prior": (0.0, 0.8 / 9.0), "bias_prior": (0.0, 0.8 / 9.0)}
    truth = bmp.Network([bmp.Linear(3, 1, **prior)], bmp.Regression(0.1)).to(torch.float64)
    network = bmp.Network([bmp.Linear(3, 1, **inner), Scale(3.0)], bmp.Regression(0.1)).to(torch.float64)
    bmp.fit(truth, x, y, epochs=100)
    bmp.fit(network, x, y, epochs=100)
    torch.testing.assert_close(network.predict(x).mean, truth.predict(x).mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(network.predict(x).epistemic_var, truth.predict(x).epistemic_var, rtol=1e-6, atol=0.0)


def test_a_network_with_an_own_layer_comes_back_from_a_file(tmp_path):
    x, y = linear_data(24, n_in=2)
    network, _ = trained(with_identities(body(4, 1), "behind an activation"), bmp.Regression(0.1), x, y, epochs=2)
    network.save(tmp_path / "network.safetensors")
    again = bmp.load(tmp_path / "network.safetensors", classes=[Scale])
    assert torch.equal(again.predict(x.float()).std, network.predict(x.float()).std)


# --- layers with weights ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SilentLocal(Local):
    """A sweep through y = gain x, without a gradient."""

    m_in: object
    m_out: SumMoments
    gain: Moments
    at_cavity: bool

    def back(self, m_back):
        """One term per sum, treated exactly: messages/linear.py with a fan-in of 1."""
        mean, var = (self.m_in.mean, self.m_in.var) if isinstance(self.m_in, Moments) else (self.m_in, 0.0)
        tau = m_back.tau
        if not self.at_cavity:
            slope = (m_back.tau - m_back.rho * self.m_out.mean) / (1.0 + m_back.rho * self.m_out.input_var)
            tau = slope + m_back.rho * self.m_out.mean
        to_gain = Gaussian((tau * mean).sum(0), (m_back.rho * (mean**2 + var)).sum(0))
        to_input = Gaussian(m_back.tau * self.gain.mean, m_back.rho * (self.gain.mean**2 + self.gain.var))
        return [to_input if isinstance(self.m_in, Moments) else None], {"gain": to_gain}

    def tangent(self, d_ins, d_weights):
        change = self.mean_in * d_weights["gain"]
        return change if d_ins[0] is None else change + d_ins[0] * self.gain.mean

    def pullback(self, slope):
        return [slope * self.gain.mean]

    def noise(self, below):
        return self.m_out.input_var

    @property
    def mean_in(self):
        return self.m_in.mean if isinstance(self.m_in, Moments) else self.m_in


@dataclass(frozen=True)
class GainLocal(SilentLocal):
    def gradient(self, slope, *, n_examples=None):
        """The weights as one row: feature p of an example is a position whose input is x_p at entry p, else 0."""
        return Gradient(torch.diag_embed(self.mean_in[:n_examples]), slope[..., None])


class Gain(Layer):
    """y = gain x, one gain per feature."""

    local = GainLocal

    def __init__(self, n):
        self.n = n

    def weight_shapes(self):
        return {"gain": (self.n,)}

    def weight_priors(self, shape_in, *, is_first, generator, rule="narrow"):
        mean = torch.ones(self.n, dtype=torch.float64)
        return {"gain": WeightPrior(Gaussian.from_moments(mean, torch.full_like(mean, 0.5)), mean)}

    def output_shape(self, shape_in):
        return shape_in

    def sweep(self, m_ins, weights, regime=MOMENTS, memory=NO_MEMORY):
        (m_in,), gain = m_ins, weights["gain"]
        if isinstance(m_in, Moments):
            m_in = m_in if memory.at_input is None else m_in * memory.at_input
            input_var = m_in.var * (gain.mean**2 + gain.var)
            m_out = SumMoments(m_in.mean * gain.mean, input_var + m_in.mean**2 * gain.var, input_var)
        else:
            m_out = SumMoments(m_in * gain.mean, m_in**2 * gain.var, torch.zeros_like(m_in))
        return self.local(m_in, m_out, gain, regime.sees == "cavity")

    def __repr__(self):
        return f"{type(self).__name__}({self.n})"


class SilentGain(Gain):
    local = SilentLocal


@pytest.mark.parametrize("schedule, epochs", [("parallel", 80), ("sequential", 4)])
def test_a_layer_of_ones_own_with_weights_has_the_exact_posterior(schedule, epochs):
    """y_j = gain_j x_j + noise: one weight per output, a tree, so mean and variance are exact; and the joint belief."""
    x, noise = linear_data(30, n_in=3, n_out=3)
    y = x * torch.tensor([2.0, -0.5, 1.0]).double() + 0.3 * (noise - noise.mean(0))
    network = bmp.Network([Gain(3)], bmp.Regression(0.09), input_shape=(3,)).to(torch.float64)
    bmp.fit(network, x, y, epochs=epochs, schedule=schedule, batch_size=8, debug=True)
    predicted = network.predict(x)
    for j in range(3):
        one = torch.ones(1).double().numpy()
        mean, cov = linear_posterior(x[:, j : j + 1].numpy(), y[:, j].numpy(), one, 0.5 * one, 0.09)
        assert float(network.marginal.mean[j]) == pytest.approx(float(mean[0]), rel=1e-6)
        assert float(network.marginal.var[j]) == pytest.approx(float(cov[0, 0]), rel=1e-6)
        torch.testing.assert_close(predicted.epistemic_var[:, j], float(cov[0, 0]) * x[:, j] ** 2)


def test_a_layer_of_ones_own_trains_between_others():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 2, generator=generator)
    y = (x[:, :1] * 2.0).sin() + 0.1 * torch.randn(80, 1, generator=generator)
    layers = [bmp.Linear(2, 20), bmp.LeakyReLU(), Gain(20), bmp.Linear(20, 1)]
    network = bmp.Network(layers, bmp.Regression("learn"))
    history = bmp.fit(network, x, y, epochs=60, batch_size=20, debug=True)
    prediction = network.predict(x)
    assert float((prediction.mean - y).square().mean().sqrt()) < 0.5 * float(y.std())
    assert prediction.std.isfinite().all() and history.loo_nll[-1] < history.loo_nll[0]
    draws = network.sample_functions(x, 3)
    assert draws.isfinite().all() and draws.shape == (3, 80, 1)


def test_shares_of_sums_may_be_asked_for_beside_a_layer_of_ones_own():
    """What such a layer has for inputs nobody knows; a number of them was once looked for, and the run refused."""
    x, y = linear_data(30, n_in=3)
    network = bmp.Network([bmp.Linear(3, 20), bmp.LeakyReLU(), Gain(20), bmp.Linear(20, 1)], bmp.Regression(0.1))
    trainer = bmp.Trainer(network, x, y, batch_size=10, joint=True)
    assert (trainer.schedule.seen_shares == 1.0).all()
    trainer.run(2)
    assert network.predict(x.float()).std.isfinite().all()


def test_a_layer_that_cannot_tell_its_gradient_is_refused_before_anything_is_changed():
    """By name, and with what was learned before still there."""
    x, y = linear_data(20, n_in=3, n_out=3)
    network = bmp.Network([bmp.Linear(3, 3), SilentGain(3)], bmp.Regression(0.1)).to(torch.float64)
    network.marginal = network.marginal.map(lambda part: 2.0 * part)
    before = {name: part.clone() for name, part in network.state().items()}
    with pytest.raises(TypeError, match=r"SilentLocal.*gradient"):
        bmp.fit(network, x, y, epochs=1)
    assert all(torch.equal(part, before[name]) for name, part in network.state().items())


def test_a_layer_that_cannot_tell_its_gradient_trains_one_example_at_a_time():
    """Without a joint belief: predictions take weights as independent, and when to stop must be said."""
    x, y = linear_data(12, n_in=3, n_out=3)
    network = bmp.Network([bmp.Linear(3, 3), SilentGain(3)], bmp.Regression(0.1))
    with pytest.raises(ValueError, match="give a number of epochs"):
        bmp.fit(network, x, y, schedule="sequential")
    before = network.predict(x.float())
    bmp.fit(network, x, y, schedule="sequential", epochs=3)
    after = network.predict(x.float())
    assert network.belief is None and (after.epistemic_var < before.epistemic_var).all()
    assert float((after.mean - y).square().mean()) < 0.5 * float((before.mean - y).square().mean())
