"""What both estimators share: the network for a table, standardised inputs, one training run, data added later."""

from __future__ import annotations

import copy
import datetime
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data
from torch import Tensor

from bayesmp.basics import checks
from bayesmp.basics.arithmetic import undisturbed
from bayesmp.basics.settings import SETTINGS
from bayesmp.basics.telling import warn_user
from bayesmp.data import Scaling
from bayesmp.diagnosis import EXPLAINED, Diagnosis, diagnose, explained_otherwise
from bayesmp.estimators.columns.encoder import TableEncoder
from bayesmp.estimators.columns.sentinels import tell_sentinels
from bayesmp.estimators.columns.values import is_plain
from bayesmp.estimators.scaling import FAR_APART, TableScaling, values_apart
from bayesmp.evidence.groups import (
    check_groups,
    check_sample_weight,
    copies_count_once,
    groups_of,
    in_one_order,
    whole_groups,
)
from bayesmp.evidence.influence import predict_left_out
from bayesmp.heads import Head, mixture
from bayesmp.layers import LeakyReLU, Linear
from bayesmp.layers.base import Layer
from bayesmp.network.network import Network
from bayesmp.training.constant_guess import WHAT_TO_DO, WORSE, nll_of_one_guess
from bayesmp.training.history import History
from bayesmp.training.many import fit_many
from bayesmp.training.schedules import has_objective
from bayesmp.training.stopping import refreshes, tell_unrest
from bayesmp.training.train_config import TrainConfig
from bayesmp.training.trainer import MAX_EPOCHS, NOT_AT_REST, Trainer

Floats: TypeAlias = NDArray[np.float64]
Hidden: TypeAlias = str | int | Sequence[int] | Sequence[Layer] | Callable[[int, int], Sequence[Layer]]
Self = TypeVar("Self", bound="MPEstimator")


class OutlierWarning(UserWarning):
    """A value stands apart from all others."""


FEWEST_ROWS = 3  # below which leave-one-out scores are NaN: two rows left apart have only each other
NAMED = 3  # columns that an error names
NEXT_TO_NOTHING = 0.05  # nats by which a score is better than that of one guess for all rows, and no more
REPEATED_ROWS = 200  # up to so many rows, or twice those given, a row of weight 2 is learned as two rows

AUTO, USUAL = "auto", (50,)  # widths of the hidden layers: a choice, and what it mostly is
HIDDEN_FORMS = (
    '"auto", widths such as (50,) or (32, 32), all layers of the network such as [Linear(10, 50), LeakyReLU(), '
    "Linear(50, 1)], or a function (n_inputs, n_outputs) -> such layers"
)


@dataclass(frozen=True, eq=False)
class Posed:
    """A table's targets as a network learns them.

    Attributes:
        head: what they mean, to a network that has an objective for so many rows (training/schedules/objective.py),
        head_of_many: and to a larger one, if that is another.
        targets: as the head wants them.
        n_outputs: of the network.
        scaling: how they were standardised, if they were.
    """

    head: Head
    targets: NDArray[Any]
    n_outputs: int
    scaling: Scaling | None = None
    head_of_many: Head | None = None


