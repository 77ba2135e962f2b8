"""The network: shapes, priors and seeds, dtype and device, prediction in batches, errors that help."""

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.messages.gaussian import Gaussian, Moments
from bayesmp.messages.regime import MEANS, MOMENTS
from tests.helpers import assert_unchanged, blobs, linear_data, mlp, snapshot

CNN = [
    bmp.Conv2d(1, 4, 3),
    bmp.LeakyReLU(),
    bmp.MaxPool2d(2),
    bmp.Flatten(),
    bmp.Linear(4 * 13 * 13, 10),
]


def trained(dtype=torch.float32):
    x, y = linear_data(30)
    network = mlp([3, 5, 1], bmp.Regression(0.09), dtype=dtype)
    bmp.fit(network, x, y, epochs=3, batch_size=10)
    return network


# --- what it shows ---------------------------------------------------------------------------------------------------


def test_repr_shows_shapes_and_the_number_of_weights():
    text = repr(bmp.Network(CNN, bmp.Argmax()))
    n_weights = 4 * 9 + 4 + 10 * 676 + 10
    assert f"{n_weights:,} weights" in text
    assert "Argmax(target_var=0.1)" in text and "torch.float32" in text and "cpu" in text
    lines = text.splitlines()
    assert len(lines) == 2 + len(CNN)
    assert "1 x 28 x 28" in lines[1]
    shapes = ["4 x 26 x 26", "4 x 26 x 26", "4 x 13 x 13", "676", "10"]
    for line, layer, shape in zip(lines[2:], CNN, shapes, strict=True):
        assert repr(layer) in line and f"-> {shape}" in line
    assert "40 weights" in lines[2] and "weights" not in lines[3] and "6,770 weights" in lines[-1]


def test_weights_are_views_of_one_flat_vector():
    network = mlp([3, 5, 2], bmp.Softmax())
    assert network.n_weights == 3 * 5 + 5 + 5 * 2 + 2 == len(network.marginal.tau)
    tensors = network.unpack(network.marginal.rho)
    tensors[0]["weight"].fill_(7.0)
    assert (network.marginal.rho[:15] == 7.0).all()
    messages = [
        {name: Gaussian(t[name], r[name]) for name in t}
        for t, r in zip(network.unpack(network.prior.tau), network.unpack(network.prior.rho), strict=True)
    ]
    packed = network.pack(messages)
    assert torch.equal(packed.tau, network.prior.tau) and torch.equal(packed.rho, network.prior.rho)


# --- seeds and priors ------------------------------------------------------------------------------------------------


def test_the_seed_decides_the_prior_means_and_nothing_else():
    one, same, other = (mlp([3, 5, 1], bmp.Regression(1.0), seed=seed) for seed in (4, 4, 5))
    assert torch.equal(one.prior.tau, same.prior.tau)
    assert not torch.equal(one.prior.tau, other.prior.tau)
    assert torch.equal(one.prior.rho, other.prior.rho)


@pytest.mark.parametrize("rule, power", [("narrow", 0.5), ("paper", 0.0)])
def test_prior_means_are_the_starting_means_drawn_in_for_wide_layers(rule, power):
    layers = [bmp.Linear(40, 100), bmp.LeakyReLU(), bmp.Linear(100, 16), bmp.LeakyReLU(), bmp.Linear(16, 2)]
    network = bmp.Network(layers, bmp.Softmax(), prior=rule).to(torch.float64)
    starts, means = network.unpack(network.start), network.unpack(network.prior.mean)
    for k, ratio in ((0, 16 / 40), (2, 16 / 100), (4, 1.0)):
        assert starts[k]["weight"].abs().min() > 0
        torch.testing.assert_close(means[k]["weight"], ratio**power * starts[k]["weight"])
        assert (means[k]["bias"] == 0).all() and (starts[k]["bias"] == 0).all()


