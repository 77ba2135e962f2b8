"""When a descent of the objective, and with it training, is at rest; training by messages: training/stopping.py."""

from __future__ import annotations

from collections.abc import Sequence

from bayesmp.basics.settings import SETTINGS, Settings

FEWEST = 16  # values before which nothing is said of another doubling
FEWEST_OF_RESTED = 6  # the same where a part of the data, or all, has been at rest before


def falls_no_more(
    values: Sequence[float], n_targets: int, *, fewest: int = FEWEST, settings: Settings = SETTINGS
) -> bool:
    """Whether as many steps again would hardly lower an objective, judged by what the last half of them brought.

    Args:
        values: after each step, the last one last.
        n_targets: numbers that were to be explained; the objective is a sum over them.
        fewest: values that tell nothing yet; few where a part of the data has been at rest before.
    """
    if len(values) < fewest:
        return False
    whole, per_target = settings.rest_fall
    half = len(values) // 2
    return min(values[:half]) - min(values) < whole + per_target * n_targets
