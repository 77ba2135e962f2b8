"""What Bayesian costs on a CPU: a visit over an AdamW step, and a prediction over a plain pass, network by network.

Predictions are of three kinds: means and variances from one sweep out (`predict(joint=False)` of a regression), class
probabilities from the same sweep, and class probabilities with the joint belief.

Both sides see the same network, the same batch and the same threads in one process, and take turns, so that noise of
the machine hits both; medians are compared. The data are random numbers: costs do not depend on what is learned.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import bayesmp as bmp
from bayesmp import kernels
from bayesmp.basics.arithmetic import kept_memory
from bayesmp.layers.base import Layer
from bayesmp.network.torch_bridge import as_torch
from bayesmp.training.schedules import Batch
from benchmarks.baselines import AdamWConfig
from benchmarks.networks import cifar10_cnn, mlp, pooled_cnn
from benchmarks.options import begin, new_parser

N_BATCHES = 4  # the site of each is visited in turn
WARM_UP = 3  # visits before the first one that is timed: the metric is renewed at each of them, later rarely
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
NETWORKS: dict[str, tuple[Callable[[], list[Layer]], tuple[int, ...], int]] = {  # layers, shape of an input, batch
    "CNN (1, 28, 28)": (pooled_cnn, (1, 28, 28), 64),
    "CIFAR-10 CNN": (cifar10_cnn, (3, 32, 32), 64),
    "784-100-10": (lambda: mlp(784, 100, 10), (784,), 128),
    "8-50-10": (lambda: mlp(8, 50, 10), (8,), 128),
}


def alternating_medians(
    calls: Sequence[Callable[[], object]], *, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Median seconds of each call, all of them called in turn; one round to warm up is not counted."""
    times: list[list[float]] = [[] for _ in calls]
    for k in range(repeats + 1):
        for call, found in zip(calls, times, strict=True):
            started = clock()
            call()
            if k > 0:
                found.append(clock() - started)
    return [statistics.median(found) for found in times]


def adamw_step(layers: Sequence[Layer], x: Tensor, y: Tensor) -> tuple[Callable[[], object], torch.nn.Module]:
    """One eager step on this batch, as a call; and the model it trains."""
    config = AdamWConfig()
    model = as_torch(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)

    def step() -> None:
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, model


def visits(trainer: bmp.Trainer) -> Callable[[], object]:
    """A visit of the trainer's schedule to its next batch, as a call; every batch once has been visited before."""
    schedule, sites = trainer.schedule, trainer.sites
    batches = [Batch(sites.index(k), trainer.x[rows], trainer.y[rows]) for k, rows in enumerate(trainer.members)]
    n_visits = 0

    @torch.inference_mode()
    def visit() -> None:
        nonlocal n_visits
        schedule.visit(batches[n_visits % len(batches)], 1 + n_visits // len(batches))
        n_visits += 1

    for _ in range(WARM_UP):
        visit()
    return visit


def cost_row(
    name: str,
    layers: Callable[[], list[Layer]],
    shape: Sequence[int],
    batch_size: int,
    *,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Milliseconds and ratios of one network."""
    generator = torch.Generator().manual_seed(0)
    n = N_BATCHES * batch_size
    x, y = torch.randn(n, *shape, generator=generator), torch.randint(0, 10, (n,), generator=generator)
    network = bmp.Network(layers(), bmp.Argmax(), input_shape=shape)
    trainer = bmp.Trainer(network, x, y, batch_size=batch_size)
    trainer.run(1, progress=False)  # leaves a joint belief to predict with
    rows, labels = x[:batch_size], y[:batch_size]
    step, model = adamw_step(layers(), rows, labels)
    with kept_memory():  # as Trainer.run has it
        visit, adamw = alternating_medians([visits(trainer), step], repeats=repeats, clock=clock)

    moments = bmp.Network(layers(), bmp.Regression(1.0), input_shape=shape)  # its predictions are means and variances

    @torch.no_grad()
    def plain() -> None:
        model(rows)

    calls: list[Callable[[], object]] = [
        lambda: moments.predict(rows, joint=False),
        lambda: network.predict(rows, joint=False),
        lambda: network.predict(rows),
        plain,
    ]
    of_moments, of_classes, joint, forward = alternating_medians(calls, repeats=repeats, clock=clock)
    return {
        "network": name,
        "batch": batch_size,
        "visit, ms": 1e3 * visit,
        "AdamW step, ms": 1e3 * adamw,
        "visit / step": visit / adamw,
        "plain pass, ms": 1e3 * forward,
        "means and variances / pass": of_moments / forward,
        "classes / pass": of_classes / forward,
        "joint belief / pass": joint / forward,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("cpu", __doc__)
    parser.set_defaults(device="cpu", threads=1)
    parser.add_argument("--repeats", type=int, default=15, help="timings of each call, of which the median counts")
    parser.add_argument("--clock", default="wall", choices=list(CLOCKS), help="cpu: time of the process, beside others")
    parser.add_argument("--backend", default="auto", choices=kernels.BACKENDS, help="of the element-wise equations")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    options = parser.parse_args(argv)
    if options.device != "cpu":
        parser.error("this benchmark is about CPUs; `scaling` measures on a GPU")
    _, report = begin("cpu", options)
    kernels.set_backend(options.backend)
    rows = []
    for name in options.networks:
        layers, shape, batch_size = NETWORKS[name]
        rows.append(cost_row(name, layers, shape, batch_size, repeats=options.repeats, clock=CLOCKS[options.clock]))
    threads, backend = torch.get_num_threads(), kernels.backend_in_use()
    print(f"\n{threads} {'thread' if threads == 1 else 'threads'}, backend {backend!r}")
    report.save("threads", threads)
    report.save("backend", backend)
    report.show("costs", rows)


if __name__ == "__main__":
    main()
