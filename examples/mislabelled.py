"""Find mislabelled digits with `trainer.influence`, then mend or remove them, without training from the start.

    python examples/mislabelled.py --picture mislabelled.png

A tenth of the labels of scikit-learn's digits are made wrong. A network is trained on them; the labels that surprise it
most, given all other data, are shown to somebody who knows (here: the true labels), and mended. In a copy of the run,
the same examples are removed. Both go on for some epochs, and the held-out scores are compared with those of labels
that were right from the start.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

import bayesmp as bmp

N_CLASSES = 10
SHOWN = 24  # digits in the picture


@dataclass(frozen=True)
class Digits:
    """Images (n, 64) with true labels, the labels that training is given, and others that are held out."""

    x: Tensor
    truth: Tensor
    labels: Tensor
    x_held_out: Tensor
    y_held_out: Tensor


@dataclass(frozen=True)
class Result:
    """What was found, and what it was good for.

    Attributes:
        suspects: ids of the most surprising examples, as many as labels are wrong.
        found: share of the suspects whose labels are wrong; of a random choice it would be the share of wrong labels.
        nll, accuracy: on held-out digits, by what was done.
    """

    suspects: Tensor
    found: float
    nll: dict[str, float]
    accuracy: dict[str, float]


def digits(n_train: int, share_wrong: float, *, seed: int = 0) -> Digits:
    """Digits of which a share of the training labels is another class, drawn at random."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images))
    x, y = torch.tensor(images[order] / 8.0 - 1.0, dtype=torch.float32), torch.tensor(labels[order])
    wrong = torch.from_numpy(rng.permutation(n_train)[: round(share_wrong * n_train)])
    given = y[:n_train].clone()
    given[wrong] = (given[wrong] + torch.from_numpy(rng.integers(1, N_CLASSES, len(wrong)))) % N_CLASSES
    return Digits(x[:n_train], y[:n_train], given, x[n_train:], y[n_train:])


def train(data: Digits, labels: Tensor, *, hidden: int, epochs: int) -> bmp.Trainer:
    """A network with one hidden layer, trained on these labels."""
    layers = [bmp.Linear(64, hidden), bmp.LeakyReLU(), bmp.Linear(hidden, N_CLASSES)]
    trainer = bmp.Trainer(bmp.Network(layers, bmp.Argmax()), data.x, labels, batch_size=32)
    trainer.run(epochs, progress=False)
    return trainer


def study(data: Digits, *, hidden: int, epochs: int, more_epochs: int) -> Result:
    """Find suspects, mend them, remove them, and compare."""
    nll: dict[str, float] = {}
    accuracy: dict[str, float] = {}

    def score(name: str, trainer: bmp.Trainer) -> None:
        prediction = trainer.network.predict(data.x_held_out)
        nll[name] = -float(prediction.log_prob(data.y_held_out).mean())
        accuracy[name] = float((prediction.label == data.y_held_out).double().mean())

    mended = train(data, data.labels, hidden=hidden, epochs=epochs)
    score("wrong labels", mended)
    n_wrong = int((data.labels != data.truth).sum())
    suspects = mended.influence().top(n_wrong)  # the most surprising given all others; ids count the rows of data.x
    with tempfile.TemporaryDirectory() as folder:
        mended.save(Path(folder) / "run")
        removed = bmp.Trainer.load(Path(folder) / "run", mended.x, mended.y)
    mended.replace(suspects, data.x[suspects], data.truth[suspects])
    mended.run(more_epochs, progress=False)
    score("suspects mended", mended)
    removed.remove(suspects)
    score("suspects removed", removed)
    removed.run(more_epochs, progress=False)
    score("suspects removed, settled", removed)
    score("right from the start", train(data, data.truth, hidden=hidden, epochs=epochs))
    found = float((data.labels != data.truth)[suspects].double().mean())
    return Result(suspects, found, nll, accuracy)


def draw(data: Digits, suspects: Tensor, path: Path) -> None:
    """The most surprising digits, with the labels they were given; wrong ones in orange, with the true label."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, SHOWN // 3, figsize=(SHOWN // 3 * 1.0, 3.9), layout="constrained")
    for ax in axes.flat:
        ax.axis("off")
    for ax, k in zip(axes.flat, suspects.tolist(), strict=False):
        given, truth = int(data.labels[k]), int(data.truth[k])
        ax.imshow(data.x[k].reshape(8, 8).numpy(), cmap="gray_r")
        title = f"{given}" if given == truth else f"{given}, is {truth}"
        ax.set_title(title, fontsize=9, color="#22262b" if given == truth else "#d9730d")
    figure.suptitle("Most surprising given all other digits, with the label given", fontsize=10)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description="Find mislabelled digits, and mend or remove them.")
    parser.add_argument("--n-train", type=int, default=600, help="training digits (default: 600 of 1797)")
    parser.add_argument("--wrong", type=float, default=0.1, help="share of wrong labels (default: 0.1)")
    parser.add_argument("--hidden", type=int, default=32, help="hidden units (default: 32)")
    parser.add_argument("--epochs", type=int, default=10, help="epochs before the search (default: 10)")
    parser.add_argument("--more-epochs", type=int, default=6, help="epochs after it (default: 6)")
    parser.add_argument("--picture", type=Path, help="file for a picture of the most surprising digits")
    options = parser.parse_args(arguments)
    data = digits(options.n_train, options.wrong)
    result = study(data, hidden=options.hidden, epochs=options.epochs, more_epochs=options.more_epochs)
    print(f"of the {len(result.suspects)} most surprising labels {result.found:.0%} are wrong")
    print(f"{'held-out digits':<28}{'NLL':>8}{'accuracy':>10}")
    for name, nll in result.nll.items():
        print(f"{name:<28}{nll:>8.3f}{result.accuracy[name]:>10.3f}")
    if options.picture is not None:
        draw(data, result.suspects, options.picture)
        print(f"picture: {options.picture}")
    return result


if __name__ == "__main__":
    main()
