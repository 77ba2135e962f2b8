"""Estimators in files: the network's format (persistence.py), with what brings a table to the network and back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bayesmp.basics import persistence, typed
from bayesmp.basics.typed import Count, Measured, Positive, PositiveFloat
from bayesmp.belief.files import TINY
from bayesmp.data import Scaling
from bayesmp.estimators.base import AUTO, MPEstimator
from bayesmp.estimators.columns.encoder import EncoderHeader, TableEncoder
from bayesmp.estimators.scaling import TableScaling
from bayesmp.network.compact import compacted
from bayesmp.network.files import from_file
from bayesmp.network.network import Network
from bayesmp.training.history import EpochRecord, History, check_history

Self = TypeVar("Self", bound="SavedEstimator")

ARRAYS = ("classes_", "feature_names_in_")  # texts or numbers, kept in the header
NUMBERS = ("n_features_in_", "n_iter_", "loo_score_", "loo_error_", "_seeds", "target_shape_")
LARGEST_ARRAY = 2**26  # bytes of labels or names of columns
CENTRES, WIDTHS = ("mean", "centre"), ("low_width", "high_width")  # of a scaling: any number; may be infinite
SCALINGS = ("x_scaling_", "y_scaling_")
ROWS = ("seen_x_", "seen_y_", "seen_weight_")
FURTHER = "further_networks"  # entry of the header: those behind the first, whose tensors have a prefix


class SavedEstimator(MPEstimator):
    """Adds `save` and `load`."""

    def save(
        self,
        path: persistence.PathLike,
        *,
        data: bool = True,
        compact: bool = False,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Write what was learned to a safetensors file, which `load` of the same class reads; no pickle, so a file from
        others is safe to read.

        Args:
            path: the file.
            data: keep the rows seen, too, so that the loaded estimator can go on with `partial_fit`. Without them the
                file still holds inputs of up to 2,048 rows, standardised and without targets, for the joint belief.
            compact: write a smaller file, as for `Network.save`.
            extra: further entries of the file's header, for what is built around the estimator (table_model.py).
        """
        check_is_fitted(self)
        learned = vars(self)
        described = {
            "type": type(self).__name__,
            "params": _plain_params(self.get_params(), learned.get("classes_")),
            "numbers": {name: learned.get(name) for name in NUMBERS},
            "arrays": {name: _describe(learned[name], name) for name in ARRAYS if name in learned},
            "encoder": None if self.encoder_ is None else self.encoder_.to_json(),
            "history": self.history_.to_json(),
            "stopped": self.history_.stopped,
        }
        arrays = {f"rows.{name}": learned[name] for name in ROWS if data and learned.get(name) is not None}
        for name in SCALINGS:
            if (scaling := learned[name]) is not None:
                arrays |= {f"scaling.{name}.{part}": values for part, values in vars(scaling).items()}
        tensors = {name: torch.as_tensor(np.require(part, requirements=("C", "W"))) for name, part in arrays.items()}
        parts = [compacted(each) if compact else (each.description(), each.state()) for each in self.networks_]
        header = {**(extra or {}), "network": parts[0][0], "estimator": described, FURTHER: []}
        tensors |= parts[0][1]
        for k, ((network, state), history) in enumerate(zip(parts[1:], self.histories_[1:], strict=True)):
            header[FURTHER].append({"network": network, "history": history.to_json(), "stopped": history.stopped})
            tensors |= {_prefix(k) + name: part for name, part in state.items()}
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
        return cls.read(path, classes, is_part=False)

    @classmethod
    def read(cls: type[Self], path: persistence.PathLike, classes: Iterable[type] = (), *, is_part: bool) -> Self:
        """`load`; with `is_part` the estimator of whatever was built around it."""
        with persistence.opened(path, kinds=("estimator",)) as file:
            if persistence.TABLE in file.header and not is_part:
                raise ValueError(file.misfit(f"an {cls.__name__} that was saved from Python"))
            if file.estimator_type != cls.__name__:
                raise ValueError(
                    f"{file.path!r} holds an {file.estimator_type}, expected an {cls.__name__}; use "
                    f"{file.estimator_type}.load"
                )
            found, further = file.entry(EstimatorHeader, "estimator"), file.entry(list[FurtherHeader], FURTHER)
            networks = [from_file(file, classes)]
            for k, part in enumerate(file.header[FURTHER]):
                networks.append(from_file(file.part(_prefix(k), network=part["network"]), classes))
            with file.understood():
                model = cls._from_parts(found, further, networks, file)
            file.check_entries(["network", "estimator", FURTHER, *([persistence.TABLE] if is_part else [])])
            file.check_all_read()
        return model

    @classmethod
    def _from_parts(
        cls: type[Self],
        found: EstimatorHeader,
        further: list[FurtherHeader],
        networks: list[Network],
        file: persistence.SavedFile,
    ) -> Self:
        """The estimator, after a check that its parts belong together."""
        params: dict[str, Any] = dict(found.params)
        numbers = found.numbers
        if sorted(params) != sorted(cls().get_params()):
            raise ValueError(f"estimator.params must be {sorted(cls().get_params())}, got {sorted(params)}")
        if params["hidden"] != AUTO:
            if params["hidden"] is not None:
                params["hidden"] = typed.read(tuple[Positive, ...], params["hidden"], "estimator.params.hidden")
            else:
                params["hidden"] = networks[0].layers
        n_outputs, shapes = networks[0].n_outputs, [network.input_shape for network in networks]
        encoder = None if found.encoder is None else TableEncoder.of(found.encoder)
        d = numbers.n_features_in_ if encoder is None else len(encoder.get_feature_names_out())
        if set(shapes) != {(d,)} or any(each.n_outputs != n_outputs for each in networks):
            raise ValueError(f"its networks must take {d} inputs and have as many outputs each")
        if len(numbers._seeds) != len(networks):
            raise ValueError(f"there must be a seed for each of {len(networks)} networks, got {len(numbers._seeds)}")
        model = cls(**params)
        model.networks_, model.histories_ = networks, []
        for told, why in [(found.history, found.stopped), *((part.history, part.stopped) for part in further)]:
            check_history(told)
            model.histories_.append(History(told, why))
        for name, value in vars(numbers).items():
            if value is not None:
                setattr(model, name, value)
        for name, array in found.arrays.items():
            setattr(model, name, _read_array(name, *array))
        model.encoder_ = encoder
        cls._check_arrays(model)
        if isinstance(params.get("class_weight"), list):
            weights = typed.read(list[PositiveFloat], params["class_weight"], "estimator.params.class_weight")
            model.set_params(class_weight=dict(zip(model.classes_.tolist(), weights, strict=True)))
        model.x_scaling_ = _read_scaling(file, "x_scaling_", TableScaling, (d,))
        is_regressor = numbers.target_shape_ is not None
        if is_regressor and math.prod(numbers.target_shape_ or ()) != n_outputs:
            raise ValueError(f"target_shape_ must stand for {n_outputs} targets, got {numbers.target_shape_}")
        model.y_scaling_ = _read_scaling(file, "y_scaling_", Scaling, (n_outputs,)) if is_regressor else None
        model.seen_x_ = model.seen_y_ = None
        if "rows.seen_x_" in file.names():
            n = file.shape("rows.seen_x_")[0]
            model.seen_x_ = file.tensor("rows.seen_x_", (n, d)).numpy()
            model.seen_y_ = _read_targets(file, n, n_outputs, numbers.target_shape_)
            if "rows.seen_weight_" in file.names():
                model.seen_weight_ = file.tensor("rows.seen_weight_", (n,), torch.float64, low=TINY).numpy()
        return model

    def _check_arrays(self) -> None:
        """Raise unless classes and names of columns, where there are any, fit the network."""
        learned = vars(self)
        if "feature_names_in_" in learned and len(learned["feature_names_in_"]) != self.n_features_in_:
            raise ValueError(f"feature_names_in_ must have {self.n_features_in_} names")
        if self.encoder_ is not None:
            names = learned.get("feature_names_in_", [f"x{k}" for k in range(self.n_features_in_)])
            if not {column.name for column in self.encoder_.columns_} <= set(names):
                raise ValueError("feature_names_in_ must have all columns of the encoder")
            self.encoder_.feature_names_in_ = np.asarray(names, dtype=object)
        is_regressor, classes = "target_shape_" in learned, learned.get("classes_")
        if is_regressor != (classes is None) or is_regressor != self.network_.head.has_noise:
            raise ValueError("an estimator has either classes, and a network that tells them apart, or targets")
        if classes is None:
            return
        if len(classes) != self.network_.n_outputs or not np.array_equal(np.unique(classes), classes):
            raise ValueError(f"classes_ must be {self.network_.n_outputs} different ones, in order")


