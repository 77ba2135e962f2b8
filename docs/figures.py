"""Make the pictures of the guide: `python docs/figures.py`, from the root of the repository.

Pages save their own pictures (docs/pages.py runs them); those of "How it works" are drawn here. One core, two minutes.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("SOURCE_DATE_EPOCH", "0")  # the same picture gives the same file

import matplotlib

matplotlib.use("Agg")

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import bayesmp as bmp
from bayesmp.plots import BLUE, INK, ORANGE, SOFT
from bayesmp.plots.style import finish

DOCS = Path(__file__).resolve().parent
IMAGES = DOCS / "images"
GREEN = "#3b8f5a"
matplotlib.rcParams["svg.hashsalt"] = "bayesmp"


def save(figure: Figure, name: str) -> None:
    figure.savefig(IMAGES / f"{name}.svg")
    print(f"{name}.svg  {(IMAGES / f'{name}.svg').stat().st_size / 1000:.0f} kB")


def box(ax: Any, x: float, y: float, text: str, *, width: float = 1.15, colour: str = "#eef3f9") -> None:
    shape = FancyBboxPatch((x - width / 2, y - 0.3), width, 0.6, boxstyle="round,pad=0.04", fc=colour, ec=SOFT, lw=0.8)
    ax.add_patch(shape)
    ax.text(x, y, text, ha="center", va="center", color=INK, fontsize=9.5)


def arrow(ax: Any, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    ax.annotate(
        "", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.5, "shrinkA": 1, "shrinkB": 1}
    )


def draw_messages() -> None:
    """Boxes of a small network, with the messages in both directions."""
    figure = Figure(figsize=(8.4, 2.9), layout="constrained")
    ax = figure.subplots()
    places = [0.4, 2.6, 4.8, 7.0, 9.2]
    names = ["x", "Linear", "LeakyReLU", "Linear", "head, target y"]
    for x, name in zip(places, names, strict=True):
        box(
            ax,
            x,
            1.0,
            name,
            width=0.5 if name == "x" else 1.35,
            colour="#f6f4ef" if name in ("x", names[-1]) else "#eef3f9",
        )
    for k, (a, b) in enumerate(pairwise(places)):
        left, right = a + (0.33 if k == 0 else 0.76), b - 0.76
        arrow(ax, (left, 1.13), (right, 1.13), BLUE)
        if k > 0:
            arrow(ax, (right, 0.87), (left, 0.87), ORANGE)
    for x in (places[1], places[3]):
        box(ax, x, 2.35, "weights", width=1.0, colour="#f0f6f1")
        arrow(ax, (x - 0.15, 2.0), (x - 0.15, 1.36), BLUE)
        arrow(ax, (x + 0.15, 1.36), (x + 0.15, 2.0), ORANGE)
    ax.plot([], [], color=BLUE, lw=1.8, label="mean and variance")
    ax.plot([], [], color=ORANGE, lw=1.8, label="message: precision × mean, and precision")
    ax.legend(loc="lower center", ncols=2, frameon=False, fontsize=9.5, labelcolor=INK)
    ax.set(xlim=(-0.1, 10.2), ylim=(-0.05, 2.8))
    ax.axis("off")
    save(figure, "how-messages")


def normal(x: np.ndarray, mean: float, std: float) -> np.ndarray:
    return np.exp(-0.5 * ((x - mean) / std) ** 2) / std


def draw_sites() -> None:
    """One weight: the prior, three sites and the posterior; then the second site is replaced."""
    figure = Figure(figsize=(8.4, 2.7), layout="constrained")
    x = np.linspace(-2.6, 3.2, 400)
    sites = [(2.0, 0.9), (-0.9, 0.8), (1.0, 0.7)]
    titles = ("after the first visits", "batch 2 is visited again: its site is replaced")
    for ax, second, title in zip(figure.subplots(1, 2, sharey=True), ((-0.9, 0.8), (0.1, 0.8)), titles, strict=True):
        current = [sites[0], second, sites[2]]
        rho = 1.0 + sum(1 / std**2 for _, std in current)
        mean = sum(centre / std**2 for centre, std in current) / rho
        ax.plot(x, normal(x, 0.0, 1.0), color=SOFT, lw=1.4)
        for k, (centre, std) in enumerate(current):
            colour = ORANGE if k == 1 else GREEN
            ax.plot(x, normal(x, centre, std), color=colour, lw=1.2, dashes=(3, 2))
            ax.text(centre, 1.04 / std, f"{k + 1}", color=colour, ha="center", fontsize=9)
        ax.fill_between(x, normal(x, mean, rho**-0.5), color=BLUE, alpha=0.18, lw=0)
        ax.plot(x, normal(x, mean, rho**-0.5), color=BLUE, lw=1.8)
        ax.set_title(title, fontsize=10, color=INK)
        ax.set(xlabel="a weight", yticks=[], ylim=(0, 2.75))
        finish(ax)
        ax.spines["left"].set_visible(False)
        ax.text(-2.5, 2.3, "prior", color=SOFT, fontsize=9)
        ax.text(-2.5, 2.05, "sites", color=GREEN, fontsize=9)
        ax.text(mean, 2.48, "posterior = prior × sites", color=BLUE, fontsize=9, ha="center")
    save(figure, "how-sites")


def wave(x: np.ndarray) -> np.ndarray:
    return np.sin(3 * x)


def small_network(noise_var: float, seed: int = 0) -> bmp.Network:
    layers = [bmp.Linear(1, 16), bmp.LeakyReLU(), bmp.Linear(16, 16), bmp.LeakyReLU(), bmp.Linear(16, 1)]
    return bmp.Network(layers, bmp.Regression(noise_var), seed=seed)


def draw_beliefs() -> None:
    """Bands of the same network with the joint belief, and with independent weights."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-1.0, -0.4, 60), rng.uniform(0.4, 1.0, 60)])
    y = wave(x) + 0.1 * rng.normal(size=120)
    network = small_network(0.01)
    bmp.fit(network, x[:, None], y, batch_size=30, epochs=150, progress=False)
    grid = np.linspace(-1.4, 1.4, 240)
    figure = Figure(figsize=(8.4, 3.0), layout="constrained")
    for ax, joint in zip(figure.subplots(1, 2, sharey=True), (True, False), strict=True):
        seen = network.predict(grid[:, None], joint=joint)
        mean, std = seen.mean.numpy(), seen.epistemic_var.sqrt().numpy()
        ax.fill_between(grid, mean - 2 * std, mean + 2 * std, color="#c6dbf0", lw=0, label="mean ± 2 epistemic std")
        ax.plot(grid, mean, color=BLUE, lw=1.6)
        ax.plot(grid, wave(grid), color=ORANGE, lw=1.3, dashes=(4, 2.5), label="truth")
        ax.scatter(x, y, s=7, color=INK, alpha=0.5, lw=0)
        ax.set_title("joint belief" if joint else "independent weights", fontsize=10, color=INK)
        ax.set(xlabel="x", ylim=(-2.6, 2.6))
        finish(ax)
    ax.legend(loc="lower right", frameon=False, fontsize=9, labelcolor=INK)
    save(figure, "how-beliefs")


