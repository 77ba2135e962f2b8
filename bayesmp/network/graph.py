"""The structure of a network, once: nodes between edges, and the four loops over them: out, back, along, pulled back.

Edge 0 is the network's input; each node reads some edges and writes one. A chain of layers reads edge k and writes
edge k + 1. Where several nodes read the same edge, messages to it multiply and slopes in it add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.layers.base import NO_MEMORY, Layer, Local, Memory, Message, Weights
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.regime import Regime


@dataclass(frozen=True)
class Node:
    """A layer in its place.

    Attributes:
        index: position in the order of the sweep out; weights are found under it.
        layer: the factor.
        inputs, output: edges.
        is_active: whether it has weights or stands above some; the others only ever see known values.
    """

    index: int
    layer: Layer
    inputs: tuple[int, ...]
    output: int
    is_active: bool

    @property
    def has_weights(self) -> bool:
        return bool(self.layer.weight_shapes())


@dataclass(frozen=True)
class Trace:
    """What a sweep out leaves at every node."""

    x: Tensor  # the network's input
    locals: tuple[Local, ...]  # by node

    @property
    def outputs(self) -> Moments:
        """Forward message at the head."""
        return self._moments(-1)

    def moments(self, node: Node) -> Moments:
        """Forward message that leaves an active node."""
        return self._moments(node.index)

    def _moments(self, index: int) -> Moments:
        m_out = self.locals[index].m_out
        assert isinstance(m_out, Moments), "behind the first weights everything is uncertain"
        return m_out


@dataclass(frozen=True)
class Returned:
    """What a sweep back brings: messages arriving at each node's output, and to its weights; how many were rejected."""

    arriving: dict[int, Gaussian]  # by node
    to_weights: list[dict[str, Gaussian]]  # by node; empty for nodes without weights
    n_rejected: Tensor


