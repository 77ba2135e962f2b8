"""Networks in small files: what can be computed again is left out, and float32 is written where it says the same.

The most room is taken by the joint belief. Where training had an objective it is made of some rows of the data's slopes,
and these come from inputs that the file holds anyway: so the inputs suffice, and `formed` makes the belief again when
the file is read. Other beliefs are kept in float32, triangles of matrices alone. A belief that would predict otherwise
at its own rows is kept as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bayesmp.basics.arithmetic import undisturbed
from bayesmp.belief import MAX_RANK, Anchored, AnchoredBasis, Belief, Full, Points, from_state
from bayesmp.belief.base import root_of
from bayesmp.belief.files import AnchoredHeader, packed
from bayesmp.layers.base import Gradient
from bayesmp.network.linearised import Linearised
from bayesmp.network.network import Network

MOST_POINTS = 2 * MAX_RANK  # whose belief is formed again; products of all with all must fit into memory
MOST_SLOPES = 20_000_000  # numbers of all their slopes together
SAME_STD = 1e-3  # relative difference of standard deviations that counts as none
SAME_PRECISION = 1e-6


@torch.no_grad()
@undisturbed()
def compacted(network: Network) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """`description` and `state` of a network for a small file."""
    described, state = {**network.description(), "is_compact": True}, network.state()
    if described["belief"] is not None:
        small = _smaller(network)
        if small is not None:
            state = {name: part for name, part in state.items() if not name.startswith("belief.")}
            described["belief"] = small[0]
            state |= {f"belief.{name}": part for name, part in small[1].items()}
    for name in [name for name in state if name.startswith("fitted.spread.")]:
        state[name] = packed(state[name])
    return described, {name: _narrowed(part) for name, part in state.items()}


def _smaller(network: Network) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Description and state of the joint belief, if there is a smaller one that says the same."""
    belief = network.belief
    assert belief is not None
    points = belief.basis.points
    if points is None:
        return None
    function, variances = bare(network), prior_vars(network)
    _, gradients = function.mixed_gradients(points)
