"""A training run: batches with a site each, the loop, refreshes of the belief, stopping; data that come and go."""

from __future__ import annotations

import copy
import sys
import time
import warnings
import weakref
from collections.abc import Iterable, Set
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bayesmp.basics import checks, examples, persistence
from bayesmp.basics.arithmetic import fast_arithmetic, few_threads, undisturbed
from bayesmp.basics.telling import warn_user
from bayesmp.diagnosis import Diagnosis, RunSummary
from bayesmp.evidence.groups import copies_count_once
from bayesmp.evidence.influence import Batch as BatchInfluence
from bayesmp.evidence.influence import Influence
from bayesmp.evidence.refresh import Refreshed, memory_plan
from bayesmp.network.files import INTERRUPTED, from_file, learn_from_file
from bayesmp.network.network import Network, check_is_network
from bayesmp.sites.sites import Sites, StoragePlan, format_bytes, plan_storage
from bayesmp.training import best_state, constant_guess, rehearsal, run_files
from bayesmp.training.all_or_nothing import all_or_nothing
from bayesmp.training.belief_maker import BeliefMaker
from bayesmp.training.checkpoints import EVERY, KEEP, Checkpoints
from bayesmp.training.history import Change, EpochTally, History
from bayesmp.training.run_data import RunData, accept, accept_more, joined_weights
from bayesmp.training.schedules import Batch, Kept, ObjectiveSchedule, Schedule, can_have_objective, make_schedule
from bayesmp.training.stopping import at_rest, refresh_due, refreshes, tell_unrest
from bayesmp.training.train_config import TrainConfig

AT_REST, NOT_AT_REST = "at rest", "not at rest"
GO_ON = (
    "raise max_epochs, or keep a Trainer and let it run on (a second bayesmp.fit without checkpoints starts from the "
    "prior again)"
)
MAX_EPOCHS = 1000  # of a run that stops by itself
LARGE_STORE = 500_000_000  # bytes from which the user is told before training starts
INVARIANT_TOLERANCE = 1e-3  # relative; float32 sums over some hundred sites stay well inside it
PROBE = 1024  # examples that stay, at most, on which the step of a removal is measured