class MPEstimator(BaseEstimator, ABC):
    """Parameters, training and the data seen so far; the two estimators say what targets mean.

    Networks are trained in float32 and kept in float64, so that predictions do not depend on which rows are predicted
    together.
    """

    encoder_: TableEncoder | None = None  # of a table that is not numbers alone
    networks_: list[Network]
    histories_: list[History]
    n_iter_: int
    loo_score_: float
    loo_error_: float
    _seeds: tuple[int, ...]  # of the networks
    seen_x_: Floats | None  # all rows seen, encoded, in the units they came in; None if they were left out of a file
    seen_y_: NDArray[Any] | None
    seen_weight_: Floats | None = None  # how often each row seen counts; None: once
    _named: NDArray[np.int64] | None = None  # the groups that the user has named, (n,); not kept in files
    _groups: Tensor | None = None  # the group of each row learned (`groups_of`), (n,); not kept in files
    x_scaling_: TableScaling
    y_scaling_: Scaling | None

    def __init__(
        self,
        hidden: Hidden = AUTO,
        *,
        n_networks: int = 1,
        n_jobs: int | None = None,
        epochs: int | str = "auto",
        max_epochs: int = MAX_EPOCHS,
        batch_size: int = 128,
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        self.hidden = hidden
        self.n_networks = n_networks
        self.n_jobs = n_jobs
        self.epochs = epochs
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.random_state = random_state
        self.verbose = verbose

    @property
    def network_(self) -> Network:
        """The trained network, the first of several."""
        return self.networks_[0]

    @property
    def history_(self) -> History:
        """What its training told."""
        return self.histories_[0]

    def usual_hidden(self, n_inputs: int) -> tuple[int, ...]:
        """Widths of the hidden layers where none were asked for."""
        return USUAL

    @abstractmethod
    def pose_targets(self, y: NDArray[Any]) -> Posed:
        """What the network is to learn from these targets."""

    @abstractmethod
    def loo_in_units(self, nll: float, error: float) -> tuple[float, float]:
        """`loo_score_` and `loo_error_` from what training computed."""

    @abstractmethod
    def check_given(self, X: Any, y: Any) -> tuple[Floats, NDArray[Any]]:
        """Rows and targets like those of `fit`, checked; targets as the network learns them."""

    def diagnose(self, X: Any, y: Any) -> Diagnosis:
        """What looks wrong with the fitted network, judged on rows that it was not fitted on; `print` it.

        Figures about inputs and targets are in standard deviations of the training data (`Network.diagnose`). Of
        several networks the first is looked at.

        Args:
            X, y: rows and targets as for `fit`.
        """
        check_is_fitted(self)
        x, targets = self.check_given(X, y)
        return diagnose(self.network_, self.x_scaling_.apply(x), targets, has_batches=False)

    def class_weight_of(self, y: NDArray[Any], weight: Floats | None) -> Floats | None:
        """Factors on the weights of rows that come from their targets; None: none."""
        return None

    @staticmethod
    def counted_rows(
        x: Floats, y: NDArray[Any], groups: Any, sample_weight: Any
    ) -> tuple[Floats, NDArray[Any], NDArray[np.int64] | None, Floats | None]:
        """Rows that count, with their groups and weights: those of weight 0 are left out."""
        named, weight = check_groups(groups, len(x)), check_sample_weight(sample_weight, len(x))
        if weight is None or weight.all():
            return x, y, named, weight
        counts = weight > 0.0
        return x[counts], y[counts], None if named is None else named[counts], weight[counts]

    def _rows_to_learn(
        self, x: Floats, y: NDArray[Any], weight: Floats | None
    ) -> tuple[NDArray[np.int64], Floats | None]:
        """Which rows training sees, and how often each of them counts; None: once, but copies of each other together.

        A row of weight w is learned as ceil(w) rows that share the weight, so that a weight of 2 is the same as two
        rows, to the last bit, wherever copies count as rows of their own (groups.py). Where this would take too many
        rows, they are fewer and heavier.
        """
        factors, rows = self.class_weight_of(y, weight), np.arange(len(x))
        if factors is not None:
            weight = factors if weight is None else factors * weight
        if weight is not None and (weight != 1.0).any():
            weight = weight * copies_count_once(x, y).numpy()
            unit = max(1.0, weight.sum() / max(2 * len(x), REPEATED_ROWS))
            often = np.ceil(weight / unit).astype(np.int64)
            rows, weight = np.repeat(rows, often), np.repeat(weight / often, often)
        else:
            weight = None
        order = in_one_order(x[rows], y[rows].reshape(len(rows), -1))
        if order is not None and bool((copies_count_once(x, y) == 1.0).all()):
            rows, weight = rows[order.numpy()], None if weight is None else weight[order.numpy()]
        return rows, weight

    def train_on(
        self: Self, x: Floats, y: NDArray[Any], *, is_first: bool, groups: Any = None, sample_weight: Any = None
    ) -> Self:
        """Train on these rows; unless they are the first, on all seen before as well, from the means reached so far."""
        x, y, named, weight = self.counted_rows(x, y, groups, sample_weight)
        if named is not None and len(x) > 1 and (named == named[0]).all():
            warn_user("all rows are of one group, so no score tells how well rows of another group are predicted")
        n_networks = checks.check_positive_int(self.n_networks, "n_networks")
        starts: list[Tensor] | None = None
        if is_first:
            draws = check_random_state(self.random_state)
            seeds = tuple(int(draws.randint(2**31 - 1)) for _ in range(n_networks))
        else:
            if self.seen_x_ is None or self.seen_y_ is None:
                raise ValueError(
                    "partial_fit adds to the rows seen before, and this model was saved without them (data=False); "
                    "call fit with all rows"
                )
            seeds = self._seeds
            if n_networks != len(seeds):
                raise ValueError(
                    f"partial_fit goes on with the networks it has ({len(seeds)}), but n_networks was changed to "
                    f"{n_networks}; call fit to start anew"
                )
            if self.seen_weight_ is not None or weight is not None:
                parts = [(self.seen_weight_, self.seen_x_), (weight, x)]
                weight = np.concatenate([np.ones(len(rows)) if own is None else own for own, rows in parts])
            x, y = np.concatenate([self.seen_x_, x]), np.concatenate([self.seen_y_, y])
            if self._named is not None:  # further rows belong to no earlier ones, unless they are copies
                named = np.concatenate([self._named, np.arange(len(self._named), len(x))])
            starts = [network.marginal.mean.cpu() for network in self.networks_]
        self._warn_of_outliers(x, y)
        seen = x, y, weight
        rows, weight = self._rows_to_learn(x, y, weight)
        x, y = x[rows], y[rows]
        x_scaling = TableScaling.fit(x)
        posed = self.pose_targets(y)
        hidden = self.usual_hidden(x.shape[1]) if isinstance(self.hidden, str) and self.hidden == AUTO else self.hidden
        networks = make_networks(hidden, x.shape, posed, seeds, is_weighted=weight is not None)
        for network, start in zip(networks, starts or [], strict=False):
            if start.shape != network.start.shape:
                raise ValueError(
                    f"partial_fit goes on with the network it has ({len(start):,} weights), but hidden was changed to "
                    f"{self.hidden!r} ({len(network.start):,} weights); call fit to start anew"
                )
            network.start = start
        inputs = x_scaling.apply(x)
        self._named, labels = named, None if named is None else named[rows]
        self._groups = groups_of(inputs, labels)
        histories = self._run(networks, inputs, posed.targets, seeds, {"groups": labels, "sample_weight": weight})
        scores = (math.nan, math.nan)
        if len(x) >= FEWEST_ROWS:
            scores = loo_scores(networks, histories, inputs, posed.targets, self._groups, weight)
            if self.epochs == AUTO and not any(WORSE in history.stopped for history in histories):
                self._warn_of_nothing_learned(inputs, torch.as_tensor(posed.targets), self._groups, weight, scores[0])
        self._seeds, (self.seen_x_, self.seen_y_, self.seen_weight_) = seeds, seen
        self.x_scaling_, self.y_scaling_ = x_scaling, posed.scaling
        self.networks_, self.histories_ = [network.to(torch.float64) for network in networks], histories
        self.n_iter_ = max(len(history) for history in histories)
        self.loo_score_, self.loo_error_ = self.loo_in_units(*scores)
        return self

    def _warn_of_nothing_learned(
        self, x: Floats, targets: Tensor, groups: Tensor, weight: Floats | None, nll: float
    ) -> None:
        """Warn where the score is that of one guess for all rows, though near neighbours or a straight line do better:
        a function that bends too often is taken for noise, and training is at rest.
        """
        guess = nll_of_one_guess(targets, None if weight is None else torch.as_tensor(weight))
        if guess == -math.inf or nll < guess - NEXT_TO_NOTHING:
            return
        rows = np.unique(groups.numpy(), return_index=True)[1]  # those of one group would explain each other
        rows = np.random.default_rng(0).permutation(rows)
        y = targets[rows] if targets.is_floating_point() else torch.nn.functional.one_hot(targets[rows])
        explained = explained_otherwise(torch.as_tensor(x[rows]), y)
        if explained > EXPLAINED:
            warn_user(
                f"{type(self).__name__} has learned next to nothing: leave-one-out it is no better than one guess for "
                f"all rows, though near neighbours or a straight line explain {explained:.0%} of the targets' "
                "variance. Do not use its predictions. A function that bends too often looks like noise to a network: "
                "add columns that follow its bends, such as the sine and cosine of a period, or use another model",
                ConvergenceWarning,
            )

    def _warn_of_outliers(self, x: Floats, y: NDArray[Any]) -> None:
        """Warn of columns, or targets, in which values stand apart from all others."""
        names = getattr(self, "feature_names_in_", range(x.shape[1]))
        if self.encoder_ is not None:
            names = self.encoder_.get_feature_names_out()
        else:  # the encoder has told of them
            told = [tell_sentinels(f"column {name!r}", x[:, k]) for k, name in enumerate(names)]
            if said := "; ".join(filter(None, told)):
                warnings.warn(said, OutlierWarning, stacklevel=4)
        found = [
            (f"column {names[column]!r}", x[row, column], row) for column, row in values_apart(x, FAR_APART).items()
        ]
        if y.dtype.kind == "f":
            targets = y.reshape(len(y), -1)
            found += [("y", targets[row, part], row) for part, row in values_apart(targets).items()]
        if found:
            name, value, row = found[0]
            more = f" (and {len(found) - 1} more columns)" if len(found) > 1 else ""
            warnings.warn(checks.tell_outlier(f"{name}{more}", value, row), OutlierWarning, stacklevel=4)

    def _run(
        self,
        networks: list[Network],
        x: Floats,
        targets: NDArray[Any],
        seeds: tuple[int, ...],
        of_rows: dict[str, Any],
    ) -> list[History]:
        """Train; `of_rows` says which rows belong together, and how often each counts."""
        checks.check_epochs(self.epochs, least=1)
        with warnings.catch_warnings():  # said below, for estimators
            warnings.filterwarnings("ignore", message=rf"(network \d+: )?training (was {NOT_AT_REST}|ended {WORSE})")
            histories = self._train(networks, x, targets, seeds, of_rows)
        failed = [history for history in histories if WORSE in history.stopped]
        if failed:
            told = f"ended {WORSE}, with a leave-one-out NLL of {failed[0].loo_nll[-1]:.3g}. {WHAT_TO_DO}"
            self._warn_of_end(failed, len(networks), told)
        restless = [history for history in histories if history.stopped.startswith(NOT_AT_REST)]
        if restless:
            why = tell_unrest(refreshes(restless[0]), f"raise max_epochs (now {self.max_epochs})")
            self._warn_of_end(restless, len(networks), f"was {restless[0].stopped}: {why}")
        if self.verbose:
            print(*histories, sep="\n")
        return histories

    def _warn_of_end(self, concerned: list[History], n_networks: int, told: str) -> None:
        """Warn of how some networks ended."""
        one_of = "" if n_networks == 1 else f", {len(concerned)} of its {n_networks} networks,"
        warnings.warn(f"{type(self).__name__}{one_of} {told}", ConvergenceWarning, stacklevel=5)

    def _train(
        self,
        networks: list[Network],
        x: Floats,
        targets: NDArray[Any],
        seeds: tuple[int, ...],
        of_rows: dict[str, Any],
    ) -> list[History]:
        """One with a bar that tells of its epochs; several side by side, with a bar that counts them."""
        options: dict[str, Any] = {"max_epochs": self.max_epochs, "progress": bool(self.verbose)}
        if len(networks) == 1:
            trainer = Trainer(networks[0], x, targets, batch_size=self.batch_size, seed=seeds[0], **of_rows)
            return [trainer.run(self.epochs, **options)]
        TrainConfig(batch_size=self.batch_size)  # refused here, not by a network
        checks.check_positive_int(self.max_epochs, "max_epochs")
        return fit_many(
            networks,
            x,
            targets,
            epochs=self.epochs,
            batch_size=self.batch_size,
            seed=seeds,
            workers=None if self.n_jobs is None else effective_n_jobs(self.n_jobs),
            **of_rows,
            **options,
        )

    def predict_scaled(self, x: Floats) -> Any:
        """What all networks say of standardised inputs, as one prediction."""
        return _as_one([network.predict(x) for network in self.networks_])

    def scaled_inputs(self, X: Any) -> Floats:
        """X as it was in `fit`: the same columns, finite numbers; standardised."""
        check_is_fitted(self)
        x: Floats = self.checked_table(X, reset=False)
        return self.x_scaling_.apply(x)

    def checked_table(self, X: Any, y: Any = "no_validation", **options: Any) -> Any:
        """X, encoded unless it is numbers alone, and y if it is given, as scikit-learn checks them, and with advice
        about columns of text.
        """
        checks.check_collected(X, "X")
        checks.check_collected(y, "y")
        X, name, reset = as_array(X), type(self).__name__, options.get("reset", True)
        encoder = self.encoder_ if not reset else None if is_plain(X) else TableEncoder()
        if encoder is not None:
            validate_data(self, X, skip_check_array=True, reset=reset)  # names and number of columns
            encoded = encoder.fit_transform(X) if reset else encoder.transform(X)
        elif (dates := _listed(X, "mM")) or getattr(getattr(X, "dtype", None), "kind", "") in ("m", "M"):
            raise ValueError(
                f"X has columns of dates, {dates or 'all of them'}, and {name} learns from numbers only: turn them "
                "into numbers first, e.g. the year, or days since some date"
            )
        try:
            with np.errstate(invalid="ignore"):  # of inf - inf, by which scikit-learn finds out
                if encoder is None:
                    found = validate_data(self, X, y, dtype=np.float64, **options)
                elif isinstance(y, str):  # not given
                    found = encoded
                else:
                    options = {name: value for name, value in options.items() if name != "reset"}
                    found = check_X_y(encoded, y, dtype=np.float64, estimator=self, **options)
        except (ValueError, TypeError) as error:
            said = str(error).split("\n")[0].rstrip(".")
            if said.startswith("Input X contains"):
                raise ValueError(f"{said}{_tell_gaps(X, name)}") from error
            if said.startswith("Input y contains"):
                rows = np.flatnonzero(~np.isfinite(np.asarray(y, dtype=np.float64).reshape(len(y), -1)).all(1))
                raise ValueError(
                    f"{said}: {len(rows):,} of {len(y):,} targets, first in row {rows[0]}; drop such rows"
                ) from error
            if said.startswith("Sparse data was passed"):
                raise TypeError(
                    f"X is sparse, and {name} learns from dense tables: pass X.toarray(), or let the step before be "
                    "dense, e.g. OneHotEncoder(sparse_output=False) or ColumnTransformer(..., sparse_threshold=0)"
                ) from error
            if "could not convert string to float" not in said:
                raise
            if not _is_number(y, said):
                raise ValueError(f"{said}; {name} predicts numbers, and MPClassifier labels of any type") from error
            text = _listed(X, "OSUT")
            raise ValueError(
                f"{said}; {name} learns from numbers only, or from a data frame, whose texts become categories: pass "
                f"one, or encode columns of text{f' ({text})' if text else ''} first, e.g. with OneHotEncoder in a "
                "ColumnTransformer"
            ) from error
        self.encoder_ = encoder
        return found

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "networks_")


