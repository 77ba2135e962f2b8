"""The scikit-learn estimators on small tables, against scikit-learn's own: score, NLL, honesty, seconds.

All methods have their defaults, one hidden layer of 50 where they have one, standardised inputs, and no choice made on
the rows they are scored on: a quarter of each table, another one for each seed. R2 and accuracy as scikit-learn has
them; NLL in nats, for targets in units of the training part's std; coverage of 90 % intervals; ECE of the top class in
15 bins. Methods that give no variance get that of their residuals in 5-fold cross-validation on the training part, and
are then trained on all of it. Gaussian processes see at most 1,000 rows, and are left out where they take minutes.

diabetes (442 rows), digits (1,797), breast_cancer (569), wine (178): as scikit-learn has them. friedman1: 1,000 rows,
ten features of which five matter, noise of std 1. housing: 5,000 rows made here, eight skewed features of very
different scales, constant noise.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

import bayesmp as bmp
from bayesmp import metrics
from benchmarks.options import begin, new_parser
from benchmarks.tables import mean_row
from benchmarks.timing import measured

SEEDS = 3
LEVEL = 0.9  # of the intervals
COVERAGE = f"coverage of {100 * LEVEL:.0f} %"
HIDDEN = (50,)
GP_ROWS = 1000  # a Gaussian process's time grows with their cube
GP_CLASS_ROWS = 600  # a process per class, each approximated anew for every kernel that is tried
QUICK_ROWS, QUICK_EPOCHS = 80, 5
OURS = "bayesmp"
NETWORKS = (OURS, "MLP", "MLP, early stopping")

Floats: TypeAlias = NDArray[np.float64]
Predictor: TypeAlias = Callable[[Floats], Any]  # mean and std (n,), or probabilities (n, c)


@dataclass(frozen=True, eq=False)
class Split:
    """Rows to train on and rows to score on, in the units of the table."""

    x_train: Floats
    y_train: NDArray[Any]
    x_test: Floats
    y_test: NDArray[Any]


# --- data ------------------------------------------------------------------------------------------------------------


def housing(n: int = 5000, seed: int = 0) -> tuple[Floats, Floats]:
    """x (n, 8) and y (n,): prices of districts in a made-up state with two cities; the noise has a std of 30,000.

    Columns: income in tens of thousands (skewed), age in years, rooms and bedrooms per household (skewed), people per
    district (skewed, up to tens of thousands), people per household (skewed), latitude, longitude.
    """
    rng = np.random.default_rng(seed)
    income = np.exp(rng.normal(1.2, 0.45, n))
    age = rng.uniform(1.0, 52.0, n)
    rooms = 3.0 + np.exp(rng.normal(0.7, 0.4, n) + 0.1 * (income - 3.5))
    bedrooms = rooms * rng.beta(20.0, 75.0, n)
    people = np.exp(rng.normal(7.0, 0.8, n))
    per_household = 1.5 + np.exp(rng.normal(0.2, 0.5, n))
    cities = np.array([[34.0, -118.2], [37.7, -122.4]])
    place = cities[rng.integers(0, 2, n)] + rng.gamma(1.5, 0.6, (n, 1)) * rng.normal(size=(n, 2))
    distance = np.sqrt(np.square(place[:, None] - cities).sum(2)).min(1)
    y = 450_000 * (1.0 - np.exp(-0.25 * income)) - 40_000 * np.log1p(2.0 * distance)
    y += 25_000 * np.log(rooms / per_household) + 900 * np.abs(age - 25.0) - 15_000 * np.log(people / 1000.0)
    y += 60_000 * np.exp(-distance) * np.log(income) + 30_000 * rng.normal(size=n)
    x = np.stack([income, age, rooms, bedrooms, people, per_household, place[:, 0], place[:, 1]], 1)
    return x, y


def load(name: str, seed: int) -> tuple[Floats, NDArray[Any]]:
    """x and y of a table; those that are made are fresh for each seed."""
    from sklearn import datasets

    if name == "housing":
        return housing(seed=seed)
    if name == "friedman1":
        found = datasets.make_friedman1(1000, n_features=10, noise=1.0, random_state=seed)
    else:
        found = getattr(datasets, f"load_{name}")(return_X_y=True)
    return found[0], found[1]


def split(x: Floats, y: NDArray[Any], seed: int, *, classes: bool, validate: bool, rows: int | None = None) -> Split:
    """A quarter of the rows to score on; with `validate`, a quarter of the others, and the first quarter left alone."""
    from sklearn.model_selection import train_test_split

    for k in range(2 if validate else 1):
        x, x_test, y, y_test = train_test_split(
            x, y, test_size=0.25, random_state=seed + 1000 * k, stratify=y if classes else None
        )
    return Split(x[:rows], y[:rows], x_test[:rows], y_test[:rows])


# --- methods ---------------------------------------------------------------------------------------------------------


def scaled(model: Any) -> Any:
    """The model behind a StandardScaler."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), model)


