r"""A pass over the data at the current means: the joint belief, what it says with each example left out, and the
head's constant that follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bayesmp.belief import (
    MAX_RANK,
    AnchoredBasis,
    Basis,
    Belief,
    Full,
    FullBasis,
    Plan,
    Points,
    Spectrum,
    plan,
    weighted_gram,
)
from bayesmp.each_left_out import can_leave_each_out, leave_each_out
from bayesmp.gaussian import Moments
from bayesmp.heads.base import Head
from bayesmp.leave_one_out import leave_out
from bayesmp.network import Network
from bayesmp.settings import SETTINGS, Settings

SAME_NOISE = 0.01  # change of the logarithm of the noise below which it fits the belief
STORED_NUMBERS = 60_000_000  # features that are kept between the steps of a pass instead of computed again


@dataclass(frozen=True)
class _Evidence:
    """What all data say in the coordinates of a basis.

    Attributes:
        basis: the coordinates.
        precision: sum_n features^T Lambda features, (r, r); the past's (belief/past.py) with it.
        rows_seen: precision that data bring to the inputs of each layer's weights, (i,), where the basis is not exact.
        n_rows: rows of data, the past's with them.
    """

    basis: Basis
    precision: Tensor
    rows_seen: list[Tensor] | None
    n_rows: int

    @cached_property
    def belief(self) -> Belief:
        return replace(self.basis.believe(self.precision, self.rows_seen), n_rows=self.n_rows)


@dataclass(frozen=True)
class Refreshed:
    """What a pass found.

    Attributes:
        evidence: what the belief about all weights is made of.
        constant: message of all data to the head's constant, one log-likelihood per grid value; None if it is given.
        scores: leave-one-out means over the examples: "nll", and "rmse" or "error" (share of wrong classes).
        outputs: means of the outputs of the examples that were judged, to see whether they still move.
        n_clipped: examples that hold more of their own outputs than a belief that contains them allows.
    """

    evidence: _Evidence
    constant: Tensor | None
    scores: dict[str, float]
    outputs: Tensor
    n_clipped: int

    @property
    def belief(self) -> Belief:
        """About all weights; made when it is asked for."""
        return self.evidence.belief


@dataclass(frozen=True)
class _Slice:
    """Some examples of a pass, with what was computed for them."""

    x: Tensor
    y: Tensor
    m_out: Moments
    noise: Tensor  # the part of the variance that sweeps take for noise
    features: Tensor | None = None
    outside: Tensor | float = 0.0  # prior covariance of the outputs that the features miss


@torch.no_grad()
def refresh(
    network: Network,
    x: Tensor,
    y: Tensor,
    log_weights: Tensor,
    head_prior: Tensor,
    *,
    max_examples: int,
    max_rank: int,
    seed: int = 0,
    settings: Settings = SETTINGS,
) -> Refreshed:
    """The belief at the network's current means, and its leave-one-out scores.

    Learned noise and belief must fit each other. With little noise every example holds its own output, and without it
    is predicted badly, which looks like much noise; and the other way round. So the noise lies between what was assumed
    and what was told, and where plain repetition would go to and fro for ever, the bracket is halved.

    Args:
        network: gives means, prior and regime; not changed.
        x, y: training data; x may lie on the host, y is on the network's device.
        log_weights: belief about the head's constant to start from, (k,).
        head_prior: log-prior over it.
        max_examples: look at a random part of the data of this size if there are more; it stands for all.
        max_rank: anchors, where the belief cannot be exact.
        seed: of that part, and of the anchors.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(x), generator=generator)[:max_examples]
    x_seen, y_seen = (x, y) if len(chosen) == len(x) else (x[chosen.to(x.device)], y[chosen.to(y.device)])
    weight = len(x) / len(x_seen)
    layout = network.layout
    planned = _plan(network, len(x), max_rank=max_rank)
    basis = _make_basis(network, x_seen, planned, layout.prior_vars, generator, n_rows=len(x) * network.n_outputs)
    head = network.head
    keeps = len(x_seen) * network.n_outputs * planned.rank <= STORED_NUMBERS
    rounds = settings.noise_rounds if head.is_learned and head.is_heard_in_training and keeps else 1
    if rounds > 1 and planned.is_exact:
        examples: _Examples = _InOneEigensystem(network, basis, x_seen, y_seen, weight)
    else:
        examples = _Examples(network, basis, x_seen, y_seen, weight, keeps=keeps)
    low, high = 0.0, math.inf
    log_weights = log_weights[head.heard]
    for _ in range(rounds):
        found = _judge(head, examples, log_weights, len(x), settings)
        if found.constant is None:
            break
        total = head_prior[head.heard].to(found.constant) + found.constant * (len(x) / found.n_judged)
        heard = (total - total.max()).to(log_weights)
        assumed, told = (float(head.in_training(part)) for part in (log_weights, heard))
        low, high = (assumed, high) if told > assumed else (low, assumed)
        log_weights = heard
        if abs(math.log(told / assumed)) < SAME_NOISE:
            break
        if not low < told < high:
            log_weights = _certain(head, math.sqrt(low * high), heard)
    constant = None
    if found.constant is not None:
        constant = _whole_message(head, found) * (len(x) / found.n_judged)
        total = head_prior.to(constant) + constant
        log_weights = (total - total.max()).to(log_weights)
    scores = _scores(head, found, log_weights)
    return Refreshed(found.evidence, constant, scores, found.mean, found.n_clipped)


