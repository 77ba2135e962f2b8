"""Bayesian networks for regression, ours and others', in one form: train on, then say how new targets are distributed.

All see float arrays x (n, d) and y (n,) of order one, and the same layers: LeakyReLU 0.1 (TAGI: ReLU, its own choice).
Packages are imported when a learner is made; one that is missing or broken is an UnavailableError.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import bayesmp as bmp
from bayesmp.network.torch_bridge import as_torch
from benchmarks.networks import mlp
from experiments.base import UnavailableError

Floats = NDArray[np.float64]


class Learner(ABC):
    """A network under training."""

    @abstractmethod
    def train(self, epochs: int) -> None:
        """So many more passes over the data."""

    @abstractmethod
    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Mean and variance (n,) of new targets, noise included."""

    def predictive(self, x: Floats) -> bmp.RegressionPrediction:
        """How new targets (n,) are distributed: Gaussian, unless a method says otherwise."""
        return gaussians(*self.predict(x))


def gaussians(mean: Floats, var: Floats) -> bmp.RegressionPrediction:
    """Gaussians with these moments (n,); what is noise in them does not matter."""
    return bmp.RegressionPrediction(
        torch.as_tensor(mean, dtype=torch.float64),
        torch.as_tensor(var, dtype=torch.float64),
        torch.zeros((), dtype=torch.float64),
    )


