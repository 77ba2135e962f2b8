"""Is the belief right? Epistemic bands against long runs of NUTS: inside the data, near them, far away, in a gap.

Three small networks on one-dimensional data, or with `--cases panel` six others on which nothing was chosen. Reported
is the median over grid points of our epistemic std over that of NUTS, by region, then the median over seeds; and the
root mean square of our error, our mean less NUTS's in units of its std, likewise. Of two classes it is the logit that
is compared, and the probability. Prior variances are NUTS's; its means were those of seed 0, so part of what they
differ by is the prior and not the inference; with `--nuts-means` all seeds have NUTS's. Outside the data the chains of
NUTS differ among themselves (column `chains`), and nothing can be known better than that. The files with NUTS's answers
lie in benchmarks/references, with the script that made them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import bayesmp as bmp
from bayesmp import plots
from bayesmp.messages.gaussian import Gaussian
from benchmarks.options import begin, new_parser
from benchmarks.references import ALL, CASES, FOLDER, PANEL, Case
from benchmarks.timing import measured

BATCH_SIZE = 50
TARGETS = {"inside": (0.8, 1.25), "near": (0.6, 1.7), "far": (0.5, 2.0), "gap": (0.5, 2.0)}  # of std over NUTS's
WHOLE_PANEL = "panel"  # stands for its cases on the command line
WINDOW = 1.5  # how far a picture reaches beyond the data, in ranges of the data


@dataclass(frozen=True, eq=False)
class Reference:
    """A case's training data, and the mean and std of its function f on a grid according to NUTS."""

    case: Case
    x_train: NDArray[np.float64]  # (n, i)
    y_train: NDArray[np.float64]  # (n,)
    grid: NDArray[np.float64]  # (g, i)
    truth: NDArray[np.float64]  # (g,), as all that follow
    f_mean: NDArray[np.float64]
    f_std: NDArray[np.float64]
    chain_means: NDArray[np.float64]  # (chain, g)
    chain_stds: NDArray[np.float64]  # (chain, g)
    rhat: NDArray[np.float64]
    prior_mean: NDArray[np.float64]  # of all weights, as NUTS had it, layer by layer, weights before biases
    prior_std: NDArray[np.float64]
    p_mean: NDArray[np.float64] | None = None  # of class 1, if f is its logit

    @classmethod
    def load(cls, path: Path, case: Case) -> Reference:
        with np.load(path) as stored:
            names = [field.name for field in fields(cls) if field.name in stored.files]
            return cls(case, **{name: stored[name].astype(np.float64) for name in names})

    @property
    def regions(self) -> dict[str, NDArray[np.bool_]]:
        return self.case.regions(self.x_train, self.grid)

    def ratios(self, std: NDArray[np.float64]) -> dict[str, float]:
        """By region, the median over grid points of std (g,) over NUTS's."""
        return {name: float(np.median(std[rows] / self.f_std[rows])) for name, rows in self.regions.items()}

    def errors(self, mean: NDArray[np.float64]) -> dict[str, float]:
        """By region, the root mean square over grid points of mean (g,) less NUTS's, in units of NUTS's std."""
        units = (mean - self.f_mean) / self.f_std
        return {name: _rms(units[rows]) for name, rows in self.regions.items()}

    def probability_errors(self, probs: NDArray[np.float64] | None) -> dict[str, float]:
        """By region, the root mean square over grid points of probs (g,) less NUTS's; empty without classes."""
        if probs is None or self.p_mean is None:
            return {}
        return {name: _rms((probs - self.p_mean)[rows]) for name, rows in self.regions.items()}


def _rms(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(values**2)))