class Graph:
    """Nodes in an order in which each reads only edges that are written before; the last one writes the outputs."""

    def __init__(self, layers: Sequence[Layer], inputs: Sequence[tuple[int, ...]] | None = None) -> None:
        inputs = [(k,) for k in range(len(layers))] if inputs is None else list(inputs)
        self.nodes: list[Node] = []
        active = {0: False}
        for k, (layer, edges) in enumerate(zip(layers, inputs, strict=True)):
            assert all(edge <= k for edge in edges), f"node {k} reads an edge that is not written yet: {edges}"
            active[k + 1] = bool(layer.weight_shapes()) or any(active[edge] for edge in edges)
            self.nodes.append(Node(k, layer, tuple(edges), k + 1, active[k + 1]))
        self._active_edges = {edge for edge, is_active in active.items() if is_active}

    def is_behind_weights(self, node: Node) -> bool:
        """Whether what the node reads depends on weights."""
        return any(edge in self._active_edges for edge in node.inputs)

    @property
    def is_linear(self) -> bool:
        """Whether outputs are linear in all weights: nothing reads what depends on some."""
        return not any(self.is_behind_weights(node) for node in self.nodes)

    @property
    def weight_nodes(self) -> list[Node]:
        return [node for node in self.nodes if node.has_weights]

    # --- out ---------------------------------------------------------------------------------------------------------

    def sweep_out(
        self,
        x: Tensor,
        weights: Sequence[Weights],
        regime: Regime,
        *,
        adjust: Callable[[Node, Local], Local] | None = None,
        memories: Sequence[Memory] | None = None,
    ) -> Trace:
        """One sweep from the input to the outputs; adjust(node, local) may replace what a node leaves."""
        edges: dict[int, Message] = {0: x}
        found = []
        for node in self.nodes:
            memory = NO_MEMORY if memories is None else memories[node.index]
            local = node.layer.sweep([edges[edge] for edge in node.inputs], weights[node.index], regime, memory)
            local = local if adjust is None else adjust(node, local)
            found.append(local)
            edges[node.output] = local.m_out
        return Trace(x, tuple(found))

    def outputs(self, x: Tensor, weights: Sequence[Weights], regime: Regime) -> Moments:
        """Forward message at the head; unlike `sweep_out` it keeps no message longer than it is needed."""
        edges: dict[int, Message] = {0: x}
        last_use = {edge: node.index for node in self.nodes for edge in node.inputs}
        for node in self.nodes:
            local = node.layer.sweep([edges[edge] for edge in node.inputs], weights[node.index], regime)
            for edge in set(node.inputs):
                if last_use[edge] == node.index:
                    del edges[edge]
            edges[node.output] = local.m_out
        m_out = edges[self.nodes[-1].output]
        assert isinstance(m_out, Moments)
        return m_out

    def known(self, x: Tensor, weights: Sequence[Weights], regime: Regime) -> Iterator[tuple[Node, Local]]:
        """Each node with weights whose inputs are known values, with what a sweep leaves there."""
        edges: dict[int, Message] = {0: x}
        for node in self.nodes:
            if any(edge not in edges for edge in node.inputs):
                continue
            local = node.layer.sweep([edges[edge] for edge in node.inputs], weights[node.index], regime)
            if node.is_active:
                yield node, local
            else:
                edges[node.output] = local.m_out

    # --- back --------------------------------------------------------------------------------------------------------

    def sweep_back(self, trace: Trace, m_back: Gaussian) -> Returned:
        """One sweep from the message of the head to all weights."""
        inbox = {self.nodes[-1].output: m_back}
        arriving: dict[int, Gaussian] = {}
        to_weights: list[dict[str, Gaussian]] = [{} for _ in self.nodes]
        rejected = []
        for node in self._active_backwards():
            arriving[node.index] = message = inbox.pop(node.output)
            to_inputs, to_weights[node.index] = trace.locals[node.index].back(message)
            for edge, to_input in zip(node.inputs, to_inputs, strict=True):
                if edge not in self._active_edges or to_input is None:
                    continue
                if node.layer.may_reject:
                    rejected.append(kernels.count_rejected(to_input))
                inbox[edge] = inbox[edge] * to_input if edge in inbox else to_input
        nothing = torch.zeros((), dtype=torch.int64, device=m_back.tau.device)
        return Returned(arriving, to_weights, sum(rejected, start=nothing))

    # --- first order -------------------------------------------------------------------------------------------------

    def push(self, trace: Trace, d_weights: Sequence[dict[str, Tensor]]) -> Iterator[tuple[Node, Tensor]]:
        """Each active node with the first-order change of its output's mean when all weights' means move."""
        changes: dict[int, Tensor | None] = {}
        for node in self.nodes:
            if node.is_active:
                d_ins = [changes.get(edge) for edge in node.inputs]
                change = trace.locals[node.index].tangent(d_ins, d_weights[node.index])
                changes[node.output] = change
                assert change is not None
                yield node, change

    def pull(self, trace: Trace, slope: Tensor) -> Iterator[tuple[Node, Tensor]]:
        """Each active node, last first, with the slopes (k, b, ...) of k quantities in its output's mean, given those
        in the network's outputs.
        """
        slopes = {self.nodes[-1].output: slope}
        for node in self._active_backwards():
            found = slopes.pop(node.output)
            yield node, found
            if not self.is_behind_weights(node):
                continue
            for edge, pulled in zip(node.inputs, trace.locals[node.index].pullback(found), strict=True):
                if edge in self._active_edges:
                    slopes[edge] = slopes[edge] + pulled if edge in slopes else pulled

    def output_noise(self, trace: Trace) -> Tensor:
        """The part of the outputs' variance that is noise to the last weights, carried through what stands above."""
        return self._noise(trace, self.nodes[-1].output)

    def _noise(self, trace: Trace, edge: int) -> Tensor:
        if edge not in self._active_edges:  # a known value has none
            known = trace.x if edge == 0 else trace.locals[edge - 1].m_out
            assert isinstance(known, Tensor)
            return torch.zeros_like(known)
        node = self.nodes[edge - 1]
        below = [] if node.has_weights else [self._noise(trace, part) for part in node.inputs]
        return trace.locals[node.index].noise(below)

    def _active_backwards(self) -> Iterator[Node]:
        return (node for node in reversed(self.nodes) if node.is_active)
