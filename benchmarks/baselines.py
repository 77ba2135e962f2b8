"""AdamW, its remedies and IVON in one loop: data on the device, one permutation per epoch, waiting only at its end."""

from __future__ import annotations

import copy
import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bayesmp.basics.arithmetic import fast_arithmetic
from bayesmp.layers.base import Layer
from bayesmp.network.torch_bridge import as_torch
from benchmarks.evaluation import mixture
from benchmarks.runs import Run
from benchmarks.timing import Cost, measured

PREDICT_BATCH = 1000  # rows at a time
TEMPERATURES = (1e-2, 1e2)  # considered; examples that are all right would ask for 0
MAX_GRADIENT_GAP = 0.05  # TF32 gives some 1e-3; torch 2.13 has compiled max-pooling to gradients of 0 on CPUs (gap 1)


@dataclass(frozen=True, kw_only=True)
class AdamWConfig:
    """The paper's settings; the learning rate follows a cosine to zero over the epochs."""

    lr: float = 1e-3
    weight_decay: float = 1e-4
    compiled: bool = False  # the network through torch.compile


@dataclass(frozen=True, kw_only=True)
class DropoutConfig:
    """AdamW with dropout after every activation; the learning rate follows a cosine to zero over the epochs."""

    lr: float = 1e-3
    weight_decay: float = 0.01
    share: float = 0.3  # of each activation's outputs that a step sets to zero
    n_samples: int = 30  # in prediction


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
    model, forward, history, cost = fit_adamw(
        layers, x, y, epochs=epochs, batch_size=batch_size, seed=seed, config=config
    )
    name = "AdamW compiled" if config.compiled else "AdamW"
    if config.compiled:
        sizes = {min(batch_size, len(x)), len(x) % batch_size or batch_size}  # of all batches and of the last
        gap = max(gradient_gap(model, forward, x[:size], y[:size]) for size in sizes)
        name += "" if gap < MAX_GRADIENT_GAP else " (wrong gradients)"
    return as_run(name, lambda rows: probabilities(model, rows, x.device), history, cost)


def fit_adamw(
    layers: Sequence[Layer],
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    config: AdamWConfig,
) -> tuple[nn.Sequential, Callable[[Tensor], Tensor], list[dict[str, float]], Cost]:
    """The trained model, its compiled form (or itself), the history and the cost."""
    model = _new_model(layers, x.device, seed)
    forward: Callable[[Tensor], Tensor] = torch.compile(model, dynamic=False) if config.compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    history, cost = _train(forward, optimizer, x, y, epochs=epochs, batch_size=batch_size, seed=seed)
    return model, forward, history, cost


def train_adamw_held_out(
    layers: Sequence[Layer],
    x: Tensor,
    y: Tensor,
    *,
    n_held_out: int,
    epochs: int,
    batch_size: int,
    seed: int = 0,
    config: AdamWConfig | None = None,
) -> list[Run]:
    """Train with AdamW on all but the last examples, which are used in two ways: two runs that share the training.

    The first is trained to the end, then its outputs are divided by the temperature with the lowest NLL on the held-out
    examples; its seconds leave out the looks at them during training. The second has the weights of the epoch after
    which their NLL was lowest; the learning rate's cosine is that of all epochs, and all of them count as its cost.
    """
    config = config or AdamWConfig()
    n_left = len(x) - n_held_out
    if config.compiled or n_held_out < 1 or n_left < 1:
        raise ValueError(f"needs an eager network and 1 to {len(x) - 1} held-out examples, got {config}, {n_held_out}")
    x_held, y_held = x[n_left:], y[n_left:]
    model = _new_model(layers, x.device, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    lowest, best = math.inf, model

    def watch() -> dict[str, float]:
        nonlocal lowest, best
        nll = float(cross_entropy(logits(model, x_held, x.device), y_held))
        if nll < lowest:
            lowest, best = nll, copy.deepcopy(model)
        return {"held-out nll": nll}

    history, cost = _train(
        model, optimizer, x[:n_left], y[:n_left], epochs=epochs, batch_size=batch_size, seed=seed, watch=watch
    )
    started = time.perf_counter()
    temperature = fit_temperature(logits(model, x_held, x.device), y_held)
    seconds = cost.seconds - sum(record["watch seconds"] for record in history) + time.perf_counter() - started
    return [
        as_run(
            f"AdamW, temperature from {n_held_out:,} held out",
            lambda rows: (logits(model, rows, x.device) / temperature).softmax(1),
            [*history[:-1], {**history[-1], "temperature": temperature}],
            Cost(seconds, cost.peak_bytes),
        ),
        as_run(
            f"AdamW, best epoch by {n_held_out:,} held out",
            lambda rows: probabilities(best, rows, x.device),
            history,
            cost,
        ),
    ]


def train_mc_dropout(
    layers: Sequence[Layer],
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    batch_size: int,
    seed: int = 0,
    config: DropoutConfig | None = None,
) -> list[Run]:
    """Train with dropout after every activation; two runs that share the training: one plain pass, and MC dropout."""
    config = config or DropoutConfig()
    model = with_dropout(_new_model(layers, x.device, seed), config.share)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    history, cost = _train(model, optimizer, x, y, epochs=epochs, batch_size=batch_size, seed=seed)

    def plain(rows: Tensor) -> Tensor:
        return probabilities(model.eval(), rows, x.device)

    def samples(rows: Tensor) -> Iterator[Tensor]:
        for _ in range(config.n_samples):
            yield probabilities(model.train(), rows, x.device)  # training mode draws the masks

    return [
        as_run(f"dropout {config.share:g}, plain", plain, history, cost),
        _sampled_run(f"MC dropout {config.share:g}, {config.n_samples} samples", samples, history, cost),
    ]


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
        x,
        y,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        sampled=lambda: optimizer.sampled_params(train=True),
    )

    def samples(rows: Tensor) -> Iterator[Tensor]:
        for _ in range(config.n_samples):
            with torch.no_grad(), optimizer.sampled_params():  # inference mode would leave the weights untrainable
                probs = probabilities(model, rows, x.device)
            yield probs  # outside, so that the caller never sees the drawn weights

    return [
        as_run("IVON at the mean", lambda rows: probabilities(model, rows, x.device), history, cost),
        _sampled_run(f"IVON, {config.n_samples} samples", samples, history, cost),
    ]


