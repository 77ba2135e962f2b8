"""The best state of a run is kept, and what diverges is taken back to it.

An epoch diverges if its numbers are not finite, or if its training score is far worse than the best one so far and
than one guess for all; up to that, errors may rise for a good reason: training hears of more noise. The run then goes
on from the state that was kept, with steps half as long, which grow again in epochs that are good. An epoch that comes
again just so with shorter steps stands. Epochs are counted on, and the record of one that was taken back says so. At
its end a run goes back to the best state, too, if it is much worse.

States are kept at refreshes of the belief, where leave-one-out scores judge the state as it is. Early ones may be far
too good: until visits have been many and all noise is heard, the latest state is kept that has not become far worse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmp.basics.persistence import SavedFile
from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.basics.typed import Count, Measured, PositiveFloat
from bayesmp.messages.regime import Regime
from bayesmp.network.files import LEARNED_TENSORS
from bayesmp.training.constant_guess import constant_nll
from bayesmp.training.history import EpochRecord
from bayesmp.training.run import Run

LEAP = 1.0  # nats by which a score is far worse than another
SHORTER = 0.5  # factor on steps when an epoch is taken back
SAME = 0.1  # nats by which a score must differ with shorter steps, else the steps are not what is wrong
GROWTH = 1.05  # factor on steps in an epoch that is good, until they are whole again
NOT_COMPUTED = (ArithmeticError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]  # what a refresh at a broken state ends with


@dataclass(frozen=True, eq=False)
class KeptState:
    """All that visits change in a run, as it was after an epoch.

    Attributes:
        epoch: after which it was kept.
        scores: leave-one-out NLL and NLL in training then.
        is_trusted: whether visits were many enough then for the leave-one-out score to be believed.
        counters, regime, prior_width: of the schedule, and of the network.
        tensors: copies of the run's and the network's.
    """

    epoch: int
    scores: tuple[float, float]
    is_trusted: bool
    counters: dict[str, float]
    regime: Regime
    prior_width: float
    tensors: dict[str, Tensor]

    def description(self) -> dict[str, Any]:
        """What a file says about it beside the tensors, as JSON holds it."""
        return {
            "epoch": self.epoch,
            "scores": list(self.scores),
            "is_trusted": self.is_trusted,
            "counters": self.counters,
            "regime": self.regime.to_json(),
            "prior_width": self.prior_width,
        }


def tensors_of(run: Run) -> dict[str, Tensor]:
    """The tensors that visits change, not copied: the run's and the network's."""
    own = run.network.state()
    return {
        **{f"run.{name}": part for name, part in run.state().items()},
        **{name: own[name] for name in LEARNED_TENSORS},
    }


# --- in training -----------------------------------------------------------------------------------------------------


def has_diverged(run: Run) -> bool:
    """Whether the last epoch's numbers are not finite, or far worse in training than those of the best epoch so far."""
    last, marginal = run.history[-1], run.network.marginal
    is_finite = all(map(math.isfinite, last.metrics.values())) and all(
        bool(part.isfinite().all()) for part in (marginal.tau, marginal.rho)
    )
    if not is_finite:
        return True
    records = [record for record in run.history if record.epoch > run.history.changed_at]
    anew = [k for k in range(1, len(records)) if _comes_again(*records[k - 1 : k + 1])]
    records = records[anew[-1] :] if anew else records
    scores = [training_score(record) for record in records[:-1] if not record.is_taken_back]
    best = min(scores, default=math.inf)
    return training_score(last) > max(best, _score_of_one_guess(run)) + LEAP


def _comes_again(before: EpochRecord, record: EpochRecord) -> bool:
    """Whether an epoch was taken back, and came again with steps half as long. Visits are scored before their steps, so
    the state that the run went back to may be what is bad: taken back each time, this epoch would come for ever.
    """
    is_again = before.is_taken_back and not record.is_taken_back
    return is_again and abs(training_score(record) - training_score(before)) < SAME


