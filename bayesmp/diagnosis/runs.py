"""Whether training came to rest, what it did to the noise, and whether batches had equal shares in it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bayesmp.diagnosis.faces import Face
from bayesmp.diagnosis.findings import HINT, PROBLEM, Finding
from bayesmp.diagnosis.fits import AS_BAD, FEW_ROWS, error_of, error_of_one_guess, explained_otherwise
from bayesmp.diagnosis.told import Told
from bayesmp.heads import Argmax, Regression, Softmax
from bayesmp.heads.regression import LEAST_MISS

DOMINATES = 5.0  # times the median of all batches that one may say about the weights
FEW_BATCHES = 3
ALL_NOISE = 0.9  # share of the targets' variance from which the network explains next to nothing
EXPLAINED = 0.2  # share of it that simple means must explain to say that the network is stuck
LEAST_NOISE = 2.5  # times what the noise's prior alone would give
WEAK_SIGNAL = 0.5  # share of all that the targets say from which noise makes a signal weak
MORE_NOISE = 1.5  # times what training has heard that it must hear of to be worth a word
FAR_LINK = 2.5  # times below the centre of its prior that a link scale is far off; healthy ones: .8 to 2.6 times it
JUMP = (0.3, 0.05)  # nats, and share of the best leave-one-out score, by which the last one may lie above it


def judge_convergence(told: Told, face: Face) -> Iterator[Finding]:
    """The history's last words."""
    history = told.history
    scores = [score for score in history.loo_nll if not math.isnan(score)]
    numbers = {"n_epochs": float(len(history))}
    if history.stopped == "interrupted":
        yield Finding("not_converged", PROBLEM, f"training was interrupted; {face.interrupted}", numbers)
    elif "worse than a constant" in history.stopped:
        yield Finding(
            "worse_than_constant",
            PROBLEM,
            f"training {_phrase(history.stopped)}: one guess for all rows is better than this network. "
            f"{face.ended_in_a_jump}",
            numbers,
        )
    elif "not at rest" in history.stopped:
        yield Finding(
            "not_converged",
            HINT,
            f"training {_phrase(history.stopped)}: the leave-one-out score or the means still moved. "
            f"{face.not_converged}",
            numbers,
        )
    best = min(scores, default=math.inf)
    if len(scores) > 1 and scores[-1] > best + max(JUMP[0], JUMP[1] * abs(best)):
        yield Finding(
            "ended_in_a_jump",
            PROBLEM,
            f"the last leave-one-out NLL is {scores[-1]:.3g}, and {best:.3g} was reached before: training "
            "ended in a "
            f"jump, or has become worse. {face.ended_in_a_jump}",
            {"last": scores[-1], "best": best},
        )


def _phrase(stopped: str) -> str:
    return stopped if stopped.startswith("ran") else f"was {stopped}"


def judge_constant(
    network: Any, told: Told | None, x: Tensor, y: Tensor, prediction: Any, face: Face
) -> Iterator[Finding]:
    """Learned noise that is all of the targets or none of them, or a learned scale of the link far below the usual.

    A flat link alone is no fault: where labels are wrong or classes overlap it has to be. It is one where labels are
    predicted no better than by the most frequent one, and that is a weak judgement by rows left out, if they are few.

    Args:
        network, told: what was trained, and what training left behind.
        x, y: the rows given, by which noise that is all of the targets is told from a network that is stuck.
        prediction: of them; None if they are those of training.
        face: words of those who ask.
    """
    head = network.head
    if not head.is_learned:
        return
    if told is not None and told.heard is not None:
        all_noise = float(told.y_std.square().mean()) if told.y_std is not None else head.largest_constant(y)
        found = float(head.in_training(network.head_log_weights))
        if found > max(MORE_NOISE * told.heard, WEAK_SIGNAL * all_noise):
            yield _too_few_visits(told.heard, found, told, face)
    if isinstance(head, Regression):
        yield from _judge_noise(float(head.in_training(network.head_log_weights)), told, x, y, face)
    elif isinstance(head, (Argmax, Softmax)) and not (_predicts(prediction, y) or _predicts_left_out(told, y)):
        value, usual = float(head.expected(network.head_log_weights)), float(head.natural_scale)
        yield from _judge_link(value, usual, face, is_seen=prediction is not None and len(y) >= FEW_ROWS)


def _too_few_visits(heard: float, found: float, told: Told, face: Face) -> Finding:
    what = "noise" if told.y_std is not None else "labels"
    return Finding(
        "too_few_visits",
        HINT,
        f"training ended while it heard of a variance of {heard:.2g} of the {what}, where {found:.2g} was found: it "
        "begins with little and lets it grow from visit to visit. Until then weak signals are fitted with their noise. "
        f"{face.too_few_visits}",
        {"heard_var": heard, "found_var": found, "n_epochs": float(len(told.history))},
    )