def _certain(head: Head, constant: float, like: Tensor) -> Tensor:
    """The belief in the two values of the grid around this constant, with it as their harmonic mean."""
    grid = head.grid[head.heard]
    above = int(torch.searchsorted(grid, constant).clamp(1, len(grid) - 1))
    low, high = float(grid[above - 1]), float(grid[above])
    share = (1.0 / low - 1.0 / constant) / (1.0 / low - 1.0 / high)
    weights = torch.zeros_like(grid)
    weights[above - 1], weights[above] = 1.0 - share, share
    return weights.clamp_min(1e-30).log().to(like)


def memory_plan(network: Network, n_examples: int) -> Plan:
    """Form and memory of the belief for this many training examples, before anything is trained."""
    return _plan(network, n_examples)


def _plan(network: Network, n_examples: int, *, max_rank: int = MAX_RANK) -> Plan:
    """The form of the belief for this many examples, and the rows that the past has kept."""
    n_kept = 0 if network.past is None else len(network.past)
    return plan(network.layout, n_examples * network.n_outputs + n_kept, max_rank=max_rank)


def products_per_pass(network: Network, n_data: int, *, max_examples: int, max_rank: int) -> int:
    """Multiplications in the largest product of matrices of a refresh."""
    planned = _plan(network, n_data, max_rank=max_rank)
    return min(n_data, max_examples) * network.n_outputs * planned.rank**2


# --- the pass --------------------------------------------------------------------------------------------------------


def _make_basis(
    network: Network,
    x: Tensor,
    planned: Plan,
    prior_vars: list[Tensor],
    generator: torch.Generator,
    *,
    n_rows: int,
) -> Basis:
    """The coordinates. Anchors go to the past and to the n_rows of today as there are data behind them."""
    is_full, past = planned.form == "full", network.past
    room = MAX_RANK if is_full else planned.rank
    older, n_new = None, min(n_rows, room) if is_full else room
    if past is not None:
        n_old = len(past)
        if n_old + n_rows > room:
            n_old = min(n_old, round(room * past.n_rows / (past.n_rows + n_rows)))
        older, older_points = past.some(n_old, generator)
        n_new = min(n_new, room - n_old)
    points: Points | None = _draw_points(network, x, n_new, generator, all_rows=planned.is_exact)
    assert points is not None
    gradients = [] if is_full else network.mixed_gradients(points)[1]
    if older is not None:
        points = None if older_points is None else points.join(older_points)
    if is_full:
        return FullBasis([var.double().sqrt() for var in prior_vars], points)
    return AnchoredBasis.of(gradients, prior_vars, is_exact=planned.is_exact, older=older, points=points)


