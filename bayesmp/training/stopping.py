"""When training by messages is at rest: the leave-one-out score no longer falls, and the means no longer move, or to no
effect. Where there is an objective, evidence/rest.py says it; `Trainer` asks one of the two. Their limits: the `rest_`
settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bayesmp.basics.settings import SETTINGS, Settings

LONG = 500  # epochs after which a score that hardly moves is no plateau; one such lasted until epoch 240
SLOW = 0.1  # nats between the last two refreshes; three times the epochs then change new rows' NLL by a few hundredths


class Record(Protocol):
    """What a history tells of an epoch, as history.EpochRecord has it."""

    @property
    def epoch(self) -> int: ...

    @property
    def loo(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Progress:
    """What a refresh of the belief says about progress.

    Attributes:
        epoch: after which it was made.
        score: leave-one-out NLL in nats.
        moved: root mean square change of the weights' means since the refresh before, in posterior std.
    """

    epoch: int
    score: float
    moved: float


def refreshes(records: Iterable[Record], *, since: int = 0) -> list[Progress]:
    """The refreshes of a history, those after the epoch `since`."""
    return [
        Progress(record.epoch, record.loo["nll"], record.loo["moved"])
        for record in records
        if "moved" in record.loo and record.epoch > since
    ]


def tell_unrest(passed: Sequence[Progress], remedy: str) -> str:
    """What still moved when a run met its limit, in words and figures, and what to do if it matters."""
    if len(passed) < 2:
        return f"the leave-one-out score or the means still moved; {remedy}"
    before, last = passed[-2:]
    figures = (
        f"from epoch {before.epoch} to {last.epoch} the leave-one-out NLL went from {before.score:.3g} to "
        f"{last.score:.3g}, and the means moved by {last.moved:.2g} of their std"
    )
    if abs(before.score - last.score) < SLOW and last.epoch >= LONG:
        return f"{figures}. That is slow progress and no fault: the network can be used; to let it go on, {remedy}"
    return f"{figures}, so there may be more to learn; {remedy}"


def at_rest(passed: Sequence[Progress], n_visits: int, settings: Settings = SETTINGS) -> bool:
    """Whether the last `rest_refreshes` refreshes brought no progress and the means have stopped moving; or the last
    ones of `rest_anyway`, however the means move.

    Refreshes lie a constant factor of epochs apart, so this asks for no gain while training went on for about twice as
    long; for five times as long, where the means still move. In classifiers of few inputs and many units they never
    stop, and change nothing for the better.
    """
    is_still = len(passed) > 0 and passed[-1].moved < settings.rest_move
    if is_still and _brings_nothing(
        passed, n_visits, settings.rest_refreshes, settings.rest_visits, settings.rest_gain
    ):
        return True
    return _brings_nothing(passed, n_visits, *settings.rest_anyway, settings.rest_gain)


def _brings_nothing(passed: Sequence[Progress], n_visits: int, n: int, least_visits: int, gain: float) -> bool:
    """Whether the last n refreshes brought no better score, after enough visits.

    A score that rises is no progress, either: longer training would not help; but a run does not end in a jump.
    """
    if n_visits < least_visits or len(passed) <= n:
        return False
    best_before = min(point.score for point in passed[:-n])
    best_since = min(point.score for point in passed[-n:])
    last, previous = passed[-1].score, passed[-2].score
    is_jump = last > best_since + gain and previous < best_before + gain  # the next epochs will repair it
    return best_since > best_before - gain and not is_jump


def refresh_due(epoch: int, last: int, settings: Settings = SETTINGS) -> bool:
    """Whether the belief is to be refreshed after this epoch, the last time having been after epoch `last` (0: never):
    epochs 1, 2, 3, 4, 5, 6, 8, 10, 13, ... if visits pay for all of them (budget.py), else later.
    """
    return epoch >= max(last + 1, round(last * settings.refresh_growth))
