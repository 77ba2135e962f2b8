"""The belief over the span of some rows of the training data's slopes, the anchors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesmp.basics.arithmetic import exact_products
from bayesmp.belief import directions
from bayesmp.belief.anchors import LayerAnchors, Points, summed
from bayesmp.belief.base import (
    MOST_COUPLED,
    Belief,
    Gradients,
    Kept,
    chunks,
    from_thin,
    in_dtype,
    lifted,
    root_of,
    thin,
    total,
    weighted_gram,
)
from bayesmp.belief.orthonormal import NEGLIGIBLE, NEGLIGIBLE_WIDE, orthonormal
from bayesmp.belief.past import Past
from bayesmp.belief.rest import rest_coupled, rest_spread_evenly
from bayesmp.belief.spread import Spread
from bayesmp.layers.base import Gradient


@dataclass(frozen=True)
class AnchoredBasis(Kept):
    """Coordinates: an orthonormal basis, under the prior, of the span of the anchors' gradients.

    Where all layers are dense an exact one is kept in float64, and slopes are taken to it: with little noise data
    settle directions along which their rows differ by a millionth, and what is rounded away counts as unknown.
    """

    anchors: list[LayerAnchors]
    prior_vars: list[Tensor]  # (o, i)
    turn: Tensor  # T (m, r), float64
    is_exact: bool
    points: Points | None = None  # where the anchors come from, if that is known
    is_formed: bool = False  # whether the basis is kept as directions, too: rows with many outputs meet it sooner

    @classmethod
    def of(
        cls,
        gradients: Sequence[Gradient],
        prior_vars: list[Tensor],
        *,
        is_exact: bool,
        older: Sequence[LayerAnchors] | None = None,
        points: Points | None = None,
        n_seen: tuple[int, int] = (0, 1),
    ) -> AnchoredBasis:
        """From gradients (1, m, ...): one row of the training data per anchor; and from anchors of the past. Points
        are those of all of them. The examples that it is made for are n_seen[0], with n_seen[1] outputs each.
        """
        is_wide = is_exact and all(part.inputs.shape[1] == 1 for part in gradients)
        dtype = torch.float64 if is_wide else prior_vars[0].dtype
        prior_vars = [var.to(dtype) for var in prior_vars]
        anchors = [LayerAnchors.of(part.to(dtype), var) for part, var in zip(gradients, prior_vars, strict=True)]
        if older is not None:
            anchors = [part.join(more) for part, more in zip(anchors, older, strict=True)]
        grams = [part.gram(Spread.of(var)) for part, var in zip(anchors, prior_vars, strict=True)]
        turn = orthonormal(total(grams), NEGLIGIBLE_WIDE if is_wide else NEGLIGIBLE, by_eigenvectors=is_exact)
        is_dense = turn.device.type == "cpu" and all(part.rows is None for part in anchors)
        shapes = [(len(var), var.shape[1]) for var in prior_vars]
        is_formed = is_dense and directions.pay(shapes, *n_seen, len(turn))
        return cls(anchors, prior_vars, turn, is_exact, points, is_formed)

    @property
    def dtype(self) -> torch.dtype:
        """In which rows meet the anchors."""
        return self.prior_vars[0].dtype

    @cached_property
    def priors(self) -> list[Spread]:
        """The prior, per layer."""
        return [Spread.of(var) for var in self.prior_vars]

    @property
    def couples(self) -> list[bool]:
        """Per layer, whether what the span misses is kept with the covariances of inputs: in networks of dense layers.
        Around shared weights it changes little, and the belief would count far too many degrees of freedom.
        """
        sizes = [0 if anchor.inputs is None else anchor.inputs.shape[1] for anchor in self.anchors]
        return [all(sizes) and size <= MOST_COUPLED for size in sizes]

    def features(self, gradients: Gradients) -> Tensor:
        """(b, k, r): J_x prior_var J_z^T T."""
        if self.is_formed:
            return self.met(gradients, self.formed)
        found: list[Tensor] = []
        for part in self.chunks(gradients):
            cross, _ = self.products(part, self.priors, own=False)
            found.append(cross @ self.turn.to(cross))
        return found[0] if len(found) == 1 else torch.cat(found)

    @cached_property
    def spanned(self) -> list[Tensor]:
        """J_z^T T as directions, (i, o, r) per layer."""
        return [directions.form(anchor, self.turn.to(self.prior_vars[0])) for anchor in self.anchors]

    @cached_property
    def formed(self) -> list[Tensor]:
        """The same under the prior, whose products with rows are their features."""
        return [prior.along_inputs(part) for prior, part in zip(self.priors, self.spanned, strict=True)]

    def met(self, gradients: Gradients, parts: Sequence[Tensor]) -> Tensor:
        """(b, k, r): J_x times directions (i, o, r) of each layer."""
        return torch.cat([directions.along_all(chunk, parts) for chunk in self.wide_chunks(gradients)])

    def wide_chunks(self, gradients: Gradients) -> Iterator[Gradients]:
        given = next(part for part in gradients if part is not None)
        widest = max(len(var) for var in self.prior_vars)
        return chunks(gradients, max(widest, len(given.slopes)) * self.turn.shape[1], directions.AT_ONCE)

    def along(self, anchors: Sequence[LayerAnchors]) -> Tensor:
        """(m, r) in float64: features of m rows that were kept."""
        parts = zip(anchors, self.anchors, self.priors, strict=True)
        return total([rows.cross(own, prior) for rows, own, prior in parts]) @ self.turn

    @property
    def own_precision(self) -> Tensor:
        """(r,): what the anchors themselves would say with precision 1 each, sum_z f f^T, which is diagonal in an exact
        basis.
        """
        return 1.0 / self.turn.square().sum(0)

    def own_products(self, gradients: Gradients, bases: Sequence[Spread]) -> Tensor:
        """(b, k, k): J_x D^{-1} J_x^T over the layers that take part."""
        parts = zip(self.anchors, in_dtype(gradients, self.dtype), bases, strict=True)
        return total([anchor.own_product(part, base) for anchor, part, base in parts if part is not None])

    def chunks(self, gradients: Gradients) -> Iterator[Gradients]:
        given = next(part for part in gradients if part is not None)
        return (in_dtype(chunk, self.dtype) for chunk in chunks(gradients, len(self.turn) * len(given.slopes)))

    def products(self, gradients: Gradients, bases: list[Spread], *, own: bool = True) -> tuple[Tensor, Tensor | None]:
        """The sums of `LayerAnchors.products` over the layers that take part."""
        with exact_products(self.turn.device):
            parts = zip(self.anchors, gradients, bases, strict=True)
            return summed([anchor.products(part, base, own=own) for anchor, part, base in parts if part is not None])

    def said_by(self, gradients: Sequence[Gradient], features: Tensor, rho: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What data with rho (b, k) say in the coordinates, sum_n features^T Lambda features, and `missed_by`."""
        if not self.is_formed:
            return weighted_gram(features, rho), self.missed_by(gradients, features, rho)
        gathered, start = [torch.zeros_like(part) for part in self.formed], 0
        for chunk in self.wide_chunks(gradients):
            given = [gradient for gradient in chunk if gradient is not None]
            rows = slice(start, start + given[0].slopes.shape[1])
            start = rows.stop
            said = features[rows] * rho[rows, :, None]
            for part, gradient in zip(gathered, given, strict=True):
                part += directions.gather(gradient, said)  # J^T Lambda features
        precision = directions.meet(self.formed, gathered)
        parts = zip(self.anchors, gradients, gathered, self.spanned, strict=True)
        missed = [anchor.missed_along(gradient, rho, said, own) for anchor, gradient, said, own in parts]
        return 0.5 * (precision + precision.T), missed

    def missed_by(self, gradients: Sequence[Gradient], features: Tensor, rho: Tensor) -> list[Tensor]:
        """Per layer, what data with rho (b, k) bring to the weights of a unit, averaged over units: (i,) all of it, or,
        where inputs are coupled, (i, i) less twice what the span has in common with it.
        """
        found: list[Tensor] = []
        start = 0
        for part in self.chunks(gradients):
            given = [gradient for gradient in part if gradient is not None]  # all of them
            rows = slice(start, start + given[0].slopes.shape[1])
            start = rows.stop
            mixes = features[rows] @ self.turn.T.to(features)
            own = [
                anchor.missed(gradient, rho[rows], mixes) if couples else anchor.seen(gradient, rho[rows]).double()
                for anchor, gradient, couples in zip(self.anchors, given, self.couples, strict=True)
            ]
            found = own if not found else [a + b for a, b in zip(found, own, strict=True)]
        return found

    def missed_of(self, past: Past) -> list[Tensor]:
        """The same of what the past has kept."""
        shares = past.weights @ self.along(past.anchors) @ self.turn.T  # S f T^T
        found = []
        for k, (of_outputs, of_inputs) in enumerate(past.factors):
            rest = of_inputs.diagonal()
            if self.couples[k]:
                across = past.anchors[k].in_common(self.anchors[k], shares)
                rest = of_inputs - across - across.T
            found.append(rest / len(of_outputs))
        return found

    def believe(self, precision: Tensor, missed: Sequence[Tensor] | None = None) -> Anchored:
        """The belief, given sum_n features^T Lambda features (r, r) and, per layer, `missed_by` of all data."""
        bases, half = list(self.priors), root_of(precision).contiguous()
        if missed is not None and not self.is_exact:
            root = self.turn @ half
            along = root @ root.T
            parts = zip(self.anchors, self.priors, self.prior_vars, missed, self.couples, strict=True)
            bases = [
                rest_coupled(anchor, prior, var.shape, rest, along)
                if couples
                else rest_spread_evenly(anchor, prior, var, rest, along)
                for anchor, prior, var, rest, couples in parts
            ]
        gram = None if self.is_exact else self.within(bases)  # the basis is orthonormal under the prior
        data = half.T @ (half if gram is None else gram @ half)
        factor = torch.linalg.cholesky(data + torch.eye(len(half), dtype=half.dtype, device=half.device))
        reduction = torch.linalg.solve_triangular(factor, half.T, upper=False).T  # R R^T = (M^{-1} + V^T D^{-1} V)^{-1}
        return Anchored(self, bases, half, reduction.contiguous(), gram=gram)

    def within(self, bases: Sequence[Spread]) -> Tensor:
        """V^T D^{-1} V (r, r) in float64."""
        grams = total([anchor.gram(base) for anchor, base in zip(self.anchors, bases, strict=True)])
        return self.turn.T @ (grams @ self.turn)


