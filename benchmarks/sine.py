"""The paper's sine data, four layers of 16: fit and time of ten seeds; one batch of all points against sequential."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

import bayesmp as bmp
from bayesmp.training.schedules.sequential import SequentialVisit
from benchmarks import datasets
from benchmarks.evaluation import all_finite, regression_scores
from benchmarks.networks import sine_mlp
from benchmarks.options import begin, new_parser
from benchmarks.tables import mean_row
from benchmarks.timing import measured

NOISE_VAR = 0.05**2
RMSE_TARGET = 0.11
SECONDS_TARGET = 20.0


def train_sine(
    n_layers: int,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    device: torch.device,
) -> dict[str, Any]:
    """Scores on the 200 training points and on 1,000 fresh ones; the data are the same for all seeds."""
    x, y = (torch.as_tensor(part, dtype=torch.float32) for part in datasets.sine(200))
    network = bmp.Network(sine_mlp(n_layers), bmp.Regression(NOISE_VAR), seed=seed).to(device)
    with measured(device) as cost:
        history = bmp.fit(network, x, y, epochs=epochs, batch_size=batch_size, seed=seed, progress=False)
    row = {"schedule": "parallel", "batch": batch_size, "epochs": epochs, "seed": str(seed), "seconds": cost.seconds}
    return row | _scores(network) | {"worst RMSE after 1/4": max(history.column("rmse")[epochs // 4 :])}


@torch.inference_mode()
def visit_sine(n_layers: int, *, iterations: int, seed: int) -> dict[str, Any]:
    """The paper's way on the same data: one visit to all points at once, one example at a time, so many rounds."""
    x, y = (torch.as_tensor(part, dtype=torch.float32) for part in datasets.sine(200))
    network = bmp.Network(sine_mlp(n_layers), bmp.Regression(NOISE_VAR), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with measured(network.device) as cost:
        visit = SequentialVisit(network, network.prior, x, y[:, None], network.head_log_weights)
        for _ in range(iterations):
            visit.iterate(torch.randperm(len(x), generator=generator).tolist())
    network.marginal = visit.marginal
    row = {"schedule": "sequential", "batch": 200, "epochs": iterations, "seed": str(seed), "seconds": cost.seconds}
    return row | _scores(network)


def _scores(network: bmp.Network) -> dict[str, Any]:
    x, y = (torch.as_tensor(part, dtype=torch.float32) for part in datasets.sine(200))
    x_test, y_test = (torch.as_tensor(part, dtype=torch.float32) for part in datasets.sine(1000, seed=1))
    train, test = regression_scores(network.predict(x), y), regression_scores(network.predict(x_test), y_test)
    finite = all_finite([network.marginal.tau, network.marginal.rho]) and math.isfinite(train["NLL"])
    return {
        **train,
        "test RMSE": test["RMSE"],
        "test NLL": test["NLL"],
        "diverged": not (finite and train["RMSE"] < float(y.std())),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("sine", __doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=400, help="of the runs in batches")
    parser.add_argument("--whole-epochs", type=int, default=600, help="of the runs with all points in one batch")
    parser.add_argument("--iterations", type=int, default=100, help="of the sequential visit; 0 leaves it out")
    parser.add_argument("--compare-seeds", type=int, default=1, help="seeds of the comparison with sequential")
    options = parser.parse_args(argv)
    device, report = begin("sine", options)

    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        run = train_sine(options.layers, epochs=options.epochs, batch_size=options.batch_size, seed=seed, device=device)
        rows.append(run)
        report.save("seeds", rows)
    report.show("seeds", [*rows, mean_row(rows, schedule="mean")])
    good = sum(row["RMSE"] <= RMSE_TARGET and row["seconds"] <= SECONDS_TARGET for row in rows)
    diverged = sum(row["diverged"] for row in rows)
    print(f"RMSE <= {RMSE_TARGET} within {SECONDS_TARGET:g} s: {good} of {len(rows)} seeds; diverged: {diverged}")

    if options.iterations > 0:
        pairs = []
        for seed in range(options.compare_seeds):
            pairs.append(
                train_sine(options.layers, epochs=options.whole_epochs, batch_size=200, seed=seed, device=device)
            )
            pairs.append(visit_sine(options.layers, iterations=options.iterations, seed=seed))
        report.show("one batch of all points", pairs)
        report.show("parallel / sequential", [_ratios(*pairs[k : k + 2]) for k in range(0, len(pairs), 2)])


def _ratios(parallel: dict[str, Any], sequential: dict[str, Any]) -> dict[str, Any]:
    """Of RMSE and time the ratio; of NLL, which may be negative, the difference."""
    return {
        "seed": parallel["seed"],
        "RMSE ratio": parallel["RMSE"] / sequential["RMSE"],
        "NLL difference": parallel["NLL"] - sequential["NLL"],
        "test RMSE ratio": parallel["test RMSE"] / sequential["test RMSE"],
        "test NLL difference": parallel["test NLL"] - sequential["test NLL"],
        "time ratio": parallel["seconds"] / sequential["seconds"],
    }


if __name__ == "__main__":
    main()
