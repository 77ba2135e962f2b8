r"""Kronecker-factored curvature of one layer over all data, shared by all batches: the metric of the parallel schedule.

A batch's slope in a layer's weights, (o, i), is a sum of outer products of what arrives from above and what comes from
below. Taking the two as independent, the curvature of all n examples is

    H = n G (x) A + rest,   A = E[a a^T] (i, i),   G = E[d d^T] (o, o)

with a the mean input (and 1 for the bias; patches for a convolution) and d the slope of the output mean, pulled back
from the head with random signs so that E[d d^T] is the Gauss-Newton curvature. `rest` is the prior's precision and what the inputs'
variances add. H only decides how fast means move along each direction, never where they come to rest, so it may lag and
may be rough: it is a running average, and its two inverses are renewed every few visits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp.equations.linear_maps import LinearMap

MOMENT_IMAGES = 16  # images of a batch from which A is estimated in a convolution: patches are plenty
TINY = 1e-12  # relative floor on traces, for layers nothing reaches yet


class LayerCurvature:
    """Running factors A, G and rest of one layer, and their inverses.

    Args:
        n_data: number of training examples.
        horizon: visits over which the running averages forget.
    """

    def __init__(self, n_data: int, horizon: float) -> None:
        self.n_data = n_data
        self.horizon = horizon
        self.n_updates = 0
        self.inputs: Tensor  # A
        self.slopes: Tensor  # G
        self.rest: Tensor
        self.inputs_inverse: Tensor
        self.slopes_inverse: Tensor

    def update(self, linear_map: LinearMap, mean_in: Tensor, slope: Tensor, rest: Tensor, *, has_bias: bool) -> None:
        """Take in one batch: mean inputs, pulled-back slopes of the outputs, and the diagonal rest for all data."""
        rows = linear_map.patches(mean_in[:MOMENT_IMAGES] if mean_in.ndim > 2 else mean_in).flatten(0, 1)  # (b p, i)
        if has_bias:
            rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        columns = linear_map.rows(slope).flatten(0, 1)  # (b p, o)
        inputs = rows.t() @ rows / len(rows)
        slopes = columns.t() @ columns / len(slope)
        self.n_updates += 1
        if self.n_updates == 1:
            self.inputs, self.slopes, self.rest = inputs, slopes, rest
            return
        share = max(1.0 / self.n_updates, 1.0 / self.horizon)
        self.inputs.lerp_(inputs, share)
        self.slopes.lerp_(slopes, share)
        self.rest.lerp_(rest, share)

    def refresh(self) -> None:
        r"""Renew the inverses of n (G + g 1) (x) (A + a 1), with a g = rest / n split in proportion to the mean eigenvalues."""
        inputs, slopes, rest = self.inputs.double(), self.slopes.double(), self.rest.double()
        mean_in = inputs.diagonal().mean().clamp_min(TINY)
        mean_out = slopes.diagonal().mean().clamp_min(TINY)
        balance = (mean_in / mean_out).sqrt()
        damping = (rest / self.n_data).sqrt()
        self.inputs_inverse = _inverse(inputs, balance * damping).to(self.inputs)
        self.slopes_inverse = (_inverse(slopes, damping / balance) / self.n_data).to(self.slopes)

    def solve(self, slope: Tensor) -> Tensor:
        """H^{-1} applied to a slope in the weights, (o, i)."""
        return self.slopes_inverse @ slope @ self.inputs_inverse


def _inverse(matrix: Tensor, ridge: Tensor) -> Tensor:
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    factor, _ = torch.linalg.cholesky_ex(matrix + ridge * eye)
    return torch.cholesky_inverse(factor)
