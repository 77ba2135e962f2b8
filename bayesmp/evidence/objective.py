r"""The objective that training makes smaller: the negative log evidence of the linearised, smoothed network.

    F(m, t, s, r) = sum_n w_n value_n(f_n; t) + c(t)                           data (heads/loss.py), with noise t if any
               + 1/2 (m - m_0)^T P / (s r) (m - m_0)                          prior, its variances s r times the rule's
               + 1/2 log det H - 1/2 log det P / (s r)                        what the weights' uncertainty costs
               + c/2 (log s + 1 / s) + sum_d b/2 (log r_d + 1 / r_d)          what is known of the widths

with one s for all weights, one r_d for those of each given input, its relevance, and 1 for all others;
H = P / (s r) + sum_n w_n J_n^T L_n J_n, outputs f_n and slopes J_n from a sweep whose activations are averaged over
the belief about their inputs (function.py), L_n the precision of the loss. For noisy targets, where

    sum_n w_n value_n + c(t) = sum_n w_n |y_n - f_n|^2 / (2 t) + N/2 log(2 pi t) + l^2 / (2 t) + 1/2 log t,

with N = sum_n w_n k for k outputs, F = -log p(y) of the network linearised around m, up to a constant; for labels it
bounds that from above. So it compares whole networks.

Its slope in m with H^{-1} = C held fixed is that of "loss + prior + the variance that the belief puts on the outputs",
1/2 sum_n w_n tr(L_n J_n C J_n^T). Noise and widths that make it smallest, with gamma the degrees of freedom, of all
weights or of those of an input:

    t = (sum_n w_n |e_n|^2 + l^2) / (N + 1 - gamma),    e_n = y_n - f_n
    s = (|m - m_0|^2_{P / r} + c) / (gamma + c),    r_d = (|m - m_0|^2_{P / s, d} + b) / (gamma_d + b)

So the weights of an input that tells nothing are drawn to 0, together: this is automatic relevance determination
(MacKay, 1994; Neal, 1996) for the linearised, smoothed network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bayesmp.evidence.curvature import Curvature, OverRows, OverWeights, is_even
from bayesmp.evidence.function import Held, Slopes, SmoothFunction, Variances
from bayesmp.evidence.products import gram
from bayesmp.evidence.witnesses import Witnesses, draw_witnesses
from bayesmp.heads.loss import Loss, Root, Said
from bayesmp.layers.base import Gradient

MAX_EXACT = 1024  # examples, and weights, up to which all of them tell the curvature; for a loss that depends on
MANY_LATENT = 2  # so many numbers or more, twice as many weights, and numbers of examples
ROWS_AT_ONCE = 4_000_000  # numbers of the slopes of all weights that are formed at once: as the caches like it
LEAST_TOLD, TOLD_PER_WEIGHT = 16_384, 32  # numbers that tell the curvature over weights, at least, and for each weight


@dataclass(frozen=True)
class Look:
    """The objective at one point, and what a step from there needs.

    Attributes:
        value: F.
        data: sum of the weighted values of the loss.
        slope: of the loss and the prior in the means, downhill, (w,).
        curvature: H.
        latent: what the loss depends on, of all examples, (n, l).
        pull: slopes of the loss in it, downhill, (n, l); weights counted.
        root: of its precision; weights counted.
    """

    value: float
    data: float
    slope: Tensor
    curvature: Curvature
    latent: Tensor
    pull: Tensor
    root: Root


class Objective:
    """F of a network for some data.

    Args:
        function: the network's, of what the loss depends on.
        prior_mean, prior_rho: of all weights, in the function's order.
        x: inputs of the examples, (n, ...).
        loss: what their targets say.
        weight: how often each example counts, (n,).
        width_counts: directions of the weights that say that the prior is as wide as its rule has it, c.
        relevance_counts: the same for the weights of each given input, b.
    """

    def __init__(
        self,
        function: SmoothFunction,
        prior_mean: Tensor,
        prior_rho: Tensor,
        x: Tensor,
        loss: Loss,
        weight: Tensor,
        *,
        width_counts: float,
        relevance_counts: float,
    ) -> None:
        self.function, self.prior_mean, self.prior_rho = function, prior_mean, prior_rho
        self.x, self.loss, self.weight = x, loss, weight
        self.width_counts, self.relevance_counts = width_counts, relevance_counts
        self._kernels: dict[int, tuple[Tensor, Tensor]] = {}  # of layers whose inputs are given, and for which prior
        self.n_counted = float(weight.sum()) * loss.n_latent
        self.is_over_rows = goes_over_rows(function, prior_rho, len(x), loss.n_latent)

    @cached_property
    def witnesses(self) -> Witnesses | None:
        """The examples that tell the curvature; None: all."""
        n_weights = len(self.prior_rho)
        n_latent = self.loss.n_latent
        room = most_told(n_latent) if self.is_over_rows else max(LEAST_TOLD, TOLD_PER_WEIGHT * n_weights)
        room = max(1, room // n_latent)
        return draw_witnesses(self.x, room) if len(self.x) > room else None

    def is_like(self, other: Objective) -> bool:
        """Whether another one of the same data has the same prior."""
        mine, theirs = (self.prior_mean, self.prior_rho), (other.prior_mean, other.prior_rho)
        return all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))

    def parts(self) -> list[slice]:
        """Examples whose slopes fit into memory at once."""
        numbers = len(self.prior_rho) * (1 if self.function.is_dense else self.loss.n_latent)  # products.py
        if self.is_over_rows:  # where those in each weight are not formed
            numbers = sum(n_in + n_out * self.loss.n_latent for n_out, n_in in self.function.shapes)
        size = max(1, ROWS_AT_ONCE // numbers)
        return [slice(start, start + size) for start in range(0, len(self.x), size)]

    def look(
        self,
        mean: Tensor,
        noise: float,
        width: float,
        variances: Sequence[Variances],
        covariances: Tensor | None = None,
        *,
        relevance: Sequence[Tensor] = (),
        with_slope: bool = True,
    ) -> Look:
        """F at these means. Without its slope, which is NaN then, it takes less time where only some examples tell the
        curvature.

        Args:
            mean, noise, width: where.
            variances: of the sums, one entry per part.
            covariances: (n, l, l) of what the loss depends on, if it averages over them; None: nothing is uncertain.
            relevance: r of the inputs (i,) of each layer whose inputs are given, in order; none: 1.
        """
        rho, change = self.rho_at(width, relevance), mean - self.prior_mean
        shapes = self.function.shapes
        slope = -rho * change if with_slope else torch.full_like(change, math.nan)
        seen: list[tuple[Tensor, Said]] = []
        told: list[Slopes] = []
        data: Tensor | None = None
        for rows, held in zip(self.parts(), variances, strict=True):
            witnesses = None if self.witnesses is None else self.witnesses.within(rows, len(self.x))
            if with_slope or witnesses is None:
                found = self.function.slopes(mean, self.x[rows], held)
                latent = found.outputs
            else:
                latent = self.function.values(mean, self.x[rows], held)
            said = self._said(latent, rows, noise, covariances)
            seen.append((latent, said))
            if with_slope:
                slope = slope + found.mixed(said.pull)
            root = said.root
            if witnesses is not None:
                chosen, weight = witnesses
                if len(chosen) == 0:
                    continue
                found = found.some(chosen) if with_slope else self._slopes_of(mean, rows, held, chosen)
                root = root.some(chosen).times(weight)
            through = found.seen_through(root)
            if self.is_over_rows:
                told.append(through)
                continue
            data = gram(through) if data is None else data.add_(gram(through))
        if self.is_over_rows:
            whole = Slopes.joined(told)
            curvature: Curvature = OverRows(whole, rho, shapes, self._given_kernels(whole, rho))
        else:
            assert data is not None
            curvature = OverWeights(data, rho, shapes)
        latent = torch.cat([part for part, _ in seen])
        value, pull = (torch.cat([getattr(said, name) for _, said in seen]) for name in ("value", "pull"))
        root = Root(torch.cat([said.root.part for _, said in seen]))
        total = float(value.sum())
        objective = total + self._constant(noise, width, relevance) + 0.5 * float((change.square() * rho).sum())
        objective += curvature.half_log_det
        return Look(objective if math.isfinite(objective) else math.inf, total, slope, curvature, latent, pull, root)

    def _said(self, latent: Tensor, rows: slice, noise: float, covariances: Tensor | None) -> Said:
        """What the targets of a part say, as often as they count."""
        said = self.loss.said(latent, None if covariances is None else covariances[rows], rows, noise)
        return said.times(self.weight[rows])

    def _constant(self, noise: float, width: float, relevance: Sequence[Tensor]) -> float:
        known = 0.5 * self.width_counts * (math.log(width) + 1.0 / width)
        known += 0.5 * self.relevance_counts * sum(float((part.log() + 1.0 / part).sum()) for part in relevance)
        return self.loss.constant(noise, self.n_counted) + known

    def rho_at(self, width: float, relevance: Sequence[Tensor]) -> Tensor:
        """Precisions of the prior with these factors on its variances, (w,)."""
        rho = self.prior_rho / width
        parts = self.function.split(rho)  # views
        for layer, factors in zip(self.function.judged, relevance, strict=False):
            parts[layer][:, : len(factors)] /= factors
        return rho

    def _given_kernels(self, found: Slopes, rho: Tensor) -> dict[int, Tensor]:
        """Products of inputs that never change, under this prior; formed once for as long as it stays."""
        parts = self.function.split(rho)
        for layer in self.function.given:
            own = parts[layer][0]
            if layer not in self._kernels or not torch.equal(self._kernels[layer][0], own):
                inputs = found.gradients[layer].inputs[:, 0]
                self._kernels[layer] = own, (inputs / own) @ inputs.T
        return {layer: kernel for layer, (_, kernel) in self._kernels.items()}

    def _slopes_of(self, mean: Tensor, rows: slice, held: Variances, chosen: Tensor) -> Slopes:
        assert isinstance(held, Held)
        return self.function.slopes(mean, self.x[rows][chosen], held.some(chosen))

    def uncertainty_slope(self, mean: Tensor, look: Look, variances: Sequence[Held]) -> Tensor:
        """Slope of 1/2 log det H in the means, uphill, (w,): one sweep out and back of what inputs and slopes of each
        layer change in it.
        """
        total = torch.zeros_like(mean)
        for x, root, held in self.telling(look.root, variances):
            with torch.enable_grad():
                moving = mean.clone().requires_grad_(True)
                found = self.function.slopes(moving, x, held).seen_through(root)
            still = Slopes(found.outputs.detach(), [_detached(part) for part in found.gradients])
            total_change = torch.zeros((), dtype=mean.dtype, device=mean.device)
            with torch.enable_grad():
                pulls = look.curvature.pulls(still, given=self.function.given)
                for gradient, pull in zip(found.gradients, pulls, strict=True):
                    if pull.inputs is not None:
                        total_change = total_change + (gradient.inputs * pull.inputs).sum()
                    total_change = total_change + (gradient.slopes * pull.slopes).sum()
            if total_change.requires_grad:
                total += torch.autograd.grad(total_change, moving)[0]
        return total

    def telling(self, root: Root, variances: Sequence[Held]) -> Iterator[tuple[Tensor, Root, Held]]:
        """The examples that tell the curvature, with the roots of their precisions, as often as they stand for others,
        and their variances: part by part, or over rows all at once.
        """
        found = []
        for rows, held in zip(self.parts(), variances, strict=True):
            part = self.x[rows], root.some(rows), held
            if self.witnesses is not None:
                chosen, weight = self.witnesses.within(rows, len(self.x))
                if len(chosen) == 0:
                    continue
                part = part[0][chosen], part[1].some(chosen).times(weight), held.some(chosen)
            found.append(part)
        if self.is_over_rows and len(found) > 1:
            inputs, roots, spreads = zip(*found, strict=True)
            found = [(torch.cat(inputs), Root.joined(roots), Held.joined(spreads))]
        yield from found

    def unit_variances(self, mean: Tensor, curvature: OverRows, layer: int, variances: Sequence[Held]) -> Tensor:
        """Variances (n, o) that the belief at a point gives the sums of a layer, at all examples."""
        parts = zip(self.parts(), variances, strict=True)
        inputs = (self.function.inputs(mean, self.x[rows], held, layer) for rows, held in parts)
        return torch.cat([curvature.unit_variances(layer, part) for part in inputs])

    def covariances(self, mean: Tensor, look: Look, variances: Sequence[Held]) -> Tensor:
        """What the belief at a point says of what the loss depends on, (n, l, l)."""
        if isinstance(look.curvature, OverRows) and self.witnesses is None:
            return look.root.uncovered(look.curvature.held_by_own)
        found = []
        for rows, held in zip(self.parts(), variances, strict=True):
            root = look.root.some(rows)
            slopes = self.function.slopes(mean, self.x[rows], held).seen_through(root)
            found.append(root.uncovered(look.curvature.held(slopes)))
        return torch.cat(found)

    def best_noise(self, data: float, noise: float, degrees_of_freedom: float, least_share: float) -> float:
        """t as above, where the loss has this value at another noise; data that the network could learn by heart still
        leave a share of them to tell it.
        """
        left = max(self.n_counted + 1.0 - degrees_of_freedom, least_share * (self.n_counted + 1.0))
        return self.loss.best_noise(data, noise, left)

    def best_width(self, mean: Tensor, degrees_of_freedom: float, relevance: Sequence[Tensor] = ()) -> float:
        """s as above."""
        moved = float(((mean - self.prior_mean).square() * self.rho_at(1.0, relevance)).sum())
        return (moved + self.width_counts) / (degrees_of_freedom + self.width_counts)

    def best_relevance(self, mean: Tensor, curvature: Curvature, width: float) -> tuple[Tensor, ...]:
        """r as above, in the order of the layers whose inputs are given; what is no input, a bias, has none."""
        moved = self.function.split((mean - self.prior_mean).square() * self.prior_rho / width)
        found = []
        for layer in self.function.judged:
            freedom = curvature.freedom_by_input(layer).clamp_min(0.0)
            factors = (moved[layer].sum(0) + self.relevance_counts) / (freedom + self.relevance_counts)
            found.append(factors[: self.function.nodes[layer].layer.n_own_inputs])
        return tuple(found)


def most_told(n_latent: int) -> int:
    """Weights, or numbers of examples, up to which all of them tell the curvature. More numbers per example settle more
    directions of the weights.
    """
    return MAX_EXACT * min(n_latent, MANY_LATENT)


def goes_over_rows(function: SmoothFunction, prior_rho: Tensor, n_examples: int, n_latent: int) -> bool:
    """Whether H is kept over rows: where they are fewer than weights, or weights are too many, as long as layers are
    dense and have one prior for all units.
    """
    is_shorter = n_examples * n_latent < len(prior_rho) or len(prior_rho) > most_told(n_latent)
    return is_shorter and function.is_dense and is_even(function.split(prior_rho))


def _detached(gradient: Gradient) -> Gradient:
    return Gradient(gradient.inputs.detach(), gradient.slopes.detach())
