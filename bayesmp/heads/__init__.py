"""Heads: what the last layer's outputs mean, and what a target tells them."""

from bayesmp.heads.argmax import Argmax
from bayesmp.heads.base import Head
from bayesmp.heads.classification import ClassPrediction, Softmax
from bayesmp.heads.mixture import RegressionMixture, mixture
from bayesmp.heads.regression import Regression
from bayesmp.heads.regression_prediction import LocalNoise, RegressionPrediction

__all__ = [
    "Argmax",
    "ClassPrediction",
    "Head",
    "LocalNoise",
    "Regression",
    "RegressionMixture",
    "RegressionPrediction",
    "Softmax",
    "mixture",
]
