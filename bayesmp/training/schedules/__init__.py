"""Schedules: how one visit to a batch turns its old site into a new one."""

from __future__ import annotations

from bayesmp.network.network import Network
from bayesmp.sites.sites import Sites
from bayesmp.training.schedules.base import Batch, Kept, Schedule, VisitInfo
from bayesmp.training.schedules.objective import LeftOut, ObjectiveSchedule, can_have_objective, has_objective
from bayesmp.training.schedules.parallel import ParallelSchedule
from bayesmp.training.schedules.sequential import SequentialSchedule

SCHEDULES: dict[str, type[Schedule]] = {"parallel": ParallelSchedule, "sequential": SequentialSchedule}


def make_schedule(
    name: str,
    network: Network,
    sites: Sites,
    *,
    n_examples: int,
    seed: int,
    joint: bool | None = None,
    learn_prior: bool | None = None,
    with_objective: bool | None = None,
) -> Schedule:
    """The schedule of this name, or a ValueError; `joint` and `learn_prior` concern the parallel one, which has an
    objective where that can be computed for so many examples, or where it is asked for.
    """
    check_schedule(name)
    if with_objective is None:
        with_objective = name == "parallel" and joint is None and has_objective(network, n_examples)
    if with_objective:
        return ObjectiveSchedule(network, sites, seed=seed, learn_prior=learn_prior)
    if name == "parallel":
        return ParallelSchedule(network, sites, seed=seed, joint=joint, learn_prior=learn_prior)
    return SCHEDULES[name](network, sites, seed=seed)


def check_schedule(name: str) -> None:
    """Raise a ValueError unless there is a schedule of this name."""
    if name not in SCHEDULES:
        raise ValueError(f"schedule must be one of {sorted(SCHEDULES)}, got {name!r}")


__all__ = [
    "SCHEDULES",
    "Batch",
    "Kept",
    "LeftOut",
    "ObjectiveSchedule",
    "Schedule",
    "VisitInfo",
    "can_have_objective",
    "check_schedule",
    "has_objective",
    "make_schedule",
]