@dataclass(frozen=True, eq=False)
class Answer:
    """What one trained network says about f on the grid."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    seconds: float
    probs: NDArray[np.float64] | None = None  # of class 1, if f is its logit


def train_case(
    reference: Reference, *, epochs: int | str, seed: int, device: torch.device, own_means: bool = True
) -> Answer:
    """Train on the reference's data with the defaults and NUTS's prior variances, predict on its grid.

    Args:
        reference: data, grid and prior.
        epochs, seed, device: of the training.
        own_means: take the prior means that the seed draws, as a user would have them; False takes NUTS's, so that all
            that differs is the inference.
    """
    x, grid = (torch.as_tensor(part, dtype=torch.float32) for part in (reference.x_train, reference.grid))
    y = torch.as_tensor(reference.y_train, dtype=torch.long if reference.case.is_classes else torch.float32)
    network = reference.case.network(seed)
    start, var = network.start, torch.as_tensor(reference.prior_std).square()
    mean = network.prior.mean.double() if own_means else torch.as_tensor(reference.prior_mean)
    network.prior = Gaussian.from_moments(mean, var)
    network.start = start  # training starts as it does by default, not at the prior's means
    network.to(device)
    with measured(device) as cost:
        bmp.fit(network, x, y, epochs=epochs, batch_size=BATCH_SIZE, seed=seed, progress=False)
    found = network.predict(grid)
    if isinstance(found, bmp.ClassPrediction):
        return Answer(*logit_moments(network, grid), cost.seconds, _array(found.probs[:, 1]))
    return Answer(_array(found.mean), np.sqrt(_array(found.epistemic_var)), cost.seconds)


def logit_moments(network: bmp.Network[Any], x: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and std (n,) of the logit of class 1 of two: the link scale times the difference of the outputs."""
    beliefs = list(network.linearised.output_beliefs(x, network.belief))
    difference = torch.tensor([-1.0, 1.0], dtype=torch.float64, device=network.device)
    scale = network.head.logits_per_output(network.head_log_weights)
    mean = torch.cat([m_out.mean.double() @ difference for m_out, _ in beliefs])
    var = torch.cat(
        [difference @ covariance.double() @ difference for _, covariance in beliefs if covariance is not None]
    )
    return scale * _array(mean), scale * np.sqrt(_array(var))


def _array(values: Tensor) -> NDArray[np.float64]:
    return np.asarray(values.double().flatten().cpu().numpy())


def region_rows(name: str, reference: Reference, runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A case's row per region: the ratios' median and range over seeds, beside what was asked for."""
    chains = [reference.ratios(std) for std in reference.chain_stds]
    rows = []
    for region, inside in reference.regions.items():
        ratios = [run[region] for run in runs]
        low, high = TARGETS[region]
        rows.append(
            {
                "case": name,
                "region": region,
                "std / NUTS's": median(ratios),
                "seeds": _range(ratios),
                "target": _range((low, high)),
                "met": low <= median(ratios) <= high,
                "chains": _range([chain[region] for chain in chains]),
                "R-hat": float(np.median(reference.rhat[inside])),
                "NUTS's std": float(np.median(reference.f_std[inside])),
            }
        )
    return rows


def mean_rows(name: str, reference: Reference, answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """A case's row per region: the errors of our means in units of NUTS's std, and those of single chains of NUTS."""
    errors = [reference.errors(answer.mean) for answer in answers]
    chains = [reference.errors(mean) for mean in reference.chain_means]
    of_probs = [reference.probability_errors(answer.probs) for answer in answers]
    rows = []
    for region in reference.regions:
        own = [error[region] for error in errors]
        row: dict[str, Any] = {"case": name, "region": region, "error / NUTS's std": median(own), "seeds": _range(own)}
        row["chains"] = _range([chain[region] for chain in chains])
        if all(of_probs):
            row["error of probabilities"] = median(error[region] for error in of_probs)
        rows.append(row)
    return rows


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3g}–{max(values):.3g}"


def draw(answers: Mapping[str, Answer], references: Mapping[str, Reference], path: Path) -> None:
    """A panel per case of one input: our mean and two std (lines) over NUTS's (filled), without noise."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    answers = {name: answer for name, answer in answers.items() if references[name].grid.shape[1] == 1}
    if not answers:
        print("no picture: none of the cases has one input only")
        return
    figure = Figure(figsize=(3.0 * len(answers), 3.2), layout="constrained")
    for ax, (name, own) in zip(figure.subplots(1, len(answers), squeeze=False)[0], answers.items(), strict=True):
        reference = references[name]
        low, high = reference.x_train.min(), reference.x_train.max()
        reach = WINDOW * (high - low)
        rows = (reference.grid[:, 0] >= low - reach) & (reference.grid[:, 0] <= high + reach)
        x, centre, half = reference.grid[rows, 0], reference.f_mean[rows], 2 * reference.f_std[rows]
        ax.fill_between(x, centre - half, centre + half, color=plots.SOFT, alpha=0.35, lw=0, label="NUTS, 2 std")
        ax.plot(x, centre, color=plots.SOFT, lw=1.4, label="NUTS, mean")
        ax.plot(x, own.mean[rows], color=plots.BLUE, lw=1.4, label="ours, mean")
        for side in (-2, 2):
            edge = own.mean[rows] + side * own.std[rows]
            ax.plot(x, edge, color=plots.BLUE, lw=1.2, ls="--", label="ours, 2 std" if side > 0 else None)
        ax.plot(reference.x_train[:, 0], reference.y_train, ".", color=plots.INK, ms=2.5, alpha=0.6, label="data")
        spare = 0.15 * ((centre + half).max() - (centre - half).min())
        ax.set_ylim((centre - half).min() - spare, (centre + half).max() + spare)  # ours may lie outside of it
        ax.set_xlim(x.min(), x.max())
        ax.set_title(name, fontsize=11)
        ax.set_xlabel("x")
        ax.grid(alpha=0.2)
    figure.axes[0].set_ylabel("f(x)")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, markerscale=3
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"picture: {path}")


