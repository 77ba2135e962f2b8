r"""H = P + sum_n J_n^T L_n J_n, the curvature of all data and the prior at one point: over weights or over rows.

With L = R R^T the slopes J come as rows R^T J (`Slopes.seen_through`), each of which speaks with precision 1.

Two forms answer the same questions. `OverWeights` holds H, (w, w): for few weights and any number of examples.
`OverRows` holds S = I + A P^{-1} A^T with A all rows R^T J, (r, r): for few examples and any number of weights,
whose rows are never formed. Both are exact.

The questions: 1/2 log det H / det P; H^{-1} applied to a slope; how much of its own output an example holds; the
variance that the belief N(m, H^{-1}) gives each unit's sum; and how log det H changes with inputs and slopes of the
layers, from which its slope in the means follows by one sweep back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bayesmp.evidence.function import Slopes
from bayesmp.evidence.products import held, met_each
from bayesmp.layers.base import Gradient

N_DRAWS = 32  # of all weights, where they tell variances


@dataclass(frozen=True)
class LayerPull:
    """Slopes of 1/2 log det H in a layer's inputs (n, p, i), None where these are given and never change, and in the
    slopes (k, n, p, o) of its sums.
    """

    inputs: Tensor | None
    slopes: Tensor


class Curvature(ABC):
    """H at one point.

    Attributes:
        prior_rho: precision of each weight under the prior, (w,).
    """

    prior_rho: Tensor

    @property
    @abstractmethod
    def half_log_det(self) -> float:
        """1/2 log det H - 1/2 log det P; infinite where H is not positive."""

    @abstractmethod
    def newton(self, slope: Tensor, damping: float) -> Tensor:
        """(H + damping P)^{-1} applied to a slope (w,); NaN where rounding leaves no positive matrix."""

    @abstractmethod
    def held(self, part: Slopes) -> Tensor:
        """A C A^T of the rows of each example, (n, k, k): how much of its own outputs it holds."""

    @abstractmethod
    def held_within(self, part: Slopes | None, rows: Tensor) -> Tensor:
        """The same (m k, m k) of all rows of m of these examples with each other, example by example; over rows they
        are some of the very examples that it was made from.
        """

    @abstractmethod
    def pulls(self, part: Slopes, *, given: Collection[int] = ()) -> list[LayerPull]:
        """How 1/2 log det H changes with the rows of some examples, layer by layer; nothing of the inputs of the layers
        whose inputs are given.
        """

    @abstractmethod
    def unit_covariances(self, layer: int) -> Tensor:
        """Covariances (o, i, i) of each unit's own weights."""

    @property
    @abstractmethod
    def diagonal(self) -> Tensor:
        """Precision of each weight where all others are known, (w,)."""

    @property
    @abstractmethod
    def degrees_of_freedom(self) -> float:
        """How many directions in weight space data have settled, tr(I - P H^{-1})."""

    @abstractmethod
    def freedom_by_input(self, layer: int) -> Tensor:
        """How many of them are about the weights of each input of a layer, (i,)."""


