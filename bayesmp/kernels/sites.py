"""A visit's arithmetic on flat vectors of all weights, each in one pass (sites.cpp); float32 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp.kernels.compiled import entry_of, pointers
from bayesmp.messages.gaussian import Gaussian


def take_site(
    fresh: Gaussian,
    site: tuple[Tensor, Tensor],
    origin: Tensor,
    shift: Tensor,
    offset: Tensor,
    rho: Tensor,
    *,
    factor: float,
) -> Tensor:
    """schedules.site_step.take_site: `site`, slope and precision, and the marginal's `rho` are changed in place."""
    assert all(part.is_contiguous() for part in (fresh.tau, fresh.rho, *site, origin, shift, offset, rho))
    innovation = torch.empty_like(origin)
    entry_of("take_site")(
        len(origin),
        1.0 / factor - 1.0,
        factor - 1.0,
        pointers([fresh.tau, fresh.rho, origin]),
        *(part.data_ptr() for part in (shift, offset, *site, rho, innovation)),
    )
    return innovation


def move_means(
    origin: Tensor,
    shift: Tensor,
    offset: Tensor,
    marginal: Gaussian,
    direction: Tensor,
    step: Tensor,
    innovation: Tensor,
    prior_rho: Tensor,
    *,
    n_sites: int,
) -> Tensor:
    """schedules.site_step.move_means: origin, shift, offset and the marginal's tau are changed in place."""
    vectors = (origin, shift, offset, marginal.tau, marginal.rho, direction, innovation, prior_rho)
    assert all(part.is_contiguous() for part in vectors)
    inputs = pointers([direction, innovation, prior_rho, marginal.rho, step])
    changed = (part.data_ptr() for part in (origin, marginal.tau, shift, offset))
    moved = entry_of("move_means")(len(origin), 1.0 / n_sites, inputs, *changed)
    return torch.tensor(moved, dtype=torch.float32).sqrt_()
