r"""How far the means that training has reached are from the posterior mean of the linearised network.

With e_n the slope and Q_n the precision with which examples speak about their outputs, and H = prior + sum J^T Q J,
that mean lies at m + d,

    H d = sum_n J_n^T e_n - prior (m - m_0)

and the right-hand side is 0 where training is at rest. It comes near and not quite there: what is left is small next to
what all data say, but not next to what one example has to say. So a formula that takes m for the posterior mean, as
that for leaving one out does, needs d. H is never formed: conjugate gradients, with the joint belief as the first guess
of H^{-1}; where the belief is exact, it is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.belief import Belief
from bayesmp.network.graph import Trace
from bayesmp.network.network import Network

KEPT_NUMBERS = 60_000_000  # of traces that are kept between steps instead of swept again


@dataclass(frozen=True)
class Balance:
    """What was found at all examples.

    Attributes:
        steps: J d, how far the outputs at the posterior mean are from those of the network, (n, o); 0 if not all data
            were there to tell.
        leverage: how much of its own outputs each example holds, (n,): unbiased, right in sums over many examples, much
            too rough for one of them. Not asked for (None) where the belief is exact and knows it.
    """

    steps: Tensor
    leverage: Tensor | None


class Lines:
    """All examples as the linearised network has them.

    Args:
        network: at its current means.
        x: the examples, on any device.
        precision: Q, (n, o), with which each speaks about its outputs.
    """

    def __init__(self, network: Network, x: Tensor, precision: Tensor) -> None:
        self.network, self.linearised = network, network.linearised
        size = network.rows_at_once(1)
        self.x, self.precision = x.split(size), precision.split(size)
        width = sum(int(torch.Size(shape).numel()) for shape in network.shapes)
        self.kept = list(self._sweep()) if 4 * len(x) * width <= KEPT_NUMBERS else None

    def _sweep(self) -> Iterator[Trace]:
        for rows in self.x:
            rows = rows.to(self.network.device)
            yield self.network.graph.sweep_out(rows, self.linearised.weights, self.linearised.regime)

    @property
    def traces(self) -> Iterator[Trace]:
        """Sweeps of all examples, in slices."""
        return self._sweep() if self.kept is None else iter(self.kept)

    def along(self, change: Tensor) -> Tensor:
        """J d, (n, o), for a flat change d of all weights."""
        parts = self.network.unpack(change)
        return torch.cat([list(self.network.graph.push(trace, parts))[-1][1] for trace in self.traces])

    def back(self, slopes: Tensor) -> Tensor:
        """sum_n J_n^T s_n, flat, for slopes (n, o)."""
        parts = zip(self.traces, slopes.split(len(self.x[0])), strict=True)
        return torch.stack([self._back(trace, slope) for trace, slope in parts]).sum(0)

    def _back(self, trace: Trace, slope: Tensor) -> Tensor:
        pulled = self.network.graph.pull(trace, slope[None])
        found = [trace.locals[node.index].gradient(part) for node, part in pulled if node.has_weights]
        matrices = [torch.einsum("bpo,bpi->oi", part.slopes[0], part.inputs) for part in found[::-1]]
        return self.network.flat.from_matrices(matrices)

    def curvature(self, change: Tensor) -> Tensor:
        """H d."""
        said = zip(self.traces, self.precision, strict=True)
        parts = self.network.unpack(change)
        found = self.network.prior_pull(change)
        for trace, rho in said:
            moved = list(self.network.graph.push(trace, parts))[-1][1]
            found = found + self._back(trace, rho * moved)
        return found


def find_balance(
    network: Network,
    belief: Belief,
    x: Tensor,
    slope: Tensor,
    precision: Tensor,
    *,
    weight: float = 1.0,
    seed: int = 0,
    settings: Settings = SETTINGS,
) -> Balance:
    """How far the outputs are from the posterior mean, and what examples hold of their own.

    Leverages are the diagonal of A = Q^{1/2} J H^{-1} J^T Q^{1/2}, which is that of A z z^T on average over random
    signs z (Hutchinson): one solution for all examples. A draw tells their sum to about its square root.

    Args:
        network, belief: as trained on x, which are all its data or stand for them.
        slope, precision: e and Q of each example, (n, o).
        weight: for how many of the data each of x stands. Slopes of all data add up to what the prior pulls, those of
            a part of them do not; so nothing is said of the posterior mean where it is above 1.
        seed: of the signs.
    """
    lines = Lines(network, x, weight * precision)

    def guess(vector: Tensor) -> Tensor:
        flat = network.flat
        return flat.from_matrices(belief.solve(flat.to_matrices(vector)))

    def solved(vector: Tensor) -> Tensor:
        if belief.is_exact:
            return guess(vector)
        n_steps, tolerance = settings.balance_steps, settings.balance_tolerance
        return solve(lines.curvature, guess, vector, max_steps=n_steps, tolerance=tolerance)

    steps = torch.zeros_like(slope)
    if weight == 1.0:
        steps = lines.along(solved(lines.back(slope) + _prior_slope(network)))
    if belief.is_exact:
        return Balance(steps, None)
    generator, root = torch.Generator().manual_seed(seed), (weight * precision).sqrt()
    leverage = torch.zeros(len(root), dtype=torch.float64, device=root.device)
    n_draws = settings.leverage_draws if len(x) <= settings.judged_examples else 1  # sums over many are known by one
    for _ in range(n_draws):
        signed = (2.0 * torch.randint(0, 2, root.shape, generator=generator) - 1.0).to(root) * root
        leverage += (signed * lines.along(solved(lines.back(signed)))).sum(1).double()
    return Balance(steps, leverage / (weight * n_draws))


def solve(
    curvature: Callable[[Tensor], Tensor],
    guess: Callable[[Tensor], Tensor],
    slope: Tensor,
    *,
    max_steps: int,
    tolerance: float,
) -> Tensor:
    """H^{-1} applied to a flat slope g, by conjugate gradients.

    Args:
        curvature: H applied to a vector.
        guess: an approximation of H^{-1}, symmetric and positive, applied to a vector.
        max_steps: at most so many products with H.
        tolerance: end where a step adds less than this share to g^T H^{-1} g.
    """
    answer, left, direction = torch.zeros_like(slope), slope, torch.zeros_like(slope)
    size, length = 1.0, 0.0
    for _ in range(max_steps):
        guessed = guess(left)
        last, size = size, float(torch.dot(left.double(), guessed.double()))
        if not size > 0.0:
            break
        direction = guessed + (size / last) * direction
        across = curvature(direction)
        share = size / float(torch.dot(direction.double(), across.double()))
        answer = answer + share * direction
        left = left - share * across
        length += share * size
        if share * size < tolerance * length:
            break
    return answer


def _prior_slope(network: Network) -> Tensor:
    """How prior and past pull at the weights, flat: minus prior (m - m_0)."""
    mean = network.marginal.mean
    prior = network.prior_at(mean)
    return (prior.tau - prior.rho * mean.double()).to(mean)
