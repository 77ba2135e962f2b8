"""Small networks and data that several tests share, and the closed form of Bayesian linear regression."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

import bayesmp as bmp
from bayesmp.heads import Head

torch.set_num_threads(1)


def mlp(sizes: Sequence[int], head: Head, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> bmp.Network:
    """Linear layers of these sizes with a LeakyReLU between each two."""
    layers: list = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [bmp.Linear(n_in, n_out), bmp.LeakyReLU()]
    return bmp.Network(layers[:-1], head, seed=seed).to(dtype)


def linear_data(n: int = 60, n_in: int = 3, n_out: int = 1, *, noise_std: float = 0.3, seed: int = 0):
    """x (n, i) standard normal and y (n, o) linear in it, with noise, as float64 tensors."""
    rng = np.random.default_rng(seed)
    x, weight, bias = rng.normal(size=(n, n_in)), rng.normal(size=(n_out, n_in)), rng.normal(size=n_out)
    return torch.tensor(x), torch.tensor(x @ weight.T + bias + noise_std * rng.normal(size=(n, n_out)))


def blobs(n: int = 90, n_classes: int = 3, n_in: int = 2, *, spread: float = 1.0, seed: int = 0):
    """x (n, i), y (n): classes around the corners of a polygon of radius 2, float64 and int64."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    angle = 2 * np.pi * y / n_classes
    x = spread * rng.normal(size=(n, n_in))
    x[:, :2] += 2.0 * np.stack([np.cos(angle), np.sin(angle)], 1)
    return torch.tensor(x), torch.tensor(y)


def few_anchors(monkeypatch, rank: int = 60) -> None:
    """Beliefs over so many anchors at most, so that even small networks have none that is exact."""
    for place in (
        "bayesmp.evidence.pass_over_data.MAX_RANK",
        "bayesmp.evidence.pass_over_data.MAX_EXACT",
        "bayesmp.belief.base.MAX_RANK",
    ):
        monkeypatch.setattr(place, rank)


def run_with_past(n_old: int, n_new: int, *, noise_var: float) -> bmp.Trainer:
    """A trained run on the data of today, whose network's prior is what another run has learned from yesterday's."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n_old + n_new, 4, generator=generator, dtype=torch.float64) * 2 - 1
    y = torch.sin(3 * x[:, :1] * x[:, 1:2]) + 0.3 * torch.randn(len(x), 1, generator=generator, dtype=torch.float64)
    network = mlp([4, 24, 1], bmp.Regression(noise_var), dtype=torch.float64)
    bmp.Trainer(network, x[:n_old], y[:n_old]).run(8)
    trainer = bmp.Trainer(network.as_prior(), x[n_old:], y[n_old:])
    trainer.run(8)
    return trainer


def linear_posterior(x: np.ndarray, y: np.ndarray, mean: np.ndarray, var: np.ndarray, noise_var: float):
    """Mean and covariance of w in y = x w + N(0, noise_var) under the prior N(mean, diag var)."""
    precision = np.diag(1.0 / var) + x.T @ x / noise_var
    covariance = np.linalg.inv(precision)
    return covariance @ (mean / var + x.T @ y / noise_var), covariance


def snapshot(network: bmp.Network) -> list[torch.Tensor]:
    """Everything a network believes, the joint belief included, and where training starts, copied."""
    marginals = (network.prior.tau, network.prior.rho, network.marginal.tau, network.marginal.rho)
    joint = () if network.belief is None else network.belief.state().values()
    rest = (network.start, network.sum_share, network.head_log_weights)
    return [part.clone() for part in (*marginals, *rest, *joint)]


def assert_unchanged(network: bmp.Network, before: list[torch.Tensor]) -> None:
    for found, expected in zip(snapshot(network), before, strict=True):
        assert torch.equal(found, expected)


def is_same(found: object, truth: object) -> bool:
    """Bit for bit, part by part: predictions, what they hold, tensors, None."""
    if isinstance(truth, torch.Tensor):
        return isinstance(found, torch.Tensor) and torch.equal(found, truth)
    if truth is None:
        return found is None
    return type(found) is type(truth) and all(is_same(getattr(found, name), part) for name, part in vars(truth).items())
