"""The state of a training run: data and their batches, sites, schedule, history; and how its joint belief is kept."""

from __future__ import annotations

import math
import sys
import time
import warnings
import weakref
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmp.basics import checks, examples, persistence
from bayesmp.basics.arithmetic import SMALL_PASS, exact_products, fast_arithmetic, few_threads
from bayesmp.basics.settings import SETTINGS
from bayesmp.belief import Belief
from bayesmp.diagnosis import RunSummary
from bayesmp.evidence.budget import Size, cost_of_visits, size_at_end, size_in_training
from bayesmp.evidence.groups import check_groups, check_sample_weight, copies_count_once, groups_of, measured_together
from bayesmp.evidence.influence import Batch, Influence, influence_of, surprise_of
from bayesmp.evidence.refresh import Refreshed, memory_plan, noise_at_inputs, products_per_pass, refresh
from bayesmp.network.network import Network
from bayesmp.sites.sites import Sites, StoragePlan, format_bytes, plan_storage
from bayesmp.training.history import Change, History
from bayesmp.training.look_at_end import look_at_end
from bayesmp.training.schedules import Kept, ObjectiveSchedule, can_have_objective, make_schedule
from bayesmp.training.train_config import TrainConfig

LARGE_STORE = 500_000_000  # bytes from which the user is told before training starts
INVARIANT_TOLERANCE = 1e-3  # relative; float32 sums over some hundred sites stay well inside it


