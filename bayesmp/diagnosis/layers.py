"""Whether layers have learned something, and whether their priors fit what they have learned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmp.diagnosis.faces import Face
from bayesmp.diagnosis.findings import HINT, PROBLEM, Finding
from bayesmp.diagnosis.told import Told
from bayesmp.messages.gaussian import Moments

TRACED_ROWS = 1000  # examples that are sent through the network to look at its units
CONSTANT = 0.01  # spread of a unit over the data, in spreads of its layer, below which it is constant
LEAST_SPREAD = 0.1  # of a layer, that this is measured by: units are made to be of order one
COLLAPSED = 0.5  # share of constant units from which a layer counts as collapsed
LEAST_LEARNED = 1.0  # weights' worth of information below which a layer has stayed at its prior
TOO_NARROW = 4.0  # mean square distance from the prior's mean of weights that the data speak about, in prior variances
TOO_WIDE = 0.3  # the same, at the other end; it does harm where, too,
HELD = 0.25  # a share of examples holds its own output, or
MEAN_LEVERAGE = 0.5  # outputs are held by their own examples on average


@dataclass(frozen=True)
class Learned:
    """What the data have done to a layer's weights.

    Attributes:
        name: as a sentence says it.
        n_settled: how many weights' worth the data have told: sum of 1 - var / prior var.
        distance: sum of squared distances of the means from the prior's, in prior variances.
        signal: |mean| / std of its weights.
    """

    name: str
    n_settled: float
    distance: float
    signal: Tensor

    @property
    def strength(self) -> float:
        """The |mean| / std that nine tenths of its weights do not exceed."""
        part = self.signal[:: max(1, len(self.signal) // 1_000_000)]  # torch refuses quantiles of more
        return float(part.quantile(0.9))

    @property
    def wanted(self) -> float:
        """The factor on the prior's variances that would fit the means: distance per settled weight."""
        return self.distance / max(self.n_settled, 1e-12)


def learned_by(network: Any) -> list[Learned]:
    """Of each layer with weights."""
    prior, marginal = network.exact_prior, network.marginal.map(lambda part: part.detach().cpu().double())
    found = []
    for layer in sorted({slot.layer for slot in network.slots}):
        slots = [slot for slot in network.slots if slot.layer == layer]
        rows = slice(slots[0].start, slots[-1].stop)
        before, after = (Moments(part.mean[rows], part.var[rows]) for part in (prior, marginal))
        found.append(
            Learned(
                f"layer {layer}, {network.layers[layer]!r}",
                float((1.0 - after.var / before.var).sum()),
                float(((after.mean - before.mean).square() / before.var).sum()),
                after.mean.abs() / after.var.sqrt(),
            )
        )
    return found


def judge_weights(layers: Sequence[Learned]) -> Iterator[Finding]:
    """Layers that have stayed at their priors."""
    for layer in layers:
        if layer.n_settled < LEAST_LEARNED:
            yield Finding(
                "layer_at_prior",
                PROBLEM,
                f"{layer.name}, is where its prior was: the data have told it {layer.n_settled:.2g} weights' worth of "
                f"{len(layer.signal):,}. Look whether the units above or below are constant, whether its prior "
                "variances are tiny, and whether its inputs are all zero.",
                {"n_settled": layer.n_settled, "n_weights": len(layer.signal)},
            )


def judge_prior(layers: Sequence[Learned], network: Any, told: Told | None, face: Face) -> Iterator[Finding]:
    """Whether the prior's widths fit the trained means, and what they cost.

    A wide prior alone does no harm; it does where examples come to hold their own outputs.
    """
    settled = sum(layer.n_settled for layer in layers)
    if settled < LEAST_LEARNED:
        return
    wanted = sum(layer.distance for layer in layers) / settled
    if wanted > TOO_NARROW:
        worst = max(layers, key=lambda layer: layer.distance)
        yield Finding(
            "prior_too_narrow",
            HINT,
            f"the data have pulled weights {wanted**0.5:.1f} prior std from where the prior has them (root mean "
            "square, of "
            f"what they speak about), most of all in {worst.name}: the prior is too narrow, and the fit held back. Try "
            f"{face.prior.format(factor=_round(min(wanted, worst.wanted)))}, and compare {face.scores}.",
            {"wanted_factor": wanted},
        )
    held, leverage = _held(told), mean_leverage(network, told)
    if wanted < TOO_WIDE and (held > HELD or leverage > MEAN_LEVERAGE):
        yield Finding(
            "prior_too_wide",
            HINT,
            f"weights lie only {wanted**0.5:.2g} prior std from the prior's means, and the training examples hold "
            f"{100 * leverage:.0f} % of their own outputs (mean leverage; of {100 * held:.0f} % of the examples it "
            "had to be "
            f"cut): the prior leaves the network so free that each example is fitted by itself. {face.prior_too_wide}",
            {"wanted_factor": wanted, "mean_leverage": leverage, "share_cut": held},
        )


def _held(told: Told | None) -> float:
    """Share of examples whose leverage was cut in the last refresh."""
    found = [record.loo["clipped"] for record in (told.history if told else []) if "clipped" in record.loo]
    return found[-1] if found else 0.0


def mean_leverage(network: Any, told: Told | None) -> float:
    """Which share of their outputs training examples hold themselves, by the joint belief; 0 if it is not known."""
    if told is None or network.belief is None:
        return 0.0
    return float(network.belief.degrees_of_freedom) / (told.n_rows * network.n_outputs)


@torch.no_grad()
def judge_units(network: Any, x: Tensor) -> Iterator[Finding]:
    """Layers most of whose units say the same for all inputs: behind activations, where they are meant to differ."""
    if len(x) < 2:
        return
    rows = x[:TRACED_ROWS].to(device=network.device, dtype=network.dtype)
    trace = network.graph.sweep_out(rows, network.weights(), network.regime)
    for index, layer in enumerate(network.layers):
        m_out = trace.locals[index].m_out
        if layer.weight_shapes() or not layer.may_reject or not isinstance(m_out, Moments):
            continue  # only activations can switch units off
        values = m_out.mean.flatten(2).movedim(1, 0).flatten(1) if m_out.mean.ndim > 2 else m_out.mean.t()  # (u, n)
        spread = values.double().std(1)
        typical = max(float(spread.square().mean().sqrt()), LEAST_SPREAD)
        is_constant = spread < CONSTANT * typical
        share = float(is_constant.double().mean())
        if share >= COLLAPSED:
            is_off = is_constant & (values.double().abs().amax(1) < CONSTANT * typical)
            yield Finding(
                "collapsed_layer",
                PROBLEM,
                f"{int(is_constant.sum())} of {len(spread)} units behind layer {index}, {layer!r}, say the same for "
                "all "
                f"{len(rows):,} inputs ({int(is_off.sum())} are off). Check bias_prior and the scale of the inputs "
                "of the "
                "layer below; use LeakyReLU, whose units do not die; or train with another seed.",
                {"n_constant": int(is_constant.sum()), "n_off": int(is_off.sum()), "n_units": len(spread)},
            )


def _round(factor: float) -> str:
    return f"{factor:.0f}" if factor >= 2 else f"{factor:.1f}"
