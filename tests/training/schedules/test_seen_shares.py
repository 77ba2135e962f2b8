"""Which share of their variance messages see: all of the measured one for few inputs, less the more there are."""

import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import train_test_split

import bayesmp as bmp
from bayesmp.metrics import accuracy, nll
from tests.helpers import blobs, mlp

LOADERS = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}


def run_of(sizes, *, head=None, **options):
    """A run that has not begun."""
    x, y = blobs(12, n_in=sizes[0], n_classes=sizes[-1])
    return bmp.Trainer(mlp(sizes, head or bmp.Argmax()), x, y, batch_size=4, **options)


@pytest.mark.parametrize(
    "sizes, expected",
    [
        ([784, 100, 10], [16 / 784, 1.0, 16 / 100]),
        ([10, 50, 4], [1.0, 1.0, 16 / 50]),
        ([16, 17, 3], [1.0, 1.0, 16 / 17]),  # sixteen inputs are few, and seventeen are not
        ([15, 2, 3], [1.0, 1.0, 1.0]),
        ([40, 30, 20, 3], [16 / 40, 1.0, 16 / 30, 1.0, 16 / 20]),
    ],
    ids=str,
)
@pytest.mark.parametrize("head", [bmp.Argmax(), bmp.Softmax(), bmp.Regression("learn")], ids=repr)
def test_a_layer_sees_sixteen_inputs_worth_of_its_share(sizes, expected, head):
    """The same for labels and for targets with noise, which once had rules of their own."""
    x, y = blobs(12, n_in=sizes[0], n_classes=sizes[-1])
    y = torch.eye(sizes[-1])[y] if head.has_noise else y
    run = bmp.Trainer(mlp(sizes, head), x, y, batch_size=4, joint=True)
    torch.testing.assert_close(run.schedule.seen_shares, torch.tensor(expected))


@pytest.mark.parametrize(
    "sizes, options",
    [
        ([40, 50, 4], {"joint": False}),
        ([40, 3], {}),  # means of a single layer are exact, whatever its sums see
        ([40, 3], {"joint": True}),
    ],
)
def test_where_shares_do_not_count_all_of_the_variance_is_seen(sizes, options):
    assert (run_of(sizes, **options).schedule.seen_shares == 1.0).all()


@pytest.mark.parametrize("joint", [None, True, False])
def test_networks_with_shared_weights_see_all_of_it(joint, monkeypatch):
    """With joint=True, too, shares of 16 / 144 once cut what the dense layer behind an image sees."""
    monkeypatch.setattr("bayesmp.training.schedules.has_objective", lambda network, n_examples: False)
    layers = [bmp.Conv2d(2, 4, 3), bmp.ReLU(), bmp.Flatten(), bmp.Linear(4 * 36, 3)]
    network = bmp.Network(layers, bmp.Softmax(), input_shape=(2, 8, 8))
    x, y = torch.randn(12, 2, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    run = bmp.Trainer(network, x, y, batch_size=4, joint=joint)
    assert (run.schedule.seen_shares == 1.0).all()


def test_sweeps_see_a_share_of_the_variance_and_predictions_all_that_is_measured():
    """Means are seen as they are. The first layer has 40 inputs, the second 8."""
    x, y = blobs(40, n_in=40)
    network = mlp([40, 8, 3], bmp.Argmax(), dtype=torch.float64)
    trainer = bmp.Trainer(network, x, y, batch_size=10)
    trainer.run(2, progress=False)
    network.sum_share[[0, 2]] = torch.tensor([0.5, 0.25]).double()
    for k, share in ((0, 0.4), (2, 1.0)):
        seen, own = trainer.schedule._weights()[k], network.weights()[k]
        for name in own:
            torch.testing.assert_close(seen[name].mean, own[name].mean)
            torch.testing.assert_close(seen[name].var, share * own[name].var)


def test_one_hidden_unit_more_does_not_change_the_rules():
    """A layer of 32 inputs at most once switched the activations, the variances and the echo of the whole network:
    digits in 64-32-10 had an NLL of .148, and in 64-33-10 one of .110.
    """
    few, more = (run_of([64, n, 10]) for n in (32, 33))
    for run in (few, more):
        run.run(1)
    torch.testing.assert_close(few.schedule.seen_shares, torch.tensor([16 / 64, 1.0, 16 / 32]))
    torch.testing.assert_close(more.schedule.seen_shares, torch.tensor([16 / 64, 1.0, 16 / 33]))
    assert list(few.schedule.own_pulls) == list(more.schedule.own_pulls) == [0, 2]
    assert few.network.regime == more.network.regime
    assert few.schedule.state().keys() == more.schedule.state().keys()


@pytest.mark.parametrize("n_hidden", [32, 33])
@pytest.mark.parametrize("name, limit", [("digits", 0.12), ("breast cancer", 0.15), ("wine", 0.2)])
def test_small_tables_train_to_the_end_without_a_burst(name, limit, n_hidden):
    """Echoes of an example's own label through all layers once grew without bound on the first two; a last batch of
    five rows once upset the third.
    """
    x, y = LOADERS[name](return_X_y=True)
    x = (x - x.mean(0)) / (x.std(0) + 1e-9)
    x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)
    layers = [bmp.Linear(x.shape[1], n_hidden), bmp.LeakyReLU(), bmp.Linear(n_hidden, int(y.max()) + 1)]
    network = bmp.Network(layers, head=bmp.Argmax())
    bmp.fit(network, x_train, y_train, epochs=40)
    probs = network.predict(x_test).probs
    assert nll(probs, y_test) < limit and accuracy(probs, y_test) > 0.93


def test_noise_is_not_taken_for_signal_by_wide_layers():
    """Friedman's function among 35 inputs that say nothing, noise std 1: activations that are linear around their
    inputs' means found .15 of it and an NLL of 1.05; by messages, it is .87 now.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1200, 40, generator=generator)
    f = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    x, y = (x - 0.5) / 0.29, (f + torch.randn(1200, generator=generator) - 14.4) / 5
    network = mlp([40, 36, 36, 1], bmp.Regression("learn"))
    bmp.fit(network, x[:400], y[:400], epochs=60, batch_size=50, joint=True, progress=False)
    found = network.predict(x[400:])
    assert 5 * float(found.noise_var.sqrt()) > 0.9
    assert -float(found.log_prob(y[400:]).mean()) < 0.92
