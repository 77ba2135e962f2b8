"""What a table's model knows of its training data beside what the network has learned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from bayesmp.basics.typed import Positive
from bayesmp.estimators import MPClassifier, MPRegressor
from bayesmp.estimators.base import Floats
from bayesmp.heads import ClassPrediction
from bayesmp.messages.gaussian import Moments
from bayesmp.network.network import Network

UNLIKE = 0.99  # share of the training rows that are not unlike the others
NOISE_ENDS = (0.05, 0.95)  # shares of the training rows between which the noise is told
UNLIKE_ROWS = 5_000  # of the training data that are asked for it, at most
MAX_LEVERAGE = 0.8  # what a row may hold of its own output; beyond that, leaving it out would say next to nothing


@dataclass(frozen=True)
class Facts:
    """What is known of the training data.

    Attributes:
        source: name of the file.
        made: day of the training.
        n_rows: rows with a target.
        guess: what one would say without inputs: mean and standard deviation of the target, or shares of the classes.
        unlike: spread of the outputs (`spread_of`) that only 1 % of the training rows exceed when they are left out.
        noise_std: of the targets around the function, in their units; None for classes.
        fingerprint: of the training inputs, to know them again.
        row_marks: of up to 1,024 training rows with their targets, to know some of them again.
        noise_range: noise_std at 5 % and 95 % of the training rows; empty for classes.
    """

    source: str
    made: str
    n_rows: Positive
    guess: tuple[float, ...]
    unlike: float
    noise_std: float | None
    fingerprint: str
    row_marks: tuple[str, ...]
    noise_range: tuple[float, ...] = ()


def spread_of(epistemic_var: torch.Tensor) -> Floats:
    """How unsure the network is of its outputs (n, o), as one number per row."""
    return epistemic_var.mean(1).sqrt().numpy()


def judge_training(estimator: MPRegressor | MPClassifier, x: Floats) -> tuple[float, float | None, tuple[float, ...]]:
    """The spread that marks rows as unlike the training data; the std of the noise in units of the target; its range.

    A row that was trained on is known better than a new one of the same kind; so its own message, of precision rho, is
    taken out: var / (1 - rho var). With it in, a third of the new rows of a small table would be marked.
    """
    rows = np.random.default_rng(0).permutation(len(x))[:UNLIKE_ROWS]
    assert estimator.seen_y_ is not None
    y = (
        estimator.seen_y_[rows]
        if isinstance(estimator, MPClassifier)
        else estimator.y_scaling_.apply(estimator.seen_y_[rows])
    )
    inputs, targets = estimator.x_scaling_.apply(x[rows]), torch.as_tensor(y)
    each = [_left_out(network, inputs, targets) for network in estimator.networks_]
    means, variances = (torch.stack(parts) for parts in zip(*each, strict=True))
    unlike = float(np.quantile(spread_of(variances.mean(0) + means.var(0, correction=0)), UNLIKE))
    known = estimator.predict_outputs(x[rows])
    if isinstance(known, ClassPrediction):
        return unlike, None, ()
    assert estimator.y_scaling_ is not None
    unit = float(estimator.y_scaling_.std[0])
    ends = np.quantile(known.aleatoric_var.sqrt().numpy(), NOISE_ENDS)
    return unlike, float(known.noise_var.sqrt()) * unit, tuple(float(end) * unit for end in ends)


def _left_out(network: Network, x: Floats, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means of the outputs of training rows, and their variances without each row's own message."""
    known = network.predict(x)
    mean, var = known.mean, known.epistemic_var
    message = network.head.to_latent(Moments(mean, var), y, network.head_log_weights.to(mean))
    return mean, var / (1.0 - message.rho * var).clamp_min(1.0 - MAX_LEVERAGE)
