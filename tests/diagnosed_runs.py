"""What tests of diagnoses share: data, runs whose warnings are not the point, and the one finding of a kind."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.datasets import load_digits

import bayesmp as bmp
from bayesmp.diagnosis import Diagnosis, Finding


def trained(network: bmp.Network, x, y, epochs: int | str = 40, **options) -> bmp.Trainer:
    """A run whose warnings are not the point here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        trainer = bmp.Trainer(network, x, y, **options)
        trainer.run(epochs, progress=False)
    return trainer


def found(diagnosis: Diagnosis, kind: str) -> Finding:
    """The one finding of this kind."""
    (finding,) = [finding for finding in diagnosis.findings if finding.kind == kind]
    return finding


def digits() -> tuple[np.ndarray, np.ndarray]:
    """537 images of 0, 1 and 2."""
    x, y = load_digits(n_class=3, return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return (x[order] / 16).astype(np.float32), y[order]
