"""The belief over the span of some rows of the training data's slopes, the anchors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesmp.arithmetic import eigh, exact_products
from bayesmp.belief.base import Belief, Gradients, chunks, lifted, total
from bayesmp.layers.base import Gradient

NEGLIGIBLE = 1e-6  # eigenvalues of the anchors' Gram matrix below this share of the largest are rounding in float32


@dataclass(frozen=True)
class LayerAnchors:
    """The anchors' gradients in one layer: inputs (m, i) and slopes (m, o) of a dense layer, or rows (m, o i).

    `var` is a covariance of the layer's weights that does not depend on the output unit, (i,), unless rows are formed,
    which may have one per weight, (o, i).
    """

    inputs: Tensor | None
    slopes: Tensor | None
    rows: Tensor | None

    @classmethod
    def of(cls, gradient: Gradient, prior_var: Tensor) -> LayerAnchors:
        """From the gradient (1, m, ...) of the anchors."""
        is_even = bool((prior_var == prior_var[:1]).all())
        if gradient.inputs.shape[1] == 1 and is_even:
            return cls(gradient.inputs[:, 0], gradient.slopes[0, :, 0], None)
        return cls(None, None, gradient.flat()[0])

    def gram(self, var: Tensor) -> Tensor:
        """(m, m) in float64: J_z var J_z^T."""
        if self.rows is not None:
            rows = self.rows.double()
            return (rows * _expand(var, rows).double()) @ rows.T
        assert self.inputs is not None and self.slopes is not None
        inputs, slopes = self.inputs.double(), self.slopes.double()
        return ((inputs * var.double()) @ inputs.T) * (slopes @ slopes.T)

    def products(self, gradient: Gradient, var: Tensor, *, own: bool = True) -> tuple[Tensor, Tensor | None]:
        """J_x var J_z^T (b, k, m), and J_x var J_x^T (b, k, k) if asked for."""
        if self.rows is not None:
            rows = _scaled_rows(gradient, var)
            cross = rows @ (self.rows * _expand(var, self.rows).sqrt()).T
            return cross, rows @ rows.transpose(1, 2) if own else None
        assert self.inputs is not None and self.slopes is not None
        inputs, slopes = gradient.inputs[:, 0], gradient.slopes[:, :, 0].transpose(0, 1)
        cross = (slopes @ self.slopes.T).mul_(((inputs * var) @ self.inputs.T)[:, None])
        return cross, self.own_product(gradient, var) if own else None

    def own_product(self, gradient: Gradient, var: Tensor) -> Tensor:
        """J_x var J_x^T (b, k, k)."""
        if self.rows is not None:
            rows = _scaled_rows(gradient, var)
            return rows @ rows.transpose(1, 2)
        inputs, slopes = gradient.inputs[:, 0], gradient.slopes[:, :, 0].transpose(0, 1)
        size = (inputs.square() * var).sum(1)[:, None, None]
        return size * (slopes @ slopes.transpose(1, 2))

    def along(self, matrix: Tensor) -> Tensor:
        """(m,): J_z applied to a change of the weights (o, i)."""
        if self.rows is not None:
            return self.rows @ matrix.flatten()
        assert self.inputs is not None and self.slopes is not None
        return ((self.slopes @ matrix) * self.inputs).sum(1)

    def mix(self, weights: Tensor, shape: torch.Size) -> Tensor:
        """(o, i): J_z^T applied to one number per anchor."""
        if self.rows is not None:
            return (weights @ self.rows).view(shape)
        assert self.inputs is not None and self.slopes is not None
        return (self.slopes * weights[:, None]).T @ self.inputs

    def map(self, function: Any) -> LayerAnchors:
        parts = (self.inputs, self.slopes, self.rows)
        return LayerAnchors(*(None if part is None else function(part) for part in parts))


@dataclass(frozen=True)
class AnchoredBasis:
    """Coordinates: an orthonormal basis, under the prior, of the span of the anchors' gradients."""

    anchors: list[LayerAnchors]
    prior_vars: list[Tensor]  # (o, i)
    turn: Tensor  # T (m, r), float64
    is_exact: bool

    @classmethod
    def of(cls, gradients: Sequence[Gradient], prior_vars: list[Tensor], *, is_exact: bool) -> AnchoredBasis:
        """From gradients (1, m, ...): one row of the training data per anchor."""
        anchors = [LayerAnchors.of(part, var) for part, var in zip(gradients, prior_vars, strict=True)]
        grams = [part.gram(_even(var)) for part, var in zip(anchors, prior_vars, strict=True)]
        values, vectors = eigh(total(grams))
        kept = values > NEGLIGIBLE * values[-1].clamp_min(torch.finfo(values.dtype).tiny)
        turn = (vectors[:, kept] * values[kept].rsqrt()).contiguous()
        return cls(anchors, prior_vars, turn, is_exact)

    @cached_property
    def even_vars(self) -> list[Tensor]:
        """Prior variances (i,), or (o, i) of layers where they differ between output units."""
        return [_even(var) for var in self.prior_vars]

    def features(self, gradients: Gradients) -> Tensor:
        """(b, k, r): J_x prior_var J_z^T T."""
        bases = self.even_vars
        found: list[Tensor] = []
        for part in self.chunks(gradients):
            cross, _ = self.products(part, bases, own=False)
            found.append(cross @ self.turn.to(cross))
        return found[0] if len(found) == 1 else torch.cat(found)

    @property
    def own_precision(self) -> Tensor:
        """(r,): what the anchors themselves would say with precision 1 each, sum_z f f^T, which is diagonal."""
        return 1.0 / self.turn.square().sum(0)

    def outside(self, gradients: Gradients, features: Tensor | None = None) -> Tensor:
        """(b, k, k): covariance under the prior of what lies outside the span; rounding where nothing does."""
        features = self.features(gradients) if features is None else features
        whole = total(
            [
                anchor.own_product(gradient, base)
                for anchor, gradient, base in zip(self.anchors, gradients, self.even_vars, strict=True)
                if gradient is not None
            ]
        )
        return lifted(whole - features @ features.transpose(1, 2), whole)

    def chunks(self, gradients: Gradients) -> Iterator[Gradients]:
        given = next(part for part in gradients if part is not None)
        return chunks(gradients, len(self.turn) * len(given.slopes))

    def products(self, gradients: Gradients, bases: list[Tensor], *, own: bool = True) -> tuple[Tensor, Tensor | None]:
        """The sums of `LayerAnchors.products` over the layers that take part."""
        with exact_products(self.turn.device):
            parts = [
                anchor.products(gradient, base, own=own)
                for anchor, gradient, base in zip(self.anchors, gradients, bases, strict=True)
                if gradient is not None
            ]
        cross, whole = parts[0]
        for more_cross, more_whole in parts[1:]:
            cross = cross.add_(more_cross)
            whole = None if whole is None or more_whole is None else whole + more_whole
        return cross, whole

    def believe(self, precision: Tensor, rows_seen: Sequence[Tensor] | None = None) -> Anchored:
        """The belief, given sum_n features^T Lambda features (r, r) and, per layer, how much precision all data bring
        to a weight of each input, (i,), averaged over the outputs.
        """
        bases = list(self.even_vars)
        if rows_seen is not None and not self.is_exact:
            along = self.turn @ precision @ self.turn.T
            for k, (anchor, var) in enumerate(zip(self.anchors, self.prior_vars, strict=True)):
                base = bases[k]
                whole = (rows_seen[k].double() * var.double().mean(0)).sum() * len(var)
                inside = (along * anchor.gram(base)).sum()
                missed = (1.0 - inside / whole.clamp_min(torch.finfo(whole.dtype).tiny)).clamp(0.0, 1.0)
                bases[k] = base / (1.0 + base * (missed * rows_seen[k].double()).to(base))
        values, vectors = eigh(precision)
        half = (vectors * values.clamp_min(0.0).sqrt()) @ vectors.T
        if self.is_exact:  # the basis is orthonormal, and D the prior
            data = precision
        else:
            along = self.turn @ half
            data = along.T @ total([a.gram(base) for a, base in zip(self.anchors, bases, strict=True)]) @ along
        eye = torch.eye(len(half), dtype=half.dtype, device=half.device)
        factor = torch.linalg.cholesky(eye + data)
        reduction = torch.linalg.solve_triangular(factor, half, upper=False).T  # R R^T = (M^{-1} + V^T D^{-1} V)^{-1}
        return Anchored(self, bases, half, reduction.contiguous())


