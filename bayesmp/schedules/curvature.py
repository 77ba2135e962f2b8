r"""Kronecker-factored curvature of one layer over all data, shared by all batches: the metric of the parallel schedule.

For output unit o of a layer, the n training examples curve the weights by sum_n q_no a_n a_n^T plus a diagonal, with a the mean
inputs (and 1 for the bias; patches for a convolution) and q_no what arrives from above. Taking the two as independent,

    H_o = n G_o A + rest,   A = E[a a^T] (i, i),   G_o = E[q_no]

`rest` is the prior's precision and what the inputs' variances add. The messages' own precisions are the diagonal of
this; the rest of A matters because activations are correlated (their means are not zero), which makes the true curvature
along a typical step many times the diagonal one. H only decides how fast means move along each direction, never where they
come to rest, so it may lag and be rough: it is a running average, and its inverse is renewed every few visits.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOMENT_ROWS = 4096  # patches of a batch from which A is estimated: plenty for a running average


class LayerCurvature:
    """Running factors A, G and rest of one layer, and their inverse; updated in place.

    Args:
        n_data: number of training examples.
        n_rows, n_columns: number of output units, and of weights per unit (bias included).
        like: a tensor of the dtype and device to use.
    """

    def __init__(self, n_data: int, n_rows: int, n_columns: int, *, like: Tensor) -> None:
        self.n_data = n_data
        self.inputs = like.new_zeros(n_columns, n_columns)  # A
        self.slopes = like.new_zeros(n_rows)  # G
        self.rest = like.new_zeros(())
        self.inputs_inverse = like.new_zeros(n_columns, n_columns)
        self.slopes_inverse = like.new_zeros(n_rows)

    def update(self, rows: Tensor, slopes: Tensor, rest: Tensor, share: Tensor) -> None:
        """Move the running averages by `share` towards one batch: input rows (r, i), curvature per unit and example."""
        self.inputs.lerp_(rows.t() @ rows / len(rows), share)
        self.slopes.lerp_(slopes, share)
        self.rest.lerp_(rest, share)

    def renew(self) -> None:
        r"""Invert n (G_o + g) (A + a 1), with a g = rest / n split in proportion to the mean eigenvalues."""
        inputs, slopes = self.inputs.double(), self.slopes.double()
        mean_in, mean_out = inputs.diagonal().mean(), slopes.mean()
        tiny = torch.finfo(torch.float32).tiny
        balance = ((mean_in + tiny) / (mean_out + tiny)).sqrt()
        damping = (self.rest.double() / self.n_data).sqrt()
        ridge = balance * damping * torch.eye(len(inputs), dtype=inputs.dtype, device=inputs.device)
        factor, _ = torch.linalg.cholesky_ex(inputs + ridge)
        self.inputs_inverse.copy_(torch.cholesky_inverse(factor))
        self.slopes_inverse.copy_(1.0 / (self.n_data * (slopes + damping / balance)))

    def solve(self, slope: Tensor) -> Tensor:
        """H^{-1} applied to a slope in the weights, (o, i)."""
        return self.slopes_inverse[:, None] * (slope @ self.inputs_inverse)

    def state(self) -> dict[str, Tensor]:
        names = ("inputs", "slopes", "rest", "inputs_inverse", "slopes_inverse")
        return {name: getattr(self, name) for name in names}
