"""What a file must hold of a joint belief: every tensor with its type, shape and range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesmp.basics.persistence import SavedFile
from bayesmp.basics.typed import Count, Positive
from bayesmp.belief.base import from_thin, thin, thin_shapes

TINY = 5e-324  # the smallest variance: none is 0


@dataclass(frozen=True)
class FullHeader:
    """What `Full.description` says."""

    form: Literal["full"]
    n_layers: Positive
    n_rows: Count


@dataclass(frozen=True)
class AnchoredHeader:
    """What `Anchored.description` says."""

    form: Literal["anchored"]
    n_layers: Positive
    is_exact: bool
    is_wide: bool
    is_formed: bool
    n_rows: Count
    couples: list[bool]


BeliefHeader = FullHeader | AnchoredHeader
Shapes = Sequence[tuple[int, ...]]


def read_tensors(
    described: BeliefHeader,
    file: SavedFile,
    shapes: Shapes,
    dtype: torch.dtype,
    input_shape: tuple[int, ...],
    n_outputs: int,
) -> dict[str, Tensor]:
    """The tensors of a belief in a part of a file, under the names that `Belief.state` gives them.

    Args:
        described: what the header says of it.
        file: the part.
        shapes: of the matrices of weights (o, i), one per layer.
        dtype: of the network.
        input_shape, n_outputs: of the network, for the inputs that the file keeps.
    """
    if described.n_layers != len(shapes):
        raise ValueError(f"the joint belief is about {described.n_layers} layers, the network has {len(shapes)}")
    if isinstance(described, FullHeader):
        found = _read_full(file, shapes)
    else:
        found = _read_anchored(described, file, shapes, dtype)
    if "points.x" in file.names():
        m = file.shape("points.x")[0]
        found["points.x"] = file.tensor("points.x", (m, *input_shape), dtype)
        found["points.mixes"] = file.tensor("points.mixes", (m, n_outputs), dtype)
    return found


def _read_full(file: SavedFile, shapes: Shapes) -> dict[str, Tensor]:
    n = sum(n_out * n_in for n_out, n_in in shapes)
    found = {"whitener": _read_thin(file, "whitener", n)}
    if not bool((from_thin(found["whitener"], n).diagonal() > 0.0).all()):
        raise ValueError("'whitener' must have a diagonal above 0")
    return found | {
        f"std.{k}": file.tensor(f"std.{k}", shape, torch.float64, low=TINY) for k, shape in enumerate(shapes)
    }


def _read_thin(file: SavedFile, name: str, r: int) -> Tensor:
    """What `thin` made of a matrix (r, r)."""
    shapes, shape = thin_shapes(r), file.shape(name)
    found = file.tensor(name, shape if shape in shapes else (r, r), torch.float64)
    if thin(from_thin(found, r)).shape != found.shape:
        raise ValueError(f"{name!r} must be kept as its diagonal or its triangle if nothing is outside")
    return found


def _read_anchored(described: AnchoredHeader, file: SavedFile, shapes: Shapes, dtype: torch.dtype) -> dict[str, Tensor]:
    if len(described.couples) != len(shapes):
        raise ValueError(f"couples must have {len(shapes)} entries, got {len(described.couples)}")
    turn = file.tensor("turn", dtype=torch.float64)
    if turn.ndim != 2 or len(turn) < turn.shape[1]:
        raise ValueError(f"'turn' must have the shape (anchors, fewer or as many), got {tuple(turn.shape)}")
    m, r = turn.shape
    found = {"turn": turn, **{name: _read_thin(file, name, r) for name in ("half", "reduction")}}
    dtype = torch.float64 if described.is_wide else dtype
    for k, shape in enumerate(shapes):
        found |= _read_layer(file, k, shape, dtype, m, couples=described.couples[k])
    if described.is_formed and any(f"rows.{k}" in found for k in range(len(shapes))):
        raise ValueError("a belief whose rows are formed has no directions")
    return found


def _read_layer(
    file: SavedFile, k: int, shape: tuple[int, ...], dtype: torch.dtype, m: int, *, couples: bool
) -> dict[str, Tensor]:
    """The anchors in one layer, as factors or formed, its prior, and what is left of that outside their span."""
    n_out, n_in = shape
    names, found = file.names(), {}
    prior_var = file.tensor(f"prior_var.{k}", shape, dtype, low=TINY)
    is_even = bool((prior_var == prior_var[:1]).all())
    if f"rows.{k}" in names:
        found[f"rows.{k}"] = file.tensor(f"rows.{k}", (m, n_out * n_in), dtype)
    else:
        found[f"inputs.{k}"] = file.tensor(f"inputs.{k}", (m, n_in), dtype)
        found[f"slopes.{k}"] = file.tensor(f"slopes.{k}", (m, n_out), dtype)
        if not is_even:
            raise ValueError(f"the prior of layer {k} differs between units, so its rows must be formed")
    if couples:
        base = file.tensor(f"base.{k}", (n_in, n_in), dtype)
        is_fine = f"rows.{k}" not in found and bool((base.diagonal() > 0.0).all())
    else:
        wanted = (n_in,) if is_even else (n_out, n_in)
        base, is_fine = file.tensor(f"base.{k}", wanted, dtype, low=0.0), True
    if not is_fine:
        raise ValueError(f"'base.{k}' must be the covariance of a layer of dense weights, with variances above 0")
    return {**found, f"prior_var.{k}": prior_var, f"base.{k}": base}
