"""A whole training run in one call, which can be made again if it is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bayesmp.basics import checks, examples, persistence
from bayesmp.network.files import check_same_network
from bayesmp.network.network import Network, check_is_network
from bayesmp.training import run_files
from bayesmp.training.checkpoints import EVERY, KEEP, Checkpoints
from bayesmp.training.history import History
from bayesmp.training.trainer import MAX_EPOCHS, Trainer


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
        options: groups and sample_weight (Trainer), and fields of TrainConfig: batch_size, schedule, seed, joint,
            learn_prior, site_store, site_dtype, data_store, debug.
    """
    check_is_network(network)
    epochs = checks.check_epochs(epochs, least=1)
    checks.check_positive_int(max_epochs, "max_epochs")
    if checkpoint is None:
        return Trainer(network, x, y, **options).run(epochs, max_epochs=max_epochs, progress=progress)
    trainer = _go_on(network, x, y, Checkpoints(checkpoint, every=every, keep=keep), epochs, options)
    return trainer.run_until(epochs, max_epochs=max_epochs, progress=progress)


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
            run_files.check_same_config(trainer.config, file, remedy)
            given = trainer.counted()
            trainer.take(file)
            if not torch.equal(given, trainer.counted()):
                raise ValueError(f"{file.path!r} holds a run with another sample_weight{remedy}")
            if not isinstance(epochs, str) and trainer.n_epochs > epochs:
                raise ValueError(
                    f"{file.path!r} holds a run of {trainer.n_epochs} epochs, more than the {epochs} asked for{remedy}"
                )
        return trainer

    try:
        x, y = examples.as_arrays(x, y)
        trainer = checkpoints.read_newest(read)
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
