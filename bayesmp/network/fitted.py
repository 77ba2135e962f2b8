"""What a network keeps of training by the objective: how activations are averaged, and the noise that goes with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayesmp.basics.arithmetic import packed, unpacked
from bayesmp.belief import Belief
from bayesmp.layers.base import Gradient, Local
from bayesmp.messages.gaussian import Moments
from bayesmp.network.graph import Node


@dataclass(frozen=True, eq=False)
class Fitted:
    """The end of a descent on the objective (evidence/).

    Attributes:
        objective: its value, the negative log evidence of the network, in nats.
        noise: variance of the noise with which the belief was made.
        smoothing: share of the belief's variance that activations are averaged over.
        spread: per layer with weights, covariances (o, i, i) of each unit's own weights; empty for the last one, and
            for one with many inputs, whose variances the joint belief gives.
        miss_scale: how much farther off targets lie that were never seen than those left out by the formula.
    """

    objective: float
    noise: float
    smoothing: float
    spread: tuple[Tensor, ...]
    miss_scale: float = 1.0

    def __post_init__(self) -> None:
        """Symmetric to the last bit, as their triangles in files are."""
        object.__setattr__(self, "spread", tuple(_mirrored(part) if part.ndim == 3 else part for part in self.spread))

    def smooth(self, nodes: Sequence[Node], belief: Belief | None) -> Callable[[Node, Local], Local]:
        """What turns a sweep of the means into one whose activations are averaged over the belief."""
        layers = {node.index: k for k, node in enumerate(nodes)}

        def adjusted(node: Node, local: Local) -> Local:
            k = layers.get(node.index)
            if k is None:
                return local
            return local.with_variance(self._variance(k, len(layers), local, belief))

        return adjusted

    def _variance(self, layer: int, n_layers: int, local: Local, belief: Belief | None) -> Tensor:
        assert isinstance(local.m_out, Moments)
        spread = self.spread[layer]
        if spread.numel() > 0:
            return self.smoothing * local.variance_under(spread.to(local.m_out.mean))
        if layer == n_layers - 1 or belief is None:
            return torch.zeros_like(local.m_out.mean)
        n, n_units = local.m_out.mean.shape
        eye = torch.eye(n_units).to(local.m_out.mean)
        found = []
        for unit in eye:  # one at a time: all at once would take the square of their number
            gradient = local.gradient(unit.expand(1, n, n_units))
            gradients: list[Gradient | None] = [None] * n_layers
            gradients[layer] = gradient
            found.append(belief.covariance(gradients)[:, 0, 0])
        return self.smoothing * torch.stack(found, 1).to(local.m_out.mean).clamp_min(0.0)

    def to(self, device: torch.device, dtype: torch.dtype) -> Fitted:
        """The same on another device, in another precision."""
        return replace(self, spread=tuple(part.to(device, dtype) for part in self.spread))

    def description(self) -> dict[str, Any]:
        """What a file says beside the tensors, as JSON holds it."""
        known = [k for k, part in enumerate(self.spread) if part.numel() > 0]
        names = ("objective", "noise", "smoothing", "miss_scale")
        numbers = {name: getattr(self, name) for name in names}
        return {**numbers, "n_layers": len(self.spread), "known": known}

    def state(self) -> dict[str, Tensor]:
        """The tensors to save: covariances by their lower triangles."""
        return {f"spread.{k}": packed(part) for k, part in enumerate(self.spread) if part.numel() > 0}

    @classmethod
    def from_state(cls, description: dict[str, Any], state: dict[str, Tensor]) -> Fitted:
        """What `description` and `state` said."""
        known, none = set(description["known"]), torch.zeros(0, device="cpu")
        sizes = {k: math.isqrt(2 * state[f"spread.{k}"].shape[-1]) for k in known}
        spread = tuple(
            unpacked(state[f"spread.{k}"], sizes[k]) if k in known else none for k in range(description["n_layers"])
        )
        numbers = description["objective"], description["noise"], description["smoothing"]
        return cls(*numbers, spread, description["miss_scale"])


def _mirrored(matrices: Tensor) -> Tensor:
    """Matrices (o, i, i) whose upper triangles are those below."""
    return matrices.tril() + matrices.tril(-1).transpose(-1, -2)