@dataclass(frozen=True)
class Numbers:
    """What was learned beside tensors."""

    n_features_in_: Positive
    n_iter_: Count
    loo_score_: Measured
    loo_error_: Measured
    _seeds: tuple[int, ...]
    target_shape_: tuple[Positive, ...] | None


@dataclass(frozen=True)
class FurtherHeader:
    """What a file says of a network behind the first."""

    network: dict[str, Any]
    history: list[EpochRecord]
    stopped: str


@dataclass(frozen=True)
class EstimatorHeader:
    """What a file says of an estimator beside its first network."""

    type: str
    params: dict[str, str | int | float | bool | list[int] | list[float] | None]
    numbers: Numbers
    arrays: dict[Literal["classes_", "feature_names_in_"], tuple[list[str | bool | int | float], str]]
    encoder: EncoderHeader | None
    history: list[EpochRecord]
    stopped: str


def _read_array(name: str, values: list[Any], code: str) -> NDArray[Any]:
    """Texts or numbers, in the type that they had."""
    if re.fullmatch(r"\|O|\|b1|[<>=|]?[iufU]\d{1,6}", code) is None:
        raise ValueError(f"{name} must hold texts, numbers or booleans, got the type {code!r}")
    dtype = np.dtype(code)
    if len(values) * dtype.itemsize > LARGEST_ARRAY:
        raise ValueError(f"{name} must take {LARGEST_ARRAY:,} bytes at most, got {len(values)} of {dtype}")
    found = np.array(values, dtype=dtype)
    if found.tolist() != values:
        raise ValueError(f"{name} must hold values of the type {code!r}")
    return found


