"""Class labels: predictions, what heads for them share, a learned link from outputs to probabilities, and softmax."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmp.basics import checks
from bayesmp.basics.arithmetic import undisturbed
from bayesmp.heads.base import Head, certain_grid, log_grid
from bayesmp.heads.loss import Loss, SoftmaxLoss, contrasts
from bayesmp.heads.output_points import output_points, root_of_covariance
from bayesmp.layers.base import Shape
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.likelihood import probit_scaled, softmax_predictive, softmax_to_latent

POINTS_AT_ONCE = {"cpu": 2_000, "cuda": 1_000_000}  # outputs that are averaged over at once; on a CPU, in its cache
LIKELY_SCALES = 8  # scales the predictive averages over: after some hundred examples the belief is narrower than that
SCALE_GRID = (0.1, 30.0, 96)  # link scales considered: steps of 6 %
SCALE_SPREAD = 0.3  # std of the prior over the logarithm of the scale
SOFTMAX_GAIN = 6.0  # chosen on leave-one-out and held-out digits (lab notes, "one joint belief")


@dataclass(frozen=True)
class ClassPrediction:
    """Class probabilities, and the moments of the outputs they come from.

    `prediction[rows]` takes some of its rows, `len(prediction)` counts them.

    Attributes:
        probs: (n, c), each row sums to 1.
        mean, epistemic_var: moments of the network's outputs (n, c), before the link.
        epistemic: mutual information of label and weights in nats (n,): how much of the entropy more data would take
            away. It compares what the network might say under other weights that the data allow.
    """

    probs: Tensor
    mean: Tensor
    epistemic_var: Tensor
    epistemic: Tensor

    @property
    def label(self) -> Tensor:
        """The most probable class of each row."""
        return self.probs.argmax(1)

    @property
    def entropy(self) -> Tensor:
        """Entropy of each row's probabilities in nats: 0 is certain, log(c) knows nothing."""
        return _entropy(self.probs)

    @property
    def aleatoric(self) -> Tensor:
        """The rest of the entropy, which no data would take away: entropy - epistemic."""
        return self.entropy - self.epistemic

    def log_prob(self, y: Any) -> Tensor:
        """Log-probability of the true labels y (n,); its mean is the log-likelihood of a test set."""
        labels = checks.check_labels(y, self.probs.shape[1]).to(self.probs.device)
        if len(labels) != len(self):
            raise ValueError(f"y must hold one label per row of the prediction, {len(self)}, got {len(labels)}")
        tiny = torch.finfo(self.probs.dtype).tiny
        return self.probs.gather(1, labels[:, None])[:, 0].clamp_min(tiny).log()

    def sample(self, n: int = 1, *, seed: int = 0) -> Tensor:
        """n draws (n, len) of labels, each independent of the others."""
        n = checks.check_positive_int(n, "n")
        draws = torch.rand(n, len(self), 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        below = draws.to(self.probs.device) > self.probs.double().cumsum(1)
        return below.sum(2).clamp_max(self.probs.shape[1] - 1)

    def __len__(self) -> int:
        return len(self.probs)

    def __getitem__(self, rows: Any) -> ClassPrediction:
        return ClassPrediction(self.probs[rows], self.mean[rows], self.epistemic_var[rows], self.epistemic[rows])

    @staticmethod
    def concatenate(parts: list[ClassPrediction]) -> ClassPrediction:
        return ClassPrediction(
            torch.cat([part.probs for part in parts]),
            torch.cat([part.mean for part in parts]),
            torch.cat([part.epistemic_var for part in parts]),
            torch.cat([part.epistemic for part in parts]),
        )


def _entropy(probs: Tensor) -> Tensor:
    return -torch.special.xlogy(probs, probs).sum(-1)


class Classifier(Head[ClassPrediction]):
    """What both heads share: labels, and P(c) = softmax(scale * mean / sqrt(1 + pi/8 scale^2 var)) averaged over
    scale.
    """

    n_heard = 0  # values at the front of the grid that training hears; link scales stand behind them

    @undisturbed()
    def __init__(self, scale: float | str | None) -> None:
        super().__init__()
        if scale == "learn":
            self.grid = log_grid(*SCALE_GRID)
        elif scale is None:
            self.grid = certain_grid(1.0)
        elif not isinstance(scale, (int, float)) or not (scale > 0 and math.isfinite(scale)):
            raise ValueError(f"scale must be a positive number, 'learn' or None, got {scale!r}")
        else:
            self.grid = certain_grid(float(scale))
        self.scale = scale

    @property
    @abstractmethod
    def natural_scale(self) -> float:
        """The link scale that the training messages themselves imply: centre of its prior."""

    @property
    def links(self) -> slice:
        """The part of the grid that holds link scales."""
        return slice(self.n_heard, None)

    def expected(self, log_weights: Tensor, power: float = 1.0) -> Tensor:
        """E[scale^power] under a belief over the grid."""
        scale = self.grid_like(log_weights)[self.links]
        return torch.dot(torch.softmax(log_weights[self.links], 0), scale if power == 1.0 else scale**power)

    def prior_log_weights(self) -> Tensor:
        """Log-normal around the natural scale; some hundred examples outweigh it."""
        return self.prior_around(self.natural_scale)

    def prior_around(self, scale: float) -> Tensor:
        """Log-normal prior over the link scales of the grid."""
        prior = torch.zeros_like(self.grid)
        if self.is_learned:
            prior[self.links] = -0.5 * ((self.grid[self.links] / scale).log() / SCALE_SPREAD).square()
        return prior

    def logits_per_output(self, log_weights: Tensor | None = None) -> float:
        has_link = self.scale is not None or self.is_learned
        return self.natural_scale if log_weights is None or not has_link else float(self.expected(log_weights))

    def n_outputs(self, shape_out: Shape) -> int:
        n_classes = super().n_outputs(shape_out)
        if n_classes < 2:
            raise ValueError(
                f"{self!r} needs one output per class, at least 2, but the last layer has {n_classes}; "
                "for two classes use two outputs"
            )
        return n_classes

    def check_targets(self, y: Any, n_outputs: int) -> Tensor:
        return checks.check_labels(y, n_outputs)

    def initial_message(self, y: Tensor) -> Tensor:
        return torch.zeros_like(self.grid)

    def to_constant(self, m_out: Moments, y: Tensor) -> Tensor:
        """Log-likelihood of the labels for each scale."""
        scale = self.grid_like(m_out.mean)[self.links][:, None, None]
        logits = probit_scaled(Moments(scale * m_out.mean, scale.square() * m_out.var))  # (k, b, c)
        return torch.log_softmax(logits, 2).gather(2, y.expand(len(scale), -1)[..., None]).sum((1, 2))

    def probabilities(self, m_out: Moments, log_weights: Tensor) -> Tensor:
        """Class probabilities (b, c), averaged over the belief about the scale."""
        scale, weight = self._likely_scales(log_weights, m_out.mean)
        scale = scale[:, None, None]
        each = softmax_predictive(Moments(scale * m_out.mean, scale.square() * m_out.var))  # (k, b, c)
        return torch.einsum("k,kbc->bc", weight, each)

    def at_certain_outputs(self, outputs: Tensor, log_weights: Tensor) -> Tensor:
        """Class probabilities (..., c) if the outputs were these: `probabilities` without variance."""
        scale, weight = self._likely_scales(log_weights, outputs)
        below = outputs.flatten(0, -2).t().contiguous()  # (c, n): sums over a few classes run along long rows
        below -= below.amax(0)
        found = torch.zeros_like(below)
        for each, share in zip(scale.split(1), weight.split(1), strict=True):
            power = torch.mul(below, each).exp_()
            found.addcmul_(power, (share / power.sum(0)).expand_as(power))
        return found.t().reshape(outputs.shape)

    def _likely_scales(self, log_weights: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """The scales that a belief over the grid holds for likely, and their weights."""
        belief = torch.softmax(log_weights[self.links], 0)
        weight, index = belief.topk(min(len(belief), LIKELY_SCALES))
        return self.grid_like(like)[self.links][index], weight / weight.sum()

    def predict(self, m_out: Moments, log_weights: Tensor, covariance: Tensor | None = None) -> ClassPrediction:
        """Averages over the outputs that are likely under their covariance, at fixed points (`output_points`).

        Without a covariance outputs are taken as independent, and probabilities are those of the probit-scaled link.
        """
        rows = max(1, POINTS_AT_ONCE.get(m_out.mean.device.type, POINTS_AT_ONCE["cpu"]) // m_out.mean.shape[1])
        means, variances = m_out.mean.split(rows), m_out.var.split(rows)
        covariances = [None] * len(means) if covariance is None else covariance.split(rows)
        parts = [
            self._predict(Moments(mean, var), log_weights, known)
            for mean, var, known in zip(means, variances, covariances, strict=True)
        ]
        return parts[0] if len(parts) == 1 else ClassPrediction.concatenate(parts)

    def _predict(self, m_out: Moments, log_weights: Tensor, covariance: Tensor | None) -> ClassPrediction:
        spread = torch.diag_embed(m_out.var) if covariance is None else covariance
        points = output_points(m_out.mean.shape[1], m_out.mean.dtype, m_out.mean.device)
        outputs = m_out.mean + torch.einsum("sc,bdc->sbd", points, root_of_covariance(spread))
        each = self.at_certain_outputs(outputs, log_weights)  # (s, b, c)
        probs = self.probabilities(m_out, log_weights) if covariance is None else each.mean(0)
        epistemic = (_entropy(probs) - _entropy(each).mean(0)).clamp_min(0.0)  # so never above that of probs
        return ClassPrediction(probs, m_out.mean, m_out.var, epistemic)

    def nll(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(self._logits(m_out, log_weights), y, reduction="none")

    def train_metrics(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> dict[str, Tensor]:
        return {
            "accuracy": (m_out.mean.argmax(1) == y).sum().to(m_out.mean),
            "nll": torch.nn.functional.cross_entropy(self._logits(m_out, log_weights), y, reduction="sum"),
        }

    def _logits(self, m_out: Moments, log_weights: Tensor) -> Tensor:
        scale = self.expected(log_weights)
        return probit_scaled(Moments(scale * m_out.mean, scale.square() * m_out.var))


class Softmax(Classifier):
    """P(class) = softmax of gain times the outputs.

    Args:
        gain: how many nats a unit of output is worth in training. Priors hold outputs to order one, and with a gain of
            1 no class could become probable.
        scale: factor on the outputs in the predictive: "learn" (from the training data, each example judged without
            its own message; the gain where training has an objective), a number, or None for the gain.
    """

    def __init__(self, *, scale: float | str | None = "learn", gain: float = SOFTMAX_GAIN) -> None:
        super().__init__(gain if scale is None else scale)
        if not 0 < gain < math.inf:
            raise ValueError(f"gain must be a positive number, got {gain!r}")
        self.scale, self.gain = scale, float(gain)

    def config(self) -> dict[str, Any]:
        return {"scale": self.scale, "gain": self.gain}

    @property
    def natural_scale(self) -> float:
        return self.gain

    def latent_mix(self, n_outputs: int) -> Tensor:
        return contrasts(n_outputs)

    def loss(self, y: Tensor, n_outputs: int, *, least_miss: float = 0.0) -> Loss:
        return SoftmaxLoss(y, n_outputs, self.gain)

    def to_latent(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> Gaussian:
        gain = self.gain
        message = softmax_to_latent(Moments(gain * m_out.mean, gain**2 * m_out.var), y)
        return Gaussian(gain * message.tau, gain**2 * message.rho)

    def __repr__(self) -> str:
        options = [] if self.scale == "learn" else [f"scale={self.scale!r}"]
        options += [] if self.gain == SOFTMAX_GAIN else [f"gain={self.gain:g}"]
        return f"Softmax({', '.join(options)})"
