r"""What a factor tells its input through the line that is nearest to it.

Of x and y = f(x, ...) only means, variances and their covariance are kept. Then y = slope x + offset + noise, with
slope = Cov[x, y] / Var[x] and what is left of Var[y] as the variance of the noise, `rest`: the nearest joint Gaussian.
For f without other inputs, slope = E[f'(x)]. The message is always proper, and exact where f is a line.
"""

from __future__ import annotations

from torch import Tensor

from bayesmp.messages.gaussian import Gaussian


def line_to_input(m_back: Gaussian, slope: Tensor, offset: Tensor | float, rest: Tensor) -> Gaussian:
    """Message to x from that at y = slope x + offset + N(0, rest); the message that says nothing comes back as such."""
    inv_den = 1.0 / (1.0 + m_back.rho * rest)
    return Gaussian(slope * (m_back.tau - m_back.rho * offset) * inv_den, slope.square() * m_back.rho * inv_den)
