"""The factor graph scalar by scalar, the same messages layer by layer, and the two schedules: seconds per example."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bayesmp as bmp
from bayesmp.messages.gaussian import Gaussian
from bayesmp.training.schedules.sequential import SequentialVisit
from benchmarks.networks import LEAK, mlp
from experiments.base import Experiment, Options, Picture, Piece, Record, Result, Table, select
from experiments.palette import colour, new_figure, tidy
from tests.oracle import OracleNetwork, pair, split

WIDTHS = ((1, 16, 16, 1), (13, 50, 1), (100, 100, 10), (784, 100, 10))
NETWORKS = {"-".join(map(str, widths)): widths for widths in WIDTHS}
METHODS = {"graph": "scalar graph", "sequential": "sequential", "parallel": "ours"}  # name -> in the palette
TITLES = {"graph": "scalar graph", "sequential": "layers, one example at a time", "parallel": "layers, whole batches"}
BATCH_SIZE = 128
N_EXAMPLES = {"graph": 2, "sequential": 40, "parallel": 8 * BATCH_SIZE}
N_EPOCHS = 50
TICKS = (0.001, 0.01, 0.1, 1, 10, 100, 1000, 10_000)  # ms
NOISE_VAR = 0.1


class TimedTrainer(bmp.Trainer):
    """Keeps the processor's seconds of the sweeps of each epoch, without those of the joint belief after it."""

    def __init__(self, *data: Any, **settings: Any) -> None:
        super().__init__(*data, **settings)
        self.sweep_seconds: list[float] = []

    def _run_epoch(self, epoch: int, bar: Any) -> None:
        started = time.process_time()
        super()._run_epoch(epoch, bar)
        self.sweep_seconds.append(time.process_time() - started)


class Graph(Experiment):
    name = "graph"
    title = "From a graph of scalars to layers and batches: seconds per example"
    about = (
        "The same network and the same messages in three forms, each for a sweep out and back on the CPU with one "
        "thread: an explicit factor graph with an object per scalar, in Python (the one that the tests compare the "
        f"library with); the sequential schedule; the parallel schedule in batches of {BATCH_SIZE}. Random data of "
        "order one."
    )
    parts = tuple(METHODS)
    version = 2  # seconds of the processor, which other work on the machine does not lengthen
    seeds = 3
    quick_seeds = 1

    def pieces(self, options: Options) -> list[Piece]:
        networks = list(NETWORKS)[:2] if options.quick else list(NETWORKS)
        return [
            Piece(
                f"{network}, {method}, run {run}",
                {"network": network, "method": method, "run": run, "n": N_EXAMPLES[method]},
            )
            for network in networks
            for method in self.chosen_parts(options)
            for run in range(self.n_seeds(options))
        ]

    def compute(self, parameters: Mapping[str, Any], options: Options) -> Record:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._time(parameters)
        finally:
            torch.set_num_threads(threads)

    def _time(self, parameters: Mapping[str, Any]) -> Record:
        widths, n, seed = NETWORKS[parameters["network"]], parameters["n"], parameters["run"]
        network = bmp.Network(mlp(*widths), bmp.Regression(NOISE_VAR), seed=seed)
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(n, widths[0], generator=generator)
        y = torch.randn(n, widths[-1], generator=generator)
        found: Record = {"weights": network.n_weights}
        if parameters["method"] == "graph":
            seconds, scalar = time_graph(network, x, y)
            ours = visit_in_order(network.to(torch.float64), x.double(), y.double())
            gap = (scalar.mean - ours.mean).abs() * ours.rho.sqrt()
            return found | {"seconds_per_example": seconds, "largest_difference": float(gap.max())}
        if parameters["method"] == "sequential":
            visit_in_order(network, x[:2], y[:2])  # loads what is loaded on first use
            started = time.process_time()
            visit_in_order(network, x, y)
            return found | {"seconds_per_example": (time.process_time() - started) / n}
        trainer = TimedTrainer(network, x, y, batch_size=BATCH_SIZE, seed=seed)
        started = time.process_time()
        trainer.run(N_EPOCHS, progress=False)
        in_all = (time.process_time() - started) / N_EPOCHS
        return found | {
            "seconds_per_example": statistics.median(trainer.sweep_seconds) / n,
            "seconds_with_belief": in_all / n,
        }

    def summarise(self, results: Sequence[Result]) -> list[Table]:
        rows = []
        for network in dict.fromkeys(result["network"] for result in results):
            found = {m: select(results, network=network, method=m) for m in METHODS}
            seconds = {m: _median(own) if own else None for m, own in found.items()}
            row: dict[str, Any] = {"network": network}
            row["weights"] = f"{next(r for r in results if r['network'] == network)['weights']:,}"
            row |= {f"{TITLES[m]}, ms": None if value is None else 1000 * value for m, value in seconds.items()}
            if found["parallel"]:
                row["with the joint belief, ms"] = 1000 * _median(found["parallel"], "seconds_with_belief")
            if seconds["graph"] and seconds["sequential"]:
                row["graph / one at a time"] = seconds["graph"] / seconds["sequential"]
            if seconds["graph"] and seconds["parallel"]:
                row["graph / batches"] = round(seconds["graph"] / seconds["parallel"])
            gaps = [result["largest_difference"] for result in select(results, network=network, method="graph")]
            row["largest difference, std"] = max(gaps) if gaps else None
            rows.append(row)
        note = (
            "Milliseconds of the processor per example, median over runs. Of batches: sweeps, the median epoch of "
            f"{N_EPOCHS}; and all of these {N_EPOCHS} epochs by their number, with the joint belief that is made anew "
            "between some of them and at the end. Difference: of posterior means between the scalar graph and the "
            "sequential schedule in float64, in posterior standard deviations. The paper saw a factor of 300 between "
            "its explicit graph and its layers."
        )
        return [Table(self.title, rows, note)]

    def draw(self, results: Sequence[Result], folder: Path) -> list[Picture]:
        figure = new_figure(6.6, 3.3)
        ax = figure.subplots()
        networks = list(dict.fromkeys(result["network"] for result in results))
        for method, key in METHODS.items():
            found = [select(results, network=network, method=method) for network in networks]
            places = [k for k, own in enumerate(found) if own]
            shown = [1000 * _median(own) for own in found if own]
            ax.plot(places, shown, "o-", color=colour(key), label=TITLES[method])
        ax.set_yscale("log")
        low, high = ax.get_ylim()
        ticks = [tick for tick in TICKS if low <= tick <= high]
        ax.set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        ax.set_xticks(range(len(networks)), labels=networks)
        tidy(ax, xlabel="network", ylabel="ms per example")
        ax.legend(frameon=False)
        figure.savefig(folder / "seconds.png")
        n_runs = len({result["run"] for result in results})
        return [
            Picture(
                "seconds.png",
                f"A sweep out and back on one thread; milliseconds of the processor, medians of {n_runs} runs.",
            )
        ]


