"""What data say about all weights: the objective, which is the evidence of the linearised, smoothed network, and the
steps that lower it; passes over the data; every example left out; influence.
"""

from bayesmp.evidence.curvature import Curvature, OverRows, OverWeights, is_even
from bayesmp.evidence.descent import MOST_REFUSED, Descent, DescentState
from bayesmp.evidence.function import Slopes, SmoothFunction
from bayesmp.evidence.objective import MANY_LATENT, Look, Objective
from bayesmp.evidence.rest import FEWEST, FEWEST_OF_RESTED, falls_no_more

__all__ = [
    "FEWEST",
    "FEWEST_OF_RESTED",
    "MANY_LATENT",
    "MOST_REFUSED",
    "Curvature",
    "Descent",
    "DescentState",
    "Look",
    "Objective",
    "OverRows",
    "OverWeights",
    "Slopes",
    "SmoothFunction",
    "falls_no_more",
    "is_even",
]
