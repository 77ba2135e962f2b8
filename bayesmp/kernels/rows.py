"""What happens at each row of a small batch in one C++ call instead of dozens (rows.cpp); float32 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp.equations.linear import SumMoments, UnitSums
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.kernels.compiled import entry_of, is_one_number, pointers


def exact_back(
    m_in: Moments | Tensor, weight: Moments, bias_var: Tensor | None, m_z: SumMoments, m_back: Gaussian
) -> tuple[Gaussian, Gaussian | None, UnitSums]:
    """equations.linear.exact_back and unit_sums for dense layers: inputs (b, i), weights (o, i), sums (b, o)."""
    is_known = not isinstance(m_in, Moments)
    mean, var = (m_in.mean, m_in.var) if isinstance(m_in, Moments) else (m_in, m_in)
    (n, n_in), n_out = mean.shape, weight.shape[0]
    is_constant = is_one_number(m_z.input_var)
    parts = [mean, var, weight.mean, weight.var, m_z.mean, m_z.var, m_z.input_var, m_back.tau, m_back.rho]
    parts = [part if k == 6 and is_constant else part.contiguous() for k, part in enumerate(parts)]
    parts.append(mean.new_zeros(n_out) if bias_var is None else bias_var.contiguous())
    size = n_out * n_in
    wide = torch.zeros(2 * size + 3 * n_out, dtype=torch.float64)
    to_input = torch.zeros(2, 0 if is_known else n, n_in, dtype=torch.float32)
    to_weight, sums = wide.data_ptr(), wide.data_ptr() + 16 * size  # behind 2 * size numbers of 8 bytes
    entry_of("exact_back")(n, n_out, n_in, is_known, is_constant, pointers(parts), to_weight, sums, to_input.data_ptr())
    tau, rho, *found = wide.to(mean.dtype).split_with_sizes([size, size, n_out, n_out, n_out])
    to_inputs = None if is_known else Gaussian(to_input[0], to_input[1])
    return Gaussian(tau.view(n_out, n_in), rho.view(n_out, n_in)), to_inputs, UnitSums(*found)


def argmax_to_latent(
    m_in: Moments, y: Tensor, *, noise: float, target: float, target_var: float, centre: float | Tensor = 0.0
) -> Gaussian:
    """equations.likelihood.argmax_to_latent."""
    mean, var, labels = m_in.mean.contiguous(), m_in.var.contiguous(), y.contiguous()
    out = torch.empty(2, *mean.shape, dtype=torch.float32)
    constants = (noise, target / target_var, 1.0 / target_var)
    entry_of("argmax_to_latent")(
        *mean.shape, labels.data_ptr(), pointers([mean, var]), out.data_ptr(), *map(float, constants)
    )
    if isinstance(centre, Tensor) or centre != 0.0:
        out[0] += centre / target_var
    return Gaussian(out[0], out[1])
