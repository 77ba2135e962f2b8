"""The loop: batches with fixed membership, epochs in random order, refreshes of the belief, history, stopping."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from bayesmp.basics import checks, examples, persistence
from bayesmp.basics.arithmetic import fast_arithmetic, few_threads, undisturbed
from bayesmp.diagnosis import Diagnosis, RunSummary
from bayesmp.evidence.budget import cost_of_refresh, is_paid
from bayesmp.evidence.influence import Influence
from bayesmp.network.files import INTERRUPTED, from_file
from bayesmp.network.network import Network, check_is_network
from bayesmp.sites.sites import SiteIndex
from bayesmp.training import best_state, changes, constant_guess, run_files
from bayesmp.training.checkpoints import EVERY, KEEP, Checkpoints
from bayesmp.training.history import EpochTally, History
from bayesmp.training.run import INVARIANT_TOLERANCE, Run
from bayesmp.training.schedules import Batch, ObjectiveSchedule
from bayesmp.training.stopping import at_rest, refresh_due, refreshes, tell_unrest
from bayesmp.training.train_config import TrainConfig

AT_REST, NOT_AT_REST = "at rest", "not at rest"
GO_ON = (
    "raise max_epochs, or keep a Trainer and let it run on (a second bayesmp.fit without checkpoints starts from the "
    "prior again)"
)
MAX_EPOCHS = 1000  # of a run that stops by itself


class Trainer(Run):
    """A training run that can go on: the data, one site per batch, the network, the history so far.

    `trainer.x`, `trainer.y` and `trainer.ids` are its examples, row by row, and which ones these are; `add`, `remove`
    and `replace` change them.

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
        known = [entry.name for entry in fields(TrainConfig)] + [
            *("checkpoint", "every", "keep", "groups", "sample_weight")
        ]
        if unknown := sorted(set(options) - set(known)):
            hint = "; there is no learning rate to choose" if "lr" in unknown or "learning_rate" in unknown else ""
            if any("epoch" in name for name in unknown):
                hint = "; the number of epochs is the argument epochs of bayesmp.fit and Trainer.run"
            raise TypeError(f"unknown options {unknown}; available: {known}{hint}")
        config = TrainConfig(**options) if config is None else config
        self.checkpoints = None if checkpoint is None else run_files.new_checkpoints(network, checkpoint, every, keep)
        with undisturbed():
            super().__init__(network, x, y, config, groups=groups, sample_weight=sample_weight)
            if self.checkpoints is not None:
                self.checkpoints.make_folder()
            self._begin()

    @classmethod
    def _with_known(cls, network: Network, x: Any, y: Any, config: TrainConfig, *, with_objective: bool) -> Trainer:
        """A run on data that were accepted before, to be filled; no checks of their scale."""
        trainer = cls.__new__(cls)
        trainer.checkpoints = None
        Run.__init__(trainer, network, x, y, config, is_new=False, with_objective=with_objective)
        trainer._begin()
        return trainer

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
        return self._train(epochs, max_epochs, progress, stacklevel=3)

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

    def _train(self, epochs: int | str, max_epochs: int, progress: bool | None, *, stacklevel: int) -> History:
        """`run`; a warning points at the caller this many frames up."""
        epochs = checks.check_epochs(epochs, least=0)
        if isinstance(epochs, str) and not self._has_gradients:
            raise ValueError(
                "epochs='auto' judges progress by the joint belief, which a layer without gradient() does not allow; "
                "give a number of epochs"
            )
        if isinstance(epochs, str):
            n_epochs = max(0, checks.check_positive_int(max_epochs, "max_epochs") - self.n_epochs)
            return self._train_for(n_epochs, progress, is_auto=True, n_asked=n_epochs, stacklevel=stacklevel + 1)
        if epochs == 0 and (self.n_epochs == 0 or self.network.belief is not None):
            return self.history.snapshot()
        n_asked = epochs or self.n_epochs  # of none: a run that was interrupted gets its belief, and ends here
        return self._train_for(epochs, progress, is_auto=False, n_asked=n_asked, stacklevel=stacklevel + 1)

    def _train_for(
        self, n_epochs: int, progress: bool | None, *, is_auto: bool, n_asked: int, stacklevel: int
    ) -> History:
        """`run` for at most this many epochs, perhaps none; the history says how many were asked for."""
        with undisturbed():
            return self._train_undisturbed(
                n_epochs, progress, is_auto=is_auto, n_asked=n_asked, stacklevel=stacklevel + 1
            )

    def _train_undisturbed(
        self, n_epochs: int, progress: bool | None, *, is_auto: bool, n_asked: int, stacklevel: int
    ) -> History:
        self._check_network(stacklevel=6)
        self.network.belief = None  # never one of other means, should the run be interrupted
        self.network.varying_noise = self.network.run_summary = None
        self.history.stopped = INTERRUPTED
        with fast_arithmetic(self.network.device):
            try:
                why = self._run(n_epochs, progress, is_auto=is_auto, n_asked=n_asked, stacklevel=stacklevel + 2)
            finally:
                self.schedule.settle(self.members)
            change = best_state.finish(self)
        if is_worse := constant_guess.is_worse(self):
            asked = f"ran the {n_asked} epochs asked for; {constant_guess.WORSE}"
            why = f"{constant_guess.WORSE} after {self.n_epochs} epochs" if is_auto else asked
        why += change
        self.history.stopped = why
        if self.checkpoints is not None:
            self.checkpoints.write(self.n_epochs, self.save, stacklevel=stacklevel)
        if is_worse:
            constant_guess.warn(self, stacklevel=stacklevel)
        elif why.startswith(NOT_AT_REST):
            warnings.warn(
                f"training was {why}: {tell_unrest(refreshes(self.history, since=self._changed_at), GO_ON)}",
                stacklevel=stacklevel,
            )
        if self.network.marginal.tau.is_inference():  # a user may want to differentiate, or write into it
            self.network.marginal = self.network.marginal.map(torch.clone)
        self.network.run_summary = RunSummary.of(
            self.history.snapshot(), self.x, self.y, heard=self.schedule.held_back()
        )
        return self.history.snapshot()

    def _train_until(self, epochs: int | str, max_epochs: int, progress: bool | None, *, stacklevel: int) -> History:
        """`run`, with the epochs behind it counted as some of those asked for; nothing to do if it has ended."""
        if isinstance(epochs, str):
            if self.history.stopped.startswith(AT_REST):
                return self.history.snapshot()
            return self._train(epochs, max_epochs, progress, stacklevel=stacklevel + 1)
        if self.n_epochs == epochs and self.network.belief is not None:
            return self.history.snapshot()
        left = epochs - self.n_epochs
        return self._train_for(left, progress, is_auto=False, n_asked=epochs, stacklevel=stacklevel + 1)

    @torch.inference_mode()
    def _run(self, n_epochs: int, progress: bool | None, *, is_auto: bool, n_asked: int, stacklevel: int) -> str:
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
                if best_state.stands(self) and self._is_refresh_due(epoch):
                    best_state.refresh(self, epoch)
                    rest = f", {AT_REST}" if self._at_rest() else f", {NOT_AT_REST} yet"
                shown = dict(self.history[-1].metrics)
                if "nll" in self.history[-1].loo:
                    shown["leave-one-out nll"] = self.history[-1].loo["nll"]
                bar.set_postfix({name: f"{value:.4g}" for name, value in shown.items()})
                if is_auto and self._has_looked(epoch) and self._at_rest():
                    break
                if self.checkpoints is not None and self.checkpoints.is_due(epoch) and epoch < last:
                    self.schedule.settle(self.members)
                    self.checkpoints.write(epoch, self.save, stacklevel=stacklevel)
            stopped = self._why(is_auto=is_auto, n_asked=n_asked)
            bar.set_description(stopped)
        return stopped

    def _is_refresh_due(self, epoch: int) -> bool:
        """Whether the belief is to be refreshed after this epoch; a function of the history alone."""
        since = self._changed_at
        is_due = self._has_gradients and refresh_due(epoch - since, self._refreshed_at - since)
        if not (is_due and self.schedule.counts_visits):
            return is_due
        n_before = len(refreshes(self.history, since=since))
        refresh_cost = cost_of_refresh(self.network, len(self.x), self._size_in_training())
        return is_paid(n_before, refresh_cost, (epoch - since) * self._epoch_cost())

    def _products_per_visit(self) -> int:
        """Multiplications in the largest product of matrices of a visit, or of a look at all data."""
        if self.schedule.takes_all_data:
            return len(self.x) * self.network.n_outputs * min(len(self.x), self.network.n_weights) ** 2
        return self.network.products_per_example * len(self.members[0])

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
        if isinstance(self.schedule, ObjectiveSchedule):
            known = (record.objective for record in self.history if record.epoch > self._changed_at)
            return self.schedule.falls_no_more([value for value in known if value is not None])
        passed = refreshes(self.history, since=self._changed_at)
        return at_rest(passed, (self.n_epochs - self._changed_at) * len(self.members))

    # --- data with identity ------------------------------------------------------------------------------------------

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
        return changes.add(self, x, y, sample_weight)

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
        changes.remove(self, ids)

    def replace(self, ids: Any, x: Any = None, y: Any = None) -> None:
        """Give examples new values, e.g. a mended label; their ids and batches stay.

        What their batches have said stands until their next visit, so `run` on. Until then `influence` has a distance
        and a leverage of 0 for them.

        Args:
            ids: of the examples, as for `remove`, but in an order.
            x, y: one row for each of them, in this order; what is not given stays, so `replace(ids, y=labels)` mends
                labels.
        """
        changes.replace(self, ids, x, y)

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
        if ids is None:
            return self._influence_of_all()
        return self._influence_of(changes.find_rows(self, ids))

    # --- files -------------------------------------------------------------------------------------------------------

    def save(self, path: persistence.PathLike) -> None:
        """Write the run to a safetensors file: the network, all sites, the history; of the data only what
        the joint belief keeps (`Network.save`). `Trainer.load` reads it, and `bayesmp.load` its network."""
        run_files.save(self, path)

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
            found, place = run_files.header_of(file), run_files.find_device(device, file)
            network = from_file(file, classes).to(place)
            network.reset()
            trainer = cls._with_known(network, x, y, found.config, with_objective=found.has_objective)
            trainer._take(file)
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
        trainer = checkpoints.read_newest(
            lambda path: cls.load(path, x, y, device=device, classes=classes), stacklevel=2
        )
        if trainer is None:
            is_damaged = "that can be read " if checkpoints.paths() else ""
            raise ValueError(
                f"the folder {str(folder)!r} holds no checkpoint {is_damaged}(epoch-*.safetensors); start the run with "
                "Trainer(network, x, y, checkpoint=folder)"
            )
        trainer.checkpoints = checkpoints
        return trainer

    def _take(self, file: persistence.SavedFile) -> None:
        """Go on from an open file of a run of the same network, data and settings."""
        run_files.take(self, file)

    def _run_epoch(self, epoch: int, bar: tqdm[Any]) -> None:
        started = time.perf_counter()
        if isinstance(self.schedule, ObjectiveSchedule):
            self._run_whole_epoch(self.schedule, epoch, started, bar)
            return
        tally = EpochTally()
        order = torch.randperm(len(self.members), generator=self.schedule.generator(epoch)).tolist()
        rows_of_x = [rows.to(self.x.device) for rows in self.members]  # here, so that no visit waits for it
        for n_visited, index in enumerate(order, start=1):
            for following in order[n_visited : n_visited + self.sites.ahead]:
                self.sites.prefetch(following)
            rows, site = self.members[index], SiteIndex(index, self._rows[index : index + 1])
            x = examples.rows_on(self.network.device, self.x, rows_of_x[index])
            batch = Batch(self.sites.staged(site), x, self.y.index_select(0, rows))
            tally.add(self.schedule.visit(batch, epoch))
            self.sites.unstage(site)
            bar.update()
        if self.config.debug:
            gap = self.check_invariant()
            if not gap < INVARIANT_TOLERANCE:
                raise RuntimeError(f"posterior differs from prior x sites by {gap:.2g} after epoch {epoch}")
        self.schedule.refresh()
        self._silent.clear()
        self._mended.clear()
        record = tally.record(epoch, len(self.x), 0.0)  # reads the device, so the clock below has waited for it
        seconds = time.perf_counter() - started
        self.history.records.append(replace(record, seconds=seconds))

    def _run_whole_epoch(self, schedule: ObjectiveSchedule, epoch: int, started: float, bar: tqdm[Any]) -> None:
        """An epoch of a schedule that looks at all batches at once."""
        tally = EpochTally()
        info, objective = schedule.run_epoch(self.members, epoch, self._groupings(self.x, self.y)[1])
        tally.add(info)
        bar.update(len(self.members))
        self._silent.clear()
        self._mended.clear()
        record = tally.record(epoch, len(self.x), 0.0)
        seconds = time.perf_counter() - started
        self.history.records.append(replace(record, seconds=seconds, objective=objective))
        if self.config.debug:
            schedule.settle(self.members)
            gap = self.check_invariant()
            if not gap < INVARIANT_TOLERANCE:
                raise RuntimeError(f"posterior differs from prior x sites by {gap:.2g} after epoch {epoch}")