def _as_one(predictions: list[Any]) -> Any:
    return predictions[0] if len(predictions) == 1 else mixture(predictions)


@undisturbed()
def loo_scores(
    networks: list[Network],
    histories: list[History],
    x: Floats,
    y: NDArray[Any],
    groups: Tensor,
    weight: Floats | None = None,
) -> tuple[float, float]:
    """Leave-one-out NLL and error of all networks as one, from the rows that training was judged by.

    What a network says of a row without that row follows from its own belief, as in `trainer.influence`; the mixture of
    several is scored as that of predictions for new rows would be.
    """
    if len(networks) == 1 and (networks[0].fitted is not None or not networks[0].head.varies):  # its history knows
        return histories[0].loo_nll[-1], histories[0].loo_error[-1]
    inputs = torch.as_tensor(x, dtype=networks[0].dtype)
    targets = networks[0].head.check_targets(y, networks[0].n_outputs)
    targets = targets.to(inputs) if targets.is_floating_point() else targets
    if networks[0].fitted is not None:
        rows = whole_groups(groups, SETTINGS.judged_examples)
    else:
        rows = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))[: SETTINGS.refresh_examples]
    counted = None if weight is None else torch.as_tensor(weight)
    found = _as_one([predict_left_out(network, inputs, targets, rows, weight=counted) for network in networks])
    known = targets[rows]
    often = torch.ones(len(rows), dtype=torch.float64) if counted is None else counted[rows]
    share = often / often.sum()
    nll = -float(share @ found.log_prob(known).double().reshape(len(rows), -1).mean(1))
    if known.is_floating_point():
        return nll, math.sqrt(float(share @ (found.mean - known).double().square().reshape(len(rows), -1).mean(1)))
    return nll, float(share @ (found.label != known).double())


