"""Networks from files: what `Network.save` and `Trainer.save` wrote, read back."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from bayesmp.basics import persistence
from bayesmp.basics.typed import Count, Positive, PositiveFloat, Share
from bayesmp.belief import Belief, Points
from bayesmp.belief import from_state as belief_from_state
from bayesmp.belief.files import TINY, BeliefHeader, read_tensors
from bayesmp.messages.gaussian import Gaussian
from bayesmp.messages.regime import Regime
from bayesmp.network.compact import PointsHeader, formed, is_formable
from bayesmp.network.fitted import Fitted
from bayesmp.network.learned import LEARNED, Learned
from bayesmp.network.network import Network
from bayesmp.network.parts import HEADS, LAYERS
from bayesmp.network.varying_noise import VaryingNoise

LEARNED_TENSORS = ("marginal.tau", "marginal.rho", "sum_share", "head.log_weights")  # the same, in files
BESIDE_LAYERS = (*LEARNED, "has_given_prior")  # in descriptions; the prior itself is compared
FIXED_TENSORS = ("prior.tau", "prior.rho", "start", "head.grid")
SAME_GRID = 1e-5  # relative difference that rounding on another machine may make
LARGEST_LOG = 1e30  # of a log weight; and of a variance of noise, on the scale of the network
LARGEST_LOOK = 10_000_000  # numbers on the edges of a network that is asked for a prediction before it is handed out
INTERRUPTED = "interrupted"  # why a run ended that did not end; also in its file


def load(path: persistence.PathLike, *, classes: Iterable[type] = ()) -> Network:
    """The network of a file that `Network.save` or `Trainer.save` wrote, on the CPU, in the dtype it had.

    Files of estimators are refused, because their networks know standardised numbers only: `MPRegressor.load` and
    `MPClassifier.load` read them, and the error says which.

    Args:
        path: the file.
        classes: layers and heads of your own that the network uses.
    """
    with persistence.opened(path, kinds=("model", "run")) as file:
        network = from_file(file, classes)
        if file.header["kind"] == "model":
            file.check_entries(["network"])
            file.check_all_read()
        if network.belief is None and file.header.get("run", {}).get("stopped") == INTERRUPTED:
            warnings.warn(
                f"{file.path!r} was written in the middle of a run, so this network has no joint belief yet, and is "
                "too sure away from the data; Trainer.load or Trainer.resume and run() finish it",
                stacklevel=2,
            )
    return network


@dataclass(frozen=True)
class LayerHeader(persistence.Described):
    """What a file says of a layer."""

    given_priors: list[str]


@dataclass(frozen=True)
class FittedHeader:
    """What `Fitted.description` says."""

    objective: float
    noise: PositiveFloat
    smoothing: Share
    miss_scale: PositiveFloat
    n_layers: Positive
    known: list[Count]


@dataclass(frozen=True)
class LearnedHeader:
    """What `Learned.description` says."""

    belief: BeliefHeader | PointsHeader | None
    regime: Regime
    belief_scale: PositiveFloat
    prior_width: PositiveFloat
    relevances: list[Positive]
    flat_targets: bool
    varying_noise: bool
    fitted: FittedHeader | None


@dataclass(frozen=True)
class PastHeader(LearnedHeader):
    """What a file says of the past."""

    is_all: bool


@dataclass(frozen=True)
class NetworkHeader(LearnedHeader):
    """What `Network.description` says."""

    layers: list[LayerHeader]
    head: persistence.Described
    input_shape: tuple[Positive, ...]
    seed: int
    prior: str
    has_given_prior: bool
    dtype: Literal["float32", "float64"]
    is_compact: bool
    past: PastHeader | None


def from_file(file: persistence.SavedFile, classes: Iterable[type] = ()) -> Network:
    """The network in an open file; whatever it says is checked before it is used."""
    described, classes = file.entry(NetworkHeader, "network"), list(classes)
    file = file.compact(described.is_compact)
    with file.understood():
        layers = [persistence.rebuild(part, LAYERS, classes) for part in described.layers]
        head, shape = persistence.rebuild(described.head, HEADS, classes), described.input_shape
        shapes = [part for layer in layers for part in layer.weight_shapes().values()]
        n_weights = sum(map(math.prod, shapes))  # before they take memory
        for name in ("prior.tau", "prior.rho", "start"):
            if file.shape(name) != (n_weights,):
                raise ValueError(f"{name!r} must have one entry for each of {n_weights:,} weights")
        network = Network(layers, head, seed=described.seed, input_shape=shape, prior=described.prior)
        _fill(network, file, described)
        _check_predicts(network)
    return network


def _fill(network: Network, file: persistence.SavedFile, described: NetworkHeader) -> None:
    """Take what the file says of a new network of the same layers and head."""
    expected = network.head.grid
    grid = expected if described.is_compact else file.like(expected, "head.grid", low=TINY)
    if not torch.allclose(grid, expected, rtol=SAME_GRID, atol=0.0):  # but for how another machine rounds
        raise ValueError(f"'head.grid' must hold the values that {network.head!r} has")
    network.head.grid = grid
    network.head_log_weights = network.head.prior_log_weights().float()
    network.to(getattr(torch, described.dtype))
    own = network.state()
    exact = Gaussian(file.like(own["prior.tau"], "prior.tau"), file.like(own["prior.rho"], "prior.rho", low=TINY))
    network.prior, network.start = exact, file.like(own["start"], "start")
    network.has_given_prior = described.has_given_prior
    if described.past is not None:
        network.remember(_read_learned(network, file.part("past."), described.past, "head_log_weights"))
    _take_learned(network, file, described)
    means, variances = network.unpack(exact.mean), network.unpack(exact.var)
    for k, part in enumerate(described.layers):
        for name in part.given_priors:
            if name not in means[k]:
                raise ValueError(
                    f"layer {k}, {network.layers[k]!r}, has no weights {name!r} whose prior could be given"
                )
            setattr(network.layers[k], f"{name}_prior", (means[k][name], variances[k][name]))


def learn_from_file(network: Network, file: persistence.SavedFile) -> None:
    """Take what the network in an open file, one of the same layers and head, had learned."""
    described = file.entry(NetworkHeader, "network")
    file = file.compact(described.is_compact)
    with file.understood():
        _take_learned(network, file, described)


def _take_learned(network: Network, file: persistence.SavedFile, described: NetworkHeader) -> None:
    network.learn(_read_learned(network, file, described, "head.log_weights"))
    if isinstance(described.belief, PointsHeader):
        network.belief = _form(network, file.part("belief."), described.belief)
    if described.past is not None and described.past.is_all:
        if network.yesterday is None or described.belief is not None:
            raise ValueError("a network whose belief is that of its past has none of its own")
        network.belief = network.yesterday.learned.belief
    if not all(
        bool((part.rho > 0.0).all() and part.var.isfinite().all()) for part in (network.prior, network.marginal)
    ):
        raise ValueError("variances of weights must be positive and finite")
    network.renew_past()


def _read_learned(network: Network, file: persistence.SavedFile, found: LearnedHeader, log_weights: str) -> Learned:
    """What a part of a file says that was learned."""
    marginal, device, dtype = network.marginal, network.device, network.dtype
    tau, rho = file.like(marginal.tau, "marginal.tau"), file.like(marginal.rho, "marginal.rho", low=TINY)
    if isinstance(found, PastHeader) and (found.belief is None or isinstance(found.belief, PointsHeader)):
        raise ValueError("the past must have a joint belief")
    belief = None
    if found.belief is not None and not isinstance(found.belief, PointsHeader):
        shapes = [tuple(part.shape) for part in network.flat.to_matrices(marginal.tau)]
        sizes = network.input_shape, network.n_outputs
        tensors = read_tensors(found.belief, file.part("belief."), shapes, dtype, *sizes)
        belief = belief_from_state(asdict(found.belief), tensors).to(device, dtype)
    return Learned(
        marginal=Gaussian(tau, rho).map(lambda part: part.to(device)),
        head_log_weights=_read_log_weights(file, log_weights, network.head_log_weights),
        sum_share=file.like(network.sum_share, "sum_share", low=0.0, high=1.0).to(device),
        regime=found.regime,
        belief=belief,
        varying_noise=_read_varying_noise(network, file.part("varying_noise.")) if found.varying_noise else None,
        fitted=None if found.fitted is None else _read_fitted(network, file.part("fitted."), found.fitted),
        belief_scale=found.belief_scale,
        prior_width=found.prior_width,
        relevances=_read_relevances(network, file, found.relevances),
        flat_targets=found.flat_targets,
        run_summary=None,
    )


def _form(network: Network, file: persistence.SavedFile, found: PointsHeader) -> Belief:
    """The belief about the slopes at the points of a compact file."""
    m, n_layers = file.shape("points.x")[0], len(network.flat.to_matrices(network.marginal.tau))
    if found.n_layers != n_layers:
        raise ValueError(f"the joint belief is about {found.n_layers} layers, the network has {n_layers}")
    x = file.tensor("points.x", (m, *network.input_shape), network.dtype)
    points = Points(x, file.tensor("points.mixes", (m, network.n_outputs), network.dtype))
    if not is_formable(network, points):
        raise ValueError(f"a belief about {m:,} points is too large to be formed again")
    return formed(network, points.map(lambda part: part.to(network.device)), found)


def _read_relevances(network: Network, file: persistence.SavedFile, sizes: list[int]) -> tuple[Tensor, ...]:
    """Factors on prior variances by input, if any were learned."""
    if sizes and sizes != network.judged_inputs:
        raise ValueError(f"relevances must be of {network.judged_inputs} inputs, got {sizes}")
    names = [(f"relevance.{k}", (size,)) for k, size in enumerate(sizes)]
    return tuple(file.tensor(name, shape, torch.float64, low=TINY) for name, shape in names)


def _read_log_weights(file: persistence.SavedFile, name: str, like: Tensor) -> Tensor:
    """What is believed over a head's grid; a value may be ruled out, but not all of them."""
    found = file.like(like, name, high=LARGEST_LOG, is_finite=False)
    if not bool(found.isfinite().any()):
        raise ValueError(f"{name!r} rules out every value of the head's constant")
    return found.to(like.device)


