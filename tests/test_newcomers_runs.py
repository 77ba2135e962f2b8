"""What people who come from PyTorch or scikit-learn ask of runs, histories and the public names."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.cli import app
from tests.helpers import blobs, linear_data, mlp


@pytest.fixture(scope="module")
def regression() -> tuple[bmp.Network, torch.Tensor, torch.Tensor]:
    x, y = linear_data(60)
    network = mlp([3, 6, 1], bmp.Regression("learn"), seed=0)
    bmp.fit(network, x, y.flatten(), epochs=30, progress=False)
    return network, x, y.flatten()


def test_a_posterior_without_correlations_is_no_prior(regression):
    network, *_ = regression
    with pytest.raises(ValueError, match="drop all correlations"):
        network.prior = network.marginal


def test_a_history_is_that_of_its_run():
    x, y = linear_data(20)
    trainer = bmp.Trainer(mlp([3, 4, 1], bmp.Regression(0.1)), x, y)
    first = trainer.run(2, progress=False)
    trainer.run(3, progress=False)
    assert len(first) == 2 and len(trainer.history) == 5


def test_a_history_is_a_table():
    pandas = pytest.importorskip("pandas")
    x, y = linear_data(20)
    history = bmp.fit(mlp([3, 4, 1], bmp.Regression(0.1)), x, y, epochs=3, progress=False)
    frame = pandas.DataFrame(history.to_rows())
    assert {"epoch", "rmse", "nll", "loo_nll", "loo_error", "step", "seconds"} <= set(frame.columns)
    assert list(frame["epoch"]) == [1, 2, 3] and list(frame["step"]) == history.column("step")
    assert set(history.columns()) <= set(frame.columns)


def test_pictures_are_at_hand():
    pytest.importorskip("matplotlib")
    x, y = linear_data(20)
    history = bmp.fit(mlp([3, 4, 1], bmp.Regression(0.1)), x, y, epochs=3, progress=False)
    assert history.plot().get_xlabel() == bmp.plots.training_history(history).get_xlabel()
    with pytest.raises(AttributeError, match="no attribute 'plot'"):
        _ = bmp.plot


def test_a_trainer_says_what_it_is():
    x, y = linear_data(20)
    trainer = bmp.Trainer(mlp([3, 4, 1], bmp.Regression(0.1)), x, y, batch_size=5)
    trainer.run(1, progress=False)
    assert "20 examples in 4 batches, 1 epochs run, batch_size=5)" in repr(trainer)


def test_the_bar_and_the_history_say_whether_it_has_come_to_rest(capsys):
    x, y = linear_data(40)
    trainer = bmp.Trainer(mlp([3, 4, 1], bmp.Regression(0.1)), x, y, batch_size=10)
    assert trainer.run(2, progress=True).stopped == "ran the 2 epochs asked for; not at rest yet"
    bar = capsys.readouterr().err
    assert "epoch 2, not at rest yet: " in bar and "ran the 2 epochs asked for; not at rest yet: 100%" in bar
    assert trainer.run("auto", progress=True).stopped.startswith("at rest after")
    assert f"at rest after {len(trainer.history)} epochs: " in capsys.readouterr().err.split("\r")[-1]
    assert trainer.run(1, progress=False).stopped == "ran the 1 epochs asked for; at rest"


def test_a_run_says_that_another_took_its_network_over_and_goes_back():
    """Once the second silently reset it, and the first went on with what was not its own."""
    x, y = linear_data(40)
    network = mlp([3, 4, 1], bmp.Regression(0.1))
    first = bmp.Trainer(network, x, y)
    first.run(3, progress=False)
    expected = network.marginal.mean.clone()
    with pytest.warns(UserWarning, match="reset"):
        bmp.Trainer(network, x[:20], y[:20]).run(1, progress=False)
    assert not torch.equal(network.marginal.mean, expected)
    with pytest.warns(UserWarning, match="another Trainer has taken this network over"):
        first.run(1, progress=False)
    again = mlp([3, 4, 1], bmp.Regression(0.1))
    bmp.fit(again, x, y, epochs=4, progress=False)
    torch.testing.assert_close(network.marginal.mean, again.marginal.mean)


def test_a_misspelt_number_of_epochs_comes_with_where_it_goes():
    x, y = blobs(40)
    with pytest.raises(
        TypeError, match=r"unknown options \['epoch'\].*the argument epochs of bayesmp.fit and Trainer.run"
    ):
        bmp.fit(mlp([2, 4, 3], bmp.Argmax()), x, y, epoch=3)


def test_the_public_surface_is_there():
    """Names and arguments that others build on; small sizes, and what each of them gives."""
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(24, 3, 8, 8)).astype(np.float32), np.arange(24) % 3
    net = bmp.Network(
        [bmp.Conv2d(3, 4, 3), bmp.LeakyReLU(0.1), bmp.MaxPool2d(2), bmp.Flatten(), bmp.Linear(36, 3)],
        head=bmp.Argmax(),
        seed=0,
    )
    history = bmp.fit(net, images, labels, epochs=2, schedule="parallel", batch_size=12)
    assert len(history.loo_nll) == 2
    pred = net.predict(images)
    for name in ("probs", "entropy", "epistemic", "aleatoric"):
        assert len(getattr(pred, name)) == 24, name
    assert net.sample_functions(images[:2], 5).shape == (5, 2, 3)
    for head in (bmp.Regression(0.1), bmp.Softmax(), bmp.Argmax()):
        assert isinstance(bmp.Network([bmp.Linear(2, 2)], head=head), bmp.Network)
    names = inspect.signature(bmp.fit).parameters
    assert list(names)[:3] == ["network", "x", "y"] and names["epochs"].default == "auto"
    assert bmp.TrainConfig().batch_size == 128 and bmp.TrainConfig().schedule == "parallel"
    assert list(inspect.signature(bmp.from_torch).parameters)[:2] == ["module", "head"]
    assert "weights" in inspect.signature(bmp.to_torch).parameters
    assert next(iter(inspect.signature(bmp.merge).parameters)) == "trainers"
    assert inspect.signature(bmp.MPRegressor).parameters["hidden"].default == "auto"
    found = {command.name or command.callback.__name__ for command in app.registered_commands}
    found |= {group.name for group in app.registered_groups}
    assert {"demo", "fit", "predict", "evaluate", "experiment", "info"} <= found


def test_a_regression_prediction_has_all_its_parts():
    x, y = blobs(40)
    net = mlp([2, 4, 1], bmp.Regression("learn"))
    bmp.fit(net, x, y.float(), epochs=2)
    pred = net.predict(x)
    parts = [pred.mean, pred.epistemic_var, pred.var, pred.std, *pred.interval(0.9), pred.quantile(0.1)]
    assert all(part.shape == (40,) for part in [*parts, pred.log_prob(y.float())]) and float(pred.noise_var) > 0
