"""An orthonormal basis of the span of some rows, from their Gram matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp.basics.arithmetic import eigh

NEGLIGIBLE = 1e-6  # eigenvalues of the anchors' Gram matrix below this share of the largest are rounding in float32
NEGLIGIBLE_WIDE = 1e-13  # the same in float64
FAR_ABOVE = 3.0  # times that, as estimated, where surely none is
POWERS = 8  # after which a vector tells the largest eigenvalue, of a thousand, to a factor of 1.5


def orthonormal(gram: Tensor, negligible: float = NEGLIGIBLE, *, by_eigenvectors: bool = False) -> Tensor:
    """T (m, r) in float64 with T^T gram T = I, whose span has all eigenvectors with values above this share of the
    largest.

    If all are, the Cholesky factor tells as much as all eigenvectors, in a tenth of the time.
    """
    factor, fails = torch.linalg.cholesky_ex(gram)
    low, high = factor.diagonal().square().aminmax()  # between the smallest and the largest eigenvalue
    if not by_eigenvectors and not bool(fails) and bool(low > negligible * high):
        eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
        if FAR_ABOVE * negligible * _largest(factor.T) * _largest(inverse) < 1.0:
            return inverse.T.contiguous()
    values, vectors = eigh(gram)
    kept = values > negligible * values[-1].clamp_min(torch.finfo(values.dtype).tiny)
    return (vectors[:, kept] * values[kept].rsqrt()).contiguous()


def _largest(root: Tensor) -> float:
    """The largest eigenvalue of root^T root, from below."""
    vector = torch.randn(len(root), generator=torch.Generator().manual_seed(0), dtype=root.dtype).to(root.device)
    for _ in range(POWERS):
        vector = torch.mv(root.T, torch.mv(root, vector / torch.linalg.vector_norm(vector)))
    return float(torch.linalg.vector_norm(vector))
