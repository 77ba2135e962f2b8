"""The two faces of a Gaussian message.

Backward messages and beliefs about weights are `Gaussian(tau, rho)`: they multiply by adding, and rho = 0 says
nothing. Forward messages are `Moments(mean, var)`: they are always proper and may be arbitrarily sharp, so var = 0
must be representable while rho = 0 never occurs. Each direction travels in the form in which its limit is finite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gaussian:
    r"""Messages exp(tau x - rho x^2 / 2), one per entry of two tensors of equal shape."""

    tau: Tensor  # precision * mean
    rho: Tensor  # precision; 0 says nothing about x

    @classmethod
    def from_moments(cls, mean: Tensor, var: Tensor) -> Gaussian:
        return cls(mean / var, 1.0 / var)

    @classmethod
    def nothing(cls, like: Tensor) -> Gaussian:
        """The message that says nothing about any entry of a tensor like this one."""
        return cls(torch.zeros_like(like), torch.zeros_like(like))

    def __mul__(self, other: Gaussian) -> Gaussian:
        return Gaussian(self.tau + other.tau, self.rho + other.rho)

    def __truediv__(self, other: Gaussian) -> Gaussian:
        return Gaussian(self.tau - other.tau, self.rho - other.rho)

    def __pow__(self, power: float | Tensor) -> Gaussian:
        return Gaussian(power * self.tau, power * self.rho)

    @property
    def mean(self) -> Tensor:
        return self.tau / self.rho

    @property
    def var(self) -> Tensor:
        return 1.0 / self.rho

    @property
    def shape(self) -> torch.Size:
        return self.tau.shape

    def moments(self) -> Moments:
        return Moments(self.tau / self.rho, 1.0 / self.rho)

    def map(self, function: Callable[[Tensor], Tensor]) -> Gaussian:
        """The same function on both tensors: reshaping, indexing, moving, summing over a batch."""
        return Gaussian(function(self.tau), function(self.rho))


@dataclass(frozen=True, slots=True)
class Moments:
    """Means and variances of proper Gaussians, one per entry; var may be 0."""

    mean: Tensor
    var: Tensor

    def __mul__(self, message: Gaussian) -> Moments:
        r"""Moments of N(mean, var) * message: var' = var / (1 + rho var), mean' = (mean + tau var) / (1 + rho var).

        Note:
            Well defined for rho = 0 and for var = 0, where going through natural parameters is not.
        """
        scale = 1.0 / (1.0 + message.rho * self.var)
        return Moments((self.mean + message.tau * self.var) * scale, self.var * scale)

    @property
    def shape(self) -> torch.Size:
        return self.mean.shape

    def natural(self) -> Gaussian:
        return Gaussian.from_moments(self.mean, self.var)

    def map(self, function: Callable[[Tensor], Tensor]) -> Moments:
        """The same function on both tensors: reshaping, indexing, moving."""
        return Moments(function(self.mean), function(self.var))
