"""scikit-learn's face of the library: arrays or data frames in, arrays in the units of the data out."""

from bayesmp.estimators.classifier import MPClassifier
from bayesmp.estimators.distribution import PredictiveDistribution
from bayesmp.estimators.regressor import MPRegressor, TargetWarning
from bayesmp.estimators.scaling import TableScaling

__all__ = ["MPClassifier", "MPRegressor", "PredictiveDistribution", "TableScaling", "TargetWarning"]
