"""A graph that is no chain: h = LeakyReLU(A x), out = C (h + B h), with the sum as a layer of two inputs."""

from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional

import bayesmp as bmp
from bayesmp.layers.base import NO_MEMORY, Layer, Local
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.regime import EXAMPLE_BY_EXAMPLE, MEANS, MOMENTS
from bayesmp.network.graph import Graph

torch.set_num_threads(1)


def parts(message):
    """Mean and variance, also of a known value."""
    return (message.mean, message.var) if isinstance(message, Moments) else (message, torch.zeros_like(message))


@dataclass(frozen=True)
class AddLocal(Local):
    m_ins: tuple
    m_out: object

    def back(self, m_back):
        """N(sum) with the other input integrated out."""
        found = []
        for own, other in (self.m_ins, self.m_ins[::-1]):
            mean, var = parts(other)
            message = Gaussian(m_back.tau - m_back.rho * mean, m_back.rho) ** (1.0 / (1.0 + m_back.rho * var))
            found.append(message if isinstance(own, Moments) else None)
        return found, {}

    def tangent(self, d_ins, d_weights):
        moved = [part for part in d_ins if part is not None]
        return sum(moved[1:], moved[0]) if moved else None

    def pullback(self, slope):
        return [slope, slope]

    def noise(self, below):
        return below[0] + below[1]


class Add(Layer):
    """The sum of two inputs of the same shape, taken as independent."""

    def output_shape(self, shape_in):
        return shape_in

    def sweep(self, m_ins, weights, regime=MOMENTS, memory=NO_MEMORY):
        first, second = m_ins
        if not isinstance(first, Moments) and not isinstance(second, Moments):
            return AddLocal((first, second), first + second)
        (mean, var), (other_mean, other_var) = parts(first), parts(second)
        return AddLocal((first, second), Moments(mean + other_mean, var + other_var))


LAYERS = [bmp.Linear(3, 4), bmp.LeakyReLU(), bmp.Linear(4, 4, bias=False), Add(), bmp.Flatten(), bmp.Linear(4, 2)]
INPUTS = [(0,), (1,), (2,), (2, 3), (4,), (5,)]


