"""The whole oracle against closed-form regression, exact tilted moments, torch's convolution, and its own schedule."""

import math
import pathlib
import random

import numpy as np
import pytest
import torch

from . import leaky_relu
from .messages import Message
from .network import OracleNetwork, damping_rate, n_iterations
from .trees import leaves, split, tree_map
from .truths import assert_trees_close, log_normal, moments, random_prior

# ---- network.py: exactness


def test_one_weight_regression_has_the_exact_posterior():
    """Exact in mean and variance: the graph is a tree. A second iteration and a second visit change nothing."""
    xs, ys, noise_var, prior = [0.5, -1.2, 2.0], [0.4, -0.9, 1.1], 0.3, (0.2, 1.5)
    net = OracleNetwork(layers=[("linear", 1, 1, False)], head=("regression", noise_var), prior=[{"weight": [[prior]]}])
    rho = prior[1] + sum(x * x for x in xs) / noise_var
    tau = prior[0] + sum(x * y for x, y in zip(xs, ys, strict=True)) / noise_var
    site = None
    for orders in ([[0, 1, 2]], [[2, 0, 1], [1, 2, 0]], [[0, 2, 1]]):
        site, posterior = net.visit(site, [[x] for x in xs], ys, orders=orders)
        assert posterior[0]["weight"][0][0] == pytest.approx((tau, rho), rel=1e-12)
    assert site[0]["weight"][0][0] == pytest.approx((tau - prior[0], rho - prior[1]), rel=1e-12)


def test_linear_regression_converges_to_the_exact_means():
    """Several weights and a bias, a loopy graph: only the means are exact, at convergence."""
    rng = np.random.default_rng(3)
    x, y, noise_var = rng.normal(size=(6, 3)), rng.normal(size=6), 0.5
    prior = random_prior([((1, 3), 1)], seed=4)
    net = OracleNetwork(layers=[("linear", 3, 1, True)], head=("regression", noise_var), prior=prior)
    orders = [random.Random(k).sample(range(6), 6) for k in range(60)]
    _, posterior = net.visit(None, x.tolist(), y.tolist(), orders=orders)
    tau, rho = (np.array(part) for part in zip(*leaves(prior), strict=True))
    design = np.hstack([x, np.ones((6, 1))])
    exact = np.linalg.solve(np.diag(rho) + design.T @ design / noise_var, tau + design.T @ y / noise_var)
    assert [t / r for t, r in leaves(posterior)] == pytest.approx(exact.tolist(), abs=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.2])
@pytest.mark.parametrize("x", [1.4, -0.8])
def test_one_weight_below_a_leaky_relu_has_the_exact_tilted_moments(alpha, x):
    """y = lrelu(w x) + noise: one factor that is not Gaussian, a tree, so w's moments are those of the posterior."""
    mean, var, y, noise_var = 0.6 * math.copysign(1, x), 0.5, 0.7, 0.2
    net = OracleNetwork(
        layers=[("linear", 1, 1, False), ("lrelu", alpha)],
        head=("regression", noise_var),
        prior=[{"weight": [[(mean / var, 1 / var)]]}, None],
    )
    _, posterior = net.visit(None, [[x]], [y], orders=[[0], [0]])
    expected = moments(
        lambda w: log_normal(w, mean, var) + log_normal(y, max(w * x, alpha * w * x), noise_var),
        [mean - 8, 0.0, mean + 8],
    )
    tau, rho = posterior[0]["weight"][0][0]
    assert (tau / rho, 1 / rho) == pytest.approx(expected[:2], rel=1e-8)


