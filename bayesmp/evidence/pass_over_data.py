"""What the data say about all weights at the current means, in the coordinates of a basis: the joint belief's part of a
pass over them (refresh.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bayesmp.belief import (
    MAX_RANK,
    AnchoredBasis,
    Basis,
    Belief,
    Full,
    FullBasis,
    Plan,
    Points,
    plan,
    weighted_gram,
)
from bayesmp.layers.linear import all_dense
from bayesmp.messages.gaussian import Moments
from bayesmp.network.network import Network

MAX_EXACT = 2048  # weights, or outputs of training data, up to which the belief of a regression is exact
FEW_SHARED = 16_384  # weights of a network with shared ones, up to which its belief has twice as many anchors


@dataclass(frozen=True)
class Evidence:
    """What all data say in the coordinates of a basis.

    Attributes:
        basis: the coordinates.
        precision: sum_n features^T Lambda features, (r, r); the past's (belief/past.py) with it.
        missed: per layer, for what data say outside the span, where the basis is not exact (`missed_by` of the basis).
        n_rows: rows of data, the past's with them.
    """

    basis: Basis
    precision: Tensor
    missed: list[Tensor] | None
    n_rows: int

    @cached_property
    def belief(self) -> Belief:
        """About all weights."""
        return replace(self.basis.believe(self.precision, self.missed), n_rows=self.n_rows)


@dataclass(frozen=True)
class Slice:
    """Some examples of a pass, with what was computed for them."""

    x: Tensor
    y: Tensor
    m_out: Moments
    noise: Tensor  # the part of the variance that sweeps take for noise
    features: Tensor | None = None


class Examples:
    """The examples of a pass, a few at a time; with their features kept between its steps, if there is room.

    Args:
        network, basis: where outputs and features come from.
        x, y: the examples.
        weight: for how many of the data each of them stands.
        keeps: whether features are kept.
    """

    def __init__(self, network: Network, basis: Basis, x: Tensor, y: Tensor, weight: float, *, keeps: bool) -> None:
        self.network, self.basis, self.weight = network, basis, weight
        self.x, self.y = x, y
        self.n_rows = round(weight * len(x)) * network.n_outputs
        self.known: Tensor | None = None  # what the past says, in the coordinates of the basis
        if network.past is not None:
            self.n_rows += network.past.n_rows
            features = basis.along(network.past.anchors)
            self.known = features.T @ network.past.weights @ features
        self.kept = list(self.slices(with_features=True)) if keeps else None

    def slices(self, *, with_features: bool) -> Iterator[Slice]:
        """The examples, with their outputs and as much of the rest as is asked for."""
        network = self.network
        size = network.rows_at_once(network.n_outputs)
        for rows, targets in zip(self.x.split(size), self.y.split(size), strict=True):
            rows = rows.to(network.device)
            m_out, gradients, noise = network.gradients_and_noise(rows)
            part = Slice(rows, targets, m_out, noise)
            if with_features:
                part = replace(part, features=self.basis.features(gradients))
            yield part

    def ask(self, log_weights: Tensor) -> tuple[Evidence, Iterator[tuple[Slice, Tensor]]]:
        """What all examples say under this belief about the constant, and with that the covariance of each one's
        outputs (b, o, o), in slices.
        """
        evidence = self.evidence(*self.accumulate(log_weights))
        return evidence, self._covariances(evidence.belief)

    def evidence(self, precision: Tensor, missed: list[Tensor] | None) -> Evidence:
        """What today's data say, and the past."""
        past, basis = self.network.past, self.basis
        if self.known is not None and past is not None:
            precision = precision + self.known
            if missed is not None and isinstance(basis, AnchoredBasis):
                older = basis.missed_of(past)
                missed = [new + old.to(new) for new, old in zip(missed, older, strict=True)]
        return Evidence(basis, precision, missed, self.n_rows)

    def accumulate(self, log_weights: Tensor) -> tuple[Tensor, list[Tensor] | None]:
        """What today's data say in the coordinates of the basis, and what for that outside its span."""
        basis, network = self.basis, self.network
        precision: Tensor | None = None
        missed: list[Tensor] | None = None
        for part in self.slices(with_features=True) if self.kept is None else self.kept:
            rho = network.head.to_latent(part.m_out, part.y, log_weights).rho
            assert part.features is not None
            if isinstance(basis, AnchoredBasis) and not basis.is_exact:
                product, own = basis.said_by(network.gradients(part.x)[1], part.features, rho)
                missed = own if missed is None else [a + b for a, b in zip(missed, own, strict=True)]
            else:
                product = weighted_gram(part.features, rho)
            precision = product if precision is None else precision + product
        assert precision is not None
        return self.weight * precision, None if missed is None else [self.weight * part for part in missed]

    def _covariances(self, belief: Belief) -> Iterator[tuple[Slice, Tensor]]:
        for part in self.slices(with_features=False) if self.kept is None else self.kept:
            if isinstance(belief, Full) and part.features is not None:
                found = belief.from_features(part.features)
            else:
                found = belief.covariance(self.network.gradients(part.x)[1])
            yield part, found.to(part.m_out.mean)


