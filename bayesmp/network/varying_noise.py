r"""Noise that depends on the input: how much larger or smaller than on average it is at x.

    log noise variance at x = log noise_var + a + w . phi(x),   w ~ N(0, span^2)

phi is what the network has at every x: the inputs of its last weights (many of them along their principal directions
alone), and the mean of the output with its square. Both parts count the same: over the training data w . phi has a
prior variance of span^2, or less where outputs tell targets that were learned by heart.

The targets are judged at outputs that have not seen them, with the density that predictions have, Gaussians of
log-normal variance around an uncertain output (messages/noise.py). For each of some spans Newton's method finds w, and
Laplace's approximation how well it is known and what the span is worth. All of this is averaged, so that few data, or
noise that is the same everywhere, leave w near 0, and what is not known of w goes into the variance of the noise and
into its tails. Divided by the std that follows, targets and outputs are as with equal noise, and the head judges
noise_var and tails anew; twice in turn.

Training does not hear of it. Where a network has a past (`as_prior`), what was known of w then is the prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from bayesmp.basics.settings import SETTINGS, Settings
from bayesmp.heads import LocalNoise, Regression, RegressionPrediction
from bayesmp.messages.gaussian import Moments
from bayesmp.messages.noise import MAX_SPREAD, noisy_slopes

MAX_SCORE = 4.0  # standard deviations from the training data's mean beyond which a unit says nothing more
LOG_RATIOS = (-12.0, 6.0)  # of the noise to that of all training data on average: no input has less or more
VAGUE, FIRM = 1e-6, 1e6  # precision of the prior of a, which noise_var stands for: at first, and where there is a past
LEAST_STD = 1e-6  # of a unit that says something
DIRECTION_ROWS = 1024  # from which principal directions are found, at most
NEWTON_STEPS, HALVINGS, SAME = 30, 12, 1e-7  # at most; at most, of a step; nats that are no gain


@dataclass(frozen=True, eq=False)
class VaryingNoise:
    """What is known of the noise at every x, in float64.

    Attributes:
        centre, gain: mean, and one over the std, of the inputs of the last weights, (h,); 0 for units that do not vary.
        directions: what is asked of them, (h, d).
        own_centre, own_gain: mean, and one over the std, of each output's mean and its square, (o, 2).
        trust: what the two parts of phi are multiplied with, (o, 2); 0 for those that tell targets.
        weights: means of a and w for each output, (o, 1 + d + 2).
        covariance: of w, (o, d + 2, d + 2).
        log_weights: what is believed about noise_var and tails beside them, over the head's grid.
        noise: variance and spread that follow, (2,).
    """

    centre: Tensor
    gain: Tensor
    directions: Tensor
    own_centre: Tensor
    own_gain: Tensor
    trust: Tensor
    weights: Tensor
    covariance: Tensor
    log_weights: Tensor
    noise: Tensor

    def log_ratio(self, hidden: Tensor, mean: Tensor) -> Moments:
        """a + w . phi at inputs of the last weights (b, h) and mean outputs (b, o): moments (b, o)."""
        phi = self.features(hidden, mean)
        found = torch.einsum("bok,ok->bo", phi, self.weights[:, 1:]) + self.weights[:, 0]
        return Moments(found, torch.einsum("bok,okl,bol->bo", phi, self.covariance, phi))

    def features(self, hidden: Tensor, mean: Tensor) -> Tensor:
        """phi, (b, o, d + 2)."""
        shared = ((hidden.to(self.centre) - self.centre) * self.gain).clamp(-MAX_SCORE, MAX_SCORE) @ self.directions
        own = (_powers(mean.to(self.centre)) - self.own_centre) * self.own_gain
        own = 0.5 * own.clamp(-MAX_SCORE, MAX_SCORE)  # half of a variance of one, in two parts
        return torch.cat([shared[:, None] * self.trust[:, :1], own * self.trust[:, 1:]], 2)

    def around(self, prediction: RegressionPrediction, hidden: Tensor) -> RegressionPrediction:
        """A prediction (b, o) with the noise that its rows have."""
        ratio = self.log_ratio(hidden, prediction.mean)
        noise_var, spread = self.noise
        log_mean = (ratio.mean + 0.5 * ratio.var).clamp(*LOG_RATIOS)
        local = LocalNoise(noise_var * log_mean.exp(), (spread.square() + ratio.var).sqrt().clamp_max(MAX_SPREAD))
        return replace(prediction, local_noise=local.map(lambda part: part.to(prediction.mean)))

    def to(self, device: torch.device) -> VaryingNoise:
        return VaryingNoise(**{name: part.to(device) for name, part in self.state().items()})

    def state(self) -> dict[str, Tensor]:
        """The tensors to save."""
        return {part.name: getattr(self, part.name) for part in fields(self)}


def learn_varying_noise(
    head: Regression,
    hidden: Tensor,
    mean: Tensor,
    left_out: Moments,
    y: Tensor,
    head_prior: Tensor,
    *,
    past: VaryingNoise | None = None,
    weight: Tensor | None = None,
    settings: Settings = SETTINGS,
) -> VaryingNoise:
    """What targets tell about the noise at every x; on the CPU.

    Args:
        head: of the network, one that learns noise with tails.
        hidden: inputs of the last weights at the training data, (n, h).
        mean: of the outputs there, (n, o). Not without the example: where inputs differ little, those tell its target.
        left_out: outputs as they would be had each example not been seen, (n, o).
        y: targets, (n, o).
        head_prior: log-prior over the head's grid; where there is a past, that knows better.
        past: what was known before these data.
        weight: how often each example counts, (n,); once if not given.
    """
    weight = torch.ones(len(y), dtype=torch.float64) if weight is None else weight.cpu().double()
    hidden, mean, y, head_prior = (part.cpu().double() for part in (hidden, mean, y, head_prior))
    left_out = left_out.map(lambda part: part.cpu().double())
    found = _knowing_nothing(hidden, mean, left_out.mean, head_prior, settings) if past is None else past.to(y.device)
    phi = found.features(hidden, mean)
    design = torch.cat([torch.ones_like(phi[..., :1]), phi], 2)
    if past is None:
        priors = [[_Prior.of_span(span, phi.shape[2]) for span in settings.noise_spans]] * y.shape[1]
    else:
        priors = [[_Prior.of_past(*known)] for known in zip(found.weights, found.covariance, strict=True)]
        head_prior = found.log_weights
    for _ in range(settings.varying_rounds):
        log_weights = _judge(head, left_out, y, _log_ratio(design, found.weights), head_prior, weight)
        noise = head.noise(log_weights)
        fits = [
            _average(
                [
                    _climb(
                        *(design[:, o], y[:, o] - left_out.mean[:, o], left_out.var[:, o], *noise),
                        *(prior, found.weights[o], weight),
                    )
                    for prior in own
                ]
            )
            for o, own in enumerate(priors)
        ]
        weights = torch.stack([mean for mean, _ in fits])
        if past is None:
            weights[:, 0] -= (weight / weight.sum() @ _log_ratio(design, weights).exp()).mean().log()
        found = replace(found, weights=weights, covariance=torch.stack([covariance for _, covariance in fits]))
    log_weights = _judge(head, left_out, y, _log_ratio(design, found.weights), head_prior, weight)
    return replace(found, log_weights=log_weights, noise=torch.stack(head.noise(log_weights)))


def _knowing_nothing(
    hidden: Tensor, mean: Tensor, left_out: Tensor, head_prior: Tensor, settings: Settings
) -> VaryingNoise:
    """phi as these data have it, with the same noise everywhere."""
    centre, gain = _standard(hidden)
    n_units, n_outputs = hidden.shape[1], mean.shape[1]
    directions = torch.eye(n_units, dtype=hidden.dtype)
    if n_units > settings.noise_directions:
        scores = ((hidden[:DIRECTION_ROWS] - centre) * gain).clamp(-MAX_SCORE, MAX_SCORE)
        directions = torch.linalg.svd(scores, full_matrices=False).Vh[: settings.noise_directions].T.contiguous()
    size = directions.shape[1] + 2
    return VaryingNoise(
        centre,
        gain,
        directions / math.sqrt(2.0 * n_units),  # half of a variance of one, over all units
        *_standard(_powers(mean)),
        trust=_trust(mean, left_out, settings),
        weights=torch.zeros(n_outputs, 1 + size, dtype=hidden.dtype),
        covariance=torch.zeros(n_outputs, size, size, dtype=hidden.dtype),
        log_weights=head_prior,
        noise=torch.zeros(2, dtype=hidden.dtype),
    )


def _trust(mean: Tensor, left_out: Tensor, settings: Settings) -> Tensor:
    """How far the two parts of phi are about x, (o, 2), and not about the target of the very row.

    A network that learns targets by heart has them in its outputs, and so in what these are made of: sizes of targets
    then seem to depend on x. How much the outputs change without the row, next to how much they vary, tells.
    """
    own_pull = (mean - left_out).square().mean(0).sqrt() / mean.std(0, correction=0).clamp_min(LEAST_STD)
    ramps = [(end - own_pull) / (end - start) for start, end in settings.noise_own_pulls]
    return torch.stack(ramps, 1).clamp(0.0, 1.0)


def _standard(values: Tensor) -> tuple[Tensor, Tensor]:
    """Means over the rows, and one over their stds, 0 where nothing varies."""
    std = values.std(0, correction=0)
    return values.mean(0), torch.where(std > LEAST_STD, 1.0 / std, 0.0)


def _powers(mean: Tensor) -> Tensor:
    """Each output's mean and its square, (b, o, 2)."""
    return torch.stack([mean, mean.square()], 2)


