"""MNIST with few images: accuracy and NLL on the whole test set, ours against AdamW and IVON, as a table and a plot.

All methods see the same images in batches of the same size for the same number of epochs, which is larger for smaller
sets so that each has a minimum of steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayesmp import plots
from benchmarks.baselines import has_ivon, train_adamw, train_ivon
from benchmarks.evaluation import class_scores
from benchmarks.networks import mnist_mlp
from benchmarks.options import add_data_options, begin, data_source, new_parser
from benchmarks.ours import train_ours
from benchmarks.runs import Run
from benchmarks.tables import mean_row

SIZES = (80, 160, 320, 640, 1280, 2560, 5120)


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("low_data", __doc__)
    add_data_options(parser)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200, help="least number of steps of a run; see also --min-epochs")
    parser.add_argument("--min-epochs", type=int, default=10)
    parser.add_argument("--plot", type=Path, help="picture to draw; default: beside the JSON file")
    options = parser.parse_args(argv)
    device, report = begin("low_data", options)
    source = data_source(options)
    with_ivon = has_ivon()
    if not with_ivon:
        print("IVON is left out: the package ivon-opt is not installed")

    runs: list[dict[str, Any]] = []
    for size in options.sizes:
        images = source.mnist(device, limit=size)
        epochs = max(options.min_epochs, math.ceil(options.steps / math.ceil(size / options.batch_size)))
        for seed in range(options.seeds):
            shared: dict[str, Any] = {"epochs": epochs, "batch_size": options.batch_size, "seed": seed}
            data = (mnist_mlp(), images.x_train, images.y_train)
            found: list[Run] = [train_ours(*data, **shared)[0], train_adamw(*data, **shared)]
            found += train_ivon(*data, **shared) if with_ivon else []
            for run in found:
                scores = class_scores(run.predict(images.x_test), images.y_test)
                row = {"images": size, "method": run.name, "seed": str(seed), "epochs": epochs}
                runs.append({**row, **scores, "seconds": run.seconds})
            report.save("runs", runs)
        print(f"  {size} images done", flush=True)
    rows = summarise(runs)
    report.show("summary", rows)
    ahead = [row["images"] for row in rows if row["method"] == "ours" and _is_best(row, rows)]
    print(f"ours has the lowest NLL with {ahead} of {options.sizes} images")
    draw(rows, options.plot or report.path.with_suffix(".png"))


def summarise(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds, by size and method."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["images"], run["method"]), []).append(run)
    means = {key: mean_row(group, method=key[1]) for key, group in groups.items()}
    return [
        {"images": size, **mean, "epochs": int(mean["epochs"])} | {"images": size} for (size, _), mean in means.items()
    ]


def _is_best(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> bool:
    return all(row["NLL"] <= other["NLL"] for other in rows if other["images"] == row["images"])


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """NLL and accuracy against the number of images, one line per method."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    for ax, name in zip(figure.subplots(1, 2), ("NLL", "accuracy"), strict=True):
        for method, colour in zip(dict.fromkeys(row["method"] for row in rows), plots.SERIES, strict=False):
            own = [row for row in rows if row["method"] == method]
            ax.plot([row["images"] for row in own], [row[name] for row in own], "o-", color=colour, label=method)
        ax.set_xscale("log", base=2)
        ax.set_xticks(
            sorted({row["images"] for row in rows}), labels=sorted({str(row["images"]) for row in rows}, key=int)
        )
        ax.set_xlabel("training images")
        ax.set_ylabel(f"test {name}")
        ax.grid(alpha=0.25)
    figure.axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
