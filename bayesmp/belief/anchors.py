"""Rows of the slopes of data in all weights, kept layer by layer: the anchors of a belief, or of the past."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.belief.formed_rows import FormedRows
from bayesmp.belief.spread import Spread
from bayesmp.layers.base import Gradient


@dataclass(frozen=True)
class Points:
    """Where rows come from: an input (m, ...) each, and how the outputs there are mixed, (m, o)."""

    x: Tensor
    mixes: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> Points:
        return Points(function(self.x), function(self.mixes))

    def join(self, other: Points) -> Points:
        """These points and others behind them."""
        return Points(torch.cat([self.x, other.x]), torch.cat([self.mixes, other.mixes]))


@dataclass(frozen=True)
class LayerAnchors:
    """The anchors' gradients in one layer: inputs (m, i) and slopes (m, o) of a dense layer, or rows (m, o i).

    A `spread` of the layer's weights must be the same for all output units, unless rows are formed.
    """

    inputs: Tensor | None
    slopes: Tensor | None
    rows: Tensor | None

    @classmethod
    def of(cls, gradient: Gradient, prior_var: Tensor) -> LayerAnchors:
        """From the gradient (1, m, ...) of the anchors."""
        if gradient.inputs.shape[1] == 1 and Spread.of(prior_var).is_even:
            return cls(gradient.inputs[:, 0], gradient.slopes[0, :, 0], None)
        return cls(None, None, gradient.flat()[0])

    def gram(self, spread: Spread) -> Tensor:
        """(m, m) in float64: J_z spread J_z^T."""
        return self.cross(self, spread)

    def cross(self, other: LayerAnchors, spread: Spread) -> Tensor:
        """(m, n) in float64: J_z spread J_x^T for the rows x of others."""
        if self.rows is not None or other.rows is not None:
            return spread.rows(self.formed().double()) @ other.formed().double().T
        assert self.inputs is not None and self.slopes is not None
        assert other.inputs is not None and other.slopes is not None
        products = spread.inputs(self.inputs.double()) @ other.inputs.double().T
        return products * (self.slopes.double() @ other.slopes.double().T)

    def formed(self) -> Tensor:
        """The rows (m, o i) themselves."""
        if self.rows is not None:
            return self.rows
        assert self.inputs is not None and self.slopes is not None
        return (self.slopes[:, :, None] * self.inputs[:, None, :]).flatten(1)

    def join(self, other: LayerAnchors) -> LayerAnchors:
        """These anchors and others behind them, in the precision of these."""
        if self.rows is not None or other.rows is not None:
            return LayerAnchors(None, None, torch.cat([self.formed(), other.formed().to(self.formed())]))
        assert self.inputs is not None and self.slopes is not None
        assert other.inputs is not None and other.slopes is not None
        inputs = torch.cat([self.inputs, other.inputs.to(self.inputs)])
        return LayerAnchors(inputs, torch.cat([self.slopes, other.slopes.to(self.slopes)]), None)

    def factors(self, weights: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Sums of J_z^T S J_z over the inputs, (o, o), and over the outputs, (i, i), for weights S (m, m), float64."""
        if self.rows is not None:
            rows = self.rows.double()
            matrices, mixed = rows.view(-1, *shape), (weights @ rows).view(-1, *shape)
            return torch.einsum("moi,mpi->op", matrices, mixed), torch.einsum("moi,moj->ij", matrices, mixed)
        assert self.inputs is not None and self.slopes is not None
        inputs, slopes = self.inputs.double(), self.slopes.double()
        of_outputs = slopes.T @ (weights * (inputs @ inputs.T)) @ slopes
        return of_outputs, inputs.T @ (weights * (slopes @ slopes.T)) @ inputs

    def products(self, gradient: Gradient, spread: Spread, *, own: bool = True) -> tuple[Tensor, Tensor | None]:
        """J_x spread J_z^T (b, k, m), and J_x spread J_x^T (b, k, k) if asked for."""
        if self.rows is not None:
            rows = FormedRows.of(gradient, spread.values)
            cross = rows.along(spread.root_rows(self.rows))
            return cross, rows.own() if own else None
        assert self.inputs is not None and self.slopes is not None
        inputs, slopes = _factors(gradient)
        cross = (slopes @ self.slopes.T).mul_((spread.inputs(inputs) @ self.inputs.T)[:, None])
        return cross, self.own_product(gradient, spread) if own else None

    def own_product(self, gradient: Gradient, spread: Spread) -> Tensor:
        """J_x spread J_x^T (b, k, k)."""
        if self.rows is not None:
            return FormedRows.of(gradient, spread.values).own()
        inputs, slopes = _factors(gradient)
        size = (inputs * spread.inputs(inputs)).sum(1)[:, None, None]
        return size * (slopes @ slopes.transpose(1, 2))

    def seen(self, gradient: Gradient, rho: Tensor) -> Tensor:
        """(i,): sum over examples and outputs of rho J_oi^2, averaged over o, for rho (b, k)."""
        if gradient.inputs.shape[1] == 1:
            inputs, slopes = _factors(gradient)
            return torch.einsum("bk,bk,bi->i", slopes.square().mean(2), rho, inputs.square())
        matrix = gradient.flat().unflatten(2, (gradient.slopes.shape[3], -1))  # (k, b, o, i)
        return torch.einsum("kboi,bk->i", matrix.square(), rho) / matrix.shape[2]

    def missed(self, gradient: Gradient, rho: Tensor, mixes: Tensor) -> Tensor:
        """(i, i) in float64: sum of rho (J J^T - J J_m^T - J_m J^T) over examples and outputs, averaged over the units
        o, for J_m = mixes J_z: with the sum of rho J_m J_m^T, the square of what J_m misses of J. Rows must not be
        formed.

        Args:
            rho: (b, k).
            mixes: (b, k, m).
        """
        assert self.inputs is not None and self.slopes is not None
        inputs, slopes = _factors(gradient)
        alike = ((slopes @ self.slopes.T) * mixes * rho[..., None]).sum(1)  # (b, m)
        return _missed(gradient, rho, inputs.T @ (alike @ self.inputs))

    def missed_along(self, gradient: Gradient, rho: Tensor, said: Tensor, spanned: Tensor) -> Tensor:
        """The same from the sums (i, o, r) of rho J^T f over examples and outputs, for features f, and the directions
        (i, o, r) that these are about.
        """
        return _missed(gradient, rho, said.flatten(1) @ spanned.flatten(1).T)

    def in_common(self, other: LayerAnchors, weights: Tensor) -> Tensor:
        """(i, i) in float64: sums of J_z^T weights J_x over the output units, for weights (m, n) of these rows and
        others. Rows must not be formed.
        """
        assert self.inputs is not None and self.slopes is not None
        assert other.inputs is not None and other.slopes is not None
        alike = weights * (self.slopes.double() @ other.slopes.double().T)
        return self.inputs.double().T @ alike @ other.inputs.double()

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

    def map(self, function: Callable[[Tensor], Tensor]) -> LayerAnchors:
        parts = (self.inputs, self.slopes, self.rows)
        return LayerAnchors(*(None if part is None else function(part) for part in parts))


def summed(parts: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    """The sums over layers of what `LayerAnchors.products` gives; the first of them is changed in place."""
    cross, whole = parts[0]
    for more_cross, more_whole in parts[1:]:
        cross = cross.add_(more_cross)
        whole = None if whole is None or more_whole is None else whole + more_whole
    return cross, whole


def _missed(gradient: Gradient, rho: Tensor, across: Tensor) -> Tensor:
    """(i, i) in float64: sum of rho J J^T less what it has in common with J_m, (i, i), averaged over units."""
    inputs, slopes = _factors(gradient)
    whole = inputs.T @ (inputs * (rho * slopes.square().sum(2)).sum(1, keepdim=True))
    return (whole - across - across.T).double() / slopes.shape[2]


def _factors(gradient: Gradient) -> tuple[Tensor, Tensor]:
    """Inputs (b, i) and slopes (b, k, o) of a dense layer."""
    return gradient.inputs[:, 0], gradient.slopes[:, :, 0].transpose(0, 1)
