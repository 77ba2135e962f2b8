"""What a network had learned of data that are gone, and how they hold its weights beside the prior (`as_prior`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesmp.belief import Belief, LayerAnchors, Layout, Past
from bayesmp.heads import Head
from bayesmp.layers.base import Gradient
from bayesmp.network.flat_weights import FlatWeights
from bayesmp.network.learned import Learned
from bayesmp.network.linearised import Linearised


@dataclass(frozen=True, eq=False)
class Yesterday:
    """Yesterday's network, and the past as today's means see it.

    Attributes:
        learned: what `reset` goes back to.
        head: it was learned with.
        flat: the order of the weights.
        past: K, what the data of the past say beside the prior (belief/past.py).
        mean: the means of all weights from which `past` is seen.
        outputs: what its rows' outputs were yesterday; None where it is not known from which inputs they come.
        rho: the diagonal of K, per weight.
    """

    learned: Learned
    head: Head
    flat: FlatWeights
    past: Past
    mean: Tensor
    outputs: Tensor | None
    rho: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, learned: Learned, head: Head, then: Linearised) -> Yesterday:
        """From what was learned, and the network's function as it was then."""
        assert learned.belief is not None, "as_prior needs a joint belief"
        variances, past = learned.belief.as_past()
        points, outputs = learned.belief.basis.points, None
        if points is not None:
            outputs, gradients = then.mixed_gradients(points)
            if past.points is None:
                past = past.over(points, _anchors(gradients, variances), variances)
        rho = then.flat.from_matrices(past.precisions).to(learned.marginal.rho)
        return cls(learned.copied(), head, then.flat, past, learned.marginal.mean, outputs, rho)

    @torch.no_grad()
    def seen_from(self, now: Linearised, mean: Tensor, layout: Layout) -> Yesterday:
        """The same past seen from other means, where it is known from which inputs it comes."""
        if self.past.points is None or self.outputs is None:
            return self
        outputs, gradients = now.mixed_gradients(self.past.points)
        past = self.past.renewed(_anchors(gradients, layout.prior_vars), outputs - self.outputs)
        return replace(self, past=past, mean=mean)

    def check_head(self, head: Head) -> None:
        """Raise if the network has another head now."""
        if head is not self.head:
            raise ValueError(
                f"this network's prior was learned with another head, {self.head!r}, and now it has {head!r}: what the "
                "past says is about outputs of the former; keep the head that as_prior() gave"
            )

    def pull(self, change: Tensor) -> Tensor:
        """K applied to a change of all weights."""
        return self.flat.from_matrices(self.past.pull(self.flat.to_matrices(change))).to(change)

    def message(self, mean: Tensor) -> Tensor:
        """Precision times mean, per weight, of a message with the precision `rho` and the past's slope at `mean`."""
        slope = self.pull(mean - self.mean.double()) + self.flat.from_matrices(self.past.pull_at_last())
        return self.rho.double() * mean - slope


def check_belief(belief: Belief, about: Tensor | None, layout: Layout, mean: Tensor) -> None:
    """Raise if a belief about some means is not about those, and the prior, that the network has now."""
    if about is None or not torch.equal(about, mean):
        raise ValueError(
            "the joint belief is about other means than the network has now: they were changed after training "
            "(net.marginal); train it again, or call as_prior() before"
        )
    if not all(
        torch.allclose(own.double(), var.double(), rtol=1e-5, atol=0.0)
        for own, var in zip(belief.prior_vars, layout.prior_vars, strict=True)
    ):
        raise ValueError(
            "the joint belief was made with another prior than the network has now: net.prior was assigned after "
            "training; train it again, or call as_prior() before"
        )


def _anchors(gradients: Sequence[Gradient], variances: Sequence[Tensor]) -> list[LayerAnchors]:
    return [LayerAnchors.of(part, var) for part, var in zip(gradients, variances, strict=True)]
