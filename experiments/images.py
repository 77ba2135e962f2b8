"""What the experiments on images share: methods by name, their scores, and unfamiliar images."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesmp.layers.base import Layer
from benchmarks.baselines import (
    PREDICT_BATCH,
    AdamWConfig,
    IVONConfig,
    as_run,
    fit_adamw,
    train_adamw,
    train_adamw_held_out,
    train_ivon,
    train_mc_dropout,
)
from benchmarks.datasets import Images
from benchmarks.evaluation import class_scores, entropy, separation
from benchmarks.ours import train_ours
from benchmarks.runs import Run
from experiments.base import Record
from experiments.learners import require
from experiments.linearised import probit_probabilities

SHARE_HELD_OUT = 10  # a tenth of the training images mends AdamW
LAPLACE_BATCH = 250  # images at once: 2.3 GB of memory
WARM_UP = 256  # images
IVON_AUTHORS = IVONConfig(lr=0.2, hess_init=0.5, weight_decay=2e-4)  # for a ResNet-20 on CIFAR-10, 200 epochs
NAMES = ("accuracy", "top-5", "NLL", "ECE", "ECE2", "Brier")


def train(
    method: str, layers: Sequence[Layer], images: Images, *, epochs: int, batch_size: int, seed: int
) -> list[Run]:
    """The runs of a method; several where one training serves more than one way to predict."""
    shared: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "seed": seed}
    x, y = images.x_train, images.y_train
    if method == "ours":
        return [train_ours(layers, x, y, predict_batch=PREDICT_BATCH, **shared)[0]]
    if method == "adamw":
        return [train_adamw(layers, x, y, **shared)]
    if method == "adamw-mended":
        return train_adamw_held_out(layers, x, y, n_held_out=max(1, len(x) // SHARE_HELD_OUT), **shared)
    if method == "mc-dropout":
        return train_mc_dropout(layers, x, y, **shared)
    if method == "ivon":
        require("ivon", "ivon-opt")
        return train_ivon(layers, x, y, **shared)
    if method == "ivon-authors":
        require("ivon", "ivon-opt")
        runs = train_ivon(layers, x, y, **shared, config=IVON_AUTHORS)
        return [replace(run, name=run.name.replace("IVON", "IVON (its authors' settings)")) for run in runs]
    if method in ("laplace-last", "laplace-kron"):
        return [train_laplace(layers, x, y, is_last=method == "laplace-last", **shared)]
    raise ValueError(f"unknown method {method!r}")


def train_laplace(
    layers: Sequence[Layer], x: Tensor, y: Tensor, *, is_last: bool, epochs: int, batch_size: int, seed: int
) -> Run:
    """AdamW, then a Gaussian around its weights with Kronecker-factored curvature (laplace-torch): of the last layer,
    or of all. The prior precision maximises the marginal likelihood; probabilities are those of the linearised network
    by the probit approximation, as the package's authors advise (of all layers: by our form of them, linearised.py).
    """
    laplace = require("laplace", "laplace-torch")
    config = AdamWConfig()
    model, _, history, cost = fit_adamw(layers, x, y, epochs=epochs, batch_size=batch_size, seed=seed, config=config)
    model.eval()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=batch_size)
    where = "last_layer" if is_last else "all"
    fitted = laplace.Laplace(model, "classification", subset_of_weights=where, hessian_structure="kron")
    fitted.fit(loader)
    fitted.optimize_prior_precision(method="marglik")

    precision = None if is_last else fitted.posterior_precision

    def probabilities(rows: Tensor) -> Tensor:
        if precision is not None:
            return probit_probabilities(model, precision, rows)
        found: Tensor = fitted(rows, link_approx="probit")
        return found

    def predict(rows: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([probabilities(part.to(x.device)).double() for part in rows.split(LAPLACE_BATCH)])

    name = "Laplace, last layer" if is_last else "Laplace, all layers (Kronecker)"
    return replace(as_run(name, predict, history, cost), repeats=1)


def evaluate(
    run: Run, images: Images, unfamiliar: dict[str, Callable[[], Tensor]], *, keep: bool
) -> tuple[Record, dict[str, np.ndarray[Any, Any]]]:
    """Scores on the test images, AUROC against each unfamiliar set by entropy, by epistemic uncertainty and by the
    outputs' epistemic variance; and, if they are to be kept, what curves and ensembles are made of.
    """
    _predict(run, images.x_test[:WARM_UP])  # so that seconds are those of predicting
    started = time.perf_counter()
    probs, epistemic = _predict(run, images.x_test)
    seconds = {"train_seconds": run.seconds, "predict_seconds": time.perf_counter() - started}
    record: Record = {"name": run.name, **class_scores(probs, images.y_test.cpu()), **seconds}
    kept = {"probs": _array(probs)}
    for name, make in unfamiliar.items():
        probs_out, epistemic_out = _predict(run, make())
        record[f"AUROC {name}"] = separation(entropy(probs), entropy(probs_out))
        told = epistemic is not None and epistemic_out is not None
        record[f"AUROC {name}, epistemic"] = separation(epistemic, epistemic_out) if told else None  # type: ignore[arg-type]
        if run.variance is not None:
            known, strange = run.variance(images.x_test).cpu(), run.variance(make()).cpu()
            record[f"AUROC {name}, variance"] = separation(known, strange)
        kept[f"probs {name}"] = _array(probs_out)
        if epistemic is not None and epistemic_out is not None:
            kept |= {"epistemic": _array(epistemic), f"epistemic {name}": _array(epistemic_out)}
    return record, kept if keep else {}


def _predict(run: Run, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Probabilities and epistemic uncertainty on the CPU, so the device has done its work."""
    probs, epistemic = run.predict_both(x)
    return probs.cpu(), None if epistemic is None else epistemic.cpu()


def _array(probs: Tensor) -> np.ndarray[Any, Any]:
    return probs.float().cpu().numpy()
