r"""What each example last sent to the sums of wide layers, so that it need not hear its own echo.

Messages inside a visit belong to cavities, beliefs that have not seen the example; the parallel schedule has marginals,
which have. With many weights per unit an example's own message is a large part of what the marginals know about its
sum z. Taking it out needs one number per example and unit, the slope g that it sent at its last visit:

    E[z] - Var[z | inputs] g

An echo may also go a longer way: a pull on a lower layer changes the outputs, and with them the next pull. Its gain
stays below 1 as long as the residual is divided by all of the variance that the layers put into z (linear.py).
"""

from __future__ import annotations

from torch import Tensor

from bayesmp import kernels
from bayesmp.equations.linear import SumMoments
from bayesmp.gaussian import Gaussian
from bayesmp.layers.base import Message
from bayesmp.layers.linear import Linear
from bayesmp.network import Network
from bayesmp.schedules.base import Batch


class OwnPulls(dict[int, Tensor]):
    """By layer, for every linear one in matrix form: slopes (n, b, o) of n batches of at most b examples."""

    def __init__(self, network: Network, *, n_batches: int, largest_batch: int) -> None:
        like = network.prior.rho
        super().__init__(
            (k, like.new_zeros(n_batches, largest_batch, layer.n_out))
            for k, layer in enumerate(network.layers)
            if isinstance(layer, Linear) and not layer.is_exact
        )

    def take_out(self, batch: Batch, k: int, edge: Message) -> Message:
        """What leaves layer k, as its weights would have it without the example; other layers' edges as they are."""
        if k not in self:
            return edge
        assert isinstance(edge, SumMoments)
        pull = self[k].index_select(0, batch.index.tensor)[0, : len(batch.x)]
        # Now a cavity: all of its variance is that of others, and shrinks the residual that goes back.
        return SumMoments(edge.mean - (edge.var - edge.input_var) * pull, edge.var, edge.var)

    def remember(self, batch: Batch, edges: list[Message], backs: dict[int, Gaussian]) -> None:
        """Keep what the batch's examples send now, in place."""
        for k, slopes in self.items():
            edge = edges[k + 1]
            assert isinstance(edge, SumMoments)
            rows = slopes.index_select(0, batch.index.tensor)
            rows[0, : len(batch.x)] = kernels.residual(edge, backs[k]).to_weight
            slopes.index_copy_(0, batch.index.tensor, rows)
