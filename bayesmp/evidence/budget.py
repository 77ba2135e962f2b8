"""What refreshes of the belief may cost: no more than the visits of the run, beside a small fixed start.

Both are counted in multiplications, roughly. Time is never measured: a run does the same when it is done again, and
when it is resumed. All refreshes in training are of one size, which an epoch of visits pays for. One is due when the
epochs have grown by a third since the last one and all of them together are paid for (stopping.py). The refresh at the
end of a run may cost half of what its visits did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.evidence.leave_one_out import MOST_SPOKEN_OF
from bayesmp.evidence.pass_over_data import most_anchors, plan_belief
from bayesmp.network.network import Network

IN_START = 16  # refreshes in training that the start alone pays for
MOST_EPOCHS = 8  # whose visits pay for one with the fewest anchors
AT_END = 0.5  # of what visits cost, for the refresh at the end of a run
FEWEST, ROWS_PER_ANCHOR = 16, 8  # examples that a refresh looks at, and outputs of them, however dear they are

# What does not show in large products of matrices, as so many multiplications as take about its time
PER_VISIT, PER_REFRESH = 4e7, 5e8
PER_CROSSING = 1000  # of an output of an example and an anchor
SMALLER = 4  # time of a multiplication in the small products there, over that in a large one
DECOMPOSITIONS = 20  # of a matrix, over the cube of its size


@dataclass(frozen=True)
class Size:
    """How much a refresh looks at.

    Attributes:
        examples: at most.
        rank: anchors, where the belief cannot be exact.
        steps: of each solution by conjugate gradients, at most.
        judged: examples that are left out, at most.
    """

    examples: int
    rank: int
    steps: int
    judged: int


def size_in_training(network: Network, n_data: int, epoch_cost: float, *, settings: Settings = SETTINGS) -> Size:
    """The largest size that an epoch of visits pays for, or a share of the start; the smallest may cost some epochs,
    and with many outputs looks at fewer examples.
    """
    allowed = max(epoch_cost, settings.refresh_start / IN_START)
    n, judged = settings.refresh_examples, _judged(network, allowed, settings)
    size = Size(n, n // 2, settings.balance_steps, judged)
    while size.rank > _least_rank(network, settings)[0] and _cost(network, n_data, size, settings) > allowed:
        size = Size(size.examples // 2, size.rank // 2, max(settings.least_steps, size.steps // 2), judged)
    return _with_fewer_examples(network, n_data, size, MOST_EPOCHS * allowed, settings)


def size_at_end(network: Network, n_data: int, visits_cost: float, *, settings: Settings = SETTINGS) -> Size:
    """The largest size that half of all visits pay for, or the start: first with fewer anchors and steps, because
    scores of a part of the data are less right; then with fewer examples.
    """
    allowed = max(AT_END * visits_cost, settings.refresh_start)
    n, judged = min(n_data, settings.final_examples), _judged(network, allowed, settings)
    size = Size(n, most_anchors(network), settings.balance_steps, judged)
    while (
        size.rank > _least_rank(network, settings)[1] and _cost(network, n_data, size, settings, is_last=True) > allowed
    ):
        size = replace(size, rank=size.rank // 2, steps=max(settings.least_steps, size.steps // 2))
    return _with_fewer_examples(network, n_data, size, allowed, settings, is_last=True)


def is_paid(n_before: int, refresh_cost: float, visits_cost: float, *, settings: Settings = SETTINGS) -> bool:
    """Whether the visits so far and the start pay for one more refresh in training."""
    return (n_before + 1) * refresh_cost <= visits_cost + settings.refresh_start


def cost_of_refresh(
    network: Network, n_data: int, size: Size, *, is_last: bool = False, settings: Settings = SETTINGS
) -> float:
    """Multiplications of a refresh, in training or the last one, that looks at so much of n_data examples."""
    planned = plan_belief(network, n_data, max_rank=size.rank)
    rank, n_seen, n_outputs = planned.rank, min(n_data, size.examples), network.n_outputs
    shapes = [tuple(var.shape) for var in network.layout.prior_vars]
    per_crossing, of_inputs = 4 * rank + PER_CROSSING, 0
    for node, (n_out, n_in) in zip(network.graph.weight_nodes, shapes, strict=True):
        if len(network.shapes[node.output]) > 1:  # shared weights, whose rows are formed
            per_crossing += n_out * n_in
        else:
            per_crossing += SMALLER * (n_out + n_in // n_outputs)
            of_inputs += (4 * n_seen + DECOMPOSITIONS // 2 * n_in) * n_in**2
    is_repeated = network.head.is_learned and network.head.has_noise and not planned.is_exact
    rounds = settings.noise_rounds if is_repeated else 1
    crossings = n_seen * n_outputs * rank * per_crossing
    sweeps = n_seen * network.products_per_example * (2 + n_outputs)
    has_solutions = n_data <= (settings.most_stood_for if is_last else 1.0) * n_seen
    if has_solutions and not planned.is_exact and not network.head.has_noise:
        sweeps += 4 * (1 + settings.leverage_draws) * size.steps * n_seen * network.products_per_example
    own = min(n_seen, size.judged) * _cost_of_judging(n_outputs, rank)
    return PER_REFRESH + sweeps + of_inputs + rounds * (crossings + own + DECOMPOSITIONS * rank**3)


def cost_of_visits(network: Network, n_examples: int, n_visits: int, *, settings: Settings = SETTINGS) -> float:
    """Multiplications of so many visits of the parallel schedule to so many examples, together."""
    metric = sum(2 * var.numel() * sum(var.shape) for var in network.layout.prior_vars)
    products = settings.visit_products * n_examples * network.products_per_example
    products += 3 * n_examples * sum(len(var) ** 2 for var in network.layout.prior_vars)
    return products + n_visits * (metric + PER_VISIT)


def _cost_of_judging(n_outputs: int, rank: int) -> int:
    """Multiplications of one example that is left out."""
    n_spoken_of = min(n_outputs, MOST_SPOKEN_OF)
    return n_outputs**2 * (rank + 4 * n_spoken_of) + DECOMPOSITIONS * n_spoken_of**3


def _least_rank(network: Network, settings: Settings) -> tuple[int, int]:
    return settings.least_rank_of_noise if network.head.has_noise else settings.least_rank


def _judged(network: Network, allowed: float, settings: Settings) -> int:
    """Examples that are left out: for many outputs as many as half of what is allowed pays for."""
    paid = 0.5 * allowed / _cost_of_judging(network.n_outputs, _least_rank(network, settings)[0])
    return int(min(settings.judged_examples, max(FEWEST, paid)))


def _with_fewer_examples(
    network: Network, n_data: int, size: Size, allowed: float, settings: Settings, *, is_last: bool = False
) -> Size:
    """This size, with fewer examples if it costs too much, but with enough outputs of them for each anchor."""
    fewest = max(FEWEST, ROWS_PER_ANCHOR * size.rank // network.n_outputs)
    while size.examples > fewest and _cost(network, n_data, size, settings, is_last=is_last) > allowed:
        size = replace(size, examples=max(fewest, size.examples // 2))
    return size


def _cost(network: Network, n_data: int, size: Size, settings: Settings, *, is_last: bool = False) -> float:
    return cost_of_refresh(network, n_data, size, is_last=is_last, settings=settings)
