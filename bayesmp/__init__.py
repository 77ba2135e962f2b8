"""bayesmp: Bayesian neural networks trained by message passing."""

from bayesmp import data, metrics
from bayesmp.gaussian import Gaussian, Moments
from bayesmp.heads import Argmax, ClassPrediction, Regression, RegressionPrediction, Softmax
from bayesmp.history import EpochRecord, History
from bayesmp.layers import AvgPool2d, Conv2d, Flatten, LeakyReLU, Linear, MaxPool2d, ReLU
from bayesmp.many import fit_many
from bayesmp.network import Network, load
from bayesmp.trainer import TrainConfig, Trainer, fit

__version__ = "0.2.0"
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
]