class Trainer:
    """A training run that can go on: the data, one site per batch, the network, the history so far.

    `trainer.x`, `trainer.y` and `trainer.ids` are its examples, row by row, and which ones these are; `add`, `remove`
    and `replace` change them.

    Attributes:
        network, config, history: what is trained, how, and how it went.
        data: the examples, in batches (run_data.py).
        sites, schedule: one message per batch, and how visits replace it.
        checkpoints: where files of the run go while it trains; None if nowhere.

    Args:
        network: its marginal becomes the posterior; it starts from its prior.
        x, y: training data, tensors or arrays; or a torch Dataset (or DataLoader) of pairs as x alone.
        config: see TrainConfig; options can also be given by name.
        checkpoint: a folder in which the run is saved while it trains, so that `Trainer.resume` can go on with it if it
            is killed. Files are whole at any moment; a folder that cannot be written later on (a full disk) is a
            warning, and training goes on. What is learned is the same, bit for bit, with checkpoints or without. A
            folder that holds a run already is refused. A checkpoint is as large as all sites together.
        every: epochs between two checkpoints; another one is written when `run` ends.
        keep: how many checkpoints stay.
        groups: labels (n,) that say which examples belong together, e.g. measurements of one patient: leave-one-out
            scores leave them out together. Examples with equal inputs belong together anyhow.
        sample_weight: how often each example counts, (n,) numbers: its likelihood is raised to this power, so 2 counts
            as two independent examples of the same content. Examples of weight 0 are left out of the run; `ids` are
            the places of the others among those given. With weights nothing is taken for a copy: they are all there is
            to say how much a row counts. Training must have an objective, and always has one where it can, which may
            take long in large networks. Leave-one-out scores are weighted means; which examples are left out to judge
            the width of the belief depends on no weight.
    """

    def __init__(
        self,
        network: Network,
        x: Any,
        y: Any = None,
        config: TrainConfig | None = None,
        *,
        checkpoint: persistence.PathLike | None = None,
        every: int = EVERY,
        keep: int = KEEP,
        groups: Any = None,
        sample_weight: Any = None,
        **options: Any,
    ) -> None:
        check_is_network(network)
        if config is not None and options:
            raise ValueError(f"give either config or options by name, not both; got config and {sorted(options)}")
        available = [entry.name for entry in fields(TrainConfig)]
        available += ["checkpoint", "every", "keep", "groups", "sample_weight"]
        if unknown := sorted(set(options) - set(available)):
            hint = "; there is no learning rate to choose" if "lr" in unknown or "learning_rate" in unknown else ""
            if any("epoch" in name for name in unknown):
                hint = "; the number of epochs is the argument epochs of bayesmp.fit and Trainer.run"
            raise TypeError(f"unknown options {unknown}; available: {available}{hint}")
        config = TrainConfig(**options) if config is None else config
        self.checkpoints = None if checkpoint is None else run_files.new_checkpoints(network, checkpoint, every, keep)
        with undisturbed():
            data, is_flat = accept(network, x, y, config, groups=groups, sample_weight=sample_weight)
            self._set_up(network, config, data, is_flat)

    @classmethod
    def on_known_data(
        cls,
        network: Network,
        x: Any,
        y: Any,
        config: TrainConfig,
        *,
        with_objective: bool,
        members: list[Tensor] | None = None,
        width: float = 1.0,
        sample_weight: Tensor | None = None,
    ) -> Trainer:
        """A run on data that were accepted before, to be filled by `take` or `go_on_from`; no checks of their scale.

        Args:
            with_objective: whether training had an objective.
            members: the rows of each batch; drawn if not given.
            width: factor on the variances of the prior that it starts from.
            sample_weight: how often each example counts, (n,).
        """
        trainer = cls.__new__(cls)
        trainer.checkpoints = None
        data, is_flat = accept(network, x, y, config, sample_weight=sample_weight, members=members, is_new=False)
        trainer._set_up(network, config, data, is_flat, with_objective=with_objective, width=width)
        return trainer

    # --- start -------------------------------------------------------------------------------------------------------

    def _set_up(
        self,
        network: Network,
        config: TrainConfig,
        data: RunData,
        is_flat: bool,
        *,
        with_objective: bool | None = None,
        width: float = 1.0,
    ) -> None:
        """Take the network over, and start from its prior.

        Args:
            is_flat: whether targets came as (n,), and predictions shall, too.
            with_objective: whether training has an objective, where it went on before with or without; None: if it can.
        """
        self.network = network
        self.config = config
        self.history = History()
        self._with_objective = with_objective
        is_free = with_objective is None and config.schedule == "parallel" and config.joint is None
        if is_free and data.sample_weight is not None:
            self._with_objective = can_have_objective(network) or None
        self._arrange(data)
        self._has_gradients = self._check_gradients()
        self._refreshed_at = 0  # epoch
        self._best_state: best_state.KeptState | None = None  # that it may go back to
        if self.checkpoints is not None:
            self.checkpoints.make_folder()
        if network.is_trained:
            warn_user(
                "this network was trained before, and a new run starts from its prior: what it had learned is dropped. "
                "To train on, keep the Trainer and call run() again; to start anew on purpose, call network.reset()"
            )
        self._reset(width)
        if not self.schedule.takes_all_data:
            network.fitted = None  # yesterday's; messages see activations in their own way
        network.flat_targets = is_flat
        network.run = weakref.ref(self)
        self._start()
        self._last_mean = network.marginal.mean.clone()  # at the last refresh
        self._tell_memory()

    def _arrange(self, data: RunData) -> None:
        """Take these data, with sites and a schedule that have yet to be started."""
        network, config = self.network, self.config
        self.data = data
        self.sites = Sites(
            len(data.members),
            network.n_weights,
            len(network.head.grid),
            plan=self._plan_sites(len(data.members)),
            dtype=network.dtype,
            device=network.device,
        )
        self.schedule: Schedule = make_schedule(
            config.schedule,
            network,
            self.sites,
            n_examples=len(data),
            seed=config.seed,
            joint=config.joint,
            learn_prior=config.learn_prior,
            with_objective=self._with_objective,
        )
        self._with_objective = self.has_objective
        self._belief_maker = BeliefMaker(network, self.schedule)
        self.weigh()

    def counted(self) -> Tensor:
        """How often each example counts, (n,): as the user said, else as training counts copies."""
        if self.data.sample_weight is not None:
            return self.data.sample_weight
        if self.has_objective:
            return copies_count_once(self.x, self.y)
        return torch.ones(len(self.data), dtype=torch.float64)

    def weigh(self) -> None:
        """Let the schedule know how often each example counts."""
        if isinstance(self.schedule, ObjectiveSchedule):
            self.schedule.sample_weight = self.data.sample_weight
        elif self.data.sample_weight is not None:
            raise ValueError(
                "sample_weight needs training with an objective: a network with Softmax or Regression as its head, "
                "dense or of few weights, not from as_prior(), and the parallel schedule without joint=. This run "
                f"passes messages (head {self.network.head!r}, schedule {self.config.schedule!r}), and those have no "
                "weights"
            )

    def _reset(self, width: float = 1.0) -> None:
        """Let the network forget everything, under a prior of this width."""
        network = self.network
        network.reset()
        if width != 1.0:
            network.widen_prior(width)
            network.marginal = network.prior.map(torch.clone)

    def _start(self) -> None:
        """Every site as it is before its first visit."""
        self.schedule.start(self.data.x, self.data.y, largest_batch=self.data.largest_batch)

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

    def _tell_memory(self) -> None:
        """Say what a large run keeps, before it starts: sites, and the schedule's state beside them."""
        beside = sum(part.nbytes for part in self.schedule.state().values())
        beside += memory_plan(self.network, len(self.data)).n_bytes
        if self.sites.plan.n_bytes + beside > LARGE_STORE:
            size = f"{len(self.members)} batches x {self.network.n_weights:,} weights"
            print(f"bayesmp: {self.sites.plan} ({size}), {format_bytes(beside)} beside them", file=sys.stderr)

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

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def x(self) -> Tensor:
        """Inputs of the examples, row by row; on the device or on the host."""
        return self.data.x

    @property
    def y(self) -> Tensor:
        """Their targets."""
        return self.data.y

    @property
    def ids(self) -> Tensor:
        """Which examples these are, (n,) int64 on the CPU; no id is used twice."""
        return self.data.ids

    @property
    def members(self) -> list[Tensor]:
        """The rows of x and y that make up each batch."""
        return self.data.members

    @property
    def has_objective(self) -> bool:
        """Whether training has an objective (training/schedules/objective.py)."""
        return isinstance(self.schedule, ObjectiveSchedule)

    @property
    def n_epochs(self) -> int:
        """Epochs run so far."""
        return len(self.history)

    @property
    def has_begun(self) -> bool:
        """Whether a batch may have been visited."""
        return self.history.stopped != ""

    def __repr__(self) -> str:
        options = [f"{entry.name}={getattr(self.config, entry.name)!r}" for entry in fields(TrainConfig)]
        defaults = [f"{entry.name}={entry.default!r}" for entry in fields(TrainConfig)]
        chosen = "".join(f", {option}" for option, default in zip(options, defaults, strict=True) if option != default)
        network = repr(self.network).split("\n")[0]
        size = f"{len(self.data):,} examples in {len(self.members):,} batches"
        return f"Trainer({network}, {size}, {self.n_epochs} epochs run{chosen})"

    def check_invariant(self) -> float:
        """Largest relative distance between the running marginal and prior x all sites; ~0 but for rounding."""
        self.sites.recount()
        exact = self.sites.posterior(self.network.prior_at(self.sites.origin))
        scale_tau = exact.rho.sqrt() + exact.tau.abs()
        gap_tau = ((self.network.marginal.tau - exact.tau).abs() / scale_tau).max()
        gap_rho = ((self.network.marginal.rho - exact.rho).abs() / exact.rho).max()
        return float(torch.maximum(gap_tau, gap_rho))

    # --- training ----------------------------------------------------------------------------------------------------

    def run(self, epochs: int | str = "auto", *, max_epochs: int = MAX_EPOCHS, progress: bool | None = None) -> History:
        """Train on; each epoch visits every batch once, in a new random order.

        When it ends, the joint belief is refreshed by a pass over the data, and the network predicts with it.

        Args:
            epochs: how many more, or "auto": until the leave-one-out score and the means are at rest (stopping.py);
                `history.stopped` says why it ended, and a warning comes if it did not come to rest. 0 trains nothing
                and returns the history so far, so that `run(30 - trainer.n_epochs)` may ask for none.
            max_epochs: bound for "auto", on all epochs of this run so far.
            progress: show a progress bar; None shows it in a terminal only.
        """
        epochs = checks.check_epochs(epochs, least=0)
        is_auto = isinstance(epochs, str)
        if is_auto and not self._has_gradients:
            raise ValueError(
                "epochs='auto' judges progress by the joint belief, which a layer without gradient() does not allow; "
                "give a number of epochs"
            )
        if isinstance(epochs, str):
            n_epochs = max(0, checks.check_positive_int(max_epochs, "max_epochs") - self.n_epochs)
            return self._train(n_epochs, progress, is_auto=True, n_asked=n_epochs)
        if epochs == 0 and (self.n_epochs == 0 or self.network.belief is not None):
            return self.history.snapshot()
        n_asked = epochs or self.n_epochs  # of none: a run that was interrupted gets its belief, and ends here
        return self._train(epochs, progress, is_auto=False, n_asked=n_asked)

    def run_until(
        self, epochs: int | str = "auto", *, max_epochs: int = MAX_EPOCHS, progress: bool | None = None
    ) -> History:
        """`run`, with the epochs behind it counted as some of those asked for; nothing to do if it has ended so."""
        if isinstance(epochs, str):
            if self.history.stopped.startswith(AT_REST):
                return self.history.snapshot()
            return self.run(epochs, max_epochs=max_epochs, progress=progress)
        if self.n_epochs == epochs and self.network.belief is not None:
            return self.history.snapshot()
        return self._train(epochs - self.n_epochs, progress, is_auto=False, n_asked=epochs)

    @undisturbed()
    def _train(self, n_epochs: int, progress: bool | None, *, is_auto: bool, n_asked: int) -> History:
        """`run` for at most this many epochs, perhaps none; the history says how many were asked for."""
        network, history, last = self.network, self.history, self.n_epochs + n_epochs
        self._check_network()
        network.belief = None  # never one of other means, should the run be interrupted
        network.varying_noise = network.run_summary = None
        history.stopped = INTERRUPTED
        with fast_arithmetic(network.device):
            try:
                why = self._run(n_epochs, progress, is_auto=is_auto, n_asked=n_asked)
            finally:
                self.schedule.settle(self.members)
            went_back = self._end_at_best()
            if is_auto and rehearsal.is_called_for(self):
                why, went_back = self._let_rehearsals_judge((why, went_back), last, progress)
        if is_worse := constant_guess.is_worse(self):
            asked = f"ran the {n_asked} epochs asked for; {constant_guess.WORSE}"
            why = f"{constant_guess.WORSE} after {self.n_epochs} epochs" if is_auto else asked
        why += went_back
        history.stopped = why
        if self.checkpoints is not None:
            self.checkpoints.write(self.n_epochs, self.save)
        if is_worse:
            constant_guess.warn(self)
        elif why.startswith(NOT_AT_REST):
            warn_user(f"training was {why}: {tell_unrest(refreshes(history, since=history.changed_at), GO_ON)}")
        if network.marginal.tau.is_inference():  # a user may want to differentiate, or write into it
            network.marginal = network.marginal.map(torch.clone)
        network.run_summary = RunSummary.of(history.snapshot(), self.x, self.y, heard=self.schedule.held_back())
        return history.snapshot()

    def _check_network(self) -> None:
        """Make sure that the network is still in the state this run left it in."""
        network, sites = self.network, self.sites
        if network.run is not None and network.run() is not self:
            warn_user("another Trainer has taken this network over since; it goes back to what this run had learned")
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

    @torch.inference_mode()
    def _run(self, n_epochs: int, progress: bool | None, *, is_auto: bool, n_asked: int) -> str:
        """Train, and say why it ended; so does the bar, which tells at every refresh whether training is at rest."""
        hidden = not (sys.stderr.isatty() if progress is None else progress)
        total = None if is_auto else n_epochs * len(self.members)
        n_products = self._products_per_visit()
        with tqdm(total=total, disable=hidden, unit="batch", mininterval=0.5) as bar:
            last = self.n_epochs + n_epochs
            rest = ""
            for epoch in range(self.n_epochs + 1, last + 1):
                bar.set_description(f"epoch {epoch}{rest}")
                with few_threads(self.network.device, n_products=n_products):
                    self._run_epoch(epoch, bar)
                if self._stands() and self._is_refresh_due(epoch):
                    self._refresh_or_take_back(epoch)
                    rest = f", {AT_REST}" if self._at_rest() else f", {NOT_AT_REST} yet"
                shown = dict(self.history[-1].metrics)
                if "nll" in self.history[-1].loo:
                    shown["leave-one-out nll"] = self.history[-1].loo["nll"]
                bar.set_postfix({name: f"{value:.4g}" for name, value in shown.items()})
                if is_auto and self._has_looked(epoch) and self._at_rest():
                    break
                if self.checkpoints is not None and self.checkpoints.is_due(epoch) and epoch < last:
                    self.schedule.settle(self.members)
                    self.checkpoints.write(epoch, self.save)
            stopped = self._why(is_auto=is_auto, n_asked=n_asked)
            bar.set_description(stopped)
        return stopped

    def _run_epoch(self, epoch: int, bar: tqdm[Any]) -> None:
        started = time.perf_counter()
        tally, objective, data = EpochTally(), None, self.data
        if isinstance(self.schedule, ObjectiveSchedule):
            info, objective = self.schedule.run_epoch(self.members, epoch, data.measurements)
            tally.add(info)
            bar.update(len(self.members))
        else:
            self._visit_all(epoch, tally, bar)
            self._check_invariant_if_asked(epoch)
            self.schedule.refresh()
        self.data = data.all_heard()
        record = tally.record(epoch, len(data), 0.0)  # reads the device, so the clock below has waited for it
        seconds = time.perf_counter() - started
        self.history.records.append(replace(record, seconds=seconds, objective=objective))
        if self.has_objective and self.config.debug:
            self.schedule.settle(self.members)
            self._check_invariant_if_asked(epoch)

    def _visit_all(self, epoch: int, tally: EpochTally, bar: tqdm[Any]) -> None:
        """Visit each batch once, in a new order."""
        sites, x, y = self.sites, self.data.x, self.data.y
        order = torch.randperm(len(self.members), generator=self.schedule.generator(epoch)).tolist()
        rows_of_x = [rows.to(x.device) for rows in self.members]  # here, so that no visit waits for it
        for n_visited, row in enumerate(order, start=1):
            for following in order[n_visited : n_visited + sites.ahead]:
                sites.prefetch(following)
            index = sites.index(row)
            inputs = examples.rows_on(self.network.device, x, rows_of_x[row])
            batch = Batch(sites.staged(index), inputs, y.index_select(0, self.members[row]))
            tally.add(self.schedule.visit(batch, epoch))
            sites.unstage(index)
            bar.update()

    def _check_invariant_if_asked(self, epoch: int) -> None:
        if self.config.debug:
            gap = self.check_invariant()
            if not gap < INVARIANT_TOLERANCE:
                raise RuntimeError(f"posterior differs from prior x sites by {gap:.2g} after epoch {epoch}")

    def _products_per_visit(self) -> int:
        """Multiplications in the largest product of matrices of a visit, or of a look at all data."""
        if self.schedule.takes_all_data:
            return len(self.data) * self.network.n_outputs * min(len(self.data), self.network.n_weights) ** 2
        return self.network.products_per_example * len(self.members[0])

    # --- when it ends ------------------------------------------------------------------------------------------------

    def _why(self, *, is_auto: bool, n_asked: int) -> str:
        """Why a run ended that nobody interrupted."""
        if not is_auto:
            rest = "" if not self._has_gradients else f"; {AT_REST}" if self._at_rest() else f"; {NOT_AT_REST} yet"
            return f"ran the {n_asked} epochs asked for{rest}"
        if self._has_looked(self.n_epochs) and self._at_rest():
            return f"{AT_REST} after {self.n_epochs} epochs"
        return f"{NOT_AT_REST} after {self.n_epochs} epochs, the limit"

    def _has_looked(self, epoch: int) -> bool:
        """Whether this epoch tells if training is at rest: with an objective each does, else those with a refresh."""
        return self.schedule.takes_all_data or self._refreshed_at == epoch

    def _at_rest(self) -> bool:
        since = self.history.changed_at
        if isinstance(self.schedule, ObjectiveSchedule):
            values = [record.objective for record in self.history if record.epoch > since]
            return self.schedule.falls_no_more([value for value in values if value is not None])
        return at_rest(refreshes(self.history, since=since), (self.n_epochs - since) * len(self.members))

    # --- the joint belief --------------------------------------------------------------------------------------------

    def _is_refresh_due(self, epoch: int) -> bool:
        """Whether the belief is to be refreshed after this epoch; a function of the history alone."""
        since = self.history.changed_at
        if not self._has_gradients or not refresh_due(epoch - since, self._refreshed_at - since):
            return False
        n_before = len(refreshes(self.history, since=since))
        return self._belief_maker.is_paid(self.data, n_before=n_before, n_epochs=epoch - since)

    def _refresh_in_training(self, epoch: int) -> None:
        """Refresh the belief from some of the data."""
        started, marginal = time.perf_counter(), self.network.marginal
        refreshed = self._belief_maker.in_training(self.data)
        clipped = refreshed.n_clipped / len(refreshed.outputs)
        moved = ((marginal.mean - self._last_mean).square() * marginal.rho).mean().sqrt()
        self._last_mean.copy_(marginal.mean)
        self._refreshed_at = epoch
        scores = {**refreshed.scores, "clipped": clipped, "moved": float(moved)}
        self._add_to_record(scores, time.perf_counter() - started)

    def _finish(self) -> None:
        """Believe anew at the end of a run."""
        started = time.perf_counter()
        if not self.history.records or not self._has_gradients:
            return
        refreshed, before = self._believe(), self.history[-1].loo
        is_last = refreshed.fitted is not None  # whose scores are those of what is predicted with
        scores = {**before, **refreshed.scores} if is_last else before or refreshed.scores
        self._add_to_record(scores, time.perf_counter() - started)

    def _believe(self) -> Refreshed:
        """Make the belief that the network predicts with; training is not touched."""
        refreshed, heard = self._belief_maker.at_end(self.data), self.data.heard
        self.network.run_summary = RunSummary.of(self.history.snapshot(), heard.x, heard.y)
        return refreshed

    def _believe_later(self) -> None:
        """Have the belief made anew when it is next asked for."""

        def renew() -> None:
            with fast_arithmetic(self.network.device):
                self._believe()

        self.network.renew_belief_with(renew)

    def _add_to_record(self, scores: dict[str, float], seconds: float) -> None:
        """Put what a refresh has found, and the time it took, into the last epoch's record."""
        last = self.history[-1]
        in_refreshes = last.refresh_seconds + seconds
        self.history.records[-1] = replace(
            last, loo=scores, seconds=last.seconds + seconds, refresh_seconds=in_refreshes
        )

    # --- the best state ----------------------------------------------------------------------------------------------

    def _stands(self) -> bool:
        """Whether the last epoch stands; if it has diverged, it is taken back.

        Schedules without a length of their steps are left alone: the same epoch would come again.
        """
        if not self.schedule.has_step_length:
            return True
        if best_state.has_diverged(self):
            self._take_back()
            return False
        self.schedule.step_length = min(1.0, best_state.GROWTH * self.schedule.step_length)
        return True

    def _take_back(self) -> None:
        """Go on from the state that was kept, with shorter steps. Where none is kept yet, numbers that are not finite
        send the run back to its start.
        """
        length = best_state.SHORTER * self.schedule.step_length
        if self._best_state is not None:
            best_state.go_back(self, self._best_state)
        elif not all(bool(part.isfinite().all()) for part in best_state.tensors_of(self).values()):
            self._start_again()
        self.schedule.step_length = length
        self.history.records[-1] = replace(self.history[-1], is_taken_back=True)

    @torch.inference_mode()
    def _start_again(self, *, width: float = 1.0) -> None:
        with torch.inference_mode(False):
            self._reset(width)
        self.schedule.resume({"n_visits": 0, "next_renewal": 1})
        self._start()
        self._last_mean.copy_(self.network.marginal.mean)

    def _refresh_or_take_back(self, epoch: int) -> None:
        """Refresh the belief after an epoch, and keep the state if it is the best; what cannot be computed has
        diverged.
        """
        try:
            self._refresh_in_training(epoch)
        except best_state.NOT_COMPUTED:
            if not self.schedule.has_step_length:
                raise
            self._take_back()
        else:
            if not self.schedule.takes_all_data:  # whose objective only falls
                self._best_state = best_state.keep_if_best(self, self._best_state)

    def _end_at_best(self) -> str:
        """Believe anew at the end of a run, at the best state if the run has become much worse than that; returns what
        to add to why it ended.
        """
        kept = self._best_state
        try:
            self._finish()
            if kept is None or not best_state.ends_worse(self, kept):
                return best_state.tell_taken_back(self)
        except best_state.NOT_COMPUTED:
            if not self.schedule.has_step_length:
                raise
            if kept is None:
                self._start_again()
                self._finish()
                return "; it diverged, and is back at its start"
        assert kept is not None
        best_state.go_back(self, kept)
        self.history.records[-1] = replace(self.history[-1], loo={}, is_taken_back=True)
        self._finish()
        return f"; went back to the state after epoch {kept.epoch}"

    def _let_rehearsals_judge(self, ended: tuple[str, str], last: int, progress: bool | None) -> tuple[str, str]:
        """Scores and belief as rehearsals have them. As long as these predict clearly better with a narrower prior, the
        run starts again with that.

        Args:
            ended: why the run ended, and what is added to that; what is returned, too.
            last: epoch that it may go on to.
        """
        network, best = self.network, None
        while True:
            started, n_epochs = time.perf_counter(), self.n_epochs - self.history.changed_at
            best = best or rehearsal.rehearse(self, float(network.prior_width), n_epochs, progress=progress)
            if best is None:
                return ended
            narrower = None
            if last > self.n_epochs and rehearsal.may_narrow(self):
                narrower = rehearsal.rehearse(self, rehearsal.NARROWER * best.width, n_epochs, progress=progress)
            is_better = narrower is not None and narrower.is_clearly_better_than(best)
            scores = self.history[-1].loo if is_better else {**self.history[-1].loo, **best.scores}
            self._add_to_record(scores, time.perf_counter() - started)
            if narrower is None or not is_better:
                network.belief_scale = best.belief_scale
                return ended
            best = narrower
            self._start_again(width=best.width)
            self._best_state, self._refreshed_at = None, self.n_epochs
            self.history.changes.append(Change(self.n_epochs, "narrowed", 0, len(self.data)))
            why = self._run(last - self.n_epochs, progress, is_auto=True, n_asked=last)
            ended = why, self._end_at_best()

    def trained_on(self, rows: Tensor, *, width: float, n_epochs: int, progress: bool | None) -> Network[Any]:
        """A fresh network of the same kind, trained on some of the rows alone, as this run is, from a prior of this
        width.
        """
        network, data = copy.deepcopy(self.network), self.data
        x, y = data.x[rows.to(data.x.device)], data.y[rows.to(data.y.device)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its end; the run itself has told
            other = Trainer.on_known_data(network, x, y, self.config, with_objective=self.has_objective, width=width)
            other.run(n_epochs, progress=progress)
        return network

    # --- data with identity ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def add(self, x: Any, y: Any = None, *, sample_weight: Any = None) -> Tensor:
        """Put more examples into the run, as new batches of their own; returns their ids.

        The new batches say nothing until their first visit: the posterior stays where it is, and `run` goes on with all
        data. Each id is an integer that stays with its example and is never used again; `trainer.ids` holds those of
        all examples, in the order of `trainer.x` and `trainer.y`. The first data have the ids 0 .. n - 1.

        Args:
            x, y: as for a new Trainer, on the same scale as the first data.
            sample_weight: how often each of them counts, numbers above 0; once if not given.

        Returns:
            A torch tensor (n,) of int64 on the CPU, one id per row.
        """
        x, y = accept_more(self.network, self.data, x, y)
        data, config = self.data, self.config
        generator = self.schedule.generator(data.next_id)
        weight = joined_weights(sample_weight, self.counted(), data, len(y))
        longer, kept = data.with_new(x, y, weight, batch_size=config.batch_size, generator=generator)
        new_ids = longer.ids[len(data) :]
        self.network.head.check_targets(longer.y, self.network.n_outputs)
        self._warn_if_far(x, y)
        with all_or_nothing(self):
            self._check_network()
            self._rearrange(longer, kept)
            self._note(Change(self.n_epochs, "added", len(y), len(longer)), is_heard=False)
        return new_ids

    @torch.no_grad()
    def remove(self, ids: Any) -> None:
        """Take examples out of the run, and out of what it has learned.

        A batch that loses all its examples loses its site: the posterior is prior x the other sites, whose stored
        messages stay as they are. A batch that loses some keeps the share of its site that stays, less what those
        examples say now (parallel schedule), until its next visit replaces it. Means move at once, by one measured
        step; some epochs of `run` bring them to where training without these examples ends. Predictions can be made at
        any time: the joint belief is made anew, without these examples, when it is next needed.

        Args:
            ids: of the examples; a number, or a list, set, array or tensor of them. Removing all of them is an error.
        """
        data, sites = self.data, self.sites
        rows = data.rows_of(ids)
        if len(rows) == len(data):
            raise ValueError(
                f"these are all {len(rows)} examples of the run, and a run without data has nothing to learn from; "
                "keep at least one, or call network.reset(), which goes back to the prior"
            )
        if len(rows) == 0:
            return
        with all_or_nothing(self) as before:
            self._check_network()
            left, kept = data.without(rows)
            change = torch.zeros_like(sites.shift)
            for row in sorted(set(range(len(data.members))) - {batch.row for batch in kept}):
                change -= sites.said(row)
            weaker: list[tuple[int, float, Tensor | None]] = []  # new row, share that stays, slope that goes
            for new_row, batch in enumerate(kept):
                share = len(batch.places) / len(data.members[batch.row])
                if share < 1.0 and self.has_begun and data.batch_ids[batch.row] not in data.unheard_batches:
                    before.keep_site(batch.row)
                    weaker.append((new_row, share, self._slope_that_goes(batch)))
            self._rearrange(left, kept)
            if self.has_begun:
                for new_row, share, slope in weaker:
                    change += sites.weaken(new_row, share, slope)
                sites.recount()
                self.schedule.absorb(change, *self._probe())
            self._note(Change(self.n_epochs, "removed", len(rows), len(left)))

    @torch.no_grad()
    def replace(self, ids: Any, x: Any = None, y: Any = None) -> None:
        """Give examples new values, e.g. a mended label; their ids and batches stay.

        What their batches have said stands until their next visit, so `run` on. Until then `influence` has a distance
        and a leverage of 0 for them.

        Args:
            ids: of the examples, as for `remove`, but in an order.
            x, y: one row for each of them, in this order; what is not given stays, so `replace(ids, y=labels)` mends
                labels.
        """
        if isinstance(ids, Set):
            raise ValueError("a set of ids has no order that rows of x and y could follow; pass a list of ids")
        data = self.data
        rows = data.rows_of(ids)
        if len(rows) == 0:
            return
        if x is None and y is None:
            raise ValueError("give x, y or both: what the examples with these ids shall be")
        x = data.x[rows.to(data.x.device)] if x is None else x
        y = data.y[rows.to(data.y.device)] if y is None else y
        x, y = accept_more(self.network, self.data, x, y)
        if len(rows) != len(y):
            raise ValueError(f"x and y must have one row per id: expected {len(rows)}, got {len(y)}")
        changed, kept = data.with_values(rows, x, y)
        self.network.head.check_targets(changed.y, self.network.n_outputs)
        self._warn_if_far(x, y)
        with all_or_nothing(self):
            self._check_network()
            self._rearrange(changed, kept)
            self._note(Change(self.n_epochs, "replaced", len(rows), len(data)))

    def _warn_if_far(self, x: Tensor, y: Tensor) -> None:
        """Warn of new examples far from those that the run has."""
        checks.warn_if_far(x, self.x, "x")
        checks.warn_if_far(y, self.y, "y")

    def _slope_that_goes(self, batch: Kept) -> Tensor | None:
        """What the examples of a batch that go say now of the slope at the origin."""
        rows = self.members[batch.row]
        goes = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        goes[batch.places] = False
        places = goes.nonzero()[:, 0]
        x = examples.rows_on(self.network.device, self.x, rows[places].to(self.x.device))
        return self.schedule.slope_of(batch.row, places, x, self.y[rows[places]])

    def _probe(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Some of the examples that there are, and which; where a schedule looks at all data at once, all that it has
        heard.
        """
        if self.schedule.takes_all_data:
            return self.data.heard.x, self.data.heard.y, self.data.heard_rows
        n = len(self.data)
        chosen = torch.randperm(n, generator=self.schedule.generator(self.n_epochs, n))[:PROBE]
        x = examples.rows_on(self.network.device, self.x, chosen.to(self.x.device))
        return x, self.y[chosen.to(self.y.device)], chosen

    def _rearrange(self, data: RunData, kept: list[Kept]) -> None:
        """Take these data, whose first batches are those kept. Until training has begun, no batch has said anything of
        its own yet, and all start anew.
        """
        rows, n_new = [batch.row for batch in kept], len(data.members) - len(kept)
        if n_new > 0 or len(rows) < len(self.sites):
            self.sites.rearrange(rows, n_new, self._plan_sites(len(data.members)))
        self.data = data if self.has_begun else data.all_heard()
        self.weigh()
        self.schedule.rearrange(kept, n_new, data.x, data.y, largest_batch=data.largest_batch)
        if not self.has_begun:
            self._start()
            self._last_mean.copy_(self.network.marginal.mean)

    def _note(self, change: Change, *, is_heard: bool = True) -> None:
        """A change of the data is done: scores begin anew, and so does the belief, if there is one and the change is
        heard: new examples say nothing until they are visited.
        """
        if not self.check_invariant() < 0.1 * INVARIANT_TOLERANCE:  # a store of few digits has rounded -shift
            self.schedule.refresh()
        self.history.changes.append(change)
        self._refreshed_at = self.n_epochs
        self._best_state = None
        if self.has_begun and self.data.unheard_batches.issuperset(self.data.batch_ids):
            self.network.belief = self.network.varying_noise = None  # nothing that is left has been heard
        elif self.network.has_belief and is_heard:
            self._believe_later()

    # --- looking at it -----------------------------------------------------------------------------------------------

    def influence(self, ids: Any = None) -> Influence:
        """What leaving out single examples would change: the weights, the surprise at their targets; from the leverages
        of the joint belief, without training again.

        Wrong labels stand out best by `loo_nll`: with 10 % of 2,560 MNIST training labels swapped, the AUROC of finding
        them was .99, by `distance` .96, by `leverage` .67. `distance` tells which examples the weights owe most to.

        Examples that were added or replaced and not visited since have said nothing yet: leaving them out would change
        nothing, so their `distance` and `leverage` are 0, and `loo_nll` is that of a new row. What the old values of
        replaced ones have said stands until then, and is nobody's influence; `run` first to compare.

        Args:
            ids: of the examples, as for `remove`; all of them if not given.

        Returns:
            Influence (.ids .distance .loo_nll .leverage), in the order of the ids.
        """
        rows = None if ids is None else self.data.rows_of(ids)
        belief = self.network.belief
        if belief is None:
            why = "run() makes it" if self._has_gradients else "a layer without gradient() does not allow one"
            raise ValueError(f"influence is judged by the joint belief, and this run has none: {why}")
        if rows is None:
            return self._belief_maker.influence_of_all(self.data, belief)
        return self._belief_maker.influence(self.data, belief, rows)

    @property
    def batches(self) -> tuple[BatchInfluence, ...]:
        """The batches of the run, with the ids of their examples and, from the first refresh of the joint belief on,
        their influence; the first look after a refresh takes a pass over the data.
        """
        rows = [members.cpu() for members in self.members]
        influences: list[float | None] = [None] * len(rows)
        if self.network.belief is not None:
            distance = self.influence().distance.double()
            influences = [float(distance[part].sum()) for part in rows]
        parts = zip(self.data.batch_ids, rows, influences, strict=True)
        return tuple(BatchInfluence(batch, self.ids[part], influence) for batch, part, influence in parts)

    def diagnose(self, x: Any = None, y: Any = None) -> Diagnosis:
        """What looks wrong with the run and its network (`Network.diagnose`), the shares of batches included.

        Args:
            x, y: rows that it was not trained on, or a torch Dataset of them as x; without them the training data are
                looked at, and nothing is said about calibration.
        """
        if self.network.run is None or self.network.run() is not self:
            raise ValueError("another Trainer has taken this network over; diagnose that one, or run() this one again")
        if x is None and y is not None:
            raise ValueError("give both x and y, or neither for the training data")
        return self.network.diagnose(self.x, self.y) if x is None else self.network.diagnose(x, y)

    # --- files -------------------------------------------------------------------------------------------------------

    def save(self, path: persistence.PathLike) -> None:
        """Write the run to a safetensors file: the network, all sites, the history; of the data only which they are,
        and what the joint belief keeps (`Network.save`). `Trainer.load` reads it, and `bayesmp.load` its network."""
        network, data, history, kept = self.network, self.data, self.history, self._best_state
        header = {
            "config": asdict(self.config),
            "has_objective": self.has_objective,
            "history": history.to_json(),
            "counters": self.schedule.counters(),
            "refreshed_at": self._refreshed_at,
            "stopped": history.stopped,
            "device": network.device.type,
            "data": data.identity,
            "batch_sizes": [len(rows) for rows in data.members],
            "batch_ids": data.batch_ids,
            "next_id": data.next_id,
            "next_batch_id": data.next_batch_id,
            "changes": [asdict(change) for change in history.changes],
            "best_state": None if kept is None else kept.description(),
        }
        tensors = {**network.state(), **self.state(), "members": torch.cat(data.members), "ids": data.ids}
        if data.labels is not None:
            tensors["labels"] = data.labels
        if data.sample_weight is not None:
            tensors["sample_weight"] = data.sample_weight
        if kept is not None:
            tensors |= {f"best_state.{name}": part for name, part in kept.tensors.items()}
        described = {"network": network.description(), "run": header}
        persistence.write(path, kind="run", header=described, tensors=tensors)

    def state(self) -> dict[str, Tensor]:
        """The tensors beside the network's that a loaded run is filled with: of sites and schedule."""
        sites = {f"sites.{name}": part for name, part in self.sites.state().items()}
        schedule = {f"schedule.{name}": part for name, part in self.schedule.state().items()}
        return {**sites, "last_mean": self._last_mean, **schedule}

    @classmethod
    def load(
        cls,
        path: persistence.PathLike,
        x: Any,
        y: Any = None,
        *,
        device: str | torch.device | None = None,
        classes: Iterable[type] = (),
    ) -> Trainer:
        """The run of a file that `save` wrote, ready to go on where it stopped.

        On the CPU the epochs that follow are the same, bit for bit, as if the run had never stopped.

        Args:
            path: the file.
            x, y: the data of the run in the same order, as it had them when it was saved: `trainer.x`, `trainer.y`.
                These are what it was started with, unless examples were added, removed or replaced since.
            device: where to go on; the kind of device it was saved from if not given.
            classes: layers and heads of your own that the network uses.
        """
        with persistence.opened(path, kinds=("run",)) as file:
            header, place = run_files.header_of(file), run_files.find_device(device, file)
            network = from_file(file, classes).to(place)
            network.reset()
            trainer = cls.on_known_data(network, x, y, header.config, with_objective=header.has_objective)
            trainer.take(file)
            file.check_all_read()
        return trainer

    @classmethod
    def resume(
        cls,
        folder: persistence.PathLike,
        x: Any,
        y: Any = None,
        *,
        every: int = EVERY,
        keep: int = KEEP,
        device: str | torch.device | None = None,
        classes: Iterable[type] = (),
    ) -> Trainer:
        """The run whose checkpoints are in a folder, at the newest one that is whole, ready to go on as with `load`;
        further checkpoints go to the same folder.

        A warning names newer ones that are damaged. `trainer.n_epochs` says how far the run had come.

        Args:
            folder: the one given as `checkpoint`.
            x, y, device, classes: as for `load`.
            every, keep: as for a new Trainer.
        """
        checkpoints = Checkpoints(folder, every=every, keep=keep)
        x, y = examples.as_arrays(x, y)
        trainer = checkpoints.read_newest(lambda path: cls.load(path, x, y, device=device, classes=classes))
        if trainer is None:
            is_damaged = "that can be read " if checkpoints.paths() else ""
            raise ValueError(
                f"the folder {str(folder)!r} holds no checkpoint {is_damaged}(epoch-*.safetensors); start the run with "
                "Trainer(network, x, y, checkpoint=folder)"
            )
        trainer.checkpoints = checkpoints
        return trainer

    def take(self, file: persistence.SavedFile) -> None:
        """Go on from an open file of a run of the same network, data and settings."""
        header, network = run_files.header_of(file), self.network
        run_files.check_same_data(self.data, header, file.path)
        with file.understood():
            data, sizes = run_files.batches_of(file, header, self.data), [len(rows) for rows in self.members]
            if header.batch_sizes == sizes:
                self.data = data
                self.weigh()
            else:  # data came or went
                self._arrange(data)
                self._start()
            run_files.check_counters(self.schedule.counters(), header.counters)
            self.schedule.make_room(header.counters)
            for name, target in self.state().items():
                file.fill(target, name, is_finite=not name.startswith("schedule."))  # whose limits may be infinite
            self.sites.recount()
            self.schedule.resume(header.counters)
            self.history = History(header.history, header.stopped, header.changes)
            self._refreshed_at = header.refreshed_at
            if header.changes and self.history.changed_at == self.n_epochs > 0:
                batches = enumerate(data.batch_ids)
                unheard = frozenset(batch for row, batch in batches if not bool(self.sites.site(row).rho.any()))
                self.data = replace(data, unheard_batches=unheard)
            learn_from_file(network, file)
            self._best_state = best_state.from_file(self, file, header.best_state)
            file.check_entries(["network", "run"])
            if network.has_belief:  # else the file was written in the middle of a run
                network.run_summary = RunSummary.of(self.history.snapshot(), self.x, self.y)

    def go_on_from(self, history: History, *, unheard_batches: Set[int]) -> None:
        """Go on where sites and schedule were taken from other runs (merging.py), with this history."""
        self._last_mean.copy_(self.network.marginal.mean)
        self.history = history
        self.data = replace(self.data, unheard_batches=frozenset(unheard_batches))
        if self._has_gradients:
            self._believe_later()
