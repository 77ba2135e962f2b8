"""PyTorch and back: the same functions, starts that are starts, predictions for others."""

import copy
import warnings

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import bayesmp as bmp
from bayesmp.heads import Head
from tests.helpers import linear_data

torch.set_num_threads(1)


def mlp(bias=True):
    return nn.Sequential(nn.Linear(5, 8, bias=bias), nn.ReLU(), nn.Linear(8, 6), nn.LeakyReLU(0.2), nn.Linear(6, 3))


def smooth():
    return nn.Sequential(nn.Linear(5, 8), nn.Softplus(), nn.Linear(8, 6), nn.Softplus(beta=3.0), nn.Linear(6, 3))


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
    "smooth": (smooth, (5,)),
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
    trainer.run(2)  # the first epoch shares what batches have never said as if they had
    found, without = (right(net.predict(x[600:], joint=False).probs, y[600:]) for net in (network, plain))
    assert found > max(theirs - 0.1, without)
    trainer.run(3)
    assert right(network.predict(x[600:], joint=False).probs, y[600:]) > theirs - 0.03


def test_the_first_visit_sees_the_trained_outputs(digits):
    """Before any visit the marginal lies at the trained weights, narrow enough for the module's own answers."""
    module, x, y = digits
    network = bmp.from_torch(module, bmp.Softmax())
    bmp.Trainer(network, x[:600], y[:600])
    agree = network.predict(x[600:]).label == module(x[600:]).argmax(1)
    assert agree.double().mean() > 0.97


# --- to PyTorch ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # less noise is given than there is
def test_means_of_a_trained_network_are_near_what_it_predicts():
    x, y = linear_data(60, n_in=3)
    network = bmp.Network([bmp.Linear(3, 8), bmp.LeakyReLU(), bmp.Linear(8, 1)], bmp.Regression(0.01))
    bmp.fit(network, x, y, epochs=20, batch_size=20)
    module = bmp.to_torch(network).requires_grad_(False)
    gap = (module(x.float()) - network.predict(x.float()).mean).square().mean().sqrt()
    assert float(gap) < 0.08 * float(y.std())  # the module's units bend sharply, the network's are averaged
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
