"""scikit-learn's face of the library: arrays or data frames in, arrays in the units of the data out."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayesmp.estimators.classifier import MPClassifier
    from bayesmp.estimators.columns.encoder import TableEncoder
    from bayesmp.estimators.regressor import MPRegressor
    from bayesmp.estimators.scaling import TableScaling

__all__ = ["MPClassifier", "MPRegressor", "TableEncoder", "TableScaling"]

PLACES = {
    "MPClassifier": "classifier",
    "MPRegressor": "regressor",
    "TableEncoder": "columns.encoder",
    "TableScaling": "scaling",
}


def __getattr__(name: str) -> Any:
    """Imported when it is first used: scikit-learn takes about a second, and reading a file needs none of it."""
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"bayesmp.estimators.{PLACES[name]}"), name)
