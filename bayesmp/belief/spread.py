"""Covariances of one layer's weights (o, i) in which output units are independent of each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bayesmp.basics.arithmetic import eigh


@dataclass(frozen=True)
class Spread:
    """A covariance of a layer's weights.

    Attributes:
        values: variances per input, (i,), the same for all output units, or per weight, (o, i); or, if it `couples`
            inputs, their covariance (i, i), the same for all output units.
    """

    values: Tensor
    couples: bool = False

    @classmethod
    def of(cls, prior_var: Tensor) -> Spread:
        """From variances (o, i), as those of the inputs where they are the same for all output units."""
        return cls(prior_var[0] if bool((prior_var == prior_var[:1]).all()) else prior_var)

    @property
    def is_even(self) -> bool:
        """Whether it is the same for all output units."""
        return self.couples or self.values.ndim == 1

    def inputs(self, inputs: Tensor) -> Tensor:
        """Applied to what multiplies the weights of a unit, (..., i); must be even."""
        return inputs @ self.values.to(inputs) if self.couples else inputs * self.values.to(inputs)

    def weights(self, matrix: Tensor) -> Tensor:
        """Applied to a matrix (..., o, i)."""
        return matrix @ self.values.to(matrix) if self.couples else matrix * self.values.to(matrix)

    def along_inputs(self, parts: Tensor) -> Tensor:
        """Applied to (i, o, r), r matrices of weights at once; must be even."""
        values = self.values.to(parts)
        return (values @ parts.flatten(1)).view_as(parts) if self.couples else parts * values[:, None, None]

    def rows(self, rows: Tensor) -> Tensor:
        """Applied to rows (..., o i)."""
        return self.weights(rows.unflatten(-1, (-1, self.values.shape[-1]))).flatten(-2)

    def root_rows(self, rows: Tensor) -> Tensor:
        """Its square root applied to rows (..., o i); must not couple inputs."""
        return Spread(self.values.sqrt()).rows(rows)

    def less(self, precision: Tensor, *, rounding: float) -> Spread:
        """What is left of it behind data that bring this precision to the weights of each unit, (i,) or (i, i).

        Args:
            rounding: by how much the diagonal of the precision may be too small, because of rounding.
        """
        if precision.ndim == 1:
            return Spread(self.values / (1.0 + self.values * (precision + rounding).to(self.values)))
        scale = self.values.double().sqrt()
        eye = torch.eye(len(scale), dtype=scale.dtype, device=scale.device)
        within = eye + scale[:, None] * (precision + rounding * eye) * scale
        factor, fails = torch.linalg.cholesky_ex(within)
        if bool(fails):  # more rounding than that; but data never take anything away
            values, vectors = eigh(within)
            inverse = (vectors / values.clamp_min(1.0)) @ vectors.T
        else:
            inverse = torch.cholesky_inverse(factor)
        found = scale[:, None] * inverse * scale
        return Spread((0.5 * (found + found.T)).to(self.values).contiguous(), couples=True)

    def twice_over(self, prior: Spread) -> Spread:
        """This, the inverse of a prior, and this again."""
        if not self.couples:
            return Spread(self.values.square() / prior.values)
        return Spread(self.values / prior.values.to(self.values) @ self.values, couples=True)

    def variances(self, shape: torch.Size) -> Tensor:
        """Of each weight, (o, i)."""
        return (self.values.diagonal() if self.couples else self.values).expand(shape)

    def variances_given_others(self, shape: torch.Size) -> Tensor:
        """Of each weight if all others were known, (o, i)."""
        if not self.couples:
            return self.values.expand(shape)
        values, vectors = self._spectrum
        return (1.0 / (vectors.square() @ (1.0 / values))).to(self.values).expand(shape)

    def draw_slopes(self, noise: Tensor) -> Tensor:
        """A matrix (o, i) of this spread's precision as covariance, from independent noise (o, i) of variance 1."""
        if not self.couples:
            return noise * self.values.rsqrt()
        values, vectors = self._spectrum
        return ((noise.double() @ vectors * values.rsqrt()) @ vectors.T).to(noise)

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues, those that may be rounding only put up to it, and eigenvectors of a coupled one, in float64."""
        values, vectors = eigh(self.values.double())
        return values.clamp_min(torch.finfo(self.values.dtype).eps * float(values[-1])), vectors

    def map(self, function: Callable[[Tensor], Tensor]) -> Spread:
        return Spread(function(self.values), self.couples)