def _draw_points(network: Network, x: Tensor, n_points: int, generator: torch.Generator, *, all_rows: bool) -> Points:
    """Every output of every example, if asked for and there is room, else a random mixture of those of some."""
    n_outputs = network.n_outputs
    if all_rows and len(x) * n_outputs <= n_points:
        rows = torch.arange(len(x)).repeat_interleave(n_outputs)
        mixes = torch.eye(n_outputs, dtype=x.dtype).repeat(len(x), 1)
    else:
        rows = torch.randperm(len(x), generator=generator)
        rows = rows.repeat(math.ceil(n_points / len(x)))[:n_points]
        mixes = torch.randn(len(rows), n_outputs, generator=generator, dtype=torch.float64)
    return Points(x[rows.to(x.device)].to(network.device), mixes.to(x).to(network.device))


class _Examples:
    """The examples of a pass, a few at a time; with their features kept between its steps, if there is room.

    Args:
        network, basis: where outputs and features come from.
        x, y: the examples.
        weight: for how many of the data each of them stands.
        keeps: whether features are kept.
    """

    def __init__(self, network: Network, basis: Basis, x: Tensor, y: Tensor, weight: float, *, keeps: bool) -> None:
        self.network, self.basis, self.weight = network, basis, weight
        self.x, self.y = x, y
        self.n_rows = round(weight * len(x)) * network.n_outputs
        self.known: Tensor | None = None  # what the past says, in the coordinates of the basis
        if network.past is not None:
            self.n_rows += network.past.n_rows
            features = basis.along(network.past.anchors)
            self.known = features.T @ network.past.weights @ features
        self.kept = list(self.slices(with_features=True)) if keeps else None

    def slices(self, *, with_features: bool, with_outside: bool = False) -> Iterator[_Slice]:
        network = self.network
        size = network.rows_at_once(network.n_outputs)
        for rows, targets in zip(self.x.split(size), self.y.split(size), strict=True):
            rows = rows.to(network.device)
            m_out, gradients, noise = network.gradients_and_noise(rows)
            part = _Slice(rows, targets, m_out, noise)
            if with_features:
                part = replace(part, features=self.basis.features(gradients))
            if with_outside:
                part = replace(part, outside=self.basis.outside(gradients, part.features))
            yield part

    def ask(self, log_weights: Tensor) -> tuple[_Evidence, Iterator[tuple[_Slice, Tensor]]]:
        """What all examples say under this belief about the constant, and with that the covariance of each one's
        outputs (b, o, o), in slices.
        """
        evidence = self.evidence(*self.accumulate(log_weights))
        return evidence, self._covariances(evidence.belief)

    def evidence(self, precision: Tensor, rows_seen: list[Tensor] | None) -> _Evidence:
        """What today's data say, and the past."""
        if self.known is not None and self.network.past is not None:
            precision = precision + self.known
            if rows_seen is not None:
                rows_seen = [new + old.to(new) for new, old in zip(rows_seen, self.network.past.rows_seen, strict=True)]
        return _Evidence(self.basis, precision, rows_seen, self.n_rows)

    def accumulate(self, log_weights: Tensor) -> tuple[Tensor, list[Tensor] | None]:
        """What today's data say in the coordinates of the basis, and what of it the inputs of weights have seen."""
        basis, network = self.basis, self.network
        precision: Tensor | None = None
        rows_seen: list[Tensor] | None = None
        for part in self.slices(with_features=True) if self.kept is None else self.kept:
            rho = network.head.to_latent(part.m_out, part.y, log_weights).rho
            assert part.features is not None
            product = weighted_gram(part.features, rho)
            precision = product if precision is None else precision + product
            if not basis.is_exact:
                seen = _rows_seen(network, part.x, rho)
                rows_seen = seen if rows_seen is None else [a + b for a, b in zip(rows_seen, seen, strict=True)]
        assert precision is not None
        return self.weight * precision, None if rows_seen is None else [self.weight * part for part in rows_seen]

    def _covariances(self, belief: Belief) -> Iterator[tuple[_Slice, Tensor]]:
        for part in self.slices(with_features=False) if self.kept is None else self.kept:
            if isinstance(belief, Full) and part.features is not None:
                found = belief.from_features(part.features)
            else:
                found = belief.covariance(self.network.gradients(part.x)[1])
            yield part, found.to(part.m_out.mean)


