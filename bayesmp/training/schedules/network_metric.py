"""The metric of all layers: how far to step in the space of all weights (metric.py says what it is in one layer)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bayesmp.basics.settings import Settings
from bayesmp.layers.base import Weights
from bayesmp.layers.linear import WeightLayer, all_dense
from bayesmp.messages.regime import Regime
from bayesmp.network.network import Network
from bayesmp.training.schedules.metric import LayerMetric
from bayesmp.training.schedules.sweep import Sweep


class NetworkMetric(dict[int, LayerMetric]):
    """By weight node, the metric of its layer; empty until `start`.

    `n_data` is the number of examples that it stands for.
    """

    def __init__(self, network: Network, settings: Settings) -> None:
        super().__init__()
        self.network = network
        self.settings = settings
        self.n_data = 0
        self._rule_rest: dict[int, float] = {}  # mean precision of a layer's weights by the prior's rule

    def start(self, n_data: int) -> None:
        """Make the metrics of a run on this many examples, of which nothing is known yet."""
        network, prior, past = self.network, self.network.prior, self.network.past
        self.clear()
        self.n_data = n_data
        precisions = network.unpack(prior.rho * network.prior_width)
        factors = [None] * len(network.layers) if past is None else past.factors
        for node, older in zip(network.graph.weight_nodes, factors, strict=False):
            matrix = node.layer.to_matrix(precisions[node.index])
            self[node.index] = LayerMetric(n_data, *matrix.shape, like=prior.rho, past=older)
            first = next(iter(precisions[node.index].values()))
            self._rule_rest[node.index] = float(first.mean())

    def prior_rest(self, k: int) -> float:
        """Mean prior precision of a layer's weights."""
        return self._rule_rest[k] / self.network.prior_width

    @torch.no_grad()
    def know_inputs(self, x: Tensor, weights: list[Weights], regime: Regime, generator: torch.Generator) -> None:
        """Inputs of the first weights never change: their moments are taken from the data, once."""
        network = self.network
        first = [node.output for node in network.graph.weight_nodes if not network.graph.is_behind_weights(node)]
        positions = max(math.prod(network.shapes[edge][1:]) for edge in first)
        n_rows = max(1, self.settings.known_rows // positions)
        chosen = torch.randperm(len(x), generator=generator)[:n_rows].to(x.device)
        sums: dict[int, Tensor] = {}
        for rows in chosen.split(network.rows_at_once(1)):
            for node, local in network.graph.known(x[rows].to(network.device), weights, regime):
                moments = local.input_moments(n_examples=len(rows)) * (len(rows) / len(chosen))
                sums[node.index] = moments if node.index not in sums else sums[node.index] + moments
        for k, moments in sums.items():
            self[k].know_inputs(moments)

    def resize(self, n_data: int) -> None:
        """Stand for another number of examples, which are like those seen so far."""
        self.n_data = n_data
        for k, metric in self.items():
            metric.resize(n_data, self.prior_rest(k))

    def join(self, parts: Sequence[NetworkMetric]) -> None:
        """Stand for all the examples that these stand for."""
        for k, metric in self.items():
            metric.join([part[k] for part in parts], self.prior_rest(k))

    def state(self) -> dict[str, Tensor]:
        """The tensors that make up its state."""
        return {f"{k}.{name}": part for k, metric in self.items() for name, part in metric.state().items()}

    def resume(self) -> None:
        """Find again what is not part of the state."""
        for metric in self.values():
            if metric.knows_inputs:
                metric.resume()

    def hear(self, sweep: Sweep, signs: Tensor, share: Tensor) -> None:
        """Take a batch into the running averages: one pullback of the outputs' curvature.

        Args:
            signs: random ones, (b, n_outputs).
            share: weight of the batch in the averages.
        """
        network, n_batch = self.network, len(signs)
        slope = signs * sweep.output_curvature.sqrt()
        for node, pulled in network.graph.pull(sweep.trace, slope[None]):
            if node.has_weights:
                n_examples = max(1, self.settings.moment_rows // math.prod(network.shapes[node.output][1:]))
                metric, local = self[node.index], sweep.trace.locals[node.index]
                inputs = None if metric.knows_inputs else local.input_moments(n_examples=n_examples)
                slopes = local.slope_rows(pulled)
                per_row, per_weight = sweep.curvatures[node.index]
                curvature = slopes.t() @ slopes
                curvature.diagonal().add_(per_row)
                curvature.div_(n_batch)
                rest = self.prior_rest(node.index) + per_weight * (self.n_data / n_batch)
                metric.update(inputs, curvature, rest, share)

    def renew(self) -> None:
        """Eigenvectors and eigenvalues of the current averages."""
        for metric in self.values():
            metric.renew()

    def visits_per_renewal(self, n_batches: int) -> int:
        """Visits that cost about as much as one renewal of all eigenvectors, counting multiplications."""
        network, settings = self.network, self.settings
        sizes = [len(metric.slopes) for metric in self.values()]
        sizes += [len(metric.inputs) for metric in self.values() if not metric.knows_inputs]
        renewal = sum(size**3 for size in sizes) * settings.eigh_cost
        products = network.products_per_example * settings.visit_products * self.n_data
        return max(1, round(renewal * n_batches / products))

    def solve(self, slope: Tensor) -> Tensor:
        """The inverse metric of every layer applied to a flat slope."""
        solution = torch.empty_like(slope)
        slopes, answers = self.network.unpack(slope), self.network.unpack(solution)
        for node in self.network.graph.weight_nodes:
            metric, layer = self[node.index], node.layer
            given, answer = slopes[node.index], answers[node.index]
            if isinstance(layer, WeightLayer):
                metric.solve_blocks(layer.matrix_blocks(given), layer.matrix_blocks(answer))
                continue
            for name, part in layer.from_matrix(metric.solve(layer.to_matrix(given))).items():
                answer[name].copy_(part)
        return solution

    def sum_shares(self, var: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Every layer's share of sums for independent weights with variances `var`, (w,), by node."""
        parts = self.network.unpack(var)
        for node in self.network.graph.weight_nodes:
            yield node.index, self[node.index].sum_share(node.layer.to_matrix(parts[node.index]))


def gains_from_shares(network: Network) -> bool:
    """Whether the network gains from shares of sums: one of two or more dense layers.

    A single layer needs none: its means are exact whatever the variance of its sums. Where weights are shared, as in
    convolutions, the metric takes the positions of an image for independent examples; that is good enough for steps,
    but makes sums too sure.
    """
    layers = [node.layer for node in network.graph.weight_nodes]
    return len(layers) > 1 and all_dense(layers)
