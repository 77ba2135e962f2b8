"""Predictions of real targets: what the network believes, and the noise around it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, Protocol

import torch
from torch import Tensor

from bayesmp.basics import checks
from bayesmp.messages.noise import draw_noise, noisy_cdf, noisy_log_density, noisy_reach, part_vars
from bayesmp.messages.normal import normal_cdf


class Scaling(Protocol):
    """The map y -> (y - mean) / std, as data.Scaling has it."""

    @property
    def mean(self) -> Any: ...

    @property
    def std(self) -> Any: ...


@dataclass(frozen=True)
class LocalNoise:
    """Noise at each row of a prediction, where it depends on the input: variance and spread, of the shape of its
    mean.
    """

    var: Tensor
    spread: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> LocalNoise:
        return LocalNoise(function(self.var), function(self.spread))


@dataclass(frozen=True)
class RegressionPrediction:
    """Predictive distributions, one per row and output: what the network believes, and the noise around it.

    `prediction[rows]` takes some of its rows, `len(prediction)` counts them.

    Attributes:
        mean: predictive mean, (n, o), or (n,) if the network was trained on targets of shape (n,).
        epistemic_var: variance from not knowing the weights, of the same shape; shrinks with data.
        noise_var: variance of the noise around the function, a scalar, as one for all rows; does not. Behind `undo` of
            several targets, one for each.
        noise_spread: how much the noise differs from target to target, a scalar: standard deviation of the logarithm of
            its variance. 0 is Gaussian noise, 1 has clearly heavy tails (messages/noise.py).
        local_noise: the noise at each row, which all else is made with where it is not None.
    """

    mean: Tensor
    epistemic_var: Tensor
    noise_var: Tensor
    noise_spread: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float32))
    local_noise: LocalNoise | None = None

    @property
    def aleatoric_var(self) -> Tensor:
        """Variance of the noise at each row, of the shape of the mean: what more data would not take away."""
        return self.noise.var.to(self.mean).expand_as(self.mean)

    @property
    def var(self) -> Tensor:
        """Variance of a new target: epistemic_var + aleatoric_var."""
        return self.epistemic_var + self.noise.var

    @property
    def std(self) -> Tensor:
        return self.var.sqrt()

    @property
    def is_gaussian(self) -> bool:
        """Whether the noise has no tails but those of a Gaussian."""
        return not bool((self.noise.spread > 0).any())

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that holds a new target with this probability."""
        level = checks.check_probability(level, "level")
        reach = reach_of(self, 0.5 - 0.5 * level)
        return self.mean - reach, self.mean + reach

    def quantile(self, p: float) -> Tensor:
        """The value below which a new target lies with probability p."""
        p = checks.check_probability(p, "p")
        return self.mean - reach_of(self, p) if p < 0.5 else self.mean + reach_of(self, 1.0 - p)

    def log_prob(self, y: Any) -> Tensor:
        """Log-density of new targets y, one number per target; its mean is the log-likelihood of a test set."""
        gap = self.check_targets(y) - self.mean
        if self.is_gaussian:
            return -0.5 * (gap.square() / self.var + torch.log(2.0 * math.pi * self.var))
        return noisy_log_density(gap, *self._parts())

    def cdf(self, y: Any) -> Tensor:
        """Probability that a new target lies below y, one number per target; even between 0 and 1 if all is right."""
        gap = self.check_targets(y) - self.mean
        return normal_cdf(gap / self.std) if self.is_gaussian else noisy_cdf(gap, *self._parts())

    def sample(self, n: int = 1, *, seed: int = 0) -> Tensor:
        """n draws (n, *mean.shape) of new targets, each independent of the others; whole functions come from
        `network.sample_functions`.
        """
        n = checks.check_positive_int(n, "n")
        generator = torch.Generator().manual_seed(seed)
        shape = (n, *self.mean.shape)
        draws = torch.randn(shape, generator=generator, dtype=torch.float64).to(self.mean)
        if self.is_gaussian:
            return self.mean + self.std * draws
        ratios = draw_noise(shape, self.noise.spread, generator).to(self.mean)
        return self.mean + (self.epistemic_var + ratios * self.noise.var).sqrt() * draws

    def gaussians(self) -> tuple[Tensor, Tensor, Tensor]:
        """The Gaussians that each distribution is a mixture of: means and variances (*mean.shape, m), shares (m,)."""
        if self.is_gaussian:
            return self.mean[..., None], self.var[..., None], torch.ones(1).to(self.mean)
        variances, shares = part_vars(*self._parts())
        return self.mean[..., None].expand_as(variances), variances, shares

    def undo(self, scaling: Scaling) -> RegressionPrediction:
        """The same prediction in the units that targets had before `scaling` (data.Scaling) standardised them."""
        std = torch.as_tensor(scaling.std).to(self.mean)
        mean = torch.as_tensor(scaling.mean).to(self.mean)
        return replace(
            self,
            mean=self.mean * std + mean,
            epistemic_var=self.epistemic_var * std.square(),
            noise_var=self.noise_var * std.square(),
            local_noise=self.local_noise and LocalNoise(self.local_noise.var * std.square(), self.local_noise.spread),
        )

    def flat(self) -> RegressionPrediction:
        """One output: (n,) instead of (n, 1)."""
        if self.mean.shape[1:] != (1,):
            raise ValueError(f"flat() takes predictions of one output, (n, 1), got {tuple(self.mean.shape)}")
        return changed(self, lambda part: part[:, 0])

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, rows: Any) -> RegressionPrediction:
        return changed(self, lambda part: part[rows])

    @staticmethod
    def concatenate(parts: list[RegressionPrediction]) -> RegressionPrediction:
        local = [part.local_noise for part in parts if part.local_noise is not None]
        return replace(
            parts[0],
            mean=torch.cat([part.mean for part in parts]),
            epistemic_var=torch.cat([part.epistemic_var for part in parts]),
            local_noise=LocalNoise(torch.cat([part.var for part in local]), torch.cat([part.spread for part in local]))
            if local
            else None,
        )

    @property
    def noise(self) -> LocalNoise:
        """The noise that targets have: that of their row where it is known, else the same for all."""
        return LocalNoise(self.noise_var, self.noise_spread) if self.local_noise is None else self.local_noise

    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Variance of the outputs, variance and spread of the noise, as the equations take them."""
        return self.epistemic_var, self.noise.var.to(self.mean), self.noise.spread.to(self.mean)

    def check_targets(self, y: Any) -> Tensor:
        """y as a tensor of the prediction's shape, or a ValueError."""
        y = checks.as_tensor(y, "y").to(self.mean)
        is_single = y.dim() == 0 or self.mean.dim() == 0
        if y.numel() == self.mean.numel() and (is_single or len(y) == len(self)):
            y = y.reshape(self.mean.shape)
        if y.shape != self.mean.shape:
            raise ValueError(f"y must have the shape of the prediction, {tuple(self.mean.shape)}, got {tuple(y.shape)}")
        return y


def changed(prediction: RegressionPrediction, function: Callable[[Tensor], Tensor]) -> RegressionPrediction:
    """The same function on all that a single network says per row; a noise of each output (`undo`) becomes that of each
    row.
    """
    mean, noise_var, local_noise = prediction.mean, prediction.noise_var, prediction.local_noise
    local = None if local_noise is None else local_noise.map(function)
    noise = noise_var if noise_var.numel() == 1 else function(noise_var.expand_as(mean))
    var = function(prediction.epistemic_var)
    return replace(prediction, mean=function(mean), epistemic_var=var, noise_var=noise, local_noise=local)


def reach_of(prediction: RegressionPrediction, tail: float) -> Tensor:
    """How far from the mean of a single network's prediction the upper and the lower tail of this probability begin."""
    if prediction.is_gaussian:
        return -NormalDist().inv_cdf(tail) * prediction.std
    return noisy_reach(tail, *prediction._parts())
