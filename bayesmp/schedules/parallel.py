r"""The parallel schedule: a whole batch at once, as matrix products.

A visit to batch b computes its messages to all weights at the current marginal N(m, 1/rho): a fresh precision rho_b,
which replaces the old one, and a fresh slope g_b = tau_b - rho_b m, whose difference to the remembered slope, the
*innovation*, moves the mean. The posterior stays prior x sites throughout:

1. innovation  j = g_b - (slope_b + shift)
2. direction   d = H^{-1} j, with H the metric, the Kronecker-factored curvature of all data (metric.py)
3. step        alpha in (0, 1] from the curvature measured along d (`_measure_step`)
4. m <- m + alpha d;  slope_b <- g_b - shift;  shift <- shift - (j - H_0 alpha d) / n;  rho_b <- fresh

Line 4 keeps the balance sum_b (slope_b + shift) = H_0 (m - m_prior), which says that m is the posterior mean. H_0 is
the prior's precision, with the curvature of the past (belief/past.py) where there is one, whose pull is so exact at
every visit. It rests where every innovation is zero, whatever H and alpha were: there tau_b and rho_b are the messages
themselves.
Only shares of sums (metric.py), where they are counted, make the messages themselves follow H a little.

All state is updated in place and nothing here waits for the device, so a visit can be recorded as a CUDA graph
(graphs.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.gaussian import Gaussian
from bayesmp.graph import Node, Returned, Trace
from bayesmp.layers.base import Local
from bayesmp.layers.linear import Linear
from bayesmp.network import Network
from bayesmp.regime import LINEAR, MOMENTS, Regime
from bayesmp.schedules.base import Batch, Schedule, VisitInfo
from bayesmp.schedules.graphs import WARM_UP, RecordedVisit
from bayesmp.schedules.metric import LayerMetric
from bayesmp.schedules.own_pulls import OwnPulls
from bayesmp.settings import SETTINGS, Settings
from bayesmp.sites import Sites


@dataclass(frozen=True)
class Sweep:
    """Everything one batch said: what it left at every node going out, and what came back."""

    trace: Trace
    returned: Returned
    to_weights: Gaussian  # flat, multiplied over the batch
    curvatures: dict[int, tuple[Tensor, Tensor]]  # of the messages, by weight node: per row, and per weight
    output_curvature: Tensor  # of the head, at the network's outputs


class ParallelSchedule(Schedule):
    """State of a parallel run beside the sites: the metric of each layer, and what each example last sent to wide
    layers.

    Args:
        joint: whether correlations between weights count in the variance of their sums (metric.py); None decides by
            the network.
        settings: the tuned constants.
    """

    counters = ("n_visits", "next_renewal", "constant_cap", "best_score", "best_constant", "n_worse")

    def __init__(
        self,
        network: Network,
        sites: Sites,
        *,
        seed: int,
        joint: bool | None = None,
        settings: Settings = SETTINGS,
    ) -> None:
        super().__init__(network, sites, seed=seed)
        self.settings = settings
        like = network.prior.rho
        self.n_visits = 0
        self.next_renewal = 1
        self.memory = min(settings.memory[1], max(settings.memory[0], len(sites)))
        self.dear_gap = 1
        self.n_data = 0
        self.metrics: dict[int, LayerMetric] = {}  # by weight node
        self.share = like.new_ones(())  # weight of the newest batch in the metric's running averages
        self.signs = like.new_zeros(0)
        self.own_pulls = OwnPulls(network, n_batches=0, largest_batch=0)
        self.shares_sums = self._gains_from_shares() if joint is None else joint
        self.sum_shares = torch.ones_like(network.sum_share)
        self.regime: Regime = MOMENTS
        self.largest_constant = math.inf
        self.constant_limit = like.new_full((), math.inf)  # of the head's constant, in training
        self.constant_cap = math.inf  # what leave-one-out scores allow of it
        self.best_score, self.best_constant, self.n_worse = math.inf, math.inf, 0
        self.records = like.is_cuda
        self._graphs: dict[tuple[int, ...], RecordedVisit] = {}
        self._plain_visits: dict[tuple[int, ...], int] = {}
        self._held: tuple[object, ...] = ()
        self._prior_rest: dict[int, float] = {}  # mean prior precision of each layer's weights

    # --- start and upkeep --------------------------------------------------------------------------------------------

    def start(self, y: Tensor, *, largest_batch: int) -> None:
        """Every site starts as 1/n of a pseudo-message that holds the weights near the network's starting means.

        From the broad prior the activations are mostly noise and the network collapses to a constant. Visits replace
        the batches' shares, each precision at most by a factor of 2 at a time, so the hold is gone after some epochs.
        """
        network, prior, past = self.network, self.network.prior, self.network.past
        self.n_data = len(y)
        self.largest_constant = network.head.largest_constant(y) if past is None else math.inf
        pull = (self.settings.tightness * network.spread.to(prior.rho)) ** -2
        pull = (pull - network.prior_at(network.start.to(prior.rho)).rho.to(prior.rho)).clamp_min(0.0)
        self.sites.fill(pull / len(self.sites), self.head_start(y), origin=network.start.to(prior.rho))
        self.metrics = {}
        precisions = network.unpack(prior.rho)
        factors = [None] * len(network.layers) if past is None else past.factors
        for node, older in zip(network.graph.weight_nodes, factors, strict=False):
            matrix = node.layer.to_matrix(precisions[node.index])
            self.metrics[node.index] = LayerMetric(self.n_data, *matrix.shape, like=prior.rho, past=older)
            first = next(iter(precisions[node.index].values()))
            self._prior_rest[node.index] = float(first.mean())
        self.dear_gap = self._dear_gap()
        bits = torch.randint(0, 2, (largest_batch, network.n_outputs), generator=self.generator(0))
        self.signs = (2 * bits - 1).to(prior.rho)
        self.own_pulls = OwnPulls(network, n_batches=len(self.sites), largest_batch=largest_batch)
        self.regime = LINEAR if self.shares_sums and self._sees_cavities else MOMENTS
        self.refresh()

    def state(self) -> dict[str, Tensor]:
        found = {"signs": self.signs, "sum_shares": self.sum_shares}
        found |= {f"own_pull.{k}": pulls for k, pulls in self.own_pulls.items()}
        for k, metric in self.metrics.items():
            found |= {f"metric.{k}.{name}": part for name, part in metric.state().items()}
        return found

    def refresh(self) -> None:
        """Recompute precisions from the sites, see the past from the current means, and put what that and rounding did
        to the balance of slopes into the shift, for the coming visits to hear.
        """
        network, sites = self.network, self.sites
        exact = sites.posterior(network.prior_at(sites.origin))
        network.marginal.rho.copy_(exact.rho)
        network.marginal.tau.copy_(exact.rho * sites.origin)
        network.head_log_weights.copy_(sites.head_posterior(self._head_prior))
        network.sum_share.copy_(self.sum_shares)
        network.regime = self.regime
        if network.past is not None:
            network.renew_past()
            exact = sites.posterior(network.prior_at(sites.origin))
        sites.shift.sub_((exact.tau - exact.rho * sites.origin).double() / len(sites))

    def _dear_gap(self) -> int:
        """Visits that cost about as much as one renewal of all eigenvectors, counting multiplications."""
        network, settings = self.network, self.settings
        renewal = sum(len(m.inputs) ** 3 + len(m.slopes) ** 3 for m in self.metrics.values()) * settings.eigh_cost
        positions = {k: math.prod(network.shapes[k + 1][1:]) for k in self.metrics}
        products = sum((slot.stop - slot.start) * positions[slot.layer] for slot in network.slots)
        return max(1, round(renewal * len(self.sites) / (products * settings.visit_products * self.n_data)))

    # --- a visit -----------------------------------------------------------------------------------------------------

    def visit(self, batch: Batch, epoch: int) -> VisitInfo:
        self.before_visit()
        info = self._recorded(batch) if self.records else self.visit_on_device(batch)
        self.after_visit()
        return info

    def _recorded(self, batch: Batch) -> VisitInfo:
        """The visit as a CUDA graph of its batch's shape, recorded once enough plain visits of that shape have run."""
        network = self.network
        held = (network.marginal, network.prior, network.head_log_weights, network.sum_share, network.past)
        if any(now is not then for now, then in zip(held, self._held, strict=False)) or not self._held:
            self._graphs.clear()  # recorded with tensors that the network no longer uses
            self._held = held
        key = tuple(batch.x.shape)
        if key in self._graphs:
            return self._graphs[key](batch)
        seen = self._plain_visits[key] = self._plain_visits.get(key, 0) + 1
        if seen <= WARM_UP:
            return self.visit_on_device(batch)
        self._graphs[key] = RecordedVisit(self.visit_on_device, batch)
        return self._graphs[key](batch)

    def before_visit(self) -> None:
        """Host-side bookkeeping: the weight of the running averages, and how much noise training may see."""
        self.n_visits += 1
        self.share.fill_(1.0 / min(self.n_visits, self.memory))
        first, growth = self.settings.trust
        share = first * growth ** min(self.n_visits, 10_000)
        limit = share * self.largest_constant if share < 1.0 else math.inf
        self.constant_limit.fill_(min(limit, self.constant_cap))

    def after_visit(self) -> None:
        """Renew the eigenvectors of H: often while everything still moves, later once per memory, rarely if dear."""
        if self.n_visits >= self.next_renewal:
            gap = max(min(self.memory, 1 + self.n_visits // 8), min(self.dear_gap, self.n_visits))
            self.next_renewal = self.n_visits + gap
            for metric in self.metrics.values():
                metric.renew()
            if self.shares_sums:
                self._update_shares(pace=1.0 - math.exp(-gap / self.settings.share_memory))

    def _gains_from_shares(self) -> bool:
        """Whether the network gains from shares of sums: one of two or more dense layers.

        A single layer needs none: its means are exact whatever the variance of its sums. Where weights are shared, as
        in convolutions, the metric takes the positions of an image for independent examples; that is good enough for
        steps, but makes sums too sure.
        """
        layers = [node.layer for node in self.network.graph.weight_nodes]
        return len(layers) > 1 and all(isinstance(layer, Linear) for layer in layers)

    def _update_shares(self, pace: float) -> None:
        """Move every layer's share of sums (metric.py) towards that of the renewed metric."""
        var = self.network.unpack(1.0 / self.network.marginal.rho)
        for node in self.network.graph.weight_nodes:
            matrix = node.layer.to_matrix(var[node.index])
            self.sum_shares[node.index].lerp_(self.metrics[node.index].sum_share(matrix), pace)
        self.network.sum_share.copy_(self.sum_shares)

    def visit_on_device(self, batch: Batch) -> VisitInfo:
        """The visit proper: tensors in, tensors changed in place, nothing read back."""
        network, sites, n = self.network, self.sites, len(self.sites)
        marginal, origin = network.marginal, sites.origin
        sweep = self._sweep(batch)
        metrics = network.head.train_metrics(sweep.trace.outputs, batch.y, network.head_log_weights)

        fresh = sweep.to_weights
        old_slope, old_rho = sites.get(batch.index)
        fresh_slope = torch.addcmul(fresh.tau, fresh.rho, origin, value=-1.0).sub_(sites.shift.to(origin))
        rho, factor = marginal.rho, self.settings.precision_factor
        lowest, highest = (torch.add(old_rho, rho, alpha=part) for part in (1.0 / factor - 1.0, factor - 1.0))
        fresh_rho = fresh.rho.clamp_(lowest, highest)
        new_slope, new_rho = sites.replace(batch.index, fresh_slope, fresh_rho)
        innovation = new_slope - old_slope

        self._update_metric(sweep, len(batch.x))
        direction = self._solve(innovation)
        step = self._measure_step(sweep, direction, torch.dot(innovation, direction))
        moved = torch.addcmul(origin, direction, step)
        change = moved - origin  # as rounded, so that the balance stays exact
        origin.copy_(moved)
        sites.shift.add_(innovation - network.prior_pull(change), alpha=-1.0 / n)
        marginal.rho.add_(new_rho - old_rho)
        torch.mul(marginal.rho, origin, out=marginal.tau)
        return VisitInfo(
            step=step.expand(len(self.metrics)),
            n_rejected=sweep.returned.n_rejected,
            n_messages=self.messages_per_example * len(batch.x),
            max_change=(change.square_() * marginal.rho).amax().sqrt_(),
            metrics=metrics,
        )

    def _sweep(self, batch: Batch) -> Sweep:
        """One sweep out and one back, at the current marginals."""
        network, graph = self.network, self.network.graph

        def take_out(node: Node, local: Local) -> Local:
            return self.own_pulls.take_out(batch, node, local)

        trace = graph.sweep_out(batch.x, network.weights(), self.regime, adjust=take_out)
        m_back = network.head.to_latent(trace.outputs, batch.y, self._trusting_belief())
        returned = graph.sweep_back(trace, m_back)
        self.own_pulls.remember(batch, trace, returned)
        curvatures = {k: trace.locals[k].message_curvature(returned.arriving[k]) for k in self.metrics}
        output_curvature = m_back.rho / (1.0 + m_back.rho * graph.output_noise(trace))
        return Sweep(trace, returned, network.pack(returned.to_weights), curvatures, output_curvature)

    def hear_score(self, score: float) -> None:
        """Take the leave-one-out score of a refresh: more noise in training must not make it worse.

        Little data can be explained as noise alone, and a network trained with so much of it stays there. Where the
        score gets worse while the noise grows, training goes back to the noise of the best score, for good.
        """
        if not self._hears_constant:
            return
        constant = 1.0 / float(self.network.head.expected(self._trusting_belief(), -1.0))
        if score < self.best_score:
            self.best_score, self.best_constant, self.n_worse = score, constant, 0
        elif score > self.best_score + self.settings.worse_score and constant > self.best_constant:
            self.n_worse += 1
            if self.n_worse >= self.settings.worse_refreshes:
                self.constant_cap, self.n_worse = self.best_constant, 0
        else:
            self.n_worse = 0

    def _trusting_belief(self) -> Tensor:
        """The belief about the head's constant for messages to weights.

        Before anything is fitted all of y looks like noise, and with so much noise nothing would ever be fitted: a
        fixed point of its own. So training begins with little noise and lets it grow; predictions are honest at once.
        """
        belief = self.network.head_log_weights
        if not self._hears_constant:
            return belief
        grid = self.network.head.grid_like(belief)
        return belief.masked_fill(grid > torch.maximum(self.constant_limit, grid[0]), -1e4)

    # --- direction and step ------------------------------------------------------------------------------------------

    def _update_metric(self, sweep: Sweep, n_batch: int) -> None:
        """Take the batch into the running metric of every layer: one pullback of the outputs' curvature."""
        network = self.network
        slope = self.signs[:n_batch] * sweep.output_curvature.sqrt()
        for node, pulled in network.graph.pull(sweep.trace, slope[None]):
            if node.has_weights:
                n_examples = max(1, self.settings.moment_rows // math.prod(network.shapes[node.output][1:]))
                inputs, slopes = sweep.trace.locals[node.index].factors(pulled, n_examples=n_examples)
                per_row, per_weight = sweep.curvatures[node.index]
                curvature = slopes.t() @ (slopes / n_batch)
                curvature.diagonal().add_(per_row, alpha=1.0 / n_batch)
                rest = self._prior_rest[node.index] + per_weight * (self.n_data / n_batch)
                self.metrics[node.index].update(inputs, curvature, rest, self.share)

    def _solve(self, slope: Tensor) -> Tensor:
        """The inverse metric of every layer applied to a flat slope."""
        slopes = self.network.unpack(slope)
        answers: list[dict[str, Tensor]] = [{} for _ in slopes]
        for node in self.network.graph.weight_nodes:
            solved = self.metrics[node.index].solve(node.layer.to_matrix(slopes[node.index]))
            answers[node.index] = node.layer.from_matrix(solved)
        return self.network.pack_tensors(answers)

    def _measure_step(self, sweep: Sweep, direction: Tensor, model: Tensor) -> Tensor:
        r"""The share alpha of d to take.

        A line search on the whole surrogate: all other batches as H has them, this batch measured. With c the batch's
        true curvature along d, joint over all layers, and d^T H d = `model` for all n batches,
            alpha = 1 / max(1, 1 - 1/n + c / model)
        and no layer's outputs may move by more than their own spread over the batch, beyond which c means nothing.
        """
        network, parts = self.network, self.network.unpack(direction)
        tiny = torch.finfo(model.dtype).tiny
        curvatures, reaches = [], []
        for node, change in network.graph.push(sweep.trace, parts):
            if node.has_weights:
                first = next(iter(parts[node.index].values())).flatten()
                curvatures.append(sweep.curvatures[node.index][1] * torch.dot(first, first))
                edge = sweep.trace.moments(node)
                spread = edge.mean.var(correction=0) + edge.var.mean()
                reaches.append(_mean_square(change) / (spread + tiny))
        curvatures.append((sweep.output_curvature * change.square()).sum())
        if network.past is not None:
            curvatures.append(torch.dot(direction, network.prior_pull(direction)))
        stiffness = torch.stack(curvatures).sum() / model.clamp_min(tiny) + (1.0 - 1.0 / len(self.sites))
        reach = torch.stack(reaches).amax().sqrt() / self.settings.max_reach
        return torch.maximum(stiffness, reach).clamp_min(1.0).reciprocal()

    @property
    def _hears_constant(self) -> bool:
        """Whether messages to the outputs depend on a constant that is learned."""
        head = self.network.head
        return head.is_learned and head.is_heard_in_training

    @property
    def _sees_cavities(self) -> bool:
        """Whether the examples' own pulls are taken out behind every layer with weights."""
        return self.own_pulls.keys() == self.metrics.keys()


def _mean_square(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(values).square() / values.numel()  # in any layout of memory
