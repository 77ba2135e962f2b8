"""The sequential schedule against the explicit scalar factor graph: same messages, same marginals, to 1e-8."""

from __future__ import annotations

import pytest
import torch

import bayesmp as bmp
from bayesmp.messages.gaussian import Gaussian
from bayesmp.training.schedules.sequential import SequentialVisit, iterations_per_visit, site_share
from tests.oracle import OracleNetwork, damping_rate, n_iterations, pair, split

DENSE = ([bmp.Linear(2, 3), bmp.LeakyReLU(0.1), bmp.Linear(3, 3, bias=False), bmp.ReLU(), bmp.Linear(3, 3)], (2,))
DENSE_SPEC = [("linear", 2, 3, True), ("lrelu", 0.1), ("linear", 3, 3, False), ("lrelu", 0.0), ("linear", 3, 3, True)]
IMAGE = (
    [
        bmp.Conv2d(2, 2, 2, padding=1),
        bmp.LeakyReLU(0.1),
        bmp.MaxPool2d(2),
        bmp.Conv2d(2, 2, 2, stride=1, bias=False),
        bmp.LeakyReLU(0.2),
        bmp.AvgPool2d(1),
        bmp.Flatten(),
        bmp.Linear(2, 3),
    ],
    (2, 3, 3),
)
IMAGE_SPEC = [
    ("conv", 2, 2, 2, 1, 1, True),
    ("lrelu", 0.1),
    ("maxpool", 2),
    ("conv", 2, 2, 2, 1, 0, False),
    ("lrelu", 0.2),
    ("avgpool", 1),
    ("flatten",),
    ("linear", 2, 3, True),
]
HEADS = {
    "regression": (bmp.Regression(0.05), ("regression", 0.05)),
    "softmax": (bmp.Softmax(scale=None, gain=1.0), ("softmax",)),
    "argmax": (bmp.Argmax(scale=None), ("argmax", 0.3, 1.0, 0.1)),
}


def make_pair(layers, spec, head_name, input_shape):
    """The same network twice: ours in float64, and the scalar graph with the same prior."""
    head, head_spec = HEADS[head_name]
    net = bmp.Network(layers, head, seed=3, input_shape=input_shape).to(torch.float64)
    prior = []
    for taus, rhos in zip(net.unpack(net.prior.tau), net.unpack(net.prior.rho), strict=True):
        prior.append({name: pair(taus[name].tolist(), rhos[name].tolist()) for name in taus} or None)
    return net, OracleNetwork(layers=spec, head=head_spec, prior=prior)


def flat(net, tree):
    """The oracle's nested posterior as one flat Gaussian in our order."""
    parts = [split(tree[slot.layer][slot.name]) for slot in net.slots]
    return Gaussian(*(torch.cat([torch.tensor(p[k], dtype=torch.float64).reshape(-1) for p in parts]) for k in (0, 1)))


def traces_of(net):
    """A list that every sweep out of the network adds its trace to; a visit keeps the messages back alone."""
    traces, sweep_out = [], net.graph.sweep_out

    def sweep_and_keep(*args, **options):
        traces.append(sweep_out(*args, **options))
        return traces[-1]

    net.graph.sweep_out = sweep_and_keep
    return traces


def assert_gaussians_close(ours, theirs, rtol=1e-8, atol=1e-8):
    torch.testing.assert_close(ours.rho, theirs.rho, rtol=rtol, atol=atol)
    torch.testing.assert_close(ours.tau, theirs.tau, rtol=rtol, atol=atol)


@pytest.mark.parametrize("head_name", HEADS)
@pytest.mark.parametrize("kind", ["dense", "image"])
def test_a_visit_gives_the_messages_of_the_scalar_graph(kind, head_name):
    layers, shape = DENSE if kind == "dense" else IMAGE
    net, oracle = make_pair(layers, DENSE_SPEC if kind == "dense" else IMAGE_SPEC, head_name, shape)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn((3, *shape), generator=generator, dtype=torch.float64)
    y = (
        torch.randn((3, 3), generator=generator, dtype=torch.float64)
        if head_name == "regression"
        else torch.tensor([0, 2, 1])
    )
    orders = [[2, 0, 1], [0, 1, 2], [1, 2, 0]]

    site, posterior = oracle.visit(None, x.tolist(), y.tolist(), orders=orders, epoch=1)
    visit, traces = SequentialVisit(net, net.prior, x, y, net.head_log_weights), traces_of(net)
    for order in orders:
        visit.iterate(order)
    last = dict(zip(orders[-1], traces[-3:], strict=True))

    assert_gaussians_close(visit.site(), flat(net, site))
    assert_gaussians_close(visit.marginal, flat(net, posterior))
    for n, state in enumerate(visit.examples):
        for k, record in enumerate(oracle.sweep(n)):
            mean, var = (torch.tensor(part, dtype=torch.float64) for part in split(record["forward"]))
            tau, rho = (torch.tensor(part, dtype=torch.float64) for part in split(record["backward"]))
            ours = last[n].locals[k].m_out
            torch.testing.assert_close(ours.mean[0], mean, rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(ours.var[0], var, rtol=1e-8, atol=1e-8)
            assert_gaussians_close(state.arriving[k].map(lambda part: part[0]), Gaussian(tau, rho))


def test_several_epochs_of_damped_sites_agree():
    """Two batches, three epochs: cavities, site replacement and damping, not just one visit."""
    net, oracle = make_pair(DENSE[0], DENSE_SPEC, "argmax", (2,))
    x = torch.randn((4, 2), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 1])
    trainer = bmp.Trainer(net, x, y, batch_size=2, schedule="sequential")
    trainer.run(3)

    sites = [None, None]
    for epoch in (1, 2, 3):
        for b in torch.randperm(2, generator=trainer.schedule.generator(epoch)).tolist():
            rows = trainer.members[b]
            generator = trainer.schedule.generator(epoch, b)
            orders = [torch.randperm(2, generator=generator).tolist() for _ in range(iterations_per_visit(epoch))]
            sites[b], posterior = oracle.visit(
                sites[b], x[rows].tolist(), y[rows].tolist(), orders=orders, epoch=epoch, others=sites[1 - b]
            )
    assert_gaussians_close(net.marginal, flat(net, posterior))


@pytest.mark.parametrize("epoch", [1, 2, 3, 10, 25])
def test_damping_and_iterations_are_those_of_the_paper(epoch):
    assert iterations_per_visit(epoch) == n_iterations(epoch)
    assert site_share(epoch) == pytest.approx(damping_rate(epoch))
