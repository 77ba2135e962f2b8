"""Changes of the data that fail change nothing: numbers that nobody can compute with, and errors at any point."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bayesmp as bmp
from bayesmp import kernels
from tests.basics.test_persistence import assert_same_run
from tests.helpers import blobs, linear_data, mlp

torch.set_num_threads(1)

NAMES = ("ids", "x", "y", "next_id", "next_batch_id", "batch_ids", "unheard_batches", "unheard_ids")
DTYPES = [torch.float32, torch.float64]


def regression_run(dtype=torch.float32, *, epochs=3, past=False, head=None, **options) -> bmp.Trainer:
    """40 rows in 5 batches; with a second hidden layer, so that all there is to a run is in use."""
    x, y = linear_data(80)
    network = mlp([3, 36, 4, 1], head or bmp.Regression("learn"), dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if past:
            bmp.Trainer(network, x[40:], y[40:]).run(2)
            network = network.as_prior()
        trainer = bmp.Trainer(network, x[:40], y[:40], batch_size=8, **options)
        if epochs:
            trainer.run(epochs)
            trainer.add(x[40:44], y[40:44])  # silent yet, as replaced ones are
            trainer.replace([3], x[50:51], y[50:51])
    return trainer


def classes_run(dtype=torch.float32, *, epochs=3) -> bmp.Trainer:
    x, y = blobs(40)
    trainer = bmp.Trainer(mlp([2, 6, 3], bmp.Argmax(), dtype=dtype), x, y, batch_size=8)
    trainer.run(epochs)
    return trainer


def state_of(trainer: bmp.Trainer) -> dict:
    """All that a run is, copied; what is None in it or made later is told apart, too."""
    network, schedule = trainer.network, trainer.schedule
    found = {name: copy.deepcopy(getattr(trainer.data, name)) for name in NAMES}
    found["refreshed at"] = trainer._refreshed_at
    found |= {f"run.{name}": part.clone() for name, part in trainer.state().items()}
    found |= {"members": [part.clone() for part in trainer.members], "history": trainer.history.snapshot()}
    found |= {"counters": dict(schedule.counters()), "n_data": getattr(getattr(schedule, "metrics", None), "n_data", 0)}
    found["noise"] = {k: v for k, v in vars(getattr(schedule, "noise", schedule)).items() if isinstance(v, float)}
    parts = {"prior": network.prior, "marginal": network.marginal}
    found |= {f"{k}.{name}": getattr(part, name).clone() for k, part in parts.items() for name in ("tau", "rho")}
    found |= {"weights": network.head_log_weights.clone(), "shares": network.sum_share.clone()}
    found |= {"regime": network.regime, "of the head": copy.deepcopy(getattr(network.head, "shares", None))}
    found |= {"belief": id(network._belief), "renewal": id(network._renew_belief), "noise at x": network.varying_noise}
    past = network.past
    found["moved"] = None if past is None or past.moved is None else past.moved.clone()
    return found


def assert_same_state(found, expected, where="") -> None:
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected), where
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for name in expected:
            assert_same_state(found[name], expected[name], f"{where}/{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for k, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same_state(one, other, f"{where}/{k}")
    else:
        assert found == expected, where


def assert_goes_on_alike(trainer: bmp.Trainer, twin: bmp.Trainer) -> None:
    """Both runs end in the same state, bit for bit."""
    for run in (trainer, twin):
        run.run(2)
    assert_same_run(trainer, twin)
    assert torch.equal(trainer.influence().loo_nll, twin.influence().loo_nll)


# --- numbers that nobody can compute with ----------------------------------------------------------------------------

X_ROW, Y_ROW = np.array([[0.1, -0.2, 0.3]]), np.array([[0.5]])


def with_cell(value, row=X_ROW):
    """Object arrays where numbers are beyond those of NumPy."""
    cells = row.tolist()
    cells[0][-1] = value
    return cells


BAD = {
    "x * 1e30": (X_ROW * 1e30, Y_ROW, r"x .* torch\.float\d+, .*3e\+29 in row 0; standardise x"),
    "one cell of 1e200": (with_cell(1e200), Y_ROW, "x .*1e\\+200 in row 0"),
    "a cell that hides all others": (with_cell(4e16), Y_ROW, "x .*4e\\+16 in row 0.*standardise"),
    "y * 1e30": (X_ROW, Y_ROW * 1e30, "y .*5e\\+29 in row 0.*standardise"),
    "y of 1e200": (X_ROW, np.array([[1e200]]), "y .*1e\\+200 in row 0"),
    "a huge integer": ([[1, 2, 10**30]], Y_ROW, r"x .*whole numbers beyond 64 bits.*1e\+30"),
    "a huge integer beside fractions": (with_cell(-(10**30)), Y_ROW, r"x .*beyond 64 bits, e\.g\. -1e\+30"),
    "a huge integer in y": (X_ROW, [[10**40]], r"y .*whole numbers beyond 64 bits.*1e\+40"),
    "an integer beyond float64's digits": (torch.full((1, 3), 2**62), Y_ROW, r"x .*4\.61e\+18 in row 0"),
    "an integer beyond int64": (
        np.full((1, 3), 2**63 + 5, dtype=np.uint64),
        Y_ROW,
        r"x .*beyond 64 bits, e\.g\. 9\.22e\+18",
    ),
    "NaN": (with_cell(float("nan")), Y_ROW, "x has NaN or infinite values, first in row 0; impute"),
    "infinity in y": (X_ROW, [[float("-inf")]], "y has NaN or infinite values, first in row 0; drop"),
    "infinite after conversion": (torch.tensor(X_ROW).half() * 1e30, Y_ROW, "x has NaN or infinite"),
}
BAD_LABELS = {
    "x * 1e30": (torch.full((1, 2), 1e30), [0], "x .*1e\\+30 in row 0"),
    "a label of 1e30": (torch.zeros(1, 2), [1e30], r"must lie in 0 \.\. 2 .*got 1e\+30 in row 0"),
    "an infinite label": (torch.zeros(1, 2), [float("inf")], r"must lie in 0 \.\. 2 .*got inf in row 0"),
    "no label": (torch.zeros(1, 2), [float("nan")], "whole numbers"),
    "a huge label": (torch.zeros(1, 2), [10**30], "y .*whole numbers beyond 64 bits"),
    "an integer beyond int64": (torch.zeros(1, 2), np.array([2**63 + 1], dtype=np.uint64), "y .*beyond 64 bits"),
}
BAD_IDS = {
    "a huge integer": (10**30, "ids .*whole numbers beyond 64 bits"),
    "beyond int64": (np.array([2**63 + 1], dtype=np.uint64), r"ids .*whole numbers beyond 64 bits"),
    "the largest one": (2**63 - 1, "no example with the id 9223372036854775807"),
    "infinite": ([float("inf")], "ids must be whole numbers"),
    "one good, one unknown": ([0, 10**6], "no example with the id 1000000"),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make, bad", [(regression_run, BAD), (classes_run, BAD_LABELS)], ids=["real", "labels"])
def test_bad_numbers_are_refused_before_anything_changes(make, bad, dtype):
    """`add(x * 1e30)` was an error of linear algebra after the rows were in, and the trainer stayed broken."""
    given = bmp.Regression(0.1) if make is regression_run else None  # a learned noise refuses large targets anyway
    trainer, twin = ((make(dtype, head=given) if given else make(dtype)) for _ in range(2))
    before = state_of(trainer)
    for name, (x, y, words) in bad.items():
        for change in (lambda x=x, y=y: trainer.add(x, y), lambda x=x, y=y: trainer.replace([1], x, y)):
            with pytest.raises(ValueError, match=words):
                change()
            assert_same_state(state_of(trainer), before, name)
    for name, (ids, words) in BAD_IDS.items():
        for change in (trainer.remove, lambda ids: trainer.replace(ids, trainer.x[:1], trainer.y[:1])):
            with pytest.raises(ValueError, match=words):
                change(ids)
            assert_same_state(state_of(trainer), before, name)
    assert_goes_on_alike(trainer, twin)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in BAD if "huge integer" not in name and "beyond int64" not in name])
def test_the_same_numbers_are_refused_when_a_run_starts(name, dtype):
    """By `Trainer` and `fit`, with the same words; the network is as it was."""
    x, y, words = BAD[name]
    rows, targets = linear_data(12)
    network = mlp([3, 4, 1], bmp.Regression(0.1), dtype=dtype)
    before = network.marginal.tau.clone()
    inputs = np.concatenate([rows.numpy(), np.asarray(x, dtype=np.float64)])
    with pytest.raises(ValueError, match=words.replace("row 0", "row 12")):
        bmp.fit(network, inputs, np.concatenate([targets.numpy(), np.asarray(y)]), epochs=1)
    assert torch.equal(network.marginal.tau, before) and network.run is None


@pytest.mark.parametrize("dtype, largest", [(torch.float32, 1e19), (torch.float64, 1e154)], ids=str)
def test_predictions_are_made_as_long_as_squares_fit(dtype, largest):
    """Nothing is learned from what is predicted, so large inputs do no harm there; beyond that nothing is finite."""
    trainer = regression_run(dtype, epochs=1, head=bmp.Regression(0.1))
    found = trainer.network.predict(torch.full((1, 3), largest * 1e-6, dtype=dtype))
    assert found.mean.isfinite().all() and found.std.isfinite().all()
    for value in (largest * 10, -largest * 10):
        with pytest.raises(ValueError, match=r"x .*squares overflow.*in row 1"):
            trainer.network.predict(torch.tensor([[0.0, 0.0, 0.0], [0.0, value, 0.0]], dtype=dtype))


def test_an_estimator_refuses_them_too():
    x, y = linear_data(30)
    model = bmp.MPRegressor(hidden=(4,), epochs=1, random_state=0).fit(x.numpy(), y[:, 0].numpy())
    with pytest.raises(ValueError, match=r"x .*squares overflow.*in row 2"):
        model.predict(np.where(np.arange(5)[:, None] == 2, 1e300, x[:5].numpy()))


# --- what is far from all that the run has seen ----------------------------------------------------------------------


@pytest.mark.parametrize("change", ["add", "replace"])
def test_values_far_from_those_of_the_run_are_warned_of(change):
    """A mended row was not looked at, and a single new one was called unscaled where it was small."""
    trainer = regression_run(torch.float64, epochs=1, head=bmp.Regression(0.1))
    x, y = (part.clone() for part in linear_data(80))

    def act(row, target):
        parts = torch.as_tensor(row)[None], torch.as_tensor(target)[None]
        trainer.add(*parts) if change == "add" else trainer.replace([1], *parts)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        act(x[60], y[60])
        act(1e-4 * x[60], 1e-4 * y[60])
        act([10.0, 0.0, 0.0], y[60])
    far = x[60].clone()
    far[1] = 50.0
    with pytest.warns(
        UserWarning, match=r"x is not scaled as .*: 50 in column 1 of row 0 lies \d+ standard dev"
    ) as told:
        act(far, y[60])
    assert told[0].filename == __file__ and len(told) == 1
    with pytest.warns(UserWarning, match=r"y is not scaled as .*: -200 in row 0 lies \d+ standard dev") as told:
        act(x[60], [-200.0])
    assert told[0].filename == __file__ and len(told) == 1


def test_a_column_that_was_constant_may_begin_to_vary():
    """As that of a category that comes up for the first time: a 1 where all were 0, no standard deviation to count."""
    x, y = linear_data(30)
    x[:, 2] = 0.0
    trainer = bmp.Trainer(mlp([3, 4, 1], bmp.Regression(0.1), dtype=torch.float64), x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.add([[0.1, 0.1, 1.0]], [[0.2]])


# --- errors at any point ---------------------------------------------------------------------------------------------


class Broken(Exception):
    """What went wrong."""


class BreaksAt(TorchDispatchMode):
    """The n-th operation on tensors fails, once; none if n is None. Counts them."""

    def __init__(self, n: int | None = None) -> None:
        super().__init__()
        self.n, self.count = n, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        if self.count == self.n:
            raise Broken
        return func(*args, **(kwargs or {}))


X_NEW, Y_NEW = (part[60:71] for part in linear_data(80))
CHANGES = {
    "add": lambda t: t.add(X_NEW, Y_NEW),
    "remove parts": lambda t: t.remove([0, 7, 9, int(t.ids[-1])]),
    "remove a batch": lambda t: t.remove({*t.ids[t.members[1]].tolist(), 5}),
    "replace": lambda t: t.replace([0, 2], X_NEW[:2], Y_NEW[:2]),
    "replace labels": lambda t: t.replace([0, 2], y=Y_NEW[:2]),
}
RUNS = {
    "learned": {},
    "before the first epoch": {"epochs": 0},
    "a past": {"past": True, "dtype": torch.float64},
    "sequential": {"schedule": "sequential", "epochs": 1},
    "on disk": {"site_store": "disk", "site_dtype": "bfloat16"},
}
PAIRS = [("learned", name) for name in CHANGES]
PAIRS += [(kind, name) for kind in RUNS for name in ("add", "remove parts") if kind != "learned"] + [
    ("a past", "replace")
]
POINTS = 7  # at which each of them is broken


@pytest.mark.parametrize("kind, name", PAIRS)
def test_a_change_that_fails_at_any_point_changes_nothing(kind, name, monkeypatch):
    """Whatever goes wrong in whichever step, even running out of memory: all or nothing, and the run goes on, bit for
    bit, as one that never saw it. A failure in the middle left rows without sites, or sites without a posterior.
    """
    act = CHANGES[name]
    monkeypatch.setattr(kernels, "_choice", "torch")  # loops that fail are told of, and the equations answer
    trainer, twin, third = (regression_run(**RUNS[kind]) for _ in range(3))
    with BreaksAt() as whole:
        act(third)
    before = state_of(trainer)
    for n in np.linspace(1, whole.count, POINTS).round().astype(int).tolist():
        with pytest.raises(Broken), BreaksAt(n):
            act(trainer)
        assert_same_state(state_of(trainer), before, f"operation {n} of {whole.count}")
    act(trainer)
    act(twin)
    assert_goes_on_alike(trainer, twin)


X_LABELLED, Y_LABELLED = (part[40:] for part in blobs(52))
CHANGED_LABELS = {
    "add": lambda t: t.add(X_LABELLED, torch.zeros(12, dtype=torch.int64)),
    "remove": lambda t: t.remove([0, 1]),
    "replace": lambda t: t.replace([0, 1, 2], y=[2, 2, 2]),
}


@pytest.mark.parametrize(
    "make, changes", [(regression_run, CHANGES), (classes_run, CHANGED_LABELS)], ids=["real", "labels"]
)
def test_an_interruption_changes_nothing_either(make, changes, monkeypatch):
    """At the very last step, the note in the history, when the head knows the shares of the classes of other data."""
    trainer, twin = make(), make()
    before = state_of(trainer)

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    for name, act in changes.items():
        monkeypatch.setattr(type(trainer), "_note", interrupt)
        with pytest.raises(KeyboardInterrupt):
            act(trainer)
        monkeypatch.undo()
        assert_same_state(state_of(trainer), before, name)
    assert_goes_on_alike(trainer, twin)
