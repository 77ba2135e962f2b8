r"""A network as a smooth function of its weights' means: activations are averaged over the belief about their inputs.

With z the input of an activation phi, its mean at the weights' means, and v the variance that the belief gives it,

    a = E phi(z + sqrt(v) e),   slope = E phi'(z + sqrt(v) e),   e ~ N(0, 1)

so outputs and slopes change smoothly where a unit bends. v is held fixed while weights move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.heads.loss import Root
from bayesmp.layers.base import Gradient, Local, Weights
from bayesmp.layers.linear import all_dense
from bayesmp.messages.gaussian import Moments
from bayesmp.messages.regime import MEANS, MOMENTS
from bayesmp.network.flat_weights import FlatWeights
from bayesmp.network.graph import Graph, Node, Trace

Variances = Callable[[Node, Local], Tensor]  # of the sums (n, o) that a node with weights leaves


@dataclass(frozen=True)
class Slopes:
    """What the loss depends on, (n, k), and its slopes in the weights, one `Gradient` per layer with weights."""

    outputs: Tensor
    gradients: list[Gradient]

    def flat(self) -> Tensor:
        """(k n, w): one row per output and example, in the order of the layers' matrices."""
        return torch.cat([part.flat() for part in self.gradients], 2).flatten(0, 1)

    def some(self, rows: Tensor) -> Slopes:
        """Those of some of the examples."""
        return Slopes(self.outputs[rows], [Gradient(g.inputs[rows], g.slopes[:, rows]) for g in self.gradients])

    def seen_through(self, root: Root) -> Slopes:
        """R^T J: rows that speak with precision 1 each."""
        outputs = root.across(self.outputs.T).T
        return Slopes(outputs, [Gradient(g.inputs, root.across(g.slopes)) for g in self.gradients])

    @classmethod
    def joined(cls, parts: Sequence[Slopes]) -> Slopes:
        """Those of several parts of the examples."""
        if len(parts) == 1:
            return parts[0]
        layers = zip(*(part.gradients for part in parts), strict=True)
        gradients = [
            Gradient(torch.cat([part.inputs for part in own]), torch.cat([part.slopes for part in own], 1))
            for own in layers
        ]
        return cls(torch.cat([part.outputs for part in parts]), gradients)

    def mixed(self, pull: Tensor) -> Tensor:
        """sum_n J_n^T pull_n, (w,), for pulls (n, k) at the outputs."""
        found = []
        for part in self.gradients:
            mixed = torch.einsum("knpo,nk->npo", part.slopes, pull)
            found.append((mixed.flatten(0, 1).T @ part.inputs.flatten(0, 1)).flatten())
        return torch.cat(found)

    def squares(self) -> Tensor:
        """The diagonal of sum_n J_n^T J_n, (w,)."""
        found = []
        for part in self.gradients:
            if part.inputs.shape[1] == 1:
                own = part.slopes[:, :, 0].square().sum(0)
                found.append((own.T @ part.inputs[:, 0].square()).flatten())
            else:  # weights that are shared over positions
                found.append(part.flat().square().sum((0, 1)))
        return torch.cat(found)


class SmoothFunction:
    """The network's function of all weights' means, as one vector in the order of the layers' matrices (o, i).

    Args:
        graph, flat: structure of the network, and order of its weights.
        mix: (l, k): the mixtures of the network's outputs that are looked at.
    """

    def __init__(self, graph: Graph, flat: FlatWeights, mix: Tensor) -> None:
        self.graph, self.flat, self.mix = graph, flat, mix
        self.nodes = graph.weight_nodes
        # what reads an activation beside a sum, a pool for one, hears of its variance, too
        self.given = [k for k, node in enumerate(self.nodes) if not graph.is_behind_weights(node)]  # their inputs are
        self.judged = [k for k in self.given if self.nodes[k].layer.n_own_inputs > 0]  # whose inputs have a relevance
        self.is_dense = all_dense([node.layer for node in graph.nodes])
        self.regime = MEANS if self.is_dense else MOMENTS
        like = flat.to_matrices(torch.zeros(len(flat), dtype=torch.float64))
        self.shapes = [(len(part), part.shape[1]) for part in like]

    def to_vector(self, flat: Tensor) -> Tensor:
        """The flat vector of the network in the order that is used here."""
        return torch.cat([part.flatten() for part in self.flat.to_matrices(flat)])

    def to_flat(self, mean: Tensor) -> Tensor:
        """Inverse of `to_vector`."""
        return self.flat.from_matrices(self.split(mean))

    def split(self, mean: Tensor) -> list[Tensor]:
        """One matrix (o, i) per layer with weights."""
        parts = mean.split([n_out * n_in for n_out, n_in in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def sweep(self, mean: Tensor, x: Tensor, variances: Variances) -> Trace:
        """A sweep of the means."""

        def smooth(node: Node, local: Local) -> Local:
            return local.with_variance(variances(node, local)) if node.has_weights else local

        return self.graph.sweep_out(x, self.weights(mean), self.regime, adjust=smooth)

    def slopes(self, mean: Tensor, x: Tensor, variances: Variances) -> Slopes:
        """Outputs and slopes at these means; a differentiable function of them."""
        trace, mix = self.sweep(mean, x, variances), self.mix.to(x)
        pulled = self.graph.pull(trace, mix[:, None, :].expand(-1, len(x), -1))
        gradients = [trace.locals[node.index].gradient(slope) for node, slope in pulled if node.has_weights]
        return Slopes(trace.outputs.mean @ mix.T, gradients[::-1])

    def values(self, mean: Tensor, x: Tensor, variances: Variances) -> Tensor:
        """What the loss depends on, (n, l), without slopes."""
        return self.sweep(mean, x, variances).outputs.mean @ self.mix.to(x).T

    def inputs(self, mean: Tensor, x: Tensor, variances: Variances, layer: int) -> Tensor:
        """Inputs (n, i) of a layer whose weights are not shared, as its `Gradient` has them."""
        local = self.sweep(mean, x, variances).locals[self.nodes[layer].index]
        assert isinstance(local.m_out, Moments)
        return local.gradient(torch.zeros_like(local.m_out.mean)[None]).inputs[:, 0]

    def weights(self, mean: Tensor) -> list[Weights]:
        """These means per layer, as known weights."""
        means = self.flat.tensors_of(self.split(mean))
        return [{name: Moments(part, torch.zeros_like(part)) for name, part in layer.items()} for layer in means]


def zero_variances(node: Node, local: Local) -> Tensor:
    """No smoothing at all."""
    assert isinstance(local.m_out, Moments)
    return torch.zeros_like(local.m_out.mean)


@dataclass(frozen=True)
class Held:
    """Variances of the sums of some examples as they were found, by node."""

    known: dict[int, Tensor]

    def __call__(self, node: Node, local: Local) -> Tensor:
        return self.known[node.index]

    def some(self, rows: Tensor) -> Held:
        """Those of some of the examples."""
        return Held({index: part[rows] for index, part in self.known.items()})

    @classmethod
    def joined(cls, parts: Sequence[Held]) -> Held:
        """Those of several parts of the examples."""
        return cls({index: torch.cat([part.known[index] for part in parts]) for index in parts[0].known})
