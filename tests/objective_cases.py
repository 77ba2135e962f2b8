"""Small networks and data for the tests of the objective, in double precision."""

from __future__ import annotations

import torch
from torch import Tensor

import bayesmp as bmp
from bayesmp.basics.settings import SETTINGS
from bayesmp.evidence import Descent, Objective, SmoothFunction
from bayesmp.evidence.descent import DescentState
from bayesmp.evidence.function import Variances
from bayesmp.layers.base import Local
from bayesmp.network.graph import Node


def network_of(sizes: list[int], *, seed: int = 0, noise: float | str = "learn") -> bmp.Network:
    """Dense layers of these sizes with LeakyReLUs between them."""
    layers: list[bmp.Layer] = []
    for k in range(len(sizes) - 1):
        layers += [bmp.Linear(sizes[k], sizes[k + 1]), bmp.LeakyReLU()]
    return bmp.Network(layers[:-1], bmp.Regression(noise), seed=seed)


def data_of(n: int, n_in: int, n_out: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a bent function with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, n_in, generator=generator, dtype=torch.float64)
    mix = torch.randn(n_in, n_out, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, n_out, generator=generator, dtype=torch.float64)
    return x, torch.sin(x @ mix) + 0.2 * noise


def descent_of(
    network: bmp.Network, x: Tensor, y: Tensor, *, weight: Tensor | None = None, over_rows: bool | None = None
) -> Descent:
    """A descent before its first step."""
    function = SmoothFunction(network.graph, network.flat, network.head.latent_mix(network.n_outputs))
    prior = network.exact_prior
    objective = Objective(
        function,
        function.to_vector(prior.mean),
        function.to_vector(prior.rho),
        x,
        network.head.loss(y, network.n_outputs, least_miss=SETTINGS.least_miss),
        torch.ones(len(y), dtype=torch.float64) if weight is None else weight,
        width_counts=SETTINGS.width_counts,
        relevance_counts=SETTINGS.relevance_counts,
    )
    if over_rows is not None:
        objective.is_over_rows = over_rows
    start = function.to_vector(network.start.double())
    state = Descent.start(objective, start, 0.05, SETTINGS)
    return Descent(objective, state, learns_noise=True, learns_width=True)


def random_variances(descent: Descent, *, seed: int = 0) -> list[Variances]:
    """Some variance for each sum of each example, the same whatever the means are."""
    known: dict[int, Tensor] = {}

    def variance(node: Node, local: Local) -> Tensor:
        if node.index not in known:
            generator = torch.Generator().manual_seed(seed + node.index)
            known[node.index] = torch.rand(local.m_out.mean.shape, generator=generator, dtype=torch.float64)
        return known[node.index]

    return [variance for _ in descent.objective.parts()]


__all__ = ["DescentState", "data_of", "descent_of", "network_of", "random_variances"]