def test_training_starts_at_given_and_at_assigned_prior_means():
    given = torch.linspace(-1.0, 1.0, 40, dtype=torch.float64)
    layers = [bmp.Linear(40, 2, weight_prior=(given, 0.1)), bmp.LeakyReLU(), bmp.Linear(2, 1)]
    network = bmp.Network(layers, bmp.Regression(1.0))
    assert torch.equal(network.unpack(network.start)[0]["weight"], given.expand(2, 40))
    assert (network.unpack(network.start)[2]["weight"] != 0).all()
    network.prior = Gaussian(torch.full((85,), 0.6), torch.full((85,), 2.0))
    torch.testing.assert_close(network.start, torch.full((85,), 0.3, dtype=torch.float64), rtol=1e-6, atol=0.0)


def test_making_a_network_leaves_the_global_random_numbers_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    trained()
    assert torch.equal(torch.rand(3), expected)


def test_a_new_network_believes_its_prior_and_reset_returns_to_it():
    network = trained()
    assert not torch.equal(network.marginal.tau, network.prior.tau)
    assert network.belief is not None
    network.sum_share[0], network.regime = 0.4, MEANS
    start = network.start.clone()
    network.reset()
    assert (network.sum_share == 1.0).all() and torch.equal(network.start, start)
    assert network.regime == MOMENTS and network.belief is None
    assert torch.equal(network.marginal.tau, network.prior.tau) and torch.equal(network.marginal.rho, network.prior.rho)
    assert network.marginal.tau.data_ptr() != network.prior.tau.data_ptr()


@pytest.mark.parametrize(
    "prior", [(0.0, -1.0), (0.0, 0.0), (float("nan"), 1.0), (0.0,), 3.0, (torch.zeros(7), 1.0), ("a", 1.0)]
)
def test_a_given_prior_that_is_none_is_refused(prior):
    with pytest.raises(ValueError, match=r"weight_prior of Linear\(3, 2\) must"):
        bmp.Network([bmp.Linear(3, 2, weight_prior=prior)], bmp.Regression(1.0))


@pytest.mark.parametrize("rule", ["wide", "", None])
def test_an_unknown_prior_rule_is_refused_with_those_there_are(rule):
    with pytest.raises(ValueError, match=r"prior must be one of \('narrow', 'paper'\), got"):
        bmp.Network([bmp.Linear(3, 2)], bmp.Regression(1.0), prior=rule)


# --- dtype and device ------------------------------------------------------------------------------------------------


def test_to_works_in_place_and_returns_the_network():
    network = mlp([3, 5, 1], bmp.Regression(1.0))
    assert network.to(torch.float64) is network
    assert network.dtype == network.prior.rho.dtype == network.head_log_weights.dtype == torch.float64
    assert network.to("cpu") is network and network.dtype == torch.float64
    assert network.to(torch.device("cpu"), torch.float32) is network and network.dtype == torch.float32
    assert network.to(dtype=torch.float64).dtype == torch.float64


def test_a_float64_network_does_not_carry_float32_rounding():
    prior = torch.full((1, 1), 0.1, dtype=torch.float64)
    network = bmp.Network([bmp.Linear(1, 1, bias=False, weight_prior=(prior, 0.3))], bmp.Regression(1.0))
    network.to(torch.float64)
    assert network.prior.mean.item() == pytest.approx(0.1, rel=1e-14)
    assert torch.equal(network.marginal.tau, network.prior.tau)


def test_to_keeps_where_training_starts_in_full_precision():
    network = mlp([40, 5, 1], bmp.Regression(1.0))
    start = network.start.clone()
    assert start.dtype == torch.float64 and not torch.equal(start, start.float().double())
    for dtype in (torch.float64, torch.float32, torch.float64):
        assert torch.equal(network.to(dtype).start, start)
    network.start = other = 2.0 * start
    assert torch.equal(network.to(torch.float32).start, other)


def test_to_keeps_what_was_learned():
    network = trained()
    before = network.marginal.map(torch.clone)
    x = linear_data(5)[0]
    network.sum_share[0] = 0.25
    predicted = network.predict(x).epistemic_var
    network.to(torch.float64)
    assert network.sum_share[0] == 0.25 and network.sum_share.dtype == torch.float64
    assert torch.equal(network.marginal.tau, before.tau.double())
    assert torch.equal(network.marginal.rho, before.rho.double())
    torch.testing.assert_close(network.predict(x).epistemic_var, predicted.double(), rtol=1e-4, atol=1e-9)
    network.to(torch.float32)
    assert torch.equal(network.marginal.tau, before.tau)
    torch.testing.assert_close(network.predict(x).epistemic_var, predicted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32])
