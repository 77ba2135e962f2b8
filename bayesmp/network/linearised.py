"""A network's function around the means of its weights, to first order: outputs, their slopes in all weights, draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.belief import Belief, Points
from bayesmp.layers.base import Gradient, Local, Shape, Weights
from bayesmp.layers.linear import all_dense
from bayesmp.messages.gaussian import Moments
from bayesmp.messages.regime import Regime
from bayesmp.network.flat_weights import FlatWeights
from bayesmp.network.graph import Graph, Node, Trace

PREDICT_BUDGET = {"cpu": 4_000_000, "cuda": 400_000_000}  # numbers in the widest layer of one prediction batch
BYTES_AT_WORK = 80  # for each of them
FREE_SHARE = 0.5  # of a GPU's free memory that may be used
MOST_ROWS = 4096  # at once


@dataclass(frozen=True)
class Linearised:
    """f(m) + J (w - m): what sweeps out at some beliefs about the weights, and pulls back from there, say.

    Attributes:
        graph, flat: structure and order of the weights.
        weights: moments of the weights per layer.
        sum_share: which share of a layer's variances is left in them (training/schedules/metric.py).
        regime: how sweeps are done.
        shapes: of what is between the layers; the last is that of the outputs.
        n_outputs: of the head.
        adjust: what a sweep changes at each node, as `Graph.sweep_out` takes it: how activations are averaged over
            the joint belief (fitted.py); None where weights are taken as independent.
        scale: factor on all variances and covariances under the joint belief (evidence/unseen.py).
    """

    graph: Graph
    flat: FlatWeights
    weights: Sequence[Weights]
    sum_share: Tensor
    regime: Regime
    shapes: Sequence[Shape]
    n_outputs: int
    adjust: Callable[[Node, Local], Local] | None = None
    scale: float = 1.0

    def _sweep(self, x: Tensor) -> Trace:
        return self.graph.sweep_out(x, self.weights, self.regime, adjust=self.adjust)

    def rows_at_once(self, n_slopes: int) -> int:
        """Examples whose slopes in all edges fit into memory that is always there."""
        widest = max(int(torch.Size(shape).numel()) for shape in self.shapes)
        if n_slopes > 1:  # rows of convolutions are formed, too
            widest = max(widest, *(slot.stop - slot.start for slot in self.flat.slots if len(slot.shape) > 2), 0)
        return min(MOST_ROWS, max(1, _numbers_at_once(self.sum_share.device) // (widest * n_slopes)))

    # --- slopes ------------------------------------------------------------------------------------------------------

    def gradients(self, x: Tensor, slopes: Tensor | None = None) -> tuple[Moments, list[Gradient]]:
        """Outputs, and slopes of k mixtures of them in each layer's weights.

        Args:
            x: (b, *input_shape).
            slopes: (k, b, n_outputs), how the outputs are mixed; each output by itself if not given.
        """
        return self.gradients_and_noise(x, slopes)[:2]

    def gradients_and_noise(self, x: Tensor, slopes: Tensor | None = None) -> tuple[Moments, list[Gradient], Tensor]:
        """`gradients`, and the part of the outputs' variance that messages to weights take for noise, (b, o)."""
        trace = self._sweep(x)
        if slopes is None:
            eye = torch.eye(self.n_outputs, dtype=x.dtype, device=x.device)
            slopes = eye[:, None, :].expand(-1, len(x), -1)
        found = [
            trace.locals[node.index].gradient(slope)
            for node, slope in self.graph.pull(trace, slopes)
            if node.has_weights
        ]
        return trace.outputs, found[::-1], self._noise(trace)

    def outputs_and_noise(self, x: Tensor) -> tuple[Moments, Tensor]:
        """The same without slopes."""
        trace = self._sweep(x)
        return trace.outputs, self._noise(trace)

    def _noise(self, trace: Trace) -> Tensor:
        if self.adjust is None and not all_dense([node.layer for node in self.graph.nodes]):
            return self.graph.output_noise(trace)
        return torch.zeros_like(trace.outputs.mean)  # of dense layers too little is left to weaken a pull

    def last_inputs(self, x: Tensor) -> Tensor:
        """Mean inputs of the last layer with weights, (b, h)."""
        (edge,) = self.graph.weight_nodes[-1].inputs
        if edge == 0:
            return x.flatten(1)
        found = self._sweep(x).locals[edge - 1].m_out
        return (found if isinstance(found, Tensor) else found.mean).flatten(1)

    def mixed_gradients(self, points: Points) -> tuple[Tensor, list[Gradient]]:
        """One mixture of the outputs at each point, (m,), and its slopes in each layer's weights, (1, m, ...)."""
        size = self.rows_at_once(2)
        parts = [
            (*self.gradients(x.to(self.sum_share.device), mixes[None]), mixes)
            for x, mixes in zip(points.x.split(size), points.mixes.split(size), strict=True)
        ]
        found = [gradients for _, gradients, _ in parts]
        return torch.cat([(m_out.mean * mixes).sum(1) for m_out, _, mixes in parts]), [
            Gradient(torch.cat([part[k].inputs for part in found]), torch.cat([part[k].slopes for part in found], 1))
            for k in range(len(found[0]))
        ]

    # --- what is believed about outputs ------------------------------------------------------------------------------

    def output_beliefs(
        self, x: Tensor, belief: Belief | None, batch_size: int | None = None
    ) -> Iterator[tuple[Moments, Tensor | None]]:
        """Moments of the outputs, and their covariances (b, o, o) where there is a joint belief, in slices of x.

        Args:
            x: (n, *input_shape), on any device.
            belief: about all weights; without it variances are those of a sweep out.
            batch_size: rows at a time; as many as memory always holds if not given.
        """
        batch_size = batch_size or self.rows_at_once(1 if belief is None else self.n_outputs)
        for rows in x.split(batch_size):
            rows = rows.to(self.sum_share)
            if belief is None:
                yield self.graph.outputs(rows, self.weights, self.regime), None
                continue
            m_out, gradients = self.gradients(rows)
            covariance = self.scale * belief.covariance(gradients).to(self.sum_share.dtype)
            yield Moments(m_out.mean, covariance.diagonal(dim1=1, dim2=2)), covariance

    def covariance_between(self, x: Tensor, belief: Belief) -> Tensor:
        """Covariances of each output at all inputs with itself, (n_outputs, n, n)."""
        gradients = [self.gradients(rows.to(self.sum_share))[1] for rows in x.split(self.rows_at_once(self.n_outputs))]
        found = torch.zeros(self.n_outputs, len(x), len(x), dtype=self.sum_share.dtype, device=self.sum_share.device)
        for output in range(self.n_outputs):
            each = [[Gradient(g.inputs, g.slopes[output, None]) for g in part] for part in gradients]
            solved = [belief.solve_each(part) for part in each]
            for layer in range(len(gradients[0])):
                rows = torch.cat([part[layer].flat()[0] for part in each])
                found[output] += rows @ torch.cat([part[layer].flatten(1) for part in solved]).T
        return 0.5 * self.scale * (found + found.mT)

    def draws(self, x: Tensor, belief: Belief, n: int, generator: torch.Generator) -> Tensor:
        """Draws (n, len(x), n_outputs) of the whole function."""
        drawn = [
            self.flat.tensors_of([matrix.to(self.sum_share) for matrix in belief.sample(generator)]) for _ in range(n)
        ]
        found = []
        for rows in x.split(self.rows_at_once(1)):
            trace = self._sweep(rows.to(self.sum_share))
            changes = [list(self.graph.push(trace, weights))[-1][1] for weights in drawn]
            found.append(trace.outputs.mean + self.scale**0.5 * torch.stack(changes))
        return torch.cat(found, 1)


def _numbers_at_once(device: torch.device) -> int:
    """In the widest layer of one prediction batch; on a GPU what its free memory allows, in coarse steps so that equal
    calls work in equal batches.
    """
    budget = PREDICT_BUDGET.get(device.type, PREDICT_BUDGET["cpu"])
    if device.type != "cuda":
        return budget
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    while budget > PREDICT_BUDGET["cpu"] and budget * BYTES_AT_WORK > FREE_SHARE * free:
        budget //= 2
    return budget
