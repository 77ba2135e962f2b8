"""Predictions of several networks as one: each of them is right with the same probability."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import torch
from torch import Tensor

from bayesmp.basics import checks
from bayesmp.heads.classification import ClassPrediction
from bayesmp.heads.regression_prediction import LocalNoise, RegressionPrediction, Scaling, changed, reach_of
from bayesmp.messages.noise import noise_mixture

HALVINGS = 60  # of the bracket of a quantile, down to rounding


@overload
def mixture(predictions: Iterable[ClassPrediction]) -> ClassPrediction: ...


@overload
def mixture(predictions: Iterable[RegressionPrediction]) -> RegressionMixture: ...


def mixture(
    predictions: Iterable[ClassPrediction] | Iterable[RegressionPrediction],
) -> ClassPrediction | RegressionMixture:
    r"""The prediction of an ensemble: `bmp.mixture([net.predict(x) for net in networks])`.

    Each member is taken to be right with the same probability. What members do not know themselves and what they do not
    agree on add up:

        epistemic_var = mean of epistemic_var + variance of mean
        epistemic     = mean of epistemic + (entropy of the mean of probs - mean of entropy)      (class labels)

    Class probabilities are the mean of those of the members. A regression stays a mixture of their distributions:
    `interval`, `quantile`, `cdf`, `log_prob` and `sample` are exact, `noise_var` is the mean of theirs.

    Args:
        predictions: of the same rows, as `network.predict` gives them; of class labels all, or of real targets all.

    Returns:
        A ClassPrediction, or a RegressionPrediction that keeps its `members`.
    """
    members = _check_members(predictions)
    if isinstance(members[0], ClassPrediction):
        return _mix_classes(members)
    return RegressionMixture.of(members)


@dataclass(frozen=True)
class RegressionMixture(RegressionPrediction):
    """Predictive distributions of an ensemble, one per row and output: the members' in equal shares.

    Attributes:
        mean, epistemic_var, noise_var: as of every prediction; `epistemic_var` holds what members do not agree on.
        noise_spread, local_noise: of the noise of all members together, as one log-normal variance; for looking at.
        members: the predictions it was made of.
    """

    members: tuple[RegressionPrediction, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, members: Sequence[RegressionPrediction]) -> RegressionMixture:
        """The mixture of predictions of one shape."""
        means = torch.stack([member.mean for member in members])
        var = torch.stack([member.epistemic_var for member in members]).mean(0) + means.var(0, correction=0)
        noise, local = _noise_of_all([LocalNoise(one.noise_var, one.noise_spread) for one in members], means), None
        if any(member.local_noise is not None for member in members):
            mean = means.mean(0)
            local = _noise_of_all([member.noise for member in members], means).map(lambda part: part.expand_as(mean))
        return cls(means.mean(0), var, noise.var, noise.spread, local, members=tuple(members))

    @property
    def is_gaussian(self) -> bool:
        return False

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        level = checks.check_probability(level, "level")
        tail = 0.5 - 0.5 * level
        return _end(self, tail, is_upper=False), _end(self, tail, is_upper=True)

    def quantile(self, p: float) -> Tensor:
        p = checks.check_probability(p, "p")
        return _end(self, min(p, 1.0 - p), is_upper=p > 0.5)

    def log_prob(self, y: Any) -> Tensor:
        y = self.check_targets(y)
        each = torch.stack([member.log_prob(y) for member in self.members])
        return torch.logsumexp(each, 0) - math.log(len(self.members))

    def cdf(self, y: Any) -> Tensor:
        y = self.check_targets(y)
        return torch.stack([member.cdf(y) for member in self.members]).mean(0)

    def sample(self, n: int = 1, *, seed: int = 0) -> Tensor:
        """n draws (n, *mean.shape) of new targets, each independent of the others, and each of a member by chance."""
        n = checks.check_positive_int(n, "n")
        generator = torch.Generator().manual_seed(seed)
        seeds = torch.randint(2**62, (len(self.members),), generator=generator).tolist()
        which = torch.randint(len(self.members), (n, *self.mean.shape), generator=generator).to(self.mean.device)
        draws = torch.zeros((n, *self.mean.shape), dtype=self.mean.dtype, device=self.mean.device)
        for k, member in enumerate(self.members):
            draws = torch.where(which == k, member.sample(n, seed=seeds[k]), draws)
        return draws

    def gaussians(self) -> tuple[Tensor, Tensor, Tensor]:
        means, variances, shares = zip(*(member.gaussians() for member in self.members), strict=True)
        return torch.cat(means, -1), torch.cat(variances, -1), torch.cat(shares) / len(self.members)

    def undo(self, scaling: Scaling) -> RegressionMixture:
        return RegressionMixture.of([member.undo(scaling) for member in self.members])

    def flat(self) -> RegressionMixture:
        return RegressionMixture.of([member.flat() for member in self.members])

    def __getitem__(self, rows: Any) -> RegressionMixture:
        return RegressionMixture.of([member[rows] for member in self.members])

    @staticmethod
    def concatenate(parts: list[Any]) -> RegressionMixture:
        same = zip(*(part.members for part in parts), strict=True)
        return RegressionMixture.of([type(members[0]).concatenate(list(members)) for members in same])


def _mix_classes(members: Sequence[ClassPrediction]) -> ClassPrediction:
    """Entropies in double precision: what members agree on must cancel."""
    wide = [replace(member, probs=member.probs.double(), epistemic=member.epistemic.double()) for member in members]
    means = torch.stack([member.mean for member in members])
    var = torch.stack([member.epistemic_var for member in members]).mean(0) + means.var(0, correction=0)
    aleatoric = torch.stack([member.aleatoric for member in wide]).mean(0)
    mixed = ClassPrediction(torch.stack([member.probs for member in wide]).mean(0), means.mean(0), var, aleatoric)
    epistemic = (mixed.entropy - aleatoric).clamp_min(0.0)
    return replace(mixed, probs=mixed.probs.to(means), epistemic=epistemic.to(means))


def _noise_of_all(noises: Sequence[LocalNoise], like: Tensor) -> LocalNoise:
    """The mean variance, and as the spread the standard deviation of the variance's logarithm: within members, and
    between them.
    """
    variances, middles, squares = [], [], []
    for noise in noises:
        var, spread = noise.var.to(like), noise.spread.to(like)
        ratios, shares = noise_mixture(spread)
        middle = var.log() + (shares * ratios.log()).sum(-1)
        variances.append(var)
        middles.append(middle)
        squares.append(spread.square().expand_as(middle))
    between = torch.stack(torch.broadcast_tensors(*middles)).var(0, correction=0)
    within = torch.stack(torch.broadcast_tensors(*squares)).mean(0)
    return LocalNoise(torch.stack(torch.broadcast_tensors(*variances)).mean(0), (within + between).sqrt())


def _end(prediction: RegressionPrediction, tail: float, *, is_upper: bool) -> Tensor:
    """Where the upper or the lower tail of this probability, at most 1/2, begins.

    Note:
        That of a mixture lies between those of its members, and halving this bracket cannot fail. In double precision,
        by the probability of the tail itself, which does not cancel.
    """
    if not isinstance(prediction, RegressionMixture):
        reach = reach_of(prediction, tail)
        return prediction.mean + reach if is_upper else prediction.mean - reach
    members = [_in_double(member) for member in prediction.members]
    ends = torch.stack([_end(member, tail, is_upper=is_upper) for member in members])
    low, high = ends.amin(0), ends.amax(0)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        beyond = torch.stack([_beyond(member, middle, is_upper=is_upper) for member in members]).mean(0)
        is_outside = (beyond < tail) if is_upper else (beyond > tail)  # the end lies below the middle
        low, high = torch.where(is_outside, low, middle), torch.where(is_outside, middle, high)
    return (0.5 * (low + high)).to(prediction.mean)


def _beyond(prediction: RegressionPrediction, y: Tensor, *, is_upper: bool) -> Tensor:
    """Probability that a target lies above y, or below it; single predictions are symmetric around their means."""
    if isinstance(prediction, RegressionMixture):
        return torch.stack([_beyond(member, y, is_upper=is_upper) for member in prediction.members]).mean(0)
    return prediction.cdf(2.0 * prediction.mean - y if is_upper else y)


def _in_double(prediction: RegressionPrediction) -> RegressionPrediction:
    if isinstance(prediction, RegressionMixture):
        return RegressionMixture.of([_in_double(member) for member in prediction.members])
    wide = changed(prediction, torch.Tensor.double)
    return replace(wide, noise_var=prediction.noise_var.double(), noise_spread=prediction.noise_spread.double())


def _check_members(predictions: Any) -> list[Any]:
    """The predictions as a list, or an error that says which does not fit."""
    if isinstance(predictions, (ClassPrediction, RegressionPrediction)):
        raise TypeError("mixture takes a list of predictions, one per network, got a single one")
    members = list(predictions)
    if len(members) == 0:
        raise ValueError("mixture needs at least one prediction, got none")
    for k, member in enumerate(members):
        if not isinstance(member, (ClassPrediction, RegressionPrediction)):
            raise TypeError(
                "mixture takes predictions, as [network.predict(x) for network in networks], got "
                f"{type(member).__name__} in place {k}"
            )
    first, is_classes = members[0], isinstance(members[0], ClassPrediction)
    for k, member in enumerate(members[1:], start=1):
        if isinstance(member, ClassPrediction) != is_classes:
            raise TypeError(f"predictions must all be of class labels or all of real targets; 0 and {k} are not alike")
        if member.mean.shape != first.mean.shape:
            raise ValueError(
                f"predictions must be of the same rows and outputs: 0 has shape {tuple(first.mean.shape)}, {k} has "
                f"{tuple(member.mean.shape)}; predict the same x with networks for the same targets"
            )
        if member.mean.device != first.mean.device:
            raise ValueError(
                f"predictions must be on one device: 0 is on {first.mean.device}, {k} on {member.mean.device}; move "
                "the networks with .cuda() or .cpu() before they predict"
            )
        if member.mean.dtype != first.mean.dtype:
            raise ValueError(
                f"predictions must have one dtype: 0 has {first.mean.dtype}, {k} has {member.mean.dtype}; change the "
                "networks with .float() or .double() before they predict"
            )
    return members
