"""What a batch said in one sweep out and back, and what it says of a direction in the space of all weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.messages.gaussian import Gaussian
from bayesmp.network.graph import Returned, Trace
from bayesmp.network.network import Network


@dataclass(frozen=True)
class Sweep:
    """Everything one batch said: what it left at every node going out, and what came back."""

    trace: Trace
    returned: Returned
    to_weights: Gaussian  # flat, multiplied over the batch
    curvatures: dict[int, tuple[Tensor, Tensor]]  # of the messages, by weight node: per row, and per weight
    output_curvature: Tensor  # of the head, at the network's outputs

    @classmethod
    def of(cls, network: Network, trace: Trace, returned: Returned, m_back: Gaussian, nodes: Iterable[int]) -> Sweep:
        """From the traces of both ways; `nodes` are those with weights."""
        curvatures = {k: trace.locals[k].message_curvature(returned.arriving[k]) for k in nodes}
        output_curvature = m_back.rho / (1.0 + m_back.rho * network.graph.output_noise(trace))
        return cls(trace, returned, network.pack(returned.to_weights), curvatures, output_curvature)


def along(network: Network, sweep: Sweep, direction: Tensor) -> tuple[Tensor, Tensor]:
    """The curvature of a batch along a direction of all weights, joint over all layers; and how far the outputs of a
    layer would move, at most, in units of their spread over the batch.
    """
    parts = network.unpack(direction)
    curvatures, reaches = [], []
    for node, change in network.graph.push(sweep.trace, parts):
        if node.has_weights:
            first = next(iter(parts[node.index].values())).flatten()
            curvatures.append(sweep.curvatures[node.index][1] * torch.dot(first, first))
            reaches.append(kernels.squared_reach(sweep.trace.moments(node), change))
    curvatures.append((sweep.output_curvature * change.square()).sum())
    return sum(curvatures[1:], start=curvatures[0]), reduce(torch.maximum, reaches).sqrt()
