"""Small files predict as the large ones do, and whatever can be done with a network that was loaded from one, too."""

from __future__ import annotations

import copy
import functools
import pickle

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.belief import Anchored, Full
from bayesmp.evidence import objective
from bayesmp.network import compact
from tests.helpers import mlp


def table(n: int, d: int, *, noise: float = 0.2):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    return x, np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + noise * rng.normal(size=n)


@functools.cache
def network(n: int = 60, d: int = 3, widths=(12, 8), head=None) -> bmp.Network:
    """Trained for a few epochs, in float32."""
    x, y = (torch.as_tensor(part).float() for part in table(n, d))
    found = mlp([d, *widths, 1 if head is None else 2], head or bmp.Regression("learn"))
    bmp.fit(found, x, y if head is None else (y > 0.0).long(), epochs=2)
    return found


def sizes_and_copies(network, folder):
    network.save(folder / "whole")
    network.save(folder / "small", compact=True)
    sizes = [(folder / name).stat().st_size for name in ("whole", "small")]
    return sizes, [bmp.load(folder / name) for name in ("whole", "small")]


def test_a_table_of_22_columns_takes_20_times_the_bytes_of_the_weights(tmp_path):
    """It is hundreds of times as many without; nearly all of them for the joint belief, which is formed again."""
    x, y = table(300, 22)
    model = bmp.MPRegressor((50,), epochs=1, random_state=0).fit(x, y)
    model.save(tmp_path / "whole", data=False)
    model.save(tmp_path / "small", data=False, compact=True)
    n_bytes = model.network_.n_weights * model.network_.dtype.itemsize
    assert (tmp_path / "small").stat().st_size <= 20 * n_bytes < 0.2 * (tmp_path / "whole").stat().st_size
    far = 3.0 * np.random.default_rng(1).normal(size=(200, 22))
    again = bmp.MPRegressor.load(tmp_path / "small")
    for rows in (x, far):
        for found, expected in zip(
            again.predict(rows, return_std=True), model.predict(rows, return_std=True), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "make, form, shrinks",
    [
        (lambda: network(), Anchored, 3.0),
        (lambda: network(n=220), Full, 1.7),
        (lambda: network(head=bmp.Argmax()), Anchored, 1.8),
        (lambda: copy.deepcopy(network()).double(), Anchored, 3.0),
    ],
    ids=["of rows", "of weights", "by messages", "in float64"],
)
def test_each_form_of_the_belief(make, form, shrinks, tmp_path):
    net = make()
    assert isinstance(net.belief, form)
    (large, small), copies = sizes_and_copies(net, tmp_path)
    assert small * shrinks < large
    x = torch.as_tensor(2.0 * table(50, 3)[0]).to(net.dtype)
    for found in copies:
        before, after = net.predict(x), found.predict(x)
        for one in ("epistemic_var", "var", "mean") if hasattr(before, "var") else ("probs", "epistemic"):
            torch.testing.assert_close(getattr(after, one), getattr(before, one), rtol=1e-3, atol=1e-7)
    assert torch.equal(copies[0].sample_functions(x, 2), net.sample_functions(x, 2))


def test_what_comes_later_works(tmp_path):
    """Prior for new data, saving again, draws, a diagnosis: a compact file drops nothing that these need."""
    net = network()
    _, (whole, small) = sizes_and_copies(net, tmp_path)
    x, y = (torch.as_tensor(part).float() for part in table(40, 3))
    small.diagnose(x, y)
    small.save(tmp_path / "again", compact=True)
    torch.testing.assert_close(bmp.load(tmp_path / "again").predict(x).std, net.predict(x).std)
    after = [each.as_prior() for each in (whole, small)]
    for each in after:
        bmp.fit(each, x + 1.0, y, epochs=2)
    torch.testing.assert_close(after[0].predict(x).mean, after[1].predict(x).mean, rtol=1e-3, atol=1e-3)
    (large, less), (_, again) = sizes_and_copies(after[0], tmp_path)
    assert less < large
    torch.testing.assert_close(again.predict(x).std, after[0].predict(x).std, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("untrained", [True, False])
def test_networks_without_a_belief(untrained, tmp_path):
    net = mlp([3, 4, 1], bmp.Regression(0.1))
    if not untrained:
        bmp.fit(net, *(torch.as_tensor(part).float() for part in table(20, 3)), epochs=2)
        net.belief = None
    (large, small), (_, again) = sizes_and_copies(net, tmp_path)
    assert small <= large and again.belief is None
    assert torch.equal(again.marginal.tau, net.marginal.tau) and torch.equal(again.start, net.start)


@pytest.mark.parametrize("make", [network, lambda: network(n=220)], ids=["of rows", "of weights"])
def test_a_belief_that_would_say_something_else_is_kept(make, tmp_path, monkeypatch):
    net = make()
    monkeypatch.setattr(compact, "SAME_STD", -1.0)
    (large, small), (_, again) = sizes_and_copies(net, tmp_path)
    assert small > 0.5 * large
    x = torch.as_tensor(table(50, 3)[0]).float()
    assert torch.equal(again.predict(x).epistemic_var, net.predict(x).epistemic_var)


def test_a_belief_of_too_many_rows_is_rounded_and_not_formed(tmp_path, monkeypatch):
    net = network()
    net.save(tmp_path / "formed", compact=True)
    monkeypatch.setattr(compact, "MOST_POINTS", 59)
    (large, small), (_, again) = sizes_and_copies(net, tmp_path)
    assert (tmp_path / "formed").stat().st_size < small < large
    x = torch.as_tensor(table(50, 3)[0]).float()
    torch.testing.assert_close(again.predict(x).std, net.predict(x).std, rtol=1e-3, atol=0.0)
    with pytest.raises(ValueError, match=r"formed' does not fit.*a belief about 60 points is too large"):
        bmp.load(tmp_path / "formed")


def test_networks_in_float32_of_more_rows_than_the_belief_has_can_be_loaded(tmp_path, monkeypatch):
    """They were refused: their belief is in float64, and was expected so only where each example has a row."""
    monkeypatch.setattr(objective, "MAX_EXACT", 64)  # a thousand rows else, which take long
    net = network(n=90)
    assert net.belief.basis.is_exact and not net.belief.is_exact and net.dtype == torch.float32
    _, (whole, small) = sizes_and_copies(net, tmp_path)
    x = torch.as_tensor(table(50, 3)[0]).float()
    assert torch.equal(whole.predict(x).std, net.predict(x).std)
    torch.testing.assert_close(small.predict(x).std, net.predict(x).std)


def test_pickles_hold_nothing_that_can_be_computed_again():
    """They were more than twice as large as files."""
    net = copy.deepcopy(network())
    before = len(pickle.dumps(net.belief))
    x = torch.as_tensor(table(50, 3)[0]).float()
    expected = net.predict(x).std
    assert len(pickle.dumps(net.belief)) == before < 1.3 * sum(part.nbytes for part in net.belief.state().values())
    net.belief = pickle.loads(pickle.dumps(net.belief))
    assert torch.equal(net.predict(x).std, expected)