class _InOneEigensystem(_Examples):
    """The same for an exact basis that is asked again and again: while the messages differ by a factor only, as with
    another noise, all answers come from one eigensystem.
    """

    def __init__(self, network: Network, basis: Basis, x: Tensor, y: Tensor, weight: float) -> None:
        super().__init__(network, basis, x, y, weight, keeps=False)
        self.kept = list(self.slices(with_features=True, with_outside=True))
        self._rho = y.new_zeros(0)  # with which the eigensystem was made

    def ask(self, log_weights: Tensor) -> tuple[_Evidence, Iterator[tuple[_Slice, Tensor]]]:
        assert self.kept is not None
        to_latent = self.network.head.to_latent
        rho = torch.cat([to_latent(part.m_out, part.y, log_weights).rho for part in self.kept])
        factor = _common_factor(rho, self._rho)
        if factor is None:
            self._rho, factor = rho, 1.0
            is_even = self.known is None and _common_factor(rho, torch.ones_like(rho)) is not None
            if isinstance(self.basis, AnchoredBasis) and is_even:  # the examples are the anchors
                self._precision = self.weight * float(rho.max()) * self.basis.own_precision
            else:
                self._precision, _ = self.accumulate(log_weights)
            self._spectrum = Spectrum.of(self._precision, self.known)
            self._turned = [self._spectrum.turn(part.features) for part in self.kept if part.features is not None]
        precision = factor * self._precision
        whole = torch.diag(precision) if precision.ndim == 1 else precision
        return self.evidence(whole, None), self._scaled(factor)

    def _scaled(self, factor: float) -> Iterator[tuple[_Slice, Tensor]]:
        assert self.kept is not None
        for part, turned in zip(self.kept, self._turned, strict=True):
            yield part, self._spectrum.covariance(turned, part.outside, factor).to(part.m_out.mean)


def _common_factor(values: Tensor, others: Tensor) -> float | None:
    """The number that makes all of the others these values, but for rounding; None if there is none."""
    if values.shape != others.shape:
        return None
    low, high = (float(end) for end in torch.aminmax(values / others))
    return high if high - low <= 8 * torch.finfo(values.dtype).eps * abs(high) else None


def _rows_seen(network: Network, x: Tensor, rho: Tensor) -> list[Tensor]:
    """Per layer (i,): sum over examples and outputs of rho J_oi^2, averaged over o."""
    found = []
    for gradient in network.gradients(x)[1]:
        if gradient.inputs.shape[1] == 1:
            slopes = gradient.slopes[:, :, 0].square().mean(2)  # (k, b)
            found.append(torch.einsum("kb,bk,bi->i", slopes, rho, gradient.inputs[:, 0].square()))
        else:
            matrix = gradient.flat().unflatten(2, (gradient.slopes.shape[3], -1))  # (k, b, o, i)
            found.append(torch.einsum("kboi,bk->i", matrix.square(), rho) / matrix.shape[2])
    return found


# --- leave one out ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judged:
    evidence: _Evidence
    mean: Tensor  # with the example
    left_out: Moments  # without
    y: Tensor
    constant: Tensor | None
    n_judged: int
    n_clipped: int


