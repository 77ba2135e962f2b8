"""How much each training example has to say about what was learned, from the leverages of the joint belief."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmp.basics import checks
from bayesmp.basics.arithmetic import SMALL_PASS, exact_products, few_threads
from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.belief import Belief
from bayesmp.evidence.each_left_out import can_leave_each_out, leave_each_out, turning_of
from bayesmp.evidence.groups import copies_count_once, groups_of
from bayesmp.evidence.leave_one_out import MOST_HELD, TakenOut, leverage_share, outputs_without, take_out, without_own
from bayesmp.heads.base import P
from bayesmp.messages.gaussian import Moments
from bayesmp.network.fitted import Fitted
from bayesmp.network.network import Network

COLUMNS = ("distance", "loo_nll", "leverage")
SHOWN = 8  # examples in the repr


@dataclass(frozen=True, repr=False)
class Influence:
    """What leaving out single examples would change; one entry per example, on the CPU.

    `print` shows the most surprising examples; `to_rows` is what `pandas.DataFrame` takes.

    Attributes:
        ids: which examples.
        distance: how far the belief about all weights would move, squared, in its own units (Cook's distance); 0 for
            examples that were added or replaced and not visited since, which have said nothing yet.
        loo_nll: surprise, -log p(y | x, all other data) in nats.
        leverage: how much of its own outputs an example holds; over all examples, the degrees of freedom of the belief,
            less those that the past holds (`as_prior`); 0 for those that have said nothing yet.
    """

    ids: Tensor
    distance: Tensor
    loo_nll: Tensor
    leverage: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        """A small table: the examples with the largest loo_nll."""
        if len(self) == 0:
            return "Influence(no examples)"
        shown = self.loo_nll.argsort(descending=True, stable=True)[:SHOWN].tolist()
        rows = [(int(self.ids[k]), *(float(getattr(self, name)[k]) for name in COLUMNS)) for k in shown]
        cells = [["id", *COLUMNS]] + [[str(row[0]), *(f"{value:.3g}" for value in row[1:])] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
        examples = f"{len(self):,} example{'s' if len(self) != 1 else ''}"
        which = f"the {len(rows)} most surprising first" if len(rows) < len(self) else "the most surprising first"
        return "\n".join([f"Influence of {examples}, {which}:", *lines, *(["..."] if len(rows) < len(self) else [])])

    def to_rows(self) -> list[dict[str, float]]:
        """One dictionary per example, in the order of the ids, e.g. for `pandas.DataFrame(influence.to_rows())`: "id",
        "distance", "loo_nll" and "leverage".
        """
        columns = [self.ids.tolist(), *(getattr(self, name).tolist() for name in COLUMNS)]
        return [dict(zip(("id", *COLUMNS), values, strict=True)) for values in zip(*columns, strict=True)]

    def top(self, n: int, by: str = "loo_nll") -> Tensor:
        """The ids of the n examples with the largest `by`, the largest first."""
        checks.check_positive_int(n, "n")
        if by not in COLUMNS:
            raise ValueError(f"by must be one of {COLUMNS}, got {by!r}")
        values: Tensor = getattr(self, by)
        return self.ids[values.argsort(descending=True, stable=True)[:n]]


@dataclass(frozen=True)
class Batch:
    """A batch of a run.

    Attributes:
        id: of the batch; never used again, like the ids of examples.
        rows: ids of its examples, (b,) int64 on the CPU.
        influence: sum of its examples' `Influence.distance`; None before the run has a joint belief.
    """

    id: int
    rows: Tensor
    influence: float | None


@torch.no_grad()
def influence_of(
    network: Network,
    belief: Belief,
    x: Tensor,
    y: Tensor,
    rows: Tensor,
    *,
    weight: Tensor | None = None,
    settings: Settings = SETTINGS,
) -> tuple[Tensor, Tensor, Tensor]:
    """(distance, loo_nll, leverage) of some of the training examples, (b,) each on the CPU.

    Args:
        network, belief: as trained on x and y.
        x, y: all training data.
        rows: which of them.
        weight: how often each of all counts, (n,), where training had an objective; None: copies count once.

    Note:
        Labels are judged as at the end of a run (refresh.py, each_left_out.py), with examples beside those asked for.
        Else, where the belief is not exact, one factor for all makes leverages add up (`leverage_share`); variances
        without an example stay as those of predictions are (refresh.py, which does the same).
    """
    nlls, rest = [], []
    for left in _left_out(network, belief, x, y, rows, weight, settings):
        nlls.append(_surprise(network, left.x, left.outputs, left.y, left.covariance).cpu())
        rest.append(torch.stack([left.distance, left.leverage]).cpu())
    if not rest:
        none = torch.zeros(0, dtype=network.dtype)
        return none, none, none
    distance, leverage = torch.cat(rest, 1)
    return distance, torch.cat(nlls), leverage


@torch.no_grad()
def predict_left_out(
    network: Network[P],
    x: Tensor,
    y: Tensor,
    rows: Tensor,
    *,
    weight: Tensor | None = None,
    settings: Settings = SETTINGS,
) -> P:
    """What is predicted for some of the training examples, each of them left out; their surprise is `loo_nll`.

    Args:
        network: as trained on x and y, with its joint belief.
        x, y: all training data.
        rows: which of them, at least one.
        weight: as for `influence_of`.
    """
    belief, known = network.belief, y if network.past is None else None
    assert belief is not None
    network.head.know_targets(known, network.n_outputs)  # of all labels; it may come from another process
    n_products = network.n_outputs * belief.rank**2
    with exact_products(network.device), few_threads(network.device, n_products=n_products, small=SMALL_PASS):
        parts: list[Any] = [
            network.prediction_of(left.x, left.outputs, left.covariance)
            for left in _left_out(network, belief, x, y, rows, weight, settings)
        ]
    found: P = type(parts[0]).concatenate(parts)
    return found


@dataclass(frozen=True)
class _LeftOut:
    """Some examples, each left out: inputs and targets, outputs without them, and as in `Influence`."""

    x: Tensor
    y: Tensor
    outputs: Moments
    distance: Tensor
    leverage: Tensor
    covariance: Tensor | None = None  # of the outputs, where predictions average over it


def _left_out(
    network: Network,
    belief: Belief,
    x: Tensor,
    y: Tensor,
    rows: Tensor,
    weight: Tensor | None,
    settings: Settings,
) -> Iterator[_LeftOut]:
    """All at once or in slices, in the order of the rows."""
    head, log_weights = network.head, network.head_log_weights
    if len(rows) == 0:
        return
    if network.fitted is not None:
        yield from _left_out_of_objective(network, belief, network.fitted, x, y, rows, weight)
        return
    seen, at, n_judged = _seen(len(x), rows, settings)
    stand_for, inputs, targets = len(x) / len(seen), x[seen.to(x.device)], y[seen.to(y.device)]
    if can_leave_each_out(network, inputs, weight=stand_for, may_take_long=True, settings=settings):
        each = leave_each_out(
            network, belief, inputs, targets, log_weights, weight=stand_for, n_judged=n_judged, settings=settings
        )
        at = at.to(y.device)
        outputs = Moments(each.outputs.mean[at], each.outputs.var[at])
        yield _LeftOut(
            x[rows.to(x.device)], y[rows.to(y.device)], outputs, each.taken.distance[at], each.taken.leverage[at]
        )
        return
    share, limit = _share(network, belief, x, y, settings), settings.max_leverage[0 if belief.is_exact else 1]
    for inputs, targets, m_out, covariance, noise in _outputs(network, belief, x, y, rows):
        taken = take_out(head, m_out.mean, share * covariance, noise, targets, log_weights, limit=limit)
        left = outputs_without(m_out.mean, taken, turning=turning_of(network, settings))
        if not bool(noise.any()):
            left = Moments(left.mean, left.var / share)
        yield _LeftOut(inputs, targets, left, taken.distance, taken.leverage)


def _left_out_of_objective(
    network: Network, belief: Belief, fitted: Fitted, x: Tensor, y: Tensor, rows: Tensor, weight: Tensor | None
) -> Iterator[_LeftOut]:
    """The same where training had an objective: its means are the best ones, pulls are those of its loss, and each
    example goes with those that have equal inputs.
    """
    head, k = network.head, network.n_outputs
    mix = head.latent_mix(k)
    assert mix is not None
    groups, weight = groups_of(x), copies_count_once(x, y) if weight is None else weight.cpu()
    order, sizes = torch.argsort(groups, stable=True), torch.bincount(groups)
    starts = sizes.cumsum(0) - sizes
    done = 0
    for inputs, targets, m_out, covariance, _ in _outputs(network, belief, x, y, rows):
        asked = rows[done : done + len(inputs)]
        done += len(inputs)
        own = groups[asked]
        at = torch.arange(len(asked)).repeat_interleave(sizes[own])  # asked rows, as often as their groups have members
        within = torch.arange(len(at)) - (sizes[own].cumsum(0) - sizes[own]).repeat_interleave(sizes[own])
        members = order[starts[own][at] + within]
        loss = head.loss(y[members.to(y.device)], k)
        assert loss is not None
        part = mix.to(m_out.mean.device)
        latent, spread = m_out.mean.double() @ part.T, part @ covariance.double() @ part.T
        said = loss.said(latent[at], spread[at], slice(None), fitted.noise).times(weight[members].to(latent))
        pull, root = said.summed(at.to(latent.device), len(asked))
        held = root.covered(spread)
        without, n_clipped = without_own(held, torch.ones_like(latent), limit=MOST_HELD)
        taken = TakenOut(held, without, root.solve(pull), torch.ones_like(latent), n_clipped)
        mean = loss.outputs(latent - root.solve_transposed(taken.shift))
        left = loss.output_covariances(root.uncovered(without)).to(m_out.mean)
        mean = mean.to(m_out.mean)
        if head.has_noise:
            mean = targets - fitted.miss_scale * (targets - mean)
        else:
            mean = m_out.mean + fitted.miss_scale * (mean - m_out.mean)
        left = network.belief_scale * left
        var = left.diagonal(dim1=1, dim2=2).clamp_min(torch.finfo(left.dtype).tiny)
        distance, leverage = taken.distance.to(m_out.mean), taken.leverage.to(m_out.mean)
        known = None if head.has_noise else left
        yield _LeftOut(inputs, targets, Moments(mean, var), distance, leverage, covariance=known)


def _seen(n: int, rows: Tensor, settings: Settings) -> tuple[Tensor, Tensor, int]:
    """Which of n examples are looked at to judge these rows, where the rows lie among them, and how many of them, the
    first ones, are judged: leverages are known in sums over many.
    """
    if n <= settings.judged_examples:
        return torch.arange(n), rows, n
    asked, at = rows.unique(return_inverse=True)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    others = order[~torch.isin(order, asked)]
    n_seen = max(len(asked), min(n, settings.final_examples))
    return torch.cat([asked, others])[:n_seen], at, max(len(asked), settings.judged_examples)


def surprise_of(network: Network, x: Tensor, outputs: Moments, y: Tensor, weight: Tensor | None = None) -> float:
    """Mean NLL of targets, given outputs that have not seen them, as predictions for new rows are scored."""
    like = network.prior.rho
    outputs = Moments(outputs.mean.to(like), outputs.var.to(like))
    found = _surprise(network, x.to(like), outputs, y.to(like)).double()
    return float(found.mean() if weight is None else (weight / weight.sum()).to(found) @ found)


def _surprise(network: Network, x: Tensor, outputs: Moments, y: Tensor, covariance: Tensor | None = None) -> Tensor:
    """-log p of the targets, given outputs that have not seen them, (b,); with the noise that there is at x."""
    if covariance is not None:
        return -network.prediction_of(x, outputs, covariance).log_prob(y)
    if network.varying_noise is None:
        return network.head.nll(outputs, y, network.head_log_weights)
    parts = zip(*(part.split(network.rows_at_once(1)) for part in (x, outputs.mean, outputs.var, y)), strict=True)
    found = [network.prediction_of(rows, Moments(mean, var)).log_prob(targets) for rows, mean, var, targets in parts]
    return -torch.cat(found).mean(1)


def _share(network: Network, belief: Belief, x: Tensor, y: Tensor, settings: Settings) -> float:
    """`leverage_share`, from some of the data."""
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: settings.judged_examples]
    seen = ((m_out, covariance, targets) for _, targets, m_out, covariance, _ in _outputs(network, belief, x, y, rows))
    return leverage_share(network.head, belief, network.past, seen, network.head_log_weights, n_data=len(x))


def _outputs(
    network: Network, belief: Belief, x: Tensor, y: Tensor, rows: Tensor
) -> Iterator[tuple[Tensor, Tensor, Moments, Tensor, Tensor]]:
    """Inputs, targets, outputs as sweeps have them, their covariances, and what sweeps take for noise, in slices."""
    for part in rows.split(network.rows_at_once(network.n_outputs)):
        inputs = x[part.to(x.device)].to(network.device)
        m_out, gradients, noise = network.gradients_and_noise(inputs)
        yield inputs, y[part.to(y.device)], m_out, belief.covariance(gradients).to(m_out.mean), noise
