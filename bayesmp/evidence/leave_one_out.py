r"""What the joint belief says with an example left out, and how far it would move, without training again.

With C = J H^{-1} J^T the covariance of an example's outputs f, e the slope and Q the precision with which it speaks
about them, taking the example out of the belief N(m, H^{-1}) gives outputs with

    covariance W = (I - C Q)^{-1} C,   mean f - W e

exact for the linearised network and Gaussian noise (there it is y - r / (1 - leverage)). The means of the weights move
by -H^{-1} J^T a with a = (I - Q C)^{-1} e = e + Q W e, the error without the example's own hold on its outputs. In
units of the posterior, that is the squared distance of Cook (1977), but for his division by the number of weights:

    |change of m|^2 in H = a^T C a;   for one output C e^2 / (1 - leverage)^2

The leverage of an example is tr(C Q); over all examples it adds up to the degrees of freedom of the belief. Where
sweeps count the variance of activations as noise, an example's pull is weaker by 1 + rho noise, and e and Q are those
of the sweeps.

An example that is left out so has still shaped the network: around other weights its slopes would be others. What
that comes to no linearisation says; in whole runs it is about a constant times what the example holds of its own
outputs, the *turning* t (settings.py; measured: lab notes, "features that turn"), so that W becomes W + t C where there
are features that turn. For one output the error of the prediction is then r / (1 - leverage) + t leverage r.

All this takes m for the mean of the belief. Training ends near it; at m + d (balance.py), where it is, examples pull
with e - Q J d. That is the e of a `TakenOut` where d is known, and d is taken to be the same without the example.

Who asks: scores while training come from refresh.py, for labels by way of each_left_out.py (at the end of a run, or
where they are few); what a left-out label costs then is the head's `train_metrics` (`scores_of` there).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesmp.basics.arithmetic import eigh
from bayesmp.belief import Belief, Past
from bayesmp.heads.base import Head
from bayesmp.messages.gaussian import Moments

MAX_SHARE = 4.0  # of what a belief misses: more says that it knows nothing of these examples
SHARE_BITS = 8  # of the share of what a belief misses; the leverage it comes from is not known better
SHARE_STEPS, SAME_SHARE = 30, 1e-6  # of Newton, at most; a step that is none
MOST_HELD = 0.9999  # of an output by its own example, where belief and means are exact; beyond lies rounding
MOST_SPOKEN_OF = (
    128  # outputs that an example is taken out of; those of many classes that cannot be its own hear nothing
)
LEAST_LEFT = 0.5  # of what examples hold if the past is overrated as they are: a difference of large numbers may be 0


@dataclass(frozen=True)
class TakenOut:
    """Examples of which each is taken out of a belief that has seen it.

    Attributes:
        covariance: C, with the example, (b, o, o).
        without: W, without it.
        slope, precision: e and the diagonal of Q, (b, o).
        n_clipped: examples with a leverage that was cut to the limit.
    """

    covariance: Tensor
    without: Tensor
    slope: Tensor
    precision: Tensor
    n_clipped: int

    @property
    def shift(self) -> Tensor:
        """What the mean outputs lose, W e, (b, o)."""
        return (self.without @ self.slope[..., None])[..., 0]

    @property
    def leverage(self) -> Tensor:
        """How much of its own outputs each example holds, tr(C Q), (b,)."""
        return (self.covariance.diagonal(dim1=1, dim2=2) * self.precision).sum(1)

    @property
    def distance(self) -> Tensor:
        """How far the means of all weights would move, squared, in H: a^T C a, (b,)."""
        error = self.slope + self.precision * self.shift
        return torch.einsum("bi,bij,bj->b", error, self.covariance, error).clamp_min(0.0)


def take_out(
    head: Head, mean: Tensor, covariance: Tensor, noise: Tensor, y: Tensor, log_weights: Tensor, *, limit: float
) -> TakenOut:
    """Each example taken out of a belief that has seen it; arguments as for `leave_out`."""
    slope, precision = pull_of(head, mean, covariance, noise, y, log_weights)
    without, n_clipped = without_own(covariance, precision, limit=limit)
    return TakenOut(covariance, without, slope, precision, n_clipped)


def pull_of(
    head: Head, mean: Tensor, covariance: Tensor, noise: Tensor, y: Tensor, log_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """e and the diagonal of Q, (b, o): slope and precision with which examples speak about their outputs."""
    var = covariance.diagonal(dim1=1, dim2=2).clamp_min(torch.finfo(mean.dtype).tiny)
    message = head.to_latent(Moments(mean, var), y, log_weights)
    weaker = 1.0 + message.rho * noise
    return (message.tau - message.rho * mean) / weaker, message.rho / weaker


def without_own(covariance: Tensor, precision: Tensor, *, limit: float) -> tuple[Tensor, int]:
    """W = (I - C Q)^{-1} C, (b, o, o), and how many leverages were cut to the limit."""
    wide, (root, rows, own) = covariance.double(), _spoken_of(covariance.double(), precision)
    held, eye = _scaled(own, root), _eye_like(own)
    is_above = torch.linalg.cholesky_ex(limit * eye - held).info > 0
    # C + C R (I - R C R)^{-1} R C with R = Q^{1/2}: nothing is divided by a precision, which may be 0
    factor = torch.linalg.cholesky_ex(eye - held).L
    half = torch.linalg.solve_triangular(factor, root[:, :, None] * rows, upper=False)
    without = wide + half.transpose(1, 2) @ half
    n_clipped = int(is_above.sum())
    if n_clipped > 0:
        without[is_above] = _cut(wide[is_above], rows[is_above], held[is_above], root[is_above], limit)
    return without.to(covariance), n_clipped


def _spoken_of(wide: Tensor, precision: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Q^{1/2} (b, s), rows of C (b, s, o) and of these the columns (b, s, s) of the outputs that an example speaks most
    about: all of them, or of many classes those that could be its own.
    """
    root, n_outputs = precision.double().sqrt(), wide.shape[1]
    if n_outputs <= MOST_SPOKEN_OF:
        return root, wide, wide
    root, chosen = root.topk(MOST_SPOKEN_OF, dim=1)
    rows = wide.gather(1, chosen[:, :, None].expand(-1, -1, n_outputs))
    return root, rows, rows.gather(2, chosen[:, None, :].expand(-1, MOST_SPOKEN_OF, -1))


