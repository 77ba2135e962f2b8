"""The benchmarks import, their shared parts do what they say, and each loop runs on tiny synthetic data."""

import importlib
import json
import math

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.network.torch_bridge import as_torch
from benchmarks import baselines, datasets, mnist640, networks, ours, scaling, tables
from benchmarks.__main__ import FOR_CPU, FOR_GPU, main
from benchmarks.datasets import Dataset
from benchmarks.timing import measured, seconds_per_call

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", [*FOR_CPU, *FOR_GPU])
def test_each_benchmark_has_a_main(name):
    assert callable(importlib.import_module(f"benchmarks.{name}").main)


@pytest.mark.parametrize(
    "make, shape, n_weights",
    [
        (networks.cifar10_cnn, (3, 32, 32), 890_410),
        (networks.mnist_cnn, (1, 28, 28), 9_606),
        (networks.pooled_cnn, (1, 28, 28), 27_562),
        (networks.mnist_mlp, (784,), 79_510),
        (networks.mnist_wide, (784,), 5_592_010),
        (lambda: networks.sine_mlp(4), (1,), 593),
    ],
)
def test_torch_form_has_the_same_weights_and_shapes(make, shape, n_weights):
    network = bmp.Network(make(), bmp.Regression(1.0), input_shape=shape)
    model = as_torch(make())
    assert network.n_weights == n_weights == sum(p.numel() for p in model.parameters())
    assert model(torch.zeros(2, *shape)).shape == (2, network.n_outputs)


def test_adamw_learns(blobs):
    x, y = blobs
    config = baselines.AdamWConfig(lr=0.05)
    run = baselines.train_adamw(networks.mlp(4, 8, 3), x, y, epochs=10, batch_size=32, config=config)
    probs = run.predict(x)
    assert probs.dtype == torch.float64
    assert (probs.argmax(1) == y).double().mean() > 0.95
    assert len(run.history) == len(run.epoch_seconds) == 10
    assert run.history[-1]["nll"] < run.history[0]["nll"]


def test_gradients_of_a_model_agree_with_themselves_and_not_with_another(blobs):
    x, y = blobs
    model, other = as_torch(networks.mlp(4, 8, 3)), as_torch(networks.mlp(4, 8, 3))
    assert baselines.gradient_gap(model, model, x, y) == 0.0
    with pytest.raises(RuntimeError):  # its parameters play no part in the other's loss
        baselines.gradient_gap(model, other, x, y)
    assert baselines.gradient_gap(model, lambda rows: 2 * model(rows), x, y) > baselines.MAX_GRADIENT_GAP


@pytest.mark.skipif(not baselines.has_ivon(), reason="needs ivon-opt")
def test_ivon_predicts_at_the_mean_and_with_samples(blobs):
    x, y = blobs
    config = baselines.IVONConfig(n_samples=3)
    at_mean, sampled = baselines.train_ivon(networks.mlp(4, 8, 3), x, y, epochs=3, batch_size=32, config=config)
    assert sampled.name == "IVON, 3 samples"
    for run in (at_mean, sampled):
        torch.testing.assert_close(run.predict(x).sum(1), torch.ones(90, dtype=torch.float64))
    assert not torch.equal(at_mean.predict(x), sampled.predict(x))


def test_ours_watched_is_ours(blobs):
    """Stopping to look at the network between epochs changes nothing but the history."""
    x, y = blobs
    layers = networks.mlp(4, 8, 3)
    run, _ = ours.train_ours(layers, x, y, epochs=4, batch_size=32)
    watched, network = ours.train_ours(
        layers, x, y, epochs=4, batch_size=32, watch=lambda net: {"seen": net.n_weights}, watch_every=3
    )
    torch.testing.assert_close(run.predict(x), watched.predict(x))
    assert [row.get("seen") for row in watched.history] == [None, None, network.n_weights, network.n_weights]
    assert run.site_bytes == 2 * 3 * network.n_weights * 4
    probs = ours.without_link(network.predict(x))
    torch.testing.assert_close(probs.sum(1), torch.ones(90))


def test_cost_of_a_run_against_a_reference(blobs):
    x, y = blobs
    run = baselines.train_adamw(networks.mlp(4, 8, 3), x, y, epochs=2, batch_size=32)
    assert run.cost(run)["time ratio"] == run.cost(run)["epoch ratio"] == 1.0
    assert "time ratio" not in run.cost()


def test_table_and_report(tmp_path, capsys):
    rows = [{"method": "ours", "NLL": 0.123456, "ok": True}, {"method": "other", "NLL": math.nan, "n": 3}]
    report = tables.Report(tmp_path / "a" / "results.json", "test", CPU, {"epochs": 2})
    report.show("results", rows)
    printed = capsys.readouterr().out
    assert "| ours   | 0.1235 | yes | – |" in printed
    assert "| other  | nan    | –   | 3 |" in printed
    saved = json.loads((tmp_path / "a" / "results.json").read_text())
    assert saved["settings"] == {"epochs": 2}
    assert saved["results"][0] == rows[0]


def test_mean_row_takes_columns_of_numbers_only():
    rows = [{"method": "a", "x": 1, "y": 2.0, "z": None}, {"method": "b", "x": 3, "y": 4.0, "z": 1.0}]
    assert tables.mean_row(rows, method="mean") == {"method": "mean", "x": 2.0, "y": 3.0}


def test_images_are_scaled_by_the_training_part_and_cached(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, size=(20, 1, 4, 4), dtype=np.uint8)
    y = np.arange(20) % 10
    found = Dataset(x[:12], y[:12], x[12:], y[12:], "tiny")
    images = datasets.prepare(found, CPU, limit=8, flat=True)
    assert images.x_train.shape == (8, 16) and images.x_test.shape == (8, 16)
    assert abs(float(images.x_train.mean())) < 1e-5
    assert float(images.x_train.std(correction=0)) == pytest.approx(1.0, rel=1e-4)

    source = datasets.Source(cache=tmp_path)
    assert source._load("tiny", lambda: found) is found

    def fail():
        raise AssertionError("read the files again")

    again = source._load("tiny", fail)
    np.testing.assert_array_equal(again.x_train, found.x_train)


def test_settled_row_is_the_first_that_stays_close_to_the_last():
    rows = [{"NLL": value, "NLL, no link": 0.0, "epoch": k} for k, value in enumerate((0.9, 0.6, 0.7, 0.605, 0.6))]
    assert mnist640.settled_row(rows)["epoch"] == 3


@pytest.mark.parametrize(
    "name, kind",
    [
        ("aten::mm", "convolution, matmul"),
        ("sm90_xmma_fprop_implicit_gemm_tf32", "convolution, matmul"),
        ("aten::linalg_cholesky_ex", "factorisation"),
        ("aten::special_log_ndtr", "element-wise"),
        ("aten::copy_", "copies"),
        ("cudaLaunchKernel", "other"),
    ],
)
def test_kind_of_work(name, kind):
    assert scaling.kind_of(name) == kind


def test_measured_waits_and_counts():
    with measured(CPU) as cost:
        torch.ones(1000).sum()
    assert cost.seconds > 0.0
    assert seconds_per_call(lambda: None, CPU, repeats=2) < 1.0


def test_missing_data_are_named(tmp_path, capsys):
    assert main(["mnist640", "--data-dir", str(tmp_path), "--out", str(tmp_path / "o.json")]) == 1
    printed = capsys.readouterr().out
    assert "mnist640 did not run: MNIST was not found" in printed and "--download" in printed


def test_unknown_name_lists_the_known_ones(capsys):
    assert main(["mnist"]) == 2
    assert "low_data" in capsys.readouterr().out
