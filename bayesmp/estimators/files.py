"""Estimators in files: the network's format (persistence.py), with what brings a table to the network and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bayesmp import persistence
from bayesmp.data import Scaling, TableScaling
from bayesmp.estimators.base import AUTO, MPEstimator
from bayesmp.history import History
from bayesmp.network_files import from_file

Self = TypeVar("Self", bound="SavedEstimator")

ARRAYS = ("classes_", "feature_names_in_")  # texts or numbers, kept in the header
NUMBERS = ("n_features_in_", "n_iter_", "loo_score_", "loo_error_", "_seeds", "_target_shape")
SCALINGS = ("_x_scaling", "_y_scaling")
ROWS = ("_x", "_y")
FURTHER = "further_networks"  # entry of the header: those behind the first, whose tensors have a prefix


class SavedEstimator(MPEstimator):
    """Adds `save` and `load`."""

    def save(self, path: persistence.PathLike, *, data: bool = True, extra: dict[str, Any] | None = None) -> None:
        """Write what was learned to a safetensors file, which `load` of the same class reads; no pickle, so a file from
        others is safe to read.

        Args:
            path: the file.
            data: keep the rows seen, too, so that the loaded estimator can go on with `partial_fit`. Without them the
                file still holds inputs of up to 1,024 rows, standardised and without targets, for the joint belief.
            extra: further entries of the file's header, for what is built around the estimator (table_model.py).
        """
        check_is_fitted(self)
        learned = vars(self)
        described = {
            "type": type(self).__name__,
            "params": _plain_params(self.get_params()),
            "numbers": {name: learned[name] for name in NUMBERS if name in learned},
            "arrays": {name: _describe(learned[name], name) for name in ARRAYS if name in learned},
            "history": self.history_.to_json(),
            "stopped": self.history_.stopped,
        }
        arrays = {f"rows.{name}": learned[name] for name in ROWS if data and learned[name] is not None}
        for name in SCALINGS:
            if (scaling := learned[name]) is not None:
                arrays |= {f"scaling.{name}.{part}": values for part, values in vars(scaling).items()}
        tensors = {name: torch.as_tensor(np.require(part, requirements=("C", "W"))) for name, part in arrays.items()}
        header = {**(extra or {}), "network": self.network_.description(), "estimator": described}
        tensors |= self.network_.state()
        further = list(zip(self.networks_, self.histories_, strict=True))[1:]
        header[FURTHER] = [
            {"network": network.description(), "history": history.to_json(), "stopped": history.stopped}
            for network, history in further
        ]
        for k, (network, _) in enumerate(further):
            tensors |= {_prefix(k) + name: part for name, part in network.state().items()}
        persistence.write(path, kind="estimator", header=header, tensors=tensors)

    @classmethod
    def load(cls: type[Self], path: persistence.PathLike, *, classes: Iterable[type] = ()) -> Self:
        """The estimator of a file that `save` wrote; it predicts the same. What `bayesmp fit` wrote is refused: the
        estimator in it knows columns as numbers only.

        A `hidden` of layers, or of a function that makes them, becomes the layers of the network; a random_state that
        is no number becomes None.

        Args:
            path: the file.
            classes: layers of your own that the network uses.
        """
        return cls._load(path, classes, is_part=False)

    @classmethod
    def _load(cls: type[Self], path: persistence.PathLike, classes: Iterable[type] = (), *, is_part: bool) -> Self:
        """`load`; with `is_part` the estimator of whatever was built around it."""
        with persistence.opened(path, kinds=("estimator",)) as file:
            if persistence.TABLE in file.header and not is_part:
                raise ValueError(file.misfit(f"an {cls.__name__} that was saved from Python"))
            found, names = file.header["estimator"], file.names()
            if found["type"] != cls.__name__:
                raise ValueError(
                    f"{file.path!r} holds an {found['type']}, expected an {cls.__name__}; use {found['type']}.load"
                )
            further = file.header.get(FURTHER, [])  # none in older files
            networks = [from_file(file, classes)]
            for k, part in enumerate(further):
                networks.append(from_file(file.part(_prefix(k), network=part["network"]), classes))
            arrays = {
                name: file.tensor(name).numpy().copy() for name in names if name.startswith(("rows.", "scaling."))
            }
        params = found["params"]
        if params["hidden"] != AUTO:
            params["hidden"] = networks[0].layers if params["hidden"] is None else tuple(params["hidden"])
        model = cls(**params)
        model.networks_ = networks
        model.histories_ = [History.from_json(part["history"], stopped=part["stopped"]) for part in (found, *further)]
        numbers = found["numbers"]
        if "_seed" in numbers:  # as it was when there was one network
            numbers["_seeds"] = [numbers.pop("_seed")]
        for name, value in numbers.items():
            setattr(model, name, tuple(value) if isinstance(value, list) else value)
        for name, (values, dtype) in found["arrays"].items():
            setattr(model, name, np.array(values, dtype=dtype))
        for name in SCALINGS:
            parts = {part.rsplit(".", 1)[1]: arrays[part] for part in arrays if part.startswith(f"scaling.{name}.")}
            kind = TableScaling if "low_width" in parts else Scaling  # older files have a plain one of the inputs, too
            setattr(model, name, kind(**parts) if parts else None)
        for name in ROWS:
            setattr(model, name, arrays.get(f"rows.{name}"))
        return model


def _prefix(k: int) -> str:
    """Of the names of the tensors of a further network."""
    return f"further.{k}."


def _plain_params(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as JSON holds them; None for layers, which are the network's own, and for generators."""
    hidden = params["hidden"]
    if isinstance(hidden, (int, np.integer)):
        hidden = [hidden]
    if not isinstance(hidden, str):
        is_widths = not callable(hidden) and all(isinstance(part, (int, np.integer)) for part in hidden)
        params["hidden"] = [int(part) for part in hidden] if is_widths else None
    if not isinstance(params["random_state"], (int, np.integer)):
        params["random_state"] = None
    return params


def _describe(array: NDArray[Any], name: str) -> tuple[list[Any], str]:
    values = array.tolist()
    for value in values:
        if not isinstance(value, (str, int, float)):
            raise TypeError(
                f"{name} holds {value!r}, and files keep texts, numbers and booleans only; convert it before fit, or "
                "use pickle"
            )
    return values, array.dtype.str
