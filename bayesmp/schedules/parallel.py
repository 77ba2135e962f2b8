r"""The parallel schedule: a whole batch at once, as matrix products.

A visit to batch b computes its messages to all weights at the current marginal N(m, 1/rho): a fresh precision rho_b,
which replaces the old one, and a fresh slope g_b (tau_b - rho_b m), whose difference to the remembered slope, the
*innovation*, moves the mean. The weights' posterior stays prior x sites throughout:

1. innovation  j = g_b - (slope_b + shift)
2. direction   d = H^{-1} j, with the Kronecker-factored curvature H of all data (curvature.py)
3. step        alpha in (0, 1] from the measured curvature along d (below)
4. m <- m + alpha d;  slope_b <- g_b - shift;  shift <- shift - (j - rho_prior alpha d) / n;  rho_b <- fresh

Step 4 keeps the balance sum_b (slope_b + shift) = rho_prior (m - m_prior), which says that m is the posterior mean. It
rests where every innovation is zero, whatever H and alpha were: there tau_b and rho_b are the messages themselves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesmp.equations.linear import SumMoments, residual, weight_curvature
from bayesmp.equations.tilted import count_rejected
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.layers.base import Message, Weights
from bayesmp.layers.linear import WeightLayer
from bayesmp.network import Network
from bayesmp.priors import spectral_std
from bayesmp.schedules.base import Batch, Schedule, VisitInfo
from bayesmp.schedules.curvature import LayerCurvature
from bayesmp.sites import Sites

TIGHTNESS = 0.1  # the first epoch starts with weights held at their prior means to this share of the spectral std
RENEW_EVERY = 10  # visits between renewals of the curvature's inverses
SHORTEST_MEMORY = 5.0  # visits that a running average covers at least
LONGEST_MEMORY = 100.0


class ParallelSchedule(Schedule):
    """State of a parallel run beside the sites: the mean, the curvature of each layer, the measured stiffness."""

    def __init__(self, network: Network, sites: Sites, *, seed: int) -> None:
        super().__init__(network, sites, seed=seed)
        self.n_visits = 0
        self.stiffness = torch.ones((), dtype=network.dtype, device=network.device)
        self.previous: tuple[Tensor, Tensor] | None = None  # last direction, and its curvature under H
        self.curvatures: dict[int, LayerCurvature] = {}
        self.signs = torch.zeros(0)

    def start(self, y: Tensor) -> None:
        """Every site starts as 1/n of a pseudo-message that holds the weights near their prior means.

        From the broad prior the activations are mostly noise and the network collapses to a constant; the first visit
        to each batch replaces its share, so nothing of this is left after one epoch.
        """
        network, n = self.network, len(self.sites)
        self.n_data = len(y)
        pull = torch.cat([torch.full((slot.stop - slot.start,), self._tight_rho(slot.layer, slot.name)) for slot in network.slots])
        pull = (pull.to(network.prior.rho) - network.prior.rho).clamp_min(0.0)
        self.sites.fill(pull / n, self.head_start(y), origin=network.prior.mean)
        memory = min(LONGEST_MEMORY, max(SHORTEST_MEMORY, float(n)))
        self.curvatures = {slot.layer: LayerCurvature(self.n_data, memory) for slot in network.slots}
        largest = -(-self.n_data // n)
        bits = torch.randint(0, 2, (largest + self.n_data % max(largest, 1) + 1, network.n_outputs), generator=self.generator(0))
        self.signs = (2 * bits - 1).to(network.prior.rho)
        self.refresh()

    def _tight_rho(self, index: int, name: str) -> float:
        if name == "bias":
            return TIGHTNESS**-2
        layer = self.network.layers[index]
        assert isinstance(layer, WeightLayer)
        n_out = math.prod(self.network.shapes[index + 1])
        return (TIGHTNESS * spectral_std(layer.fan_in, n_out)) ** -2

    def visit(self, batch: Batch, epoch: int) -> VisitInfo:
        network, sites = self.network, self.sites
        mean, rho = sites.origin, network.marginal.rho
        weights = network.weights(Gaussian(mean * rho, rho))
        edges = network.sweep_out(batch.x, weights)
        m_out = edges[-1]
        assert isinstance(m_out, Moments)
        m_back = network.head.to_latent(m_out, batch.y, network.head_log_weights)
        metrics = network.head.train_metrics(m_out, batch.y, network.head_log_weights)
        fresh, backs, n_rejected = self._sweep_back(edges, m_back, weights)

        old_slope, old_rho = sites.get(batch.index)
        slope, new_rho = sites.replace(batch.index, fresh.tau - fresh.rho * mean - sites.shift, fresh.rho)
        innovation = slope - old_slope
        rho = rho + (new_rho - old_rho)
        self._update_curvature(edges, backs, weights)
        direction = self._solve(innovation)

        n = len(sites)
        model = (innovation * direction).sum()
        own = self._batch_curvature(edges, backs, weights, direction) * n / model.clamp_min(TINY)
        if self.previous is not None:
            last, last_model = self.previous
            cross = self._batch_curvature(edges, backs, weights, last) * n / last_model.clamp_min(TINY)
            self.stiffness = self.stiffness.lerp(cross, 1.0 / min(self.n_visits, 30))
        stiff = (1.0 - 1.0 / n) * self.stiffness + own / n
        step = 1.0 / stiff.clamp_min(1.0)
        self.previous = (direction, model)

        change = step * direction
        sites.origin.add_(change)
        sites.shift.sub_((innovation - network.prior.rho * change) / n)
        network.marginal = Gaussian(rho * sites.origin, rho)
        self.replace_head_site(batch.index, network.head.to_constant(m_out, m_back, batch.y))
        self.n_visits += 1
        units = sum(math.prod(shape) for shape in network.shapes[network.first_weight_layer + 1 :])
        return VisitInfo(
            step=step.expand(len(self.curvatures)),
            n_rejected=n_rejected,
            n_messages=units * len(batch.x),
            max_change=(change.abs() * rho.sqrt()).max(),
            metrics=metrics,
        )

    def _sweep_back(
        self, edges: list[Message], m_back: Gaussian | None, weights: list[Weights]
    ) -> tuple[Gaussian, dict[int, Gaussian], Tensor]:
        network = self.network
        to_weights: list[dict[str, Gaussian]] = [{} for _ in network.layers]
        backs: dict[int, Gaussian] = {}
        n_rejected = torch.zeros((), dtype=torch.int64, device=network.device)
        for k in range(len(network.layers) - 1, network.first_weight_layer - 1, -1):
            edge = edges[k + 1]
            assert m_back is not None and isinstance(edge, Moments)
            backs[k] = m_back
            m_back, to_weights[k] = network.layers[k].messages_back(edges[k], edge, m_back, weights[k])
            if m_back is not None:
                n_rejected = n_rejected + count_rejected(m_back)
        return network.pack(to_weights), backs, n_rejected

    def _update_curvature(self, edges: list[Message], backs: dict[int, Gaussian], weights: list[Weights]) -> None:
        network = self.network
        m_out = edges[-1]
        slope = self.signs[: len(m_out.mean)] * self._output_curvature(edges, backs).sqrt()
        for k in range(len(network.layers) - 1, network.first_weight_layer - 1, -1):
            layer, m_in = network.layers[k], edges[k]
            if isinstance(layer, WeightLayer):
                prior = network.unpack(network.prior.rho)[k]["weight"].mean()
                rest = prior + self._input_curvature(edges, backs, k) * (self.n_data / len(m_out.mean))
                mean_in = m_in.mean if isinstance(m_in, Moments) else m_in
                self.curvatures[k].update(layer.linear_map(m_in), mean_in, slope, rest, has_bias=layer.has_bias)
            if k > network.first_weight_layer:
                slope = layer.pullback(m_in, slope, weights[k])
        if self.n_visits < RENEW_EVERY or self.n_visits % RENEW_EVERY == 0:
            for curvature in self.curvatures.values():
                curvature.refresh()

    def _input_curvature(self, edges: list[Message], backs: dict[int, Gaussian], k: int) -> Tensor:
        """Mean over the weights of sum_b q Var[a]: the curvature that uncertain inputs add to each weight."""
        m_in, m_out = edges[k], edges[k + 1]
        if not isinstance(m_in, Moments):
            return torch.zeros((), dtype=self.network.dtype, device=self.network.device)
        q = residual(m_out, backs[k]).q
        return m_in.var.mean() * q.sum() / q.shape[1]

    def _solve(self, slope: Tensor) -> Tensor:
        network = self.network
        parts = network.unpack(slope)
        found = torch.empty_like(slope)
        views = network.unpack(found)
        for k, curvature in self.curvatures.items():
            matrix = parts[k]["weight"].flatten(1)
            if "bias" in parts[k]:
                matrix = torch.cat([matrix, parts[k]["bias"][:, None]], 1)
            solved = curvature.solve(matrix)
            if "bias" in parts[k]:
                views[k]["bias"].copy_(solved[:, -1])
                solved = solved[:, :-1]
            views[k]["weight"].copy_(solved.reshape(views[k]["weight"].shape))
        return found

    def _batch_curvature(
        self, edges: list[Message], backs: dict[int, Gaussian], weights: list[Weights], direction: Tensor
    ) -> Tensor:
        """Curvature of this batch along a direction in all weights at once: sum q (change of outputs)^2 + input parts."""
        network = self.network
        change, parts = None, network.unpack(direction)
        curvature = torch.zeros((), dtype=network.dtype, device=network.device)
        for k, layer in enumerate(network.layers):
            if k < network.first_weight_layer:
                continue
            change = layer.tangent(edges[k], change, weights[k], parts[k])
            if isinstance(layer, WeightLayer):
                curvature = curvature + self._input_curvature(edges, backs, k) * parts[k]["weight"].square().sum()
        return curvature + (self._output_curvature(edges, backs) * change.square()).sum()

    def _output_curvature(self, edges, backs):
        k = len(self.network.layers) - 1
        return weight_curvature(edges[-1], backs[k]) if isinstance(edges[-1], SumMoments) else backs[k].rho / (1 + backs[k].rho * edges[-1].var)

    def refresh(self) -> None:
        """Recompute precisions from the sites, and put what rounding did to the balance of slopes into the shift."""
        network, sites = self.network, self.sites
        exact = sites.posterior(network.prior)
        imbalance = exact.tau - exact.rho * sites.origin
        sites.shift.sub_(imbalance / len(sites))
        network.marginal = Gaussian(exact.rho * sites.origin, exact.rho)
        network.head_log_weights = sites.head_posterior(network.head.prior_log_weights())


TINY = 1e-30
