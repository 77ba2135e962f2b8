"""Weight priors, as Gaussians of a layer's shape, and the means at which training starts.

Starting means are drawn once, N(0, l^2) with the spectral scale l = min(1, sqrt(d_out / d_in)) / sqrt(d_in): symmetric
units must differ before data can tell them apart. Two rules make priors of them:

"paper"   means as drawn; variances 1.5 / d_in in the first layer, (1.5 - 0.8041 min(1, d_out / d_in)) / (0.8041 +
          0.4496 d_in) later;
"narrow"  means as drawn times min(1, 16 / d_in)^(1/2), the paper's variances times min(1, 16 / d_in)^(3/5); the
          default. In networks of dense layers alone only the first layer's variances are narrower, the others have the
          paper's ("near": narrow means, the paper's variances).

Why nearer to zero: a prior around random features holds the network to them. With as wide a prior it fits the
training data by small moves of all weights, whatever their features; around zero a weight that is not needed fades.
Not zero itself, so that the sequential schedule, which knows no starting means, still finds different units. Why
narrower: a wide layer changes its output by moving all its weights a little, in concert; a change of order 1 needs
1 / d_in per weight where independent weights of the paper's prior vary by 1 / sqrt(d_in). On CIFAR-10 (45,000 images,
5,000 held out, 12 epochs) the paper's rule gives NLL .97 and rising; its variances around zero .85; the narrow
variances around the drawn means .78; both together .71 and falling (lab notes, "the prior, again"). Why not behind
dense layers: there a narrow prior on every layer narrows that of the outputs with the width, and wide networks lose
(784-w-w-10, 50,000 MNIST images, 10 epochs, held-out NLL for w = 200, 800, 2,000: .072 .072 .111, without .076 .061
.058); in convolutional networks it pays on the dense layers, too (CIFAR-10: .529, without it on the last layer .545).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.messages.gaussian import Gaussian

BIAS_VAR = 0.5
BIAS_SPREAD = 1.0
NARROW_FAN_IN = 16  # layers up to this fan-in have the paper's prior under both rules
RULES = ("narrow", "paper")  # of networks; layers know "near", too
NARROW_MEANS, NARROW_VARS = 0.5, 0.6  # powers of min(1, 16 / fan-in) in the narrow rule
FIRST_LAYER_GAIN = 1.5  # variance the first layer adds to a unit input, per fan-in
_MEAN_SHARE, _VAR_SHARE = 0.4496, 0.8041  # E[y]^2-like and Var[y]-like parts of a LeakyReLU of a standard normal


@dataclass(frozen=True, slots=True)
class WeightPrior:
    """The prior of a weight tensor, and the means at which training starts.

    Attributes:
        belief: the prior.
        start: means at which training starts.
        spread: scale on which such means differ; the first visits are held near `start` on it. None: the prior's std.
    """

    belief: Gaussian
    start: Tensor
    spread: float | None = None


PriorLike = tuple[float | Tensor, float | Tensor]  # (mean, var), each broadcastable to the weights


def spectral_std(fan_in: int, n_out: int) -> float:
    """Standard deviation of the starting means; n_out counts all outputs of the layer (positions too)."""
    return min(1.0, math.sqrt(n_out / fan_in)) / math.sqrt(fan_in)


def layer_rule(rule: str, *, is_first: bool, is_dense: bool) -> str:
    """The rule of one layer in a network with this rule; `is_dense` if all layers with weights are dense."""
    return "near" if rule == "narrow" and is_dense and not is_first else rule


def weight_variance(fan_in: int, n_out: int, *, is_first: bool, rule: str = "narrow") -> float:
    """Prior variance of one weight under a rule of the module's docstring."""
    narrowing = _narrowing(fan_in) ** NARROW_VARS if rule == "narrow" else 1.0
    if is_first:
        return narrowing * FIRST_LAYER_GAIN / fan_in
    return narrowing * (1.5 - _VAR_SHARE * min(1.0, n_out / fan_in)) / (_VAR_SHARE + _MEAN_SHARE * fan_in)


def _narrowing(fan_in: int) -> float:
    return min(1.0, NARROW_FAN_IN / fan_in)


def default_weight_prior(
    shape: Sequence[int],
    fan_in: int,
    n_out: int,
    *,
    is_first: bool,
    generator: torch.Generator,
    rule: str = "narrow",
) -> WeightPrior:
    """The prior of a weight tensor by a rule: drawn starting means, constant variance; in float64 on the CPU."""
    spread = spectral_std(fan_in, n_out)
    start = spread * torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    var = weight_variance(fan_in, n_out, is_first=is_first, rule=rule)
    means = start if rule == "paper" else _narrowing(fan_in) ** NARROW_MEANS * start
    return WeightPrior(Gaussian.from_moments(means, torch.full_like(start, var)), start, spread)


def default_bias_prior(shape: Sequence[int]) -> WeightPrior:
    """The prior of biases that are given none; training starts at zero."""
    zeros = torch.zeros(tuple(shape), dtype=torch.float64)
    return WeightPrior(Gaussian.from_moments(zeros, torch.full_like(zeros, BIAS_VAR)), zeros, BIAS_SPREAD)


def given_prior(prior: PriorLike, shape: Sequence[int], name: str) -> WeightPrior:
    """A user's (mean, var) broadcast to the weights, or a ValueError that says what is wrong with it; training starts
    at the mean.
    """
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
    return WeightPrior(Gaussian.from_moments(mean, var), mean)
