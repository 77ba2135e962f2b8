r"""The joint belief about all weights, N(m, H^{-1}) with H = prior + sum_n J_n^T Lambda_n J_n at the trained means m.

J_n are the slopes of an example's outputs in the weights, Lambda_n is the precision with which its target speaks about
them. The belief is about the *linearised* network, f(m) + J (w - m): the covariance of outputs is J H^{-1} J^T. It is
made by a pass over the data (joint.py) and knows nothing of how training went. Two forms, one rule (`plan`):

`Full`    all weights, where there are few. Exact.
`Anchored` some rows z of the training data's J, the *anchors*. Inside their span H is as above; outside it the data
          that the span misses count as spread evenly over a layer's outputs, in proportion to what each input has seen:
              H = D + V M V^T,   D = prior + what the span misses,   V = J_z^T T an orthonormal basis (under the prior)
          With as many anchors as there are rows in all the span misses nothing, and this is exact, too. Rows of dense
          layers are never formed: J_z J_x^T = (a_z . a_x) (g_z . g_x) for inputs a and slopes g.

Everything a caller asks goes through gradients, one per weight layer (layers/base.py); None stands for a layer that
takes no part, so that a list with one entry asks about the sums of that layer alone.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesmp.arithmetic import eigh, exact_products
from bayesmp.layers.base import Gradient

MAX_RANK = 1024  # dimension of the space in which H is kept; 3 matrices of its square in float64
NEGLIGIBLE = 1e-6  # eigenvalues of the anchors' Gram matrix below this share of the largest are rounding in float32

GRAM_BLOCKS = 4  # of columns, in a product that is symmetric: 5/8 of it are computed
CHUNK = {"cpu": 500_000, "cuda": 64_000_000}  # numbers of a product along the anchors that are at work at once; on a
# CPU they stay in its cache

Gradients = Sequence[Gradient | None]


@dataclass(frozen=True)
class Layout:
    """The weight layers of a network, as matrices (o, i): prior variances, and means as trained."""

    prior_vars: list[Tensor]
    means: list[Tensor]

    @property
    def n_weights(self) -> int:
        return sum(part.numel() for part in self.prior_vars)


@dataclass(frozen=True)
class Plan:
    """Which form the belief takes, and how much memory."""

    form: str  # "full" or "anchored"
    rank: int
    is_exact: bool
    n_bytes: int


def plan(layout: Layout, n_rows: int, *, max_rank: int = MAX_RANK) -> Plan:
    """The form for a network with this layout and n_rows = examples x outputs of training data.

    The smaller of weights and rows decides: with few weights all of them, with few rows all of those as anchors, both
    exact; with many of both, max_rank rows as anchors.
    """
    n_weights = layout.n_weights
    if n_weights <= min(n_rows, MAX_RANK):
        return Plan("full", n_weights, True, 8 * n_weights**2)
    rank = n_rows if n_rows <= MAX_RANK else max_rank
    per_anchor = sum(sum(part.shape) for part in layout.prior_vars)
    return Plan("anchored", rank, n_rows <= MAX_RANK, 24 * rank**2 + 4 * rank * per_anchor)


class Belief(ABC):
    """A Gaussian over all weights around their trained means."""

    is_exact: bool

    @property
    @abstractmethod
    def rank(self) -> int:
        """Dimension of the space in which H is kept."""

    @abstractmethod
    def covariance(self, gradients: Gradients) -> Tensor:
        """(b, k, k): covariances of k quantities with these gradients, example by example."""

    @property
    @abstractmethod
    def degrees_of_freedom(self) -> float:
        """How many directions in weight space the data have settled, tr(I - prior H^{-1}): the sum of all leverages."""

    @abstractmethod
    def solve(self, slopes: Sequence[Tensor]) -> list[Tensor]:
        """H^{-1} applied to slopes in the weights, one matrix (o, i) per layer."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> list[Tensor]:
        """A draw of w - m, one matrix (o, i) per layer."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The tensors to save."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What a file says about the tensors."""

    @abstractmethod
    def to(self, device: torch.device, dtype: torch.dtype) -> Belief:
        """The same on another device, in another precision."""


