r"""What data of the past still say about all weights, when they themselves are gone.

Yesterday's belief N(m_0, (D + K)^{-1}) is today's prior. D, a precision per weight, is the prior that the network has;
K = J_z^T S J_z, with the rows J_z that the belief has kept, is the *past*: it speaks as data do, with the slope
-J_z^T S v and the curvature K at the means m, where v is how far the rows' outputs have moved.

To first order v = J_z (m - m_0). But new data move weights far along directions that J_z does not see at m_0, and then
to second order yesterday's outputs are lost. So where it is known which inputs the rows come from, they are swept
again once per epoch: v is measured, and J_z made anew at the current means (`renewed`). Between two such renewals, and
always where the inputs are not known, v follows J_z.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bayesmp.belief.anchors import LayerAnchors, Points

ROUNDING = 1e-6  # singular values of rows below this share of the largest are rounding in float32


@dataclass(frozen=True)
class Past:
    """K = J_z^T S J_z over all weights.

    Attributes:
        anchors: the rows J_z, per layer.
        weights: S (m, m), float64.
        shapes: of the layers' matrices, (o, i).
        n_rows: rows of data that it stands for.
        points: where the rows come from, if that is known.
        moved: v (m,), how far the rows' outputs are from yesterday's at the means where J_z was made; None: nowhere.
    """

    anchors: list[LayerAnchors]
    weights: Tensor
    shapes: list[torch.Size]
    n_rows: int
    points: Points | None = None
    moved: Tensor | None = None

    def __len__(self) -> int:
        """Number of rows that are kept."""
        return len(self.weights)

    def pull(self, change: Sequence[Tensor]) -> list[Tensor]:
        """K applied to a change of the weights, one matrix (o, i) per layer."""
        like = self._weights_at_work
        parts = [a.along(part.to(like)) for a, part in zip(self.anchors, change, strict=True)]
        return self._pull_back(torch.stack(parts).sum(0))

    def pull_at_last(self) -> list[Tensor]:
        """J_z^T S v at the means where J_z was made."""
        return self._pull_back(self._weights_at_work.new_zeros(len(self)) if self.moved is None else self.moved)

    def _pull_back(self, moved: Tensor) -> list[Tensor]:
        weights = self._weights_at_work @ moved.to(self._weights_at_work)
        return [a.mix(weights, shape) for a, shape in zip(self.anchors, self.shapes, strict=True)]

    def over(self, points: Points, anchors: list[LayerAnchors], variances: Sequence[Tensor]) -> Past:
        """The same K over the rows of some points, which span what it knows; in the metric of these variances.

        S = (J^+)^T K J^+, with J^+ the inverse of J where it has one.
        """
        scales = [var.double().flatten().sqrt() for var in variances]

        def whole(parts: list[LayerAnchors]) -> Tensor:
            return torch.cat([part.formed().double() * scale for part, scale in zip(parts, scales, strict=True)], 1)

        own, inverse = whole(self.anchors), torch.linalg.pinv(whole(anchors), rtol=ROUNDING)
        across = own @ inverse
        return replace(self, anchors=anchors, weights=across.T @ self.weights @ across, points=points)

    def renewed(self, anchors: list[LayerAnchors], moved: Tensor) -> Past:
        """The same data as seen from other means."""
        return replace(self, anchors=anchors, moved=moved)

    @cached_property
    def _weights_at_work(self) -> Tensor:
        """S in the precision of the rows."""
        first = self.anchors[0]
        return self.weights.to(first.slopes if first.rows is None else first.rows)

    @cached_property
    def factors(self) -> list[tuple[Tensor, Tensor]]:
        """Per layer K summed over the inputs, (o, o), and over the outputs, (i, i), float64: the trace of both is its
        trace, and their Kronecker product over it is a K of independent inputs and outputs.
        """
        parts = zip(self.anchors, self.shapes, strict=True)
        return [anchor.factors(self.weights, shape) for anchor, shape in parts]

    @property
    def precisions(self) -> list[Tensor]:
        """Per layer (o, i): the diagonal of K, as its factors have it: right in every row's and column's sum."""
        return [
            torch.outer(of_outputs.diagonal(), of_inputs.diagonal()) / of_inputs.trace().clamp_min(_TINY)
            for of_outputs, of_inputs in self.factors
        ]

    def some(self, n_rows: int, generator: torch.Generator) -> tuple[list[LayerAnchors], Points | None]:
        """So many of the rows, drawn at random, and where they come from; all of them if there are no more."""
        if n_rows >= len(self):
            return self.anchors, self.points
        rows = torch.randperm(len(self), generator=generator)[:n_rows].to(self.weights.device)
        points = None if self.points is None else self.points.map(lambda part: part[rows])
        return [anchor.map(lambda part: part[rows]) for anchor in self.anchors], points


_TINY = torch.finfo(torch.float64).tiny
