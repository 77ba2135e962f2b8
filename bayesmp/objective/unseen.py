r"""What rows that took no part in training say about a belief.

The belief is about a network linearised around its means. It does not know that the features would be others without a
row, so it is too narrow, most of all where there is little noise; and rows that are left out by a formula look better
predicted than rows that were never seen. Rows that join late have never been seen. They judge two numbers:

    belief scale c: variances of outputs under the belief, times c, with which the unseen targets are most probable,
        miss ~ N(0, c var + noise);
    miss scale k: mean |z| of unseen targets over that of left-out ones, z = miss / sqrt(c var + noise).

Both have a prior, log-normal, because some dozen rows do not tell much. Where noise is given or the network is linear
in its weights, the belief is exact; nobody judges it, and both are 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.settings import SETTINGS, Settings

SCALES = (0.25, 64.0, 200)  # candidates for c: least, most, and how many


@dataclass(frozen=True)
class Judged:
    """Targets beside what was predicted for them without them: how far off, variance of the outputs, and noise; one
    entry per target.
    """

    miss: Tensor
    var: Tensor
    noise: Tensor

    @classmethod
    def of(cls, miss: Tensor, var: Tensor, noise: float) -> Judged:
        """For targets of one noise."""
        miss, var = miss.flatten().double(), var.flatten().double().to(miss.device)
        return cls(miss, var, torch.full_like(miss, noise))

    def some(self, rows: Tensor, n_each: int) -> Judged:
        """Those of some of the rows, which have so many targets each."""
        at = rows.repeat_interleave(n_each).to(self.miss.device)
        return Judged(self.miss[at], self.var[at], self.noise[at])

    @classmethod
    def joined(cls, parts: Sequence[Judged]) -> Judged:
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("miss", "var", "noise")))


def belief_scale(unseen: Judged, *, settings: Settings = SETTINGS) -> float:
    """c as above."""
    expected, precision = settings.belief_scale_prior
    candidates = torch.logspace(math.log10(SCALES[0]), math.log10(SCALES[1]), SCALES[2], dtype=torch.float64)
    cost = 0.5 * precision * (candidates / expected).log().square()
    for k, scale in enumerate(candidates.tolist()):
        var = scale * unseen.var + unseen.noise
        cost[k] += float(0.5 * (unseen.miss.square() / var + var.log()).sum())
    return float(candidates[cost.argmin()])


def miss_scale(unseen: Judged, left_out: Judged, scale: float, *, settings: Settings = SETTINGS) -> float:
    """k as above, of the same targets, for a belief scale."""
    sizes = [(part.miss.abs() / (scale * part.var + part.noise).sqrt()) for part in (unseen, left_out)]
    means = [float(part.mean()) for part in sizes]
    if not (min(means) > 0 and all(map(math.isfinite, means))):
        return 1.0
    differences = sizes[0] / means[0] - sizes[1] / means[1]
    variance = float(differences.square().mean()) / len(differences)  # of log k
    share = 1.0 / (1.0 + settings.miss_scale_precision * variance)
    return (means[0] / means[1]) ** share