def _judge(head: Head, examples: _Examples, log_weights: Tensor, n_data: int, settings: Settings) -> _Judged:
    """Leave-one-out outputs of the first `judged_examples`.

    Leverages of all examples, and that of the past, must add up to the degrees of freedom of the belief. Where it is
    not exact they come to more, because what the span misses of an example is spread evenly although its own data lie
    just there; one factor for all puts that right. It is about the hold of examples on their own outputs: the variance
    at other inputs, for which they stand when left out, is the belief's own. Only where sweeps take activations for
    noisy, as around convolutions, it stays scaled: pulls are weaker there, leave-one-out a little optimistic, and a
    link that is judged at all of the variance too sharp (docs/lab-notes.md).
    """
    network = examples.network
    if examples.weight == 1.0 and can_leave_each_out(network, examples.x, settings=settings):
        evidence, _ = examples.ask(log_weights)
        each = leave_each_out(network, evidence.belief, examples.x, examples.y, log_weights, settings=settings)
        message = head.to_heard(each.outputs, examples.y).double() if head.is_learned else None
        return _Judged(evidence, each.mean, each.outputs, examples.y, message, len(each.mean), each.taken.n_clipped)
    evidence, answers = examples.ask(log_weights)
    parts: list[tuple[_Slice, Tensor]] = []
    n_judged = 0
    for part, covariance in answers:
        parts.append((part, covariance))
        n_judged += len(part.x)
        if n_judged >= settings.judged_examples:
            break
    share, limit = 1.0, settings.max_leverage[0]
    if not evidence.basis.is_exact:
        limit = settings.max_leverage[1]
        leverage = sum(
            float((covariance.diagonal(dim1=1, dim2=2) * head.to_latent(part.m_out, part.y, log_weights).rho).sum())
            for part, covariance in parts
        )
        past = examples.network.past
        held = leverage * n_data / n_judged + (0.0 if past is None else evidence.belief.leverage(past))
        share = min(1.0, evidence.belief.degrees_of_freedom / max(held, 1e-30))
    left, n_clipped, constant = [], 0, None
    for part, covariance in parts:
        found, clipped = leave_out(
            head, part.m_out.mean, share * covariance, part.noise, part.y, log_weights, limit=limit
        )
        if not bool(part.noise.any()):
            found = Moments(found.mean, found.var / share)  # as uncertain as predictions for new examples are
        left.append(found)
        n_clipped += clipped
        if head.is_learned:
            message = head.to_heard(found, part.y).double()
            constant = message if constant is None else constant + message
    mean, y = torch.cat([part.m_out.mean for part, _ in parts]), torch.cat([part.y for part, _ in parts])
    return _Judged(evidence, mean, _join(left), y, constant, n_judged, n_clipped)


def _whole_message(head: Head, found: _Judged) -> Tensor:
    """The message of the examples judged to all of the head's grid, where only a part of it is heard in training."""
    assert found.constant is not None
    if len(found.constant) == len(head.grid):
        return found.constant
    left = found.left_out
    parts = zip(left.mean.split(1024), left.var.split(1024), found.y.split(1024), strict=True)
    return torch.stack([head.to_constant(Moments(mean, var), y).double() for mean, var, y in parts]).sum(0)


def _scores(head: Head, found: _Judged, log_weights: Tensor) -> dict[str, float]:
    sums = head.train_metrics(found.left_out, found.y, log_weights)
    means = {name: float(value) / found.n_judged for name, value in sums.items()}
    if "mse" in means:
        return {"nll": means["nll"], "rmse": math.sqrt(means["mse"])}
    return {"nll": means["nll"], "error": 1.0 - means["accuracy"]}


def _join(parts: list[Moments]) -> Moments:
    return Moments(torch.cat([part.mean for part in parts]), torch.cat([part.var for part in parts]))