def _read_varying_noise(network: Network, file: persistence.SavedFile) -> VaryingNoise:
    if not network.head.varies:
        raise ValueError(f"the noise of {network.head!r} does not depend on the input")
    o, g = network.n_outputs, len(network.head.grid)
    h = math.prod(network.shapes[network.slots[-1].layer])
    d = file.shape("directions")[-1] if file.shape("directions") else 0
    shapes = {"centre": (h,), "gain": (h,), "directions": (h, d), "own_centre": (o, 2), "own_gain": (o, 2)}
    shapes |= {"trust": (o, 2), "weights": (o, 3 + d), "covariance": (o, 2 + d, 2 + d), "noise": (2,)}
    ranges: dict[str, Any] = {
        "gain": {"low": 0.0},
        "own_gain": {"low": 0.0},
        "trust": {"low": 0.0, "high": 1.0},
        "noise": {"low": 0.0, "high": LARGEST_LOG},
    }
    parts = {name: file.tensor(name, shape, torch.float64, **ranges.get(name, {})) for name, shape in shapes.items()}
    like = torch.empty(g, dtype=torch.float64, device="cpu")
    found = VaryingNoise(**parts, log_weights=_read_log_weights(file, "log_weights", like))
    if not float(found.noise[0]) > 0.0:
        raise ValueError("the noise must be a variance above 0")
    return found.to(network.device)


