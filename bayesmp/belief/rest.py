"""What is left of a layer's prior behind what data say outside the span of a belief's anchors."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp.belief.anchors import LayerAnchors
from bayesmp.belief.orthonormal import NEGLIGIBLE
from bayesmp.belief.spread import Spread


def rest_coupled(anchor: LayerAnchors, prior: Spread, shape: torch.Size, missed: Tensor, along: Tensor) -> Spread:
    """D^{-1} of one layer: what data say outside the span, averaged over units, with all covariances of inputs."""
    _, inside = anchor.factors(along, shape)
    rest = missed + inside / shape[0]
    return prior.less(0.5 * (rest + rest.T), rounding=NEGLIGIBLE * float(inside.diagonal().amax()) / shape[0])


def rest_spread_evenly(anchor: LayerAnchors, prior: Spread, var: Tensor, seen: Tensor, along: Tensor) -> Spread:
    """D^{-1} of one layer: of what data bring to each input the share of the layer that the span misses."""
    whole = (seen * var.double().mean(0)).sum() * len(var)
    inside = (along * anchor.gram(prior)).sum()
    missed = (1.0 - inside / whole.clamp_min(torch.finfo(whole.dtype).tiny)).clamp(0.0, 1.0)
    return prior.less(missed * seen, rounding=0.0)
