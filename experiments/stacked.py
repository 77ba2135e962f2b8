"""The sequential schedule for many networks at once: the same equations, with the networks along a further axis.

One example at a time is mostly overhead: a sweep of one small network takes some milliseconds, of a hundred about twice
as long. `torch.func.vmap` adds the axis; what each network gets is what `SequentialVisit` gives it, up to rounding.
Everything is in float64, where the library uses its plain equations and not its compiled loops. A long visit is traced
once, to some 1,600 operations on tensors, and these are compiled: ten networks then take a tenth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from bayesmp.heads.regression import Regression
from bayesmp.layers.base import Memory
from bayesmp.messages.gaussian import Gaussian
from bayesmp.messages.likelihood import gaussian_to_latent
from bayesmp.messages.regime import EXAMPLE_BY_EXAMPLE
from bayesmp.network.network import Network
from bayesmp.training.schedules.sequential import ExampleState, SequentialVisit

SAVE_EVERY = 60.0  # seconds
WORTH_COMPILING = 5_000  # sweeps; compiling takes half a minute

Pair = tuple[Tensor, Tensor]  # (tau, rho): vmap takes tuples, not our classes
Swept = tuple[Tensor, Tensor, dict[int, Pair]]  # tau and rho of an example's new message to the weights; arriving


class StackedVisit:
    """One visit to a batch by k networks of the same layers: weights start at the priors, messages at nothing.

    Args:
        networks: in float64, for regression with known noise; they differ by their priors and this noise.
        x, y: the batch of each network, (k, n, ...) and (k, n, o), in float64.
    """

    def __init__(self, networks: Sequence[Network], x: Tensor, y: Tensor) -> None:
        first = networks[0]
        assert all(network.dtype == torch.float64 for network in networks) and x.dtype == y.dtype == torch.float64
        self.x, self.y = x, y
        self._noise_var = x.new_tensor([_known_noise(network) for network in networks])
        self.prior = Gaussian(
            torch.stack([network.prior.tau for network in networks]),
            torch.stack([network.prior.rho for network in networks]),
        )
        self.marginal = self.prior
        self._shapes = {node.index: first.shapes[node.index + 1] for node in first.graph.nodes if node.is_active}
        self._own: list[Gaussian] = []
        self._arriving: list[dict[int, Pair]] = []
        self._say_nothing()
        self._visit = SequentialVisit(first, first.prior, x[0], y[0], first.head_log_weights)
        self._plain_sweep: Callable[..., Swept] = torch.func.vmap(self._sweep_one)
        self._sweep = self._plain_sweep

    def _say_nothing(self) -> None:
        """All messages as before the first sweep."""
        many, n_examples = self.x.shape[:2]
        zeros = self.x.new_zeros
        nothing = {k: (zeros(many, 1, *shape), zeros(many, 1, *shape)) for k, shape in self._shapes.items()}
        self._own = [Gaussian.nothing(self.prior.tau) for _ in range(n_examples)]
        self._arriving = [nothing for _ in range(n_examples)]

    def count_again(self) -> None:
        """Take what was learned for the prior, as if the same data, seen again, were new: double counting."""
        self.prior = self.marginal
        self._say_nothing()

    @torch.no_grad()
    def expect(self, n_sweeps: int) -> None:
        """Compile the sweep if so many are to come; without a C++ compiler, say so and go on without."""
        if n_sweeps < WORTH_COMPILING or self._sweep is not self._plain_sweep:
            return
        arguments = self._arguments(0)
        traced = make_fx(lambda *parts: self._plain_sweep(*parts))(*arguments)  # a compiler cannot look into vmap
        torch._dynamo.reset()  # each visit has a graph of its own; old ones would count against a limit
        try:
            compiled: Callable[..., Swept] = torch.compile(traced, dynamic=False)
            compiled(*arguments)
        except Exception as error:
            reason = str(error).strip().splitlines()[:1]
            print(f"sweeps are not compiled, which is slower ({type(error).__name__}: {reason})", flush=True)
            return
        self._sweep = compiled

    @torch.no_grad()
    def iterate(self, order: Sequence[int]) -> None:
        """Sweep through the examples in this order, then recompute the marginals from the messages."""
        for index in order:
            own = self._own[index]
            tau, rho, self._arriving[index] = self._sweep(*self._arguments(index))
            new = Gaussian(tau, rho)
            self.marginal = self.marginal / own * new
            self._own[index] = new
        tau, rho = (sum(getattr(own, part) for own in self._own) for part in ("tau", "rho"))
        self.marginal = self.prior * Gaussian(tau, rho)

    def state(self) -> dict[str, Any]:
        """All messages, to be saved."""
        own = [(message.tau, message.rho) for message in self._own]
        return {"marginal": (self.marginal.tau, self.marginal.rho), "own": own, "arriving": self._arriving}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.marginal = Gaussian(*state["marginal"])
        self._own = [Gaussian(*pair) for pair in state["own"]]
        self._arriving = state["arriving"]

    def _arguments(self, index: int) -> tuple[Pair, Pair, dict[int, Pair], Tensor, Tensor, Tensor]:
        """What the sweep of an example needs."""
        own, example = self._own[index], slice(index, index + 1)
        marginal = (self.marginal.tau, self.marginal.rho)
        data = self.x[:, example], self.y[:, example], self._noise_var
        return marginal, (own.tau, own.rho), self._arriving[index], *data

    def _sweep_one(
        self, marginal: Pair, own: Pair, arriving: dict[int, Pair], x: Tensor, y: Tensor, noise_var: Tensor
    ) -> Swept:
        """`SequentialVisit._sweep` of one network, as a function of tensors."""
        visit, graph = self._visit, self._visit.network.graph
        visit.marginal = Gaussian(*marginal)
        last = {index: Gaussian(*pair) for index, pair in arriving.items()}
        memories = [
            Memory(at_input=last.get(node.inputs[0] - 1), at_output=last.get(node.index)) for node in graph.nodes
        ]
        weights = visit._weights(ExampleState(Gaussian(*own)))
        trace = graph.sweep_out(x, weights, EXAMPLE_BY_EXAMPLE, memories=memories)
        returned = graph.sweep_back(trace, gaussian_to_latent(y, noise_var))
        new = visit.network.pack(returned.to_weights)
        return new.tau, new.rho, {index: (m.tau, m.rho) for index, m in returned.arriving.items()}


def _known_noise(network: Network) -> float:
    """The variance of the noise that the network's head was given."""
    head = network.head
    assert isinstance(head, Regression) and isinstance(head.noise_var, (int, float)), "stacked noise must be known"
    return float(head.noise_var)


