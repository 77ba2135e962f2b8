"""Factors of the form z = sum_i a_i w_i: with known inputs, with uncertain inputs, and with pooling weights."""

import math

from .messages import Message
from .normal import log_cdf
from .variables import Variable, Weight

POOL_VAR = 0.3  # variance added to each pairwise comparison of a MaxPool window


def weighted_sum_to_term(m_z: Message, a: float, mean_d: float, var_d: float, mean: float, var: float) -> Message:
    r"""Message of the exact factor z = \sum_i a_i b_i, a known, to b_d.

    With mean = \sum a_i mean_i and var = \sum a_i^2 var_i (plus the variance of any noise):
        den = 1 + rho_z (var - a_d^2 var_d)
        tau = a_d (tau_z - rho_z (mean - a_d mean_d)) / den
        rho = a_d^2 rho_z / den
    """
    den = 1.0 + m_z.rho * (var - a * a * var_d)
    return Message(a * (m_z.tau - m_z.rho * (mean - a * mean_d)) / den, a * a * m_z.rho / den)


class ObservedSum:
    """z = sum_i a_i w_i + bias with known a_i (first weight layer); the bias is a term with a = 1.

    Exact: all weights enter at their cavity with respect to this example.
    """

    def __init__(self, terms: list[tuple[float, Weight]], bias: Weight | None, output: Variable, example: int) -> None:
        self.terms = terms if bias is None else [*terms, (1.0, bias)]
        self.output = output
        self.example = example

    def forward(self) -> None:
        """mean = sum a_i mean_i, var = sum a_i^2 var_i."""
        self.cavities = [weight.cavity_of(self.example) for _, weight in self.terms]
        self.mean = sum(a * m.mean for (a, _), m in zip(self.terms, self.cavities, strict=True))
        self.var = sum(a * a * m.var for (a, _), m in zip(self.terms, self.cavities, strict=True))
        if self.var <= 0.0:
            raise ValueError("a sum whose known inputs are all zero and that has no bias is no Gaussian variable")
        self.output.forward = Message.from_moments(self.mean, self.var)

    def backward(self) -> None:
        for (a, weight), m in zip(self.terms, self.cavities, strict=True):
            weight.collect(weighted_sum_to_term(self.output.backward, a, m.mean, m.var, self.mean, self.var))


class InnerProduct:
    r"""z = \sum_i a_i w_i + bias with a_i and w_i uncertain (later weight layers).

    Products by variational message passing, on the marginals of a_i and w_i; the sum over products and bias is exact,
    so the bias enters at its cavity. The backward sweep uses the moments that the forward sweep read.
    """

    def __init__(
        self, terms: list[tuple[Variable, Weight]], bias: Weight | None, output: Variable, example: int
    ) -> None:
        self.terms = terms
        self.bias = bias
        self.output = output
        self.example = example

    def forward(self) -> None:
        r"""mean = \sum E[a]E[w] + mean_bias, var = \sum v_i + var_bias, v_i = Var[a] E[w]^2 + E[a^2] Var[w]."""
        self.moments = [(a.marginal, w.marginal) for a, w in self.terms]
        self.product_means = [a.mean * w.mean for a, w in self.moments]
        self.product_vars = [a.var * w.mean**2 + (a.mean**2 + a.var) * w.var for a, w in self.moments]
        self.mean = sum(self.product_means)
        self.var = sum(self.product_vars)
        if self.bias is not None:
            self.bias_cavity = self.bias.cavity_of(self.example)
            self.mean += self.bias_cavity.mean
            self.var += self.bias_cavity.var
        self.output.forward = Message.from_moments(self.mean, self.var)

    def backward(self) -> None:
        r"""Messages to each w_i, each a_i and the bias.

        den_i = 1 + rho_z (var - v_i); t_i = (tau_z - rho_z (mean - E[a_i]E[w_i])) / den_i; r_i = rho_z / den_i;
        to w_i: tau = t_i E[a_i], rho = r_i E[a_i^2]; to a_i: tau = t_i E[w_i], rho = r_i E[w_i^2].
        """
        m_z = self.output.backward
        for k, (a, weight) in enumerate(self.terms):
            m_a, m_w = self.moments[k]
            to_product = weighted_sum_to_term(
                m_z, 1.0, self.product_means[k], self.product_vars[k], self.mean, self.var
            )
            weight.collect(Message(to_product.tau * m_a.mean, to_product.rho * (m_a.mean**2 + m_a.var)))
            a.collect(Message(to_product.tau * m_w.mean, to_product.rho * (m_w.mean**2 + m_w.var)))
        if self.bias is not None:
            m = self.bias_cavity
            self.bias.collect(weighted_sum_to_term(m_z, 1.0, m.mean, m.var, self.mean, self.var))


class AveragePool:
    """z = sum_i p_i h_i with p_i = 1/n, exact, on the forward messages of h_i."""

    def __init__(self, inputs: list[Variable], output: Variable) -> None:
        self.inputs = inputs
        self.output = output

    def pool_weights(self) -> list[float]:
        return [1.0 / len(self.inputs)] * len(self.inputs)

    def forward(self) -> None:
        self.moments = [(h.forward.mean, h.forward.var) for h in self.inputs]
        self.p = self.pool_weights()
        self.mean = sum(p * mean for p, (mean, _) in zip(self.p, self.moments, strict=True))
        self.var = sum(p * p * var for p, (_, var) in zip(self.p, self.moments, strict=True))
        self.output.forward = Message.from_moments(self.mean, self.var)

    def backward(self) -> None:
        for h, p, (mean, var) in zip(self.inputs, self.p, self.moments, strict=True):
            h.collect(weighted_sum_to_term(self.output.backward, p, mean, var, self.mean, self.var))


class MaxPool(AveragePool):
    r"""z = \sum_i p_i h_i where p_i is the probability that h_i is the largest of its window.

    p_i \propto \prod_{j \ne i} \Phi((mean_i - mean_j) / \sqrt{var_i + var_j + 0.3}), normalised to sum 1.
    """

    def pool_weights(self) -> list[float]:
        logs = [
            sum(
                log_cdf((mean_i - mean_j) / math.sqrt(var_i + var_j + POOL_VAR))
                for j, (mean_j, var_j) in enumerate(self.moments)
                if j != i
            )
            for i, (mean_i, var_i) in enumerate(self.moments)
        ]
        unnormalised = [math.exp(log - max(logs)) for log in logs]
        return [u / sum(unnormalised) for u in unnormalised]
