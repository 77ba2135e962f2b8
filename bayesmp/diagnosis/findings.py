"""What a diagnosis consists of."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

PROBLEM, HINT = "problem", "hint"


@dataclass(frozen=True)
class Finding:
    """One thing that looks wrong.

    Attributes:
        kind: a short name that does not change, e.g. "too_sure".
        severity: "problem" (predictions should not be trusted before it is mended) or "hint" (worth a look).
        sentence: what was seen, with figures, and what to do.
        numbers: the figures, by name.
    """

    kind: str
    severity: str
    sentence: str
    numbers: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        mark = "!" if self.severity == PROBLEM else "-"
        return textwrap.fill(f"{mark} {self.kind}: {self.sentence}", width=100, subsequent_indent="  ")


@dataclass(frozen=True)
class Diagnosis:
    """What looks wrong with a network; `print` it.

    Attributes:
        findings: problems first.
        n_rows: of the data it was made with.
        not_judged: what could not be judged, and why.
    """

    findings: list[Finding]
    n_rows: int
    not_judged: list[str] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        """The kinds of all findings."""
        return [finding.kind for finding in self.findings]

    def __str__(self) -> str:
        rows = f"{self.n_rows:,} row{'s' if self.n_rows != 1 else ''}"
        if not self.findings:
            lines = [f"Nothing looks wrong ({rows})."]
        else:
            n = len(self.findings)
            lines = [f"{n} thing{'s' if n > 1 else ''} may be wrong ({rows}):", *map(str, self.findings)]
        if self.not_judged:
            text = f"Not judged: {'; '.join(self.not_judged)}."
            lines.append(textwrap.fill(text, width=100, subsequent_indent="  "))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Diagnosis({', '.join(self.kinds) or 'nothing looks wrong'})"