def _predicts(prediction: Any, y: Tensor) -> bool:
    """Whether the labels given are predicted better than by the most frequent one, which chance does not explain."""
    if prediction is None:
        return False
    guess = 1.0 - float(torch.bincount(y).max()) / len(y)
    return error_of(prediction, y) < guess - _chance(guess, len(y))


def _chance(error: float, n: int) -> float:
    """Two standard errors of a share of n labels."""
    return 2.0 * math.sqrt(error * (1.0 - error) / n)


def _predicts_left_out(told: Told | None, y: Tensor) -> bool:
    """Whether labels left out are predicted better than by the most frequent one, which chance does not explain."""
    errors = [error for error in told.history.loo_error if not math.isnan(error)] if told is not None else []
    if told is None or not errors:
        return False
    guess = error_of_one_guess(told, y)
    return errors[-1] < AS_BAD * guess - _chance(guess, told.n_rows)


def _judge_link(value: float, usual: float, face: Face, *, is_seen: bool) -> Iterator[Finding]:
    if value < usual / FAR_LINK:
        whose = "these rows, nor about those that are left out" if is_seen else "rows that are left out"
        rows = "" if is_seen else " Give rows that it was not trained on: they tell more."
        yield Finding(
            "link_far_off",
            PROBLEM if is_seen else HINT,
            f"the learned scale of the link is {value:.3g}, where {usual:.3g} is usual: outputs say next to nothing "
            f"about the labels of {whose}. Look at {face.left_out}; check that rows of x and y belong together; or "
            f"there is nothing to find.{rows}",
            {"scale": value, "usual": usual},
        )


def _judge_noise(value: float, told: Told | None, x: Tensor, y: Tensor, face: Face) -> Iterator[Finding]:
    if told is None or told.y_std is None:
        return
    spread = float(told.y_std.square().mean())
    least = LEAST_MISS**2 / (told.n_rows * len(told.y_std))
    if value > ALL_NOISE * spread:
        seen = (
            f"the learned noise has a variance of {value:.3g}, all of the targets' {spread:.3g}: the network explains"
        )
        numbers = {"noise_var": value, "target_var": spread, "explained_otherwise": explained_otherwise(x, y)}
        if (found := numbers["explained_otherwise"]) > EXPLAINED:
            yield Finding(
                "stuck_at_noise",
                PROBLEM,
                f"{seen} nothing of them, though near neighbours or a straight line explain {100 * found:.0f} % of the "
                "variance of these rows. It is stuck: all was taken for noise before anything was learned. "
                f"{face.stuck_at_noise}",
                numbers,
            )
            return
        yield Finding(
            "noise_at_limit",
            PROBLEM,
            f"{seen} nothing of them, nor do near neighbours or a straight line. Check that rows of x and y belong "
            "together and that inputs are scaled; or there is nothing to find.",
            numbers,
        )
    elif value < LEAST_NOISE * least:
        yield Finding(
            "noise_at_limit",
            HINT,
            f"the learned noise has a variance of {value:.2g}, the least that {told.n_rows:,} targets can show (its "
            "prior "
            f"alone gives {least:.2g}): either the targets have no noise at all, or they are fitted one by one. "
            f"{face.no_noise}",
            {"noise_var": value, "least": least},
        )


def judge_batches(trainer: Any) -> Iterator[Finding]:
    """A batch that says far more about the weights than the others: outliers, or rows in other units.

    What a batch says is the sum over all weights of the precision it brings, in prior variances.
    """
    sites = trainer.sites
    if len(sites) < FEW_BATCHES:
        return
    prior_var = trainer.network.prior.var.cpu().double()
    said = torch.stack([(row.cpu().double() * prior_var).sum() for row in sites.rho])
    typical = float(said.median())
    batch = int(said.argmax())
    if float(said[batch]) > DOMINATES * max(typical, 1e-30):
        rows = trainer.members[batch].cpu()
        x = trainer.x[rows.to(trainer.x.device)].flatten(1).double()
        worst = int(rows[int(x.square().mean(1).argmax())])
        yield Finding(
            "one_batch_dominates",
            PROBLEM,
            f"batch {batch} says {float(said[batch]) / max(typical, 1e-30):.0f} times as much about the weights as "
            "the median of all "
            f"{len(said)} batches. Look for outliers or rows in other units among trainer.members[{batch}]: training "
            "row "
            f"{worst} has the largest inputs of them.",
            {"batch": batch, "times_median": float(said[batch]) / max(typical, 1e-30), "row": worst},
        )