def as_array(values: Any) -> Any:
    """A tensor as an array, wherever it lies and whether or not it has gradients; all else as it is."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def _table_values(X: Any) -> Floats | None:
    """The numbers of a table, (n, d); None for what is no plain table."""
    try:
        values = checks.frame_values(X) if checks.is_frame(X) else np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return values if values.ndim == 2 else None


def _tell_gaps(X: Any, name: str) -> str:
    """Which columns of a table are not finite, and what to do, as the end of a sentence."""
    values = _table_values(X)
    where, is_infinite = "", values is not None and bool(np.isinf(values).any())
    if values is not None:
        names = getattr(X, "columns", range(values.shape[1]))
        counts = (~np.isfinite(values)).sum(0)
        found = [f"column {name!r} in {count:,}" for name, count in zip(names, counts, strict=True) if count]
        more = f", and {len(found) - NAMED} more columns" if len(found) > NAMED else ""
        where = f": {', '.join(found[:NAMED])}{more} of {len(values):,} rows"
    if is_infinite:
        return f"{where}; drop rows with infinite values, or replace these by numbers (a SimpleImputer refuses them)"
    return (
        f"{where}; drop such rows or columns, or fill the gaps, e.g. with a SimpleImputer before {name} in a pipeline; "
        "or fit on a data frame, whose gaps are filled and marked"
    )


def _listed(X: Any, kinds: str) -> str:
    """The first columns of a data frame whose types are of these kinds (`checks.columns_of`), as text."""
    found = checks.columns_of(X, kinds) if checks.is_frame(X) else []
    return ", ".join(map(repr, found[:NAMED])) + (", ..." if len(found) > NAMED else "")


def has_dates(y: Any) -> bool:
    """Whether targets are points or lengths of time, which would pass for their nanoseconds."""
    values = np.asarray(y)
    if values.dtype.kind != "O":
        return values.dtype.kind in "mM"
    kinds = (datetime.date, datetime.timedelta, np.datetime64, np.timedelta64)
    return any(isinstance(value, kinds) for value in values.ravel())


def _is_number(y: Any, said: str) -> bool:
    """Whether this is not where the text that could not be converted is."""
    values = np.asarray(y).ravel()
    return values.dtype.kind not in "OUS" or not any(repr(str(value)) in said for value in values)


def make_networks(
    hidden: Hidden, shape: tuple[int, ...], posed: Posed, seeds: Sequence[int], *, is_weighted: bool = False
) -> list[Network]:
    """One per seed, for a table of this shape, with the head that goes with its size; rows with weights need one that
    has an objective.
    """
    n_rows, n_inputs = shape
    head = posed.head
    if posed.head_of_many is not None and not is_weighted:
        first = make_network(hidden, n_inputs, posed.n_outputs, head, seed=seeds[0])
        head = head if has_objective(first, n_rows) else posed.head_of_many
    return [make_network(hidden, n_inputs, posed.n_outputs, copy.deepcopy(head), seed=seed) for seed in seeds]


def make_network(hidden: Hidden, n_inputs: int, n_outputs: int, head: Head, *, seed: int) -> Network:
    """The network that `hidden` describes, or a ValueError if it does not fit the data."""
    layers = _layers(hidden, n_inputs, n_outputs)
    network = Network(layers, head, seed=seed)
    if network.input_shape != (n_inputs,) or network.n_outputs != n_outputs:
        raise ValueError(
            f"the layers in hidden take inputs of shape {network.input_shape} and have {network.n_outputs} outputs; "
            f"these data need ({n_inputs},) and {n_outputs}: change first and last layer, or give widths alone, (50,)"
        )
    return network


def _layers(hidden: Hidden, n_inputs: int, n_outputs: int) -> list[Layer]:
    if callable(hidden):
        hidden = hidden(n_inputs, n_outputs)
    if isinstance(hidden, (int, np.integer)) and not isinstance(hidden, bool):
        hidden = (int(hidden),)
    if isinstance(hidden, (str, bytes)) or not isinstance(hidden, (Sequence, np.ndarray)):
        raise ValueError(f"hidden must be {HIDDEN_FORMS}; got {hidden!r}")
    parts: list[Any] = list(hidden)
    if parts and all(isinstance(part, Layer) for part in parts):
        return parts
    if not all(isinstance(part, (int, np.integer)) and not isinstance(part, bool) and part > 0 for part in parts):
        raise ValueError(f"hidden must be {HIDDEN_FORMS}; got {hidden!r}")
    layers: list[Layer] = []
    for n_in, n_out in pairwise([n_inputs, *map(int, parts), n_outputs]):
        layers += [Linear(n_in, n_out), LeakyReLU()]
    return layers[:-1]
