"""scikit-learn's face of the library: arrays or data frames in, arrays in the units of the data out."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesmp.estimators.classifier import MPClassifier
    from bayesmp.estimators.columns.encoder import TableEncoder
    from bayesmp.estimators.distribution import PredictiveDistribution
    from bayesmp.estimators.regressor import MPRegressor, TargetWarning
    from bayesmp.estimators.scaling import TableScaling

__all__ = ["MPClassifier", "MPRegressor", "PredictiveDistribution", "TableEncoder", "TableScaling", "TargetWarning"]

PLACES = {
    "MPClassifier": "classifier",
    "MPRegressor": "regressor",
    "PredictiveDistribution": "distribution",
    "TableEncoder": "columns.encoder",
    "TableScaling": "scaling",
    "TargetWarning": "regressor",
}


def __getattr__(name: str) -> Any:
    """Imported when it is first used: scikit-learn takes about a second, and reading a file needs none of it."""
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"bayesmp.estimators.{PLACES[name]}"), name)