def time_graph(network: bmp.Network, x: Tensor, y: Tensor) -> tuple[float, Gaussian]:
    """Seconds per example of one round of the scalar graph, building it not counted, and its posterior."""
    double = bmp.Network(network.layers, network.head, seed=network.seed).to(torch.float64)
    taus, rhos = double.unpack(double.prior.tau), double.unpack(double.prior.rho)
    prior = [
        {name: pair(tau[name].tolist(), rho[name].tolist()) for name in tau} or None
        for tau, rho in zip(taus, rhos, strict=True)
    ]
    widths = [layer.n_in for layer in double.layers if isinstance(layer, bmp.Linear)] + [double.n_outputs]
    specs: list[tuple[Any, ...]] = []
    for n_in, n_out in pairwise(widths):
        specs += [("linear", n_in, n_out, True), ("lrelu", LEAK)]
    graph = OracleNetwork(layers=specs[:-1], head=("regression", NOISE_VAR), prior=prior)
    rows, targets = x.double().tolist(), y.double().tolist()
    gc.collect()
    gc.disable()  # objects by the million: looking for those to be freed takes as long as the messages, now and then
    try:
        started = time.process_time()
        graph.visit(None, rows, targets, orders=[])
        built = time.process_time()
        _, posterior = graph.visit(None, rows, targets, orders=[list(range(len(x)))])
        seconds = time.process_time() - built - (built - started)
    finally:
        gc.enable()
    parts = [split(posterior[slot.layer][slot.name]) for slot in double.slots]
    tau, rho = (torch.cat([torch.tensor(p[k], dtype=torch.float64).reshape(-1) for p in parts]) for k in (0, 1))
    return seconds / len(x), Gaussian(tau, rho)


@torch.inference_mode()
def visit_in_order(network: bmp.Network, x: Tensor, y: Tensor) -> Gaussian:
    """The posterior after one round of the sequential schedule through all examples in one batch."""
    visit = SequentialVisit(network, network.prior, x, y, network.head_log_weights)
    visit.iterate(list(range(len(x))))
    return visit.marginal


def _median(results: Sequence[Result], name: str = "seconds_per_example") -> float:
    return statistics.median(result[name] for result in results)
