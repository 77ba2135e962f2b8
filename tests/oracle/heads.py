"""Factors at the last layer: they read the forward messages of the outputs and send one message to each."""

import math

from .messages import NOTHING, Message
from .normal import cdf, half_line
from .sums import weighted_sum_to_term
from .variables import Variable

N_POINTS = 4001  # of the trapezoid rule, on mean +- (12 + std) standard deviations
RHO_FALLBACK = 1e-8  # "nothing" when the tilted variance is not below the forward variance


class RegressionHead:
    """y = output + N(0, noise_var): the message N(y, noise_var) to each output."""

    def __init__(self, outputs: list[Variable], y: float | list[float], noise_var: float) -> None:
        self.outputs = outputs
        self.targets = list(y) if isinstance(y, list | tuple) else [y]
        self.noise_var = noise_var

    def backward(self) -> None:
        for output, target in zip(self.outputs, self.targets, strict=True):
            output.backward = Message.from_moments(target, self.noise_var)


class SoftmaxHead:
    r"""Class y by softmax: for logit d, the moments of N(a_d; mean_d, var_d) softmax(t_1, .., a_d, ..)_y.

    The other logits stand at t_j = mean_j / \sqrt{1 + (\pi / 8) var_j}.
    """

    def __init__(self, outputs: list[Variable], y: int) -> None:
        self.outputs = outputs
        self.true_class = y

    def backward(self) -> None:
        points = [o.forward.mean / math.sqrt(1.0 + math.pi / 8.0 * o.forward.var) for o in self.outputs]
        for d, output in enumerate(self.outputs):
            output.backward = softmax_to_logit(output.forward, points, d, self.true_class)


def log_softmax(logits: list[float], c: int) -> float:
    top = max(logits)
    return logits[c] - top - math.log(sum(math.exp(logit - top) for logit in logits))


def softmax_to_logit(m_logit: Message, points: list[float], d: int, true_class: int) -> Message:
    """Tilted moments of logit d by a dense trapezoid rule, divided by the forward message.

    Note:
        log softmax has a slope of at most 1 in a_d, so it moves the mode by at most one std, counted in stds: the
        range is wide enough for any forward message.
    """
    mean, var = m_logit.mean, m_logit.var
    std = math.sqrt(var)
    reach = 12.0 + std
    grid = [reach * (2.0 * k / (N_POINTS - 1) - 1.0) for k in range(N_POINTS)]  # a_d = mean + std u
    logs = [-0.5 * u * u + log_softmax([*points[:d], mean + std * u, *points[d + 1 :]], true_class) for u in grid]
    top = max(logs)
    density = [math.exp(log - top) for log in logs]
    total = math.fsum(density)
    first = math.fsum(p * u for p, u in zip(density, grid, strict=True)) / total
    second = math.fsum(p * (u - first) ** 2 for p, u in zip(density, grid, strict=True)) / total
    tilted_mean, tilted_var = mean + std * first, var * second
    if tilted_var >= var:
        return Message((tilted_mean - mean) / var, RHO_FALLBACK)
    return Message.from_moments(tilted_mean, tilted_var) / m_logit


class ArgmaxHead:
    r"""Class c is the largest: z_i = a_c - a_i + N(0, noise) >= 0 for each other class i.

    Each z_i is truncated at 0; the exact sum carries its message to a_c (product over i) and a_i. Both natural
    parameters of the message to a_i are scaled by Pr[z_i < 0] under the forward messages, so its mean stays.
    Regulariser: times N(a_c; +target, target_var) and N(a_i; -target, target_var); none where target_var is None.
    """

    def __init__(self, outputs: list[Variable], y: int, noise: float, target: float, target_var: float | None) -> None:
        self.outputs = outputs
        self.true_class = y
        self.noise = noise
        self.pull = NOTHING if target_var is None else Message.from_moments(target, target_var)

    def backward(self) -> None:
        best = self.outputs[self.true_class]
        m_c = best.forward
        best.backward = self.pull
        for i, other in enumerate(self.outputs):
            if i == self.true_class:
                continue
            m_i = other.forward
            mean, var = m_c.mean - m_i.mean, m_c.var + m_i.var + self.noise
            m_z = positive_to_input(mean, var)
            best.collect(weighted_sum_to_term(m_z, 1.0, m_c.mean, m_c.var, mean, var))
            to_other = weighted_sum_to_term(m_z, -1.0, m_i.mean, m_i.var, mean, var)
            mirrored_pull = Message(-self.pull.tau, self.pull.rho)
            other.backward = to_other ** cdf(-mean / math.sqrt(var)) * mirrored_pull


def positive_to_input(mean: float, var: float) -> Message:
    r"""Message of the factor z >= 0 to z ~ N(mean, var): truncated moments divided by the forward message.

    With x = mean / std, hazard h, shrink k = h (h + x), truncated mean std (x + h) and variance var (1 - k):
        rho = 1 / (var (1 - k)) - 1 / var = k / ((1 - k) var)
        tau = (x + h) / (std (1 - k)) - x / std = (h + x k) / ((1 - k) std)
    """
    std = math.sqrt(var)
    x = mean / std
    part = half_line(x)
    return Message((part.hazard + x * part.shrink) / (part.var * std), part.shrink / (part.var * var))
