"""Split MNIST: five tasks of two digits each, one after the other, and nothing of a task is shown again.

    python examples/split_mnist.py      # both settings: two minutes on one core; --setting domain: one
    python examples/split_mnist.py --images 2000 --epochs 20

Two settings are usual (van de Ven and Tolias, 2019). "domain": one question for all tasks, is the digit odd? Two
outputs. "class": which digit is it? Ten outputs, and in each task only two of the classes are seen. Nobody is told the
task of a test image. Rows of the table:

    as_prior        our network; each task starts with `as_prior()` of the one before
    start           our network; each task starts at the means of the one before, with the first prior
    AdamW           the same network in PyTorch, trained on by AdamW
    AdamW, memory   the same, and every batch has as many images of the past: as many are kept, with their labels, as
                    `as_prior` keeps inputs in its belief (here at most 1,024)
    all at once     our network, all tasks together: what there is to reach

Images are 14 x 14, means of 2 x 2 pixels. Without MNIST (BAYESMP_DATA names its folder) scikit-learn's digits are used.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import bayesmp as bmp
from bayesmp.belief import MAX_RANK
from bayesmp.data import standardise

TASKS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
SETTINGS = ("domain", "class")
METHODS = ("as_prior", "start", "AdamW", "AdamW, memory", "all at once")
Data = tuple[Tensor, Tensor]  # images (n, pixels) and digits (n,)
Scores = list[list[float]]  # after each task, the accuracy on each task


@dataclass(frozen=True)
class Setting:
    """What is asked, and of which network."""

    name: str
    n_pixels: int
    hidden: int
    epochs: int
    seed: int

    @property
    def n_outputs(self) -> int:
        return 2 if self.name == "domain" else 10

    def targets(self, digits: Tensor) -> Tensor:
        return digits % 2 if self.name == "domain" else digits

    def network(self) -> bmp.Network:
        layers = [bmp.Linear(self.n_pixels, self.hidden), bmp.LeakyReLU(), bmp.Linear(self.hidden, self.n_outputs)]
        return bmp.Network(layers, bmp.Argmax(), seed=self.seed)

    def module(self) -> nn.Sequential:
        torch.manual_seed(self.seed)
        middle = nn.LeakyReLU(0.1)
        return nn.Sequential(nn.Linear(self.n_pixels, self.hidden), middle, nn.Linear(self.hidden, self.n_outputs))


# --- data ------------------------------------------------------------------------------------------------------------


def load(n_images: int) -> tuple[list[Data], list[Data], str]:
    """Training and test data of each task, n_images for training, and the name of the set."""
    sys.path.append(str(Path(__file__).parents[1]))  # where benchmarks/ lies
    from benchmarks.datasets import MissingDataError, mnist

    try:
        found = mnist()
        pairs = [(found.x_train, found.y_train), (found.x_test, found.y_test)]
        images = [nn.functional.avg_pool2d(torch.tensor(x).float(), 2).flatten(1) for x, _ in pairs]
        digits = [torch.tensor(y) for _, y in pairs]
        name = "MNIST"
    except MissingDataError:
        from sklearn.datasets import load_digits

        x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        halves = order.tensor_split([len(x) * 2 // 3])
        images, digits = [x[rows].float() for rows in halves], [y[rows] for rows in halves]
        name = "scikit-learn's digits"
    images = list(standardise(*images, per_feature=False))
    train, test = ([_only(x, y, task) for task in TASKS] for x, y in zip(images, digits, strict=True))
    return [(x[:n_images], y[:n_images]) for x, y in train], test, name


def _only(x: Tensor, digits: Tensor, task: Sequence[int]) -> Data:
    rows = (digits[:, None] == torch.tensor(task)).any(1)
    return x[rows], digits[rows]


def joined(parts: Sequence[Data]) -> Data:
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


# --- methods ---------------------------------------------------------------------------------------------------------


def learn(network: bmp.Network, data: Data, setting: Setting) -> bmp.Network:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="training was not at rest")
        bmp.fit(network, data[0], setting.targets(data[1]), epochs=setting.epochs, seed=setting.seed, progress=False)
    return network


def with_as_prior(tasks: Sequence[Data], score: Callable[..., list[float]], setting: Setting) -> Scores:
    network, found = setting.network(), []
    for k, data in enumerate(tasks):
        network = learn(network if k == 0 else network.as_prior(), data, setting)
        found.append(score(lambda x, net=network: net.predict(x).label))
    return found


def with_start(tasks: Sequence[Data], score: Callable[..., list[float]], setting: Setting) -> Scores:
    network, found = setting.network(), []
    for k, data in enumerate(tasks):
        means, network = network.marginal.mean.double(), setting.network()
        network.start = network.start if k == 0 else means
        network = learn(network, data, setting)
        found.append(score(lambda x, net=network: net.predict(x).label))
    return found


def all_at_once(tasks: Sequence[Data], score: Callable[..., list[float]], setting: Setting) -> Scores:
    network = learn(setting.network(), joined(tasks), setting)
    return [score(lambda x: network.predict(x).label)] * len(tasks)


def with_adamw(
    tasks: Sequence[Data], score: Callable[..., list[float]], setting: Setting, *, n_kept: int = 0
) -> Scores:
    """AdamW, 1e-3, batches of 32; n_kept images of all tasks before are shown again, as many of each task."""
    module, found = setting.module(), []
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(setting.seed)
    for k, (x, digits) in enumerate(tasks):
        kept = [(old[: n_kept // k], y[: n_kept // k]) for old, y in tasks[:k]] if n_kept else []
        for _ in range(setting.epochs):
            for rows in torch.randperm(len(x), generator=generator).split(32):
                shown = [(x[rows], digits[rows])]
                if kept:
                    old, y = joined(kept)
                    again = torch.randint(len(old), (len(rows),), generator=generator)
                    shown.append((old[again], y[again]))
                inputs, labels = joined(shown)
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(inputs), setting.targets(labels)).backward()
                optimiser.step()
        with torch.no_grad():
            found.append(score(lambda x: module(x).argmax(1)))
    return found


def run(setting: Setting, train: Sequence[Data], test: Sequence[Data]) -> dict[str, Scores]:
    """Accuracies of all methods; says how long each took."""

    def score(label: Callable[[Tensor], Tensor]) -> list[float]:
        return [float((label(x) == setting.targets(y)).float().mean()) for x, y in test]

    kept = min(MAX_RANK, setting.n_outputs * sum(len(x) for x, _ in train))
    calls: dict[str, Callable[[], Scores]] = {
        "as_prior": lambda: with_as_prior(train, score, setting),
        "start": lambda: with_start(train, score, setting),
        "AdamW": lambda: with_adamw(train, score, setting),
        "AdamW, memory": lambda: with_adamw(train, score, setting, n_kept=kept),
        "all at once": lambda: all_at_once(train, score, setting),
    }
    found = {}
    for name in METHODS:
        began = time.perf_counter()
        found[name] = calls[name]()
        print(row(name, found[name][-1]) + f"{time.perf_counter() - began:8.1f}", flush=True)
    return found


# --- table and picture -----------------------------------------------------------------------------------------------


def heading() -> str:
    return f"{'accuracy after the last task':<30}mean" + "".join(f"{a}/{b}".rjust(7) for a, b in TASKS) + " seconds"


def row(name: str, accuracies: Sequence[float]) -> str:
    return f"{name:<30}{np.mean(accuracies):.3f}" + "".join(f"{part:7.3f}" for part in accuracies)


def draw(results: dict[str, dict[str, Scores]], title: str, path: Path) -> None:
    """Mean accuracy over the tasks seen so far, after each of them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from bayesmp.plots import SERIES

    figure, panels = plt.subplots(1, len(results), figsize=(4.5 * len(results), 3.6), sharey=True, squeeze=False)
    for ax, (name, scores) in zip(panels[0], results.items(), strict=True):
        for (method, found), colour in zip(scores.items(), itertools.cycle(SERIES)):
            if method == "all at once":
                ax.axhline(float(np.mean(found[-1])), color=SERIES[-1], linestyle="--", label=method)
                continue
            means = [float(np.mean(after[: k + 1])) for k, after in enumerate(found)]
            ax.plot(range(1, len(means) + 1), means, marker="o", color=colour, label=method)
        ax.set(title=f"{name}-incremental", xlabel="tasks seen", xticks=range(1, len(TASKS) + 1), ylim=(0.0, 1.02))
    panels[0, 0].set_ylabel("accuracy on them")
    panels[0, 0].legend(fontsize=8, loc="lower left")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, Scores]]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--setting", choices=(*SETTINGS, "both"), default="both")
    parser.add_argument("--images", type=int, default=200, help="training images per task")
    parser.add_argument("--epochs", type=int, default=8, help="per task")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, default=Path("split_mnist.png"))
    options = parser.parse_args(arguments)
    train, test, name = load(options.images)
    results = {}
    for which in SETTINGS if options.setting == "both" else (options.setting,):
        setting = Setting(which, train[0][0].shape[1], options.hidden, options.epochs, options.seed)
        print(f"\n{name}, {which}-incremental, at most {options.images} images per task\n{heading()}")
        results[which] = run(setting, train, test)
    draw(results, f"split {name}", options.picture)
    print(f"\npicture: {options.picture}")
    return results


if __name__ == "__main__":
    main()
