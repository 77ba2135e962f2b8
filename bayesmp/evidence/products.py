r"""Sums over the slopes of several numbers per example, without writing them out as rows.

The slopes of number k of example n in the weights of a dense layer are s_nk (x) a_n, with the same inputs a_n for all
numbers. So what two layers have in common,

    sum_k J_nk^T J_nk = (sum_k s_nk s'_nk^T) (x) (a_n a'_n^T),

costs as much for ten numbers as for one, and so does J_nk C J_nl^T = s_nk^T T_n s'_nl with T_n = a_n^T C a'_n. Rows are
written out where each example has one number, or where weights are shared over positions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.evidence.function import Slopes
from bayesmp.layers.base import Gradient

NUMBERS_AT_ONCE = 4_000_000  # of the products of some examples that are formed at once


def has_structure(part: Slopes) -> bool:
    """Whether rows need not be written out."""
    return part.outputs.shape[1] > 1 and all(each.inputs.shape[1] == 1 for each in part.gradients)


def gram(part: Slopes) -> Tensor:
    """sum_n J_n^T J_n, (w, w)."""
    if not has_structure(part):
        flat = part.flat()
        return flat.T @ flat
    layers = [_Layer.of(each) for each in part.gradients]
    starts = _starts([layer.n_weights for layer in layers])
    found = part.outputs.new_empty(starts[-1], starts[-1])
    for i, one in enumerate(layers):
        for j, other in enumerate(layers[: i + 1]):
            sizes = one.sizes[0], other.sizes[0], one.sizes[1], other.sizes[1]
            block = part.outputs.new_zeros(sizes[0] * sizes[1], sizes[2] * sizes[3])
            for rows in _some(len(part.outputs), block.shape):
                outer = torch.einsum("nko,nkp->nop", one.slopes[rows], other.slopes[rows])
                across = one.inputs[rows, :, None] * other.inputs[rows, None, :]
                block.addmm_(outer.flatten(1).T, across.flatten(1))
            block = block.view(sizes).permute(0, 2, 1, 3).reshape(one.n_weights, other.n_weights)
            found[starts[i] : starts[i + 1], starts[j] : starts[j + 1]] = block
            found[starts[j] : starts[j + 1], starts[i] : starts[i + 1]] = block.T
    return found


def held(part: Slopes, covariance: Tensor) -> Tensor:
    """J_n C J_n^T of each example, (n, k, k)."""
    n, k = part.outputs.shape
    if not has_structure(part):
        flat = part.flat()
        mixed = (flat @ covariance).view(k, n, -1)
        return torch.einsum("knw,lnw->nkl", mixed, flat.view(k, n, -1))
    total = part.outputs.new_zeros(n, k, k)
    for rows, (one, other), (i, j), met in _met(part, covariance):
        own = one.slopes[rows] @ met @ other.slopes[rows].mT
        total[rows] += own if i == j else own + own.mT
    return total


def met_each(part: Slopes, covariance: Tensor, given: Collection[int]) -> list[tuple[Tensor | None, Tensor]]:
    """Slopes of sum_nk J_nk C J_nk^T / 2, layer by layer: in the inputs (n, p, i), None where these are given, and in
    the slopes (k, n, p, o).
    """
    n = len(part.outputs)
    if not has_structure(part):
        return _met_rows(part, covariance, given)
    layers = [_Layer.of(each) for each in part.gradients]
    to_inputs = [torch.zeros_like(layer.inputs) for layer in layers]
    to_slopes = [torch.zeros_like(layer.slopes) for layer in layers]
    for rows, (one, other), (i, j), met in _met(part, covariance):
        to_slopes[i][rows] += other.slopes[rows] @ met.mT
        if i != j:
            to_slopes[j][rows] += one.slopes[rows] @ met
    starts = _starts([layer.n_weights for layer in layers])
    for i, one in enumerate(layers):
        if i in given:
            continue
        for j, other in enumerate(layers):
            block = _block(covariance, starts, i, j, one.sizes, other.sizes)  # (o p, i j)
            for rows in _some(n, block.shape):
                outer = torch.einsum("nko,nkp->nop", one.slopes[rows], other.slopes[rows]).flatten(1)
                across = (outer @ block).view(-1, one.sizes[1], other.sizes[1])
                to_inputs[i][rows] += (across @ other.inputs[rows, :, None])[..., 0]
    pairs = enumerate(zip(to_inputs, to_slopes, strict=True))
    return [(None if i in given else a[:, None], s.transpose(0, 1)[:, :, None]) for i, (a, s) in pairs]


def _met_rows(part: Slopes, covariance: Tensor, given: Collection[int]) -> list[tuple[Tensor | None, Tensor]]:
    n, k = part.outputs.shape
    shapes = [(each.slopes.shape[3], each.inputs.shape[2]) for each in part.gradients]
    parts = (part.flat() @ covariance).view(k, n, -1).split([n_out * n_in for n_out, n_in in shapes], 2)
    found: list[tuple[Tensor | None, Tensor]] = []
    for layer, (own, gradient, shape) in enumerate(zip(parts, part.gradients, shapes, strict=True)):
        per_weight = own.unflatten(2, shape)  # (k, n, o, i)
        inputs = None if layer in given else torch.einsum("knoi,knpo->npi", per_weight, gradient.slopes)
        found.append((inputs, torch.einsum("knoi,npi->knpo", per_weight, gradient.inputs)))
    return found


@dataclass(frozen=True)
class _Layer:
    """Inputs (n, i) and slopes (n, k, o) of a dense layer."""

    inputs: Tensor
    slopes: Tensor

    @classmethod
    def of(cls, gradient: Gradient) -> _Layer:
        return cls(gradient.inputs[:, 0], gradient.slopes[:, :, 0].transpose(0, 1).contiguous())

    @property
    def sizes(self) -> tuple[int, int]:
        """(o, i)."""
        return self.slopes.shape[2], self.inputs.shape[1]

    @property
    def n_weights(self) -> int:
        return self.sizes[0] * self.sizes[1]


def _met(part: Slopes, covariance: Tensor) -> Iterator[tuple[slice, tuple[_Layer, _Layer], tuple[int, int], Tensor]]:
    """T_n = a_n^T C a'_n, (n, o, p), of some examples at a time and each pair of layers, the later one first."""
    layers = [_Layer.of(each) for each in part.gradients]
    starts = _starts([layer.n_weights for layer in layers])
    for i, one in enumerate(layers):
        for j, other in enumerate(layers[: i + 1]):
            block = _block(covariance, starts, i, j, one.sizes, other.sizes).T.contiguous()  # (i j, o p)
            for rows in _some(len(part.outputs), block.shape):
                across = one.inputs[rows, :, None] * other.inputs[rows, None, :]
                met = (across.flatten(1) @ block).view(-1, one.sizes[0], other.sizes[0])
                yield rows, (one, other), (i, j), met


def _block(
    covariance: Tensor, starts: Sequence[int], i: int, j: int, one: tuple[int, int], other: tuple[int, int]
) -> Tensor:
    """What C says of two layers, (o p, i j)."""
    found = covariance[starts[i] : starts[i + 1], starts[j] : starts[j + 1]].view(*one, *other)
    return found.permute(0, 2, 1, 3).reshape(one[0] * other[0], one[1] * other[1])


def _starts(sizes: Sequence[int]) -> list[int]:
    found = [0]
    for size in sizes:
        found.append(found[-1] + size)
    return found


def _some(n: int, shape: Sequence[int]) -> Iterator[slice]:
    """Examples whose products of this shape fit into memory at once."""
    size = max(1, NUMBERS_AT_ONCE // sum(shape))
    for start in range(0, n, size):
        yield slice(start, min(n, start + size))
