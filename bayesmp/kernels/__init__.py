"""The same equations, faster where a device has something faster."""

from bayesmp.equations.activation import (
    leaky_relu_marginal_to_output,
    leaky_relu_to_input,
    leaky_relu_to_output,
)
from bayesmp.equations.weighted_sum import largest_probabilities

__all__ = ["largest_probabilities", "leaky_relu_marginal_to_output", "leaky_relu_to_input", "leaky_relu_to_output"]
