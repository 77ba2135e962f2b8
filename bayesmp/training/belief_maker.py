"""How a run makes the joint belief of its network, in training and at its end, and what it asks of that: influence."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from bayesmp.basics.arithmetic import SMALL_PASS, exact_products, few_threads
from bayesmp.basics.settings import SETTINGS
from bayesmp.belief import Belief
from bayesmp.evidence.budget import Size, cost_of_refresh, cost_of_visits, is_paid, size_at_end, size_in_training
from bayesmp.evidence.influence import Influence, influence_of, surprise_of
from bayesmp.evidence.refresh import Refreshed, noise_at_inputs, products_per_pass, refresh
from bayesmp.network.network import Network
from bayesmp.training.look_at_end import look_at_end
from bayesmp.training.run_data import RunData
from bayesmp.training.schedules import ObjectiveSchedule, Schedule


class BeliefMaker:
    """Makes the joint belief of a network from the data of its run; what it reads and changes is the network's.

    Args:
        network, schedule: those of the run.
    """

    def __init__(self, network: Network, schedule: Schedule) -> None:
        self.network = network
        self.schedule = schedule
        self._influence: tuple[Belief, RunData, Influence] | None = None  # of all these data under this belief

    def in_training(self, data: RunData) -> Refreshed:
        """A look at some of the data, the same ones each time; from left-out outputs the head's constant is judged."""
        refreshed = self.refresh(data, self.size_in_training(data), seed=1)
        if refreshed.constant is not None and not self.schedule.judges_constant:
            self.schedule.hear_constant(refreshed.constant)
        return refreshed

    @torch.no_grad()
    def at_end(self, data: RunData) -> Refreshed:
        """The belief that the network predicts with, and the constant that belongs to it; training is not touched."""
        network, schedule = self.network, self.schedule
        refreshed = self.refresh(data, self.size_at_end(data), seed=0, keeps_belief=True)
        if refreshed.constant is not None and not schedule.judges_constant:
            total = schedule.head_prior.to(refreshed.constant) + refreshed.constant
            total = (total - total.max()).to(network.head_log_weights)
            head = network.head
            if head.judges_labels:  # the belief was made with these
                total[head.heard] = network.head_log_weights[head.heard]
            network.head_log_weights = total
            if head.varies:
                network.varying_noise = noise_at_inputs(network, refreshed, schedule.head_prior)
        if refreshed.left_out is not None:
            x, y, _ = refreshed.judged
            refreshed.scores["nll"] = surprise_of(network, x, refreshed.left_out, y, refreshed.weight)
        return refreshed

    def refresh(self, data: RunData, size: Size, *, seed: int, keeps_belief: bool = False) -> Refreshed:
        """One pass over the data that have been heard; the network takes over the belief only where it is kept."""
        network, heard = self.network, data.heard
        if isinstance(self.schedule, ObjectiveSchedule):
            groupings = heard.groups, heard.measurements
            refreshed = look_at_end(
                self.schedule, heard.x, heard.y, *groupings, data.heard_rows, with_belief=keeps_belief
            )
            if keeps_belief:
                network.belief, network.fitted = refreshed.belief, refreshed.fitted
                network.belief_scale = self.schedule.belief_scale
            return refreshed
        n_products = products_per_pass(network, len(data), max_examples=size.examples, max_rank=size.rank)
        with exact_products(network.device), few_threads(network.device, n_products=n_products, small=SMALL_PASS):
            refreshed = refresh(
                network,
                heard.x,
                heard.y,
                network.head_log_weights,
                self.schedule.head_prior,
                max_examples=size.examples,
                max_rank=size.rank,
                seed=seed,
                is_last=keeps_belief,
                settings=replace(SETTINGS, balance_steps=size.steps, judged_examples=size.judged),
            )
            if keeps_belief:
                network.belief = refreshed.belief
        return refreshed

    # --- what it may cost --------------------------------------------------------------------------------------------

    def epoch_cost(self, data: RunData) -> float:
        """What visits to all batches cost (budget.py); no limit where that is not known."""
        if not self.schedule.counts_visits:
            return math.inf
        return cost_of_visits(self.network, len(data), len(data.members))

    def is_paid(self, data: RunData, *, n_before: int, n_epochs: int) -> bool:
        """Whether visits of so many epochs have paid for one more look in training, after so many."""
        if not self.schedule.counts_visits:
            return True
        cost = cost_of_refresh(self.network, len(data), self.size_in_training(data))
        return is_paid(n_before, cost, n_epochs * self.epoch_cost(data))

    def size_in_training(self, data: RunData) -> Size:
        return size_in_training(self.network, len(data), self.epoch_cost(data))

    def size_at_end(self, data: RunData) -> Size:
        """From the visits of the whole run."""
        n_visits, visits_cost = self.schedule.counters().get("n_visits", 0), math.inf
        if self.schedule.counts_visits:
            visits_cost = n_visits / len(data.members) * self.epoch_cost(data)
        return size_at_end(self.network, len(data), visits_cost)

    # --- what it says of single examples -----------------------------------------------------------------------------

    def influence(self, data: RunData, belief: Belief, rows: Tensor) -> Influence:
        """What leaving out single ones of these examples would change."""
        network, x, y = self.network, data.x, data.y
        n_products = network.n_outputs * belief.rank**2
        with exact_products(network.device), few_threads(network.device, n_products=n_products, small=SMALL_PASS):
            weight = data.sample_weight
            distance, loo_nll, leverage = influence_of(network, belief, x, y, rows, weight=weight)
        is_unheard = data.is_unheard[rows]
        if bool(is_unheard.any()):  # they have no hold on anything yet, and are as new as those of a test set
            new = is_unheard.nonzero()[:, 0]
            prediction = network.predict(x[rows[new].to(x.device)])
            targets = y[rows[new].to(y.device)]
            targets = targets.reshape(prediction.mean.shape) if targets.is_floating_point() else targets
            loo_nll[new] = -prediction.log_prob(targets).reshape(len(new), -1).sum(1).to(loo_nll)
            distance[new], leverage[new] = 0.0, 0.0
        return Influence(data.ids[rows], distance, loo_nll, leverage)

    def influence_of_all(self, data: RunData, belief: Belief) -> Influence:
        """The same for all examples, in their order; judged once for each belief."""
        if self._influence is None or self._influence[0] is not belief or self._influence[1] is not data:
            self._influence = belief, data, self.influence(data, belief, torch.arange(len(data)))
        return self._influence[2]