@dataclass(frozen=True)
class Spectrum:
    """Exact beliefs for any factor c on what the data say, c V diag(values) V^T in the coordinates of a basis."""

    values: Tensor
    vectors: Tensor | None  # None: the coordinates themselves

    @classmethod
    def of(cls, precision: Tensor) -> Spectrum:
        """From (r, r), or (r,) where it is diagonal."""
        if precision.ndim == 1:
            return cls(precision, None)
        values, vectors = eigh(precision)
        return cls(values.clamp_min(0.0), vectors)

    def turn(self, features: Tensor) -> Tensor:
        """Features (b, k, r) along the eigenvectors."""
        return features if self.vectors is None else features @ self.vectors.to(features)

    def covariance(self, turned: Tensor, outside: Tensor | float, factor: float) -> Tensor:
        """(b, k, k), from turned features and what lies outside the span of the basis."""
        left = 1.0 / (1.0 + factor * self.values)
        return (turned * left.to(turned)) @ turned.transpose(1, 2) + outside


# --- all weights -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FullBasis:
    """Coordinates: every weight, in units of its prior std."""

    stds: list[Tensor]  # (o, i) per layer, float64
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

    def outside(self, gradients: Gradients, features: Tensor | None = None) -> float:
        """Covariance under the prior of what lies outside the span: nothing does."""
        return 0.0

    def believe(self, precision: Tensor, rows_seen: Sequence[Tensor] | None = None) -> Full:
        """The belief, given sum_n features^T Lambda features (r, r)."""
        eye = torch.eye(len(precision), dtype=precision.dtype, device=precision.device)
        factor = torch.linalg.cholesky(precision + eye)
        whitener = torch.linalg.solve_triangular(factor, eye, upper=False)
        return Full(self, whitener.contiguous())  # as a file holds it, so that a loaded one gives the same bits


@dataclass(frozen=True)
class Full(Belief):
    """H over all weights; `whitener` W with W^T W = (I + data)^{-1} in units of the prior."""

    basis: FullBasis
    whitener: Tensor
    is_exact = True

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
            part = _total(
                [
                    _whitened(gradient, whitener)
                    for gradient, whitener in zip(chunk, self._whiteners, strict=True)
                    if gradient is not None
                ]
            )
            found.append(part @ part.transpose(1, 2))
        return torch.cat(found)

    def from_features(self, features: Tensor) -> Tensor:
        part = features @ self.whitener.T
        return part @ part.transpose(1, 2)

    @property
    def degrees_of_freedom(self) -> float:
        return len(self.whitener) - float(self.whitener.square().sum())

    def solve(self, slopes: Sequence[Tensor]) -> list[Tensor]:
        stds = self.basis.stds
        flat = torch.cat([(slope.double() * std).flatten() for slope, std in zip(slopes, stds, strict=True)])
        return self._shaped(self.whitener.T @ (self.whitener @ flat), slopes[0].dtype)

    def sample(self, generator: torch.Generator | None = None) -> list[Tensor]:
        noise = torch.randn(len(self.whitener), dtype=torch.float64, generator=generator).to(self.whitener)
        return self._shaped(self.whitener.T @ noise, torch.float64)

    def _shaped(self, flat: Tensor, dtype: torch.dtype) -> list[Tensor]:
        stds = self.basis.stds
        parts = flat.split([std.numel() for std in stds])
        return [(part.view(std.shape) * std).to(dtype) for part, std in zip(parts, stds, strict=True)]

    def state(self) -> dict[str, Tensor]:
        return {"whitener": self.whitener} | {f"std.{k}": std for k, std in enumerate(self.basis.stds)}

    def description(self) -> dict[str, Any]:
        return {"form": "full", "n_layers": len(self.basis.stds)}

    def to(self, device: torch.device, dtype: torch.dtype) -> Full:
        return Full(FullBasis([std.to(device) for std in self.basis.stds]), self.whitener.to(device))