# ---- network.py: wiring


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 0), (3, 2, 1), (2, 2, 0), (2, 1, 1)])
def test_convolution_agrees_with_torch(kernel, stride, padding):
    """Forward moments by conv2d. With almost no evidence (noise 1e10) rho is the gradient of a sum of convolutions."""
    prior = random_prior([((2, 1, 1, 1), 2), None, ((3, 2, kernel, kernel), 3), None], seed=5)
    noise_var = 1e10
    specs = [("conv", 1, 2, 1, 1, 0, True), ("lrelu", 0.1), ("conv", 2, 3, kernel, stride, padding, True), ("flatten",)]
    net = OracleNetwork(layers=specs, head=("regression", noise_var), prior=prior)
    image = np.random.default_rng(6).normal(size=(1, 4, 5))
    size = 3 * ((4 + 2 * padding - kernel) // stride + 1) * ((5 + 2 * padding - kernel) // stride + 1)
    net.visit(None, [image.tolist()], [[1.0] * size], orders=[[0]])
    layers = net.sweep(0)
    a_mean, a_var = (torch.tensor(part, dtype=torch.float64) for part in split(layers[1]["forward"]))
    w_tau, w_rho = (torch.tensor(part, dtype=torch.float64) for part in split(prior[2]["weight"]))
    b_tau, b_rho = (torch.tensor(part, dtype=torch.float64) for part in split(prior[2]["bias"]))
    w_mean, w_var = w_tau / w_rho, 1 / w_rho

    def conv(inputs, weight, bias=None):
        return torch.nn.functional.conv2d(inputs, weight, bias, stride=stride, padding=padding)

    mean, var = (torch.tensor(part, dtype=torch.float64) for part in split(layers[2]["forward"]))
    torch.testing.assert_close(mean, conv(a_mean, w_mean, b_tau / b_rho))
    torch.testing.assert_close(var, conv(a_var, w_mean**2 + w_var, 1 / b_rho) + conv(a_mean**2, w_var))
    assert layers[3]["forward"] == list(leaves(layers[2]["forward"]))  # flatten: c, h, w

    square_a = (a_mean**2 + a_var).requires_grad_()
    square_w = (w_mean**2 + w_var).requires_grad_()
    to_input = torch.autograd.grad(conv(square_a, square_w.detach()).sum() / noise_var, square_a)[0]
    to_weight = torch.autograd.grad(conv(square_a.detach(), square_w).sum() / noise_var, square_w)[0]
    close = {"rtol": 1e-7, "atol": 0.0}
    rho_input, rho_weight = split(layers[1]["backward"])[1], split(layers[2]["weight"])[1]
    torch.testing.assert_close(torch.tensor(rho_input, dtype=torch.float64), to_input, **close)
    torch.testing.assert_close(torch.tensor(rho_weight, dtype=torch.float64), to_weight, **close)
    rho_bias = torch.tensor(split(layers[2]["bias"])[1], dtype=torch.float64)
    torch.testing.assert_close(rho_bias, torch.full((3,), size / 3 / noise_var, dtype=torch.float64), **close)


def test_a_kernel_as_large_as_the_image_is_a_linear_layer():
    prior = random_prior([((3, 2, 2, 2), 3), None, ((2, 3, 1, 1), 2), None], seed=7)
    flat = [
        None,
        {"weight": [list(leaves(row)) for row in prior[0]["weight"]], "bias": prior[0]["bias"]},
        None,
        {"weight": [list(leaves(row)) for row in prior[2]["weight"]], "bias": prior[2]["bias"]},
    ]
    conv_specs = [("conv", 2, 3, 2, 1, 0, True), ("lrelu", 0.1), ("conv", 3, 2, 1, 1, 0, True), ("flatten",)]
    linear_specs = [("flatten",), ("linear", 8, 3, True), ("lrelu", 0.1), ("linear", 3, 2, True)]
    head = ("argmax", 0.3, 1.0, 0.1)
    xs, ys = np.random.default_rng(8).normal(size=(3, 2, 2, 2)).tolist(), [0, 1, 0]
    orders = [[0, 1, 2], [2, 0, 1]]
    _, a = OracleNetwork(layers=conv_specs, head=head, prior=prior).visit(None, xs, ys, orders=orders)
    _, b = OracleNetwork(layers=linear_specs, head=head, prior=flat).visit(None, xs, ys, orders=orders)
    assert_trees_close([(x,) for leaf in leaves(a) for x in leaf], [(x,) for leaf in leaves(b) for x in leaf])


def test_first_layer_kernel_with_disjoint_windows_is_a_linear_layer_on_each_window():
    """One iteration, noise only at the outputs: each window's message at the prior, multiplied over the windows."""
    prior = random_prior([((1, 1, 2, 2), 1), None], seed=9)
    net = OracleNetwork(layers=[("conv", 1, 1, 2, 2, 0, True), ("flatten",)], head=("regression", 0.4), prior=prior)
    image = np.random.default_rng(10).normal(size=(1, 2, 4))
    conv_site, _ = net.visit(None, [image.tolist()], [[0.3, -0.8]], orders=[[0]])
    flat = [{"weight": [list(leaves(prior[0]["weight"]))], "bias": prior[0]["bias"]}]
    total = None
    for k, y in enumerate([0.3, -0.8]):
        window = image[0, :, 2 * k : 2 * k + 2].ravel().tolist()
        linear = OracleNetwork(layers=[("linear", 4, 1, True)], head=("regression", 0.4), prior=flat)
        site, _ = linear.visit(None, [window], [y], orders=[[0]])
        total = site if total is None else tree_map(lambda a, b: (a[0] + b[0], a[1] + b[1]), total, site)
    assert_trees_close(conv_site, total)


@pytest.mark.parametrize("pool", ["maxpool", "avgpool"])
def test_pooling_drops_the_rest_and_average_pooling_divides(pool):
    prior = random_prior([((2, 1, 1, 1), 2), None, None, ((2, 4), 2)], seed=11)
    specs = [("conv", 1, 2, 1, 1, 0, True), (pool, 2), ("flatten",), ("linear", 4, 2, True)]
    net = OracleNetwork(layers=specs, head=("softmax",), prior=prior)
    image = np.random.default_rng(12).normal(size=(1, 3, 5)).tolist()
    net.visit(None, [image], [1], orders=[[0]])
    layers = net.sweep(0)
    below = np.array(layers[0]["forward"])  # (c, h, w, moments)
    above = np.array(layers[1]["forward"])
    assert above.shape == (2, 1, 2, 2)
    if pool == "avgpool":
        windows = below[:, :2, :4].reshape(2, 1, 2, 2, 2, 2).mean(axis=(2, 4))  # (c, rows, columns, moments)
        assert above[..., 0] == pytest.approx(windows[..., 0])
        assert above[..., 1] == pytest.approx(windows[..., 1] / 4)
    backward = np.array(layers[0]["backward"])
    assert (backward[:, 2] == 0).all() and (backward[:, :, 4] == 0).all()
    assert (backward[:, :2, :4, 1] > 0).all()


# ---- network.py: the schedule


def small_net():
    prior = random_prior([((2, 1, 2, 2), 2), None, None, None, ((3, 4), 3)], seed=13)
    specs = [("conv", 1, 2, 2, 1, 0, True), ("lrelu", 0.1), ("maxpool", 2), ("flatten",), ("linear", 4, 3, True)]
    net = OracleNetwork(layers=specs, head=("argmax", 0.3, 1.0, 0.1), prior=prior)
    rng = np.random.default_rng(14)
    return net, prior, rng.normal(size=(3, 1, 3, 5)).tolist(), [0, 2, 1]


def add(a, b, weight_a=1.0, weight_b=1.0):
    return tree_map(lambda p, q: tuple(weight_a * s + weight_b * t for s, t in zip(p, q, strict=True)), a, b)


def test_visit_replaces_the_site_and_damps_it():
    net, prior, xs, ys = small_net()
    site, posterior = net.visit(None, xs, ys, orders=[[0, 1, 2]])
    again, same_posterior = net.visit(site, xs, ys, orders=[[0, 1, 2]])
    assert_trees_close(again, site)  # epoch 1: the old site leaves no trace, the data count once
    assert_trees_close(same_posterior, posterior)
    assert_trees_close(posterior, add(prior, site))

    assert damping_rate(1) == 1.0 and [n_iterations(e) for e in (1, 2, 3, 25)] == [1, 1, 2, 13]
    fresh, _ = net.visit(None, xs, ys, orders=[[0, 1, 2], [2, 1, 0]], epoch=1)
    damped, posterior = net.visit(site, xs, ys, orders=[[0, 1, 2], [2, 1, 0]], epoch=3)
    rate = 0.9 + 0.1 * math.exp(-0.6)
    assert_trees_close(damped, add(site, fresh, 1 - rate, rate))
    assert_trees_close(posterior, add(prior, damped))


def test_site_is_the_product_of_the_examples_messages_and_others_join_the_cavity():
    net, prior, xs, ys = small_net()
    others = tree_map(lambda leaf: (0.3, 0.8), prior)
    site, posterior = net.visit(None, xs, ys, orders=[[1, 0, 2], [0, 2, 1]], others=others)
    assert_trees_close(posterior, add(add(prior, others), site))
    total = None
    for n in range(3):
        records = net.sweep(n)
        messages = [{"weight": r["weight"], "bias": r["bias"]} if r["weight"] else None for r in records]
        total = messages if total is None else add(total, messages)
    assert_trees_close(site, total)
    merged = OracleNetwork(layers=net.specs, head=net.head, prior=add(prior, others))
    assert_trees_close(merged.visit(None, xs, ys, orders=[[1, 0, 2], [0, 2, 1]])[0], site)


def test_the_second_example_sees_the_first_ones_messages_at_once():
    """Examples 0 then 1 in one iteration = example 1 alone at the posterior of example 0."""
    net, _prior, xs, ys = small_net()
    _, after_first = net.visit(None, xs[:1], ys[:1], orders=[[0]])
    alone = OracleNetwork(layers=net.specs, head=net.head, prior=after_first)
    alone.visit(None, xs[1:2], ys[1:2], orders=[[0]])
    net.visit(None, xs[:2], ys[:2], orders=[[0, 1]])
    for layer, expected in zip(net.sweep(1), alone.sweep(0), strict=True):
        assert_trees_close(layer["forward"], expected["forward"])
        assert_trees_close(layer["backward"], expected["backward"], rel=1e-7)


def test_second_forward_sweep_uses_cavities_below_and_stored_messages_above():
    """One example twice through linear, lrelu, linear: the second forward sweep by hand from the first's records."""
    prior = random_prior([((2, 1), 2), None, ((1, 2), 1)], seed=15)
    specs = [("linear", 1, 2, True), ("lrelu", 0.1), ("linear", 2, 1, True)]
    net = OracleNetwork(layers=specs, head=("regression", 0.2), prior=prior)
    _, posterior = net.visit(None, [[0.9]], [0.5], orders=[[0]])
    first = net.sweep(0)
    net.visit(None, [[0.9]], [0.5], orders=[[0], [0]])
    second = net.sweep(0)
    assert_trees_close(second[0]["forward"], first[0]["forward"])  # a single example: its cavity is the prior
    mean = prior[2]["bias"][0][0] / prior[2]["bias"][0][1]
    var = 1 / prior[2]["bias"][0][1]
    for i in range(2):
        m_z = Message.from_moments(*first[0]["forward"][i])
        stored = Message(*first[1]["backward"][i])
        a = leaky_relu.to_output(m_z, stored, 0.1)
        assert second[1]["forward"][i] == pytest.approx((a.mean, a.var))
        m_a, m_w = a * stored, Message(*posterior[2]["weight"][0][i])
        mean += m_a.mean * m_w.mean
        var += m_a.var * m_w.mean**2 + (m_a.mean**2 + m_a.var) * m_w.var
    assert second[2]["forward"][0] == pytest.approx((mean, var))


def test_the_oracle_imports_nothing_but_the_standard_library():
    for path in pathlib.Path(__file__).parent.glob("*.py"):
        if path.name.startswith("test_") or path.name == "truths.py":
            continue
        imports = [line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]
        allowed = ("import math", "from typing", "from dataclasses", "from collections.abc", "from .")
        assert all(line.startswith(allowed) for line in imports), path.name
