"""Rows of the slopes of data in all weights, kept layer by layer: the anchors of a belief, or of the past."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.belief.formed_rows import FormedRows
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
        return self.cross(self, var)

    def cross(self, other: LayerAnchors, var: Tensor) -> Tensor:
        """(m, n) in float64: J_z var J_x^T for the rows x of others."""
        if self.rows is not None or other.rows is not None:
            rows, others = self.formed().double(), other.formed().double()
            return (rows * _expand(var, rows).double()) @ others.T
        assert self.inputs is not None and self.slopes is not None
        assert other.inputs is not None and other.slopes is not None
        products = (self.inputs.double() * var.double()) @ other.inputs.double().T
        return products * (self.slopes.double() @ other.slopes.double().T)

    def formed(self) -> Tensor:
        """The rows (m, o i) themselves."""
        if self.rows is not None:
            return self.rows
        assert self.inputs is not None and self.slopes is not None
        return (self.slopes[:, :, None] * self.inputs[:, None, :]).flatten(1)

    def join(self, other: LayerAnchors) -> LayerAnchors:
        """These anchors and others behind them."""
        if self.rows is not None or other.rows is not None:
            return LayerAnchors(None, None, torch.cat([self.formed(), other.formed().to(self.formed())]))
        assert self.inputs is not None and self.slopes is not None
        assert other.inputs is not None and other.slopes is not None
        inputs, slopes = torch.cat([self.inputs, other.inputs]), torch.cat([self.slopes, other.slopes])
        return LayerAnchors(inputs, slopes, None)

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

    def products(self, gradient: Gradient, var: Tensor, *, own: bool = True) -> tuple[Tensor, Tensor | None]:
        """J_x var J_z^T (b, k, m), and J_x var J_x^T (b, k, k) if asked for."""
        if self.rows is not None:
            rows = FormedRows.of(gradient, var)
            cross = rows.along(self.rows * _expand(var, self.rows).sqrt())
            return cross, rows.own() if own else None
        assert self.inputs is not None and self.slopes is not None
        inputs, slopes = gradient.inputs[:, 0], gradient.slopes[:, :, 0].transpose(0, 1)
        cross = (slopes @ self.slopes.T).mul_(((inputs * var) @ self.inputs.T)[:, None])
        return cross, self.own_product(gradient, var) if own else None

    def own_product(self, gradient: Gradient, var: Tensor) -> Tensor:
        """J_x var J_x^T (b, k, k)."""
        if self.rows is not None:
            return FormedRows.of(gradient, var).own()
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

    def map(self, function: Callable[[Tensor], Tensor]) -> LayerAnchors:
        parts = (self.inputs, self.slopes, self.rows)
        return LayerAnchors(*(None if part is None else function(part) for part in parts))


def even(prior_var: Tensor) -> Tensor:
    """A prior variance (o, i) as (i,) where it is the same for all output units."""
    return prior_var[0] if bool((prior_var == prior_var[:1]).all()) else prior_var


def shaped(var: Tensor, matrix: Tensor) -> Tensor:
    """A variance (i,) or (o, i) as it broadcasts against a matrix (o, i)."""
    return var if var.ndim == 2 else var.expand_as(matrix)


def _expand(var: Tensor, rows: Tensor) -> Tensor:
    """A variance (i,) or (o, i) along rows (..., o i)."""
    if var.ndim == 2:
        return var.flatten()
    return var.repeat(math.prod(rows.shape[-1:]) // len(var))
