"""Advice in the words of those who get it: users of networks have a trainer and a head, those of estimators neither."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Face:
    """What findings advise, each as whole sentences or the end of one; named after what is wrong.

    Attributes:
        interrupted, not_converged, ended_in_a_jump: how to go on with a run.
        too_few_visits: how to give it the visits.
        unlike_training, other_units: what to do with inputs or targets that are not as they were in training.
        too_sure, too_unsure: about the noise.
        stuck_at_noise, no_noise: what to give instead of learned noise.
        prior: where prior variances are given, `{factor}` times as large as before.
        prior_too_wide: what to do where each example is fitted by itself.
        scores: what to compare.
        left_out: where the errors of rows left out are.
        batches: what is said where shares of batches cannot be judged; nothing for those who know of no batches.
    """

    interrupted: str
    not_converged: str
    ended_in_a_jump: str
    too_few_visits: str
    unlike_training: str
    other_units: str
    too_sure: str
    too_unsure: str
    stuck_at_noise: str
    no_noise: str
    prior: str
    prior_too_wide: str
    scores: str
    left_out: str
    batches: str


NETWORK = Face(
    interrupted="run it again, or go on: trainer.run().",
    not_converged="Leave epochs out, so that it stops by itself, raise max_epochs, or let the trainer run on.",
    ended_in_a_jump="Let the trainer run on for some epochs; history.plot() shows it.",
    too_few_visits="Leave epochs out, or give enough of them for 250 visits (epochs times batches).",
    unlike_training="scale new data by the numbers of the training data (bayesmp.data.Scaling keeps them), and look at "
    "epistemic before you trust these rows.",
    other_units="scale them by the same numbers (bayesmp.data.Scaling).",
    too_sure='If the noise was given, give more or let it be learned (Regression("learn")); if not, these rows may be '
    "of another kind than the training data.",
    too_unsure="If the noise was given, give less or let it be learned; if not, train longer: early on all is noise.",
    stuck_at_noise="Give a small noise, e.g. Regression(0.01), which cannot grow; or try wider layers and a longer "
    "run.",
    no_noise="If they have none, give a small number, e.g. Regression(1e-4); else use fewer weights or more data.",
    prior="weight_prior and bias_prior with variances {factor} times as large",
    prior_too_wide="Use the default prior, or smaller variances in weight_prior, fewer weights, or more data.",
    scores="history.loo_nll",
    left_out="history.loo_error",
    batches="shares of batches (needs the Trainer: trainer.diagnose())",
)

ESTIMATOR = Face(
    interrupted="fit again.",
    not_converged='Leave epochs at "auto", so that it stops by itself, or raise max_epochs, and fit again.',
    ended_in_a_jump="Fit again with some epochs more, or another random_state; history_.plot() shows it.",
    too_few_visits='Leave epochs at "auto".',
    unlike_training="these are standard deviations of the training data: give rows in the units of fit, and look at "
    "predict_epistemic before you trust these.",
    other_units="these are standard deviations of the training data: give targets in the units of fit.",
    too_sure="These rows may be of another kind than those of fit.",
    too_unsure='Train longer, or leave epochs at "auto": early on all is noise.',
    stuck_at_noise="Try wider layers (hidden) and more epochs; or a bayesmp.Network with a small noise, e.g. "
    "Regression(0.01), which cannot grow.",
    no_noise="If they have none, all is well; else use fewer units (hidden) or more rows.",
    prior="layers in hidden, such as Linear(10, 50, weight_prior=...), whose priors have variances {factor} times as "
    "large",
    prior_too_wide="Use fewer units (hidden), fewer columns, or more rows.",
    scores="loo_score_",
    left_out="loo_error_",
    batches="",
)
