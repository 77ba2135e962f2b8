r"""What data say beyond first order: their slopes turn while weights that they do not settle wander.

The joint belief N(m, H^{-1}) takes outputs for linear in the weights. Where data settle nothing it lets weights wander
as far as the prior does. But d away from the means slopes are others, J + dJ, and a further move v changes the outputs
of the data by dJ v, which to first order nobody sees. Other weights can make up for that, as far as the prior lets
outputs go: with covariance J P J^T, P the prior's. What they cannot make up for costs

    v^T dJ^T (Lambda^{-1} + J P J^T)^{-1} dJ v / 2

with Lambda the precision of the data. On average over d that is a curvature E beside H. Without other weights' help,
Lambda for the inverse, it would be that of variational inference, and bands outside the data far too narrow.

Draws d are those of the belief itself, a little closer to the means, in pairs d and -d. E has few eigenvalues that
count beside the prior, and these are what is kept (belief/bent.py). In a network of one layer slopes never turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bayesmp.arithmetic import SMALL_PASS, eigh, few_threads
from bayesmp.belief import Belief, Bent
from bayesmp.gaussian import Gaussian
from bayesmp.layers.linear import all_dense
from bayesmp.linearised import Linearised
from bayesmp.network import Network
from bayesmp.settings import SETTINGS, Settings

NEGLIGIBLE = 0.1  # curvature in units of the prior's; what is left out below changes no std by more than a twentieth


def can_bend(network: Network, belief: Belief, *, settings: Settings = SETTINGS) -> bool:
    """Whether `bend` answers: exact beliefs of small dense networks whose targets carry noise."""
    is_small = network.n_weights <= settings.bend_weights
    return network.head.has_noise and belief.is_exact and is_small and all_dense(network.layers)


@torch.no_grad()
def bend(network: Network, belief: Belief, x: Tensor, y: Tensor, *, settings: Settings = SETTINGS) -> Belief:
    """The belief with what data say beyond first order; the same where that is nothing.

    Args:
        network, belief: as trained on x and y.
        x, y: all training data; x may lie on the host. Of many some stand for all.
    """
    generator, head = torch.Generator().manual_seed(0), network.head
    chosen = torch.randperm(len(x), generator=generator)[: max(1, settings.bend_rows // network.n_outputs)]
    rows, targets = x[chosen.to(x.device)].to(network.device), y[chosen.to(y.device)]
    rho = head.to_latent(network.gradients(rows)[0], targets, network.head_log_weights[head.heard]).rho
    size = settings.bend_share**0.5
    drawn = [size * network.flat.from_matrices(belief.sample(generator)) for _ in range(settings.bend_draws // 2)]
    changes = [sign * change for change in drawn for sign in (1.0, -1.0)]
    stds = torch.cat([var.double().sqrt().flatten() for var in belief.prior_vars])
    with few_threads(network.device, n_products=settings.bend_rows * network.n_weights**2, small=SMALL_PASS):
        values, vectors = eigh(curvature(network, rows, len(x) / len(chosen) * rho.double(), changes, stds))
    kept = values > NEGLIGIBLE
    if not bool(kept.any()):
        return belief
    shapes = [var.shape for var in belief.prior_vars]
    parts = (vectors[:, kept] * values[kept].sqrt() / stds[:, None]).split([shape.numel() for shape in shapes])
    pulls = [part.view(*shape, -1).transpose(0, 1).contiguous() for part, shape in zip(parts, shapes, strict=True)]
    return Bent.of(belief, pulls).to(network.device, network.dtype)


def curvature(network: Network, x: Tensor, rho: Tensor, changes: Sequence[Tensor], stds: Tensor) -> Tensor:
    """E (w, w) in units of the prior, in float64, over the layers' matrices row by row.

    Args:
        x, rho: data, and the precision (n, o) with which they speak about their outputs.
        changes: of all weights, flat: the d over which it is averaged.
        stds: the prior's, (w,).
    """
    slopes, root = slopes_of(network.linearised, x, stds), rho.double().sqrt().flatten()[:, None]
    eye = torch.eye(len(root), dtype=root.dtype, device=root.device)
    factor = torch.linalg.cholesky(eye + (root * slopes) @ (root * slopes).T)
    found = torch.zeros(len(stds), len(stds), dtype=torch.float64, device=root.device)
    for change in changes:
        turned = slopes_of(moved(network, change), x, stds) - slopes
        left = torch.linalg.solve_triangular(factor, root * turned, upper=False)
        found += left.T @ left / len(changes)
    return found


def slopes_of(function: Linearised, x: Tensor, stds: Tensor) -> Tensor:
    """(n o, w) in float64: slopes of all outputs in all weights, in units of the prior's stds (w,)."""
    rows = torch.cat([part.flat().double() for part in function.gradients(x)[1]], 2)  # (o, n, w)
    return rows.transpose(0, 1).flatten(0, 1) * stds


def moved(network: Network, change: Tensor) -> Linearised:
    """The network's function around other means, as uncertain as around its own."""
    marginal = network.marginal
    belief = Gaussian(marginal.tau + marginal.rho * change.to(marginal.rho), marginal.rho)
    return replace(network.linearised, weights=network.weights(belief))