def test_other_dtypes_are_refused(dtype):
    network = trained()
    before = snapshot(network)
    with pytest.raises(ValueError, match=r"torch.float32 or torch.float64, got torch\."):
        network.to(dtype)
    assert_unchanged(network, before)


# --- prediction ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_size", [1, 7, 50, 1000])
def test_prediction_in_batches_is_prediction_at_once(batch_size, dtype):
    network, x = trained(dtype), linear_data(50, seed=1)[0]
    whole, parts = network.predict(x), network.predict(x, batch_size=batch_size)
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.epistemic_var, whole.epistemic_var)
    assert parts.mean.shape == (50, 1) and parts.mean.dtype == dtype


def test_class_prediction_in_batches_is_prediction_at_once():
    x, y = blobs(60)
    network = mlp([2, 5, 3], bmp.Argmax())
    bmp.fit(network, x, y, epochs=2, batch_size=20)
    whole, parts = network.predict(x), network.predict(x, batch_size=7)
    torch.testing.assert_close(parts.probs, whole.probs)
    assert torch.equal(parts.label, whole.label)
    torch.testing.assert_close(parts.epistemic, whole.epistemic, rtol=1e-3, atol=1e-5)
    assert parts.entropy.shape == parts.epistemic.shape == parts.aleatoric.shape == (60,)


def test_a_share_of_sums_is_a_share_of_the_variance_of_sums_in_one_sweep():
    """Of one layer: of the output's variance. Means, and what each weight is believed to be, stay."""
    network, x = bmp.Network([bmp.Linear(3, 2)], bmp.Regression(1.0)).to(torch.float64), linear_data(5)[0]
    before, marginal = network.predict(x), network.marginal.map(torch.clone)
    network.sum_share[0] = 0.3
    after = network.predict(x)
    torch.testing.assert_close(after.epistemic_var, 0.3 * before.epistemic_var)
    assert torch.equal(after.mean, before.mean) and torch.equal(network.marginal.rho, marginal.rho)


@pytest.mark.parametrize("joint", [True, False])
def test_a_network_that_was_never_trained_predicts_with_its_prior(joint):
    """There is no joint belief yet, and a prior has no correlations: one sweep with independent weights."""
    network, x = mlp([3, 5, 1], bmp.Regression(0.09), dtype=torch.float64), linear_data(5)[0]
    m_out = network.graph.outputs(x, network.weights(network.prior), MOMENTS)
    prediction = network.predict(x, joint=joint)
    assert torch.equal(prediction.mean, m_out.mean) and torch.equal(prediction.epistemic_var, m_out.var)


def test_a_trained_network_predicts_with_the_joint_belief_or_with_one_sweep():
    """Means of the marginals in both; variances, and covariances of several outputs, from the belief if it is asked.
    That is so without an objective, whose belief smooths activations."""
    x, y = blobs(60)
    network = mlp([2, 5, 3], bmp.Softmax(), dtype=torch.float64)
    bmp.fit(network, x, y, epochs=5, batch_size=20, joint=True)
    one_sweep, joint = network.predict(x, joint=False), network.predict(x)
    m_out = network.graph.outputs(x, network.weights(), network.regime)
    torch.testing.assert_close(one_sweep.mean, m_out.mean)
    torch.testing.assert_close(one_sweep.epistemic_var, m_out.var)
    covariance = network.belief.covariance(network.gradients(x)[1])
    torch.testing.assert_close(joint.mean, m_out.mean)
    torch.testing.assert_close(joint.epistemic_var, covariance.diagonal(dim1=1, dim2=2))
    expected = network.head.predict(Moments(joint.mean, joint.epistemic_var), network.head_log_weights, covariance)
    torch.testing.assert_close(joint.probs, expected.probs)
    assert not torch.allclose(joint.epistemic_var, one_sweep.epistemic_var, rtol=0.1)


