"""Real targets with noise: Gaussian of a given variance, or of learned variance and tails."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bayesmp.basics import checks
from bayesmp.basics.arithmetic import undisturbed
from bayesmp.heads.base import Head, certain_grid, log_grid
from bayesmp.heads.loss import Loss, SquaredLoss
from bayesmp.heads.regression_prediction import RegressionPrediction
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.likelihood import gaussian_to_latent
from bayesmp.messages.noise import MAX_SPREAD, REACH, noise_mixture, noisy_log_density

LEAST_MISS = 0.1  # of targets of order one
NOISE_GRID = (1e-7, 1e3, 240)  # lowest and highest noise variance considered, and how many: steps of 10 %
SPREAD_STEPS = (
    5,
    10,
    15,
    20,
    26,
)  # spreads of the noise considered, in steps of the logarithm of that grid: .48 to 2.5
LIKELY_NOISE = 0.1  # variance, of targets of order one
TAILS = ("learn", "gaussian")
TELLS_TAILS = 0.5  # spread from which tails are worth a word
TAIL_COST = 1.0  # nats per unit of spread by which data must ask for tails


class Regression(Head[RegressionPrediction]):
    """y = output + noise, one target per output.

    A given noise is Gaussian. Where it is learned, so are its tails: the variance of the noise may differ from target
    to target, and how much it does is judged with it, at outputs that have not seen the target (messages/noise.py).
    The grid holds pairs of variance and spread, one row of variances per spread; the first row, spread 0, is Gaussian.
    Training hears this row alone, so tails change predictions, not what is fitted (lab notes, "noise with tails").

    With them it is learned how the noise depends on the input (varying_noise.py), which is for predictions, too.

    Args:
        noise_var: variance of the noise, in squared units of y; or "learn" to infer it with the weights.
        tails: "learn" or "gaussian", where the noise is learned.
        varies: whether learned noise with tails may depend on the input; False has the same noise everywhere.
    """

    is_heard_in_training = True
    has_noise = True

    @undisturbed()
    def __init__(self, noise_var: float | str, *, tails: str = "learn", varies: bool = True) -> None:
        super().__init__()
        self._averaged: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        if tails not in TAILS:
            raise ValueError(f"tails must be one of {', '.join(map(repr, TAILS))}, got {tails!r}")
        if not isinstance(varies, bool):
            raise ValueError(f"varies must be True or False, got {varies!r}")
        if noise_var == "learn":
            self.grid = log_grid(*NOISE_GRID)
        elif not isinstance(noise_var, (int, float)) or not (noise_var > 0 and math.isfinite(noise_var)):
            raise ValueError(f"noise_var must be a positive number or 'learn', got {noise_var!r}")
        else:
            self.grid = certain_grid(float(noise_var))
        self.noise_var = noise_var
        self.tails = tails if noise_var == "learn" else "gaussian"
        self.varies = varies and self.has_tails
        if self.has_tails:
            ratios = noise_mixture(_spreads(self.grid.log())[1:])[0]
            rows = self.grid / ratios[:, REACH, None]  # those of z = 0 lie on the first row
            self.grid = torch.cat([self.grid, rows.flatten()])

    def config(self) -> dict[str, Any]:
        return {"noise_var": self.noise_var, "tails": self.tails, "varies": self.varies}

    @property
    def has_tails(self) -> bool:
        """Whether tails are learned."""
        return self.tails == "learn"

    @property
    def heard(self) -> slice:
        return slice(0, self._row)

    @property
    def _row(self) -> int:
        """Variances per spread."""
        return len(self.grid) // (1 + len(SPREAD_STEPS)) if self.has_tails else len(self.grid)

    def _shape(self) -> tuple[Tensor, Tensor]:
        """Of each pair of the grid, the logarithm of the middle variance and the spread around it."""
        middle = self.grid[self.heard].log()
        n_rows = len(self.grid) // len(middle)
        return middle.repeat(n_rows), _spreads(middle)[:n_rows].repeat_interleave(len(middle))

    def noise(self, log_weights: Tensor) -> tuple[Tensor, Tensor]:
        r"""Variance and spread of the noise: all that the belief holds for possible, as one log-normal variance.

        The spread has two parts, how much the noise differs from target to target and how well it is known:
        spread^2 = E[spread^2] + Var[log middle]. Gaussian noise, learned or given, has none.
        """
        if not self.has_tails:
            noise_var = self.expected(log_weights)
            return noise_var, torch.zeros_like(noise_var)
        noise_var, middle, square = self._moments(log_weights).mv(torch.softmax(log_weights, 0))
        return noise_var, (square - middle.square()).clamp_min(0.0).sqrt().clamp_max(MAX_SPREAD)

    def _moments(self, like: Tensor) -> Tensor:
        """What `noise` averages over the belief, (3, pairs); logarithms as of likely noise, so that little cancels."""
        key = (like.dtype, like.device)
        if key not in self._averaged:
            middle, spread = self._shape()
            middle = middle - math.log(LIKELY_NOISE)
            found = torch.stack([self.grid, middle, middle.square() + spread.square()])
            self._averaged[key] = found.to(like)
        return self._averaged[key]

    def prior_log_weights(self) -> Tensor:
        """As if one more target had been off by LEAST_MISS: flat in the logarithm, but for noise far below it.

        As long as the function itself is uncertain, data do not tell small noise from none at all, and E[1 / noise_var]
        would be that of the grid's lower end. And Gaussian, unless data ask for tails.
        """
        if not self.is_learned:
            return torch.zeros_like(self.grid)
        return -0.5 * LEAST_MISS**2 / self.grid - TAIL_COST * self._shape()[1]

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

    def latent_mix(self, n_outputs: int) -> Tensor:
        return torch.eye(n_outputs, dtype=torch.float64)

    def loss(self, y: Tensor, n_outputs: int, *, least_miss: float = 0.0) -> Loss:
        return SquaredLoss(y.double(), least_miss=least_miss if self.is_learned else 0.0)

    def largest_constant(self, y: Tensor) -> float:
        """All of y is noise."""
        return float(y.double().square().mean()) if self.is_learned else math.inf

    def initial_message(self, y: Tensor) -> Tensor:
        """As if the network predicted zero for everything: all of y is noise until the first visits say otherwise."""
        grid = self.grid_like(y.double())
        return -0.5 * (y.numel() * torch.log(grid) + y.double().square().sum() / grid)

    def to_latent(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> Gaussian:
        """N(y, 1 / E[1 / noise_var]): the variational message for an uncertain noise, here without tails."""
        return gaussian_to_latent(y, self.in_training(log_weights))

    def to_heard(self, m_out: Moments, y: Tensor) -> Tensor:
        """Log of prod N(y; mean, var + noise_var)."""
        return self._per_variance(m_out, y).sum((0, 1))

    def to_constant(self, m_out: Moments, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Log of prod N(y; mean, var + noise_var), and of mixtures of such densities.

        Args:
            weight: how often each example counts, (b,); once if not given.

        Note:
            Parts of the noise lie on the grid of variances, too, so mixtures are sums of densities that are known
            already. Those far below the largest of an example underflow, where no noise is likely.
        """
        each = self._per_variance(m_out, y)
        often = None if weight is None else weight.to(each)[:, None].expand(each.shape[:2])
        if not self.has_tails:
            return each.sum((0, 1)) if often is None else torch.einsum("bo,bok->k", often, each)
        each = each.flatten(0, 1)
        top = each.amax(1, keepdim=True)
        mixed = (each - top).exp_() @ _mixing(self._row, each.dtype, each.device)
        mixed = mixed.clamp_min_(torch.finfo(mixed.dtype).tiny).log_()
        if often is not None:
            each, mixed, top = (part * often.reshape(-1, 1) for part in (each, mixed, top))
        total = mixed.sum(0, dtype=torch.float64) + top.double().sum()
        return torch.cat([each.sum(0, dtype=torch.float64), total])

    def _per_variance(self, m_out: Moments, y: Tensor) -> Tensor:
        """Log N(y; mean, var + noise_var), but for a constant, (b, o, k)."""
        var = m_out.var[..., None] + self.grid_like(m_out.mean)[self.heard]
        return -0.5 * (torch.log(var) + (y - m_out.mean).square()[..., None] / var)

    def predict(self, m_out: Moments, log_weights: Tensor, covariance: Tensor | None = None) -> RegressionPrediction:
        return RegressionPrediction(m_out.mean, m_out.var, *self.noise(log_weights))

    def nll(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> Tensor:
        return -self._log_density(m_out, y, log_weights).mean(1)

    def train_metrics(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> dict[str, Tensor]:
        return {
            "mse": (y - m_out.mean).square().sum() / y.shape[1],
            "nll": -self._log_density(m_out, y, log_weights).sum() / y.shape[1],
        }

    def _log_density(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> Tensor:
        """Log-density of the targets, (b, o), without a look at numbers, for which a device would wait."""
        noise_var, spread = self.noise(log_weights)
        if self.has_tails:
            return noisy_log_density(y - m_out.mean, m_out.var, noise_var, spread)
        var = m_out.var + noise_var
        return -0.5 * ((y - m_out.mean).square() / var + torch.log(2.0 * math.pi * var))

    def tell_learned(self, log_weights: Tensor) -> str:
        if not self.is_learned:
            return ""
        var, spread = (float(part) for part in self.noise(log_weights))
        tails = f", with tails (spread {spread:.2g})" if spread > TELLS_TAILS else ""
        return f"noise has a variance of {var:.2g}{tails}"

    def __repr__(self) -> str:
        noise = repr(self.noise_var) if isinstance(self.noise_var, str) else f"{self.noise_var:.6g}"
        tails = ", tails='gaussian'" if self.is_learned and not self.has_tails else ""
        varies = ", varies=False" if self.has_tails and not self.varies else ""
        return f"Regression(noise_var={noise}{tails}{varies})"


@cache
def _mixing(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What each of n variances contributes to the pairs with a spread, (n, pairs): a part of the noise lies as many
    steps of the grid from the middle variance as the spread and its node say; at the ends of the grid, on the last.
    """
    _, shares = noise_mixture(torch.zeros((), dtype=torch.float64))
    found, at = torch.zeros(n, len(SPREAD_STEPS), n, dtype=torch.float64), torch.arange(n)
    for row, steps in enumerate(SPREAD_STEPS):
        for node, share in enumerate(shares, start=-REACH):
            found[:, row].index_put_(((at + steps * node).clamp(0, n - 1), at), share, accumulate=True)
    return found.flatten(1).to(device=device, dtype=dtype)


def _spreads(log_grid: Tensor) -> Tensor:
    """The spreads that a grid of log-variances considers, 0 first."""
    steps = log_grid.new_tensor([0.0, *SPREAD_STEPS])
    return steps * (log_grid[1] - log_grid[0]) if len(log_grid) > 1 else steps[:1]