@dataclass(frozen=True)
class Anchored(Belief):
    """H = D + V M V^T: `bases` hold D^{-1}, `half` M^{1/2}, `reduction` R with R R^T = (M^{-1} + V^T D^{-1} V)^{-1}."""

    basis: AnchoredBasis
    bases: list[Tensor]
    half: Tensor
    reduction: Tensor

    @property
    def is_exact(self) -> bool:  # type: ignore[override]
        return self.basis.is_exact

    @property
    def rank(self) -> int:
        return len(self.half)

    @cached_property
    def shadow(self) -> Tensor:
        """T R (m, r): what the data took away from a covariance under D, along the anchors."""
        return self.basis.turn @ self.reduction

    def covariance(self, gradients: Gradients) -> Tensor:
        found = []
        for chunk in self.basis.chunks(gradients):
            cross, whole = self.basis.products(chunk, self.bases)
            assert whole is not None
            with exact_products(cross.device):
                part = cross @ self.shadow.to(cross)
                found.append(lifted(whole - part @ part.transpose(1, 2), whole))
        return torch.cat(found)

    @property
    def degrees_of_freedom(self) -> float:
        settled = torch.zeros((), dtype=torch.float64, device=self.half.device)
        grams = []
        parts = zip(self.basis.anchors, self.bases, self.basis.prior_vars, self.basis.even_vars, strict=True)
        for anchor, base, var, even_var in parts:
            settled += (1.0 - _shaped(base, var).double() / var.double()).sum()
            grams.append(anchor.gram(base.square() / even_var))
        return float(settled + (total(grams) @ self.shadow * self.shadow).sum())

    def solve(self, slopes: Sequence[Tensor]) -> list[Tensor]:
        found = [slope * _shaped(base, slope) for slope, base in zip(slopes, self.bases, strict=True)]
        along = torch.stack([a.along(part) for a, part in zip(self.basis.anchors, found, strict=True)]).sum(0)
        inner = self.reduction @ (self.reduction.T @ (self.basis.turn.T @ along.double()))
        weights = (self.basis.turn @ inner).to(found[0])
        return [
            part - anchor.mix(weights, part.shape) * _shaped(base, part)
            for part, anchor, base in zip(found, self.basis.anchors, self.bases, strict=True)
        ]

    def sample(self, generator: torch.Generator | None = None) -> list[Tensor]:
        """H^{-1} b for b of covariance H = D + V M V^T."""
        noise = torch.randn(self.half.shape[0], dtype=torch.float64, generator=generator).to(self.half)
        weights = (self.basis.turn @ (self.half @ noise)).to(self.bases[0])
        slopes = []
        for anchor, base, var in zip(self.basis.anchors, self.bases, self.basis.prior_vars, strict=True):
            own = torch.randn(var.shape, dtype=torch.float64, generator=generator).to(var)
            slopes.append(own * _shaped(base, var).rsqrt() + anchor.mix(weights, var.shape))
        return self.solve(slopes)

    def state(self) -> dict[str, Tensor]:
        found = {"turn": self.basis.turn, "half": self.half, "reduction": self.reduction}
        for k, anchor in enumerate(self.basis.anchors):
            parts = {"inputs": anchor.inputs, "slopes": anchor.slopes, "rows": anchor.rows}
            found |= {f"{name}.{k}": part for name, part in parts.items() if part is not None}
            found |= {f"base.{k}": self.bases[k], f"prior_var.{k}": self.basis.prior_vars[k]}
        return found

    def description(self) -> dict[str, Any]:
        return {"form": "anchored", "n_layers": len(self.bases), "is_exact": self.is_exact}

    def to(self, device: torch.device, dtype: torch.dtype) -> Anchored:
        def cast(part: Tensor) -> Tensor:
            return part.to(device=device, dtype=dtype)

        basis = self.basis
        moved = AnchoredBasis(
            [anchor.map(cast) for anchor in basis.anchors],
            [cast(var) for var in basis.prior_vars],
            basis.turn.to(device),
            basis.is_exact,
        )
        return Anchored(moved, [cast(base) for base in self.bases], self.half.to(device), self.reduction.to(device))


def _even(prior_var: Tensor) -> Tensor:
    """A prior variance (o, i) as (i,) where it is the same for all output units."""
    return prior_var[0] if bool((prior_var == prior_var[:1]).all()) else prior_var


def _scaled_rows(gradient: Gradient, var: Tensor) -> Tensor:
    """(b, k, o i): J_x var^{1/2}; a variance of inputs is put on them, which costs less than on every row."""
    if var.ndim == 1:
        return Gradient(gradient.inputs * var.sqrt(), gradient.slopes).flat().transpose(0, 1)
    return gradient.flat().transpose(0, 1) * var.sqrt().flatten()


def _expand(var: Tensor, rows: Tensor) -> Tensor:
    """A variance (i,) or (o, i) along rows (..., o i)."""
    if var.ndim == 2:
        return var.flatten()
    return var.repeat(math.prod(rows.shape[-1:]) // len(var))


def _shaped(var: Tensor, matrix: Tensor) -> Tensor:
    """A variance (i,) or (o, i) as it broadcasts against a matrix (o, i)."""
    return var if var.ndim == 2 else var.expand_as(matrix)
