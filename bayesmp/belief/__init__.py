r"""The joint belief about all weights, N(m, H^{-1}) with H = prior + sum_n J_n^T Lambda_n J_n at the trained means m.

J_n are the slopes of an example's outputs in the weights, Lambda_n is the precision with which its target speaks about
them. The belief is about the *linearised* network, f(m) + J (w - m): the covariance of outputs is J H^{-1} J^T. It is
made by a pass over the data (refresh.py) and knows nothing of how training went. Two forms, one rule (`plan`):

`Full`    all weights, where there are few. Exact.
`Anchored` some rows z of the training data's J, the *anchors*. Inside their span H is as above; outside it the data
          that the span misses count as spread evenly over a layer's outputs (spread.py):
              H = D + V M V^T,   D = prior + what the span misses,   V = J_z^T T an orthonormal basis (under the prior)
          With as many anchors as there are rows in all the span misses nothing, and this is exact, too. Rows of dense
          layers are never formed: J_z J_x^T = (a_z . a_x) (g_z . g_x) for inputs a and slopes g.

A belief can be split as H = D + K (`as_past`): D diagonal and K, the `Past`, what data say beside it. They are the
prior for tomorrow's data (`Network.as_prior`), and the rows of K then stand among the anchors of the next belief.

Everything a caller asks goes through gradients, one per weight layer (layers/base.py); None stands for a layer that
takes no part, so that a list with one entry asks about the sums of that layer alone.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bayesmp.belief.anchored import Anchored, AnchoredBasis
from bayesmp.belief.anchors import LayerAnchors, Points
from bayesmp.belief.base import MAX_RANK, Belief, Layout, Plan, from_thin, plan, weighted_gram
from bayesmp.belief.full import Full, FullBasis
from bayesmp.belief.past import Past
from bayesmp.belief.spread import Spread

__all__ = [
    "MAX_RANK",
    "Anchored",
    "AnchoredBasis",
    "Basis",
    "Belief",
    "Full",
    "FullBasis",
    "LayerAnchors",
    "Layout",
    "Past",
    "Plan",
    "Points",
    "Spread",
    "from_state",
    "plan",
    "weighted_gram",
]

Basis = FullBasis | AnchoredBasis


def from_state(description: dict[str, Any], tensors: dict[str, Tensor]) -> Belief:
    """The belief of a file."""
    layers = range(description["n_layers"])
    n_rows = description["n_rows"]
    points = Points(tensors["points.x"], tensors["points.mixes"]) if "points.x" in tensors else None
    if description["form"] == "full":
        stds = [tensors[f"std.{k}"] for k in layers]
        return Full(FullBasis(stds, points), from_thin(tensors["whitener"], sum(std.numel() for std in stds)), n_rows)
    anchors = [LayerAnchors(*(tensors.get(f"{name}.{k}") for name in ("inputs", "slopes", "rows"))) for k in layers]
    variances = [tensors[f"prior_var.{k}"] for k in layers]
    is_formed = description.get("is_formed", False) and tensors["turn"].device.type == "cpu"
    basis = AnchoredBasis(anchors, variances, tensors["turn"], description["is_exact"], points, is_formed)
    couples = description["couples"]
    bases = [Spread(tensors[f"base.{k}"], couples[k]) for k in layers]
    half, reduction = (from_thin(tensors[name], tensors["turn"].shape[1]) for name in ("half", "reduction"))
    return Anchored(basis, bases, half, reduction, n_rows)
