"""What a visit costs: against batch size, width, depth and data size, by kind of work, and by layer.

The data are random numbers: costs do not depend on what is learned. AdamW's step beside it is the eager one.
"""

from __future__ import annotations

import functools
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

import bayesmp as bmp
from bayesmp.layers.base import Layer, Local
from benchmarks.baselines import train_adamw
from benchmarks.networks import cifar10_cnn, mlp, mnist_cnn
from benchmarks.options import begin, new_parser
from benchmarks.ours import train_ours
from benchmarks.runs import GIGABYTE

KINDS = {  # kind of work: parts of the names of operations and kernels; the first kind that fits counts
    "factorisation": ("cholesky", "potr", "trsm", "trtri", "linalg", "inverse", "eig", "triangular", "syevd", "solve"),
    "convolution, matmul": (
        *(
            "conv",
            "gemm",
            "aten::mm",
            "addmm",
            "bmm",
            "matmul",
            "cutlass",
            "cudnn",
            "mkldnn",
            "fprop",
            "dgrad",
            "wgrad",
        ),
        *("xmma", "winograd", "einsum", "gemv", "syrk", "nvjet", "im2col", "col2im", "unfold", "fold"),
    ),
    "copies": ("copy", "cat", "index", "memcpy", "memset", "scatter", "gather", "to_copy", "clone", "contiguous"),
    "element-wise": (
        *("elementwise", "triton", "reduce", "aten::add", "aten::sub", "aten::mul", "aten::div", "aten::sum", "erf"),
        *("aten::exp", "aten::log", "aten::sqrt", "aten::where", "aten::clamp", "aten::square", "aten::pow", "lerp"),
        *("aten::rsqrt", "aten::neg", "aten::abs", "aten::max", "aten::min", "aten::mean", "sigmoid", "softmax"),
        *("aten::lt", "aten::gt", "aten::le", "aten::ge", "aten::eq", "logical", "bitwise", "isfinite", "reciprocal"),
        *("aten::fill", "aten::zero", "aten::prod", "ndtr", "special", "aten::amax", "aten::any", "aten::all"),
    ),
}
LOCAL_METHODS = ("back", "tangent", "pullback", "gradient", "message_curvature")
N_PROFILED = 2  # epochs


def random_images(n: int, shape: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, *shape, generator=generator)
    return x.to(device), torch.randint(0, 10, (n,), generator=generator).to(device)


def cost_row(layers: Callable[[], list[Layer]], x: Tensor, y: Tensor, batch_size: int, epochs: int) -> dict[str, Any]:
    """Milliseconds per visit and per AdamW step, medians over the epochs but the first, and peak memory."""
    n_batches = -(-len(x) // batch_size)
    ours, network = train_ours(layers(), x, y, epochs=epochs, batch_size=batch_size)
    adamw = train_adamw(layers(), x, y, epochs=epochs, batch_size=batch_size)
    per_visit, per_step = (1e3 * statistics.median(run.epoch_seconds[1:]) / n_batches for run in (ours, adamw))
    peak = ours.peak_bytes
    return {
        "batch": batch_size,
        "data": len(x),
        "weights": network.n_weights,
        "ms/visit": per_visit,
        "ms/AdamW step": per_step,
        "ratio": per_visit / per_step,
        "peak GB": None if peak is None else peak / GIGABYTE,
        "sites GB": ours.site_bytes / GIGABYTE,
    }


def profiled_trainer(layers: Sequence[Layer], x: Tensor, y: Tensor, batch_size: int) -> tuple[Any, int]:
    """A profile of N_PROFILED epochs after a warm-up, with a range around each layer's work; and its visits."""
    network = bmp.Network(layers, bmp.Argmax(), input_shape=x.shape[1:]).to(x.device)
    for index, layer in enumerate(network.layers):
        layer.sweep = _ranged_sweep(f"layer {index}: {layer!r}", layer.sweep)  # type: ignore[method-assign]
    trainer = bmp.Trainer(network, x, y, batch_size=batch_size)
    trainer.schedule.records = False  # a replayed graph never calls the layers' methods
    trainer.run(2, progress=False)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if x.is_cuda else [])
    with profile(activities=activities) as found:
        trainer.run(N_PROFILED, progress=False)
    return found.key_averages(), N_PROFILED * len(trainer.members)