# --- anchors ---------------------------------------------------------------------------------------------------------


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
        values, vectors = eigh(_total(grams))
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
        whole = _total(
            [
                anchor.own_product(gradient, base)
                for anchor, gradient, base in zip(self.anchors, gradients, self.even_vars, strict=True)
                if gradient is not None
            ]
        )
        return _lifted(whole - features @ features.transpose(1, 2), whole)

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
            data = along.T @ _total([a.gram(base) for a, base in zip(self.anchors, bases, strict=True)]) @ along
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
                found.append(_lifted(whole - part @ part.transpose(1, 2), whole))
        return torch.cat(found)

    @property
    def degrees_of_freedom(self) -> float:
        total = torch.zeros((), dtype=torch.float64, device=self.half.device)
        grams = []
        parts = zip(self.basis.anchors, self.bases, self.basis.prior_vars, self.basis.even_vars, strict=True)
        for anchor, base, var, even_var in parts:
            total += (1.0 - _shaped(base, var).double() / var.double()).sum()
            grams.append(anchor.gram(base.square() / even_var))
        return float(total + (_total(grams) @ self.shadow * self.shadow).sum())

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


Basis = FullBasis | AnchoredBasis


def weighted_gram(features: Tensor, rho: Tensor) -> Tensor:
    """sum over examples and outputs of rho f f^T, (r, r) in float64, for features (b, k, r) and rho (b, k)."""
    total = torch.zeros(features.shape[2], features.shape[2], dtype=torch.float64, device=features.device)
    size = max(1, CHUNK.get(features.device.type, CHUNK["cpu"]) // max(1, features[0].numel()))
    step = -(-features.shape[2] // GRAM_BLOCKS)
    for part, precision in zip(features.split(size), rho.split(size), strict=True):
        rows = (part * precision.to(part).sqrt()[..., None]).flatten(0, 1)
        for start in range(0, rows.shape[1], step):  # what lies below the diagonal is known by symmetry
            stop = start + step
            total[:stop, start:stop] += rows[:, :stop].T @ rows[:, start:stop]
    return total.triu() + total.triu(1).T


def from_state(description: dict[str, Any], tensors: dict[str, Tensor]) -> Belief:
    """The belief of a file."""
    layers = range(description["n_layers"])
    if description["form"] == "full":
        return Full(FullBasis([tensors[f"std.{k}"] for k in layers]), tensors["whitener"])
    anchors = [LayerAnchors(*(tensors.get(f"{name}.{k}") for name in ("inputs", "slopes", "rows"))) for k in layers]
    variances = [tensors[f"prior_var.{k}"] for k in layers]
    basis = AnchoredBasis(anchors, variances, tensors["turn"], description["is_exact"])
    return Anchored(basis, [tensors[f"base.{k}"] for k in layers], tensors["half"], tensors["reduction"])


def chunks(gradients: Gradients, n_numbers: int) -> Iterator[Gradients]:
    """The gradients of a few examples at a time, as many as can be worked on in cache with n_numbers for each."""
    given = next(part for part in gradients if part is not None)
    size = max(1, CHUNK.get(given.slopes.device.type, CHUNK["cpu"]) // n_numbers)
    for start in range(0, given.slopes.shape[1], size):
        rows = slice(start, start + size)
        yield [part and Gradient(part.inputs[rows], part.slopes[:, rows]) for part in gradients]


def _whitened(gradient: Gradient, whitener: Tensor) -> Tensor:
    """(b, k, r): rows of a layer's gradient times its whitener (i, o, r)."""
    n_in, n_out, rank = whitener.shape
    if gradient.inputs.shape[1] > 1:
        rows = gradient.flat().transpose(0, 1).to(whitener)  # (b, k, o i)
        return rows @ whitener.transpose(0, 1).reshape(n_out * n_in, rank)
    met = (gradient.inputs[:, 0].to(whitener) @ whitener.flatten(1)).view(-1, n_out, rank)
    return gradient.slopes[:, :, 0].transpose(0, 1).to(whitener) @ met


def _total(parts: Sequence[Tensor]) -> Tensor:
    return functools.reduce(torch.add, parts)


def _lifted(found: Tensor, whole: Tensor) -> Tensor:
    """Covariances (b, k, k) left over from `whole`, their variances no smaller than what may be rounding only."""
    floor = torch.finfo(found.dtype).eps * whole.diagonal(dim1=1, dim2=2)
    lift = (floor - found.diagonal(dim1=1, dim2=2)).clamp_min(0.0)
    return found + torch.diag_embed(lift)


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
