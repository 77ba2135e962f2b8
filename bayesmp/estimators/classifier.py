"""Classification with honest probabilities, as scikit-learn calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import column_or_1d

from bayesmp.estimators.base import AUTO, Floats, Hidden, Posed, as_array
from bayesmp.estimators.files import SavedEstimator
from bayesmp.heads import Argmax, ClassPrediction, Softmax
from bayesmp.training.trainer import MAX_EPOCHS


class MPClassifier(ClassifierMixin, SavedEstimator):
    """A Bayesian network for labels: probabilities of the classes, and how much of the doubt is ignorance.

    Inputs are standardised inside by the training data; those far outside of their column are bent nearer
    (`bayesmp.estimators.TableScaling`). Labels may be of any type: numbers, texts, booleans.

    Args:
        hidden: widths of the hidden layers (LeakyReLU between them), () for none; "auto" is (50,); or all layers of the
            network; or a function (n_inputs, n_outputs) -> layers, which fits any table.
        n_networks: networks that differ in what random_state draws, and predict together (`bayesmp.mixture`). Three
            mostly predict better than one where a function is to be found, and about as well where noise is what is
            left; they take three times as long, or less where there are cores for them, and err on the careful side.
        n_jobs: processes that train networks side by side, -1 for one per core; None takes what joblib.parallel_config
            says, or else what pays. A single network is trained in this process.
        class_weight: factors on the weights of rows by their classes: a dict of them by label, 1 for labels that it
            does not name, or "balanced", n / (classes * rows of the class), by which all classes count alike. The
            probabilities are then those of a population that is mixed so, not those of the training data.
        epochs: passes over the data, or "auto": until the leave-one-out score and the means are at rest.
        max_epochs: bound for "auto"; a ConvergenceWarning comes if it was met first.
        batch_size: rows that share a site, at most.
        random_state: draws the means at which training starts and the batches.
        verbose: show a progress bar, and what came out.

    Attributes:
        classes_: the labels, in the order of the columns of `predict_proba`.
        networks_: the trained Networks; they see standardised inputs and number classes from 0.
        network_: the first of them, which random_state draws for n_networks=1, too.
        histories_: what their training told, one record per epoch.
        history_: the first of them.
        n_iter_: epochs of the last `fit` or `partial_fit`; of several networks, those of the longest training.
        loo_score_: leave-one-out score, higher is better: mean log-probability of each training label, predicted
            without its row (nats); from a random part of more than 1,024 rows. NaN for fewer than three rows.
            Of several networks it is that of their mixture.
        loo_error_: share of training labels that are predicted wrongly without their rows; NaN as well.
        n_features_in_, feature_names_in_: the columns seen in `fit`.

    Note:
        The rows seen are kept, so that `partial_fit` can add to them; a pickle or a saved file holds them, too.
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        hidden: Hidden = AUTO,
        *,
        n_networks: int = 1,
        n_jobs: int | None = None,
        class_weight: dict[Any, float] | str | None = None,
        epochs: int | str = "auto",
        max_epochs: int = MAX_EPOCHS,
        batch_size: int = 128,
        random_state: Any = None,
        verbose: bool | int = False,
    ) -> None:
        super().__init__(
            hidden,
            n_networks=n_networks,
            n_jobs=n_jobs,
            epochs=epochs,
            max_epochs=max_epochs,
            batch_size=batch_size,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> MPClassifier:
        """Learn from X (n, d) and labels y (n,); whatever was learned before is forgotten.

        Args:
            X, y: rows and labels.
            groups: labels (n,) that say which rows belong together, e.g. measurements of one patient. Rows that are
                equal belong together anyhow.
            sample_weight: how often each row counts, (n,): its likelihood is raised to this power, so 2 counts as two
                independent rows with the same content, and 0 leaves the row out. Copies of a row, which count once
                together, count as often as their weights say on average. With weights training always has an
                objective, which takes minutes in large tables.
        """
        x, y = self._check_data(X, y, is_first=True)
        x, y, groups, weight = self.counted_rows(x, y, groups, sample_weight)
        y = self._encode(y, unique_labels(y), is_first=True)
        return self.train_on(x, y, is_first=True, groups=groups, sample_weight=weight)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> MPClassifier:
        """Learn from further rows without forgetting the earlier ones.

        The rows are added to those seen before, and training goes on with all of them from the means reached so far,
        as long as `epochs` says. Every row counts once: do not pass rows again that were seen already. The result is
        near that of one `fit` on all rows, and takes as long.

        Args:
            X, y: further rows and their labels.
            classes: all labels that may ever come; needed in the first call, and the same or left out in later ones.
            sample_weight: how often each of them counts, as for `fit`; once if not given.
        """
        is_first = not self.__sklearn_is_fitted__()
        if is_first and classes is None:
            raise ValueError("classes must be passed in the first call of partial_fit: all labels that may ever come")
        known = self.classes_ if classes is None else unique_labels(classes)
        if not is_first and not np.array_equal(known, self.classes_):
            raise ValueError(f"classes must be those of the first call, {self.classes_}, got {known}; or leave it out")
        x, y = self._check_data(X, y, is_first=is_first)
        y = self._encode(y, known, is_first=is_first)
        return self.train_on(x, y, is_first=is_first, sample_weight=sample_weight)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of each row."""
        index = self.predict_outputs(X).label.numpy()
        return np.asarray(self.classes_[index])

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities (n, classes), in the order of `classes_`."""
        return self.predict_outputs(X).probs.numpy()

    def predict_log_proba(self, X: Any) -> Floats:
        """Logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict_epistemic(self, X: Any) -> Floats:
        """How much of each row's entropy more data would take away, in nats (n,).

        Large where the functions that fit the data disagree about the label: near boundaries that few rows tell of, and
        on the whole for rows unlike the training data; but far out on one class's side they may all agree.
        """
        return self.predict_outputs(X).epistemic.numpy()

    def _check_data(self, X: Any, y: Any, *, is_first: bool) -> tuple[Floats, NDArray[Any]]:
        y = as_array(y)
        labels = y if isinstance(y, (list, tuple)) else np.asarray(y)
        if _is_objects(labels):
            missing = [row for row, label in enumerate(labels) if _is_missing(label)]
            if missing:
                raise ValueError(f"y has a missing label in row {missing[0]}; drop such rows, or give them a label")
        kinds = sorted({type(label).__name__ for label in labels}) if _is_objects(labels) else []
        if "str" in kinds and len(kinds) > 1:
            raise ValueError(f"labels must be of one type, got {' and '.join(kinds)}; convert them, e.g. to str")
        x, y = self.checked_table(X, y, reset=is_first)
        try:
            check_classification_targets(y)
        except ValueError as error:
            remedy = "MPRegressor predicts quantities; if these are labels, convert them to str"
            raise ValueError(f"{str(error).rstrip('.')}; {remedy}") from error
        return x, column_or_1d(y, warn=True)

    def _encode(self, y: NDArray[Any], classes: NDArray[Any], *, is_first: bool) -> NDArray[np.int64]:
        """Labels as numbers from 0."""
        if len(classes) < 2:
            raise ValueError(f"a classifier needs at least two classes to tell apart, got one class: {classes}")
        unknown = np.setdiff1d(y, classes)
        if len(unknown) > 0:
            raise ValueError(f"y has labels that are not among the classes {classes}: {unknown}")
        if is_first:
            self.classes_ = classes
        return np.searchsorted(classes, y).astype(np.int64)

    def class_weight_of(self, y: NDArray[Any], weight: Floats | None) -> Floats | None:
        if self.class_weight is None:
            return None
        known = np.arange(len(self.classes_))
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            each = np.ones(len(y)) if weight is None else weight
            counts = np.bincount(y, weights=each, minlength=len(known))
            factors = counts.sum() / ((counts > 0.0).sum() * np.where(counts > 0.0, counts, 1.0))
        elif isinstance(self.class_weight, Mapping):
            if unknown := [label for label in self.class_weight if label not in self.classes_.tolist()]:
                raise ValueError(f"class_weight names labels that are not among the classes {self.classes_}: {unknown}")
            factors = np.array(
                [self.class_weight.get(label, 1.0) for label in self.classes_.tolist()], dtype=np.float64
            )
            if not (np.isfinite(factors) & (factors > 0.0)).all():
                raise ValueError(f"class_weight must hold finite numbers above 0, got {self.class_weight}")
        else:
            raise ValueError(
                f"class_weight must be None, 'balanced' or a dict of weights by label, got {self.class_weight!r}"
            )
        return np.asarray(factors[y])

    def check_given(self, X: Any, y: Any) -> tuple[Floats, NDArray[Any]]:
        x, y = self._check_data(X, y, is_first=False)
        return x, self._encode(y, self.classes_, is_first=False)

    def pose_targets(self, y: NDArray[Any]) -> Posed:
        return Posed(Softmax(), y, len(self.classes_), head_of_many=Argmax())

    def loo_in_units(self, nll: float, error: float) -> tuple[float, float]:
        return -nll, error

    def predict_outputs(self, X: Any) -> ClassPrediction:
        found: ClassPrediction = self.predict_scaled(self.scaled_inputs(X))
        return found


def _is_missing(label: Any) -> bool:
    """None, NaN, or pandas' NA."""
    return label is None or type(label).__name__ in ("NAType", "NaTType") or bool(label != label)  # NaN is not itself


def _is_objects(labels: Any) -> bool:
    """Whether labels may be of several types."""
    return isinstance(labels, (list, tuple)) or (labels.ndim == 1 and labels.dtype.kind == "O")
