"""Tiny synthetic data for all benchmarks."""

import numpy as np
import pytest
import torch

import bayesmp as bmp
from benchmarks import datasets
from benchmarks.datasets import Dataset

CPU = torch.device("cpu")


@pytest.fixture
def blobs():
    """Three classes around three points, (90, 4): easy enough for any method."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    return torch.eye(3, 4)[y] * 4 + 0.3 * torch.randn(90, 4, generator=generator), y


@pytest.fixture
def patterns():
    """Images (3, 4, 4) with a bright pixel per class, 120 to train on and 40 to test, scaled as benchmarks do it."""
    rng = np.random.default_rng(0)
    y = np.arange(160) % 10
    x = rng.integers(0, 60, size=(160, 3, 4, 4), dtype=np.uint8)
    x.reshape(160, -1)[np.arange(160), 3 * y] += 190
    return datasets.prepare(Dataset(x[:120], y[:120], x[120:], y[120:], "patterns"), CPU)


@pytest.fixture
def pattern_layers():
    """A network for the patterns, in place of a benchmark's."""
    return lambda: [bmp.Flatten(), bmp.Linear(48, 8), bmp.LeakyReLU(0.1), bmp.Linear(8, 10)]