# --- the coordinates -------------------------------------------------------------------------------------------------


def most_anchors(network: Network) -> int:
    """Anchors of the belief that predictions are made with, where it cannot be exact.

    What they miss of shared weights is only known as spread evenly over inputs, and counts as unknown for the larger
    part. Where the network is small twice as many are cheap.
    """
    is_small = not all_dense(network.layers) and network.n_weights <= FEW_SHARED
    return 2 * MAX_RANK if is_small else MAX_RANK


def plan_belief(network: Network, n_examples: int, *, max_rank: int | None = None) -> Plan:
    """The form of the belief for this many examples, and the rows that the past has kept; the one that predictions are
    made with, unless anchors are given. Those of labels are never exceeded, not even by a belief that would be exact.
    """
    n_kept = 0 if network.past is None else len(network.past)
    n_rows = n_examples * network.n_outputs + n_kept
    room = MAX_EXACT if network.head.has_noise else MAX_RANK if max_rank is None else min(MAX_RANK, max_rank)
    max_rank = most_anchors(network) if max_rank is None else max_rank
    return plan(network.layout, n_rows, max_rank=max_rank, room=room)


def make_basis(
    network: Network,
    x: Tensor,
    planned: Plan,
    prior_vars: list[Tensor],
    generator: torch.Generator,
    *,
    n_rows: int,
) -> Basis:
    """The coordinates. Anchors go to the past and to the n_rows of today as there are data behind them."""
    is_full, past = planned.form == "full", network.past
    room = MAX_RANK if is_full else planned.rank
    older, n_new = None, min(n_rows, room) if is_full else room
    if past is not None:
        n_old = len(past)
        if n_old + n_rows > room:
            n_old = min(n_old, round(room * past.n_rows / (past.n_rows + n_rows)))
        older, older_points = past.some(n_old, generator)
        n_new = min(n_new, room - n_old)
    points: Points | None = _draw_points(network, x, n_new, generator, all_rows=planned.is_exact)
    assert points is not None
    gradients = [] if is_full else network.mixed_gradients(points)[1]
    if older is not None:
        points = None if older_points is None else points.join(older_points)
    if is_full:
        return FullBasis([var.double().sqrt() for var in prior_vars], points)
    n_seen = (len(x), network.n_outputs)
    return AnchoredBasis.of(gradients, prior_vars, is_exact=planned.is_exact, older=older, points=points, n_seen=n_seen)


def _draw_points(network: Network, x: Tensor, n_points: int, generator: torch.Generator, *, all_rows: bool) -> Points:
    """Every output of every example, if asked for and there is room, else a random mixture of those of some."""
    n_outputs = network.n_outputs
    if all_rows and len(x) * n_outputs <= n_points:
        rows = torch.arange(len(x)).repeat_interleave(n_outputs)
        mixes = torch.eye(n_outputs, dtype=x.dtype).repeat(len(x), 1)
    else:
        rows = torch.randperm(len(x), generator=generator)
        rows = rows.repeat(math.ceil(n_points / len(x)))[:n_points]
        mixes = torch.randn(len(rows), n_outputs, generator=generator, dtype=torch.float64)
    return Points(x[rows.to(x.device)].to(network.device), mixes.to(x).to(network.device))