def with_std(model: Any) -> Callable[[Floats, Floats], Predictor]:
    """A regressor that knows its own standard deviation."""

    def fit(x: Floats, y: Floats) -> Predictor:
        fitted = scaled(model).fit(x, y)
        return lambda x_new: fitted.predict(x_new, return_std=True)

    return fit


def with_residuals(model: Any) -> Callable[[Floats, Floats], Predictor]:
    """A regressor that does not: one std, of its residuals in cross-validation."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.model_selection import cross_val_predict
    from sklearn.preprocessing import StandardScaler

    whole = TransformedTargetRegressor(scaled(model), transformer=StandardScaler())

    def fit(x: Floats, y: Floats) -> Predictor:
        std = float(np.sqrt(np.mean(np.square(y - cross_val_predict(whole, x, y, cv=5)))))
        fitted = whole.fit(x, y)
        return lambda x_new: (fitted.predict(x_new), np.full(len(x_new), std))

    return fit


def with_probs(model: Any) -> Callable[[Floats, NDArray[Any]], Predictor]:
    return lambda x, y: scaled(model).fit(x, y).predict_proba


def some_rows(fit: Callable[..., Predictor], seed: int, rows: int = GP_ROWS) -> Callable[..., Predictor]:
    """The same on at most so many random rows."""

    def fit_some(x: Floats, y: NDArray[Any]) -> Predictor:
        chosen = np.random.default_rng(seed).permutation(len(x))[:rows]
        return fit(x[chosen], y[chosen])

    return fit_some


def regressors(seed: int, n_rows: int, max_epochs: int, networks: int = 1) -> dict[str, Callable[..., Predictor]]:
    """How to fit each method; ours also as several networks that predict together."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.linear_model import BayesianRidge
    from sklearn.neural_network import MLPRegressor

    kernel = ConstantKernel() * RBF() + WhiteKernel()
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    mlp = {"hidden_layer_sizes": HIDDEN, "random_state": seed, "max_iter": max_epochs}
    own = bmp.MPRegressor(HIDDEN, max_epochs=max_epochs, random_state=seed)
    return {
        **alone_and_together(own, networks),
        "MLP": with_residuals(MLPRegressor(**mlp)),
        "MLP, early stopping": with_residuals(MLPRegressor(**mlp, early_stopping=True)),
        "Gaussian process" + (f", {GP_ROWS} rows" if n_rows > GP_ROWS else ""): some_rows(with_std(process), seed),
        "BayesianRidge": with_std(BayesianRidge()),
    }


def classifiers(seed: int, n_rows: int, max_epochs: int, networks: int = 1) -> dict[str, Callable[..., Predictor]]:
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    mlp = {"hidden_layer_sizes": HIDDEN, "random_state": seed, "max_iter": max_epochs}
    own = bmp.MPClassifier(HIDDEN, max_epochs=max_epochs, random_state=seed)
    found = {
        **alone_and_together(own, networks),
        "MLP": with_probs(MLPClassifier(**mlp)),
        "MLP, early stopping": with_probs(MLPClassifier(**mlp, early_stopping=True)),
        "LogisticRegression": with_probs(LogisticRegression(max_iter=1000)),
    }
    if n_rows <= GP_CLASS_ROWS:
        found["Gaussian process"] = with_probs(GaussianProcessClassifier(ConstantKernel() * RBF(), random_state=seed))
    return found


def alone_and_together(model: Any, networks: int) -> dict[str, Callable[..., Predictor]]:
    """Our estimator with one network, and with so many, if they are more."""
    from sklearn.base import clone

    found = {OURS: ours(model)}
    if networks > 1:
        found[f"{OURS}, {networks} networks"] = ours(clone(model).set_params(n_networks=networks))
    return found


def ours(model: Any) -> Callable[[Floats, NDArray[Any]], Predictor]:
    def fit(x: Floats, y: NDArray[Any]) -> Predictor:
        return Ours(model.fit(x, y))

    return fit


