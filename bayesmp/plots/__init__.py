"""Pictures of results: each function takes results as you hold them and an axes, draws, and returns the axes.

Matplotlib is imported when a function is called: `pip install bayesmp[plots]`. Without an axes the functions make a
figure of their own; save it with `ax.figure.savefig(...)`.
"""

from bayesmp.plots.confused import confusion
from bayesmp.plots.effects import partial_dependence
from bayesmp.plots.honesty import calibration_curve, confidence_histogram, reliability
from bayesmp.plots.regression import predicted_against_true, regression_bands
from bayesmp.plots.style import BLUE, INK, ORANGE, SERIES, SOFT, plain, require_matplotlib
from bayesmp.plots.training import signal_to_noise, training_history
from bayesmp.plots.unfamiliar import ood_curve

__all__ = [
    "BLUE",
    "INK",
    "ORANGE",
    "SERIES",
    "SOFT",
    "calibration_curve",
    "confidence_histogram",
    "confusion",
    "ood_curve",
    "partial_dependence",
    "plain",
    "predicted_against_true",
    "regression_bands",
    "reliability",
    "require_matplotlib",
    "signal_to_noise",
    "training_history",
]
