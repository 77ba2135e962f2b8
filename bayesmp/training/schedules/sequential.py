"""The paper's schedule: one example at a time, exact messages, several iterations per visit. Slow, simple, the
reference.

Inside a visit every example keeps its messages: to each weight, and on each edge. Product factors (weights of layers
with uncertain inputs) see marginals; exact sums (first layer, biases) see the cavity of the example; activations and
pools see the forward message of their input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesmp.heads.base import without_own_message
from bayesmp.layers.base import Memory, Weights
from bayesmp.messages.gaussian import Gaussian
from bayesmp.messages.regime import EXAMPLE_BY_EXAMPLE
from bayesmp.network.network import Network
from bayesmp.sites.sites import Sites
from bayesmp.training.schedules.base import Batch, Schedule, VisitInfo


def iterations_per_visit(epoch: int) -> int:
    """How many rounds over its examples a visit makes."""
    return math.ceil(epoch / 2)


def site_share(epoch: int) -> float:
    """How much of the new site is taken, the rest being the old one: 0.9 + 0.1 exp(-0.3 (epoch - 1))."""
    return 0.9 + 0.1 * math.exp(-0.3 * (epoch - 1))


@dataclass
class ExampleState:
    """Messages of one example that live for a visit."""

    own: Gaussian  # to all weights, flat
    arriving: dict[int, Gaussian] = field(default_factory=dict)  # at a node's output, by node


class SequentialVisit:
    """One visit to a batch: weights start at the cavity, all messages at nothing."""

    def __init__(self, network: Network, cavity: Gaussian, x: Tensor, y: Tensor, head_log_weights: Tensor) -> None:
        self.network = network
        self.cavity = cavity
        self.marginal = cavity
        self.x, self.y = x, y
        self.head_log_weights = head_log_weights
        self.examples = [ExampleState(Gaussian.nothing(cavity.tau)) for _ in range(len(x))]
        self.n_rejected = torch.zeros((), dtype=torch.int64, device=x.device)

    def iterate(self, order: Sequence[int]) -> None:
        """Sweep through the examples in this order, then recompute the marginals from the messages."""
        for index in order:
            state = self.examples[index]
            new = self._sweep(state, self.x[index : index + 1], self.y[index : index + 1])
            self.marginal = self.marginal / state.own * new
            state.own = new
        self.marginal = self.cavity * self.site()

    def site(self) -> Gaussian:
        """Product of all examples' messages to the weights."""
        return Gaussian(
            torch.stack([state.own.tau for state in self.examples]).sum(0),
            torch.stack([state.own.rho for state in self.examples]).sum(0),
        )

    def _sweep(self, state: ExampleState, x: Tensor, y: Tensor) -> Gaussian:
        """A forward and a backward sweep of one example; its new message to the weights."""
        network, graph = self.network, self.network.graph
        last = state.arriving
        memories = [
            Memory(at_input=last.get(node.inputs[0] - 1), at_output=last.get(node.index)) for node in graph.nodes
        ]
        trace = graph.sweep_out(x, self._weights(state), EXAMPLE_BY_EXAMPLE, memories=memories)
        m_back = network.head.to_latent(trace.outputs, y, self.head_log_weights)
        returned = graph.sweep_back(trace, m_back)
        state.arriving = returned.arriving
        self.n_rejected += returned.n_rejected
        return network.pack(returned.to_weights)

    def _weights(self, state: ExampleState) -> list[Weights]:
        """Beliefs this example's factors see: the cavity where the sum is exact, the marginal where it is a product."""
        network = self.network
        marginals, cavities = network.weights(self.marginal), network.weights(self.marginal / state.own)
        mixed = [
            {name: (cavity if name == "bias" else marginal)[name] for name in marginal}
            for marginal, cavity in zip(marginals, cavities, strict=True)
        ]
        first = network.graph.weight_nodes[0].index
        mixed[first] = cavities[first]
        return mixed


class SequentialSchedule(Schedule):
    """`SequentialVisit` in a training run, with damped site updates."""

    judges_constant = True

    def __init__(self, network: Network, sites: Sites, *, seed: int) -> None:
        if network.past is not None:
            raise ValueError(
                "the sequential schedule takes weights as independent and cannot hold the correlations of a prior made "
                "by as_prior(); train this network with schedule='parallel'"
            )
        super().__init__(network, sites, seed=seed)

    def visit(self, batch: Batch, epoch: int) -> VisitInfo:
        network, old = self.network, Gaussian(*self.sites.get(batch.index))  # origin = shift = 0 in this schedule
        before = network.marginal
        m_out = network.graph.outputs(batch.x, network.weights(), network.regime)
        metrics = network.head.train_metrics(m_out, batch.y, network.head_log_weights)

        cavity = before / old
        visit = SequentialVisit(network, cavity, batch.x, batch.y, network.head_log_weights)
        generator = self.generator(epoch, batch.index.row)
        for _ in range(iterations_per_visit(epoch)):
            visit.iterate(torch.randperm(len(batch.x), generator=generator).tolist())

        share = site_share(epoch)
        new = old ** (1.0 - share) * visit.site() ** share
        network.marginal = cavity * Gaussian(*self.sites.replace(batch.index, new.tau, new.rho))
        if network.head.is_learned:
            after = network.graph.outputs(batch.x, network.weights(), network.regime)
            unseen = without_own_message(after, network.head.to_latent(after, batch.y, network.head_log_weights))
            self.replace_head_site(batch.index, network.head.to_constant(unseen, batch.y))
        n_layers = len({slot.layer for slot in network.slots})
        return VisitInfo(
            step=torch.full((n_layers,), share, dtype=network.dtype, device=network.device),
            n_rejected=visit.n_rejected,
            n_messages=self.messages_per_example * len(batch.x) * iterations_per_visit(epoch),
            max_change=((network.marginal.mean - before.mean).abs() * network.marginal.rho.sqrt()).max(),
            metrics=metrics,
        )