class Ours:
    """A fitted estimator as the others' form, and what only it can tell."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, x: Floats) -> Any:
        if hasattr(self.model, "predict_proba"):
            return self.model.predict_proba(x)
        return self.model.predict_outputs(x).undo(self.model.y_scaling_).flat()

    def extra(self, unit: float) -> dict[str, Any]:
        """Leave-one-out NLL, for targets in this unit, and where training stopped."""
        return {"leave-one-out NLL": -self.model.loo_score_ - float(np.log(unit)), "epochs": self.model.n_iter_}


# --- scores ----------------------------------------------------------------------------------------------------------


def regression_scores(
    predicted: tuple[Floats, Floats] | bmp.RegressionPrediction, y: Floats, unit: float
) -> dict[str, float]:
    """Of Gaussians (mean, std), or of what our network says."""
    from sklearn.metrics import r2_score

    if isinstance(predicted, tuple):
        mean, std = predicted
        nll, held = metrics.gaussian_nll(mean, np.square(std), y), metrics.coverage(mean, std, y, LEVEL)
    else:
        mean, nll = predicted.mean.numpy(), -float(predicted.log_prob(y).mean())
        held = metrics.interval_coverage(*predicted.interval(LEVEL), y)
    return {"R2": float(r2_score(y, mean)), "NLL": nll - float(np.log(unit)), COVERAGE: held}


def class_scores(probs: Floats, y: NDArray[Any]) -> dict[str, float]:
    return {
        "accuracy": metrics.accuracy(probs, y),
        "NLL": metrics.nll(probs, y, floor=1e-12),
        "ECE": metrics.ece(probs, y),
    }


def run(fit: Callable[..., Predictor], part: Split, *, classes: bool) -> dict[str, Any]:
    """Scores and seconds of one method on one split; seconds of fitting alone."""
    with measured(torch.device("cpu")) as cost, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of methods that met their bound on iterations
        predict = fit(part.x_train, part.y_train)
    unit = 1.0 if classes else float(part.y_train.std())
    found = predict(part.x_test)
    scores = class_scores(found, part.y_test) if classes else regression_scores(found, part.y_test, unit)
    return {**scores, "seconds": cost.seconds} | (predict.extra(unit) if isinstance(predict, Ours) else {})


IS_CLASSES = {
    "diabetes": False,
    "friedman1": False,
    "housing": False,
    "digits": True,
    "breast_cancer": True,
    "wine": True,
}


def is_ours(method: str) -> bool:
    return method == OURS or method.startswith(f"{OURS}, ")


def summary_row(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ours, with one network, against the best other network and the best of all others, by NLL."""
    own = next(row["NLL"] for row in rows if row["method"] == OURS)
    nll = {row["method"]: row["NLL"] for row in rows if not is_ours(row["method"])}
    best_network = min((key for key in nll if key in NETWORKS), key=nll.__getitem__)
    best = min(nll, key=nll.__getitem__)
    row = {"table": name, f"NLL of {OURS}": own, "of the best other network": nll[best_network]}
    row |= {"of the best other method": nll[best], "which is": best, "first of the networks": own < nll[best_network]}
    ours = next(row for row in rows if row["method"] == OURS)
    return row | ({COVERAGE: ours[COVERAGE]} if COVERAGE in ours else {"ECE": ours["ECE"]})


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser("estimators", __doc__)
    parser.add_argument("--tables", nargs="+", choices=IS_CLASSES, default=list(IS_CLASSES))
    parser.add_argument("--seeds", type=int, default=SEEDS, help="splits of each table")
    parser.add_argument("--networks", type=int, default=1, help="ours also with so many networks, if more than one")
    parser.add_argument("--only-ours", action="store_true", help="leave the other methods out")
    parser.add_argument("--max-epochs", type=int, default=1000, help="of all networks")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows and {QUICK_EPOCHS} epochs, to try it")
    parser.add_argument(
        "--validate", action="store_true", help="score on a quarter of the training part, for choosing variants"
    )
    options = parser.parse_args(argv)
    if options.seeds < 1 or options.networks < 1:
        parser.error("--seeds and --networks must be positive")
    _, report = begin("estimators", options)
    max_epochs = QUICK_EPOCHS if options.quick else options.max_epochs
    every_run: dict[str, list[dict[str, Any]]] = {}
    summary = []
    for name in options.tables:
        classes, runs = IS_CLASSES[name], every_run.setdefault(name, [])
        for seed in range(options.seeds):
            x, y = load(name, seed)
            rows = QUICK_ROWS if options.quick else None
            part = split(x, y, seed, classes=classes, validate=options.validate, rows=rows)
            if seed == 0:
                print(f"\n{name}: {len(part.x_train)} rows of {x.shape[1]} to train on, {len(part.x_test)} to score on")
            methods = (classifiers if classes else regressors)(seed, len(part.x_train), max_epochs, options.networks)
            for method, fit in methods.items():
                if is_ours(method) or not options.only_ours:
                    runs.append({"method": method, "seed": seed, **run(fit, part, classes=classes)})
                    report.save("runs", every_run)
        table = []
        for method in dict.fromkeys(found["method"] for found in runs):
            mean = mean_row([found for found in runs if found["method"] == method], method=method)
            table.append({key: value for key, value in mean.items() if key != "seed"})
        report.show(name, table)
        if not options.only_ours:
            summary.append(summary_row(name, table))
    if summary:
        report.show("summary", summary)


if __name__ == "__main__":
    main()
