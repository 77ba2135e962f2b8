"""Class labels by the largest output: the argmax head, and how far labels lie from what the network says."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.basics.arithmetic import undisturbed
from bayesmp.heads.base import log_grid
from bayesmp.heads.classification import Classifier
from bayesmp.layers.base import Layer
from bayesmp.layers.linear import all_dense
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.likelihood import PROBIT_SLOPE, argmax_predictive, centres_of_shares

LABEL_GRID = (0.1, 3.0, 36)  # variances of labels considered, the first that of clean ones: steps of 10 %
TAKEN_FOR_CLEAN = 1.5  # times the variance of clean labels up to which they are called so
USUAL_LINK = (
    1.5  # learned link scales over those of the comparisons: 1 to 1.3 of noisy labels, 1.3 to 2.7 of clean ones
)
PAIR_NOISE = 0.3  # variance of a comparison of two outputs, for clean labels
TRAINED_LOGITS = 6.0  # of PyTorch's logits, on either side of their mean, in a network that was trained on labels


class Argmax(Classifier):
    """The label is the class whose output is largest.

    Labels may be wrong, or say little because classes overlap. A network that takes them for clean learns them by
    heart. So how far labels lie from the outputs is learned like the noise of a regression: the variance v of targets
    +1 and -1 around outputs that have not seen them, at least that of clean labels (lab notes, "labels that are
    wrong"). It is counted in units of what these targets vary by: v = 1 says that labels tell nothing, be it of two
    classes or of twenty.

    Where some classes are more frequent than others, two things follow from their shares. An output counts for v as
    often as its class occurs: nobody errs about rare ones, and many of them would make the labels of all look clean.
    And the targets of a class have a centre, by as much as labels are noise: outputs that know nothing rest at the mean
    of their targets, and the softmax of these would not be the shares (`centres_of_shares`).

    Args:
        noise: variance added to each comparison of two outputs, for clean labels; it grows with v.
        target, target_var: the regulariser pulls the true class to N(target, target_var), the others to -target. None
            learns the variance in networks of dense layers whose link is learned, and is that of clean labels, 0.1, in
            others.
        scale: link of the predictive, P(c) = softmax(scale * outputs): "learn" (see Softmax) or a number; None takes
            the chance of each class to beat every other instead, without a link.
    """

    @undisturbed()
    def __init__(
        self,
        *,
        noise: float = PAIR_NOISE,
        target: float = 1.0,
        target_var: float | None = None,
        scale: float | str | None = "learn",
    ) -> None:
        super().__init__(scale)
        clean = LABEL_GRID[0] if target_var is None else target_var
        if not (0 < noise < math.inf and 0 < clean < math.inf):
            raise ValueError(f"noise and target_var must be positive, finite variances, got {noise} and {target_var}")
        if not math.isfinite(target):
            raise ValueError(f"target must be a finite number, got {target}")
        self.noise, self.target, self.target_var = noise, target, clean
        if target_var is None and scale == "learn":
            self.is_heard_in_training = True
            variances = log_grid(*LABEL_GRID)
            self.n_heard, self.grid = len(variances), torch.cat([variances, self.grid])
        self.shares: Tensor | None = None  # of the classes, (c,) in float64, where they are known
        self._shares: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._last_centre: tuple[float, Tensor] | None = None  # with the variance of labels that it belongs to

    def suited_to(self, layers: Sequence[Layer]) -> Argmax:
        """Where weights are shared over positions, as in convolutions, images are many and soon tell more than wrong
        labels do; those are taken for clean, which learns faster (lab notes, "labels that are wrong").
        """
        if not self.is_heard_in_training:
            return self
        if all_dense(layers):
            own = copy.copy(self)  # another network's labels have other shares
            own.shares, own._shares, own._last_centre = None, {}, None
            return own
        return Argmax(noise=self.noise, target=self.target, target_var=self.target_var, scale=self.scale)

    def config(self) -> dict[str, Any]:
        target_var = None if self.is_heard_in_training else self.target_var
        return {"noise": self.noise, "target": self.target, "target_var": target_var, "scale": self.scale}

    @property
    def heard(self) -> slice:
        return slice(0, self.n_heard) if self.is_heard_in_training else super().heard

    def know_targets(self, y: Tensor | None, n_outputs: int) -> None:
        """Take the shares of the classes, each seen once more than it was: one that has not come yet may come."""
        self._last_centre = None
        if y is None or not self.is_heard_in_training:
            self.shares = None
            return
        counts = torch.bincount(y, minlength=n_outputs).double().cpu() + 1.0
        self.shares = counts / counts.sum()
        for moved in self._shares.values():  # in place, because recorded visits read them
            moved.copy_(self.shares)

    def _shares_like(self, other: Tensor) -> Tensor | None:
        """The shares in another tensor's dtype, on its device; moved once, as the grid is."""
        if self.shares is None:
            return None
        key = (other.dtype, other.device)
        if key not in self._shares:
            with torch.inference_mode(False):  # else it could not be changed outside of that mode
                self._shares[key] = self.shares.to(other, copy=True)
        return self._shares[key]

    def centre_of(self, label_var: Tensor | float, like: Tensor) -> Tensor | float:
        """Centre of the targets of each class, (c,): 0 where shares are not known.

        Note:
            On a CPU a visit is calls, not numbers, and the variance of labels is mostly what it was at the last one.
        """
        shares = self._shares_like(like)
        if shares is None:
            return 0.0
        assert isinstance(label_var, Tensor)
        if like.is_cuda:
            return self._centres(label_var, shares)
        var = float(label_var)
        if self._last_centre is None or self._last_centre[0] != var or self._last_centre[1].dtype != like.dtype:
            self._last_centre = var, self._centres(label_var.to(like), shares)
        return self._last_centre[1]

    def _centres(self, label_var: Tensor, shares: Tensor) -> Tensor:
        """Centres (c,), or (k, c) for variances of labels (k, 1)."""
        noise = self.noise * (label_var / self.target_var)
        all_noise = self.target**2
        above = (label_var - self.target_var) / max(all_noise - self.target_var, torch.finfo(shares.dtype).tiny)
        is_noise = torch.where(label_var >= all_noise, 1.0, above.clamp(0.0, 1.0))  # none of clean labels, up to all
        return is_noise * centres_of_shares(shares, noise=noise, target=self.target)

    def label_var(self, log_weights: Tensor) -> Tensor | float:
        """The variance of labels that messages to the outputs are made with, under a belief over the grid."""
        return self.in_training(log_weights) if self.is_heard_in_training else self.target_var

    def prior_given(self, heard: float) -> Tensor:
        """Comparisons have more noise where labels have more variance, and probabilities change with the outputs as
        slowly: the scale to be expected is that of the noise that training hears.
        """
        if not self.is_heard_in_training:
            return super().prior_given(heard)
        expected = USUAL_LINK * self.natural_scale * math.sqrt(self.target_var / heard)
        return self.prior_around(expected) - self.prior_around(self.natural_scale)

    def tell_learned(self, log_weights: Tensor) -> str:
        if not self.is_heard_in_training:
            return ""
        var = float(self.label_var(log_weights))
        if var < TAKEN_FOR_CLEAN * self.target_var:
            return "labels are clean"
        return (
            f"labels have a variance of {var:.2g} around the outputs, clean ones {self.target_var:g}, those that tell "
            f"nothing {self.target**2:g}: some are wrong, or classes overlap"
        )

    def largest_constant(self, y: Tensor) -> float:
        """That of labels that tell nothing."""
        return self.target**2 if self.is_heard_in_training else math.inf

    def to_heard(self, m_out: Moments, y: Tensor) -> Tensor:
        """Log of prod N(centre +1 or -1; mean, var + v) over all outputs, for each variance v of labels, here in the
        units of the outputs; each output counts as often as its class occurs, 1 on average.
        """
        if not self.is_heard_in_training:
            return super().to_heard(m_out, y)
        n_classes = m_out.mean.shape[1]
        is_true = torch.nn.functional.one_hot(y, n_classes).bool()
        grid = self.grid_like(m_out.mean)[self.heard]
        targets = torch.where(is_true, self.target, -self.target).to(m_out.mean)
        miss = (targets - m_out.mean)[..., None]  # (b, c, k)
        shares = self._shares_like(m_out.mean)
        var = m_out.var[..., None] + grid * spread_of_targets(n_classes if shares is None else shares)
        if shares is None:
            return -0.5 * (torch.log(var) + miss.square() / var).sum((0, 1))
        miss = miss + self._centres(grid[:, None], shares).t()
        each = (torch.log(var) + miss.square() / var).sum(0)  # (c, k)
        return -0.5 * len(shares) * (shares @ each)

    def to_constant(self, m_out: Moments, y: Tensor) -> Tensor:
        """To the variances of labels, and to the scales."""
        scales = super().to_constant(m_out, y)
        return torch.cat([self.to_heard(m_out, y), scales]) if self.is_heard_in_training else scales

    @property
    def natural_scale(self) -> float:
        """Two outputs are compared with noise, as by Phi(difference / sqrt(noise))."""
        return PROBIT_SLOPE / math.sqrt(self.noise)

    def logits_per_output(self, log_weights: Tensor | None = None) -> float:
        """At the start so many that trained logits lie at the targets: the regulariser would pull others there hard,
        and what was learned would be lost on the way.
        """
        if log_weights is None and self.target > 0:
            return TRAINED_LOGITS / self.target
        return super().logits_per_output(log_weights)

    def to_latent(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> Gaussian:
        target_var = self.label_var(log_weights)
        noise = self.noise * (target_var / self.target_var)
        centre = self.centre_of(target_var, m_out.mean)
        return kernels.argmax_to_latent(m_out, y, noise=noise, target=self.target, target_var=target_var, centre=centre)

    def probabilities(self, m_out: Moments, log_weights: Tensor) -> Tensor:
        if self.scale is None:
            return argmax_predictive(m_out, noise=self.noise)
        return super().probabilities(m_out, log_weights)

    def at_certain_outputs(self, outputs: Tensor, log_weights: Tensor) -> Tensor:
        if self.scale is None:
            certain = Moments(outputs.flatten(0, -2), torch.zeros_like(outputs.flatten(0, -2)))
            return self.probabilities(certain, log_weights).view(outputs.shape)
        return super().at_certain_outputs(outputs, log_weights)

    def nll(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> Tensor:
        if self.scale is not None:
            return super().nll(m_out, y, log_weights)
        probs = self.probabilities(m_out, log_weights).gather(1, y[:, None])[:, 0]
        return -torch.log(probs.clamp_min(torch.finfo(probs.dtype).tiny))

    def train_metrics(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> dict[str, Tensor]:
        metrics = super().train_metrics(m_out, y, log_weights)
        if self.scale is None:
            metrics["nll"] = self.nll(m_out, y, log_weights).sum()
        return metrics

    def __repr__(self) -> str:
        options = [] if self.noise == PAIR_NOISE else [f"noise={self.noise!r}"]
        options += [] if self.target == 1.0 else [f"target={self.target!r}"]
        is_default = self.is_heard_in_training or (self.scale != "learn" and self.target_var == LABEL_GRID[0])
        options += [] if is_default else [f"target_var={self.target_var!r}"]
        options += [] if self.scale == "learn" else [f"scale={self.scale!r}"]
        return f"Argmax({', '.join(options)})"


def spread_of_targets(shares: Tensor | int) -> Tensor | float:
    """The variance of targets +1 and -1 around their means, of each class as often as it occurs.

    Args:
        shares: of the classes, (c,), or the number of classes that are equally frequent.
    """
    if isinstance(shares, int):
        return 4.0 * (1.0 - 1.0 / shares) / shares
    return 4.0 * (shares.square() * (1.0 - shares)).sum()