@dataclass(frozen=True, repr=False)
class Anchored(Belief):
    """H = D + V M V^T: `bases` hold D^{-1}, `half` M^{1/2}, `reduction` R with R R^T = (M^{-1} + V^T D^{-1} V)^{-1}."""

    basis: AnchoredBasis
    bases: list[Spread]
    half: Tensor
    reduction: Tensor
    n_rows: int = 0
    gram: Tensor | None = None  # V^T D^{-1} V (r, r), if it is known

    @property
    def is_exact(self) -> bool:  # type: ignore[override]
        """Whether there is an anchor for every row of the data: a few of them may stand for all."""
        return self.basis.is_exact and self.n_rows <= len(self.basis.turn)

    @property
    def prior_vars(self) -> list[Tensor]:
        return self.basis.prior_vars

    @property
    def rank(self) -> int:
        return len(self.half)

    @cached_property
    def shadow(self) -> Tensor:
        """T R (m, r): what the data took away from a covariance under D, along the anchors."""
        return self.basis.turn @ self.reduction

    def _formed(self, weights: Tensor) -> list[Tensor]:
        """D^{-1} J_z^T T applied to weights (r, q): directions (i, o, q) per layer."""
        parts = [part @ weights.to(part) for part in self.basis.spanned]
        return [base.along_inputs(part) for base, part in zip(self.bases, parts, strict=True)]

    @cached_property
    def _formed_shadow(self) -> list[Tensor]:
        return self._formed(self.reduction)

    @cached_property
    def _formed_across(self) -> list[Tensor]:
        return self._formed(self._inverse_root)

    def covariance(self, gradients: Gradients) -> Tensor:
        found = []
        if self.basis.is_formed:
            for chunk in self.basis.wide_chunks(gradients):
                prior = self.basis.own_products(chunk, self.bases)
                part = self.basis.met(chunk, self._formed_shadow)
                found.append(lifted(prior - part @ part.transpose(1, 2), prior))
            return torch.cat(found)
        for chunk in self.basis.chunks(gradients):
            cross, whole = self.basis.products(chunk, self.bases)
            assert whole is not None
            with exact_products(cross.device):
                part = cross @ self.shadow.to(cross)
                found.append(lifted(whole - part @ part.transpose(1, 2), whole))
        return torch.cat(found)

    def split_covariance(self, gradients: Gradients) -> tuple[Tensor, Tensor | None]:
        """Outside the span of V, under D: J D^{-1} J^T - J D^{-1} V (V^T D^{-1} V)^{-1} V^T D^{-1} J^T."""
        if self.basis.is_exact:
            return self.covariance(gradients), None
        inside, outside = [], []
        for whole, along, part in self._met_both(gradients):
            with exact_products(whole.device):
                span = along @ along.transpose(1, 2)
                outside.append(lifted(whole - span, whole))
                inside.append(lifted(span - part @ part.transpose(1, 2), span))
        return torch.cat(inside), torch.cat(outside)

    def _met_both(self, gradients: Gradients) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """J D^{-1} J^T (b, k, k), and J D^{-1} V times L^{-T} and times R, (b, k, r), of some examples at a time."""
        if self.basis.is_formed:
            for chunk in self.basis.wide_chunks(gradients):
                along, part = (self.basis.met(chunk, parts) for parts in (self._formed_across, self._formed_shadow))
                yield self.basis.own_products(chunk, self.bases), along, part
            return
        across = self.basis.turn @ self._inverse_root
        for chunk in self.basis.chunks(gradients):
            cross, whole = self.basis.products(chunk, self.bases)
            assert whole is not None
            with exact_products(cross.device):
                yield whole, cross @ across.to(cross), cross @ self.shadow.to(cross)

    @cached_property
    def _inverse_root(self) -> Tensor:
        """L^{-T} (r, r) with L L^T = V^T D^{-1} V."""
        gram = self.basis.within(self.bases) if self.gram is None else self.gram
        eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        factor = torch.linalg.cholesky(gram + NEGLIGIBLE * gram.diagonal().mean() * eye)
        return torch.linalg.solve_triangular(factor, eye, upper=False).T.contiguous()

    @property
    def degrees_of_freedom(self) -> float:
        settled = torch.zeros((), dtype=torch.float64, device=self.half.device)
        grams = []
        parts = zip(self.basis.anchors, self.bases, self.basis.prior_vars, self.basis.priors, strict=True)
        for anchor, base, var, prior in parts:
            settled += (1.0 - base.variances(var.shape).double() / var.double()).sum()
            grams.append(anchor.gram(base.twice_over(prior)))
        return float(settled + (total(grams) @ self.shadow * self.shadow).sum())

    def leverage(self, past: Past) -> float:
        parts = list(zip(past.anchors, self.basis.anchors, self.bases, strict=True))
        whole = total([rows.gram(base) for rows, _, base in parts])
        cross = total([rows.cross(own, base) for rows, own, base in parts]) @ self.shadow
        return float(((whole - cross @ cross.T) * past.weights).sum())

    def as_past(self) -> tuple[list[Tensor], Past]:
        """D holds what the span misses, so K has the anchors alone."""
        variances = [
            base.variances_given_others(var.shape) for base, var in zip(self.bases, self.basis.prior_vars, strict=True)
        ]
        shapes = [var.shape for var in variances]
        root = self.basis.turn @ self.half
        return variances, Past(self.basis.anchors, root @ root.T, shapes, self.n_rows, self.basis.points)

    def solve(self, slopes: Sequence[Tensor]) -> list[Tensor]:
        found = [base.weights(slope.to(self.basis.dtype)) for slope, base in zip(slopes, self.bases, strict=True)]
        along = torch.stack([a.along(part) for a, part in zip(self.basis.anchors, found, strict=True)]).sum(0)
        weights = (self.shadow @ (self.shadow.T @ along.double())).to(found[0])
        return [
            (part - base.weights(anchor.mix(weights, part.shape))).to(slopes[0])
            for part, anchor, base in zip(found, self.basis.anchors, self.bases, strict=True)
        ]

    def solve_each(self, gradients: Sequence[Gradient]) -> list[Tensor]:
        cross, _ = self.basis.products(in_dtype(gradients, self.basis.dtype), self.bases, own=False)  # (b, 1, m)
        weights = (cross[:, 0].double() @ self.shadow @ self.shadow.T).to(cross)
        found = []
        for part, anchor, base in zip(gradients, self.basis.anchors, self.bases, strict=True):
            rows = (part.slopes[0].transpose(1, 2) @ part.inputs).to(weights)  # (b, o, i)
            left = rows - torch.stack([anchor.mix(each, rows.shape[1:]) for each in weights])
            found.append(base.weights(left).to(part.slopes))
        return found

    def sample(self, generator: torch.Generator | None = None) -> list[Tensor]:
        """H^{-1} b for b of covariance H = D + V M V^T."""
        noise = torch.randn(self.half.shape[0], dtype=torch.float64, generator=generator).to(self.half)
        weights = (self.basis.turn @ (self.half @ noise)).to(self.bases[0].values)
        slopes = []
        for anchor, base, var in zip(self.basis.anchors, self.bases, self.basis.prior_vars, strict=True):
            own = torch.randn(var.shape, dtype=torch.float64, generator=generator).to(var)
            slopes.append(base.draw_slopes(own) + anchor.mix(weights, var.shape))
        return self.solve(slopes)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "half": thin(self.half), "reduction": thin(self.reduction), "gram": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        r = state["basis"].turn.shape[1]
        self.__dict__.update({**state, **{name: from_thin(state[name], r) for name in ("half", "reduction")}})

    def state(self) -> dict[str, Tensor]:
        found = {"turn": self.basis.turn, "half": thin(self.half), "reduction": thin(self.reduction)}
        for k, anchor in enumerate(self.basis.anchors):
            parts = {"inputs": anchor.inputs, "slopes": anchor.slopes, "rows": anchor.rows}
            found |= {f"{name}.{k}": part for name, part in parts.items() if part is not None}
            found |= {f"base.{k}": self.bases[k].values, f"prior_var.{k}": self.basis.prior_vars[k]}
        if self.basis.points is not None:
            found |= {"points.x": self.basis.points.x, "points.mixes": self.basis.points.mixes}
        return found

    def description(self) -> dict[str, Any]:
        return {
            "form": "anchored",
            "n_layers": len(self.bases),
            "is_exact": self.basis.is_exact,
            "is_wide": self.basis.dtype == torch.float64,
            "is_formed": self.basis.is_formed,
            "n_rows": self.n_rows,
            "couples": [base.couples for base in self.bases],
        }

    def to(self, device: torch.device, dtype: torch.dtype) -> Anchored:
        basis = self.basis
        kept = torch.float64 if basis.is_exact and basis.dtype == torch.float64 else dtype

        def cast(part: Tensor) -> Tensor:
            return part.to(device=device, dtype=kept)

        moved = AnchoredBasis(
            [anchor.map(cast) for anchor in basis.anchors],
            [cast(var) for var in basis.prior_vars],
            basis.turn.to(device),
            basis.is_exact,
            None if basis.points is None else basis.points.map(lambda part: part.to(device=device, dtype=dtype)),
            basis.is_formed and device.type == "cpu",
        )
        bases = [base.map(cast) for base in self.bases]
        return Anchored(moved, bases, self.half.to(device), self.reduction.to(device), self.n_rows)
