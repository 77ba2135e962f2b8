"""PyTorch and back: the same functions, starts that are starts, errors that name the module, predictions for others."""

import copy
import warnings

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import bayesmp as bmp
from bayesmp.bridge import as_torch
from bayesmp.heads import Head
from bayesmp.layers import Layer
from tests.helpers import linear_data

torch.set_num_threads(1)


def mlp(bias=True):
    return nn.Sequential(nn.Linear(5, 8, bias=bias), nn.ReLU(), nn.Linear(8, 6), nn.LeakyReLU(0.2), nn.Linear(6, 3))


def cnn():
    """Every option that has a counterpart."""
    return nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(1, 0), bias=False),
        nn.ReLU(inplace=True),
        nn.MaxPool2d((2, 1), stride=1),
        nn.Conv2d(4, 5, 3, padding="same"),
        nn.LeakyReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(5, 6, 2, padding="valid"),
        nn.Flatten(),
        nn.Linear(6 * 3 * 1, 3),
    )


def global_pools():
    """Weights are not last: a pool and a Flatten follow."""
    pools = nn.AdaptiveMaxPool2d((1, 1)), nn.Flatten(), nn.LeakyReLU(0.3)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 2), *pools)


CASES = {
    "dense": (mlp, (5,)),
    "dense, no bias": (lambda: mlp(bias=False), (5,)),
    "images": (cnn, (2, 9, 8)),
    "global pool": (global_pools, (2, 7, 6)),
}


@pytest.fixture
def seeded():
    torch.manual_seed(0)


