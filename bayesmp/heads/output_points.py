"""Fixed points that stand for a Gaussian: outputs are averaged over at them."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

# at so many outputs are averaged over: probabilities are off by .001 on average, .01 at worst, at variance 1
N_POINTS = 128


@cache
def output_points(n_outputs: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Points (s, c) that stand for a standard normal: a Sobol sequence, mirrored so that its mean is exactly 0."""
    unit = torch.quasirandom.SobolEngine(n_outputs, scramble=True, seed=0).draw(N_POINTS // 2, dtype=torch.float64)
    half = torch.special.ndtri(unit.clamp(1e-6, 1.0 - 1e-6))
    return torch.cat([half, -half]).to(device=device, dtype=dtype)


def root_of_covariance(covariance: Tensor) -> Tensor:
    """R with R R^T = covariance (b, c, c), in double precision; what rounding makes negative counts as nothing.

    Where outputs go together the smallest eigenvalue is rounding. A little is added to all, so that it is the lower
    triangle that is found, and not now this root and now another one, at which points lie elsewhere.
    """
    wide = covariance.double()
    share = max(1e-9, 32.0 * torch.finfo(covariance.dtype).eps)
    size = wide.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] + torch.finfo(torch.float32).tiny
    eye = torch.eye(wide.shape[1], dtype=wide.dtype, device=wide.device)
    factor, info = torch.linalg.cholesky_ex(wide + share * size * eye)
    failed = info != 0
    if bool(failed.any()):
        values, vectors = torch.linalg.eigh(wide[failed])
        factor[failed] = vectors * values.clamp_min(0.0).sqrt()[:, None, :]
    return factor.to(covariance)
