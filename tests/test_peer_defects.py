"""Defects that users of other libraries of this kind report (inputs of a wrong width are read as garbage, float64 is
refused, arrays are changed or must be writable, probabilities do not sum to one, intervals shrink with every epoch,
models cannot be pickled): each has a test that it does not exist here.
"""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp import metrics
from tests.helpers import blobs, linear_data, linear_posterior, mlp


def friedman(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Friedman's first function of five inputs, in units of its spread, with noise of std .2 of it."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 5))
    u = (x + 1) / 2
    f = 10 * np.sin(np.pi * u[:, 0] * u[:, 1]) + 20 * (u[:, 2] - 0.5) ** 2 + 10 * u[:, 3] + 5 * u[:, 4]
    return x, (f - 14.4) / 4.9 + 0.2 * rng.normal(size=n)


@pytest.fixture(scope="module")
def regression() -> tuple[bmp.Network, np.ndarray, np.ndarray]:
    x, y = friedman(80, seed=0)
    network = mlp([5, 8, 1], bmp.Regression("learn"))
    bmp.fit(network, x, y, epochs=20, progress=False)
    return network, x, y


@pytest.fixture(scope="module")
def classes() -> tuple[bmp.Network, torch.Tensor, torch.Tensor]:
    x, y = blobs(60)
    network = mlp([2, 6, 3], bmp.Argmax())
    bmp.fit(network, x, y, epochs=10, progress=False)
    return network, x, y


# --- a wrong number of features ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_features", [1, 4, 6, 10])
def test_inputs_of_another_width_are_refused(regression, n_features):
    """Also where the numbers would fill the rows of another table, 2 x 5 as 1 x 10."""
    network, _, y = regression
    wrong = np.zeros((len(y), n_features))
    words = rf"x must have shape \(n, 5\) to fit the first layer, got \(80, {n_features}\)"
    for use in (network.predict, lambda x: network.sample_functions(x, 2), lambda x: bmp.Trainer(network, x, y)):
        with pytest.raises(ValueError, match=words):
            use(wrong)


@pytest.mark.parametrize("shape", [(80, 3), (40, 2), (160,), ()])
def test_targets_of_another_shape_are_refused(shape):
    x, _ = friedman(80, seed=0)
    with pytest.raises(ValueError, match="y must have"):
        bmp.Trainer(mlp([5, 8, 1], bmp.Regression(0.1)), x, np.zeros(shape))


def test_layers_that_do_not_fit_each_other_are_refused_when_the_network_is_made():
    with pytest.raises(
        ValueError, match=r"layer 2 does not fit: Linear\(16, 1\) takes inputs of shape \(16,\).*got \(8,\)"
    ):
        bmp.Network([bmp.Linear(5, 8), bmp.LeakyReLU(), bmp.Linear(16, 1)], bmp.Regression(0.1))


# --- float64 -------------------------------------------------------------------------------------------------------


def test_a_network_in_double_precision_is_trained_and_answers_in_it():
    """One layer and known noise: means of the weights against the closed form, closer than float32 could be."""
    x, y = linear_data(60, n_in=3, noise_std=0.3)
    network = bmp.Network([bmp.Linear(3, 1)], bmp.Regression(0.09)).to(torch.float64)
    bmp.fit(network, x, y, epochs=200, progress=False)
    design = np.column_stack([x.numpy(), np.ones(len(x))])
    prior = network.exact_prior
    mean, covariance = linear_posterior(design, y.numpy()[:, 0], prior.mean.numpy(), prior.var.numpy(), 0.09)
    np.testing.assert_allclose(network.marginal.mean.numpy(), mean, rtol=0, atol=1e-9)
    prediction = network.predict(x)
    assert prediction.mean.dtype == prediction.epistemic_var.dtype == torch.float64
    exact = np.einsum("ni,ij,nj->n", design, covariance, design)
    np.testing.assert_allclose(prediction.epistemic_var.numpy()[:, 0], exact, rtol=1e-9)


def test_float64_data_are_taken_by_a_network_in_float32():
    x, y = friedman(80, seed=0)
    assert x.dtype == y.dtype == np.float64
    wide, narrow = (mlp([5, 8, 1], bmp.Regression("learn")) for _ in range(2))
    bmp.fit(wide, x, y, epochs=3, progress=False)
    bmp.fit(narrow, x.astype(np.float32), y.astype(np.float32), epochs=3, progress=False)
    assert torch.equal(wide.predict(x).mean, narrow.predict(x.astype(np.float32)).mean)
    assert wide.predict(x).mean.dtype == torch.float32


# --- what is handed in is read, not written --------------------------------------------------------------------------

FORMS = {
    "tensor": lambda a: torch.tensor(a),
    "tensor that tracks gradients": lambda a: torch.tensor(a, requires_grad=True),
    "read-only array": lambda a: _read_only(a.copy()),
    "turned array": lambda a: np.ascontiguousarray(a.T).T,
    "every second row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "lists": lambda a: a.tolist(),
}


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("form", FORMS)
def test_data_in_any_form_give_the_same_network_and_stay_as_they_are(form):
    x, y = friedman(60, seed=1)
    given = FORMS[form](x), FORMS[form](y)
    plain, other = (mlp([5, 6, 1], bmp.Regression("learn")) for _ in range(2))
    bmp.fit(plain, x, y, epochs=2, progress=False)
    bmp.fit(other, *given, epochs=2, progress=False)
    assert torch.equal(other.marginal.tau, plain.marginal.tau)
    assert torch.equal(other.predict(given[0]).std, plain.predict(x).std)
    for now, before in zip(given, friedman(60, seed=1), strict=True):
        np.testing.assert_array_equal(now.detach() if isinstance(now, torch.Tensor) else now, before)


def test_double_tensors_that_a_double_network_could_share_are_not_written_to():
    """No copy is needed here to bring them to the network's precision, so this is where a write would reach them."""
    x, y = linear_data(40)
    before = x.clone(), y.clone()
    network = mlp([3, 4, 1], bmp.Regression("learn")).to(torch.float64)
    bmp.fit(network, x, y, epochs=3, progress=False)
    network.predict(x)
    assert torch.equal(x, before[0]) and torch.equal(y, before[1])


# --- probabilities -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize(
    "head", [bmp.Argmax(), bmp.Argmax(scale=None), bmp.Softmax(), bmp.Softmax(scale=None)], ids=str
)
def test_probabilities_are_probabilities(head, joint):
    """At the data, far from them, and where outputs overflow any exponential."""
    x, y = blobs(60, n_classes=4)
    network = mlp([2, 6, 4], head)
    bmp.fit(network, x, y, epochs=20, progress=False)
    asked = torch.cat([x * scale for scale in (0.0, 1.0, 30.0, 1e4)])
    probs = network.predict(asked, joint=joint).probs
    assert probs.isfinite().all() and (probs >= 0).all() and (probs <= 1 + 1e-6).all()
    torch.testing.assert_close(probs.double().sum(1), torch.ones(len(asked), dtype=torch.float64), rtol=0, atol=1e-5)