def friedman(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Friedman's first function of five inputs, in units of its spread, with noise of std .2 of it."""
    rng = np.random.default_rng(seed)
    u = rng.uniform(0, 1, (n, 5))
    f = 10 * np.sin(np.pi * u[:, 0] * u[:, 1]) + 20 * (u[:, 2] - 0.5) ** 2 + 10 * u[:, 3] + 5 * u[:, 4]
    return 2 * u - 1, (f - 14.4) / 4.9 + 0.2 * rng.normal(size=n)


def draw_leave_one_out() -> None:
    """NLL of networks trained on more and more rows, by leave-one-out, on fresh rows and on their own."""
    fresh = friedman(3000, seed=1)
    rows = []
    for n in (50, 70, 100, 140, 200, 280, 400, 560, 800):
        each = []
        for seed in range(3):
            x, y = friedman(n, seed=10 + seed)
            network = bmp.Network(
                [bmp.Linear(5, 16), bmp.LeakyReLU(), bmp.Linear(16, 1)], bmp.Regression("learn"), seed=seed
            )
            history = bmp.fit(network, x, y, progress=False)
            scores = [-float(network.predict(part[0]).log_prob(part[1]).mean()) for part in ((x, y), fresh)]
            each.append((history.loo_nll[-1], *scores))
        rows.append((n, *np.mean(each, 0)))
    sizes, left_out, own, new = np.array(rows).T
    figure = Figure(figsize=(6.0, 3.2), layout="constrained")
    ax = figure.subplots()
    for values, colour, name in (
        (new, ORANGE, "3,000 fresh rows"),
        (left_out, BLUE, "leave-one-out"),
        (own, SOFT, "the training rows"),
    ):
        ax.plot(sizes, values, color=colour, lw=1.8, label=name)
    ax.set_xscale("log")
    ax.set_xticks([50, 100, 200, 400, 800], ["50", "100", "200", "400", "800"])
    ax.minorticks_off()
    ax.set(xlabel="training rows", ylabel="NLL")
    ax.legend(frameon=False, fontsize=9, labelcolor=INK)
    finish(ax)
    print("rows", sizes, "leave-one-out", left_out.round(3), "fresh", new.round(3), "training", own.round(3), sep="\n")
    save(figure, "how-leave-one-out")


def draw_readme() -> None:
    """The picture of the README, which its own lines draw."""
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {}
    picture = IMAGES / "gap.png"
    exec(compile(lines.replace('savefig("gap.png")', f'savefig("{picture}", dpi=150)'), "README.md", "exec"), names)
    print(f"gap.png  {picture.stat().st_size / 1000:.0f} kB")


def draw_pages() -> None:
    """The pictures that the pages themselves save."""
    sys.path.insert(0, str(DOCS))
    import pages

    for page in sorted(path.name for path in DOCS.glob("*.md") if "savefig" in path.read_text(encoding="utf-8")):
        with tempfile.TemporaryDirectory() as folder:
            pages.run(page, Path(folder))
            for picture in sorted(Path(folder).glob("*.svg")):
                (IMAGES / picture.name).write_bytes(picture.read_bytes())
                print(f"{picture.name}  {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    draw_messages()
    draw_sites()
    draw_beliefs()
    draw_leave_one_out()
    draw_readme()
    draw_pages()
