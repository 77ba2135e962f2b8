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

from dataclasses import replace

import torch
from torch import Tensor

from bayesmp.arithmetic import eigh
from bayesmp.belief import Belief, Bent
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.layers.linear import all_dense
from bayesmp.linearised import Linearised
from bayesmp.network import Network
from bayesmp.settings import SETTINGS, Settings

NEGLIGIBLE = 0.02  # curvature in units of the prior's that changes no std by more than a hundredth


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
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(x), generator=generator)[: max(1, settings.bend_rows // network.n_outputs)]
    rows, targets = x[chosen.to(x.device)].to(network.device), y[chosen.to(y.device)]
    stds = torch.cat([var.double().sqrt().flatten() for var in belief.prior_vars])
    m_out, slopes = slopes_of(network.linearised, rows, stds)
    rho = network.head.to_latent(m_out, targets, network.head_log_weights[network.head.heard]).rho
    root = (len(x) / len(chosen) * rho.double()).sqrt().flatten()[:, None]  # Lambda^{1/2}
    eye = torch.eye(len(root), dtype=root.dtype, device=root.device)
    factor = torch.linalg.cholesky(eye + (root * slopes) @ (root * slopes).T)
    curvature = torch.zeros(len(stds), len(stds), dtype=torch.float64, device=root.device)
    for _ in range(settings.bend_draws // 2):
        drawn = network.flat.from_matrices(belief.sample(generator)) * settings.bend_share**0.5
        for change in (drawn, -drawn):
            turned = slopes_of(moved(network, change), rows, stds)[1] - slopes
            left = torch.linalg.solve_triangular(factor, root * turned, upper=False)
            curvature += left.T @ left / settings.bend_draws
    values, vectors = eigh(curvature)
    kept = values > NEGLIGIBLE
    if not bool(kept.any()):
        return belief
    flat = vectors[:, kept] * values[kept].sqrt() / stds[:, None]
    shapes = [var.shape for var in belief.prior_vars]
    parts = flat.split([shape.numel() for shape in shapes])
    return Bent.of(
        belief, [part.view(*shape, -1).transpose(0, 1).contiguous() for part, shape in zip(parts, shapes, strict=True)]
    )


def slopes_of(function: Linearised, x: Tensor, stds: Tensor) -> tuple[Moments, Tensor]:
    """Outputs, and the slopes (n o, w) of all of them in all weights, in units of the prior's stds (w,), in float64."""
    m_out, gradients = function.gradients(x)
    rows = torch.cat([part.flat().double() for part in gradients], 2)  # (o, n, w)
    return m_out, rows.transpose(0, 1).flatten(0, 1) * stds


def moved(network: Network, change: Tensor) -> Linearised:
    """The network's function around other means, as uncertain as around its own."""
    marginal = network.marginal
    belief = Gaussian(marginal.tau + marginal.rho * change.to(marginal.rho), marginal.rho)
    return replace(network.linearised, weights=network.weights(belief))
