"""How far a change goes, in units of the spread of what it changes."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp.messages.gaussian import Moments


def squared_reach(m_out: Moments, change: Tensor) -> Tensor:
    """Mean square of `change` over the spread of what it changes: the variance of all entries of m_out, between them
    and of each; a scalar. All three have one shape and layout of memory.
    """
    spread = m_out.mean.var(correction=0) + m_out.var.mean()
    mean_square = torch.linalg.vector_norm(change).square() / change.numel()  # in any layout of memory
    return mean_square / (spread + torch.finfo(change.dtype).tiny)
