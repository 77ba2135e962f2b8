r"""The metric of the parallel schedule: how far to step. Kronecker-factored curvature of one layer over all data.

A batch's slope in a layer's weights is a sum of outer products of what comes from above and what comes from below.
Taking the two as independent, the curvature of all n examples in the (o, i) weights of a layer is

    H = n G (x) A + rest,   A = E[a a^T] (i, i),   G = E[d d^T] (o, o)

with a the mean inputs (and 1 for the bias; patches for a convolution) and d the slopes of the outputs' means, pulled
back from the head with random signs so that E[d d^T] is the Gauss-Newton curvature. `rest` is the prior's precision
and what the inputs' variances add. The messages' own precisions are only the diagonal of this; activations and slopes
are strongly correlated, and along a typical step the true curvature is many times the diagonal one.

What the past says (belief/past.py), a curvature K of known traces over inputs and outputs, is mixed in when the
eigenvectors are renewed: its slopes are added to n G, and A becomes an average of both, weighted by the traces.

H decides how fast means move along each direction, never where they come to rest, so it may lag and be rough: it is a
running average, and its eigenvectors are renewed every few visits. What is *believed* about the weights is another
object (belief/), made of pure curvature at the current means.

Share of sums. Sums of many weights, z = w a, are better known than the weights: data that fix z leave weights free to
trade against each other, and a variance of z from independent weights counts that freedom as ignorance. What a layer
contributes to the variance of the network's outputs, on average over the data, is tr(H^{-1} G (x) A) under the joint
posterior N(m, H^{-1}) and sum_oi var_oi G_oo A_ii for independent weights. Their ratio, `sum_share`, is the factor by
which the variances of a layer's weights are too large wherever they act through sums.

H is that of the metric, whose G holds the messages' own diagonal beside the pulled-back slopes (network_metric.py). So
it counts curvature up to twice, and the share is smaller than that of the exact joint posterior, by a factor of 2 where
data dominate: weights a little too sure. Normalised to the sites' precisions it would be exact for one weight, but fits
less well in all that was measured (docs/lab-notes.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from bayesmp import kernels
from bayesmp.basics.arithmetic import eigh, rows_in_step

LARGE_SIDE = 256  # rows of a slope from which products gain more from a copy of the eigenvectors in step than it costs


class LayerMetric:
    """Running factors A, G and rest of one layer, and their eigensystem; updated in place.

    Args:
        n_data: number of training examples.
        n_rows, n_columns: number of output units, and of weights per unit (bias included).
        like: a tensor of the dtype and device to use.
        past: sums of K over the inputs, (o, o), and over the outputs, (i, i).
    """

    def __init__(
        self,
        n_data: int,
        n_rows: int,
        n_columns: int,
        *,
        like: Tensor,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.n_data = n_data
        self._known_values: tuple[Tensor, ...] = ()  # eigenvalues of an A that is that of all data, and fixed
        self._past = past if past is None else (past[0].to(like), past[1].to(like))
        self.inputs = like.new_zeros(n_columns, n_columns)  # A
        self.slopes = like.new_zeros(n_rows, n_rows)  # G
        self.rest = like.new_zeros(())
        self.input_vectors = torch.eye(n_columns, dtype=like.dtype, device=like.device)
        self.slope_vectors = torch.eye(n_rows, dtype=like.dtype, device=like.device)
        self.values = like.new_zeros(n_rows, n_columns)  # eigenvalues of G (x) A
        self.inverse = like.new_zeros(n_rows, n_columns)  # of H, 1 / (n values + rest)

    def know_inputs(self, inputs: Tensor) -> None:
        """Take A as given, once for all."""
        self.inputs.copy_(inputs)
        self.input_vectors.copy_(eigh(self.inputs)[1])
        self.resume()

    def resume(self) -> None:
        """Find again what is not part of the state: the eigenvalues of a known A, from its eigenvectors."""
        self._known_values = ((self.input_vectors * (self.inputs @ self.input_vectors)).sum(0),)

    @property
    def knows_inputs(self) -> bool:
        """Whether A is that of all data, and fixed."""
        return bool(self._known_values)

    def update(self, inputs: Tensor | None, slopes: Tensor, rest: Tensor, share: Tensor) -> None:
        """Move the running averages by `share` towards one batch; without inputs where they are known."""
        if inputs is not None:
            self.inputs.lerp_(inputs, share)
        self.slopes.lerp_(slopes, share)
        self.rest.lerp_(rest, share)

    def renew(self) -> None:
        """Eigenvectors and eigenvalues of the current averages; the last ones stay if LAPACK does not converge, or has
        no finite numbers to work on, which the end of the epoch will show.
        """
        inputs, slopes = self._with_past()
        try:
            input_values, input_vectors = self._input_system(inputs)
            slope_values, slope_vectors = eigh(slopes)
        except RuntimeError:
            return
        values = slope_values.clamp_min(0.0)[:, None] * input_values.clamp_min(0.0)
        self.input_vectors.copy_(input_vectors)
        self.slope_vectors.copy_(slope_vectors)
        self.values.copy_(values)
        self._invert()

    def resize(self, n_data: int, prior_rest: float) -> None:
        """Stand for another number of examples, which are like those seen so far; `prior_rest` is the prior's part of
        the rest.
        """
        self.rest.sub_(prior_rest).clamp_min_(0.0).mul_(n_data / self.n_data).add_(prior_rest)
        self.n_data = n_data
        self._invert()

    def join(self, parts: Sequence[LayerMetric], prior_rest: float) -> None:
        """Stand for all the examples that these stand for."""
        inputs = torch.stack([part.inputs * (part.n_data / self.n_data) for part in parts]).sum(0)
        if not self.knows_inputs:
            self.inputs.copy_(inputs)
        self.slopes.zero_()
        self.rest.fill_(prior_rest)
        for part in parts:
            self.slopes.add_(part.slopes, alpha=part.n_data / self.n_data)
            self.rest.add_((part.rest - prior_rest).clamp_min(0.0))
        self.renew()

    def _invert(self) -> None:
        self.inverse.copy_(1.0 / (self.n_data * self.values + self.rest))

    def _input_system(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.knows_inputs and self._past is None:
            return self._known_values[0], self.input_vectors
        return eigh(inputs)

    def _with_past(self) -> tuple[Tensor, Tensor]:
        """A and G of all data, the past's with them."""
        if self._past is None:
            return self.inputs, self.slopes
        of_outputs, of_inputs = self._past
        tiny = torch.finfo(of_inputs.dtype).tiny
        size = self.inputs.trace().clamp_min(tiny)
        older = of_outputs / (self.n_data * size)
        share = older.trace() / (older.trace() + self.slopes.trace()).clamp_min(tiny)
        inputs = torch.lerp(self.inputs, of_inputs * (size / of_inputs.trace().clamp_min(tiny)), share)
        return inputs, self.slopes + older

    def solve(self, slope: Tensor) -> Tensor:
        """H^{-1} applied to a slope in the weights, (o, i)."""
        turned = self.slope_vectors.t() @ slope @ self.input_vectors
        return self.slope_vectors @ (self.inverse * turned) @ self.input_vectors.t()

    def solve_blocks(self, slopes: Sequence[Tensor], answers: Sequence[Tensor]) -> None:
        """The same for a slope in blocks of columns (o, k) that stand side by side, put into blocks of the same sizes;
        so no matrix of them has to be copied together.
        """
        if kernels.solve_blocks(self.slope_vectors, self.input_vectors, self.inverse, slopes, answers):
            return
        turned, inner, vectors = torch.empty_like(self.values), torch.empty_like(self.values), self.input_vectors
        if not vectors.is_cuda and len(turned) >= LARGE_SIDE:
            turned, inner = rows_in_step(turned), rows_in_step(inner)
            vectors = rows_in_step(vectors).copy_(vectors)
        ends = list(accumulate((block.shape[1] for block in slopes), initial=0))
        for block, (start, end) in zip(slopes, pairwise(ends), strict=True):
            torch.mm(self.slope_vectors.t(), block, out=turned[:, start:end])
        torch.mm(turned, vectors, out=inner)
        torch.mm(self.slope_vectors, inner.mul_(self.inverse), out=turned)
        for block, (start, end) in zip(answers, pairwise(ends), strict=True):
            torch.mm(turned, vectors[start:end].t(), out=block)

    def sum_share(self, var: Tensor) -> Tensor:
        """Variance that this layer puts into the network's outputs under the joint posterior, over that of independent
        weights with variances `var`, (o, i); at most 1.
        """
        joint = (self.values * self.inverse).sum()
        inputs, slopes = self._with_past()
        independent = (var * slopes.diagonal()[:, None] * inputs.diagonal()).sum()
        return (joint / independent.clamp_min(torch.finfo(var.dtype).tiny)).clamp_max(1.0)

    def state(self) -> dict[str, Tensor]:
        """The tensors that make up its state."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
