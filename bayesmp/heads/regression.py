"""Real targets with Gaussian noise, of known or learned variance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol

import torch
from torch import Tensor

from bayesmp import checks
from bayesmp.equations.likelihood import gaussian_to_latent
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.heads.base import Head, certain_grid, log_grid

LEAST_MISS = 0.1  # of targets of order one
NOISE_GRID = (1e-7, 1e3, 240)  # lowest and highest noise variance considered, and how many: steps of 10 %


class Scaling(Protocol):
    """The map y -> (y - mean) / std, as data.Scaling has it."""

    @property
    def mean(self) -> Any: ...

    @property
    def std(self) -> Any: ...


@dataclass(frozen=True)
class RegressionPrediction:
    """Predictive Gaussians, one per row and output: what the network believes, and the noise around it.

    `prediction[rows]` takes some of its rows, `len(prediction)` counts them.

    Attributes:
        mean: predictive mean, (n, o), or (n,) if the network was trained on targets of shape (n,).
        epistemic_var: variance from not knowing the weights, of the same shape; shrinks with data.
        noise_var: variance of the noise around the function, a scalar; does not.
    """

    mean: Tensor
    epistemic_var: Tensor
    noise_var: Tensor

    @property
    def var(self) -> Tensor:
        """Variance of a new target: epistemic_var + noise_var."""
        return self.epistemic_var + self.noise_var

    @property
    def std(self) -> Tensor:
        return self.var.sqrt()

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper end of the central interval that holds a new target with this probability."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie strictly between 0 and 1, got {level}")
        return self.quantile(0.5 - 0.5 * level), self.quantile(0.5 + 0.5 * level)

    def quantile(self, p: float) -> Tensor:
        """The value below which a new target lies with probability p."""
        if not 0.0 < p < 1.0:
            raise ValueError(f"p must lie strictly between 0 and 1, got {p}")
        return self.mean + NormalDist().inv_cdf(p) * self.std

    def log_prob(self, y: Any) -> Tensor:
        """Log-density of new targets y, one number per target; its mean is the log-likelihood of a test set."""
        y = checks.as_tensor(y, "y").to(self.mean)
        y = y.reshape(self.mean.shape) if y.numel() == self.mean.numel() and len(y) == len(self) else y
        if y.shape != self.mean.shape:
            raise ValueError(f"y must have the shape of the prediction, {tuple(self.mean.shape)}, got {tuple(y.shape)}")
        return -0.5 * ((y - self.mean).square() / self.var + torch.log(2.0 * math.pi * self.var))

    def sample(self, n: int = 1, *, seed: int = 0) -> Tensor:
        """n draws (n, *mean.shape) of new targets, each independent of the others; whole functions come from
        `network.sample_functions`.
        """
        n = checks.check_positive_int(n, "n")
        generator = torch.Generator().manual_seed(seed)
        draws = torch.randn(n, *self.mean.shape, generator=generator, dtype=torch.float64)
        return self.mean + self.std * draws.to(self.mean)

    def undo(self, scaling: Scaling) -> RegressionPrediction:
        """The same prediction in the units that targets had before `scaling` (data.Scaling) standardised them."""
        std = torch.as_tensor(scaling.std).to(self.mean)
        mean = torch.as_tensor(scaling.mean).to(self.mean)
        return RegressionPrediction(
            self.mean * std + mean, self.epistemic_var * std.square(), self.noise_var * std.square()
        )

    def flat(self) -> RegressionPrediction:
        """One output: (n,) instead of (n, 1)."""
        return RegressionPrediction(self.mean[:, 0], self.epistemic_var[:, 0], self.noise_var)

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, rows: Any) -> RegressionPrediction:
        return RegressionPrediction(self.mean[rows], self.epistemic_var[rows], self.noise_var)

    @staticmethod
    def concatenate(parts: list[RegressionPrediction]) -> RegressionPrediction:
        return RegressionPrediction(
            torch.cat([part.mean for part in parts]),
            torch.cat([part.epistemic_var for part in parts]),
            parts[0].noise_var,
        )


class Regression(Head[RegressionPrediction]):
    """y = output + N(0, noise_var), one target per output.

    Args:
        noise_var: variance of the noise, in squared units of y; or "learn" to infer it with the weights.
    """

    is_heard_in_training = True
    has_noise = True

    def __init__(self, noise_var: float | str) -> None:
        super().__init__()
        if noise_var == "learn":
            self.grid = log_grid(*NOISE_GRID)
        elif not isinstance(noise_var, (int, float)) or not (noise_var > 0 and math.isfinite(noise_var)):
            raise ValueError(f"noise_var must be a positive number or 'learn', got {noise_var!r}")
        else:
            self.grid = certain_grid(float(noise_var))
        self.noise_var = noise_var

    def config(self) -> dict[str, Any]:
        return {"noise_var": self.noise_var}

    def prior_log_weights(self) -> Tensor:
        """As if one more target had been off by LEAST_MISS: flat in the logarithm, but for noise far below it.

        As long as the function itself is uncertain, data do not tell small noise from none at all, and E[1 / noise_var]
        would be that of the grid's lower end.
        """
        return -0.5 * LEAST_MISS**2 / self.grid if self.is_learned else torch.zeros_like(self.grid)

    def check_targets(self, y: Any, n_outputs: int) -> Tensor:
        y = checks.check_real_targets(y, n_outputs)
        size = float(y.double().square().mean())
        low, high, _ = NOISE_GRID
        if self.is_learned and len(y) > 0 and not 100 * low < size < high:
            raise ValueError(
                f"to learn the noise, targets must be of order one, got a mean square of {size:.3g}; "
                "standardise y (subtract its mean, divide by its standard deviation)"
            )
        return y

    def check_more_targets(self, y: Any, n_outputs: int) -> Tensor:
        """Without a look at their size: a few targets may well be small."""
        return checks.check_real_targets(y, n_outputs)

    def largest_constant(self, y: Tensor) -> float:
        """All of y is noise."""
        return float(y.double().square().mean()) if self.is_learned else math.inf

    def initial_message(self, y: Tensor) -> Tensor:
        """As if the network predicted zero for everything: all of y is noise until the first visits say otherwise."""
        grid = self.grid_like(y.double())
        return -0.5 * (y.numel() * torch.log(grid) + y.double().square().sum() / grid)

    def to_latent(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> Gaussian:
        """N(y, 1 / E[1 / noise_var]): the variational message for an uncertain noise."""
        return gaussian_to_latent(y, 1.0 / self.expected(log_weights, -1.0))

    def to_constant(self, m_out: Moments, y: Tensor) -> Tensor:
        """Log of prod N(y; mean, var + noise_var)."""
        var = m_out.var[..., None] + self.grid_like(m_out.mean)  # (b, o, k)
        return -0.5 * (torch.log(var) + (y - m_out.mean).square()[..., None] / var).sum((0, 1))

    def predict(self, m_out: Moments, log_weights: Tensor, covariance: Tensor | None = None) -> RegressionPrediction:
        return RegressionPrediction(m_out.mean, m_out.var, self.expected(log_weights))

    def nll(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> Tensor:
        var = m_out.var + self.expected(log_weights)
        return 0.5 * ((y - m_out.mean).square() / var + torch.log(2.0 * math.pi * var)).mean(1)

    def train_metrics(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> dict[str, Tensor]:
        var = m_out.var + self.expected(log_weights)
        squared = (y - m_out.mean).square()
        return {
            "mse": squared.sum() / y.shape[1],
            "nll": 0.5 * (squared / var + torch.log(2.0 * math.pi * var)).sum() / y.shape[1],
        }

    def __repr__(self) -> str:
        noise = repr(self.noise_var) if isinstance(self.noise_var, str) else f"{self.noise_var:.6g}"
        return f"Regression(noise_var={noise})"
