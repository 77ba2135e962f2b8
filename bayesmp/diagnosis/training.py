"""What training has done: to the layers and their prior, to the noise, and by heart; and how it ended."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmp import metrics
from bayesmp.diagnosis.advice import HINT, Found, finding
from bayesmp.diagnosis.rows import FEW_ROWS
from bayesmp.diagnosis.run_summary import RunSummary
from bayesmp.heads import Argmax, Regression, Softmax
from bayesmp.heads.regression import LEAST_MISS
from bayesmp.messages.gaussian import Moments

TRACED_ROWS = 1000  # examples that are sent through the network to look at its units
CONSTANT, LEAST_SPREAD = 0.01, 0.1  # spread of a constant unit, in spreads of its layer, and the least of these
COLLAPSED = 0.5  # share of constant units from which a layer counts as collapsed
LEAST_LEARNED = 1.0  # weights' worth of information below which a layer has stayed at its prior
TOO_NARROW, TOO_WIDE = 4.0, 0.3  # mean square distance of weights from the prior's means, in prior variances
MOST_CUT, MOST_LEVERAGE = 0.25, 0.5  # share of leverages that were cut, and their mean, where wide priors do harm
JUMP = (0.3, 0.05)  # nats, and share of the best leave-one-out score, by which the last one may lie above it
AS_BAD, BY_HEART = 0.9, 0.7  # shares of the error of one guess for all, and of other rows: not predicted, and by heart
HOLDS_OWN = (0.8, 0.5)  # mean leverage, for real targets and labels, from which leave-one-out errors are too small
LEAST_GUESS = 0.2  # share of labels that the most frequent class must leave open for any of this
NEIGHBOURS, COMPARED = 5, 500  # rows that are averaged, and compared, to see whether like inputs have like targets
ALL_NOISE, EXPLAINED = 0.9, 0.2  # shares of the targets' variance: all is noise; simple means explain some of it
LEAST_NOISE = 2.5  # times what the noise's prior alone would give
WEAK_SIGNAL, MORE_NOISE = 0.5, 1.5  # share of the targets' variance, and times what training has heard, worth a word
FAR_LINK = 2.5  # times below the centre of its prior that a link scale is far off; healthy ones: .8 to 2.6 times it
DOMINATES, FEW_BATCHES = 5.0, 3  # times the median of all batches that one may say about the weights, if they are more


@torch.no_grad()
def judge_units(network: Any, x: Tensor) -> Found:
    """Activations most of whose units say the same for all inputs."""
    rows = x[:TRACED_ROWS].to(device=network.device, dtype=network.dtype)
    trace = network.graph.sweep_out(rows, network.weights(), network.regime)
    for index, layer in enumerate(network.layers):
        m_out = trace.locals[index].m_out
        if len(x) < 2 or layer.weight_shapes() or not layer.may_reject or not isinstance(m_out, Moments):
            continue  # only activations can switch units off
        values = (m_out.mean.flatten(2).movedim(1, 0).flatten(1) if m_out.mean.ndim > 2 else m_out.mean.t()).double()
        spread = values.std(1)
        limit = CONSTANT * max(float(spread.square().mean().sqrt()), LEAST_SPREAD)
        n_constant, n_off = int((spread < limit).sum()), int(((spread < limit) & (values.abs().amax(1) < limit)).sum())
        if n_constant >= COLLAPSED * len(spread):
            words = {"layer": f"layer {index}, {layer!r}", "n": f"{len(rows):,}"}
            yield finding("collapsed_layer", n_constant=n_constant, n_off=n_off, n_units=len(spread), **words)


def judge_weights(network: Any, summary: RunSummary | None) -> Found:
    """Layers that have stayed at their priors; priors too narrow; wide ones, where examples hold their own outputs."""
    prior, marginal = network.exact_prior, network.marginal.map(lambda part: part.detach().cpu().double())
    settled, distance = {}, {}  # by layer: weights' worth that data have told; sum of (means / prior std)^2
    for layer in sorted({slot.layer for slot in network.slots}):
        slots = [slot for slot in network.slots if slot.layer == layer]
        rows, name = slice(slots[0].start, slots[-1].stop), f"layer {layer}, {network.layers[layer]!r}"
        before, after = (Moments(part.mean[rows], part.var[rows]) for part in (prior, marginal))
        settled[name] = float((1.0 - after.var / before.var).sum())
        distance[name] = float(((after.mean - before.mean).square() / before.var).sum())
        if settled[name] < LEAST_LEARNED:
            yield finding("layer_at_prior", n_settled=settled[name], n_weights=len(after.mean), layer=name)
    if sum(settled.values()) < LEAST_LEARNED:
        return
    wanted = sum(distance.values()) / sum(settled.values())
    if wanted > TOO_NARROW:
        worst = max(distance, key=lambda name: distance[name])
        factor = min(wanted, distance[worst] / max(settled[worst], 1e-12))
        words = {"distance": f"{wanted**0.5:.1f}", "layer": worst, "factor": f"{factor:.{0 if factor >= 2 else 1}f}"}
        yield finding("prior_too_narrow", wanted_factor=wanted, **words)
    cut = [record.loo["clipped"] for record in (summary.history if summary else []) if "clipped" in record.loo]
    held, last = _leverage(network, summary), cut[-1] if cut else 0.0
    if wanted < TOO_WIDE and (last > MOST_CUT or held > MOST_LEVERAGE):
        far = f"{wanted**0.5:.2g}"
        yield finding("prior_too_wide", wanted_factor=wanted, mean_leverage=held, share_cut=last, distance=far)


def judge_convergence(summary: RunSummary) -> Found:
    """The history's last words, and its last score."""
    stopped, scores, n_epochs = summary.history.stopped, summary.loo_nll, len(summary.history)
    ended = stopped if stopped.startswith("ran") else f"was {stopped}"
    names = {"interrupted": "not_converged interrupted", "worse": "worse_than_constant", "not at rest": "not_converged"}
    if name := next((name for words, name in names.items() if words in stopped), ""):
        yield finding(name, n_epochs=n_epochs, ended=ended)
    best = min(scores, default=math.inf)
    if len(scores) > 1 and scores[-1] > best + max(JUMP[0], JUMP[1] * abs(best)):
        yield finding("ended_in_a_jump", last=scores[-1], best=best)