def _cut(wide: Tensor, rows: Tensor, held: Tensor, root: Tensor, limit: float) -> Tensor:
    """W of examples that hold more than the limit, by the eigenvalues of R C R, with those above it cut."""
    values, vectors = _eigh(held)
    kept = values.clamp(0.0, limit)
    cut = (kept / (1.0 - kept) - values) / values.clamp_min(limit).square()
    gain = torch.where(values > limit, cut, 1.0 / (1.0 - kept))
    across = (rows.transpose(1, 2) * root[:, None, :]) @ vectors
    return wide + (across * gain[:, None, :]) @ across.transpose(1, 2)


def with_own(without: Tensor, precision: Tensor) -> Tensor:
    """C = (I + W Q)^{-1} W, (b, o, o): the covariance with the example, from that without it."""
    wide, (root, rows, own) = without.double(), _spoken_of(without.double(), precision)
    factor, fails = torch.linalg.cholesky_ex(_eye_like(own) + _scaled(own, root))
    half = torch.linalg.solve_triangular(factor, root[:, :, None] * rows, upper=False)
    found = wide - half.transpose(1, 2) @ half
    if bool(fails.any()):  # W is no covariance but for rounding
        rest = fails > 0
        values, vectors = _eigh(_scaled(own[rest], root[rest]))
        across = (rows[rest].transpose(1, 2) * root[rest][:, None, :]) @ vectors
        found[rest] = wide[rest] - (across / (1.0 + values.clamp_min(0.0))[:, None, :]) @ across.transpose(1, 2)
    return found.to(without)


