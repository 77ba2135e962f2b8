"""What a run is to those who judge it, e.g. whether it has diverged: a Trainer, by these of its public names."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from bayesmp.network.network import Network
from bayesmp.sites.sites import Sites
from bayesmp.training.history import History
from bayesmp.training.run_data import RunData
from bayesmp.training.schedules import Schedule


class Run(Protocol):
    """A training run between two epochs.

    Attributes:
        network, data, history: what is trained, on what, and how it went.
        sites, schedule: one message per batch, and how visits replace it.
    """

    network: Network[Any]
    data: RunData
    history: History
    sites: Sites
    schedule: Schedule

    @property
    def n_epochs(self) -> int:
        """Epochs run so far."""

    def state(self) -> dict[str, Tensor]:
        """The tensors beside the network's that visits change."""
