"""Make reference posteriors with long runs of NUTS: `python -m benchmarks.references.make --case sine`.

Needs `pip install 'bayesmp[references]'`. The model is bayesmp's: a dense network with LeakyReLU, independent
Gaussian weights with the means and variances of `Network(..., seed=0).prior`, and what its head says of the targets:
Gaussian noise of known variance, or the softmax of gain times the outputs. NUTS sees u, two linear maps away from the
weights w:

    w = mean + std z (so z ~ N(0, I) a priori),    z = G^(-1/2) u,    G = I + average of J^T R J

with J the slopes of the training outputs f in z, and R the curvature of -log p(y | f) in f. G is fixed before the
chains that count begin, so it changes how fast they mix and not what they converge to. It is averaged first over draws
from the prior, for short pilot runs from other such draws, then over the pilot runs' last weights; every chain goes on
from the end of its own pilot run.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from numpy.typing import ArrayLike, NDArray
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

import bayesmp as bmp
from benchmarks.networks import LEAK
from benchmarks.references import ALL, FOLDER, Case, Moons, Uniform

NAMES = ("weight", "bias")
N_DRAWS = 64  # from the prior, over which the first G is averaged; as many from all pilot runs for the second
PILOT_WARMUP, PILOT_SAMPLES = 100, 50
TARGET_ACCEPT = 0.8  # lower ones take larger steps, but then some transitions diverge
MAX_TREE_DEPTH = 10
MIN_STIFFNESS = 300.0  # eigenvalue of G - I; the directions below do not limit the step and would cost most of the time


class Model:
    """Posterior of a network's weights, as a function of flat z: each layer's weights, then its biases.

    The network is looked at through one number f per input: its output, or the logit of class 1 of two.
    """

    def __init__(self, case: Case, x: ArrayLike, y: ArrayLike) -> None:
        network = case.network(seed=0)
        self.noise_var = case.data.noise_std**2 if isinstance(case.data, Uniform) else None  # None: classes
        self.gain = case.data.head.gain if isinstance(case.data, Moons) else 1.0
        names = [(k, name) for k, layer in enumerate(network.layers) if isinstance(layer, bmp.Linear) for name in NAMES]
        means, variances = network.unpack(network.prior.mean.double()), network.unpack(network.prior.var.double())
        self.shapes = [tuple(means[k][name].shape) for k, name in names]
        self.prior_mean = jnp.concatenate([jnp.asarray(means[k][name].flatten().numpy()) for k, name in names])
        self.prior_std = jnp.concatenate(
            [jnp.asarray(variances[k][name].flatten().sqrt().numpy()) for k, name in names]
        )
        self.x, self.y = jnp.asarray(x), jnp.asarray(y)

    def output(self, z: Array, x: Array) -> Array:
        """f (n,) at inputs (n, i)."""
        w, tensors = self.prior_mean + self.prior_std * z, []
        for shape in self.shapes:
            tensors.append(w[: math.prod(shape)].reshape(shape))
            w = w[math.prod(shape) :]
        hidden = x
        for k in range(0, len(tensors), 2):
            if k > 0:
                hidden = jnp.maximum(hidden, LEAK * hidden)
            hidden = hidden @ tensors[k].T + tensors[k + 1]
        return hidden[:, 0] if self.noise_var is not None else self.gain * (hidden[:, 1] - hidden[:, 0])

    def log_likelihood(self, f: Array) -> Array:
        """log p(y | f) of each target (n,), without the constants."""
        if self.noise_var is not None:
            return -0.5 * (self.y - f) ** 2 / self.noise_var
        return self.y * f - jax.nn.softplus(f)

    def curvature(self, f: Array) -> Array:
        """-d^2 log p(y | f) / df^2 of each target (n,)."""
        if self.noise_var is not None:
            return jnp.full_like(f, 1.0 / self.noise_var)
        return jax.nn.sigmoid(f) * jax.nn.sigmoid(-f)

    def log_density(self, z: Array) -> Array:
        """log p(z) + log p(y | x, z), without the constants."""
        return -0.5 * (z @ z) + self.log_likelihood(self.output(z, self.x)).sum()


class Whitening:
    """The maps between z and u, by the few directions in which G differs much from I; G is averaged over zs (k, d)."""

    def __init__(self, model: Model, zs: Array) -> None:
        @jax.jit
        def curvature(z: Array) -> Array:
            slopes = jax.jacrev(model.output)(z, model.x)  # (n, d)
            return slopes.T @ (model.curvature(model.output(z, model.x))[:, None] * slopes)

        values, vectors = jnp.linalg.eigh(sum(curvature(z) for z in zs) / len(zs))
        is_stiff = values > MIN_STIFFNESS
        self.vectors, self.scales = vectors[:, is_stiff], jnp.sqrt(1.0 + values[is_stiff])

    def to_z(self, u: Array) -> Array:
        return u + self.vectors @ ((1.0 / self.scales - 1.0) * (self.vectors.T @ u))

    def to_u(self, z: Array) -> Array:
        return z + self.vectors @ ((self.scales - 1.0) * (self.vectors.T @ z))


class Sampler:
    """NUTS under a fixed whitening, all chains side by side: a step of four costs little more than a step of one."""

    def __init__(self, model: Model, whitening: Whitening, *, chains: int, warmup: int, samples: int) -> None:
        self.whitening = whitening
        kernel = NUTS(
            potential_fn=lambda u: -model.log_density(whitening.to_z(u)),
            adapt_mass_matrix=False,
            target_accept_prob=TARGET_ACCEPT,
            max_tree_depth=MAX_TREE_DEPTH,
        )
        self.mcmc = MCMC(
            kernel,
            num_warmup=warmup,
            num_samples=samples,
            num_chains=chains,
            chain_method="vectorized",
            progress_bar=False,
        )

    def run(self, starts: Array, seed: int) -> tuple[Array, list[dict[str, float]]]:
        """Weights z (chain, sample, d) of chains from the weights z = starts (chain, d), and how each fared."""
        begun = time.process_time()
        fields = ("diverging", "num_steps", "adapt_state.step_size")
        us = jax.vmap(self.whitening.to_u)(starts)
        self.mcmc.run(jax.random.PRNGKey(seed), init_params=us if len(us) > 1 else us[0], extra_fields=fields)
        zs = jax.vmap(jax.vmap(self.whitening.to_z))(self.mcmc.get_samples(group_by_chain=True)).block_until_ready()
        seconds = time.process_time() - begun
        extra = self.mcmc.get_extra_fields(group_by_chain=True)
        return zs, [
            {
                "step_size": float(extra["adapt_state.step_size"][k, -1]),
                "steps": float(extra["num_steps"][k].mean()),
                "diverging": int(extra["diverging"][k].sum()),
                "seconds": seconds / len(zs),  # of computing
            }
            for k in range(len(zs))
        ]


def make_reference(case: Case, *, chains: int, warmup: int, samples: int, seed: int, path: Path) -> None:
    """Run the pilot chains, then the chains that count, and write the file."""
    x, y = case.training_data()
    grid = case.grid_points()
    model = Model(case, x, y)
    key_average, key_starts = jax.random.split(jax.random.PRNGKey(seed))
    starts = jax.random.normal(key_starts, (chains, len(model.prior_mean)))
    whitening = Whitening(model, jax.random.normal(key_average, (N_DRAWS, len(model.prior_mean))))
    pilot = Sampler(model, whitening, chains=chains, warmup=PILOT_WARMUP, samples=PILOT_SAMPLES)
    pilots, infos = pilot.run(starts, seed)
    _tell("pilot", infos)

    some = pilots[:, :: max(1, PILOT_SAMPLES * chains // N_DRAWS)].reshape(-1, pilots.shape[2])
    sampler = Sampler(model, Whitening(model, some), chains=chains, warmup=warmup, samples=samples)
    zs, infos = sampler.run(pilots[:, -1], seed + 1)
    _tell("chain", infos)
    outputs = jax.lax.map(jax.vmap(lambda z: model.output(z, jnp.asarray(grid))), zs)
    settings = {
        "widths": case.widths,
        "head": repr(case.data.head),
        "chains": chains,
        "warmup": warmup,
        "samples": samples,
        "seed": seed,
        "pilot": [PILOT_WARMUP, PILOT_SAMPLES],
        "target_accept": TARGET_ACCEPT,
        "max_tree_depth": MAX_TREE_DEPTH,
        "whitened_directions": len(sampler.whitening.scales),
        "by_chain": infos,
        "numpyro": numpyro.__version__,
        "jax": jax.__version__,
    }
    fields = {"x_train": x, "y_train": y, "grid": grid, "truth": case.data.truth(grid)}
    fields |= {name: np.asarray(getattr(model, name), np.float32) for name in ("prior_mean", "prior_std")}
    fields |= summary(np.asarray(outputs), is_logit=case.is_classes)
    np.savez_compressed(path, **fields, settings=np.array(json.dumps(settings)))
    print(rhat_words(case, np.load(path)), flush=True)


def summary(f: NDArray[np.float64], *, is_logit: bool) -> dict[str, NDArray[np.float32]]:
    """What is kept of outputs f (chain, sample, grid)."""
    found = {
        "f_mean": f.mean((0, 1)),
        "f_std": f.std((0, 1)),
        "chain_means": f.mean(1),
        "chain_stds": f.std(1),
        "rhat": split_gelman_rubin(f),
        "ess": effective_sample_size(f),
    }
    if is_logit:
        found["p_mean"] = (0.5 + 0.5 * np.tanh(0.5 * f)).mean((0, 1))  # of class 1
    return {name: np.asarray(values, np.float32) for name, values in found.items()}


def rhat_words(case: Case, stored: Mapping[str, NDArray[Any]]) -> str:
    """Median and maximum of the split R-hat by region."""
    regions = case.regions(stored["x_train"], stored["grid"])
    parts = (
        f"{name} {np.median(stored['rhat'][rows]):.3f} / {stored['rhat'][rows].max():.3f}"
        for name, rows in regions.items()
    )
    return "R-hat " + ", ".join(parts)


def _tell(what: str, infos: Sequence[Mapping[str, float]]) -> None:
    for k, info in enumerate(infos):
        print(f"{what} {k}: " + ", ".join(f"{name} {value:.4g}" for name, value in info.items()), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.references.make",
        description="Make reference posteriors with long runs of NUTS.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--case", choices=ALL, nargs="+", default=list(ALL), help="which to make")
    parser.add_argument("--chains", type=int, default=8, help="side by side")
    parser.add_argument("--warmup", type=int, default=400, help="iterations per chain that are not kept")
    parser.add_argument("--samples", type=int, default=1000, help="iterations per chain that are kept")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the files NAME.npz")
    options = parser.parse_args(argv)
    numpyro.enable_x64()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.case:
        print(f"# {name}", flush=True)
        make_reference(
            ALL[name],
            chains=options.chains,
            warmup=options.warmup,
            samples=options.samples,
            seed=options.seed,
            path=options.out / f"{name}.npz",
        )


if __name__ == "__main__":
    main()
