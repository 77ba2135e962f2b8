"""The way down: damped Gauss-Newton steps on the objective, each of which lowers it or is taken back.

First the means alone fit the data, with little noise and without what uncertainty costs; F has poor minima with too
much noise, from which no step leads away. Then all of F counts, and noise, width and the belief follow the means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.evidence.curvature import OverRows
from bayesmp.evidence.function import Held, Slopes, Variances, zero_variances
from bayesmp.evidence.objective import Look, Objective
from bayesmp.evidence.rest import FEWEST, falls_no_more
from bayesmp.layers.base import Local
from bayesmp.network.graph import Node

MANY_INPUTS = 32  # of a layer, from which the belief about its units takes far longer over rows than a step;
ANEW_EVERY = 8  # so it is asked for at one of so many steps
MOST_INPUTS = 256  # of a layer whose units' covariances are held; of more, the variances at the examples are
Rows = slice | Tensor
LEAST_DAMPING, MOST_TRIES = 1e-4, 12
ROUNDING = 1e-13  # share of the objective that rounding may add; without it descents end sqrt(rounding) from the best
MOST_REFUSED = 3  # steps in a row that lower nothing, after which more are in vain
UNSETTLED = 0.1  # share of the outputs' covariances that they are off the belief's, above which no refusal counts
MOST_STEPS = 400  # before a descent counts as at rest


@dataclass(frozen=True)
class DescentState:
    """Where the descent is.

    Attributes:
        mean: of all weights, in the function's order, float64.
        noise, width: t and s of the objective.
        relevance: r of it, of the inputs (i,) of each layer whose inputs are given.
        damping: of the next step, in units of the prior's precision.
        smoothing: share of the belief's variance that activations are averaged over.
        spread: per layer with weights, covariances of each unit's own weights (o, i, i), or the variances (n, o) of
            their sums at the examples, where a layer has many inputs; empty where neither is known yet.
        covariances: of what the loss depends on, (n, l, l), if it averages over them; empty where they are not known.
        n_steps: taken so far.
        n_refused: steps in a row that could not be taken at all.
    """

    mean: Tensor
    noise: float
    width: float
    relevance: tuple[Tensor, ...]
    damping: float
    smoothing: float
    spread: tuple[Tensor, ...]
    covariances: Tensor
    n_steps: int = 0
    n_refused: int = 0

    def begun_anew(self) -> DescentState:
        """The same place, for another objective."""
        return replace(self, damping=1.0, n_refused=0)


@dataclass(frozen=True)
class StepInfo:
    """What a step has to tell: F where it began, the look at its end, and how far the means moved."""

    value: float
    look: Look
    moved: Tensor


class Descent:
    """Steps on an objective; `state` says where it is.

    Args:
        objective: to be made smaller.
        state: to start from.
        learns_noise, learns_width: what follows the means.
    """

    def __init__(
        self,
        objective: Objective,
        state: DescentState,
        *,
        learns_noise: bool,
        learns_width: bool,
        settings: Settings = SETTINGS,
    ) -> None:
        self.objective, self.state, self.settings = objective, state, settings
        self.learns_noise, self.learns_width = learns_noise, learns_width
        self._looked: tuple[DescentState, Look, list[Held]] | None = None  # at which state, and what was seen

    @property
    def fits_only(self) -> bool:
        """Whether the next step is one of the first, which fit the data and count no uncertainty."""
        return self.state.n_steps < self.settings.fitting_steps

    def look(self) -> Look:
        """The objective where the descent is; looked at once for each state."""
        return self._look_around()[0]

    def variances(self) -> list[Held]:
        """Of the sums of each part of the examples, at the means where the descent is; held fixed in a step."""
        return self._look_around()[1]

    def _look_around(self) -> tuple[Look, list[Held]]:
        state, parts = self.state, self.objective.parts()
        if self._looked is None or self._looked[0] is not state:
            known: list[dict[int, Tensor]] = [{} for _ in parts]
            spreading = [self._spreading(rows, own) for rows, own in zip(parts, known, strict=True)]
            look = self._look_at(state.mean, spreading)
            self._looked = state, look, [Held(own) for own in known]
        return self._looked[1:]

    def _look_at(self, mean: Tensor, variances: Sequence[Variances], *, with_slope: bool = True) -> Look:
        """The objective at other means, where all else is as it is."""
        state = self.state
        at = mean, state.noise, state.width, variances, self._covariances
        return self.objective.look(*at, relevance=state.relevance, with_slope=with_slope)

    @property
    def _covariances(self) -> Tensor | None:
        """What the next step averages over; nothing while it counts no uncertainty."""
        is_known = self.state.covariances.numel() > 0
        return self.state.covariances if is_known and not self.fits_only else None

    def slopes_at(self, rows: Rows) -> Slopes:
        """Outputs of some examples, and their slopes, where the descent is."""
        return self.objective.function.slopes(self.state.mean, self.objective.x[rows], self._spreading(rows, {}))

    def _spreading(self, rows: Rows, known: dict[int, Tensor]) -> Variances:
        layers = {node.index: k for k, node in enumerate(self.objective.function.nodes)}

        def variance(node: Node, local: Local) -> Tensor:
            spread = self.state.spread[layers[node.index]]
            if spread.numel() == 0:
                found = zero_variances(node, local)
            elif spread.ndim == 3:
                found = self.state.smoothing * local.variance_under(spread)
            else:
                found = self.state.smoothing * spread[rows]
            known[node.index] = found
            return found

        return variance

    def fit(self) -> None:
        """The first steps, until the data are fitted."""
        values: list[float] = []
        while self.fits_only:
            values.append(_counted(self.step().look, fits_only=True))
            if falls_no_more(values, int(self.objective.n_counted), settings=self.settings):
                self.state = replace(self.state, n_steps=self.settings.fitting_steps)
        self.state = replace(self.state, n_refused=0)  # what is counted from here on is another objective

    def rest(self, *, fewest: int = FEWEST, slack: int = 1) -> None:
        """Steps until the objective hardly falls; then the best state of all on the way. F may rise where a wider prior
        leaves more open, the function is smoother, fits less, and so on, without end.

        Args:
            fewest: steps that tell nothing yet.
            slack: times as much may be left to fall as when a run ends.
        """
        values: list[float] = []
        n_targets = int(slack * self.objective.n_counted)
        best, lowest = self.state, self.look().value
        while self.state.n_refused < MOST_REFUSED and len(values) < MOST_STEPS:
            values.append(self.step().value)
            if self.look().value < lowest:
                best, lowest = self.state, self.look().value
            if falls_no_more(values, n_targets, fewest=fewest, settings=self.settings):
                break
        if self._compares_states and self.look().value > lowest + self._slack:
            self.state = replace(best, n_steps=self.state.n_steps)

    def smoothed_as_it_pays(self) -> Descent:
        """From a rest on with less smoothing, as long as the objective rests lower so: in deep networks the belief
        about what data leave open may be too wide to average over, but it is the best way to their good minima.
        """
        found = self
        while True:
            state = found.state.begun_anew()
            less = found.from_state(replace(state, smoothing=self.settings.less_smoothing * state.smoothing))
            less.rest()
            if not less.look().value < found.look().value - self._slack:
                return found
            found = less

    def step(self) -> StepInfo:
        """Move the means by one step, and let noise, width and spread follow. A step raises the objective by no more
        than rounding; what follows may, where the belief leaves more open, and the function is smoother.
        """
        objective, fits_only = self.objective, self.fits_only
        start, variances = self._look_around()
        before, look = self.state, start
        slope = look.slope
        if not fits_only:
            slope = slope - objective.uncertainty_slope(before.mean, look, variances)
        mean, damping, n_refused = before.mean, before.damping, before.n_refused + 1
        counted = partial(_counted, fits_only=fits_only)
        limit = counted(start) + ROUNDING * abs(start.value)
        for k in range(MOST_TRIES):
            tried = before.mean + start.curvature.newton(slope, damping)
            found = self._look_at(tried, variances, with_slope=False)
            if counted(found) < limit:
                mean, look, n_refused = tried, found, 0
                if k == 0:  # else it is as large as it has to be
                    damping = max(damping / self.settings.damping_factors[0], LEAST_DAMPING)
                break
            damping *= self.settings.damping_factors[1]
        else:
            damping = 1.0
        n_steps = before.n_steps + 1
        self.state = replace(before, mean=mean, damping=damping, n_steps=n_steps, n_refused=n_refused)
        self._follow(look, variances, fits_only)
        return StepInfo(start.value, look, mean - before.mean)

    def step_or_stay(self) -> StepInfo:
        """A step that is taken back, as one that could not be taken, if the objective is higher where it leads."""
        before, lowest = self.state, self.look().value
        info = self.step()
        if self._compares_states and not self.look().value <= lowest + self._slack:
            self.state = replace(before, n_steps=self.state.n_steps, n_refused=MOST_REFUSED)
            info = StepInfo(info.value, self.look(), torch.zeros_like(info.moved))
        return info

    @property
    def _compares_states(self) -> bool:
        """Whether a state with a lower F is a better one: not where the loss averages over covariances. F holds them
        fixed, and bounds the evidence only once they have settled; before, it may be far too low.
        """
        return not self.objective.loss.averages

    @property
    def _slack(self) -> float:
        """Nats that are worth no step."""
        whole, per_target = self.settings.rest_fall
        return whole + per_target * self.objective.n_counted

    def _follow(self, look: Look, variances: Sequence[Held], fits_only: bool) -> None:
        """Let noise, width, spread and covariances be those of the belief at the means reached."""
        state, objective, settings = self.state, self.objective, self.settings
        noise, width, relevance = state.noise, state.width, state.relevance
        if not fits_only:
            known = look.curvature.degrees_of_freedom
            if self.learns_noise:
                noise = objective.best_noise(look.data, noise, known, settings.least_left)
            if self.learns_width:
                least, most = settings.width_range
                width = min(most, max(least, objective.best_width(state.mean, known, relevance)))
                relevance = self._relevance_of(look, width)
        spread = []
        for k, old in enumerate(state.spread):
            new = self._spread_of(look, k, variances)
            spread.append(new if old.shape != new.shape else torch.lerp(old, new, settings.spread_pace))
        covariances, n_refused = state.covariances, state.n_refused
        if objective.loss.averages:
            new = objective.covariances(state.mean, look, variances)
            if covariances.shape != new.shape or float((new - covariances).norm()) > UNSETTLED * float(new.norm()):
                n_refused = 0  # the slope is downhill once they have settled
            covariances = new if covariances.shape != new.shape else covariances.lerp(new, settings.covariance_pace)
        numbers = {"noise": noise, "width": width, "relevance": relevance, "n_refused": n_refused}
        self.state = replace(state, spread=tuple(spread), covariances=covariances, **numbers)  # type: ignore[arg-type]

    def _relevance_of(self, look: Look, width: float) -> tuple[Tensor, ...]:
        """How much inputs matter, as the belief at a point says."""
        least, most = self.settings.relevance_range
        best = self.objective.best_relevance(self.state.mean, look.curvature, width)
        return tuple(part.clamp(least, most) for part in best)

    def _spread_of(self, look: Look, layer: int, variances: Sequence[Held]) -> Tensor:
        """What the belief at a point says of the sums of a layer; nothing of the last, which no activation reads."""
        state, objective, curvature = self.state, self.objective, look.curvature
        if layer == len(objective.function.nodes) - 1:
            return torch.zeros(0, dtype=look.slope.dtype, device=look.slope.device)
        n_inputs = objective.function.shapes[layer][1]
        if not isinstance(curvature, OverRows) or n_inputs <= MANY_INPUTS:
            return curvature.unit_covariances(layer)
        if state.n_steps % ANEW_EVERY > 0:
            return state.spread[layer]
        if n_inputs <= MOST_INPUTS:
            return curvature.unit_covariances(layer)
        return objective.unit_variances(state.mean, curvature, layer, variances)

    def from_state(self, state: DescentState) -> Descent:
        """The same from another state."""
        options = {"learns_noise": self.learns_noise, "learns_width": self.learns_width, "settings": self.settings}
        return Descent(self.objective, state, **options)  # type: ignore[arg-type]

    @classmethod
    def start(cls, objective: Objective, mean: Tensor, noise: float, settings: Settings) -> DescentState:
        """The state before the first step: all smoothing, and weights known to a small share of the prior's
        variance.
        """
        function, spread = objective.function, []
        rows = objective.prior_rho.split([n_out * n_in for n_out, n_in in function.shapes])
        for k, (part, shape) in enumerate(zip(rows, function.shapes, strict=True)):
            known = settings.first_spread / part.view(shape)
            is_wide = shape[1] > MOST_INPUTS or k == len(rows) - 1
            spread.append(known.new_zeros(0) if is_wide else torch.diag_embed(known))
        relevance = tuple(mean.new_ones(function.nodes[k].layer.n_own_inputs) for k in function.judged)
        return DescentState(
            mean,
            noise=noise,
            width=1.0,
            relevance=relevance,
            damping=settings.first_damping,
            smoothing=1.0,
            spread=tuple(spread),
            covariances=mean.new_zeros(0),
        )


def _counted(look: Look, *, fits_only: bool) -> float:
    """What a step has to lower: F, or the loss and the prior alone."""
    if fits_only and math.isfinite(look.value):
        return look.value - look.curvature.half_log_det
    return look.value
