"""The Head contract, and the grid belief about a head's one learned constant.

A head may learn one positive constant (the noise variance of a regression, the link scale of a classifier). Its
belief is a discrete distribution over a fixed grid of values. Each batch sends a message to it, one log-likelihood
per grid value, and the message is a site like any other: a visit replaces it, so data is not counted twice here
either. A head whose constant is given has a grid of that one value, and every belief about it is certain.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic

import torch
from torch import Tensor
from typing_extensions import TypeVar

from bayesmp.heads.loss import Loss
from bayesmp.layers.base import Layer, Shape
from bayesmp.messages.gaussian import Gaussian, Moments

LEAST_LOG_WEIGHT = -70.0  # of what is ruled out; finite in float32, and a sum of such weights is nothing
P = TypeVar("P", default=Any)  # what the head predicts with


class Head(ABC, Generic[P]):
    """The factor between the network's outputs and the targets; P is the type of its predictions."""

    grid: Tensor  # (k,) candidate values of the constant, float64 on the CPU
    is_heard_in_training = False  # whether messages to the outputs depend on the constant
    varies = False  # whether noise may depend on the input, in predictions
    has_noise = False  # whether targets carry noise, which a network that fits them too closely takes for signal

    def latent_mix(self, n_outputs: int) -> Tensor | None:
        """(l, k): the mixtures of k outputs that `loss` depends on; None where there is no loss."""
        return None

    def loss(self, y: Tensor, n_outputs: int, *, least_miss: float = 0.0) -> Loss | None:
        """What training by an objective (evidence/) makes smaller for these targets; None where there is none.

        Args:
            y: as `check_targets` has them, or some of them.
            n_outputs: of the network.
            least_miss: by how much one more target is said to be off, where noise is learned.
        """
        return None

    def grid_like(self, other: Tensor) -> Tensor:
        """The grid in another tensor's dtype, on its device; moved once, so that later uses wait for nothing."""
        key = (other.dtype, other.device)
        if key not in self._grids:
            self._grids[key] = self.grid.to(other)
        return self._grids[key]

    def __init__(self) -> None:
        self._grids: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def suited_to(self, layers: Sequence[Layer]) -> Head[P]:
        """This head as a network of these layers has it: itself, unless what it learns depends on them."""
        return self

    def know_targets(self, y: Tensor | None, n_outputs: int) -> None:
        """Take from all targets what the message of each depends on; None if those at hand do not tell it."""

    @property
    def is_learned(self) -> bool:
        """Whether the constant is inferred from data."""
        return len(self.grid) > 1

    @property
    def judges_labels(self) -> bool:
        """Whether what is learned, and heard in training, is how far labels lie from the outputs; not noise."""
        return self.is_heard_in_training and not self.has_noise

    def n_outputs(self, shape_out: Shape) -> int:
        """Number of outputs, or a ValueError if the last layer's output does not fit this head."""
        if len(shape_out) != 1:
            raise ValueError(
                f"{self!r} needs a last layer with a flat output (n_outputs,), got shape {shape_out}; "
                "end the network with Flatten() or a Linear layer"
            )
        return shape_out[0]

    @property
    def heard(self) -> slice:
        """The part of the grid that messages to the outputs are made with, in rising order: all of it, unless a head's
        grid holds more than that one constant."""
        return slice(None)

    def prior_log_weights(self) -> Tensor:
        """Log-prior over the grid: flat in the logarithm of the constant."""
        return torch.zeros_like(self.grid)

    def prior_given(self, heard: float) -> Tensor:
        """What a value of the constant that training hears adds to the log-prior over the grid: nothing, for most."""
        return torch.zeros_like(self.grid)

    def largest_constant(self, y: Tensor) -> float:
        """The constant with which the targets need no network at all; infinite where there is none."""
        return math.inf

    def logits_per_output(self, log_weights: Tensor | None = None) -> float:
        """What a unit of output is worth in logits, as PyTorch's losses take them; 1 where outputs are no logits.

        Args:
            log_weights: the belief about the head's constant; what training begins with if not given.
        """
        return 1.0

    def tell_learned(self, log_weights: Tensor) -> str:
        """What was learned about the noise or the labels, for users to read; nothing where it is given."""
        return ""

    def config(self) -> dict[str, Any]:
        """Constructor arguments that make this head again, as JSON holds them."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot be saved: give it a method config() that returns the arguments of its "
            "constructor, a dict of numbers, strings and lists"
        )

    @abstractmethod
    def check_targets(self, y: Any, n_outputs: int) -> Tensor:
        """Targets as a tensor this head understands, or a ValueError."""

    def check_more_targets(self, y: Any, n_outputs: int) -> Tensor:
        """`check_targets` for a few targets that join others, of which less can be said than of all together."""
        return self.check_targets(y, n_outputs)

    @abstractmethod
    def initial_message(self, y: Tensor) -> Tensor:
        """The (k,) pseudo-message all data start with, before any batch has been visited."""

    @abstractmethod
    def to_latent(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> Gaussian:
        """Message to the outputs (b, o), given the belief about the constant."""

    @abstractmethod
    def to_constant(self, m_out: Moments, y: Tensor) -> Tensor:
        """Message to the constant: one log-likelihood per grid value, summed over the batch, (k,).

        Args:
            m_out: outputs as they would be had each example not been seen, so that the constant is judged on fresh
            data.
        """

    def to_heard(self, m_out: Moments, y: Tensor) -> Tensor:
        """`to_constant` for the part of the grid that is heard in training."""
        return self.to_constant(m_out, y)[self.heard]

    @abstractmethod
    def predict(self, m_out: Moments, log_weights: Tensor, covariance: Tensor | None = None) -> P:
        """Predictions from the moments of the outputs, and their covariances (b, o, o) where they are known."""

    @abstractmethod
    def train_metrics(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> dict[str, Tensor]:
        """Per-example quantities, summed over the batch, that `History` averages."""

    def nll(self, m_out: Moments, y: Tensor, log_weights: Tensor) -> Tensor:
        """What `train_metrics` calls "nll", example by example, (b,)."""
        rows = zip(m_out.mean.split(1), m_out.var.split(1), y.split(1), strict=True)
        found = [self.train_metrics(Moments(mean, var), target, log_weights)["nll"] for mean, var, target in rows]
        return torch.stack(found)

    def expected(self, log_weights: Tensor, power: float = 1.0) -> Tensor:
        """E[constant^power] under a belief over the grid."""
        grid = self.grid_like(log_weights)
        if power != 1.0:
            grid = grid**power
        return torch.dot(torch.softmax(log_weights, 0), grid) if self.is_learned else grid[0]

    def certain(self, constant: float) -> Tensor:
        """The belief over the grid that the constant has this value, as `in_training` tells it."""
        log_weights = torch.full_like(self.grid, -math.inf)
        grid = self.grid[self.heard]
        if len(grid) == 1:
            return torch.zeros_like(self.grid)
        constant = min(max(constant, float(grid[0])), float(grid[-1]))
        above = int(torch.searchsorted(grid, constant).clamp(1, len(grid) - 1))
        low, high = float(grid[above - 1]), float(grid[above])
        share = (1.0 / low - 1.0 / constant) / (1.0 / low - 1.0 / high)
        weights = torch.zeros_like(grid)
        weights[above - 1], weights[above] = 1.0 - share, share
        log_weights[self.heard] = weights.log()
        return log_weights.clamp_min(LEAST_LOG_WEIGHT)

    def in_training(self, log_weights: Tensor) -> Tensor:
        """1 / E[1 / constant], the constant that messages to the outputs are made with."""
        if not self.is_learned:
            return self.grid_like(log_weights)[0]
        grid = self.grid_like(log_weights)[self.heard]
        return 1.0 / torch.dot(torch.softmax(log_weights[self.heard], 0), grid.reciprocal())


def without_own_message(m_out: Moments, m_back: Gaussian) -> Moments:
    r"""Outputs as they would be had the example not been seen, from outputs that have seen it.

    A message pulls the mean of the output it arrives at by var e, e = (tau - rho mean) / (1 + rho var); the beliefs
    about the weights contain that pull already, so it is taken back.

    Note:
        First order in the example's share of the posterior, and var is that of factorised weights. Measured when it
        was chosen, on MNIST with 640 images, where the training labels are fitted perfectly: the link scale it picks
        costs .001 to .003 nats against the best one for the test set, the scale picked at the outputs themselves .04.
    """
    pull = (m_back.tau - m_back.rho * m_out.mean) / (1.0 + m_back.rho * m_out.var)
    return Moments(m_out.mean - m_out.var * pull, m_out.var)


def certain_grid(value: float) -> Tensor:
    """The grid of a constant that is known."""
    return torch.tensor([value], dtype=torch.float64)


def log_grid(low: float, high: float, n: int) -> Tensor:
    """n values from low to high, evenly spaced in the logarithm."""
    return torch.logspace(torch.tensor(low).log10().item(), torch.tensor(high).log10().item(), n, dtype=torch.float64)