def training_score(record: EpochRecord) -> float:
    """Of an epoch, in nats: NLL of labels; of noisy targets, but for a constant, NLL with as much noise as there is
    error, whatever noise is believed in meanwhile.
    """
    rmse = record.metrics.get("rmse")
    return record.metrics["nll"] if rmse is None else math.log(max(rmse, math.ulp(0.0)))


def _score_of_one_guess(run: Run) -> float:
    """The same of the targets' mean, or of the shares of the classes."""
    if not run.data.y.is_floating_point():
        return constant_nll(run)
    return 0.5 * math.log(max(float(run.data.y.double().var(0, correction=0).mean()), math.ulp(0.0)))


def keep_if_best(run: Run, kept: KeptState | None, *, settings: Settings = SETTINGS) -> KeptState | None:
    """What to go back to, asked after a refresh: this state, or what was kept."""
    record = run.history[-1]
    score, in_training = record.loo["nll"], record.metrics["nll"]
    is_early = (run.n_epochs - run.history.changed_at) * len(run.data.members) < settings.trusted_visits
    is_cut = record.loo["clipped"] > settings.most_clipped
    is_trusted = not (is_early or is_cut or run.schedule.held_back() is not None)
    if not math.isfinite(score) or (kept is not None and not _is_better(score, in_training, is_trusted, kept)):
        return kept
    tensors = tensors_of(run)
    if sum(part.numel() for part in tensors.values()) > settings.kept_numbers:
        return None
    copies = {name: part.clone() for name, part in tensors.items()}
    network, counters = run.network, dict(run.schedule.counters())
    scores = score, in_training
    return KeptState(run.n_epochs, scores, is_trusted, counters, network.regime, network.prior_width, copies)


def _is_better(score: float, in_training: float, is_trusted: bool, kept: KeptState) -> bool:
    if kept.is_trusted:
        return is_trusted and score < kept.scores[0]
    return score <= kept.scores[0] + LEAP or in_training <= kept.scores[1]


# --- at the end ------------------------------------------------------------------------------------------------------


def tell_taken_back(run: Run) -> str:
    """How many epochs were taken back, to be added to why a run has ended."""
    n = sum(record.is_taken_back for record in run.history if record.epoch > run.history.changed_at)
    return f"; {n} epochs diverged and were taken back" if n else ""


def ends_worse(run: Run, kept: KeptState, *, settings: Settings = SETTINGS) -> bool:
    """Whether a run's last epoch is much worse than the best state: left out and in training, because a network that
    learns noise by heart is worse left out alone; or far worse left out.
    """
    last = run.history[-1]
    if not kept.is_trusted or last.is_taken_back:
        return False
    score, in_training = last.loo.get("nll", math.nan), last.metrics["nll"]
    is_worse = all(
        not now <= before + settings.worse_end for now, before in zip((score, in_training), kept.scores, strict=True)
    )
    return is_worse or not score <= kept.scores[0] + LEAP


@torch.inference_mode()
def go_back(run: Run, kept: KeptState) -> None:
    """Take the state that was kept; epochs are counted on."""
    for name, target in tensors_of(run).items():
        target.copy_(kept.tensors[name])
    run.network.regime = kept.regime
    run.network.widen_prior(kept.prior_width, run.network.relevances)
    run.sites.recount()
    run.schedule.resume(kept.counters)


@dataclass(frozen=True)
class KeptHeader:
    """What `KeptState.description` says."""

    epoch: Count
    scores: tuple[Measured, Measured]
    is_trusted: bool
    counters: dict[str, Any]
    regime: Regime
    prior_width: PositiveFloat


def from_file(run: Run, file: SavedFile, header: KeptHeader | None) -> KeptState | None:
    """What the run in an open file may go back to; `run` is filled with the rest of it."""
    if header is None:
        return None
    if header.counters.keys() != run.schedule.counters().keys() or header.epoch > run.n_epochs:
        raise ValueError("best_state is of another run")
    own = tensors_of(run).items()
    tensors = {name: file.like(like, f"best_state.{name}", is_finite=False).to(like.device) for name, like in own}
    numbers = header.epoch, header.scores, header.is_trusted, header.counters, header.regime, header.prior_width
    return KeptState(*numbers, tensors)
