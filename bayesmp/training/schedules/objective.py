"""The schedule with an objective (evidence/): an epoch looks at all batches and moves the means by one step that
lowers it, or stays.

It is the parallel schedule of regressions whose belief is exact: whose weights or whose training targets are few
(`has_objective`). How the data are cut into batches changes nothing but who shares a site: slopes and precisions of all
batches are told at the means where an epoch ends.

Many rows join late. The first epoch goes down on a part of them, many times as many after each rest, until all have
joined; so most steps are cheap, and the first ones most of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.belief import AnchoredBasis, Plan, Points
from bayesmp.evidence import (
    FEWEST_OF_RESTED,
    MANY_LATENT,
    MOST_REFUSED,
    Descent,
    DescentState,
    Look,
    Objective,
    OverRows,
    SmoothFunction,
    falls_no_more,
    is_even,
)
from bayesmp.evidence.groups import copies_count_once, first_of_copies, whole_groups
from bayesmp.evidence.leave_one_out import MOST_HELD, without_own
from bayesmp.evidence.pass_over_data import MAX_EXACT, Evidence, make_basis
from bayesmp.evidence.unseen import Judged, JudgedLabels, belief_scale, miss_scale, miss_scale_of_labels
from bayesmp.heads.loss import Loss
from bayesmp.layers.base import Gradient
from bayesmp.layers.linear import all_dense
from bayesmp.messages.gaussian import Moments
from bayesmp.messages.regime import MOMENTS
from bayesmp.network.fitted import Fitted
from bayesmp.network.linearised import Linearised
from bayesmp.network.network import Network
from bayesmp.sites.sites import Sites
from bayesmp.training.schedules.base import Batch, Kept, Schedule, VisitInfo

SETTLED_AT_ONCE = 16_384  # examples whose slopes are swept at once when sites are told
FEWEST_TO_SHARE = 10  # rows, of which some can be left to judge
MOST_JUDGING = 1000  # rows at once
GROWTH = 16  # factor on the rows that are looked at, when more join
MOST_WEIGHED = 4096  # weights of a network other than dense, whose curvature is a matrix
PART_SLACK = 5  # times as much may be left to fall when more rows join as when a run ends


def has_objective(network: Network, n_examples: int) -> bool:
    """Whether training has an objective: where the head has a loss, and few weights or few examples tell the curvature,
    or some examples can tell it for all. The latter is for dense layers whose units have the same prior (OverRows), and
    for noisy targets of few outputs.
    """
    mix = network.head.latent_mix(network.n_outputs)
    if mix is None or network.past is not None:
        return False
    goes_over_rows = all_dense(network.layers) and is_even(network.flat.to_matrices(network.rule_prior.rho))
    some_tell = network.head.has_noise and len(mix) <= MANY_LATENT
    return network.n_weights <= MAX_EXACT or (goes_over_rows and (some_tell or n_examples * len(mix) <= MAX_EXACT))


def can_have_objective(network: Network) -> bool:
    """Whether training could have an objective if it may take long: with fewer limits than where that is chosen."""
    if network.head.latent_mix(network.n_outputs) is None or network.past is not None:
        return False
    is_dense = all_dense(network.layers) and is_even(network.flat.to_matrices(network.rule_prior.rho))
    return network.n_weights <= MOST_WEIGHED or is_dense


@dataclass(frozen=True)
class LeftOut:
    """Outputs of some examples that have not seen them: means (n, k), covariances (n, k, k), and how many were cut."""

    mean: Tensor
    covariance: Tensor
    n_clipped: int

    @property
    def moments(self) -> Moments:
        var = self.covariance.diagonal(dim1=1, dim2=2)
        return Moments(self.mean, var.clamp_min(torch.finfo(var.dtype).tiny))

    def some(self, rows: Tensor) -> LeftOut:
        """Those of some of the examples."""
        return LeftOut(self.mean[rows], self.covariance[rows], self.n_clipped)


class ObjectiveSchedule(Schedule):
    """State of a run beside the sites: where the descent is.

    Args:
        learn_prior: whether the data choose how wide the prior is; None: where noise is learned and no prior was given.
    """

    takes_all_data = True

    def __init__(
        self,
        network: Network,
        sites: Sites,
        *,
        seed: int,
        learn_prior: bool | None = None,
        settings: Settings = SETTINGS,
    ) -> None:
        super().__init__(network, sites, seed=seed)
        self.settings = settings
        self.learns_noise = network.head.has_noise and network.head.is_learned
        is_stated = network.head.has_noise and not self.learns_noise
        self.has_judges = not (is_stated or network.graph.is_linear)  # else the belief is exact
        self.learn_prior = learn_prior
        mix = network.head.latent_mix(network.n_outputs)
        assert mix is not None
        self.n_latent = len(mix)
        self.function = SmoothFunction(network.graph, network.flat, mix)
        self._state: DescentState | None = None
        self._x: Tensor | None = None
        self._y: Tensor | None = None
        self.sample_weight: Tensor | None = None  # how often each example counts, as the user says (run.py)
        self._weight: Tensor | None = None  # and where nothing was said: copies once
        self.belief_scale = 1.0  # what rows that joined late have judged (evidence/unseen.py)
        self.log_miss = 0.0  # logarithm of their miss scale, times the number of rows
        self._descent: tuple[Tensor, Tensor, Descent] | None = None  # the last one of all data, and what these were

    # --- start and upkeep --------------------------------------------------------------------------------------------

    def start(self, x: Tensor, y: Tensor, *, largest_batch: int) -> None:
        """Sites that hold the weights near the network's starting means, until the first epoch replaces them."""
        network, prior = self.network, self.network.prior
        self.know_targets(y)
        start = network.start.to(prior.rho)
        pull = (self.settings.tightness * network.spread.to(prior.rho)) ** -2
        pull = (pull - prior.rho).clamp_min(0.0)
        self.sites.fill(pull / len(self.sites), self.head_start(y), origin=start)
        self._x, self._y, self._weight = x, y, None
        with torch.inference_mode(False):
            self._weight = self._weight_of(x, y)
            objective = self._objective_of(x[:1], y[:1], torch.arange(1))
            mean = self.function.to_vector(network.start.to(objective.prior_mean))
            noise = self._first_noise(y)
            self._state = Descent.start(objective, mean, noise, self.settings)
            self._state = self._with_rows(self._state, len(y))
        self.refresh()

    def _first_noise(self, y: Tensor) -> float:
        """The noise that is given, or a small share of the targets'."""
        if not self.network.head.has_noise:
            return 1.0
        if not self.learns_noise:
            return float(self.network.head.grid[0])
        spread = float(y.double().square().mean())
        return max(self.settings.first_noise * spread, float(self.network.head.grid[0]))

    def _with_rows(self, state: DescentState, n: int) -> DescentState:
        """The same for another number of examples: what was known of each of them is known no more."""
        spread, changes = list(state.spread), False
        for k, part in enumerate(spread[:-1]):
            if part.ndim < 3 and len(part) != n:
                n_units = self.function.shapes[k][0]
                spread[k] = torch.zeros(n, n_units, dtype=torch.float64, device=state.mean.device)
                changes = True
        covariances = state.covariances
        if covariances.numel() > 0 and len(covariances) != n:
            covariances, changes = covariances.new_zeros(0), True
        return replace(state, spread=tuple(spread), covariances=covariances) if changes else state

    def state(self) -> dict[str, Tensor]:
        assert self._state is not None
        found = {"mean": self._state.mean, "covariances": self._state.covariances}
        found |= {f"relevance.{k}": part for k, part in enumerate(self._state.relevance)}
        return found | {f"spread.{k}": part for k, part in enumerate(self._state.spread[:-1])}

    def counters(self) -> dict[str, float]:
        state = self._state
        assert state is not None
        names = ("noise", "width", "damping", "smoothing", "n_steps", "n_refused")
        numbers = {name: getattr(state, name) for name in names}
        numbers |= {"belief_scale": self.belief_scale, "log_miss": self.log_miss}
        numbers["has_covariances"] = state.covariances.numel() > 0
        return numbers | {f"spread.{k}.ndim": part.ndim for k, part in enumerate(state.spread[:-1])}

    def make_room(self, counters: Mapping[str, float]) -> None:
        """A layer with many inputs has one form of its spread with few rows, and another with many (DescentState)."""
        assert self._state is not None and self._y is not None
        spread = list(self._state.spread)
        for k, part in enumerate(spread[:-1]):
            n_out, n_in = self.function.shapes[k]
            shape = (n_out, n_in, n_in) if counters[f"spread.{k}.ndim"] == 3 else (len(self._y), n_out)
            spread[k] = part if part.shape == shape else part.new_zeros(shape)
        size = (len(self._y), self.n_latent, self.n_latent) if counters["has_covariances"] else (0,)
        covariances = self._state.mean.new_zeros(size)
        self._state = replace(self._state, spread=tuple(spread), covariances=covariances)

    def resume(self, counters: Mapping[str, float]) -> None:
        assert self._state is not None
        numbers = {name: counters[name] for name in ("noise", "width", "damping", "smoothing")}
        counts = {name: int(counters[name]) for name in ("n_steps", "n_refused")}
        self._state = replace(self._state, **numbers, **counts)  # type: ignore[arg-type]
        self.belief_scale, self.log_miss = counters["belief_scale"], counters["log_miss"]

    def refresh(self) -> None:
        """Recompute precisions from the sites; what rounding did to the balance of slopes goes into the shift."""
        network, sites = self.network, self.sites
        exact = sites.posterior(network.prior)
        network.marginal.rho.copy_(exact.rho)
        network.marginal.tau.copy_(exact.rho * sites.origin)
        network.head_log_weights.copy_(sites.head_posterior(self.head_prior))
        sites.shift.sub_((exact.tau - exact.rho * sites.origin).double() / len(sites))

    def rearrange(self, kept: Sequence[Kept], n_new: int, x: Tensor, y: Tensor, *, largest_batch: int) -> None:
        self.know_targets(y)
        self._x, self._y, self._weight = x, y, None
        assert self._state is not None
        with torch.inference_mode(False):
            self._weight = self._weight_of(x, y)
            self._state = self._with_rows(self._state, len(y)).begun_anew()

    def absorb(self, change: Tensor, x: Tensor, y: Tensor, rows: Tensor | None = None) -> None:
        """A step of the means on the examples that stay and have said something, or to the prior's means if none do;
        what it leaves of the change goes into the shift.
        """
        network, sites = self.network, self.sites
        assert self._state is not None
        if bool(change.any()):
            if self._state.n_steps > 0:  # else the first epoch has yet to find the way
                with torch.inference_mode(False), torch.no_grad():
                    self._step_without(x, y, rows)
            moved = self.function.to_flat(self._state.mean).to(sites.origin)
            left = change - network.prior_pull(moved - sites.origin).double()
            sites.shift.sub_(left / len(sites))
            sites.origin.copy_(moved)
        exact = sites.posterior(network.prior)
        network.marginal.rho.copy_(exact.rho)
        network.marginal.tau.copy_(exact.rho * sites.origin)
        network.head_log_weights.copy_(sites.head_posterior(self.head_prior))

    def _step_without(self, x: Tensor, y: Tensor, rows: Tensor | None) -> None:
        """A step on these examples, which are left of others; noise and width wait for the next epoch."""
        assert self._state is not None and self._y is not None
        descent, before = self.descent(x, y, rows), self._state
        if len(y) > 0:
            descent.step()
            found = replace(descent.state, noise=before.noise, width=before.width, relevance=before.relevance)
        else:
            found = replace(before, mean=descent.objective.prior_mean)
        self._state = self._with_rows(found, len(self._y))

    def join(self, parts: Sequence[Schedule]) -> None:
        """Noise and spread are those of all parts on average; width and means follow from all of them (merging.py)."""
        known = [part._state for part in parts if isinstance(part, ObjectiveSchedule) and part._state is not None]
        sizes = [len(part.sites) for part in parts]
        share = [size / sum(sizes) for size in sizes]
        runs = [part for part in parts if isinstance(part, ObjectiveSchedule)]
        self.belief_scale = math.exp(sum(p * math.log(run.belief_scale) for p, run in zip(share, runs, strict=True)))
        self.log_miss = sum(run.log_miss for run in runs)
        assert self._state is not None

        def mean_of(name: str) -> float:
            return math.exp(sum(part * math.log(getattr(one, name)) for part, one in zip(share, known, strict=True)))

        spread = list(self._state.spread)
        for k, own in enumerate(spread):
            if own.ndim == 3:
                spread[k] = torch.stack([p * one.spread[k] for p, one in zip(share, known, strict=True)]).sum(0)
        numbers = {name: mean_of(name) for name in ("noise", "smoothing")} | {"width": self.network.prior_width}
        relevance = tuple(part.to(self._state.mean) for part in self.network.relevances) or self._state.relevance
        n_steps = max(one.n_steps for one in known)
        known_now = {"spread": tuple(spread), "relevance": relevance, "n_steps": n_steps}
        self._state = replace(self._state, **known_now, **numbers)  # type: ignore[arg-type]

    # --- an epoch ----------------------------------------------------------------------------------------------------

    def visit(self, batch: Batch, epoch: int) -> VisitInfo:
        raise AssertionError("the objective is that of all data: `run_epoch` looks at all batches at once")

    def run_epoch(self, members: Sequence[Tensor], epoch: int, groups: Tensor) -> tuple[VisitInfo, float]:
        """One step on all data, after some on parts of them in the first epoch; returns what the epoch has to tell, and
        the objective where the step began. The marginal is that of the curvature at its end; sites follow when they are
        asked for (`settle`), and nothing here depends on when that is.
        """
        x, y = self._x, self._y
        assert x is not None and y is not None and self._state is not None
        with torch.inference_mode(False), torch.no_grad():
            self._take_origin()
            if self._state.n_steps == 0:
                self._find_the_way(x, y, groups)
            descent = self.descent(x, y)
            noise = descent.state.noise
            info = descent.step_or_stay()
            self._state = descent.state
            relevance = self._state.relevance if self.learns_width else ()
            self.network.widen_prior(self._state.width, relevance)
            self.sites.origin.copy_(self.function.to_flat(self._state.mean).to(self.sites.origin))
            metrics = self._metrics(info.look, descent.objective.loss, noise)
            moved = (info.moved.square() * info.look.curvature.diagonal).amax().sqrt()
            self._tell_marginal(info.look)
        share = torch.ones(len(self.function.nodes)) * (0.0 if descent.state.n_refused else 1.0)
        nothing = torch.zeros((), dtype=torch.int64)
        return VisitInfo(share, nothing, 1, moved, metrics), info.value

    def _tell_marginal(self, look: Look) -> None:
        """Let the network's marginal be that of the means reached, which `settle` will tell exactly."""
        marginal = self.network.marginal
        marginal.rho.copy_(self.function.to_flat(look.curvature.diagonal))
        marginal.tau.copy_(marginal.rho * self.sites.origin)

    def _find_the_way(self, x: Tensor, y: Tensor, groups: Tensor) -> None:
        """The way down, until the descent is at rest: on all data if they are few, else on some of them, which others
        join, 16 times as many after each rest, until the next look is at all of them. Rows that have not been seen yet
        judge how wide the belief is, unless it is exact; where all are seen at once, rehearsals leave some out.
        """
        n, first_rows = len(y), self.settings.first_rows
        order = torch.argsort(torch.randperm(int(groups.max()) + 1, generator=self.generator(0))[groups], stable=True)
        n_joined = self._joined(first_rows, n)
        judges = self.has_judges and n >= FEWEST_TO_SHARE
        if self.has_judges:
            settings = self.settings  # until rows have judged
            self.belief_scale = settings.expected_scale if self.learns_noise else settings.expected_scale_of_labels
        rehearsed = self._rehearse(x, y, order, groups) if judges and n_joined == n else None
        descent = self.descent(*_some(x, y, order, n_joined))
        descent.fit()
        descent.rest()
        descent = descent.smoothed_as_it_pays()
        if rehearsed is not None:
            self._hear_unseen(*rehearsed, descent, groups)
        elif judges and n_joined < n:  # a rehearsal finds no rows where a few groups hold nearly all
            unseen = self._unseen(descent, x, y, self._once(x, y, order[n_joined : n_joined + MOST_JUDGING]))
            self.belief_scale = belief_scale(unseen, settings=self.settings)
        while n_joined < n:
            n_joined = self._joined(GROWTH * n_joined, n)
            if n_joined < n:
                descent = self.descent(*_some(x, y, order, n_joined), state=descent.state.begun_anew())
                descent.rest(fewest=FEWEST_OF_RESTED, slack=PART_SLACK)
        self._state = self._with_rows(descent.state.begun_anew(), n)  # if interrupted, it begins anew

    @staticmethod
    def _joined(n: int, n_all: int) -> int:
        """How many rows are looked at next; the last part that joins is not a small one."""
        return n if 2 * n <= n_all else n_all

    def _rehearse(
        self, x: Tensor, y: Tensor, order: Tensor, groups: Tensor
    ) -> tuple[Tensor, Judged | JudgedLabels] | None:
        """Descents to a first rest, each without other rows; which rows these were, and what was predicted for them."""
        n, settings = len(order), self.settings
        n_late = math.ceil(settings.late_share * n)
        n_rehearsals = min(settings.most_rehearsals, n // n_late, math.ceil(settings.judging_rows / n_late))
        left, found = [], []
        for k in range(n_rehearsals):
            rolled = order.roll(-k * n_late)
            late, rows = rolled[:n_late], rolled[n_late:]
            late = late[~torch.isin(groups[late], groups[rows])]  # a group may be cut in two
            late = self._once(x, y, late)
            if len(late) == 0:
                continue
            descent = self.descent(x[rows.to(x.device)], y[rows.to(y.device)], rows)
            descent.fit()
            descent.rest(slack=PART_SLACK)
            left.append(late)
            found.append(self._unseen(descent, x, y, late))
        return (torch.cat(left), type(found[0]).joined(found)) if left else None  # type: ignore[arg-type]

    def _once(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """These rows, each of those that are known as copies of each other once."""
        if len(rows) == 0 or self.sample_weight is not None:
            return rows
        if not bool((self._weight_of(x, y)[rows.to(self.network.device)] < 1.0).any()):
            return rows
        return rows[first_of_copies(x[rows.to(x.device)].cpu(), y[rows.to(y.device)].cpu())]

    def _hear_unseen(self, rows: Tensor, unseen: Judged | JudgedLabels, descent: Descent, groups: Tensor) -> None:
        """Let the belief be as wide as rehearsals say, and the formula's misses as large."""
        self.belief_scale = belief_scale(unseen, settings=self.settings)
        told = self.judged_rows(descent, groups)
        look, loss = descent.look(), descent.objective.loss
        (found,) = self.left_out(descent, look, told, groups)
        place = torch.full((len(groups),), -1).index_put((told,), torch.arange(len(told)))[rows]
        is_told = place >= 0
        rows, place = rows[is_told], place[is_told].to(found.mean.device)
        known = self.belief_scale
        if isinstance(unseen, JudgedLabels):
            left_out = JudgedLabels.of(
                self.network.head, self.certain(1.0), found.mean[place], found.covariance[place], loss.y[rows]
            )
            seen = loss.outputs(look.latent[rows])
            scale = miss_scale_of_labels(unseen.some(is_told), seen, left_out, known, settings=self.settings)
        else:
            left, y = found.moments, loss.y
            unseen = unseen.some(is_told, y.shape[1])
            missed = Judged.of(y[rows] - left.mean[place], left.var[place], descent.state.noise)
            scale = miss_scale(unseen, missed, known, settings=self.settings)
        self.log_miss = len(groups) * math.log(scale)

    def _unseen(self, descent: Descent, x: Tensor, y: Tensor, rows: Tensor) -> Judged | JudgedLabels:
        """What a descent that is at rest says about rows that it has not seen."""
        network, function, look = self.network, self.function, descent.look()
        belief = self.evidence(descent.objective.x, descent, look).belief
        weights = [
            {name: part.map(lambda p: p.to(network.dtype)) for name, part in layer.items()}
            for layer in function.weights(descent.state.mean)
        ]
        adjust = self.fitted(descent.state, look).smooth(function.nodes, belief)
        structure = torch.ones_like(network.sum_share), MOMENTS, network.shapes, network.n_outputs
        linearised = Linearised(network.graph, network.flat, weights, *structure, adjust=adjust)
        found = list(linearised.output_beliefs(x[rows.to(x.device)], belief))
        mean, var = (torch.cat([getattr(part, name) for part, _ in found]).double() for name in ("mean", "var"))
        if not network.head.has_noise:
            covariance = torch.cat([own for _, own in found if own is not None])  # of a joint belief, all of them
            labels = y[rows.to(y.device)]
            return JudgedLabels.of(network.head, self.certain(1.0), mean, covariance, labels)
        return Judged.of(y[rows].to(mean) - mean, var, descent.state.noise)

    def as_unseen(self, left_out: Moments, y: Tensor) -> Moments:
        """Left-out outputs, as far off and as uncertain as those of rows that were never seen."""
        return Moments(y - self.miss_scale * (y - left_out.mean), self.belief_scale * left_out.var)

    def labels_as_unseen(self, left_out: LeftOut, outputs: Tensor) -> LeftOut:
        """The same for labels, of outputs that have seen them: moved as much farther, and as uncertain."""
        mean = outputs + self.miss_scale * (left_out.mean - outputs)
        return LeftOut(mean, self.belief_scale * left_out.covariance, left_out.n_clipped)

    @property
    def miss_scale(self) -> float:
        """How much farther off unseen targets lie than left-out ones; with more data the formula misses less."""
        return math.exp(self.log_miss / len(self._y)) if self._y is not None else 1.0

    def falls_no_more(self, values: Sequence[float]) -> bool:
        """Whether the objective, after each epoch, has come to rest."""
        assert self._state is not None and self._y is not None
        is_stuck = self._state.n_refused >= MOST_REFUSED
        return is_stuck or falls_no_more(values, self._y.numel(), fewest=FEWEST_OF_RESTED)

    def descent(
        self, x: Tensor, y: Tensor, rows: Tensor | None = None, *, state: DescentState | None = None
    ) -> Descent:
        """Where the descent is, or one in another state, for some data. That of all data is kept from one question to
        the next, and with it what was seen where it is.

        Args:
            rows: which of all examples these are; None: all of them.
        """
        state = self._state if state is None else state
        assert state is not None
        state = self._with_rows(state, len(y))
        objective = self._objective_of(x, y, rows)
        options = {"learns_noise": self.learns_noise, "learns_width": self.learns_width, "settings": self.settings}
        if self._descent is not None and self._descent[0] is x and self._descent[1] is y:
            kept = self._descent[2]
            if kept.state is state and kept.objective.is_like(objective) and kept.learns_width == self.learns_width:
                return kept
        found = Descent(objective, state, **options)  # type: ignore[arg-type]
        if x is self._x and y is self._y:
            self._descent = x, y, found
        return found

    def _objective_of(self, x: Tensor, y: Tensor, rows: Tensor | None) -> Objective:
        network, settings = self.network, self.settings
        prior = network.rule_prior.map(lambda part: part.to(network.device))
        x, y = x.to(network.device).double(), y.to(network.device)
        loss = network.head.loss(y, network.n_outputs, least_miss=settings.least_miss)
        assert loss is not None
        known = self.function.to_vector(prior.mean), self.function.to_vector(prior.rho)
        return Objective(
            self.function,
            *known,
            x,
            loss,
            self._weight_of(x, y, rows),
            width_counts=settings.width_counts,
            relevance_counts=settings.relevance_counts,
        )

    def _weight_of(self, x: Tensor, y: Tensor, rows: Tensor | None = None) -> Tensor:
        """How often each example counts: as the user says; else a copy of another one is no news (groups.py)."""
        if (given := self.sample_weight) is not None:
            return (given if rows is None else given[rows.cpu()]).to(self.network.device)
        if self._weight is None or len(self._weight) != len(y):
            return copies_count_once(x, y).to(device=self.network.device)
        return self._weight

    @property
    def learns_width(self) -> bool:
        """Whether the data choose how wide the prior is: unless the user says so, where neither prior nor noise were
        given. Who knows them states a model, and gets the posterior of just this one. Asked anew, because users may
        assign a prior within a run.
        """
        network = self.network
        is_stated = network.has_given_prior or (network.head.has_noise and not network.head.is_learned)
        return not is_stated if self.learn_prior is None else self.learn_prior

    def _take_origin(self) -> None:
        """Go on from the means that the sites have, where these are others than rounding makes of the descent's, and
        with a prior as wide as the network has it.
        """
        assert self._state is not None
        width = float(self.network.prior_width)
        relevance = self.network.relevances or tuple(torch.ones_like(part) for part in self._state.relevance)
        relevance = tuple(part.to(self._state.mean) for part in relevance)
        same = all(torch.equal(a, b) for a, b in zip(relevance, self._state.relevance, strict=True))
        if self._state.width != width or not same:
            self._state = replace(self._state, width=width, relevance=relevance)
        own = self.function.to_flat(self._state.mean).to(self.sites.origin)
        if not torch.equal(own, self.sites.origin):
            self._state = replace(self._state, mean=self.function.to_vector(self.sites.origin.double()))

    def _metrics(self, look: Look, loss: Loss, noise: float) -> dict[str, Tensor]:
        """Of the outputs at the end of the epoch, as if they were known."""
        mean = loss.outputs(look.latent)
        outputs, head, constant = Moments(mean, torch.zeros_like(mean)), self.network.head, self.certain(noise).double()
        if self.sample_weight is None:
            return head.train_metrics(outputs, loss.y, constant)
        share = (self.sample_weight / self.sample_weight.mean()).to(mean)
        nll = share @ head.nll(outputs, loss.y, constant)
        if head.has_noise:
            return {"mse": share @ (loss.y - mean).square().mean(1), "nll": nll}
        return {"accuracy": share @ (mean.argmax(1) == loss.y).to(mean), "nll": nll}

    # --- sites -------------------------------------------------------------------------------------------------------

    def settle(self, members: Sequence[Tensor]) -> None:
        """Let sites and marginal say what the data say at the means reached. Slopes of the loss and precisions are
        those of the batches; the slope of the uncertainty belongs to all of them, and is in the shift.
        """
        if self._state is not None and self._state.n_steps > 0:
            with torch.inference_mode(False), torch.no_grad():
                self._settle(self._state, members)

    def _settle(self, state: DescentState, members: Sequence[Tensor]) -> None:
        network, sites, x, y = self.network, self.sites, self._x, self._y
        assert x is not None and y is not None
        mean = self.function.to_flat(state.mean)
        sites.origin.copy_(mean.to(sites.origin))
        sites.shift.zero_()
        sites.offset.zero_()
        descent = self.descent(x, y)
        look = descent.look()
        balance = network.prior.rho.double() * (sites.origin.double() - network.prior.mean.double())
        total = torch.zeros_like(balance)
        row = 0
        for some in _together(members, SETTLED_AT_ONCE):
            rows = torch.cat(some)
            found = descent.slopes_at(rows)
            for at in torch.arange(len(rows)).split([len(part) for part in some]):
                own = found.some(at)
                slope = self.function.to_flat(own.mixed(look.pull[rows[at]]))
                rho = self.function.to_flat(own.seen_through(look.root.some(rows[at])).squares())
                kept, _ = sites.replace(sites.index(row), slope.to(sites.origin), rho.to(sites.origin))
                total += kept.double()
                row += 1
        sites.shift.copy_((balance - total) / len(sites))
        self.hear_constant(self.certain(state.noise).double() - self.head_prior.double())
        sites.recount()
        exact = sites.posterior(network.prior)
        network.marginal.rho.copy_(exact.rho)
        network.marginal.tau.copy_(exact.rho * sites.origin)

    def certain(self, noise: float) -> Tensor:
        """The belief about the head's constant that is this noise."""
        head = self.network.head
        constant = noise if head.has_noise else head.logits_per_output()
        return head.certain(constant).to(self.network.head_log_weights)

    # --- what is believed --------------------------------------------------------------------------------------------

    def judged_rows(self, descent: Descent, groups: Tensor) -> Tensor:
        """Examples whose outputs are told without them: whole groups; over rows those of whom the curvature was told,
        drawn so that each example is as likely as any other.
        """
        most, witnesses = self.settings.judged_examples, descent.objective.witnesses
        if witnesses is None or not descent.objective.is_over_rows:
            return whole_groups(groups, most)
        share = (witnesses.weight / witnesses.weight.max()).cpu()
        drawn = torch.rand(len(share), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return witnesses.rows.cpu()[drawn < share][:most]

    def left_out(self, descent: Descent, look: Look, rows: Tensor, *groupings: Tensor) -> list[LeftOut]:
        """Outputs of some examples, each left out with those of its group; for each grouping.

        Args:
            rows: of these examples (`judged_rows`).
            groupings: number of the group of each example of all. Where only some members of a group are among the
                rows, they stand for the others.
        """
        loss, limit, root = descent.objective.loss, MOST_HELD, look.root.some(rows)
        mean, pull, slopes, at = look.latent[rows], look.pull[rows], None, torch.arange(len(rows))
        if isinstance(look.curvature, OverRows):  # which knows its own examples
            at, witnesses = rows, descent.objective.witnesses
            if witnesses is not None:
                at = torch.searchsorted(witnesses.rows, rows.to(witnesses.rows))
                root = root.times(witnesses.weight[at])
            held_alone = look.curvature.held_by_own[at]
        else:
            slopes = descent.slopes_at(rows).seen_through(root)
            held_alone = look.curvature.held(slopes)
        one = torch.ones_like(mean)
        own_without, n_clipped = without_own(held_alone, one, limit=limit)  # R^T W R
        found = []
        for grouping in groupings:
            groups = grouping[rows]
            stood_for = torch.bincount(grouping)[groups] / torch.bincount(groups)[groups]
            sent = root.solve(pull * stood_for[:, None].to(pull))
            left = mean - root.solve_transposed((own_without @ sent[..., None])[..., 0])
            own, n_cut = own_without.clone(), n_clipped
            for group in _several(groups):
                held = look.curvature.held_within(slopes, at[group])
                joint, n_more = without_own(held[None], one[group].reshape(1, -1), limit=limit)
                shift = (joint[0] @ sent[group].flatten()).view_as(mean[group])
                left[group] = mean[group] - root.some(group).solve_transposed(shift)
                m, n_latent = mean[group].shape
                own[group] = joint[0].view(m, n_latent, m, n_latent).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
                n_cut += n_more
            found.append(LeftOut(loss.outputs(left), loss.output_covariances(root.uncovered(own)), n_cut))
        return found

    def evidence(self, x: Tensor, descent: Descent, look: Look) -> Evidence:
        """What the belief that predictions are made with is made of."""
        network, state = self.network, descent.state
        prior_vars = self.function.split(1.0 / descent.objective.rho_at(state.width, state.relevance))
        (n, n_latent), k = look.latent.shape, network.n_outputs
        n_rows = n * n_latent
        if isinstance(look.curvature, OverRows):
            rows, root, witnesses = torch.arange(n), look.root, descent.objective.witnesses
            if witnesses is not None:
                rows, root = witnesses.rows, look.root.some(witnesses.rows).times(witnesses.weight)
            slopes = descent.slopes_at(rows).seen_through(root)
            anchors = [_by_row(part) for part in slopes.gradients]
            mix = descent.objective.function.mix.to(look.latent)
            mixes = root.across(mix[:, None].expand(-1, len(rows), -1)).transpose(0, 1).reshape(-1, k)
            points = Points(x[rows.to(x.device)].to(network.device).repeat_interleave(n_latent, 0), mixes.to(x.dtype))
            basis = AnchoredBasis.of(anchors, prior_vars, is_exact=True, points=points, n_seen=(n, k))
            return Evidence(basis, torch.diag(basis.own_precision), None, n_rows)
        planned = Plan("full", network.n_weights, is_exact=True, n_bytes=8 * network.n_weights**2)
        generator = torch.Generator().manual_seed(0)
        full = make_basis(network, x, planned, prior_vars, generator, n_rows=n_rows)
        scale = torch.cat([std.flatten() for std in full.stds])  # type: ignore[union-attr]
        return Evidence(full, look.curvature.data * scale[:, None] * scale, None, n_rows)  # type: ignore[attr-defined]

    def fitted(self, state: DescentState, look: Look) -> Fitted:
        """What the network keeps of the descent, in its own precision."""
        kept = (part if part.ndim == 3 else part.new_zeros(0) for part in state.spread)
        spread = tuple(part.to(self.network.dtype) for part in kept)
        return Fitted(look.value, state.noise, state.smoothing, spread, self.miss_scale)


def _together(members: Sequence[Tensor], n: int) -> Iterator[list[Tensor]]:
    """Batches side by side, about n examples at once."""
    some: list[Tensor] = []
    for rows in members:
        some.append(rows)
        if sum(map(len, some)) >= n:
            yield some
            some = []
    if some:
        yield some


def _several(groups: Tensor) -> list[Tensor]:
    """Where the members of each group are that has several."""
    order = torch.argsort(groups, stable=True)
    _, counts = torch.unique_consecutive(groups[order], return_counts=True)
    return [part for part in order.split(counts.tolist()) if len(part) > 1]


def _some(x: Tensor, y: Tensor, order: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """The first n examples of an order, and which these are; all as they are, and None, if these are all."""
    if n == len(order):
        return x, y, None
    rows = order[:n]
    return x[rows.to(x.device)], y[rows.to(y.device)], rows


def _by_row(gradient: Gradient) -> Gradient:
    """(1, n k, ...): one row per output of each example."""
    k, n, p, o = gradient.slopes.shape
    slopes = gradient.slopes.transpose(0, 1).reshape(1, n * k, p, o)
    return Gradient(gradient.inputs.repeat_interleave(k, 0), slopes)
