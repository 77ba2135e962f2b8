"""How sweeps are done: one value, chosen by a schedule and saved with the network it trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Regime:
    """How messages are formed on the way out and back.

    Attributes:
        sees: what layers are handed as beliefs about their weights. "cavity": beliefs that have not seen the example
            (sequential schedule; inner products treat each term apart). "marginal": beliefs that have (parallel).
        activations: "moments" matches mean and variance behind an activation; "means" tells its mean and slope alone,
            for weights that are known and variances of sums that are given (evidence/).
    """

    sees: Literal["cavity", "marginal"] = "marginal"
    activations: Literal["moments", "means"] = "moments"

    def to_json(self) -> dict[str, Any]:
        """What files keep of it."""
        return asdict(self)


EXAMPLE_BY_EXAMPLE = Regime(sees="cavity")
MOMENTS = Regime()
MEANS = Regime(activations="means")
