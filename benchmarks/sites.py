"""What sites cost where they live: an epoch with sites on the host or on disk, over one with sites on the device.

Data are random numbers: costs do not depend on what is learned. An epoch is a visit to every batch, without refreshes
of the joint belief, which do not touch sites. The stores are measured one after the other, since all at once would not
fit into memory; the median of the epochs after the first counts. The first epoch is shown apart: memory of the host is
pinned, and visits are recorded, in it. How far the means end from those of the first store, in posterior std, says that
all stores do the same; a store of few digits ends elsewhere.

`--file-threads 1 2 4` tries several numbers of threads that share a row of sites on disk, for each way (row_file.py),
and shows what the file alone can do with them: rows that are read and written at once, from and to plain memory.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

import bayesmp as bmp
from bayesmp.basics.arithmetic import fast_arithmetic
from bayesmp.messages.gaussian import Gaussian
from bayesmp.sites import row_file
from bayesmp.sites.sites import DTYPES
from benchmarks.networks import mlp
from benchmarks.options import begin, new_parser
from benchmarks.runs import GIGABYTE
from benchmarks.timing import synchronise

STORES = ("device", "host", "disk")
WIDTHS = (784, 2000, 2000, 10)  # 5.6 million weights
LARGE = {"widths": list(WIDTHS), "rows": 60_000, "batch_size": 256}
MOST_ROWS = 64  # for the file alone
SMALL = {"widths": [20, 30, 10], "rows": 400, "batch_size": 50}  # some seconds on a CPU


def random_data(widths: Sequence[int], n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs (n, first width) of order one and labels below the last width."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, widths[0], generator=generator), torch.randint(0, widths[-1], (n,), generator=generator)
    return x.to(device), y.to(device)


def epoch_seconds(trainer: bmp.Trainer, n_epochs: int) -> list[float]:
    """Seconds of each of so many epochs of visits."""
    device, found = trainer.network.device, []
    with torch.inference_mode(), fast_arithmetic(device), tqdm(disable=True) as bar:
        for epoch in range(1, n_epochs + 1):
            synchronise(device)
            started = time.perf_counter()
            trainer._run_epoch(epoch, bar)
            synchronise(device)
            found.append(time.perf_counter() - started)
    return found


def measure(
    widths: Sequence[int], x: Tensor, y: Tensor, *, batch_size: int, n_epochs: int, store: str, dtype: str
) -> tuple[dict[str, Any], Gaussian]:
    """A row of the table, but for what compares it with others; and the posterior, on the host."""
    network = bmp.Network(mlp(*widths), bmp.Argmax(), input_shape=(widths[0],)).to(x.device)
    synchronise(x.device)
    started = time.perf_counter()
    trainer = bmp.Trainer(network, x, y, batch_size=batch_size, site_store=store, site_dtype=dtype)
    synchronise(x.device)
    start = time.perf_counter() - started
    first, *others = epoch_seconds(trainer, n_epochs)
    gap = trainer.check_invariant()
    row = {
        "store": store,
        "dtype": dtype,
        "sites, GB": trainer.sites.plan.n_bytes / GIGABYTE,
        "start, s": start,
        "first epoch, s": first,
        "epoch, s": statistics.median(others),
        "posterior - prior x sites": gap,
    }
    return row, network.marginal.map(lambda part: part.cpu().clone())


@contextmanager
def file_threads(n: int | None) -> Iterator[None]:
    """So many threads share a row of a file, for each way; None leaves it as it is."""
    before = row_file.THREADS
    row_file.THREADS = before if n is None else n
    try:
        yield
    finally:
        row_file.THREADS = before


def file_speed(n_sites: int, n_weights: int, dtype: torch.dtype) -> dict[str, Any]:
    """How fast rows come from a file of sites and go to it, both at once, after each was written once."""
    file = row_file.RowFile((2, n_sites, n_weights), dtype)
    source, target = (torch.ones(2, n_weights, dtype=dtype) for _ in range(2))
    n_bytes = file.tensor.nbytes

    def seconds(*, reads: bool) -> float:
        started = time.perf_counter()
        for row in range(n_sites):
            file.write(row, source)
            if reads:
                file.read((row + n_sites // 2) % n_sites, target)
        file.settle()
        return time.perf_counter() - started

    first, both = seconds(reads=False), seconds(reads=True)
    row = {"file threads": file.n_threads, "first writes, GB/s": n_bytes / first / GIGABYTE}
    file.close()
    return row | {"each way, GB/s": n_bytes / both / GIGABYTE, "rows a second": n_sites / both}


def file_speeds(size: dict[str, Any], threads: Sequence[int], dtypes: Sequence[str]) -> list[dict[str, Any]]:
    """The table of `file_speed`, for some rows of the size of the network's."""
    n_weights = sum((n_in + 1) * n_out for n_in, n_out in itertools.pairwise(size["widths"]))
    n_sites = max(2, min(size["rows"] // size["batch_size"], MOST_ROWS))
    rows = []
    for dtype in dtypes:
        for n in threads:
            with file_threads(n):
                rows.append({"dtype": dtype} | file_speed(n_sites, n_weights, DTYPES[dtype]))
    return rows


def distance(one: Gaussian, other: Gaussian) -> float:
    """Root mean square of how far the means lie apart, in posterior std."""
    return float(((one.mean - other.mean).square() * one.rho).double().mean().sqrt())


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("sites", __doc__)
    parser.add_argument("--stores", nargs="+", default=list(STORES), choices=STORES)
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=list(DTYPES), help="of the sites")
    parser.add_argument("--epochs", type=int, default=4, help="of visits, per store; at least 2")
    parser.add_argument(
        "--file-threads", type=int, nargs="+", help="that share a row on disk, for each way; by the cores"
    )
    parser.add_argument("--small", action="store_true", help="a small network, to try it on a CPU")
    parser.add_argument("--widths", type=int, nargs="+", help=f"of the network; {WIDTHS} if not given")
    parser.add_argument("--rows", type=int, help=f"training examples; {LARGE['rows']} if not given")
    parser.add_argument("--batch-size", type=int, help=f"{LARGE['batch_size']} if not given")
    options = parser.parse_args(argv)
    size: dict[str, Any] = dict(SMALL if options.small else LARGE)
    size |= {name: value for name in size if (value := getattr(options, name)) is not None}
    if options.epochs < 2:
        parser.error("--epochs must be at least 2: the first one is not counted")
    if len(size["widths"]) < 2 or min(*size["widths"], size["rows"], size["batch_size"]) < 1:
        parser.error(f"--widths needs two or more, and all sizes must be positive, got {size}")
    if options.file_threads is not None and min(options.file_threads) < 1:
        parser.error(f"--file-threads must be positive, got {options.file_threads}")
    device, report = begin("sites", options)
    if device.type == "cpu" and not options.small and options.widths is None:
        parser.error("the 5.6-million network is meant for a GPU; try --small, or give --widths, on a CPU")
    x, y = random_data(size["widths"], size["rows"], device)
    rows: list[dict[str, Any]] = []
    first: tuple[float, Gaussian] | None = None
    if "disk" in options.stores and options.file_threads is not None:
        report.show("the file alone", file_speeds(size, options.file_threads, options.dtypes))
    numbers = {"disk": options.file_threads or [None]}
    cases = [
        (place, kind, n) for place in options.stores for kind in options.dtypes for n in numbers.get(place, [None])
    ]
    for store, dtype, n_threads in cases:
        with file_threads(n_threads):
            try:
                row, posterior = measure(
                    size["widths"],
                    x,
                    y,
                    batch_size=size["batch_size"],
                    n_epochs=options.epochs,
                    store=store,
                    dtype=dtype,
                )
            except (ValueError, MemoryError, OSError, torch.cuda.OutOfMemoryError) as error:  # no room for them there
                print(f"{store}, {dtype}: not measured: {str(error).splitlines()[0]}", flush=True)
                continue
            finally:
                gc.collect()
                if device.type == "cuda":
                    torch.cuda.empty_cache()
            first = first or (row["epoch, s"], posterior)
            row[f"over {rows[0]['store'] if rows else store}"] = row["epoch, s"] / first[0]
            if n_threads is not None:
                row["file threads"] = n_threads
            row["off, std"] = distance(first[1], posterior)
            rows.append(row)
            report.show("costs", rows)
    report.save("size", size)
    if not rows:
        parser.exit(
            1, "no store had room for the sites; smaller --widths or --rows, or larger --batch-size, need less\n"
        )


if __name__ == "__main__":
    main()
