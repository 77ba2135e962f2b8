"""What people who come from PyTorch or scikit-learn try first: it works, or one sentence says what to do."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.data import Scaling, standardise
from tests.helpers import blobs, linear_data, mlp


@pytest.fixture(scope="module")
def regression() -> tuple[bmp.Network, torch.Tensor, torch.Tensor]:
    x, y = linear_data(60)
    network = mlp([3, 6, 1], bmp.Regression("learn"), seed=0)
    bmp.fit(network, x, y.flatten(), epochs=30, progress=False)
    return network, x, y.flatten()


@pytest.fixture(scope="module")
def classes() -> tuple[bmp.Network, torch.Tensor, torch.Tensor]:
    x, y = blobs(60)
    network = mlp([2, 6, 3], bmp.Argmax(), seed=0)
    bmp.fit(network, x, y, epochs=10, progress=False)
    return network, x, y


# --- scale -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda x, y: (x + 1000, y), r"column \d has mean 1e\+03 and standard deviation .*bayesmp.data.standardise"),
        (lambda x, y: (x * torch.tensor([1.0, 1e6, 1.0]), y), "column 1 has mean"),
        (lambda x, y: (x * 1e-4, y), "no column is larger than"),
        (lambda x, y: (x, y * 1e-3), "y is not scaled"),
        (lambda x, y: (x, y * 100), "y is not scaled"),
    ],
)
def test_data_that_are_not_scaled_come_with_a_warning_and_the_remedy(change, words):
    x, y = change(*linear_data(40))
    with pytest.warns(UserWarning, match=words):
        bmp.Trainer(mlp([3, 4, 1], bmp.Regression(0.1)), x, y)


def test_images_from_0_to_255_come_with_a_warning():
    images = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8)
    network = bmp.Network([bmp.Conv2d(1, 2, 3), bmp.Flatten(), bmp.Linear(72, 2)], bmp.Argmax())
    with pytest.warns(UserWarning, match="x is not scaled: an input has mean"):
        bmp.Trainer(network, images, torch.zeros(20, dtype=torch.int64))


@pytest.mark.parametrize("kind", ["array", "tensor", "list", "frame"])
def test_standardise_takes_what_people_have(kind):
    values = np.random.default_rng(0).normal(5.0, 3.0, (50, 2))
    if kind == "frame":
        given = pytest.importorskip("pandas").DataFrame(values, columns=["a", "b"])
    else:
        given = {"array": values, "tensor": torch.as_tensor(values), "list": values.tolist()}[kind]
    train, other = standardise(given, given[:10])
    assert isinstance(train, torch.Tensor if kind == "tensor" else np.ndarray) and len(other) == 10
    np.testing.assert_allclose(np.asarray(train), (values - values.mean(0)) / values.std(0), rtol=1e-12, atol=1e-12)


def test_text_cannot_be_standardised():
    with pytest.raises(ValueError, match=r"only numbers can be standardised.*get_dummies"):
        standardise(np.array([["a", "b"]]))


def test_predictions_come_back_to_the_units_of_the_targets(regression):
    """Against the same map by hand, as a table of several targets has it."""
    network, x, _ = regression
    scaling = Scaling(np.asarray(7.0), np.asarray(3.0))
    plain, found = network.predict(x), network.predict(x).undo(scaling)
    torch.testing.assert_close(found.mean, 3.0 * plain.mean + 7.0)
    torch.testing.assert_close(found.std, 3.0 * plain.std)
    torch.testing.assert_close(found.noise_var, 9.0 * plain.noise_var)
    torch.testing.assert_close(scaling.undo(plain.mean), found.mean)


# --- predictions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(60,), (60, 1)])
def test_predictions_have_the_shape_of_the_targets(shape, tmp_path):
    x, y = linear_data(60)
    network = mlp([3, 4, 1], bmp.Regression(0.1))
    bmp.fit(network, x, y.reshape(shape), epochs=2, progress=False)
    network.save(tmp_path / "model.safetensors")
    for found in (network, bmp.load(tmp_path / "model.safetensors")):
        prediction = found.predict(x)
        assert prediction.mean.shape == prediction.std.shape == prediction.interval()[0].shape == shape
        assert found.predict(x, joint=False).epistemic_var.shape == shape
    assert bmp.metrics.rmse(prediction.mean, y) == bmp.metrics.rmse(prediction.mean, y.flatten())


def test_a_prediction_of_numbers_is_a_distribution(regression):
    network, x, y = regression
    prediction = network(x)
    z = torch.arange(-4.0, 5.0)
    shares, ratios = torch.softmax(-0.5 * z.square(), 0), torch.exp(prediction.local_noise.spread[:, None] * z)
    noise_vars = prediction.aleatoric_var[:, None] * ratios / (shares * ratios).sum(1, keepdim=True)
    var = prediction.epistemic_var[:, None] + noise_vars
    truth = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(shares.expand_as(var)),
        torch.distributions.Normal(prediction.mean[:, None], var.sqrt()),
    )
    assert len(prediction) == 60 and len(prediction[:5]) == 5
    assert torch.equal(prediction[3:5].mean, prediction.mean[3:5])
    torch.testing.assert_close(prediction.log_prob(y), truth.log_prob(y.to(prediction.mean)))
    torch.testing.assert_close(truth.variance, prediction.var, rtol=1e-4, atol=0.0)
    torch.testing.assert_close(truth.cdf(prediction.quantile(0.2)), torch.full((60,), 0.2), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(prediction.interval(0.8)[1], prediction.quantile(0.9))
    draws = prediction.sample(4000)
    assert draws.shape == (4000, 60) and torch.equal(draws, prediction.sample(4000))
    assert ((draws.mean(0) - prediction.mean).abs() < 5 * prediction.std / math.sqrt(4000)).all()
    torch.testing.assert_close(draws.std(0).mean(), prediction.std.mean(), rtol=0.08, atol=0.0)
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        prediction.quantile(1.5)
    with pytest.raises(ValueError, match=r"shape of the prediction, \(60,\), got \(7,\)"):
        prediction.log_prob(y[:7])


def test_a_prediction_of_classes_is_a_distribution(classes):
    network, x, y = classes
    prediction = network(x)
    truth = torch.distributions.Categorical(prediction.probs)
    assert len(prediction) == 60 and torch.equal(prediction[2:4].probs, prediction.probs[2:4])
    torch.testing.assert_close(prediction.log_prob(y), truth.log_prob(y), rtol=1e-4, atol=1e-5)
    shares = torch.nn.functional.one_hot(prediction.sample(4000), 3).float().mean(0)
    assert (shares - prediction.probs).abs().max() < 0.04
    with pytest.raises(ValueError, match="one label per row of the prediction, 60, got 7"):
        prediction.log_prob(y[:7])


# --- what may be handed in -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("convert", [lambda y: y.float(), lambda y: y.int(), lambda y: y.tolist(), lambda y: y.numpy()])
def test_labels_of_any_kind_of_whole_number(convert):
    x, y = blobs(40)
    found, expected = (mlp([2, 4, 3], bmp.Argmax()) for _ in range(2))
    bmp.fit(found, x, convert(y), epochs=2, progress=False)
    bmp.fit(expected, x, y, epochs=2, progress=False)
    assert torch.equal(found.marginal.tau, expected.marginal.tau)


def test_labels_that_are_text_say_how_to_number_them():
    x, y = blobs(40)
    words = np.array(["cat", "dog", "cow"])[y]
    for labels in (words, words.tolist(), words.astype(object)):
        with pytest.raises(ValueError, match=r"from 0 on, got text or objects; .*return_inverse=True.* numbers them"):
            bmp.fit(mlp([2, 4, 3], bmp.Argmax()), x, labels, epochs=1, progress=False)


def test_labels_that_are_true_or_false():
    x, y = blobs(40)
    bmp.fit(mlp([2, 4, 2], bmp.Argmax()), x, y == 1, epochs=1, progress=False)


def test_whole_numbers_as_inputs_and_one_input_as_a_vector():
    x = torch.arange(-10, 10)
    network = mlp([1, 4, 1], bmp.Regression(0.1))
    bmp.fit(network, x, torch.sin(x.float()), epochs=1, progress=False)
    assert network.predict([1.0, 2.0, 3.0]).mean.shape == (3,)


def test_a_frame_with_text_names_its_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"size": [1.0, 2.0], "town": ["a", "b"], "sold": [True, False]})
    with pytest.raises(ValueError, match=r"x has columns that are not numbers: town; encode them"):
        bmp.fit(mlp([3, 4, 1], bmp.Regression(0.1)), frame, [0.0, 1.0])
    bmp.fit(mlp([2, 4, 1], bmp.Regression(0.1)), frame[["size", "sold"]], [0.0, 1.0], epochs=1, progress=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("move", [lambda net: net.to("cuda"), lambda net: net.cuda()])
def test_a_gpu_that_is_not_there_is_said_in_one_sentence(move):
    with pytest.raises(ValueError, match=r"PyTorch sees no CUDA device here.*stay on 'cpu'"):
        move(mlp([2, 4, 3], bmp.Argmax()))
    network = mlp([2, 4, 3], bmp.Argmax())
    assert network.cpu() is network


@pytest.mark.parametrize("device", ["mps", "meta"])
def test_other_devices_are_refused_in_one_sentence(device):
    with pytest.raises(ValueError, match=f"cannot move to '{device}': networks live on 'cpu' or 'cuda'"):
        mlp([2, 4, 3], bmp.Argmax()).to(device)


def test_precision_is_changed_as_in_pytorch(regression):
    network, x, _ = regression
    again = copy.deepcopy(network).double()
    assert again.dtype == torch.float64 and again.float() is again and again.dtype == torch.float32
    torch.testing.assert_close(again.predict(x).std, network.predict(x).std)


@pytest.mark.parametrize(
    "name, words",
    [
        ("fit", r"bayesmp\.fit\(net, x, y\)"),
        ("eval", r"no modes: net\.predict"),
        ("parameters", r"net\.marginal holds them"),
        ("state_dict", r"net\.save\(path\)"),
        ("predict_proba", r"net\.predict\(x\)\.probs"),
        ("named_parameters", r"net\.weights\(\) holds them"),
        ("children", r"net\.layers"),
        ("modules", r"net\.layers"),
        ("named_modules", r"net\.layers"),
        ("apply", r"net\.prior and net\.start"),
        ("zero_grad", "keeps no gradients"),
        ("requires_grad_", "keeps no gradients"),
        ("half", r"net\.float\(\) or net\.double\(\)"),
    ],
)
def test_what_is_found_elsewhere_says_where(name, words):
    network = mlp([2, 4, 3], bmp.Argmax())
    with pytest.raises(AttributeError, match=f"'Network' object has no attribute '{name}'; .*{words}"):
        getattr(network, name)
    assert not hasattr(network, name)


@pytest.mark.parametrize(
    "layers, words",
    [
        (bmp.Linear(2, 3), r"a list of layers .* got Linear\(2, 3\); write \[layer\]"),
        (torch.nn.Sequential(torch.nn.Linear(2, 3)), r"(?s)a list of layers .*; bayesmp\.from_torch takes modules"),
        ([torch.nn.Linear(2, 3)], r"layer 0 must be a bayesmp layer .*; bayesmp\.from_torch takes modules"),
        ([bmp.Linear(2, 3), bmp.ReLU], r"layer 1 must be .*; write ReLU\(\.\.\.\)"),
        (3, "a list of layers .* got 3"),
    ],
)
def test_what_is_no_list_of_layers_comes_with_the_remedy(layers, words):
    with pytest.raises(ValueError, match=words):
        bmp.Network(layers, bmp.Argmax())


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_module_in_place_of_a_network_comes_with_the_remedy(checkpoint, tmp_path):
    """AttributeError: 'Linear' object has no attribute 'take_shape', it was."""
    (x, y), module = linear_data(20), torch.nn.Linear(3, 1)
    options = {"checkpoint": tmp_path / "run"} if checkpoint else {}
    words = r"expected a bayesmp\.Network to train, got Linear; .*bayesmp\.from_torch\(module, head=\.\.\.\)"
    with pytest.raises(TypeError, match=words):
        bmp.fit(module, x, y, **options)
    with pytest.raises(TypeError, match=words):
        bmp.Trainer(module, x, y, **options)
    with pytest.raises(TypeError, match=words):
        bmp.fit_many([module, module], x, y)
    with pytest.raises(TypeError, match=r"got MPRegressor; .*bayesmp\.Network\(layers, head\)"):
        bmp.fit(bmp.MPRegressor(), x, y, **options)


def test_data_sets_are_for_training_and_predictions_take_inputs(regression):
    """They were said to hold text or objects."""
    network, x, y = regression
    dataset = torch.utils.data.TensorDataset(x, y)
    with pytest.raises(ValueError, match=r"got a TensorDataset; pass x alone, e\.g\. dataset\.tensors\[0\]"):
        network.predict(dataset)
    with pytest.raises(ValueError, match=r"got a DataLoader; pass x alone, e\.g\. loader\.dataset\.tensors\[0\]"):
        network.predict(torch.utils.data.DataLoader(dataset))
    assert torch.equal(network.predict(dataset.tensors[0]).mean, network.predict(x).mean)
    assert torch.equal(network.predict(torch.stack([x for x, _ in dataset])).mean, network.predict(x).mean)


def test_quantiles_are_asked_for_one_at_a_time(regression):
    network, x, _ = regression
    one = network.predict(x)
    for prediction in (one, bmp.mixture([one, one]), one.undo(Scaling(np.zeros(1), np.ones(1)))):
        for p in ([0.1, 0.5], torch.tensor([0.1, 0.5]), np.array([0.1]), "high", None):
            with pytest.raises(TypeError, match=r"p must be one number between 0 and 1, got .*once for each p"):
                prediction.quantile(p)
            with pytest.raises(TypeError, match=r"level must be one number between 0 and 1, got .*once for each level"):
                prediction.interval(p)
        for p in (np.float32(0.25), torch.tensor(0.25)):
            assert torch.equal(prediction.quantile(p), prediction.quantile(0.25))
            assert torch.equal(prediction.interval(p)[0], prediction.interval(0.25)[0])
        with pytest.raises(ValueError, match="p must lie strictly between 0 and 1, got 1"):
            prediction.quantile(1)


def test_a_property_that_fails_says_why_itself(monkeypatch):
    """Not that it does not exist, though Python asks __getattr__ then."""
    network = mlp([2, 4, 3], bmp.Argmax())
    monkeypatch.setattr(type(network), "has_belief", property(lambda self: self.wrong_name))
    with pytest.raises(AttributeError, match="no attribute 'wrong_name'"):
        _ = network.has_belief


@pytest.mark.parametrize(
    "shape, words",
    [
        ((5, 8, 8), r"pass x\[:, None\]"),
        ((5, 8, 8, 1), r"channels last pass x\.permute\(0, 3, 1, 2\)"),
        ((1, 8, 8), r"a single example pass x\[None\]"),
        ((5, 3, 8, 8), r"got \(5, 3, 8, 8\)$"),
    ],
)
def test_images_of_another_layout_come_with_the_remedy(shape, words):
    network = bmp.Network([bmp.Conv2d(1, 2, 3), bmp.Flatten(), bmp.Linear(72, 2)], bmp.Argmax())
    with pytest.raises(ValueError, match=words):
        network.predict(torch.zeros(shape))


def test_images_for_a_dense_network_come_with_the_remedy():
    with pytest.raises(ValueError, match=r"begin with a Flatten layer, or pass x\.reshape\(len\(x\), -1\)"):
        mlp([64, 4, 3], bmp.Argmax()).predict(torch.zeros(5, 1, 8, 8))


@pytest.mark.parametrize("size", [27, 28])
def test_the_size_of_images_is_taken_from_the_data_where_several_fit(size):
    layers = [bmp.Conv2d(1, 4, 5, stride=2), bmp.LeakyReLU(), bmp.Flatten(), bmp.Linear(576, 3)]
    x, y = torch.randn(12, 1, size, size, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    network = bmp.Network(layers, bmp.Argmax())
    bmp.fit(network, x, y, epochs=1, progress=False)
    assert network.input_shape == (1, size, size) and network.predict(x).probs.shape == (12, 3)
    with pytest.raises(ValueError, match=rf"\(n, 1, {size}, {size}\).*got \(12, 1, 33, 33\)"):
        network.predict(torch.zeros(12, 1, 33, 33))
