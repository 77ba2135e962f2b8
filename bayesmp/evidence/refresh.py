r"""A pass over the data at the current means: the joint belief, what it says with each example left out, and the
head's constant that follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.basics.arithmetic import few_threads
from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.belief import Belief, Plan
from bayesmp.evidence.each_left_out import can_leave_each_out, leave_each_out, turning_of
from bayesmp.evidence.leave_one_out import leave_out, leverage_share
from bayesmp.evidence.pass_over_data import Evidence, Examples, Slice, make_basis, plan_belief
from bayesmp.heads import Head, Regression
from bayesmp.messages.gaussian import Moments
from bayesmp.network.fitted import Fitted
from bayesmp.network.network import Network
from bayesmp.network.varying_noise import VaryingNoise, learn_varying_noise

SAME_NOISE = 0.01  # change of the logarithm of the noise below which it fits the belief
STORED_NUMBERS = 60_000_000  # features that are kept between the steps of a pass instead of computed again


@dataclass(frozen=True)
class Refreshed:
    """What a pass found.

    Attributes:
        evidence: what the belief about all weights is made of; None if it was not asked for.
        constant: message of all data to the head's constant, one log-likelihood per grid value; None if it is given.
        scores: leave-one-out means over the examples: "nll", and "rmse" or "error" (share of wrong classes).
        outputs: means of the outputs of the examples that were judged, to see whether they still move.
        n_clipped: examples that hold more of their own outputs than a belief that contains them allows.
        judged: inputs and targets of the examples that were judged, and their outputs without them.
        left_out: the same outputs where scores leave out more than the noise is told by: all examples of their groups.
        fitted: how activations are averaged over the belief, where training had an objective.
        weight: how often each of the examples that were judged counts; None: once.
    """

    evidence: Evidence | None
    constant: Tensor | None
    scores: dict[str, float]
    outputs: Tensor
    n_clipped: int
    judged: tuple[Tensor, Tensor, Moments]
    fitted: Fitted | None = None
    left_out: Moments | None = None
    weight: Tensor | None = None

    @property
    def belief(self) -> Belief:
        """About all weights; made when it is asked for."""
        assert self.evidence is not None
        return self.evidence.belief


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
    is_last: bool = False,
    settings: Settings = SETTINGS,
) -> Refreshed:
    """The belief at the network's current means, and its leave-one-out scores.

    Learned noise and belief must fit each other. With little noise every example holds its own output, and without it
    is predicted badly, which looks like much noise; and the other way round. So the noise lies between what was assumed
    and what was told, and where plain repetition would go to and fro for ever, the bracket is halved. The variance of
    labels is judged once in a refresh, which takes longer there, and goes half of the way to what was told.

    Args:
        network: gives means, prior and regime; not changed.
        x, y: training data; x may lie on the host, y is on the network's device.
        log_weights: belief about the head's constant to start from, (k,).
        head_prior: log-prior over it.
        max_examples: look at a random part of the data of this size if there are more; it stands for all.
        max_rank: anchors, where the belief cannot be exact.
        seed: of that part, and of the anchors.
        is_last: that of the end of a run, which may take longer to know what examples hold of their outputs.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(x), generator=generator)[:max_examples]
    x_seen, y_seen = (x, y) if len(chosen) == len(x) else (x[chosen.to(x.device)], y[chosen.to(y.device)])
    weight = len(x) / len(x_seen)
    layout = network.layout
    planned = plan_belief(network, len(x), max_rank=max_rank)
    basis = make_basis(network, x_seen, planned, layout.prior_vars, generator, n_rows=len(x) * network.n_outputs)
    head = network.head
    keeps = len(x_seen) * network.n_outputs * planned.rank <= STORED_NUMBERS
    rounds = settings.noise_rounds if head.is_learned and head.has_noise and keeps else 1
    examples = Examples(network, basis, x_seen, y_seen, weight, keeps=keeps)
    fitting = _NoiseThatFits()
    log_weights = log_weights[head.heard]
    for _ in range(rounds):
        asked = log_weights
        found = _judge(head, examples, asked, len(x), settings, is_last=is_last)
        if found.constant is None:
            break
        total = head_prior[head.heard].to(found.constant) + found.constant * (len(x) / found.n_judged)
        heard = (total - total.max()).to(log_weights)
        assumed, told = (float(head.in_training(part)) for part in (log_weights, heard))
        log_weights = heard
        if abs(math.log(told / assumed)) < SAME_NOISE:
            break
        following = fitting.after(assumed, told)
        if following != told:
            log_weights = _certain(head, following, heard)
    constant = None
    if found.constant is not None:
        constant = _whole_message(head, found) * (len(x) / found.n_judged)
        if head.judges_labels:  # in one round half of the way, and on at the next refresh
            label_var = math.sqrt(assumed * told)
            constant[head.heard] = _certain(head, label_var, constant)
            if network.past is None:  # which knows of the link what its own labels told
                constant += head.prior_given(label_var).to(constant)
        total = head_prior.to(constant) + constant
        log_weights = (total - total.max()).to(log_weights)
    left_out = found.left_out
    if head.has_noise and can_leave_each_out(network, x, weight=weight, settings=settings):
        left_out = leave_each_out(network, found.evidence.belief, x, y, asked, settings=settings).outputs
    scores = scores_of(head, left_out, found.y, log_weights)
    judged = x_seen[: found.n_judged], found.y, found.left_out
    return Refreshed(found.evidence, constant, scores, found.mean, found.n_clipped, judged)