class Run:
    """A training run between two visits.

    Attributes:
        network, config, history: what is trained, how, and how it went.
        x, y: the examples; tensors on the device or, for x, the host.
        ids: which examples these are, row by row, (n,) int64 on the CPU: at first 0 .. n - 1. No id is used twice.
        labels: which examples belong together, (n,), as the user said; None if nothing was said.
        sample_weight: how often each example counts, (n,) float64 on the CPU, as the user said; None if nothing was
            said.
        members: the rows of x and y that make up each batch.
        batch_ids: which batches these are; no id of a batch is used twice, either.
        sites, schedule: one message per batch, and how visits replace it.

    Args:
        network, x, y, config, groups, sample_weight: as for Trainer.
        is_new: False if these data were accepted before; few that are left of them may look unscaled.
        with_objective: whether training has an objective, where it went on before with or without; None: if it can.
    """

    def __init__(
        self,
        network: Network,
        x: Any,
        y: Any,
        config: TrainConfig,
        *,
        groups: Any = None,
        sample_weight: Any = None,
        is_new: bool = True,
        with_objective: bool | None = None,
    ) -> None:
        x, y = examples.as_arrays(x, y)
        network.take_shape(np.shape(x)[1:])
        x = checks.check_inputs(x, network.input_shape, network.dtype)
        self._flat_targets = np.ndim(y) == 1
        check = network.head.check_targets if is_new else network.head.check_more_targets
        y = check(y, network.n_outputs)
        self._flat_targets &= y.ndim == 2
        checks.check_examples(x, y, network.dtype)
        n_given, labels, weight = len(x), check_groups(groups, len(x)), check_sample_weight(sample_weight, len(x))
        counted = slice(None) if weight is None or weight.all() else torch.from_numpy(weight.nonzero()[0])
        x, y = x[counted], y[counted]
        if is_new:
            checks.warn_of_scale(x, y, stacklevel=4)

        self.network = network
        self.config = config
        self._with_objective = with_objective
        if weight is not None and with_objective is None and config.schedule == "parallel" and config.joint is None:
            self._with_objective = can_have_objective(network) or None
        self.history = History()
        self.x = examples.place_inputs(x, network.device, network.dtype, config.data_store)
        self.y = y.to(device=network.device, dtype=network.dtype if y.is_floating_point() else None)
        self.ids = torch.arange(n_given)[counted]
        self.labels = None if labels is None else torch.from_numpy(labels)[counted]
        self.sample_weight = None if weight is None else torch.from_numpy(weight)[counted]
        self._grouped: tuple[Tensor, Tensor, tuple[Tensor, Tensor]] | None = None  # data, and groupings of them
        self.next_id = n_given
        self._arrange(self._assign_batches(len(x)))
        self._has_gradients = self._check_gradients()
        self._refreshed_at = 0  # epoch
        self._changed_at = 0  # epoch after which the data were changed
        self._best: Any = None  # the state that it may go back to (best_state.py)
        self._silent: set[int] = set()  # ids of batches that have not been visited yet, while others have
        self._mended: set[int] = set()  # ids of examples whose new values have not been heard yet
        self._identified: tuple[Tensor, Tensor, dict[str, Any]] | None = None
        self._influence: tuple[Belief, Influence] | None = None

    def _arrange(self, members: list[Tensor], batch_ids: list[int] | None = None) -> None:
        """Take these rows as batches, with sites and a schedule that have yet to be started."""
        self.members = members
        self.batch_ids = list(range(len(members))) if batch_ids is None else batch_ids
        self.next_batch_id = max(self.batch_ids) + 1
        self.sites = self._make_sites()
        config = self.config
        self.schedule = make_schedule(
            config.schedule,
            self.network,
            self.sites,
            n_examples=len(self.x),
            seed=config.seed,
            joint=config.joint,
            learn_prior=config.learn_prior,
            with_objective=self._with_objective,
        )
        self._with_objective = self.has_objective
        self._weigh(self.sample_weight)

    def counted(self) -> Tensor:
        """How often each example counts, (n,): as the user said, else as training counts copies."""
        if self.sample_weight is not None:
            return self.sample_weight
        if isinstance(self.schedule, ObjectiveSchedule):
            return copies_count_once(self.x, self.y)
        return torch.ones(len(self.y), dtype=torch.float64)

    def _weigh(self, sample_weight: Tensor | None) -> None:
        """Let examples count so often."""
        self.sample_weight = sample_weight
        if isinstance(self.schedule, ObjectiveSchedule):
            self.schedule.sample_weight = sample_weight
        elif sample_weight is not None:
            raise ValueError(
                "sample_weight needs training with an objective: a network with Softmax or Regression as its head, "
                "dense or of few weights, not from as_prior(), and the parallel schedule without joint=. This run "
                f"passes messages (head {self.network.head!r}, schedule {self.config.schedule!r}), and those have no "
                "weights"
            )

    def _start(self) -> None:
        """Every site as it is before its first visit."""
        self.schedule.start(self.x, self.y, largest_batch=self._largest_batch)

    def _begin(self) -> None:
        """Take the network over, and start from its prior."""
        network = self.network
        if network.is_trained:
            warnings.warn(
                "this network was trained before, and a new run starts from its prior: what it had learned is dropped. "
                "To train on, keep the Trainer and call run() again; to start anew on purpose, call network.reset()",
                stacklevel=3,
            )
        network.reset()
        if not self.schedule.takes_all_data:
            network.fitted = None  # yesterday's; messages see activations in their own way
        network.flat_targets = self._flat_targets
        network.run = weakref.ref(self)
        self._start()
        self._last_mean = network.marginal.mean.clone()  # at the last refresh
        self._tell_memory()

    @property
    def has_objective(self) -> bool:
        """Whether training has an objective (training/schedules/objective.py)."""
        return isinstance(self.schedule, ObjectiveSchedule)

    @property
    def n_epochs(self) -> int:
        """Epochs run so far."""
        return len(self.history)

    @property
    def _has_begun(self) -> bool:
        """Whether a batch may have been visited."""
        return self.history.stopped != ""

    @property
    def _largest_batch(self) -> int:
        return max(len(rows) for rows in self.members)

    def __repr__(self) -> str:
        options = [f"{entry.name}={getattr(self.config, entry.name)!r}" for entry in fields(TrainConfig)]
        defaults = [f"{entry.name}={entry.default!r}" for entry in fields(TrainConfig)]
        chosen = "".join(f", {option}" for option, default in zip(options, defaults, strict=True) if option != default)
        network = repr(self.network).split("\n")[0]
        size = f"{len(self.x):,} examples in {len(self.members):,} batches"
        return f"Trainer({network}, {size}, {self.n_epochs} epochs run{chosen})"

    def _check_gradients(self) -> bool:
        """Whether all layers can tell their gradients, without which there is no joint belief; the parallel schedule
        needs them, and says so before anything is changed.
        """
        try:
            with torch.no_grad():
                self.network.gradients(self.x[:1].to(self.network.device))
        except NotImplementedError as error:
            if self.config.schedule == "parallel":
                raise TypeError(str(error)) from None
            return False
        return True

    def _check_network(self, *, stacklevel: int) -> None:
        """Make sure that the network is still in the state this run left it in."""
        network, sites = self.network, self.sites
        if network.run is not None and network.run() is not self:
            warnings.warn(
                "another Trainer has taken this network over since; it goes back to what this run had learned",
                stacklevel=stacklevel,
            )
            network.run = weakref.ref(self)
        if (network.dtype, network.device) != (sites.dtype, sites.device):
            raise ValueError(
                f"this run is in {sites.dtype} on {sites.device}, its network now in {network.dtype} on "
                f"{network.device}; move the network back, or start a new Trainer"
            )
        if not self.check_invariant() < INVARIANT_TOLERANCE:  # reset, trained by another run, or a visit interrupted
            self.schedule.refresh()
        self.schedule.know_targets(self.y)
        network.head_log_weights.copy_(sites.head_posterior(self.schedule.head_prior))  # as training has it

    # --- the joint belief --------------------------------------------------------------------------------------------

    def _refresh_in_training(self, epoch: int) -> None:
        """Refresh the belief from some of the data; from its leave-one-out outputs the head's constant is judged."""
        network, schedule, started = self.network, self.schedule, time.perf_counter()
        size = self._size_in_training()
        found = self._refresh(size, seed=1)  # the same examples each time
        clipped = found.n_clipped / len(found.outputs)
        if found.constant is not None and not schedule.judges_constant:
            schedule.hear_constant(found.constant)
        marginal = network.marginal
        moved = ((marginal.mean - self._last_mean).square() * marginal.rho).mean().sqrt()
        self._last_mean.copy_(marginal.mean)
        self._refreshed_at = epoch
        loo = {**found.scores, "clipped": clipped, "moved": float(moved)}
        self._add_to_record(loo, time.perf_counter() - started)

    def _finish(self) -> None:
        """Believe anew at the end of a run."""
        started = time.perf_counter()
        if not self.history.records or not self._has_gradients:
            return
        found = self._believe()
        is_last = found.fitted is not None  # whose scores are those of what is predicted with
        scores = {**self.history[-1].loo, **found.scores} if is_last else self.history[-1].loo or found.scores
        self._add_to_record(scores, time.perf_counter() - started)

    @torch.no_grad()
    def _believe(self) -> Refreshed:
        """The belief that the network predicts with, and the constant that belongs to it; training is not touched."""
        network, schedule = self.network, self.schedule
        found = self._refresh(self._size_at_end(), seed=0, keeps_belief=True)
        if found.constant is not None and not schedule.judges_constant:
            total = schedule.head_prior.to(found.constant) + found.constant
            total = (total - total.max()).to(network.head_log_weights)
            head = network.head
            if head.judges_labels:  # the belief was made with these
                total[head.heard] = network.head_log_weights[head.heard]
            network.head_log_weights = total
            if head.varies:
                network.varying_noise = noise_at_inputs(network, found, schedule.head_prior)
        if found.left_out is not None:
            x, y, _ = found.judged
            found.scores["nll"] = surprise_of(network, x, found.left_out, y, found.weight)
        return found

    def _believe_later(self) -> None:
        """Have the belief made anew when it is next asked for."""

        def renew() -> None:
            with fast_arithmetic(self.network.device):
                self._believe()

        self.network.renew_belief_with(renew)

    def _add_to_record(self, loo: dict[str, float], seconds: float) -> None:
        """Put what a refresh found, and the time it took, into the last epoch's record."""
        last = self.history[-1]
        in_refreshes = last.refresh_seconds + seconds
        self.history.records[-1] = replace(last, loo=loo, seconds=last.seconds + seconds, refresh_seconds=in_refreshes)

    def _epoch_cost(self) -> float:
        """What visits to all batches cost (budget.py); no limit where that is not known."""
        if not self.schedule.counts_visits:
            return math.inf
        return cost_of_visits(self.network, len(self.x), len(self.members))

    def _size_in_training(self) -> Size:
        return size_in_training(self.network, len(self.x), self._epoch_cost())

    def _size_at_end(self) -> Size:
        """From the visits of the whole run."""
        n_visits, visits_cost = self.schedule.counters().get("n_visits", 0), math.inf
        if self.schedule.counts_visits:
            visits_cost = n_visits / len(self.members) * self._epoch_cost()
        return size_at_end(self.network, len(self.x), visits_cost)

    def _refresh(self, size: Size, *, seed: int, keeps_belief: bool = False) -> Refreshed:
        network = self.network
        x, y = self._heard()
        if isinstance(self.schedule, ObjectiveSchedule):
            groups, measurements = self._groupings(x, y)
            seen = self._heard_rows()
            found = look_at_end(self.schedule, x, y, groups, measurements, seen, with_belief=keeps_belief)
            if keeps_belief:
                network.belief, network.fitted = found.belief, found.fitted
                network.belief_scale = self.schedule.belief_scale
                network.run_summary = RunSummary.of(self.history.snapshot(), x, y)
            return found
        n_products = self._products_per_pass(size)
        with exact_products(network.device), few_threads(network.device, n_products=n_products, small=SMALL_PASS):
            found = refresh(
                network,
                x,
                y,
                network.head_log_weights,
                self.schedule.head_prior,
                max_examples=size.examples,
                max_rank=size.rank,
                seed=seed,
                is_last=keeps_belief,
                settings=replace(SETTINGS, balance_steps=size.steps, judged_examples=size.judged),
            )
            if keeps_belief:
                network.belief = found.belief
                network.run_summary = RunSummary.of(self.history.snapshot(), x, y)
        return found

    @property
    def groups(self) -> Tensor:
        """The group of each example, (n,): those with equal inputs belong together, and those that the user says."""
        return self._groupings(self.x, self.y)[0]

    def _groupings(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Which of these examples scores leave out together, and which ones tell of one noise; found once for all."""
        if x is not self.x:
            return groups_of(x), measured_together(x, y)
        if self._grouped is None or self._grouped[0] is not x or self._grouped[1] is not y:
            self._grouped = x, y, (groups_of(x, self.labels), measured_together(x, y, self.labels))
        return self._grouped[2]

    def _products_per_pass(self, size: Size) -> int:
        return products_per_pass(self.network, len(self.x), max_examples=size.examples, max_rank=size.rank)

    def _heard(self) -> tuple[Tensor, Tensor]:
        """The examples of all batches that have said something."""
        rows = self._heard_rows()
        return (self.x, self.y) if rows is None else (self.x[rows.to(self.x.device)], self.y[rows])

    def _heard_rows(self) -> Tensor | None:
        """Which these are; None if they are all."""
        if not self._silent:
            return None
        heard = [part for batch, part in zip(self.batch_ids, self.members, strict=True) if batch not in self._silent]
        return torch.cat([self.members[0][:0], *heard]).sort().values

    def _influence_of(self, rows: Tensor) -> Influence:
        """What leaving out single ones of these examples would change."""
        network = self.network
        if (belief := network.belief) is None:
            why = "run() makes it" if self._has_gradients else "a layer without gradient() does not allow one"
            raise ValueError(f"influence is judged by the joint belief, and this run has none: {why}")
        n_products = network.n_outputs * belief.rank**2
        with exact_products(network.device), few_threads(network.device, n_products=n_products, small=SMALL_PASS):
            weight = self.sample_weight
            distance, loo_nll, leverage = influence_of(network, belief, self.x, self.y, rows, weight=weight)
        is_silent = torch.isin(self.ids, torch.tensor(sorted(self._mended), dtype=torch.int64))
        for batch, part in zip(self.batch_ids, self.members, strict=True):
            is_silent[part.cpu()] |= batch in self._silent
        if bool(is_silent[rows].any()):  # they have no hold on anything yet, and are as new as those of a test set
            new = is_silent[rows].nonzero()[:, 0]
            found = network.predict(self.x[rows[new].to(self.x.device)])
            y = self.y[rows[new].to(self.y.device)]
            target = y.reshape(found.mean.shape) if y.is_floating_point() else y
            loo_nll[new] = -found.log_prob(target).reshape(len(new), -1).sum(1).to(loo_nll)
            distance[new], leverage[new] = 0.0, 0.0
        return Influence(self.ids[rows], distance, loo_nll, leverage)

    def _influence_of_all(self) -> Influence:
        """The same for all examples, in their order; found once for each belief."""
        belief = self.network.belief
        if self._influence is None or belief is None or self._influence[0] is not belief:
            found = self._influence_of(torch.arange(len(self.x)))
            assert belief is not None
            self._influence = belief, found
        return self._influence[1]

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The batches of the run, with the ids of their examples and, from the first refresh of the joint belief on,
        their influence; the first look after a refresh takes a pass over the data.
        """
        rows = [members.cpu() for members in self.members]
        influences: list[float | None] = [None] * len(rows)
        if self.network.belief is not None:
            distance = self._influence_of_all().distance.double()
            influences = [float(distance[part].sum()) for part in rows]
        parts = zip(self.batch_ids, rows, influences, strict=True)
        return tuple(Batch(batch_id, self.ids[part], influence) for batch_id, part, influence in parts)

    # --- other data --------------------------------------------------------------------------------------------------

    def _rearrange(
        self, x: Tensor, y: Tensor, ids: Tensor, kept: list[Kept], members: list[Tensor], batch_ids: list[int]
    ) -> None:
        """Take these examples, and these rows of them as batches: those kept in this order, then new ones. Until
        training has begun, no batch has said anything of its own yet, and all start anew. If it fails, changes.py puts
        everything back.
        """
        rows, n_new = [batch.row for batch in kept], len(members) - len(kept)
        if n_new > 0 or len(rows) < len(self.sites):
            self.sites.rearrange(rows, n_new, self._plan_sites(len(members)))
        self.x, self.y, self.ids = x, y, ids
        self.members, self.batch_ids = members, batch_ids
        self.next_id = max(self.next_id, int(ids[-1]) + 1)
        self.next_batch_id = max(self.next_batch_id, *(k + 1 for k in batch_ids))
        self._rows = torch.arange(len(members), device=self.network.device)
        self.schedule.rearrange(kept, n_new, x, y, largest_batch=self._largest_batch)
        if not self._has_begun:
            self._start()
            self._last_mean.copy_(self.network.marginal.mean)

    def _note(self, change: Change, *, is_silent: bool = False) -> None:
        """A change of the data is done: scores begin anew, and so does the belief, if there is one and the change is
        not silent: new examples say nothing until they are visited.
        """
        if not self.check_invariant() < 0.1 * INVARIANT_TOLERANCE:  # a store of few digits has rounded -shift
            self.schedule.refresh()
        self.history.changes.append(change)
        self._changed_at = self._refreshed_at = self.n_epochs
        self._influence = self._best = None
        if self._has_begun and self._silent.issuperset(self.batch_ids):
            self.network.belief = self.network.varying_noise = None  # nothing that is left has been heard
        elif self.network.has_belief and not is_silent:
            self._believe_later()

    def _identify_data(self) -> dict[str, Any]:
        """What tells these data from others; found once, because it reads all of them."""
        if self._identified is None or self._identified[0] is not self.x or self._identified[1] is not self.y:
            self._identified = (self.x, self.y, {"x": _identify(self.x), "y": _identify(self.y)})
        return self._identified[2]

    def _state(self) -> dict[str, Tensor]:
        """The tensors of a run that a loaded one is filled with."""
        found = {f"sites.{name}": part for name, part in self.sites.state().items()}
        found["last_mean"] = self._last_mean
        return found | {f"schedule.{name}": part for name, part in self.schedule.state().items()}

    def check_invariant(self) -> float:
        """Largest relative distance between the running marginal and prior x all sites; ~0 but for rounding."""
        self.sites.recount()
        exact = self.sites.posterior(self.network.prior_at(self.sites.origin))
        scale_tau = exact.rho.sqrt() + exact.tau.abs()
        gap_tau = ((self.network.marginal.tau - exact.tau).abs() / scale_tau).max()
        gap_rho = ((self.network.marginal.rho - exact.rho).abs() / exact.rho).max()
        return float(torch.maximum(gap_tau, gap_rho))

    def _assign_batches(self, n: int) -> list[Tensor]:
        """Rows of each batch: a random partition that never changes, because a site belongs to its rows.

        Sizes differ by one at most: a rest of a few rows would say as much about the curvature as all others.
        """
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.config.seed))
        return list(order.to(self.network.device).tensor_split(math.ceil(n / self.config.batch_size)))

    def _tell_memory(self) -> None:
        """Say what a large run keeps, before it starts: sites, and the schedule's state beside them."""
        beside = sum(part.nbytes for part in self.schedule.state().values())
        beside += memory_plan(self.network, len(self.x)).n_bytes
        if self.sites.plan.n_bytes + beside > LARGE_STORE:
            size = f"{len(self.members)} batches x {self.network.n_weights:,} weights"
            print(f"bayesmp: {self.sites.plan} ({size}), {format_bytes(beside)} beside them", file=sys.stderr)

    def _plan_sites(self, n_sites: int) -> StoragePlan:
        network, config = self.network, self.config
        return plan_storage(
            n_sites,
            network.n_weights,
            dtype=network.dtype,
            device=network.device,
            place=config.site_store,
            site_dtype=config.site_dtype,
        )

    def _make_sites(self) -> Sites:
        network = self.network
        self._rows = torch.arange(len(self.members), device=network.device)
        return Sites(
            len(self.members),
            network.n_weights,
            len(network.head.grid),
            plan=self._plan_sites(len(self.members)),
            dtype=network.dtype,
            device=network.device,
        )


def _identify(part: Tensor) -> dict[str, Any]:
    return {"shape": list(part.shape), "fingerprint": persistence.fingerprint(part)}
