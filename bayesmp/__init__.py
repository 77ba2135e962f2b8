"""bayesmp: Bayesian neural networks trained by message passing."""

import importlib
from typing import TYPE_CHECKING, Any

from bayesmp import data, metrics
from bayesmp.diagnosis import Diagnosis, Finding
from bayesmp.evidence.influence import Batch, Influence
from bayesmp.heads import Argmax, ClassPrediction, Regression, RegressionPrediction, Softmax, mixture
from bayesmp.layers import AvgPool2d, Conv2d, Flatten, LeakyReLU, Linear, MaxPool2d, ReLU, Scale, Softplus
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.network.files import load
from bayesmp.network.network import Network
from bayesmp.network.torch_bridge import from_torch, to_torch
from bayesmp.training.fitting import fit
from bayesmp.training.history import Change, EpochRecord, History
from bayesmp.training.many import fit_many
from bayesmp.training.merging import merge
from bayesmp.training.train_config import TrainConfig
from bayesmp.training.trainer import Trainer

if TYPE_CHECKING:
    from bayesmp.estimators import MPClassifier, MPRegressor, TableEncoder

__version__ = "0.2.0"


__all__ = [
    "Argmax",
    "AvgPool2d",
    "Batch",
    "Change",
    "ClassPrediction",
    "Conv2d",
    "Diagnosis",
    "EpochRecord",
    "Finding",
    "Flatten",
    "Gaussian",
    "History",
    "Influence",
    "LeakyReLU",
    "Linear",
    "MPClassifier",
    "MPRegressor",
    "MaxPool2d",
    "Moments",
    "Network",
    "ReLU",
    "Regression",
    "RegressionPrediction",
    "Scale",
    "Softmax",
    "Softplus",
    "TableEncoder",
    "TrainConfig",
    "Trainer",
    "data",
    "fit",
    "fit_many",
    "from_torch",
    "load",
    "merge",
    "metrics",
    "mixture",
    "plots",
    "to_torch",
]


def __getattr__(name: str) -> Any:
    """What is imported when it is first used: scikit-learn takes about a second to import, matplotlib as well."""
    if name == "plots":
        return importlib.import_module("bayesmp.plots")
    if name in ("MPClassifier", "MPRegressor", "TableEncoder"):
        return getattr(importlib.import_module("bayesmp.estimators"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, also those that are imported when they are first used; rooms and imports are not among them."""
    return sorted([*__all__, "__version__"])
