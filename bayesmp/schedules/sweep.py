"""One sweep out and back of the parallel schedule, as data: what a batch said on every edge and to all weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesmp.equations.linear import SumMoments
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.layers.base import Message, Weights


@dataclass(frozen=True)
class Sweep:
    """Everything one batch said: messages on the edges going out, and coming back."""

    weights: list[Weights]
    edges: list[Message]  # edges[k] enters layer k; the last one leaves the network
    backs: dict[int, Gaussian]  # backs[k] arrives at the output of layer k
    to_weights: Gaussian  # flat, multiplied over the batch
    curvatures: dict[int, Tensor]  # curvature that arrives at the output of each layer with weights, per entry
    input_curvatures: dict[int, Tensor]  # what uncertain inputs add to the curvature of a weight, on average
    n_rejected: Tensor

    @property
    def outputs(self) -> Moments:
        """Forward message at the head."""
        return self.after(len(self.edges) - 2)

    def after(self, k: int) -> Moments:
        """Forward message that leaves layer k."""
        edge = self.edges[k + 1]
        assert isinstance(edge, Moments)
        return edge

    @property
    def output_curvature(self) -> Tensor:
        """Curvature of the head at the network's outputs, one per entry."""
        top = max(self.backs)
        if top in self.curvatures:
            return self.curvatures[top]
        back = self.backs[top]
        return back.rho / (1.0 + back.rho * self.outputs.var)


def without_noise(edges: list[Message]) -> list[Message]:
    """The edges of a linearised network as messages to weights take them: activations without variance.

    The variance of an activation is that of weights below, which all examples share and which are correlated with the
    weights above; taken for fresh noise in every example it would make the weights above distrust their inputs. It
    counts where it belongs, in the variance of the sums above.
    """
    return [
        replace(edge, var=torch.zeros_like(edge.var))
        if isinstance(edge, Moments) and not isinstance(edge, SumMoments)
        else edge
        for edge in edges
    ]
