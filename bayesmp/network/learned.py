"""What training changes in a network: one value, to keep, move, copy and save."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from bayesmp.belief import Belief
from bayesmp.diagnosis import RunSummary
from bayesmp.messages.gaussian import Gaussian
from bayesmp.messages.regime import Regime
from bayesmp.network.fitted import Fitted
from bayesmp.network.varying_noise import VaryingNoise


@dataclass(frozen=True, eq=False)
class Learned:
    """All that a training run has learned; the attributes are those of the network.

    Attributes:
        marginal: of all weights, flat.
        head_log_weights: what is believed about the head's constant, over its grid.
        sum_share: per layer, how much of the variance of its sums is left (training/schedules/metric.py).
        regime: how sweeps are done.
        belief: the joint belief about all weights, None before the first training.
        varying_noise: how the noise depends on the input; None where it is the same everywhere.
        fitted: how activations are averaged over the belief, where training had an objective; else None.
        belief_scale: factor on variances under the joint belief, judged by rows that joined late (evidence/unseen.py).
        prior_width: factor on all prior variances that the data have chosen (evidence/objective.py).
        relevances: the same by input, of each layer whose inputs are given; none where nothing was learned of them.
        flat_targets: whether targets came as (n,), not (n, 1).
        run_summary: the run's history and moments of its data, for `diagnose`; files do not hold it.
    """

    marginal: Gaussian
    head_log_weights: Tensor
    sum_share: Tensor
    regime: Regime
    belief: Belief | None
    varying_noise: VaryingNoise | None
    fitted: Fitted | None
    belief_scale: float
    prior_width: float
    relevances: tuple[Tensor, ...]
    flat_targets: bool
    run_summary: RunSummary | None

    def copied(self) -> Learned:
        """The same in tensors that a training run may change."""
        return self._with(torch.clone)

    def to(self, device: torch.device, dtype: torch.dtype) -> Learned:
        """A copy on another device, in another precision."""
        moved = self._with(lambda part: part.to(device=device, dtype=dtype, copy=True))
        return replace(
            moved,
            belief=None if self.belief is None else self.belief.to(device, dtype),
            varying_noise=None if self.varying_noise is None else self.varying_noise.to(device),
            fitted=None if self.fitted is None else self.fitted.to(device, dtype),
        )

    def _with(self, change: Any) -> Learned:
        """All but belief and varying noise, which are never changed in place, changed by a function of tensors."""
        return replace(
            self,
            marginal=self.marginal.map(change),
            head_log_weights=change(self.head_log_weights),
            sum_share=change(self.sum_share),
        )

    def description(self) -> dict[str, Any]:
        """What a file says about it beside the tensors, as JSON holds it."""
        return {
            "belief": None if self.belief is None else self.belief.description(),
            "regime": self.regime.to_json(),
            "belief_scale": self.belief_scale,
            "prior_width": self.prior_width,
            "relevances": [len(part) for part in self.relevances],
            "flat_targets": self.flat_targets,
            "varying_noise": self.varying_noise is not None,
            "fitted": None if self.fitted is None else self.fitted.description(),
        }

    def state(self) -> dict[str, Tensor]:
        """The tensors to save."""
        parts = {} if self.belief is None else {f"belief.{name}": part for name, part in self.belief.state().items()}
        noise = {} if self.varying_noise is None else self.varying_noise.state()
        fitted = {} if self.fitted is None else self.fitted.state()
        return {
            "marginal.tau": self.marginal.tau,
            "marginal.rho": self.marginal.rho,
            "sum_share": self.sum_share,
            "head_log_weights": self.head_log_weights,
            **parts,
            **{f"varying_noise.{name}": part for name, part in noise.items()},
            **{f"fitted.{name}": part for name, part in fitted.items()},
            **{f"relevance.{k}": part for k, part in enumerate(self.relevances)},
        }


LEARNED = tuple(part.name for part in fields(Learned))  # names of what training changes
