"""The test oracle: the sequential schedule on an explicit scalar factor graph, in plain Python floats.

Every scalar variable and every factor is an object. It is written from the equations of the model, not from the
library: nothing here imports bayesmp, torch or numpy (only its own tests and their `truths.py` do). It is slow on
purpose. The files, each importing only from those above it:

    messages.py    one Gaussian message (tau, rho) and its algebra
    trees.py       nested lists of messages: map, zip, split
    normal.py      a unit Gaussian on a half line: mass, mean, variance
    variables.py   the two kinds of variable: a scalar of one example, a weight shared by all
    sums.py        factors z = sum a_i w_i: inputs known, inputs uncertain, pooling
    leaky_relu.py  factor a = LeakyReLU(z)
    heads.py       factors at the last layer: regression, softmax, argmax
    wiring.py      the factors of one layer for one example
    network.py     OracleNetwork: sweeps, visits, sites
"""

from .messages import NOTHING, Message
from .network import OracleNetwork, damping_rate, n_iterations
from .trees import pair, split

__all__ = ["NOTHING", "Message", "OracleNetwork", "damping_rate", "n_iterations", "pair", "split"]
