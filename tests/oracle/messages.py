"""One Gaussian message in natural parameters, and the algebra of the paper."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    r"""The function exp(tau x - rho x^2 / 2) of one scalar x.

    tau = mean / var, rho = 1 / var. A product of messages adds their natural parameters, a quotient subtracts them.
    rho = 0 says nothing about x and has no moments.
    """

    tau: float
    rho: float

    @classmethod
    def from_moments(cls, mean: float, var: float) -> "Message":
        return cls(mean / var, 1.0 / var)

    @property
    def mean(self) -> float:
        return self.tau / self.rho

    @property
    def var(self) -> float:
        return 1.0 / self.rho

    def __mul__(self, other: "Message") -> "Message":
        return Message(self.tau + other.tau, self.rho + other.rho)

    def __truediv__(self, other: "Message") -> "Message":
        return Message(self.tau - other.tau, self.rho - other.rho)

    def __pow__(self, power: float) -> "Message":
        return Message(power * self.tau, power * self.rho)


NOTHING = Message(0.0, 0.0)