def same_weights(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


# --- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("weights", ["start", "prior"])
@pytest.mark.parametrize("head", [bmp.Regression(0.1), bmp.Argmax(), bmp.Softmax(), bmp.Argmax(scale=None)], ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_there_and_back_is_the_same_module(case, head, weights):
    make, shape = CASES[case]
    module = make()
    again = bmp.to_torch(bmp.from_torch(module, head, weights=weights, input_shape=shape))
    assert [type(part) for part in again] == [type(part) for part in module]
    assert same_weights(again, module)
    x = torch.randn(4, *shape)
    torch.testing.assert_close(again(x), module(x))
    assert all(part.requires_grad for part in again.parameters())


@pytest.mark.usefixtures("seeded")
def test_float64_stays_float64_and_half_precision_becomes_float32():
    module = mlp().double()
    network = bmp.from_torch(module, bmp.Softmax())
    again = bmp.to_torch(network)
    assert network.dtype == again[0].weight.dtype == torch.float64
    torch.testing.assert_close(again[4].weight, module[4].weight, rtol=1e-15, atol=0.0)
    assert bmp.from_torch(mlp().bfloat16(), bmp.Softmax()).dtype == torch.float32


@pytest.mark.usefixtures("seeded")
def test_nested_sequentials_are_taken_apart_and_dropout_is_left_out():
    inner = nn.Sequential(nn.Linear(5, 8), nn.Identity(), nn.ReLU())
    module = nn.Sequential(nn.Sequential(inner, nn.Dropout(0.5)), nn.Linear(8, 3))
    with pytest.warns(UserWarning, match=r"module 0\.1, Dropout\(p=0.5.*left out"):
        network = bmp.from_torch(module, bmp.Argmax())
    assert [type(layer) for layer in network.layers] == [bmp.Linear, bmp.ReLU, bmp.Linear]
    x = torch.randn(4, 5)
    torch.testing.assert_close(bmp.to_torch(network)(x), module.eval()(x))


@pytest.mark.usefixtures("seeded")
def test_layers_alone_give_the_network_that_bayesmp_would_make():
    module = mlp()
    network = bmp.from_torch(module, bmp.Argmax(), weights=None, seed=3)
    layers = [bmp.Linear(5, 8), bmp.ReLU(), bmp.Linear(8, 6), bmp.LeakyReLU(0.2), bmp.Linear(6, 3)]
    own = bmp.Network(layers, bmp.Argmax(), seed=3)
    assert torch.equal(network.start, own.start) and torch.equal(network.prior.tau, own.prior.tau)


@pytest.mark.usefixtures("seeded")
def test_neither_way_shares_memory_or_draws_random_numbers():
    module = mlp()
    before, state = copy.deepcopy(module), torch.get_rng_state()
    network = bmp.from_torch(module, bmp.Regression(0.1))
    again = bmp.to_torch(network)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        for part in [*again.parameters(), *module.parameters()]:
            part.zero_()
    assert same_weights(bmp.to_torch(network), before)


def test_a_head_of_ones_own_has_outputs_that_are_no_logits():
    assert Head.logits_per_output(bmp.Regression(0.1)) == 1.0


# --- what the weights are good for -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("seeded")
def test_start_leaves_the_prior_and_prior_moves_its_means():
    module = mlp()
    plain, start, prior = (bmp.from_torch(module, bmp.Argmax(), weights=name) for name in (None, "start", "prior"))
    assert torch.equal(start.prior.tau, plain.prior.tau) and torch.equal(start.prior.rho, plain.prior.rho)
    assert not torch.equal(start.start, plain.start)
    assert torch.equal(prior.prior.rho, plain.prior.rho) and torch.equal(prior.start, start.start)
    torch.testing.assert_close(prior.prior.mean, prior.start.float(), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(prior.marginal.mean, prior.prior.mean)
    first = prior.unpack(prior.prior.mean)[0]["weight"]
    torch.testing.assert_close(first, module[0].weight.detach(), rtol=1e-6, atol=0.0)


@pytest.mark.usefixtures("seeded")
def test_a_prior_around_trained_weights_can_be_narrowed():
    """As the docstring says; training then starts at the same means."""
    network = bmp.from_torch(mlp(), bmp.Argmax(), weights="prior")
    start, var = network.start, network.prior.var
    network.prior = bmp.Gaussian.from_moments(network.prior.mean, 0.01 * network.prior.var)
    torch.testing.assert_close(network.start, start, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(network.prior.var, 0.01 * var)


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("weights", ["start", "prior"])
def test_a_network_from_torch_is_saved_with_its_start(weights, tmp_path):
    module = mlp()
    bmp.from_torch(module, bmp.Argmax(), weights=weights).save(tmp_path / "network.safetensors")
    again = bmp.load(tmp_path / "network.safetensors")
    assert same_weights(bmp.to_torch(again), module)


@pytest.fixture(scope="module")
def digits():
    """A network trained with AdamW on some digits."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16).float(), torch.tensor(y)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-3)
    for _ in range(30):
        for rows in torch.randperm(600).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
    return module.eval(), x, y


def right(scores, y):
    return float((scores.argmax(1) == y).double().mean())


@pytest.mark.parametrize(
    "head, weights", [(bmp.Argmax(), "start"), (bmp.Argmax(), "prior"), (bmp.Softmax(), "start")], ids=repr
)
def test_a_trained_start_is_one(digits, head, weights):
    """Logits were taken as outputs once: training first had to shrink them, and was right in 12 % after two epochs."""
    module, x, y = digits
    theirs = right(module(x[600:]), y[600:])
    assert theirs > 0.85
    plain = bmp.from_torch(module, head, weights=None)
    bmp.fit(plain, x[:600], y[:600], epochs=1, batch_size=60)
    network = bmp.from_torch(module, head, weights=weights)
    trainer = bmp.Trainer(network, x[:600], y[:600], batch_size=60)
    trainer.run(1)
    found, without = (right(net.predict(x[600:], joint=False).probs, y[600:]) for net in (network, plain))
    assert found > max(theirs - 0.1, without)
    trainer.run(4)
    assert right(network.predict(x[600:], joint=False).probs, y[600:]) > theirs - 0.03


def test_the_first_visit_sees_the_trained_outputs(digits):
    """Before any visit the marginal lies at the trained weights, narrow enough for the module's own answers."""
    module, x, y = digits
    network = bmp.from_torch(module, bmp.Softmax())
    bmp.Trainer(network, x[:600], y[:600])
    agree = network.predict(x[600:]).label == module(x[600:]).argmax(1)
    assert agree.double().mean() > 0.97


# --- to PyTorch ------------------------------------------------------------------------------------------------------


def test_means_of_a_trained_network_are_near_what_it_predicts():
    x, y = linear_data(60, n_in=3)
    network = bmp.Network([bmp.Linear(3, 8), bmp.LeakyReLU(), bmp.Linear(8, 1)], bmp.Regression(0.01))
    bmp.fit(network, x, y, epochs=20, batch_size=20)
    module = bmp.to_torch(network).requires_grad_(False)
    gap = (module(x.float()) - network.predict(x.float()).mean).square().mean().sqrt()
    assert float(gap) < 0.05 * float(y.std())
    assert torch.equal(module[0].weight, network.unpack(network.marginal.mean)[0]["weight"])


def test_outputs_are_logits(digits):
    """Their softmax is near the network's probabilities, where these do not doubt."""
    module, x, y = digits
    network = bmp.from_torch(module, bmp.Argmax())
    bmp.fit(network, x[:600], y[:600], epochs=3, batch_size=60)
    probs = bmp.to_torch(network)(x[:600]).detach().softmax(1)
    assert float((probs - network.predict(x[:600]).probs).abs().mean()) < 0.03


def test_a_sample_is_a_draw_from_the_belief():
    """In one layer the network is linear, so samples of it are functions that the data allow."""
    x, y = linear_data(30, n_in=3)
    network = bmp.Network([bmp.Linear(3, 1)], bmp.Regression(0.1)).to(torch.float64)
    with pytest.raises(ValueError, match="train the network first"):
        bmp.to_torch(network, "sample")
    bmp.fit(network, x, y, epochs=5, batch_size=10)
    one, same, other = (bmp.to_torch(network, "sample", seed=seed) for seed in (1, 1, 2))
    assert same_weights(one, same) and not same_weights(one, other)
    torch.testing.assert_close(one(x), network.sample_functions(x, 1, seed=1)[0])
    draws = torch.stack([bmp.to_torch(network, "sample", seed=seed)(x[:5])[:, 0] for seed in range(400)])
    prediction = network.predict(x[:5])
    torch.testing.assert_close(draws.var(0), prediction.epistemic_var.reshape(-1), rtol=0.35, atol=0.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.usefixtures("seeded")
def test_both_ways_stay_on_the_device():
    module = mlp().cuda()
    network = bmp.from_torch(module, bmp.Argmax())
    assert network.device.type == "cuda"
    assert same_weights(bmp.to_torch(network), module)


# --- errors ----------------------------------------------------------------------------------------------------------


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "part, words",
    [
        (nn.BatchNorm1d(4), r"module 1, BatchNorm1d.*fuse_linear_bn_eval"),
        (nn.Tanh(), r"module 1, Tanh\(\) has no counterpart here; use nn.ReLU"),
        (nn.Softmax(dim=1), "the head makes probabilities"),
        (nn.LayerNorm(4), "no normalising layers"),
        (nn.Conv1d(1, 1, 1), r"use nn.Conv2d"),
        (nn.Bilinear(4, 4, 4), "from_torch takes Linear, Conv2d"),
        (Doubled(4, 4), "module 1, Doubled.*no counterpart"),
        (nn.LazyLinear(4), "call the nn.Sequential once"),
        (nn.LeakyReLU(1.5), r"module 1, LeakyReLU.*leak must lie in \[0, 1\)"),
        (nn.Conv2d(2, 2, 3, dilation=2), r"module 1, Conv2d.*dilation=\(2, 2\).*use dilation=1"),
        (nn.Conv2d(2, 2, 3, groups=2), "groups=2 has no counterpart here; use groups=1"),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), "padding_mode='reflect'"),
        (nn.Conv2d(2, 2, 2, padding="same"), "even kernel"),
        (nn.MaxPool2d(3, padding=1), "padding=1.*use padding=0"),
        (nn.MaxPool2d(2, dilation=2), "dilation=2"),
        (nn.MaxPool2d(2, ceil_mode=True), "ceil_mode=True.*use ceil_mode=False"),
        (nn.MaxPool2d(2, return_indices=True), "return_indices"),
        (nn.AvgPool2d(2, padding=1), "padding=1"),
        (nn.AvgPool2d(2, divisor_override=3), "divisor_override=3"),
        (nn.AdaptiveAvgPool2d(2), "output_size=2.*use output_size=1"),
        (nn.Flatten(start_dim=2), "start_dim=2.*use start_dim=1"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_has_no_counterpart_is_named_with_its_place_and_a_way_out(part, words):
    with pytest.raises(ValueError, match=words):
        bmp.from_torch(nn.Sequential(nn.Linear(4, 4), part), bmp.Argmax())


def test_places_inside_nested_sequentials_are_named_as_torch_names_them():
    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.GELU()))
    assert "1.1" in dict(module.named_modules())
    with pytest.raises(ValueError, match=r"module 1\.1, GELU"):
        bmp.from_torch(module, bmp.Argmax())


class Twice(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


class Named(nn.Sequential):
    """A Sequential by another name does what any does."""


class Half(nn.Identity):
    def forward(self, x):
        return x / 2


@pytest.mark.usefixtures("seeded")
def test_a_forward_of_ones_own_is_not_left_out_in_silence():
    """The factor 2 was ignored, and so was that of an Identity that is none."""
    with pytest.raises(ValueError, match=r"the Twice has a forward of its own.*a plain nn\.Sequential"):
        bmp.from_torch(Twice(nn.Linear(2, 2)), bmp.Argmax())
    with pytest.raises(ValueError, match=r"module 1\.0, a Twice, has a forward of its own"):
        bmp.from_torch(nn.Sequential(nn.Linear(2, 2), Named(Twice(nn.Linear(2, 2)))), bmp.Argmax())
    with pytest.raises(ValueError, match=r"module 1, Half\(\) has no counterpart"):
        bmp.from_torch(nn.Sequential(nn.Linear(2, 2), Half()), bmp.Argmax())
    assert len(bmp.from_torch(Named(nn.Linear(2, 2), Named(nn.ReLU(), nn.Linear(2, 2))), bmp.Argmax()).layers) == 3


@pytest.mark.parametrize(
    "where, words", [("", "the Sequential"), ("1", "module 1, a Sequential,"), ("1.0", r"ReLU\(\)")]
)
@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_are_refused_until_they_are_removed(where, words, register):
    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()), nn.Linear(2, 2))

    def halved(*_):
        return None

    handle = getattr(module.get_submodule(where), register)(halved)
    with pytest.raises(ValueError, match=rf"{words} has a forward hook, halved, .*call remove\(\) of the handle"):
        bmp.from_torch(module, bmp.Argmax())
    handle.remove()
    assert len(bmp.from_torch(module, bmp.Argmax()).layers) == 3


@pytest.mark.parametrize(
    "change",
    [
        nn.utils.parametrizations.weight_norm,
        pytest.param(nn.utils.weight_norm, marks=pytest.mark.filterwarnings("ignore::FutureWarning")),
        nn.utils.spectral_norm,
        lambda layer: nn.utils.prune.random_unstructured(layer, "weight", 0.5),
    ],
)
@pytest.mark.usefixtures("seeded")
def test_weights_that_are_made_of_others_are_taken_as_they_are(change):
    """Also where they were changed, and those at hand are of the last call."""
    module = nn.Sequential(change(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 1)).eval()
    with torch.no_grad():
        for part in module.parameters():
            part.mul_(1.5)
    x = torch.randn(5, 3)
    torch.testing.assert_close(bmp.to_torch(bmp.from_torch(module, bmp.Regression(0.1)))(x), module(x))


@pytest.mark.usefixtures("seeded")
def test_one_activation_in_several_places_is_there_as_often():
    """PyTorch lists a module once: the second place had none, and two Linears had nothing between them."""
    relu, linear = nn.ReLU(), nn.Linear(4, 4)
    module = nn.Sequential(nn.Linear(3, 4), relu, linear, relu, nn.Linear(4, 1))
    network, x = bmp.from_torch(module, bmp.Regression(0.1)), torch.randn(5, 3)
    assert [type(layer).__name__ for layer in network.layers] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    torch.testing.assert_close(bmp.to_torch(network)(x), module(x))
    with pytest.raises(ValueError, match=r"Linear\(.*\) is in several places .*a layer of its own"):
        bmp.from_torch(nn.Sequential(nn.Linear(3, 4), relu, linear, relu, linear), bmp.Argmax())


@pytest.mark.usefixtures("seeded")
def test_other_mistakes_are_named_too():
    with pytest.raises(TypeError, match=r"takes an nn\.Sequential, got Linear"):
        bmp.from_torch(nn.Linear(2, 2), bmp.Argmax())
    with pytest.raises(ValueError, match="weights must be one of"):
        bmp.from_torch(mlp(), bmp.Argmax(), weights="mean")
    with pytest.raises(ValueError, match="weights must be one of"):
        bmp.to_torch(bmp.from_torch(mlp(), bmp.Argmax()), "median")
    broken = mlp()
    nn.init.constant_(broken[0].bias, float("nan"))
    with pytest.raises(ValueError, match="NaN or infinite"):
        bmp.from_torch(broken, bmp.Argmax())

    class Own(Layer):
        def output_shape(self, shape_in):
            return shape_in

        def sweep(self, *_, **__):
            raise NotImplementedError

    with pytest.raises(ValueError, match=r"layer 1, .*Own.* has no module in PyTorch"):
        as_torch([bmp.Linear(2, 2), Own()])


# --- predictions for others ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judged(digits):
    module, x, y = digits
    network = bmp.from_torch(module, bmp.Argmax())
    bmp.fit(network, x[:300], y[:300], epochs=2, batch_size=60)
    return network.predict(x[600:]), y[600:]


def test_predictions_are_what_other_libraries_take(judged):
    """Plain float tensors without gradients, rows that sum to one, labels as integers."""
    prediction, y = judged
    probs = prediction.probs
    assert type(probs) is torch.Tensor and probs.dtype == torch.float32 and not probs.requires_grad
    assert not probs.is_inference()  # else autograd refuses what is made of them
    torch.testing.assert_close(probs.sum(1), torch.ones(len(probs)))
    assert probs.min() >= 0.0 and probs.max() <= 1.0
    assert prediction.label.dtype == torch.int64
    loss = nn.functional.nll_loss(probs.log(), y)
    torch.testing.assert_close(loss, -prediction.log_prob(y).mean())


def test_torchmetrics_agrees_with_our_metrics(judged):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its optional dependencies
        functional = pytest.importorskip("torchmetrics.functional.classification")
    prediction, y = judged
    accuracy = functional.multiclass_accuracy(prediction.probs, y, num_classes=10, average="micro")
    assert float(accuracy) == pytest.approx(bmp.metrics.accuracy(prediction.probs, y), abs=1e-6)
    ece = functional.multiclass_calibration_error(prediction.probs, y, num_classes=10, n_bins=15)
    assert float(ece) == pytest.approx(bmp.metrics.ece(prediction.probs, y, n_bins=15), abs=1e-4)