def outside_share(inside: Tensor, outside: Tensor, precision: Tensor, leverage: float) -> float:
    """The share s of `outside` with which all leverages add up: sum_n tr(Q C) = leverage for W = inside +
    s outside.

    What a belief misses of an example's outputs is its own matter for the larger part, but other examples know
    something of it, too: `outside` has none of that. Where data are few, s may be above 1: inside its span such a
    belief is too sure.

    Args:
        inside, outside: covariances of the outputs without the example, (b, o, o).
        precision: the diagonal of Q, (b, o).
        leverage: what all these examples hold of their own outputs.
    """

    root = precision.double().sqrt()
    within, beside = (_scaled(part.double(), root) for part in (inside, outside))
    eye = _eye_like(within)

    target, share = root.numel() - leverage, 0.0  # sum_n tr (I + A)^{-1} with A = R W R, R = Q^{1/2}
    if bool(torch.linalg.cholesky_ex(eye + within + MAX_SHARE * beside).info.any()):  # covariances but for rounding
        within, beside = _positive(within), _positive(beside)
    for _ in range(SHARE_STEPS):  # its inverse is concave in s, so that Newton's steps come from below
        factor = torch.linalg.cholesky_ex(eye + within + share * beside).L
        half = torch.linalg.solve_triangular(factor, eye, upper=False)
        inverse = half.transpose(1, 2) @ half
        left, slope = float(half.square().sum()), float(((inverse @ beside) * inverse).sum())
        if left <= target:
            break
        step = (left / target - 1.0) * left / slope if min(target, slope) > 0.0 else math.inf
        share += step
        if share >= MAX_SHARE or step < SAME_SHARE:
            break
    share = min(share, MAX_SHARE)
    width = 2.0**-SHARE_BITS * (1.0 if share <= 2.0 else 2.0)
    return (min(math.floor(share / width), MAX_SHARE / width - 1.0) + 0.5) * width


def leave_out(
    head: Head,
    mean: Tensor,
    covariance: Tensor,
    noise: Tensor,
    y: Tensor,
    log_weights: Tensor,
    *,
    limit: float,
    turning: float = 0.0,
) -> tuple[Moments, int]:
    """Outputs (b, o) as they would be had each example not been seen, and how many leverages were cut to the limit.

    Args:
        mean, covariance: of the outputs (b, o), (b, o, o), under a belief that has seen the example.
        noise: what sweeps take for noise in the outputs, (b, o).
        y: targets.
        log_weights: belief about the head's constant.
        limit: largest share of an output that its own example may hold; 1 would leave nothing when it is taken out.
        turning: how much of what it holds is lost besides, because the network would be another one.
    """
    taken = take_out(head, mean, covariance, noise, y, log_weights, limit=limit)
    return outputs_without(mean, taken, turning=turning), taken.n_clipped


def leverage_share(
    head: Head,
    belief: Belief,
    past: Past | None,
    examples: Iterable[tuple[Moments, Tensor, Tensor]],
    log_weights: Tensor,
    *,
    n_data: int,
) -> float:
    """The factor on covariances of outputs that makes the leverages of all examples add up to the degrees of freedom of
    the belief that are not the past's.

    Where a belief is not exact they come to more, because what its span misses of an example is spread evenly although
    its own data lie just there. For an exact one they add up by themselves, and the factor is 1.

    Args:
        examples: some of the examples that the belief was made of: outputs as sweeps have them (b, o), their
            covariances (b, o, o), and targets.
        past: what holds beside them.
        log_weights: belief about the head's constant.
        n_data: how many examples there are in all.
    """
    if belief.is_exact:
        return 1.0
    n, leverage = 0, 0.0
    for m_out, covariance, y in examples:
        rho = head.to_latent(m_out, y, log_weights).rho
        leverage += float((covariance.diagonal(dim1=1, dim2=2) * rho).sum())
        n += len(y)
    held, freedom = max(leverage * n_data / n, 1e-30), belief.degrees_of_freedom
    of_past = 0.0 if past is None else belief.leverage(past)
    return min(1.0, max((freedom - of_past) / held, LEAST_LEFT * freedom / (held + of_past)))


def outputs_without(mean: Tensor, taken: TakenOut, *, turning: float = 0.0) -> Moments:
    """Moments (b, o) of the outputs as they would be had each example not been seen."""
    without = taken.without + turning * taken.covariance
    var = without.diagonal(dim1=1, dim2=2).clamp_min(torch.finfo(mean.dtype).tiny)
    return Moments(mean - (without @ taken.slope[..., None])[..., 0], var)


def _scaled(covariance: Tensor, root: Tensor) -> Tensor:
    """R C R for R = diag(root), (b, o, o)."""
    return root[:, :, None] * covariance * root[:, None, :]


def _positive(matrices: Tensor) -> Tensor:
    """Without what rounding has made negative, (b, k, k), nor will in their factors."""
    values, vectors = _eigh(matrices)
    least = 8 * torch.finfo(values.dtype).eps * values.amax(1, keepdim=True).clamp_min(0.0)
    return (vectors * values.clamp_min(least)[:, None, :]) @ vectors.transpose(1, 2)


def _eye_like(matrices: Tensor) -> Tensor:
    return torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of (b, k, k), of which single outputs need none."""
    if matrices.shape[1] > 1:
        return eigh(matrices)
    return matrices[:, 0], torch.ones_like(matrices)
