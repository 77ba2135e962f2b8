"""Visits of the parallel schedule to chains of dense layers, on the CPU: two calls around the head's message
(kernels/chain.py) in place of the loops of graph.py, which say what they do.

In a small network a visit is some 700 operations of a few microseconds, whatever they work on; here it is thirty.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.basics.settings import Settings
from bayesmp.kernels import chain
from bayesmp.kernels.chain import address
from bayesmp.layers.activation import LeakyReLU, ReLU
from bayesmp.layers.linear import Linear
from bayesmp.layers.reshape import Flatten
from bayesmp.messages.gaussian import Moments
from bayesmp.network.graph import Node
from bayesmp.network.network import Network
from bayesmp.sites.sites import SiteIndex, Sites
from bayesmp.training.schedules.base import Batch, VisitInfo
from bayesmp.training.schedules.network_metric import NetworkMetric
from bayesmp.training.schedules.own_pulls import OwnPulls

MAX_ROOM = 2**24  # numbers to work in (64 MB): beyond that it is products that cost, not calls


class Visitor(Protocol):
    """What a visit needs of the parallel schedule."""

    network: Network
    sites: Sites
    settings: Settings
    metrics: NetworkMetric
    own_pulls: OwnPulls
    signs: Tensor
    share: Tensor
    seen_shares: Tensor
    listens: bool

    @property
    def step_length(self) -> float: ...

    @property
    def stretch(self) -> float: ...

    @property
    def messages_per_example(self) -> int: ...

    def trusting_belief(self) -> Tensor: ...


class DenseChain:
    """How a network's layers follow each other.

    Args:
        network: one for which `is_chain` is true.
    """

    def __init__(self, network: Network) -> None:
        nodes = _bent(network)
        self.layers: list[tuple[int, Linear, float]] = []  # index, layer, leak of the activation behind it
        for k in range(0, len(nodes), 2):
            layer, behind = nodes[k].layer, nodes[k + 1].layer if k + 1 < len(nodes) else None
            leak = behind.leak if isinstance(behind, LeakyReLU) else 1.0
            assert isinstance(layer, Linear)
            self.layers.append((nodes[k].index, layer, leak))
        self.starts = [min(slot.start for slot in network.slots if slot.layer == k) for k, _, _ in self.layers]

    @staticmethod
    def is_chain(network: Network) -> bool:
        """Whether dense layers and activations take turns, with or without Flatten(), and are the library's own."""
        nodes = _bent(network)
        return (
            len(nodes) % 2 == 1
            and len(nodes) < 2 * chain.MAX_LAYERS
            and all(type(node.layer) is Linear for node in nodes[::2])
            and all(type(node.layer) in (LeakyReLU, ReLU) for node in nodes[1::2])
            and all(node.inputs == (node.index,) for node in network.graph.nodes)
        )

    def visit(self, schedule: Visitor, batch: Batch) -> VisitInfo | None:
        """A visit, or None, and nothing has changed, where the loops of the graph are to do it."""
        network, sites = schedule.network, schedule.sites
        site, product = sites.row(batch.index), chain.product()
        if site is None or product is None or network.past is not None:
            return None
        marginal, n_outputs = network.marginal, network.n_outputs
        x, outputs, answers = (
            batch.x.contiguous(),
            torch.empty(2, len(batch.x), n_outputs, dtype=torch.float32),
            torch.zeros(3, dtype=torch.float64),
        )
        settings = schedule.settings
        visit = chain.Visit(
            n_layers=len(self.layers),
            n=len(x),
            n_weights=len(sites.origin),
            listens=schedule.listens,
            n_sites=len(sites),
            moment_rows=settings.moment_rows,
            n_data=schedule.metrics.n_data,
            metric_share=float(schedule.share),
            factor=settings.precision_factor,
            stretch=schedule.stretch,
            max_reach=settings.max_reach,
            step_length=schedule.step_length,
            product=product,
            layers=self._layers_of(schedule, batch.index),
            x=address(x),
            tau=address(marginal.tau),
            rho=address(marginal.rho),
            slope=address(site[0]),
            own_rho=address(site[1]),
            origin=address(sites.origin),
            shift=address(sites.shift),
            offset=address(sites.offset),
            prior_rho=address(network.prior.rho),
            signs=address(schedule.signs),
            outputs=address(outputs),
            answers=address(answers),
        )
        tensors = (x, marginal.tau, marginal.rho, *site, sites.origin, network.prior.rho)
        size = kernels.chain_room(visit, tensors)
        if size is None or size > MAX_ROOM:
            return None
        room = torch.empty(size, dtype=torch.float32)
        visit.room = address(room)
        chain.out(visit)
        m_out = Moments(outputs[0], outputs[1])
        message = network.head.to_latent(m_out, batch.y, schedule.trusting_belief())
        metrics = network.head.train_metrics(m_out, batch.y, network.head_log_weights)
        tau, rho = message.tau.contiguous(), message.rho.contiguous()
        visit.head_tau, visit.head_rho = address(tau), address(rho)
        chain.back(visit)
        step, change, n_rejected = answers.unbind()
        return VisitInfo(
            step=step.expand(len(self.layers)),
            n_rejected=n_rejected,
            n_messages=schedule.messages_per_example * len(x),
            max_change=change,
            metrics=metrics,
        )

    def _layers_of(self, schedule: Visitor, index: SiteIndex) -> ctypes.Array[chain.Dense]:
        """What the calls know of each layer: sizes, the share of its variance that sweeps see, its metric."""
        shares = (schedule.seen_shares * schedule.network.sum_share).tolist()
        found = []
        for (k, layer, leak), start in zip(self.layers, self.starts, strict=True):
            metric, pulls = schedule.metrics[k], schedule.own_pulls.get(k)
            found.append(
                chain.Dense(
                    *(layer.n_in, layer.n_out, start, layer.has_bias, metric.knows_inputs),
                    *(leak, shares[k], schedule.metrics.prior_rest(k)),
                    None if pulls is None else _row_of(pulls, index),
                    *(address(part) for part in (metric.inputs, metric.slopes, metric.rest)),
                    *(address(part) for part in (metric.input_vectors, metric.slope_vectors, metric.inverse)),
                )
            )
        return (chain.Dense * len(found))(*found)


def _bent(network: Network) -> list[Node]:
    """The nodes that do more than to give numbers another shape, which memory does not know of."""
    return [node for node in network.graph.nodes if type(node.layer) is not Flatten]


def _row_of(store: Tensor, index: SiteIndex) -> int:
    """Where the entry of a store (n, b, o) lies."""
    return address(store) + index.row * store.stride(0) * store.element_size()