def judge_memory(network: Any, summary: RunSummary, prediction: Any, y: Tensor) -> Found:
    """Training rows met far better than others (those given, or left out), which one guess for all meets as well."""
    error, is_real, head = summary.loo_error, y.is_floating_point(), network.head
    if error is None:
        return
    ended, guess = summary.history[-1].metrics, _error_of_one_guess(summary, y)
    in_training = ended["rmse"] if is_real else 1.0 - ended["accuracy"]
    has_rows = prediction is not None and len(y) >= FEW_ROWS
    if has_rows:
        if error < AS_BAD * guess and _leverage(network, summary) <= HOLDS_OWN[0 if is_real else 1]:
            return  # rows of another kind
        error = _error_of(prediction, y)
    if error < AS_BAD * guess or in_training > BY_HEART * error or (not is_real and guess < LEAST_GUESS):
        return
    remedy = "Use fewer inputs or weights, or more rows; or there is nothing to find."
    if isinstance(head, Regression) and not head.is_learned:
        given = float(head.in_training(network.head_log_weights))
        remedy = f"The noise that was given, {given:.2g}, is too small: give more, or let it be learned."
    words = {"are": "are off by" if is_real else "are wrong in a share of", "remedy": remedy}
    words["whose"] = "the rows given" if has_rows else "rows left out"
    numbers = {"training_error": in_training, "error": error, "guess_error": guess}
    # leave-one-out alone may be too harsh where rows hold their own outputs
    yield finding("memorised_noise", None if has_rows else HINT, **numbers, **words)


