"""Networks from files: what `Network.save` and `Trainer.save` wrote, read back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import torch

from bayesmp import persistence
from bayesmp.belief import Belief
from bayesmp.belief import from_state as belief_from_state
from bayesmp.fitted import Fitted
from bayesmp.gaussian import Gaussian
from bayesmp.learned import LEARNED, Learned
from bayesmp.network import Network
from bayesmp.regime import Regime
from bayesmp.structure import HEADS, LAYERS
from bayesmp.varying_noise import VaryingNoise

LEARNED_TENSORS = ("marginal.tau", "marginal.rho", "sum_share", "head.log_weights")  # the same, in files
PAST_TENSORS = ("marginal.tau", "marginal.rho", "sum_share", "head_log_weights")  # of the past, beside its belief
BESIDE_LAYERS = (*LEARNED, "has_given_prior")  # in descriptions; the prior itself is compared
FIXED_TENSORS = ("prior.tau", "prior.rho", "start", "head.grid")
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
        if network.belief is None and file.header.get("run", {}).get("stopped") == INTERRUPTED:
            warnings.warn(
                f"{file.path!r} was written in the middle of a run, so this network has no joint belief yet: its "
                "predictions take weights as independent, and are too sure away from the data; Trainer.load or "
                "Trainer.resume and run() finish it",
                stacklevel=2,
            )
    return network


def from_file(file: persistence.SavedFile, classes: Iterable[type] = ()) -> Network:
    """The network in an open file."""
    found, classes = file.header["network"], list(classes)
    network = Network(
        [persistence.rebuild(part, LAYERS, classes) for part in found["layers"]],
        persistence.rebuild(_head_of_its_time(found["head"]), HEADS, classes),
        seed=found["seed"],
        input_shape=found["input_shape"],
        prior=found["prior"],
    )
    if "regime" not in found:
        raise ValueError(
            f"{file.path!r} has format {file.header['format']}, written by bayesmp {file.header['library']} before "
            "networks had a joint belief; this version reads format 2: train the network again, or use that version"
        )
    grid = file.tensor("head.grid").clone()
    expected = network.head.grid
    if grid.shape != expected.shape or grid.dtype != expected.dtype:
        raise ValueError(
            f"{file.path!r} does not fit: 'head.grid' must be a vector of {len(expected)} numbers of {expected.dtype}"
        )
    network.head.grid = grid
    network.head_log_weights = network.head.prior_log_weights().float()
    network.to(getattr(torch, found["dtype"]))
    for name in FIXED_TENSORS:
        file.fill(network.state()[name], name)
    exact, start = network.exact_prior, network.start
    network.prior, network.start = exact, start
    network.has_given_prior = found.get("has_given_prior", False)
    if found.get("past") is not None:
        network.remember(_past_from_file(network, file))
    learn_from_file(network, file)
    means, variances = network.unpack(exact.mean), network.unpack(exact.var)
    for k, part in enumerate(found["layers"]):
        for name in part["given_priors"]:
            setattr(network.layers[k], f"{name}_prior", (means[k][name], variances[k][name]))
    return network


def _head_of_its_time(described: dict[str, Any]) -> dict[str, Any]:
    """The head as this version describes it: files from before there were tails have Gaussian noise; whether noise may
    depend on the input, older ones do not say, and training never heard of it.
    """
    if described["type"] != "Regression":
        return described
    args = {"tails": "gaussian", **described["args"]}
    return {**described, "args": {"varies": args["tails"] == "learn", **args}}


def learn_from_file(network: Network, file: persistence.SavedFile) -> None:
    """Take what the network in an open file, one of the same layers and head, had learned."""
    found = file.header["network"]
    for name in LEARNED_TENSORS:
        file.fill(network.state()[name], name)
    network.belief = None if found["belief"] is None else _belief_from_file(network, file, "belief.", found["belief"])
    if network.yesterday is not None and found["past"]["is_all"]:
        network.belief = network.yesterday.learned.belief
    network.varying_noise = _varying_noise_from_file(network, file, "", found)
    network.fitted = _fitted_from_file(network, file, "", found)
    network.regime = Regime(**found["regime"])
    network.belief_scale = found.get("belief_scale", 1.0)
    network.widen_prior(found.get("prior_width", 1.0))
    network.flat_targets = found.get("flat_targets", False)
    network.renew_past()


def _past_from_file(network: Network, file: persistence.SavedFile) -> Learned:
    """What the network in an open file had learned of the past."""
    found = file.header["network"]["past"]
    tensors = {name: file.tensor(f"past.{name}").clone() for name in PAST_TENSORS}
    return Learned(
        marginal=Gaussian(tensors["marginal.tau"], tensors["marginal.rho"]),
        head_log_weights=tensors["head_log_weights"],
        sum_share=tensors["sum_share"],
        regime=Regime(**found["regime"]),
        belief=_belief_from_file(network, file, "past.belief.", found["belief"]),
        varying_noise=_varying_noise_from_file(network, file, "past.", found),
        fitted=_fitted_from_file(network, file, "past.", found),
        belief_scale=found.get("belief_scale", 1.0),
        prior_width=1.0,
        flat_targets=found["flat_targets"],
        told=None,
    )


def _varying_noise_from_file(
    network: Network, file: persistence.SavedFile, prefix: str, found: dict[str, Any]
) -> VaryingNoise | None:
    if not found.get("varying_noise", False):  # as in all files from before there was any
        return None
    names = [part.name for part in fields(VaryingNoise)]
    parts = {name: file.tensor(f"{prefix}varying_noise.{name}").clone() for name in names}
    return VaryingNoise(**parts).to(network.device)


def _fitted_from_file(
    network: Network, file: persistence.SavedFile, prefix: str, found: dict[str, Any]
) -> Fitted | None:
    described = found.get("fitted")
    if described is None:
        return None
    names = [f"spread.{k}" for k in described["known"]]
    tensors = {name: file.tensor(f"{prefix}fitted.{name}").clone() for name in names}
    return Fitted.from_state(described, tensors).to(network.device, network.dtype)


def _belief_from_file(
    network: Network, file: persistence.SavedFile, prefix: str, description: dict[str, Any]
) -> Belief:
    names = [name for name in file.names() if name.startswith(prefix)]
    parts = {name.removeprefix(prefix): file.tensor(name).clone() for name in names}
    try:
        found = belief_from_state(description, parts)
    except KeyError as error:
        raise ValueError(f"{file.path!r} is damaged: its joint belief has no {error}") from error
    return found.to(network.device, network.dtype)


def check_same_network(network: Network, file: persistence.SavedFile, remedy: str) -> None:
    """Raise unless the network in an open file is this one, but for what was learned."""
    ours, theirs = persistence.as_saved(network.description()), dict(file.header["network"])
    theirs["head"] = _head_of_its_time(theirs["head"])
    different = [name for name in ours if name not in BESIDE_LAYERS and ours[name] != theirs.get(name)]
    if not different:
        fixed = [name for name in network.state() if name in FIXED_TENSORS or name.startswith("past.")]
        different = [name for name in fixed if not torch.equal(network.state()[name], file.tensor(name))]
    if different:
        names = ", ".join(different)
        raise ValueError(f"{file.path!r} holds the run of another network, which differs in {names}{remedy}")