# --- more epochs ---------------------------------------------------------------------------------------------------


def test_more_epochs_do_not_shrink_intervals():
    """A library that counts data again at every epoch becomes surer without end: six times the epochs would have cut
    the epistemic std by sqrt(6), and coverage with it. Here 90 % intervals hold about 90 % of fresh rows after 50
    epochs and after 300.
    """
    x, y = friedman(200, seed=0)
    fresh_x, fresh_y = friedman(2000, seed=1)
    network = mlp([5, 16, 1], bmp.Regression("learn"))
    trainer = bmp.Trainer(network, x, y, batch_size=50)
    held, widths = [], []
    for epochs in (50, 250):
        trainer.run(epochs, progress=False)
        prediction = network.predict(fresh_x)
        held.append(metrics.coverage(prediction.mean, prediction.std, fresh_y, 0.9))
        widths.append(float(prediction.epistemic_var.sqrt().median()))
    assert trainer.n_epochs == 300
    assert all(0.84 < share < 0.96 for share in held), held
    assert widths[1] > 0.75 * widths[0], widths


# --- pickles -------------------------------------------------------------------------------------------------------


def test_networks_can_be_pickled_and_predict_the_same(regression, classes):
    for network, x, _ in (regression, classes):
        for again in (pickle.loads(pickle.dumps(network)), copy.deepcopy(network)):
            assert torch.equal(again.predict(x).mean, network.predict(x).mean)
            assert torch.equal(again.predict(x).epistemic_var, network.predict(x).epistemic_var)
            assert torch.equal(again.sample_functions(x, 2), network.sample_functions(x, 2))
            assert repr(again) == repr(network)


def test_a_copy_of_a_network_goes_its_own_way(regression):
    network, x, y = regression
    before = network.predict(x).mean
    again = pickle.loads(pickle.dumps(network))
    again.reset()
    bmp.fit(again, x, -y, epochs=2, progress=False)
    assert torch.equal(network.predict(x).mean, before)
    assert not torch.equal(again.predict(x).mean, before)


def test_predictions_and_histories_can_be_pickled(regression, classes):
    for network, x, y in (regression, classes):
        prediction = network.predict(x)
        again = pickle.loads(pickle.dumps(prediction))
        assert torch.equal(again.log_prob(y), prediction.log_prob(y))
        assert torch.equal(again.sample(3), prediction.sample(3))
    x, y = linear_data(20)
    history = bmp.fit(mlp([3, 4, 1], bmp.Regression(0.1)), x, y, epochs=2, progress=False)
    assert pickle.loads(pickle.dumps(history)) == history


def test_a_pickle_is_read_by_another_process(regression, tmp_path):
    network, x, _ = regression
    with open(tmp_path / "network.pickle", "wb") as file:
        pickle.dump((network, network.predict(x[:5])), file)
    script = (
        "import pickle, sys, numpy, torch\n"
        "torch.set_num_threads(1)\n"
        "network, prediction = pickle.load(open(sys.argv[1], 'rb'))\n"
        "x = numpy.array(eval(sys.argv[2]))\n"
        "assert torch.equal(network.predict(x).std, prediction.std)\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "network.pickle", str(x[:5].tolist())], check=True)
