"""Run benchmarks: `python -m benchmarks [NAME ...] [options]`; options go to each of the named ones."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence

from benchmarks.datasets import MissingDataError

# about half an hour in all on two cores
FOR_CPU = (
    "cpu",
    "end_to_end",
    "sine",
    "mnist640",
    "robustness",
    "low_data",
    "scaling",
    "between_seeds",
    "truth",
    "honesty",
    "left_out",
    "estimators",
    "stress",
    "gaussian",
    "files",
    "walk",
)
FOR_GPU = ("cifar10", "big_mlp", "sites", "prediction")


def main(argv: Sequence[str]) -> int:
    """Run the named benchmarks, or those for a CPU; returns 1 if data were missing for one."""
    known = (*FOR_CPU, *FOR_GPU)
    first_option = next((k for k, word in enumerate(argv) if word.startswith("-")), len(argv))
    names, options = list(argv[:first_option]), list(argv[first_option:])
    unknown = [name for name in names if name not in known]
    if unknown or (not names and {"-h", "--help"} & set(options)):
        print(f"{__doc__}\nFor a CPU (the default): {', '.join(FOR_CPU)}. Meant for a GPU: {', '.join(FOR_GPU)}.")
        return 2 if unknown else 0
    lacking = []
    for name in names or FOR_CPU:
        started = time.perf_counter()
        try:
            importlib.import_module(f"benchmarks.{name}").main(options)
        except MissingDataError as error:
            lacking.append(name)
            print(
                f"\n{name} did not run: {error}\nOr let the benchmark fetch it: python -m benchmarks {name} --download"
            )
            continue
        print(f"\n{name}: {time.perf_counter() - started:.0f} s", flush=True)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
