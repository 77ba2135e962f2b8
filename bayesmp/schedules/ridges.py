r"""How much of what is unknown about its inputs a layer's weights must fear.

Weights below make the inputs a_k of a layer uncertain. Two things follow for the weights w_k above. Both differ between
independent weights and the joint belief N(m, Sigma), in which what examples have said about one weight is known of
all others:

1. *Noise.* Fresh noise of variance sum_k w_k^2 Var[a_k] in every target would make every pull weaker. But weights are
   the same for all examples, and marginals have seen the example: to first order a pull is the whole residual over
   the variance of the target's own noise, as for known inputs (equations/linear.py). None of this variance counts.
2. *Ridge.* The expected square of the residual holds the variance of the output f, which grows with w_k. Its slope in
   w_k,
       rho sum_n Cov[a_nk, f_n]    instead of    rho w_k sum_n Var[a_nk]    for independent weights,
   is also that of log det Sigma^{-1} / 2: weights shrink away from places where little is known around them. Where all
   weights of the lower layers are settled together it is small, with few data in many inputs as large as for
   independent weights, or larger.

So a layer hears of its inputs' variance a share only, its *ridge*: the least-squares factor between the two slopes,
measured whenever the belief is refreshed, on some examples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesmp.belief import Belief
from bayesmp.gaussian import Moments
from bayesmp.graph import Graph, Node, Trace
from bayesmp.layers.base import Gradient, Local
from bayesmp.layers.linear import Linear, SumLocal
from bayesmp.settings import Settings


class Ridges(dict[int, Tensor]):
    """By node, for every linear one behind other weights: the share of its inputs' variance that it hears of, ()."""

    @classmethod
    def of(cls, graph: Graph, like: Tensor) -> Ridges:
        """All of it, to begin with."""
        return cls(
            (node.index, like.new_ones(()))
            for node in graph.weight_nodes
            if isinstance(node.layer, Linear) and graph.is_behind_weights(node)
        )

    def reset(self) -> None:
        """All of it again."""
        for ridge in self.values():
            ridge.fill_(1.0)

    def adjust(self, node: Node, local: Local) -> Local:
        """What a node leaves, with the node's share; others as they are."""
        if node.index not in self or not isinstance(local, SumLocal):
            return local
        return local.with_ridge(self[node.index])

    def follow(self, graph: Graph, trace: Trace, belief: Belief, mixes: Tensor, settings: Settings) -> None:
        """Go half of the way to what this belief says, in place.

        Args:
            trace: of a sweep of some examples, without `adjust`.
            mixes: (b, n_outputs), how an example's outputs are mixed to the one that is looked at.
        """
        for k, ridge in measure(graph, trace, belief, mixes).items():
            ridge = ridge.clamp(0.0, settings.max_ridge).to(self[k])
            self[k].lerp_(torch.where(ridge.isfinite(), ridge, self[k]), settings.ridge_pace)

    def join(self, parts: Sequence[Ridges], weights: Sequence[float]) -> None:
        """The mean of other runs' ridges."""
        for k, ridge in self.items():
            ridge.copy_(torch.stack([weight * part[k] for part, weight in zip(parts, weights, strict=True)]).sum(0))


def measure(graph: Graph, trace: Trace, belief: Belief, mixes: Tensor) -> dict[int, Tensor]:
    """By node, the factor between both slopes of the module's docstring, over all weights of a dense layer."""
    pulled = {node.index: slope for node, slope in graph.pull(trace, mixes[None]) if node.has_weights}
    gradients = {k: trace.locals[k].gradient(slope) for k, slope in sorted(pulled.items())}
    solved = belief.solve_each(list(gradients.values()))
    own = {k: _change(part, moved) for (k, part), moved in zip(gradients.items(), solved, strict=True)}
    changes, found = _changes(graph, trace, own), {}
    for node in graph.weight_nodes:
        local, d_in = trace.locals[node.index], changes.get(node.inputs[0])
        if d_in is None or not isinstance(local, SumLocal) or not isinstance(local.m_in, Moments):
            continue
        slope, weight = pulled[node.index][0], local.weights["weight"].mean
        joint = slope.t() @ d_in  # (o, i)
        independent = weight * (slope.square().t() @ local.m_in.var)
        found[node.index] = (joint * independent).sum() / independent.square().sum()
    return found


def _change(gradient: Gradient, moved: Tensor) -> Tensor:
    """Change (b, o) of a dense layer's outputs when each example has weights (b, o, i) moved in its own way."""
    return (moved.to(gradient.inputs) @ gradient.inputs.transpose(1, 2))[..., 0]


def _changes(graph: Graph, trace: Trace, own: dict[int, Tensor]) -> dict[int, Tensor]:
    """By edge, its first-order change when outputs of nodes with weights move by their `own`, and all that follows."""
    changes: dict[int, Tensor] = {}
    for node in graph.nodes:
        if not node.is_active:
            continue
        local, d_ins = trace.locals[node.index], [changes.get(edge) for edge in node.inputs]
        if isinstance(local, SumLocal):
            below = d_ins[0]
            above = own[node.index]
            change = above if below is None else above + local.linear_map.op(below, local.weights["weight"].mean)
        else:
            found = local.tangent(d_ins, {})
            assert found is not None
            change = found
        changes[node.output] = change
    return changes