def require(module: str, package: str) -> ModuleType:
    """The module, or an error that says how to get it or why it does not work."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnavailableError(f"{error.name} is not installed: pip install {package}") from error
    except ImportError as error:
        raise UnavailableError(f"{package} is installed but does not work here: {error}") from error


class Ours(Learner):
    """This library, with its defaults but for the batch size.

    Args:
        x, y: training data.
        hidden: widths of the hidden layers.
        noise_var: None learns it, with tails and how it depends on the input, as is the default.
        seed: of the start and the batches.
    """

    batch_size = 50

    def __init__(self, x: Floats, y: Floats, hidden: Sequence[int], *, noise_var: float | None, seed: int) -> None:
        head = bmp.Regression("learn" if noise_var is None else noise_var)
        self._network: bmp.Network[Any] = bmp.Network(mlp(x.shape[1], *hidden, 1), head, seed=seed)
        self._noise_var = noise_var
        self._trainer = self._new_trainer(x, y, seed)

    def _new_trainer(self, x: Floats, y: Floats, seed: int) -> bmp.Trainer:
        return bmp.Trainer(self._network, x, y, batch_size=self.batch_size, seed=seed)

    def train(self, epochs: int) -> None:
        self._trainer.run(epochs, progress=False)

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        found = self.predictive(x)
        return _array(found.mean), _array(found.var)

    def predictive(self, x: Floats) -> bmp.RegressionPrediction:
        found: bmp.RegressionPrediction = self._network.predict(x)
        return found


class Laplace(Learner):
    """Weights at the maximum of the posterior by AdamW; there a Gaussian with the full curvature (laplace-torch).

    Prior precision, and the noise unless it is given, maximise the marginal likelihood after training; predictions are
    those of the linearised network.

    Args:
        x, y: training data.
        hidden: widths of the hidden layers.
        noise_var: None learns it.
        seed: of the start and the batches.
    """

    lr, batch_size, weight_decay = 5e-3, 50, 1e-4
    tuning_steps, tuning_lr = 200, 0.1

    def __init__(self, x: Floats, y: Floats, hidden: Sequence[int], *, noise_var: float | None, seed: int) -> None:
        self._laplace = require("laplace", "laplace-torch")
        self._x, self._y = torch.as_tensor(x, dtype=torch.float64), torch.as_tensor(y, dtype=torch.float64)[:, None]
        self._noise_var = noise_var
        torch.manual_seed(seed)
        self._model = as_torch(mlp(x.shape[1], *hidden, 1)).double()  # the curvature is not always positive in float32
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        self._generator = torch.Generator().manual_seed(seed)
        self._fitted: Any = None

    def train(self, epochs: int) -> None:
        self._model.train()
        for _ in range(epochs):
            for rows in torch.randperm(len(self._x), generator=self._generator).split(self.batch_size):
                loss = nn.functional.mse_loss(self._model(self._x[rows]), self._y[rows])
                self._optimizer.zero_grad()
                loss.backward()
                self._optimizer.step()
        self._fitted = self._fit()

    def _fit(self) -> Any:
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(self._x, self._y), batch_size=1000)
        sigma = 1.0 if self._noise_var is None else math.sqrt(self._noise_var)
        fitted = self._laplace.Laplace(
            self._model, "regression", subset_of_weights="all", hessian_structure="full", sigma_noise=sigma
        )
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)  # laplace-torch makes an identity matrix in the default type
        try:
            fitted.fit(loader)
        finally:
            torch.set_default_dtype(before)
        eigenvalues = torch.linalg.eigvalsh(fitted.H).clamp_min(0.0)
        log_prior, log_sigma = (torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
        tuned = [log_prior] + ([log_sigma] if self._noise_var is None else [])
        optimizer = torch.optim.Adam(tuned, lr=self.tuning_lr)
        for _ in range(self.tuning_steps):
            optimizer.zero_grad()
            fitted.prior_precision = log_prior.exp()
            fitted.sigma_noise = log_sigma.exp() if self._noise_var is None else torch.tensor(sigma).double()
            (-log_evidence(fitted, eigenvalues)).backward()
            optimizer.step()
        return fitted

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        with torch.no_grad():
            mean, var = self._fitted(torch.as_tensor(x, dtype=torch.float64))
            noise = torch.as_tensor(self._fitted.sigma_noise).detach() ** 2
        return _array(mean).ravel(), _array(var).ravel() + float(noise)


def log_evidence(fitted: Any, eigenvalues: Tensor) -> Tensor:
    """laplace-torch's log marginal likelihood at its prior precision and noise, with the determinant from eigenvalues
    that are computed once: a tenth of the time that 200 determinants take.

    Args:
        fitted: with one prior precision for all weights.
        eigenvalues: of its curvature `H`, at noise 1.
    """
    log_det = (eigenvalues / fitted.sigma_noise**2 + fitted.prior_precision).log().sum()
    found: Tensor = fitted.log_likelihood - 0.5 * (log_det - fitted.log_det_prior_precision + fitted.scatter)
    return found


class Tagi(Learner):
    """Tractable approximate Gaussian inference (pytagi): every batch is multiplied into the posterior, every epoch."""

    batch_size = 10

    def __init__(self, x: Floats, y: Floats, hidden: Sequence[int], *, noise_var: float, seed: int) -> None:
        pytagi, layers = require("pytagi", "pytagi==0.1.12"), require("pytagi.nn", "pytagi==0.1.12")
        pytagi.manual_seed(seed)
        self._x, self._y = x.astype(np.float32), y.astype(np.float32)
        parts: list[Any] = []
        for n_in, n_out in pairwise([x.shape[1], *hidden, 1]):
            parts += [layers.Linear(n_in, n_out), layers.ReLU()]
        self._network = layers.Sequential(*parts[:-1])
        self._network.set_threads(1)
        self._updater = layers.OutputUpdater(self._network.device)
        self._noise_var = noise_var
        self._rng = np.random.default_rng(seed)

    def train(self, epochs: int) -> None:
        for _ in range(epochs):
            order = self._rng.permutation(len(self._x))
            for start in range(0, len(order), self.batch_size):
                rows = order[start : start + self.batch_size]
                self._network(self._x[rows])
                self._updater.update(
                    output_states=self._network.output_z_buffer,
                    mu_obs=self._y[rows],
                    var_obs=np.full(len(rows), self._noise_var, dtype=np.float32),
                    delta_states=self._network.input_delta_z_buffer,
                )
                self._network.backward()
                self._network.step()

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        # a larger batch than the first one would make pytagi write outside of its memory
        pieces = np.array_split(x.astype(np.float32), math.ceil(len(x) / self.batch_size))
        parts = [self._network(rows) for rows in pieces]
        mean, var = (np.concatenate([np.asarray(part[k], dtype=np.float64) for part in parts]) for k in (0, 1))
        return mean, var + self._noise_var


class Ivon(Learner):
    """The variational online Newton method (ivon-opt); predictions are averaged over drawn weights.

    A noise that is not given is, after each epoch, the mean squared error of that epoch's draws of the weights: where
    its variational bound is largest, as a function of the noise.
    """

    batch_size, n_samples = 50, 100
    lr, hess_init, beta2, prior_precision = 0.01, 10.0, 0.99999, 1.0  # best of 18 on another draw of y = x^3

    def __init__(self, x: Floats, y: Floats, hidden: Sequence[int], *, noise_var: float | None, seed: int) -> None:
        ivon = require("ivon", "ivon-opt")
        torch.manual_seed(seed)
        self._x, self._y = _tensor(x), _tensor(y)[:, None]
        self._learns_noise = noise_var is None
        self._noise_var = float(self._y.square().mean()) if noise_var is None else noise_var
        self._model = as_torch(mlp(x.shape[1], *hidden, 1))
        self._optimizer = ivon.IVON(
            self._model.parameters(),
            lr=self.lr,
            ess=len(x),
            hess_init=self.hess_init,
            beta2=self.beta2,
            weight_decay=self.prior_precision / len(x),
        )
        self._generator = torch.Generator().manual_seed(seed)

    def train(self, epochs: int) -> None:
        for _ in range(epochs):
            total = 0.0
            for rows in torch.randperm(len(self._x), generator=self._generator).split(self.batch_size):
                with self._optimizer.sampled_params(train=True):
                    self._optimizer.zero_grad()
                    errors = self._model(self._x[rows]) - self._y[rows]
                    (0.5 * errors.square().mean() / self._noise_var).backward()
                self._optimizer.step()
                total += float(errors.detach().square().sum())
            if self._learns_noise:
                self._noise_var = total / len(self._x)

    @torch.no_grad()
    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        draws = []
        for _ in range(self.n_samples):
            with self._optimizer.sampled_params():
                draws.append(_array(self._model(_tensor(x))).ravel())
        return np.mean(draws, axis=0), np.var(draws, axis=0) + self._noise_var


def _tensor(values: Floats) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32)


def _array(values: Tensor) -> Floats:
    return values.detach().double().numpy()
