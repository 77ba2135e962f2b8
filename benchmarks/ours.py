"""A bayesmp run in the form in which all methods are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import bayesmp as bmp
from bayesmp.layers.base import Layer
from benchmarks.runs import Run
from benchmarks.timing import measured

Watch = Callable[[bmp.Network], dict[str, Any]]


def train_ours(
    layers: Sequence[Layer],
    x: Tensor,
    y: Tensor,
    *,
    head: bmp.Argmax | bmp.Softmax | None = None,
    epochs: int,
    seed: int = 0,
    watch: Watch | None = None,
    watch_every: int = 1,
    predict_batch: int | None = None,
    **options: Any,
) -> tuple[Run, bmp.Network]:
    """Train a classifier on x's device, with the library's defaults but for what is given.

    Args:
        layers: of the network.
        x, y: training data on the device.
        head: Argmax() if not given.
        epochs: visits to each batch.
        seed: of the prior means, and of the batches.
        watch: called every `watch_every` epochs with the network; what it returns joins the epoch's history. Its time
            is not counted.
        predict_batch: rows at a time in prediction; the library's choice if None.
        options: of bayesmp.Trainer, e.g. batch_size, schedule.
    """
    network = bmp.Network(layers, head or bmp.Argmax(), seed=seed, input_shape=x.shape[1:]).to(x.device)
    chunk = epochs if watch is None else min(watch_every, epochs)
    seen: dict[int, dict[str, Any]] = {}
    with measured(x.device) as cost:
        trainer = bmp.Trainer(network, x, y, seed=seed, **options)
        trainer.run(chunk, progress=False)
    costs = [cost]
    while watch is not None:
        seen[trainer.n_epochs] = watch(network)
        if trainer.n_epochs == epochs:
            break
        with measured(x.device) as cost:
            trainer.run(min(chunk, epochs - trainer.n_epochs), progress=False)
        costs.append(cost)

    def both(rows: Tensor) -> tuple[Tensor, Tensor | None]:
        prediction = network.predict(rows, batch_size=predict_batch)
        return prediction.probs, getattr(prediction, "epistemic", None)  # None: a release that does not tell it

    peaks = [cost.peak_bytes for cost in costs if cost.peak_bytes is not None]
    plan = trainer.sites.plan
    run = Run(
        name="ours",
        predict=lambda rows: network.predict(rows, batch_size=predict_batch).probs,
        seconds=sum(cost.seconds for cost in costs),
        epoch_seconds=trainer.history.column("seconds"),
        peak_bytes=max(peaks, default=None),
        site_bytes=plan.n_bytes if plan.place == "device" else 0,
        history=[{**row, **seen.get(int(row["epoch"]), {})} for row in trainer.history.to_rows()],
        epistemic=lambda rows: both(rows)[1],
        both=both,
        variance=lambda rows: network.predict(rows, batch_size=predict_batch).epistemic_var.sum(1),
    )
    return run, network


def without_link(prediction: bmp.ClassPrediction) -> Tensor:
    """The paper's argmax predictive, the chance of each class to beat every other, from the same outputs."""
    outputs = bmp.Moments(prediction.mean, prediction.epistemic_var)
    return bmp.Argmax(scale=None).predict(outputs, torch.zeros(1).to(outputs.mean)).probs
