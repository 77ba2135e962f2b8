"""A unit-variance Gaussian restricted to a half line, accurate in both tails."""

import math
from typing import NamedTuple

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
TAIL = -3.0  # below it, x + hazard(x) and 1 - hazard (hazard + x) cancel; the continued fraction gives them directly
N_TERMS = 80  # of the continued fraction: full double precision for x <= TAIL


class HalfLine(NamedTuple):
    """What is left of N(x, 1) on [0, inf)."""

    log_mass: float  # log Phi(x)
    hazard: float  # phi(x) / Phi(x)
    mean: float  # x + hazard
    var: float  # 1 - shrink
    shrink: float  # hazard (hazard + x), the part of the variance that the truncation takes away


def half_line(x: float) -> HalfLine:
    r"""Mass, mean and variance of u ~ N(x, 1) given u >= 0.

    With h = \phi(x) / \Phi(x):
        mass = \Phi(x),  mean = x + h,  var = 1 - h (h + x).

    Note:
        For x < -3, t = -x and Laplace's fraction h = t + 1/(t + K), K = 2/(t + 3/(t + ...)):
        mean = 1/(t + K) and var = (K - mean) / (t + K), with no cancellation.
    """
    if x >= TAIL:
        mass = 0.5 * math.erfc(-x / math.sqrt(2.0))
        hazard = math.exp(-0.5 * x * x - LOG_SQRT_2PI) / mass
        shrink = hazard * (hazard + x)
        return HalfLine(math.log(mass), hazard, x + hazard, 1.0 - shrink, shrink)
    t = -x
    fraction = 0.0
    for k in range(N_TERMS, 1, -1):
        fraction = k / (t + fraction)
    mean = 1.0 / (t + fraction)
    var = (fraction - mean) / (t + fraction)
    hazard = t + mean
    return HalfLine(-0.5 * x * x - LOG_SQRT_2PI - math.log(hazard), hazard, mean, var, 1.0 - var)


def cdf(x: float) -> float:
    r"""\Phi(x)."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def log_cdf(x: float) -> float:
    r"""log \Phi(x), finite far into the lower tail."""
    return half_line(x).log_mass
