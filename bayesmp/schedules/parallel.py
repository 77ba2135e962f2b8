r"""The parallel schedule: a whole batch at once, as matrix products.

A visit to batch b computes its messages to all weights at the current marginal N(m, 1/rho): a fresh precision rho_b,
which replaces the old one, and a fresh slope g_b = tau_b - rho_b m, whose difference to the remembered slope, the
*innovation*, moves the mean. The posterior stays prior x sites throughout:

1. innovation  j = g_b - (slope_b + shift)
2. direction   d = H^{-1} j, with H the metric, the Kronecker-factored curvature of all data (metric.py)
3. step        alpha in (0, 4] from the curvature measured along d (`_measure_step`)
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
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesmp.belief import Belief
from bayesmp.graph import Node
from bayesmp.layers.base import Local, Weights
from bayesmp.layers.linear import Linear, WeightLayer
from bayesmp.network import Network
from bayesmp.regime import LINEAR, MOMENTS, Regime
from bayesmp.schedules.base import Batch, Kept, Schedule, VisitInfo
from bayesmp.schedules.dense_chain import DenseChain
from bayesmp.schedules.graphs import WARM_UP, RecordedVisit
from bayesmp.schedules.metric import LayerMetric
from bayesmp.schedules.own_pulls import OwnPulls
from bayesmp.schedules.ridges import Ridges
from bayesmp.schedules.site_step import move_means, take_site
from bayesmp.schedules.sweep import Sweep, along
from bayesmp.settings import SETTINGS, Settings
from bayesmp.sites import Sites

RIDGE_NUMBERS = 4_000_000  # weights times examples whose own changes of them are held at once


class ParallelSchedule(Schedule):
    """State of a parallel run beside the sites: the metric of each layer, and what each example last sent to wide
    layers.

    Args:
        joint: whether correlations between weights count in the variance of their sums (metric.py); None decides by
            the network.
        settings: the tuned constants.
    """

    counters = ("n_visits", "next_renewal", "constant_cap", "best_score", "best_constant", "best_error", "n_worse")

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
        self.memory = self._memory()
        self.dear_gap = 1
        self.n_data = 0
        self.metrics: dict[int, LayerMetric] = {}  # by weight node
        self.share = like.new_ones(())  # weight of the newest batch in the metric's running averages
        self.signs = like.new_zeros(0)
        self.own_pulls = OwnPulls()
        self.shares_sums = self._gains_from_shares() if joint is None else joint
        self.sum_shares = torch.ones_like(network.sum_share)
        is_shared = self.shares_sums and network.head.has_noise
        self.ridges = Ridges.of(network.graph, like) if is_shared else Ridges()
        self.regime: Regime = MOMENTS
        self.largest_constant = math.inf
        self.constant_limit = like.new_full((), math.inf)  # of the head's constant, in training
        self.constant_cap = math.inf  # what leave-one-out scores allow of it
        self.best_score, self.best_constant, self.best_error, self.n_worse = math.inf, math.inf, math.inf, 0
        self.listens = True  # whether this visit is heard by the metric
        self.records = like.is_cuda
        self._chain = DenseChain(network) if DenseChain.is_chain(network) else None
        self._graphs: dict[tuple[int, ...], RecordedVisit] = {}
        self._plain_visits: dict[tuple[int, ...], int] = {}
        self._held: tuple[object, ...] = ()
        self.prior_rest: dict[int, float] = {}  # mean prior precision of each layer's weights

    # --- start and upkeep --------------------------------------------------------------------------------------------

    def start(self, x: Tensor, y: Tensor, *, largest_batch: int) -> None:
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
            self.prior_rest[node.index] = float(first.mean())
        self.signs = self._draw_signs(largest_batch)
        self.ridges.reset()
        if not self.ridges:
            self.own_pulls = OwnPulls.of(network, n_batches=len(self.sites), largest_batch=largest_batch)
        is_linear = self.shares_sums and self._sees_cavities and not network.head.has_noise
        self.regime = LINEAR if is_linear else MOMENTS
        self.refresh()
        self._know_inputs(x)
        self.dear_gap = self._dear_gap()

    @torch.no_grad()
    def _know_inputs(self, x: Tensor) -> None:
        """Inputs of the first weights never change: their moments are taken from the data, once."""
        network = self.network
        first = [node.output for node in network.graph.weight_nodes if not network.graph.is_behind_weights(node)]
        positions = max(math.prod(network.shapes[edge][1:]) for edge in first)
        n_rows = max(1, self.settings.known_rows // positions)
        chosen = torch.randperm(len(x), generator=self.generator(0))[:n_rows].to(x.device)
        sums: dict[int, Tensor] = {}
        for rows in chosen.split(network.rows_at_once(1)):
            for node, local in network.graph.known(x[rows].to(network.device), self._weights(), self.regime):
                moments = local.input_moments(n_examples=len(rows)) * (len(rows) / len(chosen))
                sums[node.index] = moments if node.index not in sums else sums[node.index] + moments
        for k, moments in sums.items():
            self.metrics[k].know_inputs(moments)

    def _draw_signs(self, n: int) -> Tensor:
        """Random signs (n, n_outputs), of which the first are the same for any n."""
        bits = torch.randint(0, 2, (n, self.network.n_outputs), generator=self.generator(0))
        return (2 * bits - 1).to(self.network.prior.rho)

    def state(self) -> dict[str, Tensor]:
        found = {"signs": self.signs, "sum_shares": self.sum_shares}
        found |= {f"own_pull.{k}": pulls for k, pulls in self.own_pulls.items()}
        found |= {f"ridge.{k}": ridge for k, ridge in self.ridges.items()}
        for k, metric in self.metrics.items():
            found |= {f"metric.{k}.{name}": part for name, part in metric.state().items()}
        return found

    def resume(self) -> None:
        for metric in self.metrics.values():
            if metric.knows_inputs:
                metric.resume()

    def rearrange(self, kept: Sequence[Kept], n_new: int, x: Tensor, y: Tensor, *, largest_batch: int) -> None:
        """The metric stands for all data there are now; what leave-one-out scores have said of the noise is open again,
        because scores of other data cannot be compared; visits are recorded anew.
        """
        self.n_data = len(y)
        self.largest_constant = self.network.head.largest_constant(y) if self.network.past is None else math.inf
        self.memory = self._memory()
        self.constant_cap = self.best_score = self.best_constant = self.best_error = math.inf
        self.n_worse = 0
        for k, metric in self.metrics.items():
            metric.resize(self.n_data, self.prior_rest[k])
        self._know_inputs(x)
        self.dear_gap = self._dear_gap()
        self.signs = self._draw_signs(largest_batch)
        self.own_pulls.rearrange(kept, n_new, largest_batch)
        self._graphs.clear()
        self._plain_visits.clear()

    def join(self, parts: Sequence[Schedule]) -> None:
        """Metrics add up, and so do shares of sums on average; the noise is no longer held low."""
        known = [part for part in parts if isinstance(part, ParallelSchedule)]
        self.n_visits = max(part.n_visits for part in known)
        self.next_renewal = self.n_visits + 1
        for k, metric in self.metrics.items():
            metric.join([part.metrics[k] for part in known], self.prior_rest[k])
        shares = torch.stack([part.n_data / self.n_data * part.sum_shares for part in known])
        self.sum_shares.copy_(shares.sum(0))
        self.own_pulls.join([part.own_pulls for part in known])
        self.ridges.join([part.ridges for part in known], [part.n_data / self.n_data for part in known])

    def slope_of(self, row: int, places: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """From a sweep at the current marginals, without the examples' own echo, as in a visit."""
        network, graph = self.network, self.network.graph

        def take_out(node: Node, local: Local) -> Local:
            return self.own_pulls.take_out_at(row, places, node, self.ridges.adjust(node, local))

        trace = graph.sweep_out(x, self._weights(), self.regime, adjust=take_out)
        m_back = network.head.to_latent(trace.outputs, y, self.trusting_belief())
        fresh = network.pack(graph.sweep_back(trace, m_back).to_weights)
        return torch.addcmul(fresh.tau, fresh.rho, self.sites.origin, value=-1.0)

    def absorb(self, change: Tensor, x: Tensor, y: Tensor) -> None:
        """A visit of batches that have nothing to say, or less than before: the change is solved against the metric,
        and the share to take is measured on examples that stay. Dividing sites out of a posterior of independent
        weights would overshoot, as adding them up does.
        """
        network, sites = self.network, self.sites
        if bool(change.any()):
            direction = self._solve(change.to(sites.origin))
            step = self._measure_step_of_all(x, y, direction, torch.dot(change.to(direction), direction))
            moved = torch.addcmul(sites.origin, direction, step)
            left = change - network.prior_pull(moved - sites.origin).double()
            sites.shift.sub_(left / len(sites))
            sites.origin.copy_(moved)
        network.marginal.rho.copy_(sites.posterior(network.prior_at(sites.origin)).rho)
        network.marginal.tau.copy_(network.marginal.rho * sites.origin)
        network.head_log_weights.copy_(sites.head_posterior(self._head_prior))

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

    def _memory(self) -> int:
        """Visits that the metric's running averages cover."""
        lowest, highest = self.settings.memory
        return min(highest, max(lowest, len(self.sites)))

    def _dear_gap(self) -> int:
        """Visits that cost about as much as one renewal of all eigenvectors, counting multiplications."""
        network, settings = self.network, self.settings
        sizes = [len(m.slopes) for m in self.metrics.values()]
        sizes += [len(m.inputs) for m in self.metrics.values() if not m.knows_inputs]
        renewal = sum(size**3 for size in sizes) * settings.eigh_cost
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
        key = (self.listens, *batch.x.shape)
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
        gap = max(1, self.memory // self.settings.heard_visits)
        is_full = self.n_visits > self.memory
        self.listens = not is_full or self.n_visits % gap == 0
        self.share.fill_(1.0 / min(self.n_visits, self.memory // min(gap, 2) if is_full else self.memory))
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
        network, sites = self.network, self.sites
        if self._chain is not None and (info := self._chain.visit(self, batch)) is not None:
            return info
        sweep = self._sweep(batch)
        metrics = network.head.train_metrics(sweep.trace.outputs, batch.y, network.head_log_weights)

        factor = self.settings.precision_factor
        innovation = take_site(sites, batch.index, sweep.to_weights, network.marginal.rho, factor=factor)
        if self.listens:
            self._update_metric(sweep, len(batch.x))
        direction = self._solve(innovation)
        step = self._measure_step(sweep, direction, torch.dot(innovation, direction))
        return VisitInfo(
            step=step.expand(len(self.metrics)),
            n_rejected=sweep.returned.n_rejected,
            n_messages=self.messages_per_example * len(batch.x),
            max_change=move_means(sites, network, innovation, direction, step),
            metrics=metrics,
        )

    def _sweep(self, batch: Batch) -> Sweep:
        """One sweep out and one back, at the current marginals."""
        network, graph = self.network, self.network.graph

        def take_out(node: Node, local: Local) -> Local:
            return self.own_pulls.take_out(batch, node, self.ridges.adjust(node, local))

        trace = graph.sweep_out(batch.x, self._weights(), self.regime, adjust=take_out)
        m_back = network.head.to_latent(trace.outputs, batch.y, self.trusting_belief())
        returned = graph.sweep_back(trace, m_back)
        self.own_pulls.remember(batch, trace, returned)
        return Sweep.of(network, trace, returned, m_back, self.metrics)

    def hear_score(self, score: float, error: float) -> None:
        """Take the leave-one-out score of a refresh, and the error in training: more noise must not make it worse.

        Little data can be explained as noise alone, and a network trained with so much of it stays there. Where the
        score gets worse while noise and error grow, training goes back to the noise of the best score, for good. If
        the error falls it is not too much noise but too little: noise is learned by heart.
        """
        if not self._hears_constant:
            return
        constant = float(self.network.head.in_training(self.trusting_belief()))
        if score < self.best_score:
            self.best_score, self.best_constant, self.best_error, self.n_worse = score, constant, error, 0
        elif (
            score > self.best_score + self.settings.worse_score
            and constant > self.best_constant
            and error > self.best_error
        ):
            self.n_worse += 1
            if self.n_worse >= self.settings.worse_refreshes:
                self.constant_cap, self.n_worse = self.best_constant, 0
        else:
            self.n_worse = 0

    @torch.no_grad()
    def hear_belief(self, belief: Belief, x: Tensor, y: Tensor) -> None:
        """Ridges follow the belief."""
        if not self.ridges:
            return
        network, settings = self.network, self.settings
        n_rows = min(settings.ridge_rows, max(8, RIDGE_NUMBERS // network.n_weights))
        chosen = torch.randperm(len(x), generator=self.generator(0))[:n_rows]
        rows, targets = x[chosen.to(x.device)], y[chosen.to(y.device)].to(network.device)
        trace = network.graph.sweep_out(rows.to(network.prior.rho), self._weights(), self.regime)
        message = network.head.to_latent(trace.outputs, targets, self.trusting_belief())
        mixes = self._draw_signs(len(chosen)) * message.rho.clamp_min(0.0).sqrt()
        self.ridges.follow(network.graph, trace, belief, mixes, settings)

    def _weights(self) -> list[Weights]:
        """The weights as sweeps see them."""
        return self.network.weights(scale=self.scale)

    @property
    def scale(self) -> float:
        """Share of the weights' variance that sweeps see."""
        return self.settings.linear_share if self.regime == LINEAR else 1.0

    def trusting_belief(self) -> Tensor:
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
                metric, local = self.metrics[node.index], sweep.trace.locals[node.index]
                inputs = None if metric.knows_inputs else local.input_moments(n_examples=n_examples)
                slopes = local.slope_rows(pulled)
                per_row, per_weight = sweep.curvatures[node.index]
                curvature = slopes.t() @ slopes
                curvature.diagonal().add_(per_row)
                curvature.div_(n_batch)
                rest = self.prior_rest[node.index] + per_weight * (self.n_data / n_batch)
                metric.update(inputs, curvature, rest, self.share)

    def _solve(self, slope: Tensor) -> Tensor:
        """The inverse metric of every layer applied to a flat slope."""
        solution = torch.empty_like(slope)
        slopes, answers = self.network.unpack(slope), self.network.unpack(solution)
        for node in self.network.graph.weight_nodes:
            metric, layer = self.metrics[node.index], node.layer
            given, answer = slopes[node.index], answers[node.index]
            if isinstance(layer, WeightLayer):
                metric.solve_blocks(layer.matrix_blocks(given), layer.matrix_blocks(answer))
                continue
            for name, part in layer.from_matrix(metric.solve(layer.to_matrix(given))).items():
                answer[name].copy_(part)
        return solution

    def _measure_step(self, sweep: Sweep, direction: Tensor, model: Tensor) -> Tensor:
        r"""The share alpha of d to take.

        A line search on the whole surrogate: this batch measured, all others as H has them over `stretch`. With c the
        batch's true curvature along d, joint over all layers, and d^T H d = `model` for all n batches,
            alpha = 1 / max(1/stretch, (1 - 1/n) / stretch + c / model)
        and no layer's outputs may move by more than their own spread over the batch, beyond which c means nothing.

        Why stretch: a visit moves the means by what one batch has to tell, and how the others' slopes really changed is
        heard only when they are visited. So with stretch 1 an epoch is one Newton step, however many batches it has,
        and H bounds the curvature from above. With a step s times too long the innovation of the next visits is
        (1 - s) times the mean of the last n, which dies out for s < n + 1 if batches are alike; `stretch` stays far
        below, because they are not.
        """
        curvature, reach = along(self.network, sweep, direction)
        if self.network.past is not None:
            curvature = curvature + torch.dot(direction, self.network.prior_pull(direction))
        stretch, tiny = self.stretch, torch.finfo(model.dtype).tiny
        stiffness = curvature / model.clamp_min(tiny) + (1.0 - 1.0 / len(self.sites)) / stretch
        return torch.maximum(stiffness, reach / self.settings.max_reach).clamp_min(1.0 / stretch).reciprocal()

    @property
    def stretch(self) -> float:
        """How many times as long as the metric says a step may be: more only where many batches share the data."""
        longest, share = self.settings.stretch
        return max(1.0, min(longest, share * len(self.sites)))

    def _measure_step_of_all(self, x: Tensor, y: Tensor, direction: Tensor, model: Tensor) -> Tensor:
        """The share of a direction to take that no batch speaks for: as `_measure_step`, with the curvature of all data
        from these examples of them, and the prior's. No visit repeats it, and the metric may count curvature twice, so
        it may be up to 2.
        """
        network, graph = self.network, self.network.graph
        trace = graph.sweep_out(x, self._weights(), self.regime, adjust=self.ridges.adjust)
        m_back = network.head.to_latent(trace.outputs, y, self.trusting_belief())
        sweep = Sweep.of(network, trace, graph.sweep_back(trace, m_back), m_back, self.metrics)
        curvature, reach = along(self.network, sweep, direction)
        curvature = curvature * (self.n_data / len(x)) + torch.dot(network.prior_pull(direction), direction)
        stiffness = curvature / model.clamp_min(torch.finfo(model.dtype).tiny)
        return torch.maximum(stiffness, reach / self.settings.max_reach).clamp_min(0.5).reciprocal()

    @property
    def _hears_constant(self) -> bool:
        """Whether messages to the outputs depend on a constant that is learned."""
        head = self.network.head
        return head.is_learned and head.is_heard_in_training

    @property
    def _sees_cavities(self) -> bool:
        """Whether the examples' own pulls are taken out behind every layer with weights."""
        return self.own_pulls.keys() == self.metrics.keys()