def _read_fitted(network: Network, file: persistence.SavedFile, found: FittedHeader) -> Fitted:
    shapes = [part.shape for part in network.flat.to_matrices(network.marginal.tau)]
    if found.n_layers != len(shapes) or any(k >= len(shapes) for k in found.known):
        raise ValueError(f"what was fitted must be about {len(shapes)} layers with weights")
    like = network.dtype
    tensors = {
        f"spread.{k}": file.tensor(f"spread.{k}", (o, i * (i + 1) // 2), like)
        for k, (o, i) in enumerate(shapes)
        if k in found.known
    }
    return Fitted.from_state(asdict(found), tensors).to(network.device, network.dtype)


@torch.no_grad()
def _check_predicts(network: Network) -> None:
    """Raise unless it can predict, with finite outputs: what its parts were not asked, they are asked together."""
    if sum(map(math.prod, network.shapes)) > LARGEST_LOOK:
        return
    x = torch.eye(2, dtype=network.dtype, device=network.device)[:, 0]  # all 1, and all 0
    x = x.view(-1, *[1] * len(network.input_shape)).expand(-1, *network.input_shape)
    for m_out, covariance in network.linearised.output_beliefs(x, network.belief):
        if not all(bool(part.isfinite().all()) for part in (m_out.mean, m_out.var)):
            raise ValueError("its outputs are no finite numbers")
        network.prediction_of(x, m_out, covariance)


def check_same_network(network: Network, file: persistence.SavedFile, remedy: str) -> None:
    """Raise unless the network in an open file is this one, but for what was learned."""
    ours, theirs = persistence.as_saved(network.description()), file.header["network"]
    different = [name for name in ours if name not in BESIDE_LAYERS and ours[name] != theirs.get(name)]
    if not different:
        fixed = [name for name in network.state() if name in FIXED_TENSORS or name.startswith("past.")]
        different = [name for name in fixed if not torch.equal(network.state()[name], file.tensor(name))]
    if different:
        names = ", ".join(different)
        raise ValueError(f"{file.path!r} holds the run of another network, which differs in {names}{remedy}")
