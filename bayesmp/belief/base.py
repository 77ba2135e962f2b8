"""What every form of the joint belief answers, which form it takes, and the arithmetic that the forms share."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from bayesmp.basics.arithmetic import eigh, packed, unpacked
from bayesmp.belief.past import Past
from bayesmp.layers.base import Gradient

MAX_RANK = 1024  # dimension of the space in which H is kept; 3 matrices of its square in float64
MOST_COUPLED = 4096  # inputs of a layer whose covariances are kept outside the anchors' span; more take too much room
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


def plan(layout: Layout, n_rows: int, *, max_rank: int = MAX_RANK, room: int = MAX_RANK) -> Plan:
    """The form for a network with this layout and n_rows = examples x outputs of training data.

    The smaller of weights and rows decides: with few weights all of them, with few rows all of those as anchors, both
    exact; with more than `room` of both, max_rank rows as anchors.
    """
    n_weights, room = layout.n_weights, max(room, max_rank)
    if n_weights <= min(n_rows, room):
        return Plan("full", n_weights, True, 8 * n_weights**2)
    is_exact = n_rows <= room
    rank = n_rows if is_exact else max_rank
    per_anchor = sum(sum(part.shape) for part in layout.prior_vars)
    widths = [part.shape[1] for part in layout.prior_vars if part.shape[1] <= MOST_COUPLED and not is_exact]
    per_number = 8 if is_exact else 4
    n_bytes = 24 * rank**2 + per_number * rank * per_anchor + 4 * sum(n**2 for n in widths)
    return Plan("anchored", rank, is_exact, n_bytes)


class Kept:
    """What copies and pickles hold of a dataclass: its fields, without what was computed from them."""

    def __getstate__(self) -> dict[str, Any]:
        return {part.name: getattr(self, part.name) for part in fields(self)}  # type: ignore[arg-type]


class Belief(Kept, ABC):
    """A Gaussian over all weights around their trained means."""

    basis: Any  # coordinates, with the points from which the past can be seen again
    is_exact: bool
    n_rows: int  # of data that it stands for, examples x outputs, those of the past with them

    def __repr__(self) -> str:
        """Whether it is exact, over what, and how many directions data have settled."""
        n_weights = sum(part.numel() for part in self.prior_vars)
        over = f"all {n_weights:,} weights" if self.rank == n_weights else f"{self.rank:,} rows of the data's slopes"
        kind = "exact" if self.is_exact else f"approximate, of {self.n_rows:,} rows"
        return f"Belief({kind}, over {over}; {self.degrees_of_freedom:.1f} of {n_weights:,} directions settled)"

    @property
    @abstractmethod
    def prior_vars(self) -> list[Tensor]:
        """The prior that it was made with, (o, i) per layer."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """Dimension of the space in which H is kept."""

    @abstractmethod
    def covariance(self, gradients: Gradients) -> Tensor:
        """(b, k, k): covariances of k quantities with these gradients, example by example."""

    def split_covariance(self, gradients: Gradients) -> tuple[Tensor, Tensor | None]:
        """`covariance` as the sum of what lies in the span of the belief's coordinates and what lies outside, (b, k, k)
        each; None where nothing does.
        """
        return self.covariance(gradients), None

    @property
    @abstractmethod
    def degrees_of_freedom(self) -> float:
        """How many directions in weight space the data have settled, tr(I - prior H^{-1}): the sum of all leverages."""

    @abstractmethod
    def leverage(self, past: Past) -> float:
        """tr(K H^{-1}): how many of these directions the past has settled, if it is part of the belief."""

    @abstractmethod
    def as_past(self) -> tuple[list[Tensor], Past]:
        """H = D + K apart: the variances D^{-1}, one matrix (o, i) per layer, and K, what data say beside them."""

    @abstractmethod
    def solve(self, slopes: Sequence[Tensor]) -> list[Tensor]:
        """H^{-1} applied to slopes in the weights, one matrix (o, i) per layer."""

    def solve_each(self, gradients: Sequence[Gradient]) -> list[Tensor]:
        """H^{-1} applied to the slopes of one quantity for each example, gradients (1, b, ...): (b, o, i) per layer."""
        rows = [part.slopes[0].transpose(1, 2) @ part.inputs for part in gradients]
        each = [self.solve([row[n] for row in rows]) for n in range(len(rows[0]))]
        return [torch.stack(parts) for parts in zip(*each, strict=True)]

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


def weighted_gram(features: Tensor, rho: Tensor) -> Tensor:
    """sum over examples and outputs of rho f f^T, (r, r) in float64, for features (b, k, r) and rho (b, k)."""
    total = torch.zeros(features.shape[2], features.shape[2], dtype=torch.float64, device=features.device)
    size = max(1, CHUNK.get(features.device.type, CHUNK["cpu"]) // max(1, features[0].numel()))
    step = max(1, -(-features.shape[2] // GRAM_BLOCKS))
    for part, precision in zip(features.split(size), rho.split(size), strict=True):
        rows = (part * precision.to(part).sqrt()[..., None]).flatten(0, 1)
        for start in range(0, rows.shape[1], step):  # what lies below the diagonal is known by symmetry
            stop = start + step
            total[:stop, start:stop] += rows[:, :stop].T @ rows[:, start:stop]
    return total.triu() + total.triu(1).T


def root_of(matrix: Tensor) -> Tensor:
    """F (r, r) with F F^T the matrix, which is symmetric and, but for rounding, not negative."""
    factor, fails = torch.linalg.cholesky_ex(matrix)
    if not bool(fails):
        return factor
    values, vectors = eigh(matrix)
    return (vectors * values.clamp_min(0.0).sqrt()) @ vectors.T


def thin(matrix: Tensor) -> Tensor:
    """A matrix (r, r) as files hold it: its diagonal (r,), where that is all, as with equal noise in an exact basis; or
    its lower triangle (r (r + 1) / 2,), if nothing is above.
    """
    values = matrix.diagonal()
    if matrix.count_nonzero() == values.count_nonzero():
        return values.contiguous()
    return matrix if matrix.triu(1).any() else packed(matrix)


def thin_shapes(r: int) -> tuple[tuple[int, ...], ...]:
    """Those that `thin` may give."""
    return (r,), (r * (r + 1) // 2,), (r, r)


def from_thin(matrix: Tensor, r: int) -> Tensor:
    """The matrix (r, r) of which `thin` was made."""
    if matrix.ndim == 2:
        return matrix
    return torch.diag(matrix) if len(matrix) == r else unpacked(matrix, r)


def chunks(gradients: Gradients, n_numbers: int, least: int = 1) -> Iterator[Gradients]:
    """The gradients of a few examples at a time, as many as can be worked on in cache with n_numbers for each, but not
    fewer than the least.
    """
    given = next(part for part in gradients if part is not None)
    size = max(least, CHUNK.get(given.slopes.device.type, CHUNK["cpu"]) // n_numbers)
    for start in range(0, given.slopes.shape[1], size):
        rows = slice(start, start + size)
        yield [part and Gradient(part.inputs[rows], part.slopes[:, rows]) for part in gradients]


def in_dtype(gradients: Gradients, dtype: torch.dtype) -> Gradients:
    """The same slopes in this precision."""
    return [part and part.to(dtype) for part in gradients]


def total(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape."""
    return functools.reduce(torch.add, parts)


def lifted(found: Tensor, whole: Tensor) -> Tensor:
    """Covariances (b, k, k) left over from `whole`, their variances no smaller than what may be rounding only."""
    floor = torch.finfo(found.dtype).eps * whole.diagonal(dim1=1, dim2=2)
    lift = (floor - found.diagonal(dim1=1, dim2=2)).clamp_min(0.0)
    return found + torch.diag_embed(lift)