def _log_ratio(design: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("bok,ok->bo", design, weights)


def _judge(
    head: Regression, left_out: Moments, y: Tensor, log_ratio: Tensor, head_prior: Tensor, weight: Tensor
) -> Tensor:
    """What is believed over the head's grid, from targets and outputs in units in which all noise is the same."""
    unit = torch.exp(0.5 * log_ratio)
    parts = zip(
        *(part.split(1024) for part in (left_out.mean / unit, left_out.var / unit.square(), y / unit, weight)),
        strict=True,
    )
    told = [head.to_constant(Moments(mean, var), target, often) for mean, var, target, often in parts]
    total = head_prior + torch.stack(told).sum(0)
    return total - total.max()


# --- one output ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Prior:
    """A Gaussian over a and w: its mean (1 + k,) and precision (1 + k, 1 + k)."""

    mean: Tensor
    precision: Tensor

    @classmethod
    def of_span(cls, span: float, n_features: int) -> _Prior:
        precisions = torch.tensor([VAGUE] + [span**-2] * n_features, dtype=torch.float64)
        return cls(torch.zeros_like(precisions), torch.diag(precisions))

    @classmethod
    def of_past(cls, mean: Tensor, covariance: Tensor) -> _Prior:
        level = torch.full((1, 1), FIRM, dtype=mean.dtype)  # what is known of the level then is in the head's prior
        return cls(mean, torch.block_diag(level, torch.linalg.inv(covariance)))


def _climb(
    design: Tensor,
    gap: Tensor,
    var: Tensor,
    noise_var: Tensor,
    spread: Tensor,
    prior: _Prior,
    start: Tensor,
    weight: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor, float]:
    """The most likely a and w by Newton's method, their precision there, and the evidence for this prior.

    Note:
        Rows that a larger and a smaller noise would suit count as flat, so that every step goes uphill.
    """

    def look(weights: Tensor) -> tuple[float, Tensor, Tensor]:
        told = noisy_slopes(gap, var, noise_var * torch.exp(design @ weights), spread)
        log_density, slope, bend = (weight * part for part in told)
        pull = prior.precision @ (weights - prior.mean)
        height = float(log_density.sum() - 0.5 * (weights - prior.mean) @ pull)
        precision = design.T @ ((-bend).clamp_min(0.0)[:, None] * design) + prior.precision
        return height, design.T @ slope - pull, precision

    weights, (height, slope, precision) = start, look(start)
    for _ in range(NEWTON_STEPS):
        step = torch.linalg.solve(precision, slope)
        for halving in range(HALVINGS):
            tried = weights + step / 2**halving
            seen = look(tried)
            if seen[0] >= height:
                break
        else:
            break
        gain, weights, (height, slope, precision) = seen[0] - height, tried, seen
        if gain < SAME:
            break
    evidence = height + 0.5 * float(torch.logdet(prior.precision) - torch.logdet(precision))
    return weights, precision, evidence


def _average(fits: Sequence[tuple[Tensor, Tensor, float]]) -> tuple[Tensor, Tensor]:
    """Mean of a and w, and covariance of w, over priors as their evidence weighs them."""
    shares = torch.softmax(torch.tensor([evidence for _, _, evidence in fits], dtype=torch.float64), 0)
    each = torch.stack([weights for weights, _, _ in fits])
    mean = shares @ each
    apart = (each - mean)[:, 1:]
    within = torch.stack([torch.linalg.inv(precision)[1:, 1:] for _, precision, _ in fits])
    return mean, torch.einsum("s,skl->kl", shares, within) + torch.einsum("s,sk,sl->kl", shares, apart, apart)
