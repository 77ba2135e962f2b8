"""How sweeps are done: one value, chosen by a schedule and saved with the network it trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Regime:
    """How messages are formed on the way out and back.

    Attributes:
        sees: what layers are handed as beliefs about their weights. "cavity": beliefs that have not seen the example
            (sequential schedule; every inner product in its exact form). "marginal": beliefs that have (parallel).
        activations: "moments" matches mean and variance behind an activation; "linear" takes it as linear around the
            mean of its input; "means" tells its mean and slope alone, for weights that are known and variances of sums
            that are given (objective/).
        input_noise: whether the variance of an activation counts as noise in the inputs of the weights above it. It is
            the variance of weights below, which all examples share, so in truth it is not fresh noise; without it the
            variance still counts where it belongs, in the variance of the sums above.
    """

    sees: Literal["cavity", "marginal"] = "marginal"
    activations: Literal["moments", "linear", "means"] = "moments"
    input_noise: bool = True

    def to_json(self) -> dict[str, Any]:
        """What files keep of it."""
        return asdict(self)


EXAMPLE_BY_EXAMPLE = Regime(sees="cavity")
MOMENTS = Regime()
LINEAR = Regime(activations="linear", input_noise=False)
MEANS = Regime(activations="means", input_noise=False)
