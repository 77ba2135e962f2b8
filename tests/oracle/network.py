"""OracleNetwork: one batch visit of the sequential schedule, message by message."""

import math
from typing import Any

from .heads import ArgmaxHead, RegressionHead, SoftmaxHead
from .messages import NOTHING, Message
from .trees import leaves, shape_of, tree_map
from .variables import Weight
from .wiring import Signal, wire

HEADS = {"regression": RegressionHead, "softmax": SoftmaxHead, "argmax": ArgmaxHead}


def damping_rate(epoch: int) -> float:
    r"""\beta = 0.9 + 0.1 \exp(-0.3 (epoch - 1)), the share of the new site; epochs count from 1."""
    return 0.9 + 0.1 * math.exp(-0.3 * (epoch - 1))


def n_iterations(epoch: int) -> int:
    """Iterations per visit: ceil(epoch / 2)."""
    return math.ceil(epoch / 2)


class Example:
    """The factor graph of one example: its layers from input to output, and the head."""

    def __init__(self, specs: list[tuple], head: tuple, weights: list, x: list, y: Any, index: int) -> None:
        signal = Signal(list(leaves(x)), shape_of(x))
        self.layers = []
        for spec, layer_weights in zip(specs, weights, strict=True):
            self.layers.append(wire(spec, signal, layer_weights, index))
            signal = self.layers[-1].outputs
        kind, *options = head
        self.head = HEADS[kind](signal.cells, y, *options)

    def forward(self) -> None:
        for layer in self.layers:
            layer.forward()

    def backward(self) -> None:
        self.head.backward()
        for layer in reversed(self.layers):
            layer.backward()


class OracleNetwork:
    """A network as a factor graph over scalars, trained by the sequential schedule.

    Args:
        layers: ("linear", n_in, n_out, bias) | ("conv", c_in, c_out, kernel, stride, padding, bias) |
            ("lrelu", alpha) | ("maxpool", k) | ("avgpool", k) | ("flatten",).
        head: ("regression", noise_var) | ("softmax",) | ("argmax", noise, target, target_var).
        prior: one entry per layer: {"weight": nested list of (tau, rho), "bias": list of (tau, rho)} or None.
            Weights are nested as [o][i] or [o][c][p][q]; without bias the key is missing or None.
    """

    def __init__(self, *, layers: list[tuple], head: tuple, prior: list[dict | None]) -> None:
        self.specs = layers
        self.head = head
        self.prior = tree_map(lambda leaf: Message(*leaf), prior)
        self.examples: list[Example] = []

    def visit(
        self,
        site: list | None,
        xs: list,
        ys: list,
        *,
        orders: list[list[int]],
        epoch: int = 1,
        others: list | None = None,
    ) -> tuple[list, list]:
        """The batch's new site and the posterior after one visit, nested like the prior.

        cavity = prior * others; marginals start there, all messages of the batch at nothing. Each iteration goes
        through the examples in its order, and recomputes the marginals at its end. Then
            site <- (1 - beta) site + beta * product of the examples' messages,  posterior = cavity * site.

        Args:
            site: the batch's site so far; None for nothing.
            xs: one nested list of numbers per example, flat or [c][h][w].
            ys: one target per example: a number or a list of numbers (regression), or a class index.
            orders: for each iteration, the order of the examples.
            epoch: sets the damping only; the number of iterations is len(orders).
            others: the product of the other batches' sites; None for nothing.
        """
        old_site = self._messages(site)
        cavity = tree_map(Message.__mul__, self.prior, self._messages(others))
        weights = tree_map(Weight, cavity)
        self.examples = [
            Example(self.specs, self.head, weights, x, y, index)
            for index, (x, y) in enumerate(zip(xs, ys, strict=True))
        ]
        for order in orders:
            for index in order:
                self.examples[index].forward()
                self.examples[index].backward()
            for weight in leaves(weights):
                weight.recompute_marginal()
        rate = damping_rate(epoch)
        new_site = tree_map(Weight.product_of_messages, weights)
        mixed_site = tree_map(lambda old, new: old ** (1.0 - rate) * new**rate, old_site, new_site)
        posterior = tree_map(Message.__mul__, cavity, mixed_site)
        return _plain(mixed_site), _plain(posterior)

    def sweep(self, example: int) -> list[dict[str, Any]]:
        """All messages of an example as its last sweep of the last visit left them, one dict per layer.

        "forward": (mean, var) and "backward": (tau, rho) of the layer's output variables, nested in their shape; None
        where they are known numbers. "weight", "bias": this example's (tau, rho) to each; None without weights.
        """
        records = []
        for layer in self.examples[example].layers:
            record: dict[str, Any] = {
                "kind": layer.kind,
                "forward": None,
                "backward": None,
                "weight": None,
                "bias": None,
            }
            if not layer.outputs.is_known:
                record["forward"] = layer.outputs.nested(lambda cell: (cell.forward.mean, cell.forward.var))
                record["backward"] = layer.outputs.nested(lambda cell: (cell.backward.tau, cell.backward.rho))
            if layer.weights is not None:
                record |= _plain(tree_map(lambda weight: weight.message_from(example), layer.weights))
            records.append(record)
        return records

    def _messages(self, tree: list | None) -> list:
        """A user's tree of (tau, rho) as messages; all nothing where there is none."""
        if tree is None:
            return tree_map(lambda _: NOTHING, self.prior)
        return tree_map(lambda _, leaf: Message(*leaf), self.prior, tree)


def _plain(tree: Any) -> Any:
    return tree_map(lambda message: (message.tau, message.rho), tree)