@pytest.mark.parametrize("make", [np.asarray, torch.Tensor.float, torch.Tensor.double, torch.Tensor.tolist])
def test_prediction_takes_arrays_tensors_and_lists(make):
    network, x = trained(), linear_data(5)[0]
    torch.testing.assert_close(network.predict(make(x)).mean, network.predict(x).mean)


@pytest.mark.parametrize("joint", [True, False])
def test_prediction_changes_nothing(joint):
    network = trained()
    before = snapshot(network)
    network.predict(linear_data(5)[0], joint=joint)
    assert_unchanged(network, before)


@pytest.mark.parametrize(
    "x, words",
    [
        (torch.zeros(4, 2), r"\(n, 3\).*got \(4, 2\)"),
        (torch.zeros(3), r"\(n, 3\).*got \(3,\); for a single example pass x\[None\]"),
        (torch.zeros(4, 3, 1), r"\(n, 3\).*got \(4, 3, 1\)"),
        (torch.zeros(0, 3), "at least one example.*empty"),
        (torch.tensor([[0.0, 1.0, 2.0], [0.0, float("nan"), 0.0]]), "NaN.*row 1.*impute or drop"),
        (torch.tensor([[float("inf"), 1.0, 2.0]]), "infinite.*row 0"),
        (torch.zeros(4, 3, dtype=torch.complex64), "real numbers.*complex64"),
        (np.array([["a", "b", "c"]]), "it holds text or objects, not numbers"),
        ([["a", "b", "c"]], "array of numbers"),
        ([[1.0, 2.0, 3.0], [1.0]], "array of numbers"),
        (None, "array of numbers, got NoneType"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_what_does(x, words):
    with pytest.raises(ValueError, match=words):
        trained().predict(x)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, "all", True])
def test_a_prediction_batch_size_that_is_none_is_refused(batch_size):
    with pytest.raises(ValueError, match="batch_size must be a positive integer, got"):
        trained().predict(torch.zeros(2, 3), batch_size=batch_size)


# --- shapes of inputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layers, expected",
    [
        ([bmp.Linear(5, 2)], (5,)),
        ([bmp.LeakyReLU(), bmp.Linear(5, 2)], (5,)),
        ([bmp.Flatten(), bmp.Linear(5, 2)], (5,)),
        (CNN, (1, 28, 28)),
        ([bmp.Conv2d(3, 2, 3, padding=1), bmp.Flatten(), bmp.Linear(2 * 8 * 8, 2)], (3, 8, 8)),
        ([bmp.Conv2d(3, 2, 3, stride=2), bmp.Flatten(), bmp.Linear(2 * 4 * 4, 2)], (3, 9, 9)),
    ],
)
def test_the_shape_of_an_input_is_found_from_the_layers(layers, expected):
    assert bmp.Network(layers, bmp.Softmax()).input_shape == expected


def test_a_given_shape_is_taken_also_where_another_would_be_found():
    """A pool drops the last row of 29 x 29 images, so the layers alone cannot tell them from 28 x 28 ones."""
    network = bmp.Network(CNN, bmp.Softmax(), input_shape=(1, 29, 29))
    assert network.predict(torch.zeros(2, 1, 29, 29)).probs.shape == (2, 10)
    flat = bmp.Network([bmp.Flatten(), bmp.Linear(12, 2)], bmp.Softmax(), input_shape=[3, 2, 2])
    assert flat.input_shape == (3, 2, 2)


@pytest.mark.parametrize(
    "layers",
    [
        [bmp.Conv2d(1, 4, 3), bmp.Flatten()],
        [bmp.Conv2d(1, 4, 3), bmp.AvgPool2d(), bmp.Flatten(), bmp.Linear(4, 2)],
        [bmp.AvgPool2d(2), bmp.Conv2d(1, 4, 3), bmp.Flatten()],
    ],
    ids=["no Linear", "global pool", "pool first"],
)
def test_a_shape_that_cannot_be_found_is_asked_for(layers):
    with pytest.raises(ValueError, match=r"pass input_shape, e.g. input_shape=\(3, 32, 32\)"):
        bmp.Network(layers, bmp.Softmax())


