"""The real data as the benchmarks want it: standardised by one mean and std, training part on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesmp.data import Scaling
from benchmarks.datasets import sets
from benchmarks.datasets.sets import Dataset


@dataclass(frozen=True, eq=False)
class Images:
    """Training images on the device, test images on the host, so that peak memory is that of training."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    scaling: Scaling  # of the training images, for further sets


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where data come from.

    Attributes:
        data_dir: folder of the original files; None: $BAYESMP_DATA, else ~/.cache/bayesmp.
        cache: folder for decoded arrays, so that a second run reads them at once; None keeps nothing.
        download: fetch what is missing.
    """

    data_dir: Path | None = None
    cache: Path | None = None
    download: bool = False

    def cifar10(self, device: torch.device, *, limit: int | None = None, test_limit: int | None = None) -> Images:
        found = self._load("cifar10", lambda: sets.cifar10(self.data_dir, download=self.download))
        return prepare(found, device, limit=limit, test_limit=test_limit)

    def svhn_test(self, scaling: Scaling) -> Tensor:
        """SVHN's test images, scaled as the familiar ones were."""
        found = self._load("svhn_test", lambda: sets.svhn_test(self.data_dir, download=self.download))
        return to_tensor(found.x_test, scaling, torch.device("cpu"))

    def mnist(self, device: torch.device, *, limit: int | None = None, flat: bool = True) -> Images:
        found = self._load("mnist", lambda: sets.mnist(self.data_dir, download=self.download))
        return prepare(found, device, limit=limit, flat=flat)

    def _load(self, name: str, loader: Callable[[], Dataset]) -> Dataset:
        fields = ("x_train", "y_train", "x_test", "y_test")
        if self.cache is None:
            return loader()
        paths = {field: self.cache / f"{name}-{field}.npy" for field in fields}
        if all(path.exists() for path in paths.values()):
            return Dataset(**{field: np.load(path) for field, path in paths.items()}, name=name)
        found = loader()
        self.cache.mkdir(parents=True, exist_ok=True)
        for field, path in paths.items():
            np.save(path, getattr(found, field))
        return found


def prepare(
    found: Dataset,
    device: torch.device,
    *,
    limit: int | None = None,
    test_limit: int | None = None,
    flat: bool = False,
) -> Images:
    """The first training and test images (all if there is no limit), scaled by the mean and std of the former."""
    x_train = found.x_train[:limit]
    scaling = Scaling.fit(x_train, per_feature=False)
    host = torch.device("cpu")
    return Images(
        to_tensor(x_train, scaling, device, flat=flat),
        torch.as_tensor(found.y_train[:limit], device=device),
        to_tensor(found.x_test[:test_limit], scaling, host, flat=flat),
        torch.as_tensor(found.y_test[:test_limit]),
        scaling,
    )


def to_tensor(x: NDArray[Any], scaling: Scaling, device: torch.device, *, flat: bool = False) -> Tensor:
    """(n, c, h, w) pixels as scaled float32; with `flat`, (n, c h w)."""
    scaled = torch.as_tensor(x, device=device).float().sub_(float(scaling.mean)).div_(float(scaling.std))
    return scaled.flatten(1) if flat else scaled
