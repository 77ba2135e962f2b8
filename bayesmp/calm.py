"""A run's state at its best refresh of late, to go back to if it ends in a jump.

Small networks with little noise may jump: within an epoch errors are many times as large, and tens of epochs repair it.
A run that ends by itself had better not end there. Jumps are told from other rises of the leave-one-out score by the
score in training, which rises with it; a network that learns noise by heart fits its training data better and better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmp.network_files import LEARNED_TENSORS
from bayesmp.persistence import SavedFile
from bayesmp.regime import Regime
from bayesmp.run import Run
from bayesmp.settings import SETTINGS, Settings
from bayesmp.stopping import refreshes


@dataclass(frozen=True, eq=False)
class CalmState:
    """All that visits change in a run, as it was after an epoch.

    Attributes:
        epoch: after which it was kept.
        scores: leave-one-out NLL and NLL in training then.
        counters, regime, prior_width: of the schedule, and of the network.
        tensors: copies of the run's and the network's.
    """

    epoch: int
    scores: tuple[float, float]
    counters: dict[str, float]
    regime: Regime
    prior_width: float
    tensors: dict[str, Tensor]

    def description(self) -> dict[str, Any]:
        """What a file says about it beside the tensors, as JSON holds it."""
        return {
            "epoch": self.epoch,
            "scores": list(self.scores),
            "counters": self.counters,
            "regime": self.regime.to_json(),
            "prior_width": self.prior_width,
        }


def tensors_of(run: Run) -> dict[str, Tensor]:
    """The tensors that visits change, not copied."""
    own = run.network.state()
    return {
        **{f"run.{name}": part for name, part in run._state().items()},
        **{name: own[name] for name in LEARNED_TENSORS},
    }


def keep_if_best(run: Run, kept: CalmState | None, *, settings: Settings = SETTINGS) -> CalmState | None:
    """What to go back to, asked after a refresh: this state, if it is the best of the last ones, or what was kept.

    Not before visits have been many and all noise is heard: early scores may be far too good (schedules/).
    """
    record = run.history[-1]
    if kept is not None and not _is_recent(kept, run, settings):
        kept = None
    is_early = (run.n_epochs - run._changed_at) * len(run.members) < settings.calm_visits
    if is_early or run.schedule.held_back() is not None or record.loo["clipped"] > settings.worse_clipped:
        return kept
    if kept is not None and kept.scores[0] <= record.loo["nll"]:
        return kept
    tensors = tensors_of(run)
    if sum(part.numel() for part in tensors.values()) > settings.calm_numbers:
        return None
    scores = record.loo["nll"], record.metrics["nll"]
    copies = {name: part.clone() for name, part in tensors.items()}
    network, counters = run.network, dict(run.schedule.counters())
    return CalmState(run.n_epochs, scores, counters, network.regime, network.prior_width, copies)


def _is_recent(kept: CalmState, run: Run, settings: Settings) -> bool:
    """Whether it is among the last refreshes, of these data."""
    last = [point.epoch for point in refreshes(run.history, since=run._changed_at)][-settings.calm_refreshes :]
    return kept.epoch in last


def ends_in_jump(run: Run, kept: CalmState, *, settings: Settings = SETTINGS) -> bool:
    """Whether a run's last epoch is much worse than what was kept, left out and in training."""
    last = run.history[-1]
    if not _is_recent(kept, run, settings):
        return False
    return all(
        score > before + settings.calm_loss
        for score, before in zip((last.loo["nll"], last.metrics["nll"]), kept.scores, strict=True)
    )


@torch.inference_mode()
def go_back(run: Run, kept: CalmState) -> None:
    """Take the state that was kept; the epochs since are gone from the history, too."""
    for name, target in tensors_of(run).items():
        target.copy_(kept.tensors[name])
    run.network.regime = kept.regime
    run.network.widen_prior(kept.prior_width)
    run.sites.recount()
    run.schedule.resume(kept.counters)
    del run.history.records[kept.epoch :]
    run._refreshed_at = kept.epoch


def from_file(run: Run, file: SavedFile) -> CalmState | None:
    """What the run in an open file may go back to; `run` is filled with the rest of it."""
    found = file.header["run"].get("calm")
    if found is None:
        return None
    tensors = {}
    for name, like in tensors_of(run).items():
        tensors[name] = torch.empty_like(like)
        file.fill(tensors[name], f"calm.{name}")
    regime = Regime(**found["regime"])
    scores, width = tuple(found["scores"]), found.get("prior_width", 1.0)
    return CalmState(found["epoch"], scores, found["counters"], regime, width, tensors)
