"""bayesmp: Bayesian neural networks trained by message passing."""

import importlib
from typing import Any

from bayesmp import data, metrics
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.heads import Argmax, ClassPrediction, Regression, RegressionPrediction, Softmax
from bayesmp.history import EpochRecord, History
from bayesmp.layers import AvgPool2d, Conv2d, Flatten, LeakyReLU, Linear, MaxPool2d, ReLU
from bayesmp.many import fit_many
from bayesmp.network import Network, load
from bayesmp.trainer import TrainConfig, Trainer, fit

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """`bayesmp.plots`, loaded when it is first used."""
    if name == "plots":
        return importlib.import_module("bayesmp.plots")
    raise AttributeError(f"module 'bayesmp' has no attribute {name!r}")


__all__ = [
    "Argmax",
    "AvgPool2d",
    "ClassPrediction",
    "Conv2d",
    "EpochRecord",
    "Flatten",
    "Gaussian",
    "History",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "Moments",
    "Network",
    "ReLU",
    "Regression",
    "RegressionPrediction",
    "Softmax",
    "TrainConfig",
    "Trainer",
    "data",
    "fit",
    "fit_many",
    "load",
    "metrics",
    "plots",
]