def _read_scaling(file: persistence.SavedFile, name: str, kind: type, shape: tuple[int, ...]) -> Any:
    """A scaling of columns, of this kind."""
    found = {}
    for part in (one.name for one in fields(kind)):
        limits: dict[str, Any] = {} if part in CENTRES else {"low": TINY, "is_finite": part not in WIDTHS}
        found[part] = file.tensor(f"scaling.{name}.{part}", shape, torch.float64, **limits).numpy()
    return kind(**found)


def _read_targets(file: persistence.SavedFile, n: int, n_outputs: int, shape: tuple[int, ...] | None) -> NDArray[Any]:
    if shape is None:  # classes, by their numbers
        return file.tensor("rows.seen_y_", (n,), torch.int64, low=0, high=n_outputs - 1).numpy()
    return file.tensor("rows.seen_y_", (n, n_outputs), torch.float64).numpy()


def _prefix(k: int) -> str:
    """Of the names of the tensors of a further network."""
    return f"further.{k}."


def _plain_params(params: dict[str, Any], classes: NDArray[Any] | None) -> dict[str, Any]:
    """Parameters as JSON holds them; None for layers, which are the network's own, and for generators. Weights of the
    classes in their order.
    """
    if classes is not None and isinstance(params["class_weight"], Mapping):
        params["class_weight"] = [float(params["class_weight"].get(label, 1.0)) for label in classes.tolist()]
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