@torch.no_grad()
def logits(model: nn.Module, x: Tensor, device: torch.device, *, batch_size: int = PREDICT_BATCH) -> Tensor:
    """The network's outputs in float64, so that a small probability does not become zero."""
    return torch.cat([model(rows.to(device)).double() for rows in x.split(batch_size)])


def probabilities(model: nn.Module, x: Tensor, device: torch.device, *, batch_size: int = PREDICT_BATCH) -> Tensor:
    """Softmax of the network's outputs, in float64."""
    return logits(model, x, device, batch_size=batch_size).softmax(1)


def fit_temperature(outputs: Tensor, y: Tensor) -> float:
    r"""The temperature T, within TEMPERATURES, with the lowest NLL of softmax(outputs / T).

    In b = 1/T the NLL is convex with slope mean(E_p[z] - z_y), p = softmax(b z); its sign halves the range of log T
    until nothing is left of it.

    Source: Guo et al., "On Calibration of Modern Neural Networks", 2017.

    Args:
        outputs: z, (n, c); the search is in float64.
        y: (n,).
    """
    outputs = outputs.double()
    own = outputs.gather(1, y[:, None]).mean()
    low, high = map(math.log, TEMPERATURES)
    for _ in range(60):
        middle = (low + high) / 2
        expected = ((outputs * math.exp(-middle)).softmax(1) * outputs).sum(1).mean()
        low, high = (low, middle) if expected < own else (middle, high)
    return math.exp((low + high) / 2)


def with_dropout(model: nn.Sequential, share: float) -> nn.Sequential:
    """The same modules, with dropout after each activation."""
    modules: list[nn.Module] = []
    for module in model:
        modules += [module, nn.Dropout(share)] if isinstance(module, nn.LeakyReLU) else [module]
    return nn.Sequential(*modules)


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
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    sampled: Callable[[], AbstractContextManager[Any]] = nullcontext,
    watch: Callable[[], dict[str, float]] | None = None,
) -> tuple[list[dict[str, float]], Cost]:
    """The loop. `sampled` is entered around each gradient: IVON draws the weights there. What `watch` returns after an
    epoch joins its history; its time counts in the whole cost, not in the epoch's seconds.
    """
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
            ended = time.perf_counter()
            history.append({"epoch": epoch, "nll": nll, "seconds": ended - started})
            if watch is not None:
                history[-1] |= watch()
                history[-1]["watch seconds"] = time.perf_counter() - ended
    return history, cost


def _batches(n: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    yield from torch.randperm(n, device=generator.device, generator=generator).split(batch_size)


def as_run(name: str, predict: Callable[[Tensor], Tensor], history: list[dict[str, float]], cost: Cost) -> Run:
    """What a baseline leaves, as all runs are kept."""
    return Run(
        name=name,
        predict=predict,
        seconds=cost.seconds,
        epoch_seconds=[record["seconds"] for record in history],
        peak_bytes=cost.peak_bytes,
        site_bytes=0,
        history=history,
    )


def _sampled_run(
    name: str, samples: Callable[[Tensor], Iterator[Tensor]], history: list[dict[str, float]], cost: Cost
) -> Run:
    """Predictions averaged over samples, and the mutual information of label and sample."""

    def both(rows: Tensor) -> tuple[Tensor, Tensor]:
        return mixture((probs, None) for probs in samples(rows))

    plain = as_run(name, lambda rows: both(rows)[0], history, cost)
    return replace(plain, epistemic=lambda rows: both(rows)[1], both=both, repeats=1)