@torch.no_grad()
def noise_at_inputs(network: Network, found: Refreshed, head_prior: Tensor) -> VaryingNoise:
    """How the noise of a regression depends on the input, from what a pass found."""
    assert isinstance(network.head, Regression)
    x, y, left_out = found.judged
    parts = x.split(network.rows_at_once(1))
    hidden = torch.cat([network.linearised.last_inputs(part.to(network.device)) for part in parts])
    past = None if network.yesterday is None else network.yesterday.learned.varying_noise
    with few_threads(torch.device("cpu"), n_products=0):
        told = network.head, hidden, found.outputs, left_out, y, head_prior
        return learn_varying_noise(*told, past=past, weight=found.weight).to(network.device)


class _NoiseThatFits:
    """Looks for the noise that a belief tells which was made with just this noise; with more of it, it tells less.

    Where examples hold their own outputs, little noise tells of much and the other way round, with no end to it. So
    between two noises, one that is too small and one that is too large, the next one follows by false position in
    logarithms. An end that stays counts by half of its gap (the Illinois rule), else it might stay for ever.
    """

    def __init__(self) -> None:
        self.ends: dict[str, tuple[float, float]] = {}  # "small" and "large": logarithm, and how much more it told
        self.last = ""

    def after(self, assumed: float, told: float) -> float:
        """What to try next."""
        gap = math.log(told / assumed)
        end, other = ("small", "large") if gap > 0.0 else ("large", "small")
        if end == self.last and other in self.ends:
            at, there = self.ends[other]
            self.ends[other] = at, 0.5 * there
        self.ends[end], self.last = (math.log(assumed), gap), end
        if len(self.ends) < 2:
            return told
        (small, more), (large, less) = self.ends["small"], self.ends["large"]
        return math.exp(small + (large - small) * more / (more - less))


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
    return plan_belief(network, n_examples)


def products_per_pass(network: Network, n_data: int, *, max_examples: int, max_rank: int) -> int:
    """Multiplications in the largest product of matrices of a refresh."""
    planned = plan_belief(network, n_data, max_rank=max_rank)
    return min(n_data, max_examples) * network.n_outputs * planned.rank**2


# --- leave one out ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judged:
    evidence: Evidence
    mean: Tensor  # with the example
    left_out: Moments  # without
    y: Tensor
    constant: Tensor | None
    n_judged: int
    n_clipped: int


def _judge(
    head: Head, examples: Examples, log_weights: Tensor, n_data: int, settings: Settings, *, is_last: bool
) -> _Judged:
    """Leave-one-out outputs of the first `judged_examples`: of labels, at the end of a run or where they are few, by
    each_left_out.py, and else so:

    One factor for all (`leverage_share`) makes leverages add up. It is about the hold of examples on their own outputs:
    the variance at other inputs, for which they stand when left out, is the belief's own. Only where sweeps take
    activations for noisy, as around convolutions, it stays scaled: pulls are weaker there, leave-one-out a little
    optimistic, and a link that is judged at all of the variance too sharp (lab notes, "leave-one-out, links, widths").
    """
    network = examples.network
    x, y, weight = examples.x, examples.y, examples.weight
    can_leave = can_leave_each_out(network, x, weight=weight, may_take_long=is_last, settings=settings)
    if not head.has_noise and can_leave:
        evidence, _ = examples.ask(log_weights)
        n_judged = settings.judged_examples
        each = leave_each_out(
            network, evidence.belief, x, y, log_weights, weight=weight, n_judged=n_judged, settings=settings
        )
        y = y[: len(each.mean)]
        message = head.to_heard(each.outputs, y).double() if head.is_learned else None
        return _Judged(evidence, each.mean, each.outputs, y, message, len(y), each.taken.n_clipped)
    evidence, answers = examples.ask(log_weights)
    parts: list[tuple[Slice, Tensor]] = []
    n_judged = 0
    for part, covariance in answers:
        parts.append((part, covariance))
        n_judged += len(part.x)
        if n_judged >= settings.judged_examples:
            break
    share = leverage_share(
        head,
        evidence.belief,
        network.past,
        ((part.m_out, covariance, part.y) for part, covariance in parts),
        log_weights,
        n_data=n_data,
    )
    limit, turning = settings.max_leverage[0 if evidence.basis.is_exact else 1], turning_of(network, settings)
    left, n_clipped, constant = [], 0, None
    for part, covariance in parts:
        outputs = part.m_out.mean, share * covariance, part.noise
        found, clipped = leave_out(head, *outputs, part.y, log_weights, limit=limit, turning=turning)
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


def scores_of(
    head: Head, left_out: Moments, y: Tensor, log_weights: Tensor, weight: Tensor | None = None
) -> dict[str, float]:
    if weight is not None:  # of noisy targets
        share = (weight / weight.sum()).to(left_out.mean)
        error = float(share @ (y - left_out.mean).square().mean(1))
        return {"nll": float(share @ head.nll(left_out, y, log_weights)), "rmse": math.sqrt(error)}
    sums = head.train_metrics(left_out, y, log_weights)
    means = {name: float(value) / len(y) for name, value in sums.items()}
    if "mse" in means:
        return {"nll": means["nll"], "rmse": math.sqrt(means["mse"])}
    return {"nll": means["nll"], "error": 1.0 - means["accuracy"]}


def _join(parts: list[Moments]) -> Moments:
    return Moments(torch.cat([part.mean for part in parts]), torch.cat([part.var for part in parts]))
