"""What every schedule is: a way to visit one batch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.messages.regime import MOMENTS
from bayesmp.network.network import Network
from bayesmp.sites.sites import SiteIndex, Sites


@dataclass(frozen=True)
class Batch:
    """Examples that share a site."""

    index: SiteIndex
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Kept:
    """A batch that goes on when others come or go: which one it was, and where in it each of its examples was, (b,);
    -1 for an example whose values are new."""

    row: int
    places: Tensor


@dataclass(frozen=True)
class VisitInfo:
    """What a visit has to tell, as tensors on the device so that nothing waits for them."""

    step: Tensor  # (n_weight_layers,) share of the proposed change that was taken
    n_rejected: Tensor  # messages without positive precision, of which only the slope was used
    n_messages: int  # how many there were
    max_change: Tensor  # largest change of a weight's mean, in its posterior std
    metrics: dict[str, Tensor]  # sums over the batch, before the visit changed anything


class Schedule(ABC):
    """Visits batches of one training run; owns the network's marginal and the sites while it runs."""

    counts_visits = False  # whether what a visit costs is known, and limits what refreshes may cost (budget.py)
    takes_all_data = False  # whether an epoch is one look at all data (`run_epoch`), not a visit to each batch
    judges_constant = False  # whether visits judge the head's constant themselves
    has_step_length = False  # whether steps can be made shorter, by the next
    step_length = 1.0  # factor on every step, less than 1 after an epoch has diverged (best_state.py)

    def __init__(self, network: Network, sites: Sites, *, seed: int) -> None:
        network.check_past()
        self.network = network
        self.sites = sites
        self.seed = seed
        self.head_prior = network.head_prior.to(network.device)
        inputs = zip(network.layers, network.shapes[:-1], strict=True)
        self._messages_per_example = sum(math.prod(shape) for layer, shape in inputs if layer.may_reject)

    def start(self, x: Tensor, y: Tensor, *, largest_batch: int) -> None:
        """Fill the sites before the first visit; x may lie on the host."""
        self.know_targets(y)
        nothing = torch.zeros_like(self.network.prior.rho)
        self.sites.fill(nothing, self.head_start(y), origin=nothing)
        self.refresh()

    def state(self) -> dict[str, Tensor]:
        """Tensors beside the sites that a resumed run needs; made by `start`, so that they can be filled in place."""
        return {}

    def counters(self) -> dict[str, float]:
        """Numbers that a saved run keeps beside the tensors of `state`, by name."""
        return {}

    def make_room(self, counters: Mapping[str, float]) -> None:  # noqa: B027 - only schedules whose tensors change shape
        """Let `state` have the shapes of a run with these counters, before it is filled in from its file."""

    def resume(self, counters: Mapping[str, float]) -> None:  # noqa: B027 - only schedules with counters have to
        """Go on from a state that has been filled in from a file, and its counters; an older file may lack some."""

    def head_start(self, y: Tensor) -> Tensor:
        """Each batch's share of the head's initial message; none is needed where the past knows the constant."""
        if self.network.past is not None:
            return torch.zeros_like(self.head_prior)
        return self.network.head.initial_message(y).to(self.network.device) / len(self.sites)

    def refresh(self) -> None:
        """Recompute the posterior from the prior and the sites: what rounding has added since is dropped."""
        self.network.marginal = self.sites.posterior(self.network.prior)
        self.network.sum_share.fill_(1.0)
        self.network.regime = MOMENTS
        self.network.head_log_weights.copy_(self.sites.head_posterior(self.head_prior))

    def know_targets(self, y: Tensor) -> None:
        """Let the head know all targets; of the past's they are not all, and it takes none for typical."""
        network = self.network
        network.head.know_targets(y if network.past is None else None, network.n_outputs)

    def rearrange(self, kept: Sequence[Kept], n_new: int, x: Tensor, y: Tensor, *, largest_batch: int) -> None:
        """Follow the sites to other batches: these in this order, then new ones that were never visited.

        Args:
            x, y: all inputs, which may lie on the host, and targets, as they are now.
        """
        self.know_targets(y)

    def slope_of(self, row: int, places: Tensor, x: Tensor, y: Tensor) -> Tensor | None:
        """What some examples of a batch, at these places, say now of the slope at the origin, (w,); None if a schedule
        cannot tell it without changing anything.
        """
        return None

    def absorb(self, change: Tensor, x: Tensor, y: Tensor, rows: Tensor | None = None) -> None:
        """Move the posterior to prior x sites, after sites were weakened or taken out.

        Args:
            change: what that has changed in the sum of their slopes at the origin, (w,) in double precision.
            x, y: some of the examples that stay, on which a step can be measured.
            rows: which of all examples these are; None: all of them.
        """
        self.refresh()

    def join(self, parts: Sequence[Schedule]) -> None:  # noqa: B027 - as for `rearrange`
        """Take over what schedules of runs on other data know, whose batches this one has, in this order."""

    @property
    def messages_per_example(self) -> int:
        """How many messages of one example pass through factors that may reject one."""
        return self._messages_per_example

    def settle(self, members: Sequence[Tensor]) -> None:  # noqa: B027 - only schedules that look at all data at once do
        """Let sites and marginal be those of the means reached; asked when an epoch, or a run, has ended."""

    @abstractmethod
    def visit(self, batch: Batch, epoch: int) -> VisitInfo:
        """Replace the batch's site; epoch counts from 1."""

    def hear_constant(self, message: Tensor) -> None:
        """Take the message of all data to the head's constant, as a refresh of the belief found it, in place of the
        batches' own.
        """
        self.sites.head.copy_((message.to(self.sites.head) / len(self.sites)).expand_as(self.sites.head))
        self.network.head_log_weights.copy_(self.sites.head_posterior(self.head_prior))

    def held_back(self) -> float | None:
        """The head's constant as training has heard it so far, where it may not hear all of it yet; else None."""
        return None

    def replace_head_site(self, index: SiteIndex, message: Tensor) -> None:
        """Replace a batch's message to the head's constant, if it learns one."""
        if self.network.head.is_learned:
            self.sites.head.index_copy_(0, index.tensor, message.double()[None])
            self.network.head_log_weights.copy_(self.sites.head_posterior(self.head_prior))

    def generator(self, *key: int) -> torch.Generator:
        """Random numbers that depend on the seed and the key alone, so that a resumed run draws the same ones."""
        state = self.seed
        for part in key:
            state = (state * 1_000_003 + part + 1) % (2**62)
        return torch.Generator().manual_seed(state)
