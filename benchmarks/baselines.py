"""AdamW and IVON in one loop: data on the device, one permutation per epoch, no waiting but at the end of an epoch."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bayesmp.arithmetic import fast_arithmetic
from bayesmp.layers.base import Layer
from benchmarks.networks import as_torch
from benchmarks.runs import Run
from benchmarks.timing import Cost, measured

PREDICT_BATCH = 1000  # rows at a time
MAX_GRADIENT_GAP = 0.05  # TF32 gives some 1e-3; torch 2.13 has compiled max-pooling to gradients of 0 on CPUs (gap 1)


@dataclass(frozen=True, kw_only=True)
class AdamWConfig:
    """The paper's settings; the learning rate follows a cosine to zero over the epochs."""

    lr: float = 1e-3
    weight_decay: float = 1e-4
    compiled: bool = False  # the network through torch.compile


@dataclass(frozen=True, kw_only=True)
class IVONConfig:
    """The settings of the paper's comparison: lr 0.1, the package's defaults for the rest, cosine to zero.

    The effective sample size is the number of training examples, so the posterior is not tempered. IVON's authors use
    lr 0.2, hess_init 0.5 and weight_decay 2e-4 for a ResNet-20 on CIFAR-10 over 200 epochs.
    """

    lr: float = 0.1
    hess_init: float = 1.0
    beta2: float = 0.99999
    weight_decay: float = 1e-4
    n_samples: int = 100  # in prediction; one per step in training


def has_ivon() -> bool:
    """Whether the package ivon-opt is installed."""
    return importlib.util.find_spec("ivon") is not None


def train_adamw(
    layers: Sequence[Layer],
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    batch_size: int,
    seed: int = 0,
    config: AdamWConfig | None = None,
) -> Run:
    """Train the PyTorch form of the layers with AdamW on x's device."""
    config = config or AdamWConfig()
    model = _new_model(layers, x.device, seed)
    forward: Callable[[Tensor], Tensor] = torch.compile(model, dynamic=False) if config.compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    history, cost = _train(forward, optimizer, nullcontext, x, y, epochs=epochs, batch_size=batch_size, seed=seed)
    name = "AdamW compiled" if config.compiled else "AdamW"
    if config.compiled:
        sizes = {min(batch_size, len(x)), len(x) % batch_size or batch_size}  # of all batches and of the last
        gap = max(gradient_gap(model, forward, x[:size], y[:size]) for size in sizes)
        name += "" if gap < MAX_GRADIENT_GAP else " (wrong gradients)"
    return _run(name, lambda rows: probabilities(model, rows, x.device), history, cost)


def train_ivon(
    layers: Sequence[Layer],
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    batch_size: int,
    seed: int = 0,
    config: IVONConfig | None = None,
) -> list[Run]:
    """Train with IVON; two runs that share the training: predictions at the mean, and averaged over samples."""
    from ivon import IVON

    config = config or IVONConfig()
    model = _new_model(layers, x.device, seed)
    optimizer = IVON(
        model.parameters(),
        lr=config.lr,
        ess=len(x),
        hess_init=config.hess_init,
        beta2=config.beta2,
        weight_decay=config.weight_decay,
    )
    history, cost = _train(
        model,
        optimizer,
        lambda: optimizer.sampled_params(train=True),
        x,
        y,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
    )

    @torch.no_grad()  # inference mode would leave the weights unusable for training
    def from_samples(rows: Tensor) -> Tensor:
        total = torch.zeros((), device=x.device, dtype=torch.float64)
        for _ in range(config.n_samples):
            with optimizer.sampled_params():
                total = total + probabilities(model, rows, x.device)
        return total / config.n_samples

    return [
        _run("IVON at the mean", lambda rows: probabilities(model, rows, x.device), history, cost),
        _run(f"IVON, {config.n_samples} samples", from_samples, history, cost),
    ]


@torch.no_grad()
def probabilities(model: nn.Module, x: Tensor, device: torch.device, *, batch_size: int = PREDICT_BATCH) -> Tensor:
    """Softmax of the network's outputs, in float64 so that a small probability does not become zero."""
    return torch.cat([model(rows.to(device)).double().softmax(1) for rows in x.split(batch_size)])


def gradient_gap(model: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> float:
    """Largest relative difference between the gradients of a model and of its compiled form, over its tensors."""
    parameters = list(model.parameters())
    exact, other = (torch.autograd.grad(cross_entropy(call(x), y), parameters) for call in (model, forward))
    gaps = [(a - b).abs().max() / a.abs().max().clamp_min(1e-12) for a, b in zip(exact, other, strict=True)]
    return float(torch.stack(gaps).max())


def _new_model(layers: Sequence[Layer], device: torch.device, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return as_torch(layers).to(device)


def _train(
    forward: Callable[[Tensor], Tensor],
    optimizer: Any,
    sampled: Callable[[], AbstractContextManager[Any]],
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
) -> tuple[list[dict[str, float]], Cost]:
    """The loop. `sampled` is entered around each gradient: IVON draws the weights there."""
    generator = torch.Generator(x.device).manual_seed(seed)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    history = []
    n_weights = sum(group.numel() for part in optimizer.param_groups for group in part["params"])
    with fast_arithmetic(x.device, n_products=n_weights * batch_size), measured(x.device) as cost:
        for epoch in range(1, epochs + 1):
            started = time.perf_counter()
            total = torch.zeros((), device=x.device)
            for rows in _batches(len(x), batch_size, generator):
                with sampled():
                    loss = cross_entropy(forward(x[rows]), y[rows])
                    optimizer.zero_grad()
                    loss.backward()
                optimizer.step()
                total += loss.detach() * len(rows)
            schedule.step()
            nll = float(total) / len(x)  # the one place where the host waits for the device
            history.append({"epoch": epoch, "nll": nll, "seconds": time.perf_counter() - started})
    return history, cost


def _batches(n: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    yield from torch.randperm(n, device=generator.device, generator=generator).split(batch_size)


def _run(name: str, predict: Callable[[Tensor], Tensor], history: list[dict[str, float]], cost: Cost) -> Run:
    return Run(
        name=name,
        predict=predict,
        seconds=cost.seconds,
        epoch_seconds=[record["seconds"] for record in history],
        peak_bytes=cost.peak_bytes,
        site_bytes=0,
        history=history,
    )