def beliefs(layers, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(shape):
        mean = torch.randn(shape, generator=generator, dtype=torch.float64)
        return Moments(mean, 0.1 + 0.1 * torch.rand(shape, generator=generator, dtype=torch.float64))

    drawn = [{name: draw(shape) for name, shape in layer.weight_shapes().items()} for layer in layers]
    return [{name: part.map(lambda p: p.to(dtype)) for name, part in layer.items()} for layer in drawn]


def data(n=5, n_in=3, n_out=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x, tau, rho = (torch.randn(n, size, generator=generator, dtype=torch.float64) for size in (n_in, n_out, n_out))
    return x.to(dtype), Gaussian(tau, rho.square() + 0.3).map(lambda part: part.to(dtype))


def plain(means, x):
    h = functional.leaky_relu(functional.linear(x, means[0]["weight"], means[0]["bias"]), 0.1)
    return functional.linear(h + functional.linear(h, means[2]["weight"]), means[5]["weight"], means[5]["bias"])


def certain(weights):
    """The same means without variance, so that activations bend where they are and nowhere else."""
    return [{name: Moments(part.mean, torch.zeros_like(part.var)) for name, part in layer.items()} for layer in weights]


def means_of(weights):
    return [{name: part.mean for name, part in layer.items()} for layer in weights]


def test_a_graph_without_inputs_is_a_chain():
    chain = Graph([bmp.Flatten(), bmp.Linear(3, 4), bmp.LeakyReLU()])
    assert [(node.inputs, node.output) for node in chain.nodes] == [((0,), 1), ((1,), 2), ((2,), 3)]
    assert [node.is_active for node in chain.nodes] == [False, True, True]
    assert [node.index for node in chain.weight_nodes] == [1]


def test_a_node_cannot_read_what_is_not_written_yet():
    with pytest.raises(AssertionError, match="node 0 reads an edge that is not written yet"):
        Graph([bmp.Linear(3, 3), bmp.ReLU()], inputs=[(2,), (1,)])


@pytest.mark.parametrize("regime", [MOMENTS, MEANS, EXAMPLE_BY_EXAMPLE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sweep_out_goes_through_every_node_once(regime, dtype):
    """Against the layers called by hand."""
    weights, (x, _) = beliefs(LAYERS, dtype), data(dtype=dtype)
    graph = Graph(LAYERS, INPUTS)
    trace = graph.sweep_out(x, weights, regime)
    z = LAYERS[0].sweep([x], weights[0], regime).m_out
    h = LAYERS[1].sweep([z], {}, regime).m_out
    inner = LAYERS[2].sweep([h], weights[2], regime).m_out
    total = Moments(h.mean + inner.mean, h.var + inner.var)
    truth = LAYERS[5].sweep([total], weights[5], regime).m_out
    for found in (trace.outputs, graph.outputs(x, weights, regime)):
        assert torch.equal(found.mean, truth.mean) and torch.equal(found.var, truth.var)
    assert len(trace.locals) == len(LAYERS)


def test_what_a_node_leaves_can_be_replaced():
    weights, (x, _) = beliefs(LAYERS), data()
    seen = []

    def adjust(node, local):
        seen.append(node.index)
        return local if node.index != 3 else AddLocal(local.m_ins, Moments(0.0 * local.m_out.mean, local.m_out.var))

    found = Graph(LAYERS, INPUTS).sweep_out(x, weights, MOMENTS, adjust=adjust)
    assert seen == [0, 1, 2, 3, 4, 5]
    torch.testing.assert_close(found.outputs.mean, weights[5]["bias"].mean.expand(5, 2))


def test_messages_to_an_edge_that_two_nodes_read_multiply():
    weights, (x, m_back) = beliefs(LAYERS), data()
    graph = Graph(LAYERS, INPUTS)
    trace = graph.sweep_out(x, weights, MOMENTS)
    returned = graph.sweep_back(trace, m_back)
    assert returned.arriving[5] is m_back
    (to_sum,), _ = trace.locals[5].back(m_back)
    (to_h, to_inner), _ = trace.locals[3].back(to_sum)
    (around,), to_weight = trace.locals[2].back(to_inner)
    expected = to_h * around
    torch.testing.assert_close(returned.arriving[1].tau, expected.tau)
    torch.testing.assert_close(returned.arriving[1].rho, expected.rho)
    torch.testing.assert_close(returned.to_weights[2]["weight"].tau, to_weight["weight"].tau)
    (to_z,), _ = trace.locals[1].back(expected)
    _, to_first = trace.locals[0].back(to_z)
    torch.testing.assert_close(returned.to_weights[0]["weight"].rho, to_first["weight"].rho)
    assert [sorted(part) for part in returned.to_weights] == [
        ["bias", "weight"],
        [],
        ["weight"],
        [],
        [],
        ["bias", "weight"],
    ]
    assert int(returned.n_rejected) >= 0


@pytest.mark.parametrize("regime", [MOMENTS, MEANS])
@pytest.mark.parametrize("dtype, rtol", [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_push_and_pull_are_adjoint(regime, dtype, rtol):
    """<push(d), s> = <d, gradient(pull(s))> for any change d of all weights and any slope s of the outputs."""
    weights, (x, _) = beliefs(LAYERS, dtype), data(dtype=dtype)
    graph = Graph(LAYERS, INPUTS)
    trace = graph.sweep_out(x, weights, regime)
    change = [{name: part.mean for name, part in layer.items()} for layer in beliefs(LAYERS, dtype, seed=2)]
    pushed = {node.index: moved for node, moved in graph.push(trace, change)}
    assert sorted(pushed) == [0, 1, 2, 3, 4, 5]
    slope = torch.randn(3, *pushed[5].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    above = (slope * pushed[5]).sum((1, 2))
    below = torch.zeros(3, dtype=dtype)
    for node, pulled in graph.pull(trace, slope):
        if node.has_weights:
            matrix = node.layer.to_matrix(change[node.index])
            below += trace.locals[node.index].gradient(pulled).flat().sum(1) @ matrix.flatten()
    torch.testing.assert_close(above, below, rtol=rtol, atol=rtol)


def test_gradients_are_the_jacobian():
    """In all weights of all nodes, h being used twice."""
    weights, (x, _) = certain(beliefs(LAYERS)), data()
    graph = Graph(LAYERS, INPUTS)
    trace = graph.sweep_out(x, weights, MOMENTS)
    torch.testing.assert_close(trace.outputs.mean, plain(means_of(weights), x))
    eye = torch.eye(2, dtype=torch.float64)[:, None, :].expand(-1, len(x), -1)
    truth = torch.func.jacrev(lambda means: plain(means, x))(means_of(weights))
    found = {node.index: trace.locals[node.index].gradient(s) for node, s in graph.pull(trace, eye) if node.has_weights}
    assert sorted(found) == [0, 2, 5]
    for k, gradient in found.items():
        rows = [torch.stack([truth[k][name][b, o] for b in range(5) for o in range(2)]) for name in truth[k]]
        per_row = [LAYERS[k].to_matrix({n: part[r] for n, part in zip(truth[k], rows, strict=True)}) for r in range(10)]
        torch.testing.assert_close(gradient.flat().transpose(0, 1).flatten(0, 1), torch.stack(per_row).flatten(1))


def test_the_same_edge_may_be_read_twice():
    """h + h is 2 h: slopes in it add, messages to it multiply."""
    layers = [bmp.Linear(3, 2), Add()]
    weights, (x, m_back) = beliefs(layers), data()
    graph = Graph(layers, [(0,), (1, 1)])
    trace = graph.sweep_out(x, weights, MOMENTS)
    torch.testing.assert_close(trace.outputs.mean, 2.0 * trace.locals[0].m_out.mean)
    torch.testing.assert_close(graph.outputs(x, weights, MOMENTS).mean, trace.outputs.mean)
    slopes = {node.index: slope for node, slope in graph.pull(trace, torch.ones(1, 5, 2, dtype=torch.float64))}
    assert (slopes[0] == 2.0).all()
    (first, second), _ = trace.locals[1].back(m_back)
    torch.testing.assert_close(graph.sweep_back(trace, m_back).arriving[0].rho, (first * second).rho)


def test_known_inputs_hear_nothing_and_make_no_noise():
    """x + A x, and a Flatten of x beside it: what has no weights below stays known, and takes no part on the way back.

    The noise below a known edge is zero; it used to be looked up at the last node, without end.
    """
    for inputs, layers in (
        ([(0,), (0, 1)], [bmp.Linear(3, 3), Add()]),
        ([(0,), (1,), (1, 2)], [bmp.Flatten(), bmp.Linear(3, 3), Add()]),
    ):
        weights, (x, m_back) = beliefs(layers), data(n_out=3)
        graph = Graph(layers, inputs)
        trace = graph.sweep_out(x, weights, MOMENTS)
        k = len(layers) - 2
        torch.testing.assert_close(trace.outputs.mean, x + trace.locals[k].m_out.mean)
        torch.testing.assert_close(trace.outputs.var, trace.locals[k].m_out.var)
        returned = graph.sweep_back(trace, m_back)
        assert sorted(returned.arriving) == [k, k + 1]
        torch.testing.assert_close(returned.arriving[k].tau, m_back.tau - m_back.rho * x)
        pulled = {node.index: slope for node, slope in graph.pull(trace, torch.ones(2, 5, 3, dtype=torch.float64))}
        assert sorted(pulled) == [k, k + 1]
        change = means_of(beliefs(layers, seed=3))
        pushed = {node.index: moved for node, moved in graph.push(trace, change)}
        assert torch.equal(pushed[k], pushed[k + 1])
        assert (graph.output_noise(trace) == 0.0).all() and graph.output_noise(trace).shape == (5, 3)


def test_noise_is_carried_through_what_stands_above_the_last_weights():
    """Identity layers leave it, an activation scales it by its squared slope, a sum adds up both."""
    below = [bmp.Linear(3, 4), bmp.LeakyReLU(), bmp.Linear(4, 2)]
    (x, _) = data()
    for above in ([], [bmp.Flatten()], [bmp.Flatten(), bmp.Flatten()], [bmp.LeakyReLU(0.3)]):
        layers = below + above
        weights, graph = beliefs(layers), Graph(layers)
        trace = graph.sweep_out(x, weights, MOMENTS)
        noise = trace.locals[2].m_out.input_var
        if above and isinstance(above[0], bmp.LeakyReLU):
            noise = noise * trace.locals[3].slope.square()
        torch.testing.assert_close(graph.output_noise(trace), noise)
        assert (noise > 0).all()
    layers = [*below, bmp.Linear(4, 2), Add()]
    graph = Graph(layers, [(0,), (1,), (2,), (2,), (3, 4)])
    trace = graph.sweep_out(x, beliefs(layers), MOMENTS)
    torch.testing.assert_close(
        graph.output_noise(trace), trace.locals[2].m_out.input_var + trace.locals[3].m_out.input_var
    )
