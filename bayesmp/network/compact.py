"""Networks in small files: what can be computed again is left out, the rest is in float32 where that says the same.

Most of a file is the joint belief. Where training had an objective, it is about some rows of the data's slopes, and
their inputs are in the file anyway: `formed` makes it again from these when the file is read. Others are rounded. Each
is tried before it is written: one that would predict otherwise at its own rows is kept as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from bayesmp.basics.arithmetic import undisturbed
from bayesmp.basics.typed import Count, Positive
from bayesmp.belief import MAX_RANK, Anchored, AnchoredBasis, Belief, Points, from_state
from bayesmp.belief.base import root_of
from bayesmp.layers.base import Gradient

MOST_POINTS = 2 * MAX_RANK  # more are not formed again: products of all with all must fit into memory
MOST_SLOPES = 20_000_000  # numbers on all edges and weights, for all points
SAME_STD = 1e-3  # relative difference of standard deviations that is none
SAME_PRECISION = 1e-6
DERIVED = "head.grid"  # of the head alone
ROUNDED = ("varying_noise.directions", "varying_noise.log_weights")  # by 1e-7 of themselves


@dataclass(frozen=True)
class PointsHeader:
    """What a compact file says of a belief that is formed again."""

    form: Literal["points"]
    n_layers: Positive
    n_rows: Count
    is_formed: bool


@torch.no_grad()
@undisturbed()
def compacted(network: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """`description` and `state` of a network for a small file."""
    described, state = {**network.description(), "is_compact": True}, network.state()
    if described["belief"] is not None and (small := _smaller(network)) is not None:
        described["belief"] = small[0]
        state = {name: part for name, part in state.items() if not name.startswith("belief.")}
        state |= {f"belief.{name}": part for name, part in small[1].items()}
    del state[DERIVED]
    return described, {name: part.float() if name in ROUNDED else _narrow(part) for name, part in state.items()}


def is_formable(network: Any, points: Points) -> bool:
    """Whether a belief may be formed again from so many points: it takes memory that no file shows."""
    n_numbers = len(points.x) * (sum(map(math.prod, network.shapes)) + network.n_weights)
    return len(points.x) <= MOST_POINTS and n_numbers <= MOST_SLOPES


def formed(network: Any, points: Points, described: PointsHeader) -> Belief:
    """The belief about the slopes at these points, each a row of precision 1."""
    _, gradients = network.linearised_without_belief.mixed_gradients(points)
    variances = [var.to(points.x.device) for var in network.flat.to_matrices(network.exact_prior.var)]
    basis = AnchoredBasis.of(gradients, variances, is_exact=True, points=points)
    is_formed = described.is_formed and points.x.device.type == "cpu"
    found = replace(basis, is_formed=is_formed).believe(torch.diag(basis.own_precision))
    return replace(found, n_rows=described.n_rows)


def _smaller(network: Any) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Description and state of the joint belief in fewer bytes, if there are such that say the same."""
    belief, described = network.belief, {}
    assert belief is not None
    points = belief.basis.points
    if points is None:
        return None
    gradients = network.linearised_without_belief.mixed_gradients(points)[1]
    if isinstance(belief, Anchored) and belief.basis.is_exact and is_formable(network, points):
        header = PointsHeader("points", len(belief.bases), belief.n_rows, belief.basis.is_formed)
        precision = (belief.half @ belief.half.T).diagonal()
        is_of_rows = torch.allclose(precision, belief.basis.own_precision, rtol=SAME_PRECISION)
        if is_of_rows and _agree(belief, formed(network, points.map(_rounded), header), gradients):
            return vars(header), {"points.x": points.x.float(), "points.mixes": points.mixes.float()}
    if isinstance(belief, Anchored):  # any root of R R^T will do, and this one is a triangle
        belief = replace(belief, reduction=root_of(belief.reduction @ belief.reduction.T))
    described, state = belief.description(), belief.state()
    rounded = from_state(described, {name: _rounded(part) for name, part in state.items()})
    if not _agree(belief, rounded, gradients):
        return None
    return described, {name: part.float() for name, part in state.items()}


def _agree(one: Belief, other: Belief, gradients: Sequence[Gradient]) -> bool:
    """Whether two beliefs know as much about the rows with these slopes."""
    first, second = (belief.covariance(gradients).double().flatten().sqrt() for belief in (one, other))
    return bool(((second - first).abs() <= SAME_STD * first).all())


def _rounded(part: Tensor) -> Tensor:
    """As it comes back from a compact file."""
    return part.float().to(part)


def _narrow(part: Tensor) -> Tensor:
    """In float32, if that changes nothing."""
    return part.float() if part.dtype == torch.float64 and torch.equal(_rounded(part), part) else part