def visit_all(
    networks: Sequence[Network],
    x: Tensor,
    y: Tensor,
    *,
    iterations: int,
    seed: int = 0,
    scratch: Path | None = None,
    save_every: float = SAVE_EVERY,
) -> float:
    """The paper's way to train on little data: all of it in one batch, so many rounds, each in a new order; returns the
    seconds it took, those before an end of the process included.

    Args:
        networks: trained in place; they become float64.
        x, y: (k, n, d) and (k, n), data for each.
        iterations: rounds through all examples.
        seed: of the orders, which all networks share.
        scratch: a file for the state in between, so that rounds are not lost if the process is ended; the same call
            then goes on with them, to the same end. The caller removes it.
        save_every: seconds between two writes of it.
    """
    for network in networks:
        network.to(torch.float64)
    visit = StackedVisit(networks, x.double(), y.double()[..., None])
    generator = torch.Generator().manual_seed(seed)
    done, earlier = 0, 0.0
    if scratch is not None and scratch.exists():
        stored = torch.load(scratch, weights_only=True)
        visit.restore(stored["visit"])
        generator.set_state(stored["generator"])
        done, earlier = stored["done"], stored["seconds"]
    started = saved_at = time.monotonic()
    visit.expect((iterations - done) * x.shape[1])
    while done < iterations:
        visit.iterate(torch.randperm(x.shape[1], generator=generator).tolist())
        done += 1
        if scratch is not None and done < iterations and time.monotonic() - saved_at >= save_every:
            scratch.parent.mkdir(parents=True, exist_ok=True)
            partial = scratch.with_name(f"{scratch.name}.part")
            state = {"visit": visit.state(), "generator": generator.get_state(), "done": done}
            torch.save({**state, "seconds": earlier + time.monotonic() - started}, partial)
            partial.replace(scratch)
            saved_at = time.monotonic()
    for k, network in enumerate(networks):
        network.marginal = Gaussian(visit.marginal.tau[k].clone(), visit.marginal.rho[k].clone())
    return earlier + time.monotonic() - started
