"""The belief over all weights, where there are few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesmp.basics.arithmetic import eigh
from bayesmp.belief import directions
from bayesmp.belief.anchors import LayerAnchors, Points
from bayesmp.belief.base import Belief, Gradients, chunks, thin
from bayesmp.belief.past import Past
from bayesmp.layers.base import Gradient


@dataclass(frozen=True)
class FullBasis:
    """Coordinates: every weight, in units of its prior std."""

    stds: list[Tensor]  # (o, i) per layer, float64
    points: Points | None = None  # some that span what the data say, for the past (past.py)
    is_exact = True

    def features(self, gradients: Gradients) -> Tensor:
        """(b, k, r) in float64."""
        found = next(gradient for gradient in gradients if gradient is not None)
        shape = (found.slopes.shape[0], found.slopes.shape[1])
        parts = [
            std.new_zeros(*shape, std.numel()) if gradient is None else gradient.flat().double() * std.flatten()
            for gradient, std in zip(gradients, self.stds, strict=True)
        ]
        return torch.cat(parts, 2).transpose(0, 1)

    def along(self, anchors: Sequence[LayerAnchors]) -> Tensor:
        """(m, r) in float64: features of m rows that were kept."""
        return torch.cat(
            [rows.formed().double() * std.flatten() for rows, std in zip(anchors, self.stds, strict=True)], 1
        )

    def believe(self, precision: Tensor, missed: Sequence[Tensor] | None = None) -> Full:
        """The belief, given sum_n features^T Lambda features (r, r)."""
        eye = torch.eye(len(precision), dtype=precision.dtype, device=precision.device)
        factor = torch.linalg.cholesky(precision + eye)
        whitener = torch.linalg.solve_triangular(factor, eye, upper=False)
        return Full(self, whitener.contiguous())  # as a file holds it, so that a loaded one gives the same bits


@dataclass(frozen=True, repr=False)
class Full(Belief):
    """H over all weights; `whitener` W with W^T W = (I + data)^{-1} in units of the prior."""

    basis: FullBasis
    whitener: Tensor
    n_rows: int = 0
    is_exact = True

    @property
    def prior_vars(self) -> list[Tensor]:
        return [std.square() for std in self.basis.stds]

    @property
    def rank(self) -> int:
        return len(self.whitener)

    @cached_property
    def _whiteners(self) -> list[Tensor]:
        """The whitener's part for each layer, in units of its weights: (i, o, r)."""
        parts = self.whitener.split([std.numel() for std in self.basis.stds], 1)
        return [
            (part.view(-1, *std.shape) * std).permute(2, 1, 0).contiguous()
            for part, std in zip(parts, self.basis.stds, strict=True)
        ]

    def covariance(self, gradients: Gradients) -> Tensor:
        """Rows of dense layers are never formed: inputs meet the whitener first, then the slopes of all k."""
        given = next(part for part in gradients if part is not None)
        widest = max(std.shape[0] for std in self.basis.stds)
        found = []
        for chunk in chunks(gradients, max(widest, len(given.slopes)) * self.rank):
            part = directions.along_all(chunk, self._whiteners)
            found.append(part @ part.transpose(1, 2))
        return torch.cat(found)

    def from_features(self, features: Tensor) -> Tensor:
        part = features @ self.whitener.T
        return part @ part.transpose(1, 2)

    @property
    def degrees_of_freedom(self) -> float:
        return len(self.whitener) - float(self.whitener.square().sum())

    def leverage(self, past: Past) -> float:
        features = self.basis.along(past.anchors) @ self.whitener.T
        return float((features * (past.weights @ features)).sum())

    def as_past(self) -> tuple[list[Tensor], Past]:
        """K by its eigenvectors, in units of the prior: one row for each of them."""
        values, vectors = eigh(self.whitener.T @ self.whitener)
        parts = vectors.T.split([std.numel() for std in self.basis.stds], 1)
        stds = self.basis.stds
        anchors = [LayerAnchors(None, None, part / std.flatten()) for part, std in zip(parts, stds, strict=True)]
        weights = torch.diag((1.0 / values - 1.0).clamp_min(0.0))
        return self.prior_vars, Past(anchors, weights, [std.shape for std in stds], self.n_rows)

    def solve(self, slopes: Sequence[Tensor]) -> list[Tensor]:
        stds = self.basis.stds
        flat = torch.cat([(slope.double() * std).flatten() for slope, std in zip(slopes, stds, strict=True)])
        return self._shaped(self.whitener.T @ (self.whitener @ flat), slopes[0].dtype)

    def solve_each(self, gradients: Sequence[Gradient]) -> list[Tensor]:
        stds, features = self.basis.stds, self.basis.features(gradients)[:, 0]
        parts = (features @ self.whitener.T @ self.whitener).split([std.numel() for std in stds], 1)
        dtype = gradients[0].slopes.dtype
        return [(part.view(-1, *std.shape) * std).to(dtype) for part, std in zip(parts, stds, strict=True)]

    def sample(self, generator: torch.Generator | None = None) -> list[Tensor]:
        noise = torch.randn(len(self.whitener), dtype=torch.float64, generator=generator).to(self.whitener)
        return self._shaped(self.whitener.T @ noise, torch.float64)

    def _shaped(self, flat: Tensor, dtype: torch.dtype) -> list[Tensor]:
        stds = self.basis.stds
        parts = flat.split([std.numel() for std in stds])
        return [(part.view(std.shape) * std).to(dtype) for part, std in zip(parts, stds, strict=True)]

    def state(self) -> dict[str, Tensor]:
        found = {"whitener": thin(self.whitener)} | {f"std.{k}": std for k, std in enumerate(self.basis.stds)}
        points = self.basis.points
        return found if points is None else found | {"points.x": points.x, "points.mixes": points.mixes}

    def description(self) -> dict[str, Any]:
        return {"form": "full", "n_layers": len(self.basis.stds), "n_rows": self.n_rows}

    def to(self, device: torch.device, dtype: torch.dtype) -> Full:
        points = self.basis.points
        moved = None if points is None else points.map(lambda part: part.to(device=device, dtype=dtype))
        stds = [std.to(device) for std in self.basis.stds]
        return Full(FullBasis(stds, moved), self.whitener.to(device), self.n_rows)
