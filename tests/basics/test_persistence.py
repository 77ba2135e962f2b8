"""Saved networks predict the same; saved runs go on bit for bit; files that do not fit are refused."""

from __future__ import annotations

import inspect
import json
import os
import zlib

import pytest
import safetensors.torch
import torch

import bayesmp as bmp
from bayesmp.basics import persistence
from bayesmp.heads import Argmax, Regression, Softmax
from bayesmp.messages.gaussian import Gaussian
from bayesmp.network.parts import HEADS
from bayesmp.network.parts import LAYERS as LAYER_TYPES
from tests.helpers import blobs, linear_data, mlp, snapshot
from tests.layers.test_contract import LAYERS

APART = {"weight_prior", "bias_prior"}  # constructor arguments that are saved as tensors
PARTS = [layer for layer, _ in LAYERS] + [
    Regression(0.1),
    Regression("learn"),
    Softmax(),
    Softmax(scale=2.0),
    Softmax(scale=None, gain=2.0),
    Argmax(noise=0.2, target=1.5, target_var=0.3, scale=None),
]


def image_network(dtype: torch.dtype = torch.float32) -> bmp.Network:
    layers = [
        bmp.Conv2d(1, 3, (2, 3), padding=(1, 0)),
        bmp.ReLU(),
        bmp.MaxPool2d(2, noise=0.1),
        bmp.Conv2d(3, 2, 2, bias=False),
        bmp.LeakyReLU(0.2),
        bmp.AvgPool2d(),
        bmp.Flatten(),
        bmp.Linear(2, 3, weight_prior=(torch.eye(3)[:, :2] / 3, 0.7), bias_prior=(0.1, 0.3)),
    ]
    return bmp.Network(layers, bmp.Argmax(), seed=3, input_shape=(1, 6, 7), prior="paper").to(dtype)


def images(n: int = 30):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 1, 6, 7, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (n,), generator=generator)


def assert_same_run(found: bmp.Trainer, expected: bmp.Trainer, *, ended_at: int = 0) -> None:
    """Everything but the clock agrees bit for bit. Where training has an objective, the epoch that ends a run has the
    score of what is predicted then; `ended_at` names one at which only one of the two runs has ended.
    """
    for a, b in zip(snapshot(found.network), snapshot(expected.network), strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)
    for (name, a), (other, b) in zip(found.state().items(), expected.state().items(), strict=True):
        assert name == other and a.dtype == b.dtype and torch.equal(a, b), name
    assert found.schedule.counters() == expected.schedule.counters()
    untimed = {"seconds": 0, "refresh_seconds": 0}
    rows, others = ([{**row, **untimed} for row in run.history.to_json()] for run in (found, expected))
    if ended_at > 0 and rows[ended_at - 1]["objective"] is not None:
        del rows[ended_at - 1]["loo"]["nll"], others[ended_at - 1]["loo"]["nll"]
    assert rows == others
    assert found.network.regime == expected.network.regime


