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

from bayesmp.equations.tilted import count_rejected
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.heads.base import without_own_message
from bayesmp.layers.base import Message, Weights
from bayesmp.network import Network
from bayesmp.schedules.base import Batch, Schedule, VisitInfo


def iterations_per_visit(epoch: int) -> int:
    return math.ceil(epoch / 2)


def site_share(epoch: int) -> float:
    """How much of the new site is taken, the rest being the old one: 0.9 + 0.1 exp(-0.3 (epoch - 1))."""
    return 0.9 + 0.1 * math.exp(-0.3 * (epoch - 1))


@dataclass
class ExampleState:
    """Messages of one example that live for a visit."""

    own: Gaussian  # to all weights, flat
    forward: list[Message] = field(default_factory=list)  # per edge
    back: dict[int, Gaussian] = field(default_factory=dict)  # arriving at an edge from above, by edge


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
        network, weights = self.network, self._weights(state)
        inputs: list[Message] = []
        state.forward = [x]
        for k, layer in enumerate(network.layers):
            m_in = state.forward[k]
            if layer.takes_marginal and isinstance(m_in, Moments) and k in state.back:
                m_in = m_in * state.back[k]
            inputs.append(m_in)
            state.forward.append(layer.to_output(m_in, weights[k], m_back=state.back.get(k + 1)))

        m_out = state.forward[-1]
        assert isinstance(m_out, Moments)
        m_back: Gaussian | None = network.head.to_latent(m_out, y, self.head_log_weights)
        to_weights: list[dict[str, Gaussian]] = [{} for _ in network.layers]
        for k in range(len(network.layers) - 1, network.first_weight_layer - 1, -1):
            assert m_back is not None
            state.back[k + 1] = m_back
            edge = state.forward[k + 1]
            assert isinstance(edge, Moments)
            m_back, to_weights[k] = network.layers[k].messages_back(inputs[k], edge, m_back, weights[k], at_cavity=True)
            if m_back is not None and network.layers[k].may_reject:
                self.n_rejected += count_rejected(m_back)
        return network.pack(to_weights)

    def _weights(self, state: ExampleState) -> list[Weights]:
        """Beliefs this example's factors see: the cavity where the sum is exact, the marginal where it is a product."""
        network = self.network
        marginals, cavities = network.weights(self.marginal), network.weights(self.marginal / state.own)
        mixed = [
            {name: (cavity if name == "bias" else marginal)[name] for name in marginal}
            for marginal, cavity in zip(marginals, cavities, strict=True)
        ]
        mixed[network.first_weight_layer] = cavities[network.first_weight_layer]
        return mixed


class SequentialSchedule(Schedule):
    """`SequentialVisit` in a training run, with damped site updates."""

    def visit(self, batch: Batch, epoch: int) -> VisitInfo:
        network, old = self.network, Gaussian(*self.sites.get(batch.index))  # origin = shift = 0 in this schedule
        before = network.marginal
        m_out = network.outputs(batch.x, network.weights())
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
            after = network.outputs(batch.x, network.weights())
            unseen = without_own_message(after, network.head.to_latent(after, batch.y, network.head_log_weights))
            self.replace_head_site(batch.index, network.head.to_constant(unseen, batch.y))
        n_layers = len({slot.layer for slot in network.slots})
        return VisitInfo(
            step=torch.full((n_layers,), share, dtype=network.dtype, device=network.device),
            n_rejected=visit.n_rejected,
            n_messages=self.messages_per_example() * len(batch.x) * iterations_per_visit(epoch),
            max_change=((network.marginal.mean - before.mean).abs() * network.marginal.rho.sqrt()).max(),
            metrics=metrics,
        )
