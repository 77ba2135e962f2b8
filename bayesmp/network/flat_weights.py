"""All weights of all layers as one flat vector, and the ways between it and the tensors of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.layers.base import Layer, Shape, Weights
from bayesmp.layers.linear import all_dense
from bayesmp.layers.priors import layer_rule
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.network.graph import Graph


@dataclass(frozen=True)
class Slot:
    """Where one weight tensor lives in the flat vector of all weights."""

    layer: int
    name: str
    shape: Shape
    start: int
    stop: int


class FlatWeights:
    """The order of all weights; it holds no values.

    Attributes:
        slots: one for each weight tensor, in this order.
    """

    def __init__(self, layers: Sequence[Layer], graph: Graph) -> None:
        self.slots: list[Slot] = []
        start = 0
        for index, layer in enumerate(layers):
            for name, shape in layer.weight_shapes().items():
                stop = start + int(torch.Size(shape).numel())
                self.slots.append(Slot(index, name, shape, start, stop))
                start = stop
        self._layers, self._nodes = list(layers), graph.weight_nodes
        self._sizes = [slot.stop - slot.start for slot in self.slots]
        self._layer_sizes = [self.size_of(index) for index in range(len(layers))]

    def __len__(self) -> int:
        """Number of weights."""
        return self.slots[-1].stop

    def size_of(self, layer: int) -> int:
        """Number of weights of one layer."""
        return sum(slot.stop - slot.start for slot in self.slots if slot.layer == layer)

    # --- tensors of the layers, as they name them --------------------------------------------------------------------

    def unpack(self, flat: Tensor) -> list[dict[str, Tensor]]:
        """One dict of weight tensors per layer, as views of a flat vector."""
        tensors: list[dict[str, Tensor]] = [{} for _ in self._layers]
        for slot, part in zip(self.slots, flat.split_with_sizes(self._sizes), strict=True):
            tensors[slot.layer][slot.name] = part if len(slot.shape) == 1 else part.view(slot.shape)
        return tensors

    def pack(self, tensors: Sequence[dict[str, Tensor]]) -> Tensor:
        """The flat vector of per-layer tensors; inverse of unpacking."""
        return torch.cat([tensors[slot.layer][slot.name].reshape(-1) for slot in self.slots])

    def pack_messages(self, messages: Sequence[dict[str, Gaussian]]) -> Gaussian:
        """The flat Gaussian of per-layer messages to weights."""
        return Gaussian(
            self.pack([{name: part.tau for name, part in layer.items()} for layer in messages]),
            self.pack([{name: part.rho for name, part in layer.items()} for layer in messages]),
        )

    def moments(self, belief: Gaussian, sum_share: Tensor) -> list[Weights]:
        """Moments of all weights per layer: variances as sums of these weights have them, with the layer's share."""
        var = belief.rho.reciprocal()
        means = self.unpack(belief.tau * var)
        for part, share in zip(var.split_with_sizes(self._layer_sizes), sum_share.unbind(), strict=True):
            part.mul_(share)
        variances = self.unpack(var)
        return [
            {name: Moments(mean[name], variance[name]) for name in mean}
            for mean, variance in zip(means, variances, strict=True)
        ]

    # --- one matrix (o, i) per layer with weights, as the joint belief sees them -------------------------------------

    def to_matrices(self, flat: Tensor) -> list[Tensor]:
        """One matrix (o, i) per layer with weights."""
        parts = self.unpack(flat)
        return [node.layer.to_matrix(parts[node.index]) for node in self._nodes]

    def from_matrices(self, matrices: Sequence[Tensor]) -> Tensor:
        """The flat vector of such matrices."""
        return self.pack(self.tensors_of(matrices))

    def tensors_of(self, matrices: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """One dict of weight tensors per layer, of such matrices."""
        tensors: list[dict[str, Tensor]] = [{} for _ in self._layers]
        for node, matrix in zip(self._nodes, matrices, strict=True):
            tensors[node.index] = node.layer.from_matrix(matrix)
        return tensors

    # --- the prior ---------------------------------------------------------------------------------------------------

    def draw_prior(self, shapes: Sequence[Shape], *, seed: int, rule: str) -> tuple[Gaussian, Tensor, Tensor]:
        """The prior of all weights, where training starts, and on which scale (priors.py), in float64 on the CPU.

        Args:
            shapes: of each layer's input.
            seed: of the means at which training starts.
            rule: for prior variances of layers that are given none.
        """
        generator = torch.Generator().manual_seed(seed)
        is_dense = all_dense(self._layers)
        found = []
        for index, (layer, shape) in enumerate(zip(self._layers, shapes, strict=True)):
            is_first = index == self.slots[0].layer
            own = layer_rule(rule, is_first=is_first, is_dense=is_dense)
            found.append(layer.weight_priors(shape, is_first=is_first, generator=generator, rule=own))
        belief = self.pack_messages([{name: prior.belief for name, prior in layer.items()} for layer in found])
        start = self.pack([{name: prior.start for name, prior in layer.items()} for layer in found])
        spread = belief.rho.rsqrt()
        for slot in self.slots:
            given = found[slot.layer][slot.name].spread
            if given is not None:
                spread[slot.start : slot.stop] = given
        return belief, start, spread
