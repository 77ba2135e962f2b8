"""Two steps of a parallel visit on flat vectors of all weights: the site replaced, and the means moved. All in place.

On the CPU each is one pass over memory (kernels/sites.py); in these vectors, of as many entries as there are weights, a
visit would else read and write some thirty times.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.messages.gaussian import Gaussian
from bayesmp.network.network import Network
from bayesmp.sites.sites import SiteIndex, Sites


def take_site(sites: Sites, index: SiteIndex, fresh: Gaussian, marginal_rho: Tensor, *, factor: float) -> Tensor:
    """Replace a batch's site by what it says now, `fresh`; returns what is new of its slope at the origin, (w,).

    The marginal's precision follows. No precision of it grows or shrinks by more than `factor`.
    """
    row = sites.row(index)
    if row is not None:
        shared = (sites.origin, sites.shift, sites.offset)
        found = kernels.take_site(fresh, row, *shared, marginal_rho, factor=factor)
        if found is not None:
            return found
    old_slope, old_rho = sites.get(index)
    slope = torch.addcmul(fresh.tau, fresh.rho, sites.origin, value=-1.0)
    lowest, highest = (torch.add(old_rho, marginal_rho, alpha=part) for part in (1.0 / factor - 1.0, factor - 1.0))
    rho = fresh.rho.clamp(lowest, highest).to(sites.plan.dtype).to(slope)  # as the store rounds it
    new_slope, new_rho = sites.replace(index, slope.sub_(sites.common(rho).to(slope)), rho)
    marginal_rho.add_(new_rho - old_rho)
    other_share = (new_rho.double() - old_rho.double()) * sites.offset
    return other_share.add_(new_slope.double() - old_slope.double()).to(slope)  # as rounded, so that the balance stays


def move_means(sites: Sites, network: Network, innovation: Tensor, direction: Tensor, step: Tensor) -> Tensor:
    """Move the origin by a step along a direction; the slopes of all sites share out the balance, the marginal follows.

    Returns:
        The largest change of a mean, in posterior std.
    """
    origin, marginal, n = sites.origin, network.marginal, len(sites)
    if network.past is None:
        parts = (marginal, direction, step, innovation, network.prior.rho)
        found = kernels.move_means(origin, sites.shift, sites.offset, *parts, n_sites=n)
        if found is not None:
            return found
    moved = torch.addcmul(origin, direction, step)
    change = moved - origin  # as rounded, so that the balance stays exact
    origin.copy_(moved)
    sites.share_out(network.prior_pull(change) - innovation, marginal.rho, network.own_rho)
    torch.mul(marginal.rho, origin, out=marginal.tau)
    return (change.square_() * marginal.rho).amax().sqrt_()