def judge_constant(network: Any, summary: RunSummary | None, prediction: Any, x: Tensor, y: Tensor) -> Found:
    """Learned noise that is all of the targets or none of them, or a flat link: which is a fault only where labels are
    predicted no better than by the most frequent one. Rows left out tell that worse than rows given, if they are few.
    """
    head, log_weights, guess = network.head, network.head_log_weights, _error_of_one_guess(summary, y)
    if not head.is_learned:
        return
    if summary is not None and summary.heard is not None:
        is_real, found = y.is_floating_point(), float(head.in_training(log_weights))
        if found > max(MORE_NOISE * summary.heard, WEAK_SIGNAL * (guess**2 if is_real else head.largest_constant(y))):
            what, n_epochs = "noise" if is_real else "labels", len(summary.history)
            yield finding("too_few_visits", heard_var=summary.heard, found_var=found, n_epochs=n_epochs, what=what)
    if isinstance(head, Regression) and summary is not None and summary.y_std is not None:
        value, least = float(head.in_training(log_weights)), LEAST_MISS**2 / (summary.n_rows * len(summary.y_std))
        if value > ALL_NOISE * guess**2:
            explained = explained_otherwise(x, y)
            kind = "stuck_at_noise" if explained > EXPLAINED else "noise_at_limit"
            yield finding(kind, noise_var=value, target_var=guess**2, explained_otherwise=explained)
        elif value < LEAST_NOISE * least:
            yield finding("noise_at_limit least", noise_var=value, least=least, n=f"{summary.n_rows:,}")
    elif isinstance(head, (Argmax, Softmax)):
        scale, usual = float(head.expected(log_weights)), float(head.natural_scale)
        known = [(_error_of(prediction, y), guess, len(y))] if prediction is not None else []
        if summary is not None and summary.loo_error is not None:
            known.append((summary.loo_error, AS_BAD * guess, summary.n_rows))
        by_chance = 2.0 * math.sqrt(guess * (1.0 - guess))  # two standard errors, times sqrt(n)
        tells = any(error < limit - by_chance / math.sqrt(n) for error, limit, n in known)
        if scale < usual / FAR_LINK and not tells:
            whose, more = "rows that are left out", " Give rows that it was not trained on: they tell more."
            if is_seen := prediction is not None and len(y) >= FEW_ROWS:
                whose, more = "these rows, nor of those that are left out", ""
            yield finding("link_far_off", None if is_seen else HINT, scale=scale, usual=usual, whose=whose, more=more)


def judge_batches(trainer: Any) -> Found:
    """A batch that says far more than the others: the sum over all weights of its precision, in prior variances."""
    sites, prior_var = trainer.sites, trainer.network.prior.var.cpu().double()
    said = torch.stack([(row.cpu().double() * prior_var).sum() for row in sites.rho])
    batch, times = int(said.argmax()), float(said.max()) / max(float(said.median()), 1e-30)
    if len(sites) >= FEW_BATCHES and times > DOMINATES:
        rows = trainer.members[batch].cpu()
        x = trainer.x[rows.to(trainer.x.device)].flatten(1).double()
        row = int(rows[int(x.square().mean(1).argmax())])
        yield finding("one_batch_dominates", batch=batch, times_median=times, row=row, n=str(len(said)))


def explained_otherwise(x: Tensor, y: Tensor) -> float:
    """R2 of targets (n, o), each predicted without itself: by its nearest neighbours or a straight line, the better."""
    from sklearn.linear_model import RidgeCV  # scikit-learn takes a second to import
    from sklearn.neighbors import NearestNeighbors

    inputs, targets = (part[:COMPARED].detach().cpu().double().flatten(1) for part in (x, y))
    if len(inputs) < FEW_ROWS:
        return 0.0
    u, v = (((part - part.mean(0)) / part.std(0).clamp_min(1e-12)).numpy() for part in (inputs, targets))
    near = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(u).kneighbors(return_distance=False)  # none is its own
    line = RidgeCV([1e-3 * len(u)], store_cv_results=True).fit(u, v)
    return 1.0 - min(float(np.square(v - v[near].mean(1)).mean()), float(line.cv_results_.mean()))


def _leverage(network: Any, summary: RunSummary | None) -> float:
    """Which share of their outputs training examples hold themselves, by the joint belief; 0 if it is not known."""
    held = 0.0 if summary is None or network.belief is None else float(network.belief.degrees_of_freedom)
    return held / (summary.n_rows * network.n_outputs) if summary else 0.0


def _error_of_one_guess(summary: RunSummary | None, y: Tensor) -> float:
    if y.is_floating_point():
        return math.inf if summary is None or summary.y_std is None else float(summary.y_std.square().mean().sqrt())
    return 1.0 - float(torch.bincount(y.flatten()).max()) / len(y)


def _error_of(prediction: Any, y: Tensor) -> float:
    return metrics.rmse(prediction.mean, y) if y.is_floating_point() else 1.0 - metrics.accuracy(prediction.probs, y)
