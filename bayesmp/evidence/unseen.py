r"""What rows that took no part in training say about a belief.

The belief is about a network linearised around its means. It does not know that the features would be others without a
row, so it is too narrow, most of all where there is little noise; and rows that are left out by a formula look better
predicted than rows that were never seen. Rows that join late have never been seen. They judge two numbers:

    belief scale c: variances of outputs under the belief, times c, with which the unseen targets are most probable;
    miss scale k, for noisy targets: mean |z| of unseen targets over that of left-out ones, with
        z = miss / sqrt(c var + noise);
    miss scale k, for labels: how many times as far the outputs of a row must move without it as the formula says, for
        left-out labels to surprise as much as unseen ones.

Both have a prior, log-normal, because some dozen rows do not tell much. Where noise is given or the network is linear
in its weights, the belief is exact; nobody judges it, and both are 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.heads import Head
from bayesmp.messages.gaussian import Moments

SCALES = (0.25, 64.0, 100)  # candidates for c and, of labels, for k: least, most, and how many


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

    def nll(self, scale: float) -> Tensor:
        """Surprise at each target, but for a constant, with variances this many times as large."""
        var = scale * self.var + self.noise
        return 0.5 * (self.miss.square() / var + var.log())


@dataclass(frozen=True)
class JudgedLabels:
    """Labels (n,) beside what was predicted for them without them: means (n, k) and covariances (n, k, k) of outputs.

    Attributes:
        surprise: NLL (n,) of labels, given means and covariances of the outputs.
    """

    mean: Tensor
    covariance: Tensor
    y: Tensor
    surprise: Callable[[Tensor, Tensor, Tensor], Tensor]

    @classmethod
    def of(cls, head: Head, log_weights: Tensor, mean: Tensor, covariance: Tensor, y: Tensor) -> JudgedLabels:
        """For what a head predicts from such outputs."""

        def surprise(mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
            var = covariance.diagonal(dim1=1, dim2=2).clamp_min(torch.finfo(covariance.dtype).tiny)
            return -head.predict(Moments(mean, var), log_weights.to(mean), covariance).log_prob(y)

        return cls(mean.double(), covariance.double(), y, surprise)

    def some(self, rows: Tensor, n_each: int = 1) -> JudgedLabels:
        """Those of some of the rows."""
        at = rows.to(self.mean.device)
        return replace(self, mean=self.mean[at], covariance=self.covariance[at], y=self.y[at])

    @classmethod
    def joined(cls, parts: Sequence[JudgedLabels]) -> JudgedLabels:
        mean, covariance, y = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("mean", "covariance", "y")
        )
        return cls(mean, covariance, y, parts[0].surprise)

    def nll(self, scale: float) -> Tensor:
        """Surprise at each label, with covariances this many times as large."""
        return self.surprise(self.mean, scale * self.covariance, self.y).double()


def belief_scale(unseen: Judged | JudgedLabels, *, settings: Settings = SETTINGS) -> float:
    """c as above."""
    expected = settings.expected_scale_of_labels if isinstance(unseen, JudgedLabels) else settings.expected_scale
    scales = _candidates()
    cost = 0.5 * settings.belief_scale_precision * (scales / expected).log().square()
    for k, scale in enumerate(scales.tolist()):
        cost[k] += float(unseen.nll(scale).sum())
    return float(scales[cost.argmin()])


def _candidates() -> Tensor:
    return torch.logspace(math.log10(SCALES[0]), math.log10(SCALES[1]), SCALES[2], dtype=torch.float64)


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


def miss_scale_of_labels(
    unseen: JudgedLabels, seen: Tensor, left_out: JudgedLabels, scale: float, *, settings: Settings = SETTINGS
) -> float:
    """k as above, of the same labels, for a belief scale.

    Args:
        seen: means of the outputs with the rows in training, (n, k).
    """
    if len(unseen.y) < 2:
        return 1.0
    told, moved = unseen.nll(scale), left_out.mean - seen
    scales = _candidates()
    found = torch.stack([replace(left_out, mean=seen + k * moved).nll(scale) for k in scales.tolist()])
    means = found.mean(1)
    if not bool(means.isfinite().all()) or float(means.max() - means.min()) <= 0.0:
        return 1.0
    best = int((means - told.mean()).abs().argmin())
    side = min(max(best, 1), len(scales) - 2)
    slope = float(means[side + 1] - means[side - 1]) / float((scales[side + 1] / scales[side - 1]).log())
    variance = float((told - found[best]).var()) / len(told) / max(slope * slope, torch.finfo(torch.float64).tiny)
    share = 1.0 / (1.0 + settings.miss_scale_precision * variance)  # of log k
    return float(scales[best]) ** share
