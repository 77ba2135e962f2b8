r"""The parallel schedule: a whole batch at once, as matrix products.

A visit to batch b computes its messages to all weights at the current marginal N(m, 1/rho): a fresh precision rho_b,
which replaces the old one, and a fresh slope g_b = tau_b - rho_b m, whose difference to the remembered slope, the
*innovation*, moves the mean. The posterior stays prior x sites throughout:

1. innovation  j = g_b - (slope_b + shift + rho_b offset)
2. direction   d = H^{-1} j, with H the metric, the Kronecker-factored curvature of all data (network_metric.py)
3. step        alpha in (0, 4] from the curvature measured along d (step.py), less after an epoch has diverged
4. m <- m + alpha d;  rho_b <- fresh;  slope_b <- g_b - (shift + rho_b offset);  then for all batches, as they share in
   the posterior's precision rho, t = (H_0 alpha d - j) / rho;  offset <- offset + t;  shift <- shift + t rho_0 / n

Line 4 keeps the balance sum_b (slope_b + shift + rho_b offset) = H_0 (m - m_prior), which says that m is the posterior
mean. H_0 is the prior's precision, rho_0 its diagonal, with the curvature of the past (belief/past.py) where there is
one, whose pull is so exact at every visit. A move changes the slopes of those batches that know something of its
direction; shared out equally, what one batch says of a rare category would be amplified by every other visit. It rests
where every innovation is zero, whatever H and alpha were: there tau_b and rho_b are the messages themselves.
Only shares of sums (metric.py), where they are counted, make the messages themselves follow H a little.

All state is updated in place and nothing here waits for the device, so a visit can be recorded as a CUDA graph
(graphs.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.basics.telling import warn_user
from bayesmp.layers.base import Local, Weights
from bayesmp.layers.linear import WeightLayer
from bayesmp.messages.regime import MOMENTS
from bayesmp.network.graph import Node
from bayesmp.network.network import Network
from bayesmp.sites.sites import Sites
from bayesmp.training.schedules.base import Batch, Kept, Schedule, VisitInfo
from bayesmp.training.schedules.dense_chain import DenseChain
from bayesmp.training.schedules.graphs import RecordedVisits
from bayesmp.training.schedules.network_metric import NetworkMetric, gains_from_shares
from bayesmp.training.schedules.own_pulls import OwnPulls
from bayesmp.training.schedules.site_step import move_means, take_site
from bayesmp.training.schedules.step import step_of_all, step_of_batch, stretch_of
from bayesmp.training.schedules.sweep import Sweep, along
from bayesmp.training.schedules.trusted_noise import TrustedNoise

UNTOLD = (
    "learn_prior=True has no effect: training with an objective tells how wide the prior should be, and these data are "
    "learned by messages. Regression and Softmax have an objective where the belief is exact, unless joint= is given"
)


class ParallelSchedule(Schedule):
    """State of a parallel run beside the sites: the metric, what each example last sent to dense layers, and how much
    noise training may see.

    Which variance of its weights a message may see is one rule: of the sums of a dense layer the share that the metric
    measures, which falls with the number of inputs, without what the example itself has said. Behind shared weights it
    is all of it.

    Args:
        joint: whether correlations between weights count in the variance of their sums (metric.py); None decides by
            the network.
        learn_prior: who asks for a prior as wide as the data choose is told that an objective would tell.
        settings: the tuned constants.
    """

    has_step_length = True
    counts_visits = True

    def __init__(
        self,
        network: Network,
        sites: Sites,
        *,
        seed: int,
        joint: bool | None = None,
        learn_prior: bool | None = None,
        settings: Settings = SETTINGS,
    ) -> None:
        super().__init__(network, sites, seed=seed)
        self.settings = settings
        like = network.prior.rho
        self.n_visits = 0
        self.next_renewal = 1
        self.memory = self._memory()
        self.dear_gap = 1
        self.metrics = NetworkMetric(network, settings)
        self.share = like.new_ones(())  # weight of the newest batch in the metric's running averages
        self.signs = like.new_zeros(0)
        self.own_pulls = OwnPulls()
        self.shares_sums = gains_from_shares(network) if joint is None else joint
        self.learn_prior = learn_prior
        self.sum_shares = torch.ones_like(network.sum_share)
        self.seen_shares = self._seen_shares()
        self.noise = TrustedNoise(network.head, like=like, settings=settings)
        self.listens = True  # whether this visit is heard by the metric
        self._step_length = like.new_ones(())  # changed in place, because recorded visits read it
        self.records = like.is_cuda
        self._chain = DenseChain(network) if DenseChain.is_chain(network) else None
        self._recorded = RecordedVisits()

    # --- start and upkeep --------------------------------------------------------------------------------------------

    def start(self, x: Tensor, y: Tensor, *, largest_batch: int) -> None:
        """Every site starts as 1/n of a pseudo-message that holds the weights near the network's starting means.

        From the broad prior the activations are mostly noise and the network collapses to a constant. Visits replace
        the batches' shares, each precision at most by a factor of 2 at a time, so the hold is gone after some epochs.
        """
        network, prior = self.network, self.network.prior
        if self.learn_prior:
            warn_user(UNTOLD)
        self.know_targets(y)
        self.noise.begin(self._largest_constant(y))
        pull = (self.settings.tightness * network.spread.to(prior.rho)) ** -2
        pull = (pull - network.prior_at(network.start.to(prior.rho)).rho.to(prior.rho)).clamp_min(0.0)
        self.sites.fill(pull / len(self.sites), self.head_start(y), origin=network.start.to(prior.rho))
        self.metrics.start(len(y))
        self.sum_shares.fill_(1.0)
        self._recorded.clear()
        self.signs = self._draw_signs(largest_batch)
        self.own_pulls = OwnPulls.of(network, n_batches=len(self.sites), largest_batch=largest_batch)
        self.refresh()
        self._know_inputs(x)

    def _know_inputs(self, x: Tensor) -> None:
        """Let the metric know the inputs of the first weights, and how dear its renewals are then."""
        self.metrics.know_inputs(x, self._weights(), MOMENTS, self.generator(0))
        self.dear_gap = self.metrics.visits_per_renewal(len(self.sites))

    def _largest_constant(self, y: Tensor) -> float:
        """The head's constant if all of y were noise; where the past knows it, no such limit is needed."""
        return self.network.head.largest_constant(y) if self.network.past is None else math.inf

    def _draw_signs(self, n: int) -> Tensor:
        """Random signs (n, n_outputs), of which the first are the same for any n."""
        bits = torch.randint(0, 2, (n, self.network.n_outputs), generator=self.generator(0))
        return (2 * bits - 1).to(self.network.prior.rho)

    def state(self) -> dict[str, Tensor]:
        found = {"signs": self.signs, "sum_shares": self.sum_shares}
        found |= {f"own_pull.{k}": pulls for k, pulls in self.own_pulls.items()}
        return found | {f"metric.{name}": part for name, part in self.metrics.state().items()}

    def counters(self) -> dict[str, float]:
        return {"n_visits": self.n_visits, "next_renewal": self.next_renewal, "step_length": self.step_length}

    def resume(self, counters: Mapping[str, float]) -> None:
        known = {**self.counters(), **counters}
        self.n_visits, self.next_renewal = int(known["n_visits"]), int(known["next_renewal"])
        self.step_length = known["step_length"]
        self.metrics.resume()

    def rearrange(self, kept: Sequence[Kept], n_new: int, x: Tensor, y: Tensor, *, largest_batch: int) -> None:
        """The metric stands for all data there are now, and all of their targets may be noise; visits are recorded
        anew.
        """
        self.know_targets(y)
        self.noise.begin(self._largest_constant(y))
        self.memory = self._memory()
        self.metrics.resize(len(y))
        self._know_inputs(x)
        self.signs = self._draw_signs(largest_batch)
        self.own_pulls.rearrange(kept, n_new, largest_batch)
        self._recorded.clear()

    def join(self, parts: Sequence[Schedule]) -> None:
        """Metrics add up, and so do shares of sums on average; visits are those of the part that had most."""
        known = [part for part in parts if isinstance(part, ParallelSchedule)]
        self.n_visits = max(part.n_visits for part in known)
        self.next_renewal = self.n_visits + 1
        self.metrics.join([part.metrics for part in known])
        weights = [part.metrics.n_data / self.metrics.n_data for part in known]
        shares = torch.stack([weight * part.sum_shares for weight, part in zip(weights, known, strict=True)])
        self.sum_shares.copy_(shares.sum(0))
        self.own_pulls.join([part.own_pulls for part in known])

    def slope_of(self, row: int, places: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """From a sweep at the current marginals, without the examples' own echo, as in a visit."""

        def take_out(node: Node, local: Local) -> Local:
            return self.own_pulls.take_out_at(row, places, node, local)

        fresh = self._sweep(x, y, take_out).to_weights
        return torch.addcmul(fresh.tau, fresh.rho, self.sites.origin, value=-1.0)

    def absorb(self, change: Tensor, x: Tensor, y: Tensor, rows: Tensor | None = None) -> None:
        """A visit of batches that have nothing to say, or less than before: the change is solved against the metric,
        and the share to take is measured on examples that stay. Dividing sites out of a posterior of independent
        weights would overshoot, as adding them up does.
        """
        network, sites = self.network, self.sites
        if bool(change.any()):
            direction = self.metrics.solve(change.to(sites.origin))
            step = self._measure_step_of_all(x, y, direction, torch.dot(change.to(direction), direction))
            moved = torch.addcmul(sites.origin, direction, step)
            left = change - network.prior_pull(moved - sites.origin).double()
            sites.origin.copy_(moved)
            sites.share_out(-left, sites.posterior(network.prior_at(sites.origin)).rho, network.own_rho)
        network.marginal.rho.copy_(sites.posterior(network.prior_at(sites.origin)).rho)
        network.marginal.tau.copy_(network.marginal.rho * sites.origin)
        network.head_log_weights.copy_(sites.head_posterior(self.head_prior))

    def refresh(self) -> None:
        """Recompute precisions from the sites, see the past from the current means, and put what that and rounding did
        to the balance of slopes into those of all sites, for the coming visits to hear.
        """
        network, sites = self.network, self.sites
        exact = sites.posterior(network.prior_at(sites.origin))
        network.marginal.rho.copy_(exact.rho)
        network.marginal.tau.copy_(exact.rho * sites.origin)
        network.head_log_weights.copy_(sites.head_posterior(self.head_prior))
        network.sum_share.copy_(self.sum_shares)
        network.regime = MOMENTS
        if network.past is not None:
            network.renew_past()
            exact = sites.posterior(network.prior_at(sites.origin))
        sites.share_out(exact.rho * sites.origin - exact.tau, exact.rho, network.own_rho)

    def _memory(self) -> int:
        """Visits that the metric's running averages cover: an epoch, because what H says of a direction must hold until
        all batches that speak about it have been visited.
        """
        return max(self.settings.least_memory, len(self.sites))

    # --- a visit -----------------------------------------------------------------------------------------------------

    def visit(self, batch: Batch, epoch: int) -> VisitInfo:
        self.before_visit()
        info = self._visit_recorded(batch) if self.records else self.visit_on_device(batch)
        self.after_visit()
        return info

    def _visit_recorded(self, batch: Batch) -> VisitInfo:
        network = self.network
        held = (network.marginal, network.prior, network.head_log_weights, network.sum_share, network.past)
        return self._recorded.visit(self.visit_on_device, batch, listens=self.listens, held=held)

    def before_visit(self) -> None:
        """Host-side bookkeeping: the weight of the running averages, and how much noise training may see."""
        self.n_visits += 1
        gap = min(max(1, self.memory // self.settings.heard_visits), self.settings.heard_gap)
        is_full = self.n_visits > self.memory
        self.listens = not is_full or self.n_visits % gap == 0
        self.share.fill_(1.0 / min(self.n_visits, self.memory // min(gap, 2) if is_full else self.memory))
        self.noise.grow(self.n_visits)

    def after_visit(self) -> None:
        """Renew the eigenvectors of H: often while everything still moves, later once per memory, rarely if dear."""
        if self.n_visits >= self.next_renewal:
            gap = max(min(self.memory, 1 + self.n_visits // 8), min(self.dear_gap, self.n_visits))
            self.next_renewal = self.n_visits + gap
            self.metrics.renew()
            if self.shares_sums:
                self._update_shares(pace=1.0 - math.exp(-gap / self.settings.share_memory))

    def _update_shares(self, pace: float) -> None:
        """Move every layer's share of sums (metric.py) towards that of the renewed metric."""
        for k, share in self.metrics.sum_shares(1.0 / self.network.marginal.rho):
            self.sum_shares[k].lerp_(share, pace)
        self.network.sum_share.copy_(self.sum_shares)

    def visit_on_device(self, batch: Batch) -> VisitInfo:
        """The visit proper: tensors in, tensors changed in place, nothing read back."""
        network, sites = self.network, self.sites
        if self._chain is not None and (info := self._chain.visit(self, batch)) is not None:
            return info
        sweep = self._sweep_batch(batch)
        metrics = network.head.train_metrics(sweep.trace.outputs, batch.y, network.head_log_weights)

        factor = self.settings.precision_factor
        innovation = take_site(sites, batch.index, sweep.to_weights, network.marginal.rho, factor=factor)
        if self.listens:
            self.metrics.hear(sweep, self.signs[: len(batch.x)], self.share)
        direction = self.metrics.solve(innovation)
        step = self._measure_step(sweep, direction, torch.dot(innovation, direction))
        return VisitInfo(
            step=step.expand(len(self.metrics)),
            n_rejected=sweep.returned.n_rejected,
            n_messages=self.messages_per_example * len(batch.x),
            max_change=move_means(sites, network, innovation, direction, step),
            metrics=metrics,
        )

    def _sweep_batch(self, batch: Batch) -> Sweep:
        """A sweep in which every example hears what the others say; what it says itself is remembered for the next."""

        def take_out(node: Node, local: Local) -> Local:
            return self.own_pulls.take_out(batch, node, local)

        sweep = self._sweep(batch.x, batch.y, take_out)
        self.own_pulls.remember(batch, sweep.trace, sweep.returned)
        return sweep

    def _sweep(self, x: Tensor, y: Tensor, adjust: Callable[[Node, Local], Local] | None = None) -> Sweep:
        """One sweep out and one back, at the current marginals; `adjust` may change what nodes leave."""
        network, graph = self.network, self.network.graph
        trace = graph.sweep_out(x, self._weights(), MOMENTS, adjust=adjust)
        m_back = network.head.to_latent(trace.outputs, y, self.trusting_belief())
        return Sweep.of(network, trace, graph.sweep_back(trace, m_back), m_back, self.metrics)

    def held_back(self) -> float | None:
        return self.noise.held_back(self.network.head_log_weights)

    def _weights(self) -> list[Weights]:
        """The weights as sweeps see them."""
        return self.network.weights(scale=self.seen_shares)

    def _seen_shares(self) -> Tensor:
        """By layer, beside the share that is measured: 1 for few inputs, and less the more there are. All 1 where
        `joint=True` asks for shares of other networks than those that gain from them.
        """
        found = torch.ones_like(self.network.sum_share)
        if self.shares_sums and gains_from_shares(self.network):
            for node in self.network.graph.weight_nodes:
                assert isinstance(node.layer, WeightLayer)
                found[node.index] = min(1.0, self.settings.full_inputs / node.layer.fan_in)
        return found

    def trusting_belief(self) -> Tensor:
        """The belief about the head's constant for messages to weights."""
        return self.noise.trusting(self.network.head_log_weights)

    # --- the step ----------------------------------------------------------------------------------------------------

    def _measure_step(self, sweep: Sweep, direction: Tensor, model: Tensor) -> Tensor:
        """The share of a direction to take at a visit; `model` is the direction's curvature by the metric."""
        curvature, reach = along(self.network, sweep, direction)
        if self.network.past is not None:
            curvature = curvature + torch.dot(direction, self.network.prior_pull(direction))
        step = step_of_batch(curvature, reach, model, n_batches=len(self.sites), settings=self.settings)
        return step * self._step_length

    @property
    def step_length(self) -> float:
        """Factor on every step."""
        return float(self._step_length)

    @step_length.setter
    def step_length(self, value: float) -> None:
        self._step_length.fill_(value)

    @property
    def stretch(self) -> float:
        """How many times as long as the metric says a step may be."""
        return stretch_of(len(self.sites), self.settings)

    def _measure_step_of_all(self, x: Tensor, y: Tensor, direction: Tensor, model: Tensor) -> Tensor:
        """The share of a direction to take that no batch speaks for, with the curvature of all data from these examples
        of them.
        """
        curvature, reach = along(self.network, self._sweep(x, y), direction)
        prior = torch.dot(self.network.prior_pull(direction), direction)
        curvature = curvature * (self.metrics.n_data / len(x)) + prior
        return step_of_all(curvature, reach, model, settings=self.settings)
