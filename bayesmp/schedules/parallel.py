r"""The parallel schedule: a whole batch at once, as matrix products.

A visit to batch b computes its messages to all weights at the current marginal N(m, 1/rho): a fresh precision rho_b,
which replaces the old one, and a fresh slope g_b = tau_b - rho_b m, whose difference to the remembered slope, the
*innovation*, moves the mean. The posterior stays prior x sites throughout:

1. innovation  j = g_b - (slope_b + shift)
2. direction   d = H^{-1} j, with the Kronecker-factored curvature H of all data (curvature.py)
3. step        alpha in (0, 1] from the curvature measured along d (`_measure_step`)
4. m <- m + alpha d;  slope_b <- g_b - shift;  shift <- shift - (j - rho_prior alpha d) / n;  rho_b <- fresh

Line 4 keeps the balance sum_b (slope_b + shift) = rho_prior (m - m_prior), which says that m is the posterior mean. It
rests where every innovation is zero, whatever H and alpha were: there tau_b and rho_b are the messages themselves.
Only joint shares (curvature.py), where they are counted, make the messages themselves follow H a little.

All state is updated in place and nothing here waits for the device, so a visit can be recorded as a CUDA graph
(graphs.py).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.equations.linear import SumMoments
from bayesmp.equations.tilted import count_rejected
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.heads.base import without_own_message
from bayesmp.layers.linear import Linear, WeightLayer
from bayesmp.network import Network
from bayesmp.priors import spectral_std
from bayesmp.schedules.base import Batch, Schedule, VisitInfo
from bayesmp.schedules.curvature import LayerCurvature
from bayesmp.schedules.graphs import WARM_UP, RecordedVisit
from bayesmp.schedules.own_pulls import OwnPulls
from bayesmp.schedules.sweep import Sweep, without_noise
from bayesmp.sites import Sites

TIGHTNESS = 0.1  # training starts with weights held at their starting means to this share of the spectral std
MEMORY = (5, 100)  # visits that running averages cover, and at most pass between renewals of H: an epoch, within these
MAX_REACH = 0.3  # no layer's outputs may move further than this, in units of their spread over the batch
EIGH_COST = 40  # multiplications of an eigendecomposition over n^3, at the speed of a matrix product
VISIT_PRODUCTS = 12  # products per weight, position and example in one visit
MOMENT_ROWS = 4096  # inputs or patches of a batch from which A is estimated: plenty for a running average
JOINT_MEMORY = 25  # visits over which joint shares follow those of a renewed H
TRUST = (0.01, 1.05)  # training starts with at most this share of all y as noise, and lets it grow so fast per visit
PRECISION_FACTOR = 2.0  # no weight's precision may grow or shrink by more than this in one visit


class ParallelSchedule(Schedule):
    """State of a parallel run beside the sites: the curvature of each layer, and what each example last sent to wide
    layers.

    Args:
        joint: whether correlations between weights count in the variance of their sums (curvature.py); None decides by
            the network.
    """

    counters = ("n_visits", "next_renewal")

    def __init__(self, network: Network, sites: Sites, *, seed: int, joint: bool | None = None) -> None:
        super().__init__(network, sites, seed=seed)
        like = network.prior.rho
        self.n_visits = 0
        self.next_renewal = 1
        self.memory = min(MEMORY[1], max(MEMORY[0], len(sites)))
        self.dear_gap = 1
        self.n_data = 0
        self.curvatures: dict[int, LayerCurvature] = {}
        self.share = like.new_ones(())  # weight of the newest batch in the curvature's running averages
        self.signs = like.new_zeros(0)
        self.own_pulls = OwnPulls(network, n_batches=0, largest_batch=0)
        self.counts_joint = self._counts_joint() if joint is None else joint
        self.joint_shares = torch.ones_like(network.joint_share)
        self.largest_constant = math.inf
        self.constant_limit = like.new_full((), math.inf)  # of the head's constant, in training
        self.records = like.is_cuda and sites.plan.place == "device"
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
        network, prior = self.network, self.network.prior
        self.n_data = len(y)
        self.largest_constant = network.head.largest_constant(y)
        pull = torch.empty_like(prior.rho)
        for slot in network.slots:
            pull[slot.start : slot.stop] = self._tight_rho(slot.layer, slot.name)
        pull = (pull - prior.rho).clamp_min(0.0)
        self.sites.fill(pull / len(self.sites), self.head_start(y), origin=network.start.to(prior.rho))
        self.curvatures = {}
        for k, tensors in enumerate(network.unpack(prior.rho)):
            if tensors:
                n_columns = tensors["weight"][0].numel() + ("bias" in tensors)
                self.curvatures[k] = LayerCurvature(self.n_data, len(tensors["weight"]), n_columns, like=prior.rho)
                self._prior_rest[k] = float(tensors["weight"].mean())
        self.dear_gap = self._dear_gap()
        bits = torch.randint(0, 2, (largest_batch, network.n_outputs), generator=self.generator(0))
        self.signs = (2 * bits - 1).to(prior.rho)
        self.own_pulls = OwnPulls(network, n_batches=len(self.sites), largest_batch=largest_batch)
        self.refresh()

    def state(self) -> dict[str, Tensor]:
        found = {"signs": self.signs, "joint_shares": self.joint_shares}
        found |= {f"own_pull.{k}": pulls for k, pulls in self.own_pulls.items()}
        for k, curvature in self.curvatures.items():
            found |= {f"curvature.{k}.{name}": part for name, part in curvature.state().items()}
        return found

    def refresh(self) -> None:
        """Recompute precisions from the sites, and put what rounding did to the balance of slopes into the shift."""
        network, sites = self.network, self.sites
        exact = sites.posterior(network.prior)
        sites.shift.sub_((exact.tau - exact.rho * sites.origin).double() / len(sites))
        network.marginal.rho.copy_(exact.rho)
        network.marginal.tau.copy_(exact.rho * sites.origin)
        network.head_log_weights.copy_(sites.head_posterior(self._head_prior))
        network.joint_share.copy_(self.joint_shares)
        network.is_linearised = self.counts_joint and self._sees_cavities

    def _dear_gap(self) -> int:
        """Visits that cost about as much as one renewal of all eigenvectors, counting multiplications."""
        network = self.network
        renewal = sum(len(c.inputs) ** 3 + len(c.slopes) ** 3 for c in self.curvatures.values()) * EIGH_COST
        positions = {k: math.prod(network.shapes[k + 1][1:]) for k in self.curvatures}
        products = sum((slot.stop - slot.start) * positions[slot.layer] for slot in network.slots) * VISIT_PRODUCTS
        return max(1, round(renewal * len(self.sites) / (products * self.n_data)))

    def _tight_rho(self, index: int, name: str) -> float:
        if name == "bias":
            return TIGHTNESS**-2
        fan_in = self._weight_layer(index).fan_in
        return (TIGHTNESS * spectral_std(fan_in, math.prod(self.network.shapes[index + 1]))) ** -2

    # --- a visit -----------------------------------------------------------------------------------------------------

    def visit(self, batch: Batch, epoch: int) -> VisitInfo:
        self.before_visit()
        info = self._recorded(batch) if self.records else self.visit_on_device(batch)
        self.after_visit()
        return info

    def _recorded(self, batch: Batch) -> VisitInfo:
        """The visit as a CUDA graph of its batch's shape, recorded once enough plain visits of that shape have run."""
        network = self.network
        held = (network.marginal, network.prior, network.head_log_weights, network.joint_share)
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
        share = TRUST[0] * TRUST[1] ** min(self.n_visits, 10_000)
        self.constant_limit.fill_(share * self.largest_constant if share < 1.0 else math.inf)

    def after_visit(self) -> None:
        """Renew the eigenvectors of H: often while everything still moves, later once per memory, rarely if dear."""
        if self.n_visits >= self.next_renewal:
            gap = max(min(self.memory, 1 + self.n_visits // 8), min(self.dear_gap, self.n_visits))
            self.next_renewal = self.n_visits + gap
            for curvature in self.curvatures.values():
                curvature.renew()
            if self.counts_joint:
                self._count_joint(pace=1.0 - math.exp(-gap / JOINT_MEMORY))

    def _counts_joint(self) -> bool:
        """Whether the network gains from it: one of two or more dense layers.

        A single layer needs none: its means are exact whatever the variance of its sums. Where weights are shared, as
        in convolutions, H takes the positions of an image for independent examples; that is good enough for a metric,
        but makes the joint posterior too sure: on CIFAR-10 it costs .03 nats, even if used in the dense layers alone.
        """
        layers = [self.network.layers[k] for k in sorted({slot.layer for slot in self.network.slots})]
        return len(layers) > 1 and all(isinstance(layer, Linear) for layer in layers)

    def _count_joint(self, pace: float) -> None:
        """Move every layer's joint share (curvature.py) towards that of the renewed H."""
        for k, var in enumerate(self.network.unpack(1.0 / self.network.marginal.rho)):
            if k in self.curvatures:
                matrix = torch.cat([part.reshape(len(part), -1) for part in var.values()], 1)  # (o, i), bias last
                self.joint_shares[k].lerp_(self.curvatures[k].joint_share(matrix), pace)
        self.network.joint_share.copy_(self.joint_shares)

    def visit_on_device(self, batch: Batch) -> VisitInfo:
        """The visit proper: tensors in, tensors changed in place, nothing read back."""
        network, sites, n = self.network, self.sites, len(self.sites)
        marginal, origin = network.marginal, sites.origin
        sweep = self._sweep(batch)
        m_out = sweep.outputs
        metrics = network.head.train_metrics(m_out, batch.y, network.head_log_weights)
        if network.head.is_learned:
            self.replace_head_site(batch.index, network.head.to_constant(self._unseen(sweep), batch.y))

        fresh = sweep.to_weights
        old_slope, old_rho = sites.get(batch.index)
        fresh_slope = fresh.tau - fresh.rho * origin - sites.shift.to(origin)
        rho = marginal.rho
        fresh_rho = fresh.rho.clamp(
            old_rho - (1.0 - 1.0 / PRECISION_FACTOR) * rho, old_rho + (PRECISION_FACTOR - 1.0) * rho
        )
        new_slope, new_rho = sites.replace(batch.index, fresh_slope, fresh_rho)
        innovation = new_slope - old_slope

        self._update_curvature(sweep)
        direction = self._solve(innovation)
        step = self._measure_step(sweep, direction, (innovation * direction).sum())
        change = (origin + step * direction) - origin  # as rounded, so that the balance stays exact
        origin.add_(change)
        sites.shift.sub_((innovation - network.prior.rho * change).double() / n)
        marginal.rho.add_(new_rho - old_rho)
        marginal.tau.copy_(marginal.rho * origin)
        return VisitInfo(
            step=step.expand(len(self.curvatures)),
            n_rejected=sweep.n_rejected,
            n_messages=self.messages_per_example() * len(batch.x),
            max_change=(change.abs() * marginal.rho.sqrt()).max(),
            metrics=metrics,
        )

    def _unseen(self, sweep: Sweep) -> Moments:
        """Outputs as they would be had each example not been seen: where the pulls of all layers are taken out they are
        so already, else marginals are put right.
        """
        if self._sees_cavities:
            return sweep.outputs
        return without_own_message(sweep.outputs, sweep.backs[len(self.network.layers) - 1])

    def _sweep(self, batch: Batch) -> Sweep:
        """One sweep out and one back, at the current marginals."""
        network = self.network
        weights = network.weights()
        edges = network.sweep_out(batch.x, weights, lambda k, edge: self.own_pulls.take_out(batch, k, edge))
        if network.is_linearised:
            edges = without_noise(edges)
        m_out = edges[-1]
        assert isinstance(m_out, Moments)
        m_back: Gaussian | None = network.head.to_latent(m_out, batch.y, self._trusting_belief())
        backs: dict[int, Gaussian] = {}
        to_weights: list[dict[str, Gaussian]] = [{} for _ in network.layers]
        n_rejected = torch.zeros((), dtype=torch.int64, device=network.device)
        for k in range(len(network.layers) - 1, network.first_weight_layer - 1, -1):
            edge = edges[k + 1]
            assert m_back is not None and isinstance(edge, Moments)
            backs[k] = m_back
            m_back, to_weights[k] = network.layers[k].messages_back(edges[k], edge, m_back, weights[k])
            if m_back is not None and network.layers[k].may_reject:
                n_rejected = n_rejected + count_rejected(m_back)
        self.own_pulls.remember(batch, edges, backs)
        curvatures, input_curvatures = {}, {}
        for k in self.curvatures:
            m_in, edge = edges[k], edges[k + 1]
            assert isinstance(edge, SumMoments)
            curvatures[k] = kernels.weight_curvature(edge.input_var, backs[k].rho)
            var_in = m_in.var.mean() if isinstance(m_in, Moments) else torch.zeros_like(self.share)
            input_curvatures[k] = var_in * curvatures[k].sum() / curvatures[k].shape[1]
        return Sweep(weights, edges, backs, network.pack(to_weights), curvatures, input_curvatures, n_rejected)

    def _trusting_belief(self) -> Tensor:
        """The belief about the head's constant for messages to weights.

        Before anything is fitted all of y looks like noise, and with so much noise nothing would ever be fitted: a
        fixed point of its own. So training begins with little noise and lets it grow; predictions are honest at once.
        """
        belief = self.network.head_log_weights
        grid = self.network.head.grid_like(belief)
        return belief.masked_fill(grid > torch.maximum(self.constant_limit, grid[0]), -1e4)

    # --- direction and step ------------------------------------------------------------------------------------------

    def _update_curvature(self, sweep: Sweep) -> None:
        """Take the batch into the running curvature of every layer: one pullback of the outputs' curvature."""
        network = self.network
        top = len(network.layers) - 1
        n_batch = len(sweep.outputs.mean)
        slope = self.signs[:n_batch] * sweep.output_curvature.sqrt()
        for k in range(top, network.first_weight_layer - 1, -1):
            layer, m_in = network.layers[k], sweep.edges[k]
            if isinstance(layer, WeightLayer):
                linear_map = layer.linear_map(m_in)
                mean_in = m_in.mean if isinstance(m_in, Moments) else m_in
                images = max(1, MOMENT_ROWS // math.prod(network.shapes[k + 1][1:]))
                rows = linear_map.patches(mean_in[:images]).flatten(0, 1)  # (r, i)
                if layer.has_bias:
                    rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
                slopes = linear_map.rows(slope).flatten(0, 1)  # (b p, o)
                rest = self._prior_rest[k] + self.n_data * sweep.input_curvatures[k] / n_batch
                own = torch.diag(linear_map.channel_sum(sweep.curvatures[k]))  # (o, o)
                self.curvatures[k].update(
                    rows.t() @ rows / len(rows), (slopes.t() @ slopes + own) / n_batch, rest, self.share
                )
            if k > network.first_weight_layer:
                assert isinstance(m_in, Moments)
                slope = layer.pullback(m_in, sweep.after(k), slope, sweep.weights[k])

    def _solve(self, slope: Tensor) -> Tensor:
        """H^{-1} of every layer applied to a flat slope."""
        found = torch.empty_like(slope)
        slopes, answers = self.network.unpack(slope), self.network.unpack(found)
        for k, curvature in self.curvatures.items():
            matrix = slopes[k]["weight"].flatten(1)
            if "bias" in slopes[k]:
                matrix = torch.cat([matrix, slopes[k]["bias"][:, None]], 1)
            solved = curvature.solve(matrix)
            if "bias" in slopes[k]:
                answers[k]["bias"].copy_(solved[:, -1])
                solved = solved[:, :-1]
            answers[k]["weight"].copy_(solved.reshape(answers[k]["weight"].shape))
        return found

    def _measure_step(self, sweep: Sweep, direction: Tensor, model: Tensor) -> Tensor:
        r"""The share alpha of d to take.

        A line search on the whole surrogate: all other batches as H has them, this batch measured. With c the batch's
        true curvature along d, joint over all layers, and d^T H d = `model` for all n batches,
            alpha = 1 / max(1, 1 - 1/n + c / model)
        and no layer's outputs may move by more than their own spread over the batch, beyond which c means nothing.
        """
        network, parts = self.network, self.network.unpack(direction)
        change: Tensor | None = None
        tiny = torch.finfo(model.dtype).tiny
        curvature, reach = torch.zeros_like(model), torch.zeros_like(model)
        for k in range(network.first_weight_layer, len(network.layers)):
            edge = sweep.after(k)
            change = network.layers[k].tangent(sweep.edges[k], edge, change, sweep.weights[k], parts[k])
            if k in self.curvatures:
                assert change is not None
                curvature = curvature + sweep.input_curvatures[k] * parts[k]["weight"].square().sum()
                spread = edge.mean.var(correction=0) + edge.var.mean()
                reach = torch.maximum(reach, change.square().mean() / (spread + tiny))
        assert change is not None
        curvature = curvature + (sweep.output_curvature * change.square()).sum()
        stiffness = 1.0 - 1.0 / len(self.sites) + curvature / model.clamp_min(tiny)
        return 1.0 / torch.maximum(stiffness, reach.sqrt() / MAX_REACH).clamp_min(1.0)

    @property
    def _sees_cavities(self) -> bool:
        """Whether the examples' own pulls are taken out behind every layer with weights."""
        return self.own_pulls.keys() == self.curvatures.keys()

    def _weight_layer(self, k: int) -> WeightLayer:
        layer = self.network.layers[k]
        assert isinstance(layer, WeightLayer)
        return layer