@pytest.mark.parametrize("shape", [(0, 28, 28), (1, 28.0, 28), ("a",), (-3,)])
def test_a_given_shape_must_hold_positive_integers(shape):
    with pytest.raises(ValueError, match="each entry of input_shape must be a positive integer"):
        bmp.Network(CNN, bmp.Softmax(), input_shape=shape)


# --- parts that do not fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layers, head, words",
    [
        ([bmp.Linear(3, 4), bmp.Linear(5, 2)], bmp.Softmax(), r"layer 1 does not fit.*\(5,\).*got \(4,\)"),
        ([bmp.Linear(3, 1)], bmp.Softmax(), "at least 2.*has 1"),
        ([bmp.Linear(3, 1)], bmp.Argmax(), "at least 2.*has 1"),
        ([bmp.Conv2d(1, 4, 3)], bmp.Regression(1.0), "input_shape"),
        ([bmp.LeakyReLU()], bmp.Regression(1.0), "at least one layer with weights"),
        ([], bmp.Regression(1.0), "at least one layer with weights"),
        ([bmp.Linear(3, 4), torch.nn.ReLU()], bmp.Softmax(), r"layer 1 must be a bayesmp layer.*got ReLU\(\)"),
        ([bmp.Linear(3, 4), bmp.ReLU], bmp.Softmax(), "layer 1 must be a bayesmp layer"),
        ([bmp.Linear(3, 4)], bmp.Softmax, "head must be"),
        ([bmp.Linear(3, 4)], "softmax", "head must be.*got 'softmax'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(layers, head, words):
    with pytest.raises(ValueError, match=words):
        bmp.Network(layers, head)


def test_a_head_behind_an_image_asks_for_a_flat_output():
    with pytest.raises(ValueError, match=r"flat output.*\(4, 6, 6\).*Flatten"):
        bmp.Network([bmp.Conv2d(1, 4, 3)], bmp.Softmax(), input_shape=(1, 8, 8))


def test_an_input_shape_that_does_not_fit_names_the_layer():
    with pytest.raises(ValueError, match=r"layer 4 does not fit.*676"):
        bmp.Network(CNN, bmp.Softmax(), input_shape=(1, 20, 20))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["dense", "convolutions", "learned noise"])
@pytest.mark.slow
def test_a_network_trained_on_cuda_predicts_the_same_on_the_cpu(name, tmp_path):
    """To 1e-4, moved and from a file: probabilities, means and standard deviations."""
    generator = torch.Generator().manual_seed(0)
    if name == "learned noise":
        x = torch.randn(300, 4, generator=generator)
        y = x[:, :1].sin() + 0.2 * torch.randn(300, 1, generator=generator)
        layers, head = [bmp.Linear(4, 32), bmp.LeakyReLU(), bmp.Linear(32, 1)], bmp.Regression("learn")
    else:
        x = torch.randn(400, 1, 12, 12, generator=generator)
        y = torch.randint(0, 5, (400,), generator=generator)
        x[torch.arange(400), 0, 2 * y] += 2.0
        dense = [bmp.Flatten(), bmp.Linear(144, 40), bmp.LeakyReLU(), bmp.Linear(40, 5)]
        pooled = [bmp.Conv2d(1, 8, 3), bmp.LeakyReLU(), bmp.MaxPool2d(2), bmp.Flatten(), bmp.Linear(200, 5)]
        layers, head = dense if name == "dense" else pooled, bmp.Argmax()
    network = bmp.Network(layers, head, input_shape=x.shape[1:]).to("cuda")
    bmp.fit(network, x, y, epochs=5, batch_size=64, progress=False)
    there = network.predict(x)
    network.save(tmp_path / "model.safetensors")
    for here in (bmp.load(tmp_path / "model.safetensors").predict(x), network.cpu().predict(x)):
        if name == "learned noise":
            torch.testing.assert_close(here.mean, there.mean.cpu(), rtol=0.0, atol=1e-4)
            torch.testing.assert_close(here.std, there.std.cpu(), rtol=0.0, atol=1e-4)
        else:
            torch.testing.assert_close(here.probs, there.probs.cpu(), rtol=0.0, atol=1e-4)
            torch.testing.assert_close(here.epistemic, there.epistemic.cpu(), rtol=0.0, atol=1e-4)
