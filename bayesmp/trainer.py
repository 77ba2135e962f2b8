"""The loop: batches with fixed membership, epochs in random order, refreshes of the belief, history, stopping."""

from __future__ import annotations

import math
import sys
import time
import warnings
import weakref
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from bayesmp import checks, examples, persistence
from bayesmp.arithmetic import SMALL_PASS, exact_products, fast_arithmetic, few_threads
from bayesmp.belief import MAX_RANK
from bayesmp.checkpoints import EVERY, KEEP, Checkpoints
from bayesmp.diagnosis import Diagnosis, Told
from bayesmp.history import EpochTally, History
from bayesmp.joint import Refreshed, memory_plan, products_per_pass, refresh
from bayesmp.network import INTERRUPTED, Network, check_same_network, from_file, learn_from_file
from bayesmp.schedules import Batch, check_schedule, make_schedule
from bayesmp.settings import SETTINGS
from bayesmp.sites import PLACES, SiteIndex, Sites, format_bytes, plan_storage
from bayesmp.stopping import Progress, at_rest, refresh_due

LARGE_STORE = 500_000_000  # bytes from which the user is told before training starts
AT_REST, NOT_AT_REST = "at rest", "not at rest"
NOT_IN_RESULT = ("site_store", "data_store", "debug")  # settings that a run may change between two checkpoints
MAX_EPOCHS = 1000  # of a run that stops by itself
INVARIANT_TOLERANCE = 1e-3  # relative; float32 sums over some hundred sites stay well inside it


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a run; a misspelt name fails at once.

    Attributes:
        batch_size: examples that share a site, at most (batches are made equally large); the size of a parallel step.
        schedule: "parallel" (whole batch as matrix products) or "sequential" (the paper's, one example at a time).
        seed: decides which examples share a batch and the order of visits.
        joint: whether the parallel schedule counts correlations between weights in the variance of their sums while it
            trains; None: in networks of dense layers only (schedules/metric.py). Predictions are made with the joint
            belief in any case.
        site_store: "auto", "device", "host" or "disk": where the sites live (sites.py).
        site_dtype: "float32", "float64" or "bfloat16"; the network's own precision if None.
        data_store: "auto", "device" or "host": where the training inputs lie; from the host each batch is copied to
            the GPU for its visit. "auto" keeps them on the device if there is room.
        debug: check after each epoch that the posterior equals prior x sites.
    """

    batch_size: int = 128
    schedule: str = "parallel"
    seed: int = 0
    joint: bool | None = None
    site_store: str = "auto"
    site_dtype: str | None = None
    data_store: str = "auto"
    debug: bool = False

    def __post_init__(self) -> None:
        checks.check_positive_int(self.batch_size, "batch_size")
        check_schedule(self.schedule)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed must be an int, got {self.seed!r}")
        if self.joint not in (None, True, False):
            raise ValueError(f"joint must be True, False or None (decide by the network), got {self.joint!r}")
        if self.joint and self.schedule != "parallel":
            raise ValueError("joint=True needs the parallel schedule; the sequential one has no shares of sums")
        if self.site_store not in PLACES:
            raise ValueError(f"site_store must be one of {PLACES}, got {self.site_store!r}")
        if self.data_store not in examples.PLACES:
            raise ValueError(f"data_store must be one of {examples.PLACES}, got {self.data_store!r}")


class Trainer:
    """A training run that can go on: the data, one site per batch, the network, the history so far.

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
        **options: Any,
    ) -> None:
        if config is not None and options:
            raise ValueError(f"give either config or options by name, not both; got config and {sorted(options)}")
        known = [entry.name for entry in fields(TrainConfig)] + ["checkpoint", "every", "keep"]
        if unknown := sorted(set(options) - set(known)):
            hint = "; there is no learning rate to choose" if "lr" in unknown or "learning_rate" in unknown else ""
            raise TypeError(f"unknown options {unknown}; available: {known}{hint}")
        self.config = TrainConfig(**options) if config is None else config
        self.checkpoints = None if checkpoint is None else _new_checkpoints(network, checkpoint, every, keep)
        x, y = examples.as_arrays(x, y)
        network.take_shape(np.shape(x)[1:])
        x = checks.check_inputs(x, network.input_shape, network.dtype)
        given = y
        y = network.head.check_targets(given, network.n_outputs)
        checks.check_lengths(x, y)
        checks.warn_of_scale(x, y, stacklevel=3)

        self.network = network
        self.history = History()
        self.x = examples.place_inputs(x, network.device, network.dtype, self.config.data_store)
        self.y = y.to(device=network.device, dtype=network.dtype if y.is_floating_point() else None)
        self.members = self._assign_batches(len(x))
        self.sites = self._make_sites()
        self.schedule = make_schedule(
            self.config.schedule, network, self.sites, seed=self.config.seed, joint=self.config.joint
        )
        self._has_gradients = self._check_gradients()
        if self.checkpoints is not None:
            self.checkpoints.make_folder()
        if network.belief is not None:
            warnings.warn(
                "this network was trained before, and a new run starts from its prior: what it had learned is dropped. "
                "To train on, keep the Trainer and call run() again; to start anew on purpose, call network.reset()",
                stacklevel=2,
            )
        network.reset()
        network.flat_targets = np.ndim(given) == 1 and y.ndim == 2
        network.run = weakref.ref(self)
        self.schedule.start(self.y, largest_batch=len(self.members[0]))
        self._refreshed_at = 0  # epoch
        self._last_mean = network.marginal.mean.clone()  # at that time
        self._identified: tuple[Tensor, Tensor, dict[str, Any]] | None = None
        self._tell_memory()

    @property
    def n_epochs(self) -> int:
        """Epochs run so far."""
        return len(self.history)

    def run(self, epochs: int | str = "auto", *, max_epochs: int = MAX_EPOCHS, progress: bool | None = None) -> History:
        """Train on; each epoch visits every batch once, in a new random order.

        When it ends, the joint belief is refreshed by a pass over the data, and the network predicts with it.

        Args:
            epochs: how many more, or "auto": until the leave-one-out score and the means are at rest (stopping.py);
                `history.stopped` says why it ended, and a warning comes if it did not come to rest.
            max_epochs: bound for "auto", on all epochs of this run so far.
            progress: show a progress bar; None shows it in a terminal only.
        """
        return self._train(epochs, max_epochs, progress, stacklevel=3)

    def diagnose(self, x: Any = None, y: Any = None) -> Diagnosis:
        """What looks wrong with the run and its network (`Network.diagnose`), the shares of batches included.

        Args:
            x, y: rows that it was not trained on; without them the training data are looked at, and nothing is said
                about calibration.
        """
        if self.network.run is None or self.network.run() is not self:
            raise ValueError("another Trainer has taken this network over; diagnose that one, or run() this one again")
        if (x is None) != (y is None):
            raise ValueError("give both x and y, or neither for the training data")
        return self.network.diagnose(self.x if x is None else x, self.y if y is None else y)

    def __repr__(self) -> str:
        options = [f"{entry.name}={getattr(self.config, entry.name)!r}" for entry in fields(TrainConfig)]
        defaults = [f"{entry.name}={entry.default!r}" for entry in fields(TrainConfig)]
        chosen = "".join(f", {option}" for option, default in zip(options, defaults, strict=True) if option != default)
        network = repr(self.network).split("\n")[0]
        size = f"{len(self.x):,} examples in {len(self.members):,} batches"
        return f"Trainer({network}, {size}, {self.n_epochs} epochs run{chosen})"

    def _train(self, epochs: int | str, max_epochs: int, progress: bool | None, *, stacklevel: int) -> History:
        """`run`; a warning points at the caller this many frames up."""
        is_auto = isinstance(epochs, str)
        if is_auto and epochs != "auto":
            raise ValueError(f"epochs must be a positive integer or 'auto', got {epochs!r}")
        if is_auto and not self._has_gradients:
            raise ValueError(
                "epochs='auto' judges progress by the joint belief, which a layer without gradient() does not allow; "
                "give a number of epochs"
            )
        limit = checks.check_positive_int(max_epochs, "max_epochs") - self.n_epochs if is_auto else 0
        n_epochs = max(0, limit) if is_auto else checks.check_positive_int(epochs, "epochs")
        return self._train_for(n_epochs, progress, is_auto=is_auto, n_asked=n_epochs, stacklevel=stacklevel + 1)

    def _train_for(
        self, n_epochs: int, progress: bool | None, *, is_auto: bool, n_asked: int, stacklevel: int
    ) -> History:
        """`run` for at most this many epochs, perhaps none; the history says how many were asked for."""
        self._check_network()
        self.network.belief = None  # never one of other means, should the run be interrupted
        self.network.told = None
        self.history.stopped = INTERRUPTED
        with fast_arithmetic(self.network.device):
            why = self._run(n_epochs, progress, is_auto=is_auto, n_asked=n_asked, stacklevel=stacklevel + 2)
            self._finish()
        self.history.stopped = why
        if self.checkpoints is not None:
            self.checkpoints.write(self.n_epochs, self.save, stacklevel=stacklevel)
        if why.startswith(NOT_AT_REST):
            warnings.warn(
                f"training was {why}: the leave-one-out score or the means still moved; raise max_epochs, or keep a "
                "Trainer and let it run on (a second bayesmp.fit without checkpoints starts from the prior again)",
                stacklevel=stacklevel,
            )
        if self.network.marginal.tau.is_inference():  # a user may want to differentiate, or write into it
            self.network.marginal = self.network.marginal.map(torch.clone)
        self.network.told = Told.of(self.history.snapshot(), self.x, self.y)
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

    def _check_network(self) -> None:
        """Make sure that the network is still in the state this run left it in."""
        network, sites = self.network, self.sites
        if network.run is not None and network.run() is not self:
            warnings.warn(
                "another Trainer has taken this network over since; it goes back to what this run had learned",
                stacklevel=5,
            )
            network.run = weakref.ref(self)
        if (network.dtype, network.device) != (sites.dtype, sites.device):
            raise ValueError(
                f"this run is in {sites.dtype} on {sites.device}, its network now in {network.dtype} on "
                f"{network.device}; move the network back, or start a new Trainer"
            )
        if not self.check_invariant() < INVARIANT_TOLERANCE:  # reset, trained by another run, or a visit interrupted
            self.schedule.refresh()
        network.head_log_weights.copy_(sites.head_posterior(self.schedule.head_prior))  # as training has it

    def _products_per_batch(self) -> int:
        network = self.network
        positions = {slot.layer: math.prod(network.shapes[slot.layer + 1][1:]) for slot in network.slots}
        per_example = sum((slot.stop - slot.start) * positions[slot.layer] for slot in network.slots)
        return per_example * len(self.members[0])

    @torch.inference_mode()
    def _run(self, n_epochs: int, progress: bool | None, *, is_auto: bool, n_asked: int, stacklevel: int) -> str:
        """Train, and say why it ended."""
        hidden = not (sys.stderr.isatty() if progress is None else progress)
        total = None if is_auto else n_epochs * len(self.members)
        n_products = self._products_per_batch()
        with tqdm(total=total, disable=hidden, unit="batch", mininterval=0.5) as bar:
            last = self.n_epochs + n_epochs
            for epoch in range(self.n_epochs + 1, last + 1):
                bar.set_description(f"epoch {epoch}")
                with few_threads(self.network.device, n_products=n_products):
                    self._run_epoch(epoch, bar)
                if self._has_gradients and refresh_due(epoch, self._refreshed_at):
                    self._refresh_in_training(epoch)
                shown = dict(self.history[-1].metrics)
                if "nll" in self.history[-1].loo:
                    shown["leave-one-out nll"] = self.history[-1].loo["nll"]
                bar.set_postfix({name: f"{value:.4g}" for name, value in shown.items()})
                if is_auto and self._refreshed_at == epoch and self._at_rest():
                    return f"{AT_REST} after {epoch} epochs"
                if self.checkpoints is not None and self.checkpoints.is_due(epoch) and epoch < last:
                    self.checkpoints.write(epoch, self.save, stacklevel=stacklevel)
        if not is_auto:
            rest = "" if not self._has_gradients else f"; {AT_REST}" if self._at_rest() else f"; {NOT_AT_REST} yet"
            return f"ran the {n_asked} epochs asked for{rest}"
        return f"{NOT_AT_REST} after {self.n_epochs} epochs, the limit"

    # --- the joint belief --------------------------------------------------------------------------------------------

    def _refresh_in_training(self, epoch: int) -> None:
        """Refresh the belief from some of the data; from its leave-one-out outputs the head's constant is judged."""
        network, schedule, started = self.network, self.schedule, time.perf_counter()
        found = self._refresh(SETTINGS.refresh_examples, SETTINGS.refresh_rank, seed=1)  # the same examples each time
        if found.constant is not None and not schedule.judges_constant:
            schedule.hear_score(found.scores["nll"])
            schedule.hear_constant(found.constant)
        marginal = network.marginal
        moved = ((marginal.mean - self._last_mean).square() * marginal.rho).mean().sqrt()
        self._last_mean.copy_(marginal.mean)
        self._refreshed_at = epoch
        clipped = found.n_clipped / len(found.outputs)
        loo = {**found.scores, "clipped": clipped, "moved": float(moved)}
        self._add_to_record(loo, time.perf_counter() - started)

    @torch.no_grad()
    def _finish(self) -> None:
        """The belief that the network predicts with, and the constant that belongs to it; training is not touched."""
        network, schedule, started = self.network, self.schedule, time.perf_counter()
        if not self.history.records or not self._has_gradients:
            return
        found = self._refresh(SETTINGS.final_examples, MAX_RANK, seed=0, keeps_belief=True)
        if found.constant is not None and not schedule.judges_constant:
            total = schedule.head_prior.to(found.constant) + found.constant
            network.head_log_weights = (total - total.max()).to(network.head_log_weights)
        self._add_to_record(self.history[-1].loo or found.scores, time.perf_counter() - started)

    def _add_to_record(self, loo: dict[str, float], seconds: float) -> None:
        """Put what a refresh found, and the time it took, into the last epoch's record."""
        last = self.history[-1]
        self.history.records[-1] = replace(last, loo=loo, seconds=last.seconds + seconds)

    def _refresh(self, max_examples: int, max_rank: int, *, seed: int, keeps_belief: bool = False) -> Refreshed:
        network = self.network
        n_products = products_per_pass(network, len(self.x), max_examples=max_examples, max_rank=max_rank)
        with exact_products(network.device), few_threads(network.device, n_products=n_products, small=SMALL_PASS):
            found = refresh(
                network,
                self.x,
                self.y,
                network.head_log_weights,
                self.schedule.head_prior,
                max_examples=max_examples,
                max_rank=max_rank,
                seed=seed,
            )
            if keeps_belief:
                network.belief = found.belief
        return found

    def _at_rest(self) -> bool:
        passed = [
            Progress(record.epoch, record.loo["nll"], record.loo["moved"])
            for record in self.history
            if "moved" in record.loo
        ]
        return at_rest(passed, self.n_epochs * len(self.members))

    def save(self, path: persistence.PathLike) -> None:
        """Write the run to a safetensors file: the network, all sites, the history; not the data. `Trainer.load` reads
        it, and `bayesmp.load` its network."""
        header = {
            "network": self.network.description(),
            "run": {
                "config": asdict(self.config),
                "history": self.history.to_json(),
                "counters": {name: getattr(self.schedule, name) for name in self.schedule.counters},
                "refreshed_at": self._refreshed_at,
                "stopped": self.history.stopped,
                "device": self.network.device.type,
                "data": self._identify_data(),
                "batch_sizes": [len(rows) for rows in self.members],
            },
        }
        tensors = {**self.network.state(), **self._state(), "members": torch.cat(self.members)}
        persistence.write(path, kind="run", header=header, tensors=tensors)

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
            x, y: the data the run was started with, in the same order.
            device: where to go on; the kind of device it was saved from if not given.
            classes: layers and heads of your own that the network uses.
        """
        with persistence.opened(path, kinds=("run",)) as file:
            run = file.header["run"]
            network = from_file(file, classes).to(_find_device(device, run["device"], file.path))
            network.reset()
            trainer = cls(network, x, y, _config_of(run, file.path))
            trainer._take(file)
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
        run, network = file.header["run"], self.network
        for name, identity in self._identify_data().items():
            _check_same(name, identity, run["data"][name], file.path)
        rows = torch.cat(self.members)
        file.fill(rows, "members")
        if sum(run["batch_sizes"]) != len(rows):
            raise ValueError(f"{file.path!r} does not fit: its batches are not those of {len(rows)} examples")
        self.members = list(rows.split(run["batch_sizes"]))
        for name, target in self._state().items():
            file.fill(target, name)
        self.sites.recount()
        for name in self.schedule.counters:
            setattr(self.schedule, name, run["counters"][name])
        self.history = History.from_json(run["history"], stopped=run["stopped"])
        self._refreshed_at = run["refreshed_at"]
        learn_from_file(network, file)
        if network.belief is not None:  # else the file was written in the middle of a run
            network.told = Told.of(self.history.snapshot(), self.x, self.y)

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
        exact = self.sites.posterior(self.network.prior)
        scale_tau = exact.rho.sqrt() + exact.tau.abs()
        gap_tau = ((self.network.marginal.tau - exact.tau).abs() / scale_tau).max()
        gap_rho = ((self.network.marginal.rho - exact.rho).abs() / exact.rho).max()
        return float(torch.maximum(gap_tau, gap_rho))

    def _run_epoch(self, epoch: int, bar: tqdm[Any]) -> None:
        started = time.perf_counter()
        tally = EpochTally()
        order = torch.randperm(len(self.members), generator=self.schedule.generator(epoch)).tolist()
        rows_of_x = [rows.to(self.x.device) for rows in self.members]  # here, so that no visit waits for it
        for index, following in zip(order, [*order[1:], None], strict=True):
            if following is not None:
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
        record = tally.record(epoch, len(self.x), 0.0)  # reads the device, so the clock below has waited for it
        seconds = time.perf_counter() - started
        self.history.records.append(replace(record, seconds=seconds))

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

    def _make_sites(self) -> Sites:
        network, config = self.network, self.config
        plan = plan_storage(
            len(self.members),
            network.n_weights,
            dtype=network.dtype,
            device=network.device,
            place=config.site_store,
            site_dtype=config.site_dtype,
        )
        self._rows = torch.arange(len(self.members), device=network.device)
        return Sites(
            len(self.members),
            network.n_weights,
            len(network.head.grid),
            plan=plan,
            dtype=network.dtype,
            device=network.device,
        )


def _identify(part: Tensor) -> dict[str, Any]:
    return {"shape": list(part.shape), "fingerprint": persistence.fingerprint(part)}


def _check_same(name: str, given: dict[str, Any], saved: dict[str, Any], path: str) -> None:
    """Raise unless these are the data of the saved run: a site belongs to its rows."""
    remedy = "pass the data the run was started with, in the same order and on the same scale; for other data start a "
    remedy += "new Trainer"
    if given["shape"] != saved["shape"]:
        raise ValueError(
            f"{name} does not belong to the run in {path!r}: expected shape {tuple(saved['shape'])}, got "
            f"{tuple(given['shape'])}; {remedy}"
        )
    if given["fingerprint"] != saved["fingerprint"]:
        raise ValueError(
            f"{name} does not belong to the run in {path!r}: the shape fits, but the values differ; {remedy}"
        )


def _config_of(run: dict[str, Any], path: str) -> TrainConfig:
    try:
        return TrainConfig(**run["config"])
    except TypeError as error:
        raise ValueError(f"{path!r} does not fit this version of bayesmp: {error}") from error


def _new_checkpoints(network: Network, folder: persistence.PathLike, every: int, keep: int) -> Checkpoints:
    """A folder for a new run; what would make its first checkpoint fail is said now."""
    checkpoints = Checkpoints(folder, every=every, keep=keep)
    if found := checkpoints.paths():
        raise ValueError(
            f"the folder {str(folder)!r} holds checkpoints already, {found[0].name} the newest: go on with them, "
            "Trainer.resume(folder, x, y), or choose another folder for a new run"
        )
    network.description()
    return checkpoints


def _find_device(given: str | torch.device | None, saved: str, path: str) -> torch.device:
    if given is None and saved == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"{path!r} was saved on a CUDA device, and there is none here; pass device='cpu' to go on there"
        )
    return torch.device(saved if given is None else given)


def fit(
    network: Network,
    x: Any,
    y: Any = None,
    *,
    epochs: int | str = "auto",
    max_epochs: int = MAX_EPOCHS,
    progress: bool | None = None,
    checkpoint: persistence.PathLike | None = None,
    every: int = EVERY,
    keep: int = KEEP,
    **options: Any,
) -> History:
    """Train a network on data: `Trainer(network, x, y, **options).run(epochs)`, for when the run need not go on later.

    With a folder as `checkpoint` the same call can be made again if it is killed, and goes on where the newest
    checkpoint is, to the same end, bit for bit on the CPU; if the run had ended, it returns at once. A folder with
    another network, other data or other settings is refused.

    Args:
        network: trained in place, from its prior.
        x, y: training data, tensors or arrays; or a torch Dataset (or DataLoader) of pairs as x alone.
        epochs: visits to each batch; "auto" trains until it is at rest (Trainer.run). Those of checkpoints count.
        max_epochs: bound for "auto".
        progress: show a progress bar; None shows it in a terminal only.
        checkpoint, every, keep: a folder for checkpoints, epochs between two, how many stay (Trainer).
        options: fields of TrainConfig: batch_size, schedule, seed, joint, site_store, site_dtype, data_store,
            debug.
    """
    if isinstance(epochs, str) and epochs != "auto":
        raise ValueError(f"epochs must be a positive integer or 'auto', got {epochs!r}")
    if epochs != "auto":
        checks.check_positive_int(epochs, "epochs")
    checks.check_positive_int(max_epochs, "max_epochs")
    if checkpoint is None:
        return Trainer(network, x, y, **options)._train(epochs, max_epochs, progress, stacklevel=3)
    trainer = _go_on(network, x, y, Checkpoints(checkpoint, every=every, keep=keep), epochs, options)
    return trainer._train_until(epochs, max_epochs, progress, stacklevel=3)


def _go_on(
    network: Network, x: Any, y: Any, checkpoints: Checkpoints, epochs: int | str, options: dict[str, Any]
) -> Trainer:
    """A run of this network at the newest checkpoint that is whole, or at the start; if the folder belongs to another
    run, an error, and the network is as it was."""
    before, run = network.learned(), network.run

    def read(path: Path) -> Trainer:
        network.reset()  # on purpose: no warning
        trainer = Trainer(network, x, y, **options)
        with persistence.opened(path, kinds=("run",)) as file:
            remedy = "; choose another folder for a new run"
            check_same_network(network, file, remedy)
            _check_same_config(trainer.config, file, remedy)
            trainer._take(file)
            if not isinstance(epochs, str) and trainer.n_epochs > epochs:
                raise ValueError(
                    f"{file.path!r} holds a run of {trainer.n_epochs} epochs, more than the {epochs} asked for{remedy}"
                )
        return trainer

    try:
        x, y = examples.as_arrays(x, y)
        trainer = checkpoints.read_newest(read, stacklevel=3)
        if trainer is None:
            network.description()  # says now if it cannot be saved
            checkpoints.make_folder()
            trainer = Trainer(network, x, y, **options)
    except BaseException:
        network.learn(before)
        network.run = run
        raise
    trainer.checkpoints = checkpoints
    return trainer


def _check_same_config(config: TrainConfig, file: persistence.SavedFile, remedy: str) -> None:
    """Raise unless a run in an open file has the settings that decide its result."""
    saved = _config_of(file.header["run"], file.path)
    names = [entry.name for entry in fields(TrainConfig) if entry.name not in NOT_IN_RESULT]
    values = [(name, getattr(saved, name), getattr(config, name)) for name in names]
    if different := [f"{name} was {then!r}, now {now!r}" for name, then, now in values if then != now]:
        raise ValueError(f"{file.path!r} holds a run with other settings: {', '.join(different)}{remedy}")
