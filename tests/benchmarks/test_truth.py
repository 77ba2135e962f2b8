"""The comparison with NUTS: regions, files, the loop on a tiny reference, and the reference's own model."""

import json

import numpy as np
import pytest
import torch
from torch.distributions import Normal

import bayesmp as bmp
from benchmarks import truth
from benchmarks.networks import mlp
from benchmarks.references import ALL, CASES, FOLDER, NOISE_STD, PANEL, Case, Lattice, Moons, Shells, Uniform
from benchmarks.references import cases as kinds

CPU = torch.device("cpu")
NOISE_VAR = NOISE_STD**2
TINY = Case(
    hidden=(4,),
    data=Uniform(intervals=((-1.0, -0.4), (0.4, 1.0)), n_per_interval=10),
    grid=Lattice(-4.0, 4.0, 81),
)
TINY_CLASSES = Case(hidden=(4,), data=Moons(n_per_class=10, blur=0.2), grid=Lattice(-3.0, 3.0, 5))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the reference of one tiny case, made up: mean 0, and a std that differs between regions."""
    x, y = TINY.training_data()
    grid = TINY.grid_points()
    f_std = 0.1 + 0.3 * np.abs(grid[:, 0])
    fields = {"f_mean": 0 * f_std, "f_std": f_std, "chain_stds": np.stack([0.5 * f_std, 1.5 * f_std])}
    fields["chain_means"] = np.stack([0.2 * f_std, -0.2 * f_std])
    fields["prior_std"] = bmp.Network(mlp(1, 4, 1), bmp.Regression(NOISE_VAR)).prior.var.sqrt().numpy()
    path = tmp_path / "references"
    path.mkdir()
    np.savez(path / "tiny.npz", x_train=x, y_train=y, grid=grid, truth=0 * f_std, rhat=1 + 0 * f_std, **fields)
    monkeypatch.setattr(truth, "ALL", {"tiny": TINY})
    return path


def test_regions_part_the_grid():
    x_train = np.array([[-1.0], [-0.4], [0.4], [1.0]])
    grid = np.array([[-2.5], [-2.0], [-1.9], [-1.1], [-1.0], [-0.4], [-0.39], [0.0], [0.4], [1.0], [1.5], [2.1]])
    regions = TINY.regions(x_train, grid)
    found = {name: grid[rows, 0].tolist() for name, rows in regions.items()}
    assert found == {
        "inside": [-1.0, -0.4, 0.4, 1.0],
        "near": [-1.9, -1.1, 1.5],
        "far": [-2.5, 2.1],  # exactly half a range away, as -2 is, belongs to neither
        "gap": [-0.39, 0.0],
    }


def test_without_a_gap_there_is_no_such_region():
    case = CASES["sine"]
    regions = case.regions(case.training_data()[0], case.grid_points())
    assert list(regions) == ["inside", "near", "far"]
    assert not (regions["inside"] & regions["near"]).any()


def test_data_of_one_interval_are_those_of_the_demo():
    x, y = CASES["sine"].training_data()
    expected = bmp.data.sine(200, noise_std=NOISE_STD)
    np.testing.assert_array_equal(x, expected[0])
    np.testing.assert_array_equal(y, expected[1])


@pytest.mark.parametrize("name", CASES)
def test_stored_reference_is_small_and_whole(name):
    path = FOLDER / f"{name}.npz"
    assert path.stat().st_size < 60_000
    reference = truth.Reference.load(path, CASES[name])
    x, y = CASES[name].training_data()
    np.testing.assert_allclose(reference.x_train, x)
    np.testing.assert_allclose(reference.y_train, y)
    np.testing.assert_allclose(reference.truth, bmp.data.sine_function(reference.grid[:, 0]))
    inside = reference.regions["inside"]
    assert np.all(reference.f_std > 0) and np.median(reference.rhat[inside]) < 1.05
    assert np.sqrt(np.mean((reference.f_mean - reference.truth)[inside] ** 2)) < NOISE_STD
    with np.load(path) as stored:
        settings = json.loads(str(stored["settings"]))
    assert settings["widths"] == list(CASES[name].widths) and settings["chains"] == len(reference.chain_stds)


@pytest.mark.parametrize("name", CASES)
def test_networks_are_trained_with_the_prior_that_nuts_had(name, monkeypatch):
    """Seed 0 has its means, too; every seed starts training where it does by default."""
    reference, trained = truth.Reference.load(FOLDER / f"{name}.npz", CASES[name]), []
    monkeypatch.setattr(bmp, "fit", lambda network, *args, **options: trained.append(network))
    truth.train_case(reference, epochs=1, seed=0, device=torch.device("cpu"))
    parts = [
        [part[key].flatten() for part in trained[0].unpack(flat) for key in ("weight", "bias") if key in part]
        for flat in (trained[0].prior.mean, trained[0].prior.var.sqrt())
    ]
    with np.load(FOLDER / f"{name}.npz") as stored:
        np.testing.assert_allclose(stored["prior_mean"], torch.cat(parts[0]), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(stored["prior_std"], torch.cat(parts[1]), rtol=1e-5)
    default = bmp.Network(mlp(*CASES[name].widths), bmp.Regression(NOISE_VAR), seed=0)
    torch.testing.assert_close(trained[0].start, default.start)


def test_ratio_is_the_median_by_region(folder):
    reference = truth.Reference.load(folder / "tiny.npz", TINY)
    factor = np.select(list(reference.regions.values()), [1.0, 2.0, 3.0, 4.0], default=np.nan)
    ratios = reference.ratios(factor * reference.f_std)
    assert ratios == pytest.approx({"inside": 1.0, "near": 2.0, "far": 3.0, "gap": 4.0})


def test_rows_tell_whether_the_median_over_seeds_meets_the_target(folder):
    reference = truth.Reference.load(folder / "tiny.npz", TINY)
    runs = [{"inside": ratio, "near": ratio, "far": ratio, "gap": ratio} for ratio in (0.1, 0.55, 9.0)]
    rows = truth.region_rows("tiny", reference, runs)
    assert [row["met"] for row in rows] == [False, False, True, True]
    assert all(row["std / NUTS's"] == 0.55 and row["seeds"] == "0.1–9" and row["chains"] == "0.5–1.5" for row in rows)


def test_answer_is_the_networks_prediction(folder):
    reference = truth.Reference.load(folder / "tiny.npz", TINY)
    answer = truth.train_case(reference, epochs=2, seed=1, device=CPU)
    network = bmp.Network(mlp(1, 4, 1), bmp.Regression(NOISE_VAR), seed=1)
    x, y = (torch.as_tensor(part, dtype=torch.float32) for part in (reference.x_train, reference.y_train))
    bmp.fit(network, x, y, epochs=2, batch_size=50, seed=1, progress=False)
    found = network.predict(torch.as_tensor(reference.grid, dtype=torch.float32))
    np.testing.assert_allclose(answer.mean, found.mean.flatten(), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(answer.std**2, found.epistemic_var.flatten(), rtol=1e-3)


def test_whole_run_prints_saves_and_draws(folder, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "truth.json", tmp_path / "pictures" / "truth.png"
    words = ["--references", str(folder), "--out", str(out), "--picture", str(picture), "--device", "cpu"]
    truth.main(["--seeds", "2", "--epochs", "2", "--cases", "tiny", *words])
    printed = capsys.readouterr().out
    assert "0.8–1.25" in printed and "of 4 regions" in printed
    saved = json.loads(out.read_text())
    assert [run["seed"] for run in saved["runs"]] == [0, 1]
    assert [row["region"] for row in saved["regions"]] == ["inside", "near", "far", "gap"]
    assert all(np.isfinite(row["std / NUTS's"]) for row in saved["regions"])
    assert saved["fits, median over seeds"][0]["seconds"] > 0.0
    assert picture.stat().st_size > 1000


def test_missing_reference_is_named(folder, tmp_path, capsys):
    with pytest.raises(SystemExit):
        truth.main(["--references", str(tmp_path), "--cases", "tiny", "--out", str(tmp_path / "o.json")])
    assert "lacks tiny.npz" in capsys.readouterr().err


@pytest.fixture
def make():
    """The script that makes references, with JAX in float64 as it has it."""
    numpyro = pytest.importorskip("numpyro")
    from benchmarks.references import make

    numpyro.enable_x64()
    yield make
    numpyro.enable_x64(False)


def test_log_density_is_that_of_torch_distributions(make):
    """Differences of log-densities, as constants are left out: prior of the network's weights plus likelihood."""
    widths = (1, 5, 4, 1)
    x, y = TINY.training_data()
    model = make.Model(widths, x, y)
    network = bmp.Network(mlp(*widths), bmp.Regression(NOISE_VAR), seed=0)
    weights = [part for part in network.unpack(network.prior.mean.double()) if part]
    variances = [part for part in network.unpack(network.prior.var.double()) if part]
    zs = np.random.default_rng(0).standard_normal((3, network.n_weights))
    expected = []
    for z in torch.as_tensor(zs):
        h, log_prob, start = torch.as_tensor(x), torch.tensor(0.0, dtype=torch.float64), 0
        for k, (mean, var) in enumerate(zip(weights, variances, strict=True)):
            drawn = {}
            for name in ("weight", "bias"):
                prior = Normal(mean[name], var[name].sqrt())
                stop = start + mean[name].numel()
                drawn[name] = prior.mean + prior.stddev * z[start:stop].view_as(mean[name])
                log_prob = log_prob + prior.log_prob(drawn[name]).sum()
                start = stop
            h = torch.nn.functional.linear(h if k == 0 else torch.nn.functional.leaky_relu(h, 0.1), **drawn)
        expected.append(float(log_prob + Normal(h[:, 0], NOISE_STD).log_prob(torch.as_tensor(y)).sum()))
        np.testing.assert_allclose(model.output(z.numpy(), model.x), h[:, 0], rtol=1e-6, atol=1e-6)
    found = np.array([model.log_density(z) for z in zs])
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-6)