class OverWeights(Curvature):
    """H as a matrix over all weights.

    Args:
        data: sum_n J_n^T L_n J_n, (w, w).
        prior_rho: (w,).
        shapes: (o, i) of each layer.
    """

    def __init__(self, data: Tensor, prior_rho: Tensor, shapes: Sequence[tuple[int, int]]) -> None:
        self.data, self.prior_rho, self.shapes = data, prior_rho, list(shapes)
        self._factor, fails = torch.linalg.cholesky_ex(data + torch.diag(prior_rho))
        self.is_positive = not bool(fails) and bool(self._factor.diagonal().isfinite().all())

    @property
    def half_log_det(self) -> float:
        if not self.is_positive:
            return torch.inf
        return float(self._factor.diagonal().log().sum() - 0.5 * self.prior_rho.log().sum())

    def newton(self, slope: Tensor, damping: float) -> Tensor:
        factor, fails = torch.linalg.cholesky_ex(self.data + torch.diag((1.0 + damping) * self.prior_rho))
        return torch.cholesky_solve(slope[:, None], factor)[:, 0].masked_fill(fails > 0, torch.nan)

    @cached_property
    def covariance(self) -> Tensor:
        """C = H^{-1}, (w, w)."""
        return torch.cholesky_inverse(self._factor)

    def held(self, part: Slopes) -> Tensor:
        return held(part, self.covariance)

    def held_within(self, part: Slopes | None, rows: Tensor) -> Tensor:
        assert part is not None
        gradients = [Gradient(each.inputs[rows], each.slopes[:, rows]) for each in part.gradients]
        own = torch.cat([each.flat() for each in gradients], 2).transpose(0, 1).flatten(0, 1)  # (m k, w)
        return own @ self.covariance @ own.T

    def pulls(self, part: Slopes, *, given: Collection[int] = ()) -> list[LayerPull]:
        return [LayerPull(*pulls) for pulls in met_each(part, self.covariance, given)]

    def unit_covariances(self, layer: int) -> Tensor:
        start = sum(n_out * n_in for n_out, n_in in self.shapes[:layer])
        n_out, n_in = self.shapes[layer]
        own = self.covariance[start : start + n_out * n_in, start : start + n_out * n_in]
        return own.view(n_out, n_in, n_out, n_in).diagonal(dim1=0, dim2=2).permute(2, 0, 1).contiguous()

    @property
    def diagonal(self) -> Tensor:
        return self.prior_rho + self.data.diagonal()

    @property
    def degrees_of_freedom(self) -> float:
        return float(len(self.prior_rho) - (self.prior_rho * self.covariance.diagonal()).sum())

    def freedom_by_input(self, layer: int) -> Tensor:
        settled = 1.0 - self.prior_rho * self.covariance.diagonal()
        parts = settled.split([n_out * n_in for n_out, n_in in self.shapes])
        return parts[layer].view(self.shapes[layer]).sum(0)


def is_even(precisions: Sequence[Tensor]) -> bool:
    """Whether all units of a layer have the same prior, for all layers, (o, i) each."""
    return all(bool((part == part[0]).all()) for part in precisions)


