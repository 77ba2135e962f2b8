"""Command-line options that the benchmarks share."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.datasets import Source
from benchmarks.tables import Report


def new_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, ..., or auto: a GPU if there is one")
    parser.add_argument("--threads", type=int, help="CPU threads; torch's choice if not given")
    parser.add_argument("--out", type=Path, help="JSON file for the results; default: benchmarks/outputs/NAME.json")
    return parser


def add_data_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, help="default: $BAYESMP_DATA, else ~/.cache/bayesmp")
    parser.add_argument("--cache", type=Path, help="folder for decoded arrays, which load at once the next time")
    parser.add_argument("--download", action="store_true", help="fetch data that are not there")


def data_source(options: argparse.Namespace) -> Source:
    return Source(data_dir=options.data_dir, cache=options.cache, download=options.download)


def begin(name: str, options: argparse.Namespace) -> tuple[torch.device, Report]:
    """Set the threads, find the device, open the report."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    wanted = options.device
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted)
    return device, Report(options.out, name, device, vars(options))
