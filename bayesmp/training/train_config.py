"""The settings of a training run."""

from __future__ import annotations

from dataclasses import dataclass

from bayesmp.basics import checks, examples
from bayesmp.sites.sites import PLACES
from bayesmp.training.schedules import check_schedule


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a run; a misspelt name fails at once.

    Attributes:
        batch_size: examples that share a site, at most (batches are made equally large); the size of a parallel step.
        schedule: "parallel" (whole batch as matrix products) or "sequential" (the paper's, one example at a time).
        seed: decides which examples share a batch and the order of visits.
        joint: whether the parallel schedule counts correlations between weights in the variance of their sums while it
            trains; None: in networks of dense layers only (schedules/metric.py). Predictions are made with the joint
            belief in any case.
        learn_prior: whether the data choose how wide the prior is, by one factor on all its variances, where the joint
            belief is exact (evidence/objective.py); None: where noise is learned, too, and no prior was given.
        site_store: "auto", "device", "host" or "disk": where the sites live (sites.py).
        site_dtype: "float32", "float64" or "bfloat16"; the network's own precision if None.
        data_store: "auto", "device" or "host": where the training inputs lie; from the host each batch is copied to
            the GPU for its visit. "auto" keeps them on the device if there is room.
        debug: check after each epoch that the posterior equals prior x sites.
    """

    batch_size: int = 128
    schedule: str = "parallel"
    seed: int = 0
    joint: bool | None = None
    learn_prior: bool | None = None
    site_store: str = "auto"
    site_dtype: str | None = None
    data_store: str = "auto"
    debug: bool = False

    def __post_init__(self) -> None:
        checks.check_positive_int(self.batch_size, "batch_size")
        check_schedule(self.schedule)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed must be an int, got {self.seed!r}")
        if self.joint not in (None, True, False):
            raise ValueError(f"joint must be True, False or None (decide by the network), got {self.joint!r}")
        if self.joint and self.schedule != "parallel":
            raise ValueError("joint=True needs the parallel schedule; the sequential one has no shares of sums")
        if self.learn_prior not in (None, True, False):
            raise ValueError(
                f"learn_prior must be True, False or None (decide by the network), got {self.learn_prior!r}"
            )
        if self.learn_prior and self.schedule != "parallel":
            raise ValueError(
                "learn_prior=True needs the parallel schedule; the sequential one keeps the prior as it is"
            )
        if self.site_store not in PLACES:
            raise ValueError(f"site_store must be one of {PLACES}, got {self.site_store!r}")
        if self.data_store not in examples.PLACES:
            raise ValueError(f"data_store must be one of {examples.PLACES}, got {self.data_store!r}")
