r"""A belief that knows more curvature than its own: H + U U^T around another, exact one with H.

With Sigma = H^{-1} of the plain belief and L L^T = I + U^T Sigma U (Woodbury):

    (H + U U^T)^{-1} = Sigma - B B^T,   B = Sigma U L^{-T}

A draw s of the plain belief becomes one of this by s - B L^{-1} (U^T s + noise), noise of variance 1 (Matheron).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesmp.belief import directions
from bayesmp.belief.base import Belief, Gradients, chunks, lifted, total
from bayesmp.belief.past import Past
from bayesmp.layers.base import Gradient


@dataclass(frozen=True)
class Bent(Belief):
    """`pulls` U and `shifts` B as directions (i, o, q) per layer, `factor` L (q, q) in float64.

    What it leaves to the past is the plain belief: U is about the means as they are now.
    """

    plain: Belief
    pulls: list[Tensor]
    shifts: list[Tensor]
    factor: Tensor
    is_exact = True

    @classmethod
    def of(cls, plain: Belief, pulls: list[Tensor]) -> Bent:
        columns = [plain.solve(list(parts)) for parts in zip(*(part.permute(2, 1, 0) for part in pulls), strict=True)]
        solved = [torch.stack(parts, -1).transpose(0, 1) for parts in zip(*columns, strict=True)]  # Sigma U
        gram = directions.meet(pulls, solved)
        eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        factor = torch.linalg.cholesky(eye + 0.5 * (gram + gram.T))
        shifts = [torch.linalg.solve_triangular(factor.T, part, upper=True, left=False) for part in solved]
        return cls(plain, pulls, [part.contiguous() for part in shifts], factor)

    @property
    def basis(self) -> Any:
        return self.plain.basis

    @property
    def n_rows(self) -> int:  # type: ignore[override]
        return self.plain.n_rows

    @property
    def to_first_order(self) -> Belief:
        return self.plain

    @property
    def prior_vars(self) -> list[Tensor]:
        return self.plain.prior_vars

    @property
    def rank(self) -> int:
        return self.plain.rank + len(self.factor)

    def covariance(self, gradients: Gradients) -> Tensor:
        found, start = self.plain.covariance(gradients), 0
        widest = max(part.shape[1] for part in self.shifts)
        less = []
        for chunk in chunks(gradients, widest * len(self.factor)):
            part = directions.along_all(chunk, self.shifts).double()
            whole = found[start : start + len(part)].double()
            less.append(lifted(whole - part @ part.transpose(1, 2), whole))
            start += len(part)
        return torch.cat(less)

    @property
    def degrees_of_freedom(self) -> float:
        """Data settle less where U has settled it before: tr(B^T (H - D) B), with B^T H B = I - (L L^T)^{-1}."""
        eye = torch.eye(len(self.factor), dtype=self.factor.dtype, device=self.factor.device)
        inverse = torch.linalg.solve_triangular(self.factor, eye, upper=False)
        settled = len(inverse) - float(inverse.square().sum())
        of_prior = sum(
            float((part.double().square() / var.T.double()[..., None]).sum())
            for part, var in zip(self.shifts, self.prior_vars, strict=True)
        )
        return self.plain.degrees_of_freedom - settled + of_prior

    def leverage(self, past: Past) -> float:
        parts = zip(past.anchors, self.shifts, strict=True)
        along = total(
            [anchor.formed().double() @ part.double().transpose(0, 1).flatten(0, 1) for anchor, part in parts]
        )
        return self.plain.leverage(past) - float((along * (past.weights @ along)).sum())

    def as_past(self) -> tuple[list[Tensor], Past]:
        return self.plain.as_past()

    def solve(self, slopes: Sequence[Tensor]) -> list[Tensor]:
        parts = zip(self.shifts, slopes, strict=True)
        along = total([torch.einsum("ioq,oi->q", part, slope.to(part)) for part, slope in parts])
        return self._less(self.plain.solve(slopes), along)

    def solve_each(self, gradients: Sequence[Gradient]) -> list[Tensor]:
        return self._less(self.plain.solve_each(gradients), directions.along_all(gradients, self.shifts)[:, 0])

    def sample(self, generator: torch.Generator | None = None) -> list[Tensor]:
        drawn = self.plain.sample(generator)
        noise = torch.randn(len(self.factor), dtype=torch.float64, generator=generator).to(self.factor)
        parts = zip(self.pulls, drawn, strict=True)
        along = total([torch.einsum("ioq,oi->q", part, matrix.to(part)) for part, matrix in parts]) + noise
        return self._less(drawn, torch.linalg.solve_triangular(self.factor, along[:, None], upper=False)[:, 0])

    def _less(self, found: list[Tensor], along: Tensor) -> list[Tensor]:
        """Matrices (..., o, i) less B applied to (..., q)."""
        return [
            (part - torch.einsum("ioq,...q->...oi", shift, along.to(shift))).to(part)
            for part, shift in zip(found, self.shifts, strict=True)
        ]

    def state(self) -> dict[str, Tensor]:
        found = {**self.plain.state(), "bend.factor": self.factor}
        for k, (pull, shift) in enumerate(zip(self.pulls, self.shifts, strict=True)):
            found |= {f"bend.pull.{k}": pull, f"bend.shift.{k}": shift}
        return found

    def description(self) -> dict[str, Any]:
        return {**self.plain.description(), "is_bent": True}

    def to(self, device: torch.device, dtype: torch.dtype) -> Bent:
        pulls, shifts = ([part.to(device, dtype) for part in parts] for parts in (self.pulls, self.shifts))
        return Bent(self.plain.to(device, dtype), pulls, shifts, self.factor.to(device))
