"""Training by one objective: the evidence of the linearised, smoothed network."""

from bayesmp.objective.curvature import Curvature, OverRows, OverWeights, is_even
from bayesmp.objective.descent import MOST_REFUSED, Descent, DescentState
from bayesmp.objective.function import Slopes, SmoothFunction
from bayesmp.objective.objective import MANY_LATENT, Look, Objective
from bayesmp.objective.rest import FEWEST, FEWEST_OF_RESTED, falls_no_more

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
