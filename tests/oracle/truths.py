"""Helpers of the oracle's own tests, no part of the oracle: moments by quadrature, random priors, comparing trees."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad

from .trees import leaves, pair


def moments(log_density, breaks):
    """Mean and variance of exp(log_density) on the interval from breaks[0] to breaks[-1], by adaptive quadrature.

    The breaks are points where the density may have a kink or its bulk may begin or end.
    """
    breaks = sorted(breaks)
    top = max(log_density(x) for x in np.linspace(breaks[0], breaks[-1], 2001))

    def integral(f):
        return math.fsum(
            quad(lambda x: f(x) * math.exp(log_density(x) - top), a, b, epsabs=0, epsrel=1e-11, limit=500)[0]
            for a, b in itertools.pairwise(breaks)
        )

    mass = integral(lambda x: 1.0)
    mean = integral(lambda x: x) / mass if mass else math.nan
    return mean, integral(lambda x: (x - mean) ** 2) / mass, math.log(mass) + top


def log_normal(x, mean, var):
    return -0.5 * (x - mean) ** 2 / var - 0.5 * math.log(2 * math.pi * var)


def random_prior(shapes, seed=0):
    """A prior tree with random means and variances; shapes are (weight shape, bias size or 0) or None."""
    rng = np.random.default_rng(seed)

    def natural(*shape):
        rho = 1.0 / rng.uniform(0.1, 0.6, shape)
        return pair((rng.normal(0.0, 0.7, shape) * rho).tolist(), rho.tolist())

    return [None if s is None else {"weight": natural(*s[0]), "bias": natural(s[1]) if s[1] else None} for s in shapes]


def assert_trees_close(actual, expected, *, rel=1e-9, abs=1e-12):
    for a, e in zip(leaves(actual), leaves(expected), strict=True):
        assert tuple(a) == pytest.approx(tuple(e), rel=rel, abs=abs)
