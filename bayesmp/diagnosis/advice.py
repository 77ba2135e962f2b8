"""What a diagnosis consists of, and what is said of each finding: one voice for networks and for estimators."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

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


Found: TypeAlias = Iterator[Finding]


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
        n, rows = len(self.findings), f"{self.n_rows:,} row{'s' if self.n_rows != 1 else ''}"
        first = f"{n} thing{'s' if n > 1 else ''} may be wrong ({rows}):" if n else f"Nothing looks wrong ({rows})."
        last = textwrap.fill(f"Not judged: {'; '.join(self.not_judged)}.", width=100, subsequent_indent="  ")
        return "\n".join([first, *map(str, self.findings), *([last] if self.not_judged else [])])

    def __repr__(self) -> str:
        return f"Diagnosis({', '.join(self.kinds) or 'nothing looks wrong'})"


# What was seen, and what to do. `!` marks what must be mended before predictions are trusted, `-` what is worth a look.
# A sentence has the name of its finding's kind, and a second word where a kind has several.
ADVICE = """
! inputs_not_scaled: {whose} are not of order one: {seen}; scale them with bayesmp.data.standardise and train again, or
  use MPRegressor or MPClassifier, which do it.
! inputs_unlike_training: {n_columns} of {n} inputs are not as in training: {where} has mean {mean:.3g} and std
  {std:.3g}, where training had {training_mean:.3g} and {training_std:.3g}. Give rows in the units of training, scaled
  by the same numbers.
! targets_not_scaled: {whose} are not of order one: mean {mean:.3g}, std {std:.3g}; scale them (scaling =
  bayesmp.data.Scaling.fit(y)), train again, and bring predictions back with .undo(scaling).
! targets_not_scaled units: the targets given are not in the units of training: mean {mean:.3g} and std {std:.3g},
  where training had {training_mean:.3g} and {training_std:.3g}. Give them in its units, scaled by the same numbers.
- one_class_only: all {n} labels given are class {label} of {n_classes}; give rows of all classes.
! collapsed_layer: {n_constant} of {n_units} units behind {layer}, say the same for all {n} inputs ({n_off} are off).
  Check the bias_prior and the inputs of the layer below; use LeakyReLU, whose units do not die; or try another seed.
! layer_at_prior: {layer}, is where its prior was: the data have told it {n_settled:.2g} weights' worth of
  {n_weights:,}. Are units above or below it constant, its prior variances tiny, or its inputs zero?
- prior_too_narrow: the data have pulled weights {distance} prior std from the prior's means, most of all in {layer}.
  Try weight_prior and bias_prior with {factor} times the variances, and compare leave-one-out scores.
- prior_too_wide: weights lie only {distance} prior std from the prior's means, and training examples hold
  {mean_leverage:.0%} of their own outputs (cut for {share_cut:.0%}). Use the default prior, fewer weights or columns,
  or more rows.
! not_converged interrupted: training was interrupted; train again, or let it go on.
- not_converged: training {ended}: the leave-one-out score or the means still moved. Leave epochs at "auto", so that it
  stops by itself, or raise max_epochs.
! worse_than_constant: training {ended}: one guess for all rows is better than this network. Train for more epochs.
! ended_in_a_jump: the last leave-one-out NLL is {last:.3g}, and {best:.3g} was reached before. Train for more epochs,
  or with another seed; the history's plot() shows what happened.
- too_few_visits: training ended with {heard_var:.2g} for the variance of the {what}, and has found {found_var:.2g}: it
  grows from visit to visit. Leave epochs at "auto", or give enough for 250 visits (epochs times batches).
! memorised_noise: targets of training {are} {training_error:.2g}, those of {whose} {error:.2g}, no better than with
  one guess for all ({guess_error:.2g}): the network has learned its targets by heart, noise included. {remedy}
! stuck_at_noise: the learned noise has a variance of {noise_var:.3g}, all of the targets' {target_var:.3g}, though
  near neighbours or a straight line explain {explained_otherwise:.0%} of these rows' variance: it took all for noise
  before it learned anything. Try wider layers and more epochs, or give a Network a small noise, which cannot grow:
  Regression(0.01).
! noise_at_limit: the learned noise has a variance of {noise_var:.3g}, all of the targets' {target_var:.3g}, and near
  neighbours or a straight line explain nothing either. Check that rows of x and y belong together and that inputs are
  scaled; or there is nothing to find.
- noise_at_limit least: the learned noise has a variance of {noise_var:.2g}, the least that {n} targets can show (its
  prior alone gives {least:.2g}). If they have no noise, all is well, or give a Network a small one: Regression(1e-4);
  else use fewer weights.
! link_far_off: the learned scale of the link is {scale:.3g}, where {usual:.3g} is usual: outputs say next to nothing
  about the labels of {whose}. Check that rows of x and y belong together; or there is nothing to find.{more}
! one_batch_dominates: batch {batch} says {times_median:.0f} times as much about the weights as the median of all {n}.
  Look for outliers or rows in other units in trainer.members[{batch}], first at row {row}, with the largest inputs.
- no_signal: over these rows the outputs vary by {signal_std:.2g} (std), less than the {epistemic_std:.2g} by which
  they are uncertain. Check that rows of x and y belong together; else use more data, fewer inputs, or a simpler model.
! too_sure: {seen} If the noise was given, give more, or let it be learned (Regression("learn")); else these rows may
  be of another kind than the training data.
- too_unsure: {seen} If the noise was given, give less, or let it be learned; else train longer: early on all is noise.
! too_sure labels: {seen} These rows may be of another kind than the training data; else train longer, or on more rows.
- too_unsure labels: {seen} Train longer, until it is at rest; with few rows the link stays careful.
! worse_than_leave_one_out: the NLL is {nll:.3g} on the rows given and was {loo_nll:.3g} on training rows left out;
  chance explains a gap of {chance}. These rows are of another kind, or training rows are near copies of each other.
"""
PARTS = re.findall(r"^([!-]) ([\w ]+): (.+?)(?=\n[!-] |\Z)", ADVICE, flags=re.MULTILINE | re.DOTALL)
SENTENCES = {name: (PROBLEM if mark == "!" else HINT, " ".join(text.split())) for mark, name, text in PARTS}


def finding(name: str, severity: str | None = None, /, **parts: float | str) -> Finding:
    """The finding of this name: numbers among the parts are its figures, texts are words."""
    usual, text = SENTENCES[name]
    numbers = {part: value for part, value in parts.items() if not isinstance(value, str)}
    sentence = re.sub(r"(?<=\d)%", " %", text.format(**parts))
    return Finding(name.split()[0], severity or usual, sentence, numbers)
