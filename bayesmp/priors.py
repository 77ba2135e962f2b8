"""Weight priors, as Gaussians of a layer's shape.

Means are drawn once, N(0, l^2) with the spectral scale l = min(1, sqrt(d_out / d_in)) / sqrt(d_in): symmetric units
must differ before data can tell them apart. For the variances there are two rules:

"paper"   1.5 / d_in in the first layer, (1.5 - 0.8041 min(1, d_out / d_in)) / (0.8041 + 0.4496 d_in) later;
"narrow"  the same times min(1, 16 / d_in)^(3/4), the default.

A wide layer changes its output by moving all its weights a little, in concert: a change of order 1 needs 1 / d_in per
weight where independent weights of the paper's prior vary by 1 / sqrt(d_in). The wider the layer, the more of the
paper's prior is noise in the activations and room to overfit. On CIFAR-10 (45,000 images, 5,000 held out, 14 epochs)
the paper's rule gives NLL 1.01 and rising, the narrow one .76 and falling; with 640 MNIST images the paper's is
better (docs/lab-notes.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesmp.gaussian import Gaussian

BIAS_VAR = 0.5
NARROW_FAN_IN = 16  # layers up to this fan-in have the paper's prior under both rules
RULES = ("narrow", "paper")
FIRST_LAYER_GAIN = 1.5  # variance the first layer adds to a unit input, per fan-in
_MEAN_SHARE, _VAR_SHARE = 0.4496, 0.8041  # E[y]^2-like and Var[y]-like parts of a LeakyReLU of a standard normal

PriorLike = tuple[float | Tensor, float | Tensor]  # (mean, var), each broadcastable to the weights


def spectral_std(fan_in: int, n_out: int) -> float:
    """Standard deviation of the prior means; n_out counts all outputs of the layer (positions too)."""
    return min(1.0, math.sqrt(n_out / fan_in)) / math.sqrt(fan_in)


def weight_variance(fan_in: int, n_out: int, *, is_first: bool, rule: str = "narrow") -> float:
    """Prior variance of one weight under a rule of the module's docstring."""
    narrowing = min(1.0, NARROW_FAN_IN / fan_in) ** 0.75 if rule == "narrow" else 1.0
    if is_first:
        return narrowing * FIRST_LAYER_GAIN / fan_in
    return narrowing * (1.5 - _VAR_SHARE * min(1.0, n_out / fan_in)) / (_VAR_SHARE + _MEAN_SHARE * fan_in)


def default_weight_prior(
    shape: Sequence[int],
    fan_in: int,
    n_out: int,
    *,
    is_first: bool,
    generator: torch.Generator,
    rule: str = "narrow",
) -> Gaussian:
    """The prior of a weight tensor: drawn means, constant variance; in float64 on the CPU."""
    means = spectral_std(fan_in, n_out) * torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    var = weight_variance(fan_in, n_out, is_first=is_first, rule=rule)
    return Gaussian.from_moments(means, torch.full_like(means, var))


def default_bias_prior(shape: Sequence[int]) -> Gaussian:
    zeros = torch.zeros(tuple(shape), dtype=torch.float64)
    return Gaussian.from_moments(zeros, torch.full_like(zeros, BIAS_VAR))


def given_prior(prior: PriorLike, shape: Sequence[int], name: str) -> Gaussian:
    """A user's (mean, var) broadcast to the weights, or a ValueError that says what is wrong with it."""
    try:
        mean, var = (torch.as_tensor(part, dtype=torch.float64).cpu() for part in prior)
        mean, var = mean.expand(tuple(shape)).clone(), var.expand(tuple(shape)).clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} must be a pair (mean, var), each a number or a tensor broadcastable to {tuple(shape)}; "
            f"got {prior!r}"
        ) from error
    if not (mean.isfinite().all() and var.isfinite().all() and (var > 0).all()):
        raise ValueError(f"{name} must have finite means and positive, finite variances; check the values passed")
    return Gaussian.from_moments(mean, var)