class OverRows(Curvature):
    """S = I + A P^{-1} A^T over all rows of the data, output by output, where layers are dense and their prior is the
    same for all units.

    Args:
        slopes: of all examples, as rows of precision 1.
        prior_rho: (w,).
        shapes: (o, i) of each layer.
        kernels: products of the inputs of layers, (n, n), as the prior weighs them, where they are known.
    """

    def __init__(
        self,
        slopes: Slopes,
        prior_rho: Tensor,
        shapes: Sequence[tuple[int, int]],
        kernels: Mapping[int, Tensor] | None = None,
    ) -> None:
        self.prior_rho, self.shapes = prior_rho, list(shapes)
        self.inputs = [part.inputs[:, 0] for part in slopes.gradients]  # (n, i)
        self.scaled = [part.slopes[:, :, 0] for part in slopes.gradients]  # A by layer, (k, n, o)
        self.prior_vars = self._prior_vars()
        known = {} if kernels is None else kernels
        self.kernels = [
            known[k] if k in known else (part * var) @ part.T
            for k, (part, var) in enumerate(zip(self.inputs, self.prior_vars, strict=True))
        ]
        total: Tensor | None = None
        for kernel, scaled in zip(self.kernels, self.scaled, strict=True):
            own = self._across(scaled) * kernel[None, :, None, :]
            total = own if total is None else total.add_(own)
        assert total is not None
        k, n = self.sizes = self.scaled[0].shape[:2]
        self.product = total.reshape(k * n, k * n)  # A P^{-1} A^T
        self._factor, fails = torch.linalg.cholesky_ex(self._with(1.0))
        self.is_positive = not bool(fails) and bool(self._factor.diagonal().isfinite().all())

    def _prior_vars(self) -> list[Tensor]:
        """(i,) per layer."""
        rows = self.prior_rho.split([n_out * n_in for n_out, n_in in self.shapes])
        return [1.0 / part.view(shape)[0] for part, shape in zip(rows, self.shapes, strict=True)]

    @staticmethod
    def fits(gradients: Sequence[Gradient], prior_rho: Tensor, shapes: Sequence[tuple[int, int]]) -> bool:
        """Whether layers are dense, and all units of a layer have the same prior."""
        rows = prior_rho.split([n_out * n_in for n_out, n_in in shapes])
        parts = [part.view(shape) for part, shape in zip(rows, shapes, strict=True)]
        return is_even(parts) and all(part.inputs.shape[1] == 1 for part in gradients)

    @staticmethod
    def _across(scaled: Tensor) -> Tensor:
        """Products of slopes of one row with those of another, (k, n, k, n)."""
        k, n = scaled.shape[:2]
        flat = scaled.flatten(0, 1)
        return (flat @ flat.T).view(k, n, k, n)

    def _with(self, share: float) -> Tensor:
        found = share * self.product
        found.diagonal().add_(1.0)
        return found

    @property
    def half_log_det(self) -> float:
        return float(self._factor.diagonal().log().sum()) if self.is_positive else torch.inf

    @cached_property
    def inverse(self) -> Tensor:
        """S^{-1}, (k n, k n)."""
        return torch.cholesky_inverse(self._factor)

    def newton(self, slope: Tensor, damping: float) -> Tensor:
        stiffer = (1.0 + damping) * self.prior_rho
        first = slope / stiffer
        factor, fails = torch.linalg.cholesky_ex(self._with(1.0 / (1.0 + damping)))
        weights = torch.cholesky_solve(self.rows_times(first)[:, None], factor)[:, 0]
        return (first - self.rows_mixed(weights) / stiffer).masked_fill(fails > 0, torch.nan)

    def rows_times(self, vector: Tensor) -> Tensor:
        """A v, (k n,)."""
        found: Tensor | float = 0.0
        parts = vector.split([n_out * n_in for n_out, n_in in self.shapes])
        for part, shape, inputs, scaled in zip(parts, self.shapes, self.inputs, self.scaled, strict=True):
            found = found + (scaled * (inputs @ part.view(shape).T)).sum(2)
        assert isinstance(found, Tensor)
        return found.flatten()

    def rows_mixed(self, weights: Tensor) -> Tensor:
        """A^T t, (w,)."""
        per_row = weights.view(self.sizes)[:, :, None]
        return torch.cat(
            [
                ((scaled * per_row).sum(0).T @ inputs).flatten()
                for inputs, scaled in zip(self.inputs, self.scaled, strict=True)
            ]
        )

    def held(self, part: Slopes) -> Tensor:
        """J P^{-1} J^T - J P^{-1} A^T S^{-1} A P^{-1} J^T."""
        k, n = part.outputs.shape[1], len(part.outputs)
        whole: Tensor | float = 0.0
        cross: Tensor | float = 0.0
        layers = zip(part.gradients, self.inputs, self.scaled, self.prior_vars, strict=True)
        for gradient, inputs, scaled, var in layers:
            own, slopes = gradient.inputs[:, 0] * var, gradient.slopes[:, :, 0]
            size = (own * gradient.inputs[:, 0]).sum(1)
            whole = whole + torch.einsum("kno,lno,n->nkl", slopes, slopes, size)
            met = (slopes.flatten(0, 1) @ scaled.flatten(0, 1).T).view(k, n, *self.sizes)
            cross = cross + met * (own @ inputs.T)[None, :, None, :]
        assert isinstance(whole, Tensor) and isinstance(cross, Tensor)
        half = torch.linalg.solve_triangular(self._factor, cross.reshape(k * n, -1).T, upper=False)
        half = half.T.reshape(k, n, -1)
        return whole - torch.einsum("knr,lnr->nkl", half, half)

    @property
    def held_by_own(self) -> Tensor:
        """The same of the very examples that it was made from: I - S^{-1}."""
        k, n = self.sizes
        left = self.inverse.view(k, n, k, n).diagonal(dim1=1, dim2=3).permute(2, 0, 1)  # (n, k, k)
        return torch.eye(k, dtype=left.dtype, device=left.device) - left

    def held_within(self, part: Slopes | None, rows: Tensor) -> Tensor:
        k, n = self.sizes
        at = (rows[:, None] + n * torch.arange(k, device=rows.device)).flatten()
        return torch.eye(len(at)).to(self.inverse) - self.inverse[at][:, at]

    def pulls(self, part: Slopes, *, given: Collection[int] = ()) -> list[LayerPull]:
        k, n = self.sizes
        inverse = self.inverse.view(k, n, k, n)
        found = []
        layers = zip(self.inputs, self.scaled, self.kernels, self.prior_vars, strict=True)
        for layer, (inputs, scaled, kernel, var) in enumerate(layers):
            to_inputs = None
            if layer not in given:
                to_inputs = ((inverse * self._across(scaled)).sum((0, 2)) @ (inputs * var))[:, None]
            mixed = (inverse * kernel[None, :, None, :]).reshape(k * n, k * n) @ scaled.flatten(0, 1)
            found.append(LayerPull(to_inputs, mixed.view(k, n, 1, -1)))
        return found

    def unit_covariances(self, layer: int) -> Tensor:
        """In float32, because they take long, and activations are only averaged over them."""
        inputs, var, scaled = self.inputs[layer], self.prior_vars[layer], self.scaled[layer]
        rows = (scaled.float()[:, :, :, None] * (inputs * var).float()[None, :, None, :]).flatten(0, 1)  # (k n, o, i)
        half = torch.linalg.solve_triangular(self._factor.float(), rows.flatten(1), upper=False).view(rows.shape)
        taken = half.permute(1, 2, 0) @ half.permute(1, 0, 2)  # (o, i, i)
        return torch.diag(var) - taken.to(var)

    @cached_property
    def draws(self) -> list[Tensor]:
        """Some draws from N(0, H^{-1}), always of the same numbers, (s, o, i) per layer. By Matheron's rule a draw is
        one from the prior, less what the rows would say of it.
        """
        generator = torch.Generator().manual_seed(0)
        std, found = self.prior_rho.rsqrt(), []
        for _ in range(N_DRAWS):
            noise = torch.randn(len(std) + len(self.product), generator=generator, dtype=torch.float64).to(std)
            first = std * noise[: len(std)]
            seen = self.rows_times(first) + noise[len(std) :]
            weights = torch.cholesky_solve(seen[:, None], self._factor)[:, 0]
            found.append(first - std.square() * self.rows_mixed(weights))
        parts = torch.stack(found).split([n_out * n_in for n_out, n_in in self.shapes], 1)
        return [part.unflatten(1, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def unit_variances(self, layer: int, inputs: Tensor) -> Tensor:
        """Variances (n, o) of each unit's sum at some inputs (n, i), told by draws; for layers with many inputs, whose
        covariances would not fit. Activations are only averaged over them.
        """
        rows = inputs.float()
        total = sum((rows @ weights.float().T).square() for weights in self.draws[layer])
        assert isinstance(total, Tensor)
        return (total / N_DRAWS).to(inputs)

    @property
    def diagonal(self) -> Tensor:
        parts = zip(self.scaled, self.inputs, strict=True)
        data = [(scaled.square().sum(0).T @ inputs.square()).flatten() for scaled, inputs in parts]
        return self.prior_rho + torch.cat(data)

    @property
    def degrees_of_freedom(self) -> float:
        return float(len(self.inverse) - self.inverse.diagonal().sum())

    def freedom_by_input(self, layer: int) -> Tensor:
        k, n = self.sizes
        met = (self.inverse.view(k, n, k, n) * self._across(self.scaled[layer])).sum((0, 2))
        inputs = self.inputs[layer]
        return self.prior_vars[layer] * ((met @ inputs) * inputs).sum(0)
