r"""How much noise training may see.

Before anything is fitted all of y looks like noise, and with so much noise nothing would ever be fitted: a fixed point
of its own. So training begins with little noise and lets it grow from visit to visit; predictions are honest at once.
The limit of the head's constant, in its messages to the weights, is

    min(first * growth^visits * largest, cap)

with `largest` all of y taken as noise, until that is reached, and `cap` what leave-one-out scores of refreshes allow.
The same goes for labels, which are taken for clean at first.
"""

from __future__ import annotations

import math

from torch import Tensor

from bayesmp.heads import Head
from bayesmp.settings import Settings


class TrustedNoise:
    """The limit of a head's constant in training, and the scores that have been heard about it.

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
        """Start anew, with no score heard: those of other data cannot be compared.

        Args:
            largest: the constant if all that the targets say were noise; infinite sets no limit from the start.
        """
        self.largest = largest
        self.cap = math.inf
        self.best_score = self.best_constant = self.best_error = math.inf
        self.n_worse = 0

    def counters(self) -> dict[str, float]:
        """What a saved run keeps, by the names that its files have."""
        return {
            "constant_cap": self.cap,
            "best_score": self.best_score,
            "best_constant": self.best_constant,
            "best_error": self.best_error,
            "n_worse": self.n_worse,
        }

    def take_counters(self, saved: dict[str, float]) -> None:
        """Go on from these counters."""
        self.cap = saved["constant_cap"]
        self.best_score, self.best_constant = saved["best_score"], saved["best_constant"]
        self.best_error, self.n_worse = saved["best_error"], int(saved["n_worse"])

    def grow(self, n_visits: int) -> None:
        """Set the limit for this visit, counted from 1."""
        first, growth = self.settings.trust if self.head.has_noise else self.settings.label_trust
        share = first * growth ** min(n_visits, 10_000)
        limit = share * self.largest if share < 1.0 else math.inf
        self.limit.fill_(min(limit, self.cap))

    def trusting(self, belief: Tensor) -> Tensor:
        """A belief about the head's constant, as messages to weights are to see it: the part of it that they hear."""
        if not self._is_heard:
            return belief
        heard = self.head.heard
        grid = self.head.grid_like(belief)[heard]
        return belief[heard].masked_fill(grid > self.limit.maximum(grid[0]), -math.inf)

    def held_back(self, belief: Tensor) -> float | None:
        """The constant that training hears, if the limit has not had the visits yet to grow to what it may be."""
        is_growing = self._is_heard and float(self.limit) < self.cap
        return float(self.head.in_training(self.trusting(belief))) if is_growing else None

    def hear_score(self, score: float, error: float, belief: Tensor) -> None:
        """Take the leave-one-out score of a refresh, and the error in training: more noise must not make it worse.

        Little data can be explained as noise alone, and a network trained with so much of it stays there. Where the
        score gets worse while noise and error grow, training goes back to the noise of the best score, for good. If
        the error falls it is not too much noise but too little: noise is learned by heart. The best score was then one
        on the way there, which its noise would not bring back, and the search for it begins anew. Labels have no such
        trap, and as long as they are taken for clean, scores are better than they should be.

        Args:
            belief: about the constant, with which training came to this score.
        """
        if not (self._is_heard and self.head.has_noise):
            return
        constant = float(self.head.in_training(self.trusting(belief)))
        is_high = score > self.best_score + self.settings.worse_score
        if score < self.best_score or (is_high and error < self.best_error):
            self.best_score, self.best_constant, self.best_error, self.n_worse = score, constant, error, 0
        elif is_high and constant > self.best_constant and error > self.best_error:
            self.n_worse += 1
            if self.n_worse >= self.settings.worse_refreshes:
                self.cap, self.n_worse = self.best_constant, 0
        else:
            self.n_worse = 0

    @property
    def _is_heard(self) -> bool:
        """Whether messages to the outputs depend on a constant that is learned."""
        return self.head.is_learned and self.head.is_heard_in_training