def test_whitening_goes_there_and_back_and_flattens_the_curvature(make, monkeypatch):
    monkeypatch.setattr(make, "MIN_STIFFNESS", 1e-6)
    model = make.Model((1, 5, 1), *TINY.training_data())
    z = np.random.default_rng(0).standard_normal(len(model.prior_mean))
    whitening = make.Whitening(model, z[None])
    np.testing.assert_allclose(whitening.to_z(whitening.to_u(z)), z, rtol=1e-9, atol=1e-9)
    slopes = np.asarray(make.jax.jacrev(lambda u: model.output(whitening.to_z(u), model.x))(whitening.to_u(z)))
    shares = np.linalg.eigvalsh(slopes.T @ slopes / NOISE_VAR)  # G - I, whitened: v / (1 + v)
    assert shares.max() < 1.0 and shares.max() > 0.99


@pytest.mark.slow
def test_made_reference_can_be_read(make, tmp_path, monkeypatch):
    monkeypatch.setattr(make, "PILOT_WARMUP", 50)
    monkeypatch.setattr(make, "PILOT_SAMPLES", 5)
    monkeypatch.setattr(make, "MAX_TREE_DEPTH", 6)
    make.make_reference(TINY, chains=2, warmup=50, samples=20, seed=0, path=tmp_path / "tiny.npz")
    reference = truth.Reference.load(tmp_path / "tiny.npz", TINY)
    assert reference.chain_stds.shape == (2, 81) and np.all(reference.f_std > 0)
