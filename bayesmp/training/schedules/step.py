r"""How much of a direction d = H^{-1} j to take: all of it, or less, or where many batches share the data more.

Two numbers are measured on a batch (`sweep.along`): its true curvature along d, joint over all layers, and its reach,
how far d moves a layer's outputs, at most, in units of their spread over the batch; beyond `max_reach` the curvature
means nothing. `model` is d^T H d, what the metric says of all data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesmp.basics.settings import Settings

LONGEST_OF_ALL = 2.0  # a step that no visit repeats: the metric may count curvature twice


def stretch_of(n_batches: int, settings: Settings) -> float:
    """How many times as long as the metric says a step may be: more only where many batches share the data.

    A visit moves the means by what one batch has to tell, and how the others' slopes really changed is heard only when
    they are visited. So with stretch 1 an epoch is one Newton step, however many batches it has, and H bounds the
    curvature from above. With a step s times too long the innovation of the next visits is (1 - s) times the mean of
    the last n, which dies out for s < n + 1 if batches are alike; the stretch stays far below, because they are not.
    """
    longest, share = settings.stretch
    return max(1.0, min(longest, share * n_batches))


def step_of_batch(curvature: Tensor, reach: Tensor, model: Tensor, *, n_batches: int, settings: Settings) -> Tensor:
    r"""The share alpha of d to take at a visit to one of n batches.

    A line search on the whole surrogate: this batch measured, all others as H has them over the stretch. With c its
    curvature and that of the past,
        alpha = 1 / max(1/stretch, (1 - 1/n) / stretch + c / model, reach / max_reach)
    """
    stretch = stretch_of(n_batches, settings)
    stiffness = _ratio(curvature, model) + (1.0 - 1.0 / n_batches) / stretch
    return torch.maximum(stiffness, reach / settings.max_reach).clamp_min(1.0 / stretch).reciprocal()


def step_of_all(curvature: Tensor, reach: Tensor, model: Tensor, *, settings: Settings) -> Tensor:
    """The share of d to take that no batch speaks for, with the curvature of all data and the prior's."""
    stiffness = torch.maximum(_ratio(curvature, model), reach / settings.max_reach)
    return stiffness.clamp_min(1.0 / LONGEST_OF_ALL).reciprocal()


def _ratio(curvature: Tensor, model: Tensor) -> Tensor:
    return curvature / model.clamp_min(torch.finfo(model.dtype).tiny)