def _epochs(word: str) -> int | str:
    return word if word == "auto" else int(word)


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("truth", __doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--epochs", type=_epochs, default=400, help="a number, or auto")
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=[*ALL, WHOLE_PANEL],
        default=list(CASES),
        help=f"{WHOLE_PANEL}: {', '.join(PANEL)}",
    )
    parser.add_argument("--nuts-means", action="store_true", help="all seeds have NUTS's prior means")
    parser.add_argument("--references", type=Path, default=FOLDER, help="folder with NUTS's answers, CASE.npz")
    parser.add_argument("--picture", type=Path, help="where to draw the bands of the first seed over NUTS's")
    options = parser.parse_args(argv)
    options.cases = [case for name in options.cases for case in (PANEL if name == WHOLE_PANEL else [name])]
    lacking = [name for name in options.cases if not (options.references / f"{name}.npz").exists()]
    if lacking:
        parser.error(f"{options.references} lacks {', '.join(f'{name}.npz' for name in lacking)}")
    device, report = begin("truth", options)

    references = {name: Reference.load(options.references / f"{name}.npz", ALL[name]) for name in options.cases}
    runs: list[dict[str, Any]] = []
    regions: list[dict[str, Any]] = []
    means: list[dict[str, Any]] = []
    fits: list[dict[str, Any]] = []
    pictured: dict[str, Answer] = {}
    for name, reference in references.items():
        inside = reference.regions["inside"]
        answers = []
        for seed in range(options.seeds):
            answer = train_case(
                reference, epochs=options.epochs, seed=seed, device=device, own_means=not options.nuts_means
            )
            answers.append(answer)
            rmse = _rms((answer.mean - reference.f_mean)[inside])
            row = {"case": name, "seed": seed, **reference.ratios(answer.std)}
            runs.append(row | {"RMSE to NUTS's mean": rmse, "seconds": answer.seconds})
            report.save("runs", runs)
        own = [run for run in runs if run["case"] == name]
        pictured[name] = answers[0]
        regions += region_rows(name, reference, own)
        means += mean_rows(name, reference, answers)
        fits.append(
            {"case": name} | {key: median(run[key] for run in own) for key in ("RMSE to NUTS's mean", "seconds")}
        )
        print(f"  {name} done", flush=True)
    report.show("runs", runs, ["case", "seed", *TARGETS, "RMSE to NUTS's mean", "seconds"])
    report.show("fits, median over seeds", fits)
    report.show("regions", regions)
    report.show("means", means, ["case", "region", "error / NUTS's std", "seeds", "chains", "error of probabilities"])
    print(f"within the target: {sum(row['met'] for row in regions)} of {len(regions)} regions")
    if options.picture is not None:
        draw(pictured, references, options.picture)


if __name__ == "__main__":
    main()
