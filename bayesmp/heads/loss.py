r"""What targets say about a network's outputs, as training by an objective (evidence/) asks for it.

A loss hears outputs with a covariance V, which is held fixed while the means move, and tells for each example

    value = E loss(u) - tr(L V) / 2,    pull = -E loss'(u),    L = E loss''(u),    u ~ N(outputs, V).

With V = J H^{-1} J^T and H = P + sum_n J^T L J, the sum of all values, of the prior's part and of 1/2 log det H is the
negative evidence bound of the Gaussian belief N(m, H^{-1}) about the linearised network's weights. For Gaussian noise V
falls out of all three, and the bound is the evidence itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from bayesmp.heads.output_points import N_POINTS, output_points, root_of_covariance

LEAST_CURVED = 1e-8  # share of the steepest curvature that every direction has, so that nothing is divided by zero
NUMBERS_AT_ONCE = 4_000_000  # probabilities that are formed at once


@dataclass(frozen=True)
class Root:
    """R with R R^T = L for each example: (n, l) where L is diagonal, else lower triangles (n, l, l)."""

    part: Tensor

    def __len__(self) -> int:
        return len(self.part)

    @property
    def is_diagonal(self) -> bool:
        return self.part.ndim == 2

    def some(self, rows: Tensor | slice) -> Root:
        """Those of some of the examples."""
        return Root(self.part[rows])

    @classmethod
    def joined(cls, parts: Sequence[Root]) -> Root:
        """Those of several parts of the examples."""
        return cls(torch.cat([root.part for root in parts]))

    def times(self, weight: Tensor) -> Root:
        """R of weight L, with one weight per example, (n,)."""
        return Root(self.part * weight.sqrt().view(-1, *[1] * (self.part.ndim - 1)))

    def across(self, rows: Tensor) -> Tensor:
        """R^T rows, for rows (l, n, ...)."""
        if self.is_diagonal:
            return rows * self.part.T.reshape(*rows.shape[:2], *[1] * (rows.ndim - 2))
        return torch.einsum("nlm,ln...->mn...", self.part, rows)

    def solve(self, vectors: Tensor) -> Tensor:
        """R^{-1} v, (n, l)."""
        if self.is_diagonal:
            return vectors / self.part
        return torch.linalg.solve_triangular(self.part, vectors[:, :, None], upper=False)[:, :, 0]

    def solve_transposed(self, vectors: Tensor) -> Tensor:
        """R^{-T} v, (n, l)."""
        if self.is_diagonal:
            return vectors / self.part
        return torch.linalg.solve_triangular(self.part.mT, vectors[:, :, None], upper=True)[:, :, 0]

    def covered(self, covariance: Tensor) -> Tensor:
        """R^T V R, (n, l, l)."""
        if self.is_diagonal:
            return covariance * (self.part[:, :, None] * self.part[:, None, :])
        return self.part.mT @ covariance @ self.part

    def uncovered(self, held: Tensor) -> Tensor:
        """R^{-T} held R^{-1}, (n, l, l): V, where held is R^T V R."""
        if self.is_diagonal:
            return held / (self.part[:, :, None] * self.part[:, None, :])
        half = torch.linalg.solve_triangular(self.part.mT, held, upper=True)
        return torch.linalg.solve_triangular(self.part, half, upper=False, left=False)


@dataclass(frozen=True)
class Said:
    """What targets say about outputs: value (n,), pull (n, l) and the root of the precision, as above."""

    value: Tensor
    pull: Tensor
    root: Root

    def times(self, weight: Tensor) -> Said:
        """The same, each example as often as its weight (n,) says."""
        return Said(self.value * weight, self.pull * weight[:, None], self.root.times(weight))

    def summed(self, index: Tensor, n: int) -> tuple[Tensor, Root]:
        """Pulls and precisions of n groups, whose numbers `index` has for each example."""
        pull = self.pull.new_zeros(n, self.pull.shape[1]).index_add_(0, index, self.pull)
        part = self.root.part
        if self.root.is_diagonal:
            return pull, Root(torch.zeros_like(pull).index_add_(0, index, part.square()).sqrt())
        precision = part.new_zeros(n, *part.shape[1:]).index_add_(0, index, part @ part.mT)
        return pull, Root(torch.linalg.cholesky(precision))


class Loss(ABC):
    """The targets of some examples as a function of l numbers per example, which are mixtures of the outputs.

    Attributes:
        y: the targets.
        mix: (l, k): what of the k outputs the loss depends on; None: all of them, one by one.
    """

    y: Tensor
    mix: Tensor | None = None
    averages = False  # whether it asks for covariances

    @property
    @abstractmethod
    def n_latent(self) -> int:
        """l."""

    @abstractmethod
    def said(self, latent: Tensor, covariance: Tensor | None, rows: Tensor | slice, noise: float) -> Said:
        """What the targets of some examples say at latent numbers (n, l), with covariances (n, l, l)."""

    def constant(self, noise: float, n_counted: float) -> float:
        """What belongs to all examples together, n_counted numbers, and depends on the noise alone."""
        return 0.0

    def best_noise(self, data: float, noise: float, left: float) -> float:
        """The noise that makes all values together smallest, which add up to `data` at this one, if so many numbers are
        left to tell it; a loss without noise stays as it is.
        """
        return noise

    def outputs(self, latent: Tensor) -> Tensor:
        """Outputs (n, k) that have these latent numbers."""
        return latent if self.mix is None else latent @ self.mix

    def output_covariances(self, covariance: Tensor) -> Tensor:
        """Covariances (n, k, k) of these outputs."""
        return covariance if self.mix is None else self.mix.T @ covariance @ self.mix


class SquaredLoss(Loss):
    """Gaussian noise of one variance: |y - f|^2 / (2 noise).

    Args:
        y: (n, k).
        least_miss: by how much one more target is said to be off.
    """

    def __init__(self, y: Tensor, *, least_miss: float = 0.0) -> None:
        self.y, self.least_miss = y, least_miss

    @property
    def n_latent(self) -> int:
        return self.y.shape[1]

    def said(self, latent: Tensor, covariance: Tensor | None, rows: Tensor | slice, noise: float) -> Said:
        miss = self.y[rows] - latent
        root = torch.full_like(miss, 1.0 / math.sqrt(noise))
        return Said(miss.square().sum(1) / (2 * noise), miss / noise, Root(root))

    def constant(self, noise: float, n_counted: float) -> float:
        found = 0.5 * n_counted * math.log(2 * math.pi * noise)
        return found + self.least_miss**2 / (2 * noise) + 0.5 * math.log(noise)

    def best_noise(self, data: float, noise: float, left: float) -> float:
        return (2 * noise * data + self.least_miss**2) / left


class SoftmaxLoss(Loss):
    """Minus log of the label's share in softmax(gain f), averaged over the outputs' covariance at fixed points.

    It depends on differences of outputs alone, u = mix f with k - 1 orthonormal contrasts.

    Args:
        y: labels (n,).
        n_classes: k.
        gain: nats per unit of output.
    """

    averages = True

    def __init__(self, y: Tensor, n_classes: int, gain: float) -> None:
        self.y, self.gain, self.n_classes = y, gain, n_classes
        self.mix = contrasts(n_classes).to(y.device)

    @property
    def n_latent(self) -> int:
        return self.n_classes - 1

    def said(self, latent: Tensor, covariance: Tensor | None, rows: Tensor | slice, noise: float) -> Said:
        n_points = 1 if covariance is None else N_POINTS
        size = max(1, NUMBERS_AT_ONCE // (n_points * self.n_classes))
        latents, labels = latent.split(size), self.y[rows].split(size)
        spreads = [None] * len(labels) if covariance is None else covariance.split(size)
        parts = [self._said(*part) for part in zip(latents, spreads, labels, strict=True)]
        value, pull, root = (torch.cat([part[k] for part in parts]) for k in range(3))
        return Said(value, pull, Root(root))

    def _said(self, latent: Tensor, covariance: Tensor | None, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert self.mix is not None
        drawn = latent[None]
        if covariance is not None:
            points = _points(self.n_latent, latent)
            drawn = latent + torch.einsum("sm,nlm->snl", points, root_of_covariance(covariance))
        log_probs = torch.log_softmax(self.gain * (drawn @ self.mix), 2)  # (s, n, k)
        probs = log_probs.exp()
        value = -log_probs.gather(2, labels.expand(len(drawn), -1)[:, :, None]).mean((0, 2))
        mean = probs.mean(0)
        pull = self.gain * (torch.nn.functional.one_hot(labels, self.n_classes).to(mean) - mean) @ self.mix.T
        mixed = probs @ self.mix.T  # (s, n, l)
        steep = torch.einsum("nk,lk,mk->nlm", mean, self.mix, self.mix)
        curvature = self.gain**2 * (steep - torch.einsum("snl,snm->nlm", mixed, mixed) / len(drawn))
        if covariance is not None:
            value = value - 0.5 * (curvature * covariance).sum((1, 2))
        least = LEAST_CURVED * self.gain**2 * torch.eye(self.n_latent).to(curvature)
        return value, pull, torch.linalg.cholesky(curvature + least)


@cache
def contrasts(n_classes: int) -> Tensor:
    """(k - 1, k): orthonormal rows that sum to zero; row j compares output j + 1 with the mean of those before."""
    found = torch.zeros(n_classes - 1, n_classes, dtype=torch.float64)
    for j in range(1, n_classes):
        found[j - 1, :j], found[j - 1, j] = -1.0 / j, 1.0
    return found / found.norm(dim=1, keepdim=True)


def _points(n: int, like: Tensor) -> Tensor:
    """`output_points` with the covariance of a standard normal, so that what V adds to a parabola is exact. With more
    directions than points, each direction has a variance of 1, and no more is exact.
    """
    points = output_points(n, like.dtype, like.device)
    if n > N_POINTS // 2:  # each point has its mirror image
        return points / points.square().mean(0).sqrt()
    factor = torch.linalg.cholesky(points.T @ points / N_POINTS)
    return torch.linalg.solve_triangular(factor, points.T, upper=False).T
