"""Whether what the model does not know tells unfamiliar inputs from familiar ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesmp import metrics
from bayesmp.plots.style import BLUE, GREEN, PURPLE, diagonal, legend, make_axes, shares
from bayesmp.plots.taken import Floats, is_classes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"epistemic": BLUE, "entropy": GREEN, "epistemic_var": PURPLE, "score": BLUE}


def ood_curve(familiar: Any, unfamiliar: Any, ax: Axes | None = None, *, by: Sequence[str] | str | None = None) -> Axes:
    """How many unfamiliar inputs a limit on the uncertainty would flag, against how many familiar ones, for all limits.

    The area below (AUROC) is the probability that an unfamiliar input scores higher than a familiar one: 1 tells all
    apart, .5 is guessing, and below .5 unfamiliar inputs look the more certain ones.

    Args:
        familiar, unfamiliar: what `network.predict` returns for inputs like the training data and for others; or scores
            (n,) of your own.
        ax: where to draw; default: a new figure.
        by: of predictions, one or more of "epistemic" and "entropy" (classes) and "epistemic_var" (mean over outputs).
            Default: the first two for classes, the last for real targets.
    """
    names, scores = _scores(familiar, unfamiliar, by)
    ax = make_axes(ax, size=(4.4, 4.4))
    diagonal(ax, text="guessing", at=(0.66, 0.61))
    for name, (inside, outside) in zip(names, scores, strict=True):
        score = np.concatenate([inside, outside])
        is_out = np.arange(len(score)) >= len(inside)
        false_alarms, hits = metrics.roc(score, is_out)
        label = f"{name}: AUROC {metrics.auroc(score, is_out):.3f}"
        ax.plot(false_alarms, hits, color=COLOURS[name], linewidth=1.8, label=label, zorder=3)
    legend(ax, loc="lower right", handlelength=1.4)
    return shares(ax, "familiar inputs flagged", "unfamiliar inputs flagged")


def _scores(familiar: Any, unfamiliar: Any, by: Sequence[str] | str | None) -> tuple[list[str], list[list[Floats]]]:
    """Names of the scores, and each of them for both kinds of inputs."""
    pair = (familiar, unfamiliar)
    if not any(hasattr(part, "epistemic_var") for part in pair):
        if by is not None:
            raise ValueError("by names a score of predictions; for scores of your own leave it out")
        return ["score"], [[_flat(part, "scores") for part in pair]]
    if not all(hasattr(part, "epistemic_var") for part in pair) or len({is_classes(part) for part in pair}) > 1:
        kinds = " and ".join(type(part).__name__ for part in pair)
        raise ValueError(f"familiar and unfamiliar must be of one kind: two predictions of one network; got {kinds}")
    known = ["epistemic", "entropy", "epistemic_var"] if is_classes(familiar) else ["epistemic_var"]
    names = (known[:2] if by is None else [by] if isinstance(by, str) else list(by)) or known
    if wrong := [name for name in names if name not in known]:
        raise ValueError(f"by must name scores that these predictions have, {known}; got {wrong}")
    return names, [[_score(part, name) for part in pair] for name in names]


def _score(prediction: Any, name: str) -> Floats:
    values = getattr(prediction, name)
    return _flat(values.mean(1) if values.ndim == 2 else values, name)


def _flat(values: Any, name: str) -> Floats:
    array = metrics.as_array(values).astype(np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"{name} must hold one number per input, shape (n,), got {array.shape}")
    return array
