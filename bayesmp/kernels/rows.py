"""What happens at each row of a small batch in one C++ call instead of dozens (rows.cpp); float32 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp.kernels.compiled import entry_of, pointers
from bayesmp.messages.gaussian import Gaussian, Moments


def argmax_to_latent(
    m_in: Moments, y: Tensor, *, noise: float, target: float, target_var: float, centre: float | Tensor = 0.0
) -> Gaussian:
    """messages.likelihood.argmax_to_latent."""
    mean, var, labels = m_in.mean.contiguous(), m_in.var.contiguous(), y.contiguous()
    out = torch.empty(2, *mean.shape, dtype=torch.float32)
    constants = (noise, target / target_var, 1.0 / target_var)
    entry_of("argmax_to_latent")(
        *mean.shape, labels.data_ptr(), pointers([mean, var]), out.data_ptr(), *map(float, constants)
    )
    if isinstance(centre, Tensor) or centre != 0.0:
        out[0] += centre / target_var
    return Gaussian(out[0], out[1])
