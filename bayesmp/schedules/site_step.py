"""Two steps of a parallel visit on flat vectors of all weights: the site replaced, and the means moved. All in place.

On the CPU each is one pass over memory (kernels/sites.py); in these vectors, of as many entries as there are weights, a
visit would else read and write some thirty times.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.gaussian import Gaussian
from bayesmp.network import Network
from bayesmp.sites import SiteIndex, Sites


def take_site(sites: Sites, index: SiteIndex, fresh: Gaussian, marginal_rho: Tensor, *, factor: float) -> Tensor:
    """Replace a batch's site by what it says now, `fresh`; returns what is new of its slope at the origin, (w,).

    The marginal's precision follows. No precision of it grows or shrinks by more than `factor`.
    """
    row = sites.row(index)
    if row is not None:
        found = kernels.take_site(fresh, row, sites.origin, sites.shift, marginal_rho, factor=factor)
        if found is not None:
            return found
    old_slope, old_rho = sites.get(index)
    slope = torch.addcmul(fresh.tau, fresh.rho, sites.origin, value=-1.0).sub_(sites.shift.to(sites.origin))
    lowest, highest = (torch.add(old_rho, marginal_rho, alpha=part) for part in (1.0 / factor - 1.0, factor - 1.0))
    new_slope, new_rho = sites.replace(index, slope, fresh.rho.clamp(lowest, highest))
    marginal_rho.add_(new_rho - old_rho)
    return new_slope - old_slope


def move_means(sites: Sites, network: Network, innovation: Tensor, direction: Tensor, step: Tensor) -> Tensor:
    """Move the origin by a step along a direction; the shift takes up the balance, the marginal follows.

    Returns:
        The largest change of a mean, in posterior std.
    """
    origin, marginal, n = sites.origin, network.marginal, len(sites)
    if network.past is None:
        parts = (marginal, direction, step, innovation, network.prior.rho)
        found = kernels.move_means(origin, sites.shift, *parts, n_sites=n)
        if found is not None:
            return found
    moved = torch.addcmul(origin, direction, step)
    change = moved - origin  # as rounded, so that the balance stays exact
    origin.copy_(moved)
    sites.shift.add_(innovation - network.prior_pull(change), alpha=-1.0 / n)
    torch.mul(marginal.rho, origin, out=marginal.tau)
    return (change.square_() * marginal.rho).amax().sqrt_()
