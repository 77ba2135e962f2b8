r"""Directions in the space of all weights, kept layer by layer as (i, o, r), and what data say along them.

A row of J is an outer product in every dense layer, g (x) a, so that it meets r directions at o r + o i r / k
multiplications if the k outputs of an example share their input a: the input goes first. Along m anchors, without
directions, it takes m r (anchored.py). With many outputs the first is far less.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesmp.belief.anchors import LayerAnchors
from bayesmp.layers.base import Gradient

SLOWER = 2.2  # time of a multiplication along directions, in small products, over that of one along anchors
AT_ONCE = 64  # examples, at least: directions of a small network are read from memory again for each such part
CROSSING = 1.3  # time along anchors, with what meets them, over that of its largest product


def pay(shapes: Sequence[tuple[int, int]], n_examples: int, n_outputs: int, n_anchors: int) -> bool:
    """Whether directions take less time than anchors for all outputs of n examples, the time in which they are formed
    included.

    Args:
        shapes: (o, i) of each layer.
    """
    n_rows = n_examples * n_outputs
    forming = n_anchors * sum(n_out * n_in for n_out, n_in in shapes)
    meeting = n_rows * sum(n_out for n_out, _ in shapes) + n_examples * sum(n_out * n_in for n_out, n_in in shapes)
    return forming + SLOWER * meeting < CROSSING * n_rows * n_anchors


def form(anchor: LayerAnchors, weights: Tensor) -> Tensor:
    """(i, o, r): J_z^T applied to weights (m, r), in their dtype. Rows of the anchors must not be formed."""
    assert anchor.inputs is not None and anchor.slopes is not None
    inputs, slopes = anchor.inputs.to(weights), anchor.slopes.to(weights)
    rows = (inputs[:, :, None] * slopes[:, None, :]).flatten(1)  # (m, i o)
    return (rows.T @ weights).view(inputs.shape[1], slopes.shape[1], -1)


def along(gradient: Gradient, directions: Tensor) -> Tensor:
    """(b, k, r): rows of a layer's gradient times directions (i, o, r)."""
    n_in, n_out, rank = directions.shape
    if gradient.inputs.shape[1] > 1:
        rows = gradient.flat().transpose(0, 1).to(directions)  # (b, k, o i)
        return rows @ directions.transpose(0, 1).reshape(n_out * n_in, rank)
    met = (gradient.inputs[:, 0].to(directions) @ directions.flatten(1)).view(-1, n_out, rank)
    return gradient.slopes[:, :, 0].transpose(0, 1).to(directions) @ met


def along_all(gradients: Sequence[Gradient | None], parts: Sequence[Tensor]) -> Tensor:
    """(b, k, r): rows of all layers that take part, times directions (i, o, r) of each."""
    given = zip(gradients, parts, strict=True)
    return functools.reduce(torch.add, [along(gradient, part) for gradient, part in given if gradient is not None])


def gather(gradient: Gradient, weights: Tensor) -> Tensor:
    """(i, o, r): sum of J^T applied to weights (b, k, r), over examples and outputs of a dense layer."""
    slopes = gradient.slopes[:, :, 0].permute(1, 2, 0).to(weights)  # (b, o, k)
    mixed = slopes @ weights
    found = gradient.inputs[:, 0].T.to(weights) @ mixed.flatten(1)
    return found.view(-1, *mixed.shape[1:])


def meet(parts: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """(r, r) in float64: sums over all weights of products of two lists of directions."""
    found = [part.flatten(0, 1).T @ other.flatten(0, 1) for part, other in zip(parts, others, strict=True)]
    return torch.stack(found).double().sum(0)