# --- networks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loaded_network_is_the_one_that_was_saved(tmp_path, dtype):
    network, (x, y) = image_network(dtype), images()
    bmp.fit(network, x, y, epochs=2, batch_size=10)
    network.save(tmp_path / "model.safetensors")
    loaded = bmp.load(tmp_path / "model.safetensors")
    for found, expected in zip(snapshot(loaded), snapshot(network), strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    assert loaded.dtype == dtype
    assert repr(loaded) == repr(network) and loaded.seed == 3 and loaded.prior_rule == "paper"
    assert loaded.regime == network.regime and loaded.belief.description() == network.belief.description()
    for joint in (True, False):
        assert torch.equal(loaded.predict(x, joint=joint).probs, network.predict(x, joint=joint).probs)


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_a_part_is_rebuilt_from_its_config(part):
    builtin = {**LAYER_TYPES, **HEADS}
    described = json.loads(json.dumps(persistence.describe(part, builtin)))
    again = persistence.rebuild(persistence.Described(**described), builtin, [])
    assert type(again) is type(part) and again.config() == part.config()
    assert set(part.config()) == set(inspect.signature(type(part)).parameters) - APART


def test_every_public_part_can_be_saved():
    public = {cls for cls in vars(bmp).values() if isinstance(cls, type)}
    parts = {cls for cls in public if issubclass(cls, (bmp.layers.Layer, bmp.heads.Head))}
    assert parts == {*LAYER_TYPES.values(), *HEADS.values()} == {type(part) for part in PARTS}


def test_a_given_prior_survives_saving_and_a_change_of_dtype(tmp_path):
    """A change of dtype once drew the prior anew from the layers, which would have lost a prior that came from a
    file."""
    network = image_network()
    exact = image_network(torch.float64).prior
    network.save(tmp_path / "model.safetensors")
    loaded = bmp.load(tmp_path / "model.safetensors").to(torch.float64)
    assert torch.equal(loaded.prior.tau, exact.tau) and torch.equal(loaded.prior.rho, exact.rho)
    assert torch.equal(loaded.marginal.tau, exact.tau)
    mean, var = loaded.layers[-1].weight_prior
    torch.testing.assert_close(mean, torch.eye(3)[:, :2].double() / 3, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(var, torch.full((3, 2), 0.7, dtype=torch.float64))
    assert loaded.layers[0].weight_prior is None


def test_an_assigned_prior_is_saved_and_kept_on_moving(tmp_path):
    network = mlp([2, 3, 1], Regression(0.1))
    given = Gaussian(torch.full_like(network.prior.tau, 0.1), torch.full_like(network.prior.rho, 3.0))
    network.prior = given
    network.to(torch.float64).to(torch.float32)
    assert torch.equal(network.prior.tau, given.tau) and torch.equal(network.prior.rho, given.rho)
    network.save(tmp_path / "model.safetensors")
    assert torch.equal(bmp.load(tmp_path / "model.safetensors").prior.tau, given.tau)


def test_where_training_starts_and_shares_of_sums_are_saved(tmp_path):
    """Of a wide network, whose prior means are not the starting ones; and of one whose start was assigned."""
    network, (x, y) = mlp([40, 20, 1], Regression(0.09)), linear_data(60, n_in=40)
    bmp.fit(network, x, y, epochs=30, batch_size=20, joint=True)
    assert (network.sum_share < 0.9).any() and not torch.equal(network.start, network.prior.mean.double())
    network.save(tmp_path / "model.safetensors")
    loaded = bmp.load(tmp_path / "model.safetensors")
    assert torch.equal(loaded.start, network.start) and torch.equal(loaded.sum_share, network.sum_share)
    for joint in (True, False):
        found, expected = (each.predict(x, joint=joint).epistemic_var for each in (loaded, network))
        assert torch.equal(found, expected)
    network.start = torch.linspace(-1.0, 1.0, network.n_weights, dtype=torch.float64)
    network.save(tmp_path / "model.safetensors")
    assert torch.equal(bmp.load(tmp_path / "model.safetensors").start, network.start)


def test_a_learned_constant_is_saved(tmp_path):
    network, (x, y) = mlp([3, 8, 1], Regression("learn")), linear_data()
    bmp.fit(network, x, y, epochs=5, batch_size=20)
    network.save(tmp_path / "model.safetensors")
    assert torch.equal(bmp.load(tmp_path / "model.safetensors").predict(x).noise_var, network.predict(x).noise_var)


def test_matrices_that_are_diagonal_take_no_room(tmp_path):
    """With equal noise, two of the three large ones in an exact belief: with 5,931 weights and 600 rows, 5.7 of 11.6 MB
    were zeros. What is loaded is the same to the last bit."""
    network, (x, y) = mlp([3, 40, 1], Regression(0.1)), linear_data(50)
    bmp.fit(network, x, y, epochs=3)
    path, belief = tmp_path / "model.safetensors", network.belief
    network.save(path)
    tensors = safetensors.torch.load_file(path)
    assert belief.half.shape == (belief.rank, belief.rank) and tensors["belief.half"].shape == (belief.rank,)
    loaded = bmp.load(path)
    assert torch.equal(loaded.belief.half, belief.half) and torch.equal(loaded.belief.reduction, belief.reduction)
    for a, b in zip(loaded.sample_functions(x, 3), network.sample_functions(x, 3), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(loaded.predict(x).var, network.predict(x).var)


# --- runs ------------------------------------------------------------------------------------------------------------

STORES = [{}, {"site_store": "host"}, {"site_store": "disk"}, {"site_store": "disk", "site_dtype": "bfloat16"}]


@pytest.mark.parametrize("options", STORES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, schedule, dtype, options):
    (x, y), path = linear_data(18), tmp_path / "run.safetensors"
    options = {"batch_size": 8, "schedule": schedule, "seed": 5, **options}
    whole = bmp.Trainer(mlp([3, 6, 1], Regression("learn"), dtype=dtype), x, y, **options)
    whole.run(6)
    first = bmp.Trainer(mlp([3, 6, 1], Regression("learn"), dtype=dtype), x, y, **options)
    first.run(3)
    first.save(path)
    second = bmp.Trainer.load(path, x, y)
    assert_same_run(second, first)
    assert second.config == first.config
    second.run(3)
    assert_same_run(second, whole, ended_at=3)


@pytest.mark.parametrize("sizes, n", [([3, 8, 6, 2], 26), ([3, 6, 1], 60), ([300, 4, 1], 20)], ids=str)
def test_a_resumed_descent_is_the_uninterrupted_one(tmp_path, sizes, n):
    """More data than weights, fewer, and a layer with so many inputs that the belief about its sums is renewed every
    eighth step only. What an epoch tells of the means was once measured by a marginal that only the end of a run
    renewed, so that a resumed run told it differently."""
    (x, y), path = linear_data(n, n_in=sizes[0], n_out=sizes[-1]), tmp_path / "run.safetensors"
    whole, run = (bmp.Trainer(mlp(sizes, Regression("learn")), x, y, batch_size=8) for _ in range(2))
    whole.run(12)
    run.run(5)
    run.save(path)
    run = bmp.Trainer.load(path, x, y)
    run.run(7)
    assert_same_run(run, whole, ended_at=5)
    assert all(record.loo["moved"] > 0.0 for record in run.history if "moved" in record.loo)


def test_a_file_of_a_run_without_an_objective_has_no_nan(tmp_path):
    """JSON has none: what a run had written was no longer equal to what was read."""
    (x, y), path = linear_data(18), tmp_path / "run.safetensors"
    run = bmp.Trainer(mlp([3, 6, 1], Regression(0.1)), x, y, schedule="sequential")
    run.run(1)
    assert run.history[0].objective is None
    run.save(path)
    assert bmp.Trainer.load(path, x, y).history == run.history


@pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # on so few rows it does
@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_a_resumed_run_on_images_is_the_uninterrupted_one(tmp_path, schedule):
    """Convolutions, pools, a given prior and labels; saved twice, and once before the first epoch."""
    (x, y), path = images(12), tmp_path / "run.safetensors"
    whole = bmp.Trainer(image_network(), x, y, batch_size=5, schedule=schedule)
    whole.run(4)
    run = bmp.Trainer(image_network(), x, y, batch_size=5, schedule=schedule)
    for epochs in (1, 2, 1):
        run.save(path)
        run = bmp.Trainer.load(path, x, y)
        run.run(epochs)
    assert_same_run(run, whole)


@pytest.mark.filterwarnings("ignore:training ended worse than a constant")  # on so few rows it does
@pytest.mark.parametrize("head", [Regression("learn"), Softmax()], ids=["noise", "labels"])
@pytest.mark.parametrize("sizes", [[40, 6, 3], [3, 36, 36, 3], [40, 36, 3]], ids=str)
def test_a_resumed_run_with_wide_layers_is_the_uninterrupted_one(tmp_path, sizes, head):
    """Far enough that shares of sums have moved; own pulls and shares are part of the run."""
    (x, y), path = linear_data(26, n_in=sizes[0], n_out=3), tmp_path / "run.safetensors"
    y = y if head.has_noise else y.argmax(1)
    whole, run = (bmp.Trainer(mlp(sizes, head), x, y, batch_size=8, joint=True) for _ in range(2))
    whole.run(16)
    run.run(8)
    assert (run.network.sum_share < 1.0).any() and (run.schedule.seen_shares < 1.0).any()
    assert len(run.schedule.own_pulls) == len(sizes) - 1
    run.save(path)
    run = bmp.Trainer.load(path, x, y)
    run.run(8)
    assert_same_run(run, whole)


def test_a_run_without_shares_of_sums_goes_on_without(tmp_path):
    (x, y), path = linear_data(26), tmp_path / "run.safetensors"
    run = bmp.Trainer(mlp([3, 6, 1], Regression(0.09)), x, y, batch_size=8, joint=False)
    run.run(1)
    run.save(path)
    run = bmp.Trainer.load(path, x, y)
    run.run(20)
    assert run.config.joint is False and (run.network.sum_share == 1.0).all()


def test_saving_changes_nothing(tmp_path):
    x, y = blobs()
    run, other = (bmp.Trainer(mlp([2, 5, 3], Softmax()), x, y, batch_size=30) for _ in range(2))
    run.run(2)
    run.save(tmp_path / "run.safetensors")
    run.run(2)
    other.run(4)
    assert_same_run(run, other)


def test_the_network_of_a_run_can_be_loaded_alone(tmp_path):
    x, y = blobs()
    run = bmp.Trainer(mlp([2, 5, 3], Softmax()), x, y, batch_size=30)
    run.run(2)
    run.save(tmp_path / "run.safetensors")
    assert torch.equal(bmp.load(tmp_path / "run.safetensors").predict(x).probs, run.network.predict(x).probs)


def test_data_may_come_in_another_precision_that_rounds_to_the_same(tmp_path):
    x, y = linear_data(20)
    bmp.Trainer(mlp([3, 1], Regression(0.1)), x, y, batch_size=8).save(tmp_path / "run.safetensors")
    bmp.Trainer.load(tmp_path / "run.safetensors", x.float().numpy(), y.float().numpy())


def test_other_data_are_refused(tmp_path):
    (x, y), path = linear_data(20), tmp_path / "run.safetensors"
    bmp.Trainer(mlp([3, 1], Regression(0.1)), x, y, batch_size=8).save(path)
    with pytest.raises(ValueError, match=r"x does not belong.*expected shape \(20, 3\), got \(19, 3\).*same order"):
        bmp.Trainer.load(path, x[:19], y[:19])
    with pytest.raises(ValueError, match=r"x does not belong.*values differ.*new Trainer"):
        bmp.Trainer.load(path, x.flip(0), y.flip(0))
    with pytest.raises(ValueError, match=r"y does not belong.*values differ"):
        bmp.Trainer.load(path, x, y + 1)


def test_a_run_from_a_missing_device_needs_another(tmp_path, monkeypatch):
    (x, y), path = linear_data(20), tmp_path / "run.safetensors"
    run = bmp.Trainer(mlp([3, 1], Regression(0.1)), x, y, batch_size=8)
    write = persistence.write

    def on_cuda(path, *, header, **rest):
        header["run"]["device"] = "cuda"
        write(path, header=header, **rest)

    monkeypatch.setattr(persistence, "write", on_cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run.save(path)
    with pytest.raises(ValueError, match=r"pass device='cpu'"):
        bmp.Trainer.load(path, x, y)
    bmp.Trainer.load(path, x, y, device="cpu")


# --- parts of the user's own -----------------------------------------------------------------------------------------


class Nameless(bmp.LeakyReLU):
    """Says nothing about its constructor, which differs from its parent's."""

    def __init__(self, *, steepness: float) -> None:
        super().__init__(1.0 / steepness)


class Steep(Nameless):
    def config(self):
        return {"steepness": 1.0 / self.leak}


class Silent(bmp.Flatten):
    config = bmp.layers.Layer.config


def test_a_layer_of_the_users_own(tmp_path):
    path = tmp_path / "model.safetensors"
    bmp.Network([bmp.Linear(2, 3), Steep(steepness=4.0), bmp.Linear(3, 1)], Regression(0.1)).save(path)
    with pytest.raises(ValueError, match=r"Steep.*classes=\[Steep\]"):
        bmp.load(path)
    assert bmp.load(path, classes=[Steep]).layers[1].leak == 0.25


def test_a_layer_that_cannot_be_rebuilt_is_refused_when_saving(tmp_path):
    network = bmp.Network([bmp.Linear(2, 3), Nameless(steepness=4.0), bmp.Linear(3, 1)], Regression(0.1))
    with pytest.raises(TypeError, match=r"Nameless cannot be saved: its config\(\)"):
        network.save(tmp_path / "model.safetensors")
    with pytest.raises(NotImplementedError, match=r"Silent cannot be saved: give it a method config\(\)"):
        bmp.Network([Silent(), bmp.Linear(2, 1)], Regression(0.1), input_shape=(2,)).save(tmp_path / "model")
    assert os.listdir(tmp_path) == []


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    mlp([2, 3, 1], Regression(0.1)).save(path)
    return path


def test_any_reader_of_safetensors_reads_a_file(model):
    tensors = safetensors.torch.load_file(model)
    assert torch.equal(tensors["marginal.tau"], mlp([2, 3, 1], Regression(0.1)).marginal.tau)


def test_a_model_is_not_a_run(model):
    x, y = linear_data(5, 2)
    with pytest.raises(ValueError, match=r"holds a network, expected a training run; read it with bayesmp.load\("):
        bmp.Trainer.load(model, x, y)


def test_a_later_format_is_refused(model, monkeypatch):
    format_now = persistence.FORMAT
    monkeypatch.setattr(persistence, "FORMAT", 0)
    with pytest.raises(ValueError, match=rf"has format {format_now}.*reads format 0: upgrade"):
        bmp.load(model)


def test_a_file_of_an_earlier_format_is_refused(model, monkeypatch):
    """The error names the version that wrote the file, and what to do; in formats 1 and 2 the checksum was that of one
    text alone."""
    told = rf"has format 2, written by bayesmp {bmp.__version__}; this version reads format 3: train the network again"
    monkeypatch.setattr(persistence, "FORMAT", 2)
    mlp([2, 3, 1], Regression(0.1)).save(model)
    monkeypatch.undo()
    with pytest.raises(persistence.UnfitFileError, match=told):
        bmp.load(model)
    metadata = safetensors.safe_open(model, "pt").metadata()
    metadata["checksum"] = f"{zlib.crc32(metadata['bayesmp'].encode()):08x}"
    safetensors.torch.save_file(safetensors.torch.load_file(model), model, metadata)
    with pytest.raises(persistence.UnfitFileError, match=told):
        bmp.load(model)


def test_a_file_cut_short_is_refused(model):
    content = model.read_bytes()
    for length in (0, 5, 200, len(content) - 1):
        model.write_bytes(content[:length])
        with pytest.raises(ValueError, match="not a complete safetensors file"):
            bmp.load(model)


def test_no_damaged_byte_goes_unnoticed(model):
    content = model.read_bytes()
    for position in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[position] ^= 1
        model.write_bytes(damaged)
        try:
            loaded = bmp.load(model)
        except ValueError:
            continue
        whole = mlp([2, 3, 1], Regression(0.1))  # some bytes of the header do not matter, e.g. its padding
        assert all(torch.equal(a, b) for a, b in zip(snapshot(loaded), snapshot(whole), strict=True)), position


def test_a_file_of_another_program_is_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="was not saved by bayesmp"):
        bmp.load(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        bmp.load(tmp_path / "missing.safetensors")


def test_a_failed_save_leaves_the_earlier_file(model, monkeypatch):
    before = model.read_bytes()
    monkeypatch.setattr(persistence, "_written", lambda blocks, file: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        mlp([2, 4, 1], Regression(0.1)).save(model)
    assert model.read_bytes() == before and os.listdir(model.parent) == [model.name]


def test_saving_needs_a_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="create it first"):
        mlp([2, 3, 1], Regression(0.1)).save(tmp_path / "missing" / "model.safetensors")


def test_tensors_longer_than_a_block_are_written_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(persistence, "BLOCK", 5)
    network = mlp([2, 3, 1], Regression(0.1))
    network.save(tmp_path / "model.safetensors")
    loaded = bmp.load(tmp_path / "model.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(snapshot(loaded), snapshot(network), strict=True))
