r"""What each example last sent to the sums of dense layers, so that it need not hear its own echo.

Messages inside a visit belong to cavities, beliefs that have not seen the example; the parallel schedule has marginals,
which have. An example's own message is a large part of what the marginals know about a
sum z. Taking it out needs one number per example and unit, the slope g that it sent at its last visit:

    E[z] - Var[z | inputs] g

An echo may also go a longer way: a pull on a lower layer changes the outputs, and with them the next pull. Its gain
stays below 1 as long as the residual is divided by all of the variance that the layers put into z (linear.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bayesmp.layers.base import Local
from bayesmp.layers.linear import Linear, SumLocal
from bayesmp.network.graph import Node, Returned, Trace
from bayesmp.network.network import Network
from bayesmp.training.schedules.base import Batch, Kept


class OwnPulls(dict[int, Tensor]):
    """By node, for every linear one: slopes (n, b, o) of n batches of at most b examples."""

    @classmethod
    def of(cls, network: Network, *, n_batches: int, largest_batch: int) -> OwnPulls:
        """Nothing was sent yet."""
        like = network.prior.rho
        return cls(
            (node.index, like.new_zeros(n_batches, largest_batch, node.layer.n_out))
            for node in network.graph.nodes
            if isinstance(node.layer, Linear)
        )

    def rearrange(self, kept: Sequence[Kept], n_new: int, largest_batch: int) -> None:
        """Follow examples to other places of other batches; those of new batches have sent nothing."""
        for k, old in self.items():
            self[k] = old.new_zeros(len(kept) + n_new, largest_batch, old.shape[2])
            for row, batch in enumerate(kept):
                self[k][row, : len(batch.places)] = old[batch.row, batch.places] * (batch.places >= 0)[:, None]

    def join(self, parts: Sequence[OwnPulls]) -> None:
        """Take over what the examples of other runs have sent, whose batches these are, in this order."""
        for k, pulls in self.items():
            row = 0
            for part in parts:
                n, b = part[k].shape[:2]
                pulls[row : row + n, :b] = part[k]
                row += n

    def take_out(self, batch: Batch, node: Node, local: Local) -> Local:
        """What a node leaves, as its weights would have it without the example; others as they are."""
        if node.index not in self or not isinstance(local, SumLocal):
            return local
        return local.without_own(batch.index.row_of(self[node.index])[: len(batch.x)])

    def take_out_at(self, row: int, places: Tensor, node: Node, local: Local) -> Local:
        """The same for examples at some places of a batch."""
        if node.index not in self or not isinstance(local, SumLocal):
            return local
        return local.without_own(self[node.index][row, places])

    def remember(self, batch: Batch, trace: Trace, returned: Returned) -> None:
        """Keep what the batch's examples send now, in place."""
        for k, slopes in self.items():
            local = trace.locals[k]
            if isinstance(local, SumLocal):
                batch.index.replace(slopes, local.own_pull(returned.arriving[k]))
