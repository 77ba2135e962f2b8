"""Whether a model is worth using, in words: first against a guess without inputs, then calibration, then what its
labels miss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix

from bayesmp.diagnosis import rows
from bayesmp.estimators.base import Floats
from bayesmp.estimators.columns.words import plural
from bayesmp.heads import ClassPrediction, RegressionPrediction
from bayesmp.tables.scores import Scores, losses, squared_distances, standard_error

SURE = 2.0  # standard errors by which a model must beat the guess
HARDLY = 0.05  # of the guess's loss: a model that saves less is hardly worth its trouble
ENOUGH = 10  # rows whose own mean is a fair rival
MOST_MISSED = 0.5  # share of a class whose rows are missed, from which it is said
GOOD, DOUBTFUL, USELESS = "good", "doubtful", "useless"
Known = RegressionPrediction | ClassPrediction


@dataclass(frozen=True)
class Verdict:
    """Sentences about a model, the first and most important one with a mark."""

    mark: str  # GOOD, DOUBTFUL or USELESS
    use: str  # whether to use it
    more: list[str]  # calibration, errors of labels

    @property
    def sentences(self) -> list[str]:
        return [self.use, *self.more]


@dataclass(frozen=True)
class Threshold:
    """The probability of the rarer of two classes from which a row is called that.

    Attributes:
        at: the probability.
        costs: of a row of the class that is missed, and of a false alarm, where these chose the threshold.
    """

    at: float = 0.5
    costs: tuple[float, float] | None = None

    @classmethod
    def of_costs(cls, missed: float, alarm: float) -> Threshold:
        """The one with the least expected cost, if probabilities are right."""
        return cls(alarm / (missed + alarm), (missed, alarm))


@dataclass(frozen=True)
class Calls:
    """What came of calling rows one of two classes.

    Attributes:
        label: of the class, the rarer one in training.
        found, missed, alarms, quiet: rows of the class that were called so and that were not; other rows likewise.
        threshold: from which they are called so.
    """

    label: str
    found: int
    missed: int
    alarms: int
    quiet: int
    threshold: Threshold

    @classmethod
    def of(cls, label: Any, probs: Floats, is_it: NDArray[np.bool_], threshold: Threshold) -> Calls:
        """From the probabilities of the class (n,), and whether rows are of it."""
        counts = confusion_matrix(is_it, probs >= threshold.at, labels=[False, True]).tolist()
        (quiet, alarms), (missed, found) = counts
        return cls(str(label), found, missed, alarms, quiet, threshold)

    @property
    def recall(self) -> float:
        """Share of the rows of the class that were found."""
        n = self.found + self.missed
        return self.found / n if n else math.nan

    @property
    def precision(self) -> float:
        """Share of the rows called so that are of the class."""
        n = self.found + self.alarms
        return self.found / n if n else math.nan

    def cost(self, costs: tuple[float, float]) -> float:
        return costs[0] * self.missed + costs[1] * self.alarms

    def tell(self) -> str:
        """What was found and what was missed, in words and numbers."""
        n, called = self.found + self.missed, self.found + self.alarms
        if n == 0:
            return f"there is no {self.label!r} among these rows; {self.alarms:,} are falsely called so"
        found = f"{self.missed:,} of {n:,} {self.label!r} are missed (recall {100.0 * self.recall:.0f} %)"
        right = f"of {called:,} called so {self.found:,} are (precision {100.0 * self.precision:.0f} %)"
        return f"{found}; {right if called else 'no row is called so'}"


def judge(
    known: Known,
    y: NDArray[Any],
    scores: Scores,
    guess: tuple[float, ...],
    *,
    classes: Sequence[Any] = (),
    threshold: Threshold | None = None,
) -> Verdict:
    """The verdict on predictions of targets y, or of labels numbered from 0.

    Args:
        known, y, scores: what was predicted, what came, and what `scores_of` says of both.
        guess: what one would say without inputs: mean and std of the training targets, or shares of the classes.
        classes: the labels.
        threshold: as for `calls_of`.
    """
    mark, use = _judge_use(known, y, scores, guess)
    more = [tell_calibration(known, y, is_useless=mark == USELESS)]
    said = _tell_density(known, y, guess) if mark != USELESS else ""
    calls = calls_of(known, y, guess, classes, threshold)
    more += [said] if said else []
    more += _tell_calls(calls, known, y, guess, classes) if calls else _tell_labels(known, y, classes)
    if mark == GOOD and calls is not None and not _pays(calls):
        mark = DOUBTFUL
    return Verdict(mark, use, more)


def judge_left_out(scores: dict[str, float], guess: tuple[float, ...], *, is_classes: bool) -> str:
    """Whether to use a model of which only leave-one-out scores are known."""
    if not all(map(math.isfinite, scores.values())):
        return ""
    rival = "the class shares" if is_classes else "the mean"
    if is_classes:
        entropy = -sum(share * math.log(share) for share in guess)
        is_better, seen = scores["NLL"] < entropy, f"NLL {scores['NLL']:.3f}, that of the shares {entropy:.3f}"
    else:
        is_better, seen = scores["R2"] > 0.0, f"R2 {scores['R2']:.3f}"
    said = f"better than {rival}" if is_better else f"no better than {rival}: do not use it"
    return f"{said} ({'leave-one-out: ' + seen})"


def _judge_use(known: Known, y: NDArray[Any], scores: Scores, guess: tuple[float, ...]) -> tuple[str, str]:
    """Whether it beats a guess without inputs, row by row: by squared errors, or squared distances from the class."""
    n, own = len(y), losses(known, y)
    if isinstance(known, RegressionPrediction):
        rival, loss = "the mean", np.square(y - guess[0])
        ours, theirs = math.sqrt(own.mean()), math.sqrt(loss.mean())
        seen = f"its typical error is {scores['RMSE']}, that of the mean {scores['RMSE'].like(theirs)}"
        r2 = scores["R2"].value
        is_beaten = n >= ENOUGH and r2 <= 0.0
        if is_beaten and ours < theirs:
            seen = f"R2 {scores['R2']}: one number for all of these rows would be as good"
    else:
        rival, loss = "the class shares", squared_distances(np.tile(guess, (n, 1)), y)
        seen = f"Brier score {scores['Brier']}, that of the shares {scores['Brier'].like(loss.mean())}; 0 is best"
        is_beaten = False
    gain, error = float((loss - own).mean()), standard_error(loss - own)
    if is_beaten or (gain <= 0.0 and n > 1):
        return USELESS, f"no better than {rival}: do not use it ({seen})"
    if not gain > SURE * error:
        return DOUBTFUL, f"perhaps better than {rival}, but {plural(n, 'row')} cannot tell ({seen})"
    if gain < HARDLY * loss.mean():
        return DOUBTFUL, f"hardly better than {rival} ({seen})"
    return GOOD, f"better than {rival}: {seen}"


def tell_calibration(known: Known, y: NDArray[Any], *, is_useless: bool = False) -> str:
    """Whether it is as sure as it is right."""
    n = len(y)
    if isinstance(known, RegressionPrediction):
        low, high = (end.numpy() for end in known.interval(rows.LEVEL))
        wanted = rows.LEVEL
        said = f"{100.0 * float(np.mean((low <= y) & (y <= high))):.0f} % of the rows lie in their 90 % interval"
    else:
        wanted, right = float(known.probs.max(1).values.mean()), float((known.label.numpy() == y).mean())
        said = f"it is sure to {100.0 * wanted:.0f} % on average, and right in {100.0 * right:.0f} % of the rows"
    if n < rows.FEW_ROWS:
        return f"too few rows to judge calibration: {said}"
    kinds = [finding.kind for finding in rows.judge_calibration(known, torch.tensor(y))]
    if "too_sure" in kinds or "too_unsure" in kinds:
        return f"{'too sure' if 'too_sure' in kinds else 'too cautious'}: {said}"
    if is_useless:
        return f"calibration: {said}"  # praise would mislead
    chance = rows.CHANCE * math.sqrt(max(wanted * (1.0 - wanted), 0.0) / n)
    limit = f" as far as {n} rows can tell" if chance > rows.COVERAGE_GAP else ""
    return f"well calibrated{limit}: {said}"


def _tell_density(known: Known, y: NDArray[Any], guess: tuple[float, ...]) -> str:
    """A model that errs less than the guess, and is so sure of its errors that the guess is the better bet."""
    own = -known.log_prob(y).double().numpy()
    if isinstance(known, RegressionPrediction):
        apart, what = (y - guess[0]) / guess[1], "mean"
        theirs = 0.5 * (math.log(2.0 * math.pi) + np.square(apart)) + math.log(guess[1])
        advice = "use its predictions, but not its error bars"
    else:
        theirs, what = -np.log(np.asarray(guess))[y], "class shares"
        advice = "do not rely on its probabilities"
    if len(y) < 2 or not (own - theirs).mean() > SURE * standard_error(own - theirs):
        return ""
    return f"{advice}: by them (NLL {own.mean():.2f}) it is worse than the {what} ({theirs.mean():.2f})"


def calls_of(
    known: Known, y: NDArray[Any], guess: tuple[float, ...], classes: Sequence[Any], threshold: Threshold | None
) -> Calls | None:
    """What came of calling rows the rarer of two classes; None where there are not two."""
    if not isinstance(known, ClassPrediction) or len(classes) != 2:
        return None
    rare = rarer(guess)
    return Calls.of(classes[rare], known.probs[:, rare].numpy(), y == rare, threshold or Threshold())


def rarer(guess: tuple[float, ...]) -> int:
    """The number of the rarer of two classes; of equal ones the last."""
    return int(guess[1] <= guess[0])


def _pays(calls: Calls) -> bool:
    """Whether calling is cheaper than never or always calling, where costs are known; else whether most are found."""
    if calls.threshold.costs is None:
        return not calls.recall < 1.0 - MOST_MISSED
    return calls.cost(calls.threshold.costs) < _cheapest(calls)[0]


def _cheapest(calls: Calls) -> tuple[float, str]:
    """The cost of calling all rows alike, and which way."""
    assert calls.threshold.costs is not None
    missed, alarm = calls.threshold.costs
    never, always = missed * (calls.found + calls.missed), alarm * (calls.alarms + calls.quiet)
    return (never, f"calling none {calls.label!r}") if never <= always else (always, f"calling all {calls.label!r}")


def _tell_calls(
    calls: Calls, known: Known, y: NDArray[Any], guess: tuple[float, ...], classes: Sequence[Any]
) -> list[str]:
    """Errors of the labels at the threshold; what they cost; and what a threshold does that misses fewer."""
    assert isinstance(known, ClassPrediction)
    at, costs = calls.threshold.at, calls.threshold.costs
    found = [f"called {calls.label!r} from a probability of {at:.3g} on, {calls.tell()}"]
    n = calls.found + calls.missed + calls.alarms + calls.quiet
    if costs is not None:
        own, (least, how) = calls.cost(costs) / n, _cheapest(calls)
        is_better = own < least / n
        found.append(
            f"errors cost {own:.3g} per row; {how} would cost {least / n:.3g}"
            + ("" if is_better else ", which is no more: these labels are of no use")
        )
    elif calls.recall < 1.0 - MOST_MISSED:
        right = (calls.found + calls.quiet) / n
        rare = rarer(guess)
        lower = Calls.of(calls.label, known.probs[:, rare].numpy(), y == rare, Threshold(float(f"{guess[rare]:.2g}")))
        said = f"an accuracy of {right:.3f} hides that most {calls.label!r} are missed"
        if lower.found > calls.found:
            said += (
                f"; from {lower.threshold.at:.2g} on, {lower.missed:,} would be missed, with "
                f"{plural(lower.alarms, 'false alarm')}: --threshold {lower.threshold.at:.2g}, or --cost 5:1 if "
                "missing one costs five times as much as a false alarm"
            )
        found.append(said)
    return found


def _tell_labels(known: Known, y: NDArray[Any], classes: Sequence[Any]) -> list[str]:
    """Classes most of whose rows are taken for others, the worst first."""
    if not isinstance(known, ClassPrediction):
        return []
    counts = confusion_matrix(y, known.label.numpy(), labels=range(len(classes)))
    missed, n = counts.sum(1) - np.diag(counts), counts.sum(1)
    worst = [k for k in np.argsort(-missed) if missed[k] > MOST_MISSED * n[k]]
    if not worst:
        return []
    some = ", ".join(f"{missed[k]:,} of {n[k]:,} {str(classes[k])!r}" for k in worst[:5])
    return [f"taken for other classes: {some}" + (", ..." if len(worst) > 5 else "")]
