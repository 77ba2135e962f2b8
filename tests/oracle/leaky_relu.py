r"""Factor a = LeakyReLU(z), z for z >= 0 and alpha z below; moments by two truncated Gaussians.

On each half line LeakyReLU is linear with slope s (1 or alpha), so the message m_a(s z) is the Gaussian message
(s tau_a, s^2 rho_a) of z; for alpha = 0 it is the constant m_a(0). Everything is a mixture of two truncated Gaussians.
"""

import math
from typing import NamedTuple

from .messages import NOTHING, Message
from .normal import LOG_SQRT_2PI, half_line
from .variables import Variable

NOTHING_FORWARD = 1e-7  # rho up to which the stored backward message is no reason to leave the direct moments
MIN_NORMALISER = 1e-8  # below it forward and backward message contradict each other: direct moments
MIN_RHO_OUTPUT = 1e-10  # floor for rho of the message from above, in the backward direction
RHO_FALLBACK = 1e-8  # "nothing" when the marginal of z is not narrower than the forward message
MIN_VAR = 1e-12  # floor for the variance of a: ReLU of a surely negative z is a known 0 and would have rho = inf


class Half(NamedTuple):
    """One half line of the tilted density: log of its unnormalised mass, mean and variance of z on it."""

    log_mass: float
    mean: float
    var: float
    slope: float


class Mixture(NamedTuple):
    log_mass: float
    mean: float
    var: float


def tilted_halves(m_z: Message, m_a: Message, alpha: float) -> list[Half]:
    r"""The two halves of N(z; mean, var) exp(tau_a y - rho_a y^2 / 2), y = LeakyReLU(z).

    With tau = s tau_a, rho = s^2 rho_a, den = 1 + rho var, the Gaussian before the truncation has
        mean (mean + var tau) / den,  variance var / den,
        log mass -log(den)/2 + (tau mean + tau^2 var / 2 - rho mean^2 / 2) / den.
    """
    mean, var = m_z.mean, m_z.var
    halves = []
    for slope, sign in ((1.0, 1.0), (alpha, -1.0)):
        tau, rho = slope * m_a.tau, slope**2 * m_a.rho
        den = 1.0 + rho * var
        log_scale = -0.5 * math.log(den) + (tau * mean + 0.5 * tau**2 * var - 0.5 * rho * mean**2) / den
        std = math.sqrt(var / den)
        part = half_line(sign * (mean + var * tau) / den / std)
        halves.append(Half(log_scale + part.log_mass, sign * std * part.mean, std**2 * part.var, slope))
    return halves


def mix(halves: list[Half], *, of_output: bool) -> Mixture:
    r"""Mass, mean and variance of the mixture: of a where `of_output`, else of z.

    mean = \sum w_i m_i, var = \sum w_i v_i + w_1 w_2 (m_1 - m_2)^2.
    """
    top = max(half.log_mass for half in halves)
    total = sum(math.exp(half.log_mass - top) for half in halves)
    w1, w2 = (math.exp(half.log_mass - top) / total for half in halves)
    s1, s2 = (half.slope if of_output else 1.0 for half in halves)
    m1, m2 = s1 * halves[0].mean, s2 * halves[1].mean
    v1, v2 = s1**2 * halves[0].var, s2**2 * halves[1].var
    return Mixture(top + math.log(total), w1 * m1 + w2 * m2, w1 * v1 + w2 * v2 + w1 * w2 * (m1 - m2) ** 2)


def direct_to_output(m_z: Message, alpha: float) -> Message:
    """Gaussian with the mean and variance of LeakyReLU(z), z ~ m_z."""
    moments = mix(tilted_halves(m_z, NOTHING, alpha), of_output=True)
    return Message.from_moments(moments.mean, max(moments.var, MIN_VAR))


def to_output(m_z: Message, m_a: Message, alpha: float) -> Message:
    """Forward message: moments of a under m_z(z) m_a(LeakyReLU(z)), divided by m_a; direct ones as the fallback.

    Direct where m_a is nothing, where the normaliser (m_a as a normalised density) is below 1e-8, where the result is
    not finite, and where its precision is below that of the direct message.
    """
    direct = direct_to_output(m_z, alpha)
    if m_a.rho <= NOTHING_FORWARD:
        return direct
    moments = mix(tilted_halves(m_z, m_a, alpha), of_output=True)
    log_density_at_0 = 0.5 * math.log(m_a.rho) - LOG_SQRT_2PI - 0.5 * m_a.tau**2 / m_a.rho
    if moments.log_mass + log_density_at_0 < math.log(MIN_NORMALISER):
        return direct
    message = Message.from_moments(moments.mean, max(moments.var, MIN_VAR)) / m_a
    is_finite = math.isfinite(message.tau) and math.isfinite(message.rho)
    return message if is_finite and message.rho >= direct.rho else direct


def to_input(m_z: Message, m_a: Message, alpha: float) -> Message:
    """Backward message: moments of z under m_z(z) m_a(LeakyReLU(z)), divided by m_z.

    Where not finite, or the marginal is not narrower than m_z: rho = 1e-8 and tau = L1 = (mean - mean_z) / var_z, the
    derivative of the log normaliser with respect to mean_z.

    Note:
        The division loses digits where m_a says little: rho is off by about 1e-16 rho_z, tau by 1e-16 tau_z.
    """
    m_a = Message(m_a.tau, max(m_a.rho, MIN_RHO_OUTPUT))
    moments = mix(tilted_halves(m_z, m_a, alpha), of_output=False)
    if 0.0 < moments.var < m_z.var and math.isfinite(moments.mean):
        return Message.from_moments(moments.mean, moments.var) / m_z
    return Message((moments.mean - m_z.mean) / m_z.var, RHO_FALLBACK)


class LeakyRelu:
    """The factor: reads the forward message of z (not its marginal) and the messages at a."""

    def __init__(self, z: Variable, a: Variable, alpha: float) -> None:
        self.z = z
        self.a = a
        self.alpha = alpha

    def forward(self) -> None:
        self.a.forward = to_output(self.z.forward, self.a.backward, self.alpha)

    def backward(self) -> None:
        self.z.collect(to_input(self.z.forward, self.a.backward, self.alpha))
