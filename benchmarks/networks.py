"""The networks of the benchmarks, written once as bayesmp layers; `as_torch` (torch_bridge.py) translates them."""

from __future__ import annotations

from itertools import pairwise

import bayesmp as bmp
from bayesmp.layers.base import Layer

LEAK = 0.1


def cifar10_cnn() -> list[Layer]:
    """The paper's network for images (3, 32, 32): 890,410 weights."""
    return [
        bmp.Conv2d(3, 32, 3),
        bmp.LeakyReLU(LEAK),
        bmp.Conv2d(32, 32, 3),
        bmp.LeakyReLU(LEAK),
        bmp.MaxPool2d(2),
        bmp.Conv2d(32, 64, 3),
        bmp.LeakyReLU(LEAK),
        bmp.Conv2d(64, 64, 3),
        bmp.LeakyReLU(LEAK),
        bmp.MaxPool2d(2),
        bmp.Flatten(),
        bmp.Linear(1600, 512),
        bmp.LeakyReLU(LEAK),
        bmp.Linear(512, 10),
    ]


def mnist_cnn() -> list[Layer]:
    """A small network for images (1, 28, 28), meant for a few thousand of them: 9,606 weights."""
    return [
        bmp.Conv2d(1, 8, 5, stride=2),
        bmp.LeakyReLU(LEAK),
        bmp.Conv2d(8, 16, 3),
        bmp.LeakyReLU(LEAK),
        bmp.MaxPool2d(2),
        bmp.Flatten(),
        bmp.Linear(400, 20),
        bmp.LeakyReLU(LEAK),
        bmp.Linear(20, 10),
    ]


def pooled_cnn() -> list[Layer]:
    """Two convolutions with pools for images (1, 28, 28), as a tutorial has them: 27,562 weights."""
    return [
        bmp.Conv2d(1, 8, 3),
        bmp.LeakyReLU(LEAK),
        bmp.MaxPool2d(2),
        bmp.Conv2d(8, 16, 3),
        bmp.LeakyReLU(LEAK),
        bmp.MaxPool2d(2),
        bmp.Flatten(),
        bmp.Linear(400, 64),
        bmp.LeakyReLU(LEAK),
        bmp.Linear(64, 10),
    ]


def mnist_mlp() -> list[Layer]:
    return mlp(784, 100, 10)


def mnist_wide() -> list[Layer]:
    """784-2000-2000-10: 5.6 million weights."""
    return mlp(784, 2000, 2000, 10)


def mlp(*widths: int) -> list[Layer]:
    """Linear layers between these widths, LeakyReLU after each but the last."""
    layers: list[Layer] = []
    for n_in, n_out in pairwise(widths):
        layers += [bmp.Linear(n_in, n_out), bmp.LeakyReLU(LEAK)]
    return layers[:-1]


def sine_mlp(n_layers: int, width: int = 16) -> list[Layer]:
    """The paper's network for the sine data, with this many linear layers."""
    return mlp(1, *[width] * (n_layers - 1), 1)
