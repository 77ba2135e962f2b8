r"""How much noise training may see.

Before anything is fitted all of y looks like noise, and with so much noise nothing would ever be fitted: a fixed point
of its own. So training begins with little noise and lets it grow from visit to visit; predictions are honest at once.
The limit of the head's constant, in its messages to the weights, is

    first * growth^visits * largest

with `largest` all of y taken as noise, until that is reached. The same goes for labels, which are taken for clean at
first.
"""

from __future__ import annotations

import math

from torch import Tensor

from bayesmp.basics.settings import Settings
from bayesmp.heads import Head


class TrustedNoise:
    """The limit of a head's constant in training.

    A head whose messages know no constant that is learned has none: its beliefs stay as they are.

    Args:
        head: whose constant it is.
        like: a tensor of the dtype and device to use.
        settings: the tuned constants.
    """

    def __init__(self, head: Head, *, like: Tensor, settings: Settings) -> None:
        self.head = head
        self.settings = settings
        self.limit = like.new_full((), math.inf)  # changed in place, because recorded visits read it
        self.begin(math.inf)

    def begin(self, largest: float) -> None:
        """Start anew.

        Args:
            largest: the constant if all that the targets say were noise; infinite sets no limit from the start.
        """
        self.largest = largest

    def grow(self, n_visits: int) -> None:
        """Set the limit for this visit, counted from 1."""
        first, growth = self.settings.trust if self.head.has_noise else self.settings.label_trust
        share = first * growth ** min(n_visits, 10_000)
        self.limit.fill_(share * self.largest if share < 1.0 else math.inf)

    def trusting(self, belief: Tensor) -> Tensor:
        """A belief about the head's constant, as messages to weights are to see it: the part of it that they hear."""
        if not self._is_heard:
            return belief
        heard = self.head.heard
        grid = self.head.grid_like(belief)[heard]
        return belief[heard].masked_fill(grid > self.limit.maximum(grid[0]), -math.inf)

    def held_back(self, belief: Tensor) -> float | None:
        """The constant that training hears, if the limit has not had the visits yet to grow to what it may be."""
        is_growing = self._is_heard and float(self.limit) < math.inf
        return float(self.head.in_training(self.trusting(belief))) if is_growing else None

    @property
    def _is_heard(self) -> bool:
        """Whether messages to the outputs depend on a constant that is learned."""
        return self.head.is_learned and self.head.is_heard_in_training