def _ranged_sweep(label: str, sweep: Callable[..., Local]) -> Callable[..., Local]:
    """A layer's sweep with a range around it and around what is done with the `Local` it leaves."""
    ranged: dict[type, type] = {}

    def wrapped(*args: Any, **options: Any) -> Local:
        local = _in_range(label, sweep)(*args, **options)
        cls = type(local)
        if cls not in ranged:
            methods = {name: _in_range(label, getattr(cls, name)) for name in LOCAL_METHODS}
            ranged[cls] = type(cls.__name__, (cls,), methods)
        object.__setattr__(local, "__class__", ranged[cls])
        return local

    return wrapped


def _in_range(label: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def ranged(*args: Any, **options: Any) -> Any:
        with record_function(label):
            return method(*args, **options)

    return ranged


def time_by_kind(events: Any, n_visits: int, *, is_gpu: bool) -> list[dict[str, Any]]:
    """Milliseconds per visit: of kernels on a GPU, of operations themselves on a CPU."""
    totals: dict[str, float] = defaultdict(float)
    for event in events:
        if event.key.startswith("layer "):
            continue
        if is_gpu and event.device_type.name != "CUDA":
            continue
        own = event.self_device_time_total if is_gpu else event.self_cpu_time_total
        totals[kind_of(event.key)] += own / 1e3 / n_visits
    return _with_shares("kind of work", totals)


def kind_of(name: str) -> str:
    """The kind of work of an operation or a kernel, by its name."""
    lowered = name.lower()
    return next((kind for kind, parts in KINDS.items() if any(part in lowered for part in parts)), "other")


def time_by_layer(events: Any, n_visits: int, *, is_gpu: bool) -> list[dict[str, Any]]:
    """Milliseconds per visit inside each layer's equations; heads, step control and sites are not in it."""
    totals: dict[str, float] = defaultdict(float)
    for event in events:
        if event.key.startswith("layer ") and event.device_type.name == "CPU":
            time = event.device_time_total if is_gpu else event.cpu_time_total
            totals[event.key] += time / 1e3 / n_visits
    return _with_shares("layer", dict(sorted(totals.items(), key=lambda pair: int(pair[0].split()[1][:-1]))))


def _with_shares(label: str, totals: dict[str, float]) -> list[dict[str, Any]]:
    whole = sum(totals.values()) or 1.0
    return [{label: name, "ms/visit": value, "%": 100.0 * value / whole} for name, value in totals.items()]


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("scaling", __doc__)
    parser.add_argument("--large", action="store_true", help="sizes for a GPU, and the paper's CIFAR-10 network")
    parser.add_argument("--epochs", type=int, default=3, help="of each measurement; the first is not counted")
    options = parser.parse_args(argv)
    device, report = begin("scaling", options)
    grow = 8 if options.large else 1
    n = 1280 * grow

    def sweep(title: str, cases: Sequence[tuple[Any, Callable[[], list[Layer]], int, int]]) -> None:
        rows = []
        for value, layers, n_data, batch_size in cases:
            x, y = random_images(n_data, (784,), device)
            rows.append({title: value, **cost_row(layers, x, y, batch_size, options.epochs)})
        report.show(title, rows)

    def base() -> list[Layer]:
        return mlp(784, 128 * grow, 128 * grow, 10)

    sweep("batch size", [(size, base, n, size) for size in (16 * grow, 64 * grow, 256 * grow)])
    sweep("width", [(w * grow, partial_mlp(784, w * grow, w * grow, 10), n, 128) for w in (64, 128, 256)])
    sweep("depth", [(d, partial_mlp(784, *[128 * grow] * (d - 1), 10), n, 128) for d in (2, 4, 8)])
    sweep("data size", [(size, base, size, 128) for size in (n // 2, n, 2 * n)])

    layers, shape = (cifar10_cnn(), (3, 32, 32)) if options.large else (mnist_cnn(), (1, 28, 28))
    x, y = random_images(256 * grow, shape, device)
    events, n_visits = profiled_trainer(layers, x, y, 128)
    report.show("by kind of work", time_by_kind(events, n_visits, is_gpu=x.is_cuda))
    report.show("by layer", time_by_layer(events, n_visits, is_gpu=x.is_cuda))


def partial_mlp(*widths: int) -> Callable[[], list[Layer]]:
    return functools.partial(mlp, *widths)


if __name__ == "__main__":
    main()
