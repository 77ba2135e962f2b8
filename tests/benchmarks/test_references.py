"""The reference cases: regions, data, the files that lie there, and the model of the script that made them."""

import json

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal

import bayesmp as bmp
from bayesmp.data import sine
from benchmarks import truth
from benchmarks.networks import mlp
from benchmarks.references import (
    ALL,
    CASES,
    FOLDER,
    FRIEDMAN_MEAN,
    FRIEDMAN_STD,
    NOISE_STD,
    NOISE_VAR,
    Case,
    Lattice,
    Moons,
    Uniform,
    friedman,
)
from benchmarks.references.cases import moon

TINY = Case(
    hidden=(4,),
    data=Uniform(intervals=((-1.0, -0.4), (0.4, 1.0)), n_per_interval=10),
    grid=Lattice(-4.0, 4.0, 81),
)
TINY_CLASSES = Case(hidden=(4,), data=Moons(n_per_class=10, blur=0.2), grid=Lattice(-3.0, 3.0, 5))


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


def test_regions_of_more_inputs_follow_the_input_that_is_furthest_outside():
    case = Case(
        hidden=(4,), data=Uniform(n_in=2, intervals=((-1.0, 1.0),), n_per_interval=10), grid=Lattice(-1.0, 1.0, 2)
    )
    x_train = np.array([[-1.0, 0.0], [1.0, 10.0]])  # ranges 2 and 10
    grid = np.array([[0.0, 5.0], [1.0, 10.0], [1.9, 5.0], [2.1, 5.0], [0.0, 14.0], [0.0, 16.0], [1.5, -6.0]])
    regions = case.regions(x_train, grid)
    found = {name: np.flatnonzero(rows).tolist() for name, rows in regions.items()}
    assert found == {"inside": [0, 1], "near": [2, 4], "far": [3, 5, 6]}


def test_gaps_of_more_inputs_are_refused():
    with pytest.raises(ValueError, match="one input only"):
        Uniform(n_in=2, intervals=((0.0, 1.0), (2.0, 3.0)), n_per_interval=5)


@pytest.mark.parametrize("name", ALL)
def test_grid_has_points_in_every_region(name):
    case = ALL[name]
    x, y = case.training_data()
    grid = case.grid_points()
    assert x.shape == (len(y), case.widths[0]) and grid.shape[1] == case.widths[0]
    assert all(rows.any() for rows in case.regions(x, grid).values())


def test_lattice_holds_all_combinations():
    found = Lattice(0.0, 2.0, 3).points(np.zeros((1, 2)))
    np.testing.assert_array_equal(found, [[a, b] for a in range(3) for b in range(3)])


def test_shells_lie_where_they_say():
    case = ALL["table"]
    x, grid = case.training_data()[0], case.grid_points()
    regions = case.regions(x, grid)
    expected = np.repeat(["inside", "near", "far"], 100)
    assert [next(name for name, rows in regions.items() if rows[k]) for k in range(300)] == expected.tolist()
    outside = (grid < x.min(0)) | (grid > x.max(0))
    assert (outside[:100].sum(1) == 0).all() and (outside[100:].sum(1) == 1).all()  # one input is shifted
    assert (outside[100:].sum(0) == 40).all() and (grid > x.max(0)).sum() == 100  # each as often, up as often as down
    assert np.maximum(x.min(0) - grid, grid - x.max(0)).max() <= np.ptp(x, axis=0).max()


def test_friedmans_function_is_that_of_scikit_learn_standardised():
    make_friedman1 = pytest.importorskip("sklearn.datasets").make_friedman1
    u, y = make_friedman1(20_000, n_features=5, noise=0.0, random_state=0)
    found = friedman(np.sqrt(12) * (u - 0.5))
    np.testing.assert_allclose(found * FRIEDMAN_STD + FRIEDMAN_MEAN, y, rtol=1e-9)
    assert abs(found.mean()) < 0.03 and abs(found.std() - 1) < 0.02


def test_true_logit_of_the_moons_is_that_of_a_histogram():
    """Draws of both moons near a point: the log of how many more are of class 1."""
    data, rng = ALL["classes"].data, np.random.default_rng(0)
    for point in ([0.0, 0.0], [0.15, -0.1], [-0.15, 0.1]):
        counts = []
        for label in (0, 1):
            drawn = moon(label, rng.uniform(0.0, np.pi, 400_000))
            drawn = drawn + data.blur * rng.standard_normal(drawn.shape)
            counts.append((np.hypot(*(drawn - point).T) < 0.1).sum())
        assert min(counts) > 100
        assert data.truth(np.array([point]))[0] == pytest.approx(np.log(counts[1] / counts[0]), abs=0.15)


def test_without_a_gap_there_is_no_such_region():
    case = CASES["sine"]
    regions = case.regions(case.training_data()[0], case.grid_points())
    assert list(regions) == ["inside", "near", "far"]
    assert not (regions["inside"] & regions["near"]).any()


def test_data_of_one_interval_are_those_of_the_demo():
    x, y = CASES["sine"].training_data()
    expected = sine(200, noise_std=NOISE_STD)
    np.testing.assert_array_equal(x, expected[0])
    np.testing.assert_array_equal(y, expected[1])


@pytest.mark.parametrize("name", ALL)
def test_stored_reference_is_small_and_whole(name):
    path, case = FOLDER / f"{name}.npz", ALL[name]
    assert path.stat().st_size < 60_000
    reference = truth.Reference.load(path, case)
    x, y = case.training_data()
    np.testing.assert_allclose(reference.x_train, x)
    np.testing.assert_allclose(reference.y_train, y)
    np.testing.assert_allclose(reference.grid, case.grid_points())
    np.testing.assert_allclose(reference.truth, case.data.truth(reference.grid))
    inside = reference.regions["inside"]
    assert np.all(reference.f_std > 0) and np.median(reference.rhat[inside]) < 1.05
    assert all(np.median(reference.rhat[rows]) < 1.2 for rows in reference.regions.values())
    f_mean, f_true = reference.f_mean[inside], reference.truth[inside]
    if reference.p_mean is not None:
        assert case.is_classes and np.mean((reference.p_mean[inside] > 0.5) == (f_true > 0)) > 0.9
    else:
        assert not case.is_classes and np.sqrt(np.mean((f_mean - f_true) ** 2)) < 0.25 * f_true.std()
    with np.load(path) as stored:
        settings = json.loads(str(stored["settings"]))
    assert settings["widths"] == list(case.widths) and settings["chains"] == len(reference.chain_stds)


@pytest.mark.parametrize("name", ALL)
def test_networks_are_trained_with_the_prior_that_nuts_had(name, monkeypatch):
    """Seed 0 has its means, too; every seed starts training where it does by default."""
    reference, trained = truth.Reference.load(FOLDER / f"{name}.npz", ALL[name]), []

    def remember(network, *args, **options):
        trained.append(network)
        raise InterruptedError

    monkeypatch.setattr(bmp, "fit", remember)
    with pytest.raises(InterruptedError):
        truth.train_case(reference, epochs=1, seed=0, device=torch.device("cpu"))
    parts = [
        [part[key].flatten() for part in trained[0].unpack(flat) for key in ("weight", "bias") if key in part]
        for flat in (trained[0].prior.mean, trained[0].prior.var.sqrt())
    ]
    with np.load(FOLDER / f"{name}.npz") as stored:
        np.testing.assert_allclose(stored["prior_mean"], torch.cat(parts[0]), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(stored["prior_std"], torch.cat(parts[1]), rtol=1e-5)
    default = bmp.Network(mlp(*ALL[name].widths), ALL[name].data.head, seed=0)
    torch.testing.assert_close(trained[0].start, default.start)


def test_another_seed_can_have_the_prior_means_of_nuts(monkeypatch):
    """It still starts where it does by default."""
    reference, trained = truth.Reference.load(FOLDER / "few.npz", ALL["few"]), []

    def remember(network, *args, **options):
        trained.append(network)
        raise InterruptedError

    monkeypatch.setattr(bmp, "fit", remember)
    for own_means in (True, False):
        with pytest.raises(InterruptedError):
            truth.train_case(reference, epochs=1, seed=3, device=torch.device("cpu"), own_means=own_means)
    default, of_nuts = ALL["few"].network(3), ALL["few"].network(0).prior.mean
    torch.testing.assert_close(trained[0].prior.mean, default.prior.mean)
    torch.testing.assert_close(trained[1].prior.mean, of_nuts)
    assert (of_nuts - default.prior.mean).abs().max() > 0.1
    torch.testing.assert_close(trained[1].start, default.start)


@pytest.fixture
def make():
    """The script that makes references, with JAX in float64 as it has it."""
    numpyro = pytest.importorskip("numpyro")
    from benchmarks.references import make

    numpyro.enable_x64()
    yield make
    numpyro.enable_x64(False)


@pytest.mark.parametrize("data", [TINY.data, ALL["plane"].data, TINY_CLASSES.data], ids=["line", "plane", "classes"])
def test_log_density_is_that_of_torch_distributions(make, data):
    """Differences of log-densities, as constants are left out: prior of the network's weights plus likelihood."""
    case = Case(hidden=(5, 4), data=data, grid=TINY.grid)
    x, y = case.training_data()
    model, network = make.Model(case, x, y), case.network(0)
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
        targets = torch.as_tensor(y)
        if case.is_classes:
            f, likelihood = 6.0 * (h[:, 1] - h[:, 0]), Categorical(logits=6.0 * h).log_prob(targets.long())
        else:
            f, likelihood = h[:, 0], Normal(h[:, 0], data.noise_std).log_prob(targets)
        expected.append(float(log_prob + likelihood.sum()))
        np.testing.assert_allclose(model.output(z.numpy(), model.x), f, rtol=1e-6, atol=1e-6)
    found = np.array([model.log_density(z) for z in zs])
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-6)


@pytest.mark.parametrize("case", [TINY, TINY_CLASSES], ids=["line", "classes"])
def test_curvature_is_that_of_the_likelihood(make, case):
    model = make.Model(case, *case.training_data())
    f = make.jnp.linspace(-3.0, 3.0, len(model.y))
    second = make.jax.hessian(lambda f: -model.log_likelihood(f).sum())(f)
    np.testing.assert_allclose(np.diag(model.curvature(f)), second, rtol=1e-6, atol=1e-9)


def test_whitening_goes_there_and_back_and_flattens_the_curvature(make, monkeypatch):
    monkeypatch.setattr(make, "MIN_STIFFNESS", 1e-6)
    model = make.Model(TINY, *TINY.training_data())
    z = np.random.default_rng(0).standard_normal(len(model.prior_mean))
    whitening = make.Whitening(model, z[None])
    np.testing.assert_allclose(whitening.to_z(whitening.to_u(z)), z, rtol=1e-9, atol=1e-9)
    slopes = np.asarray(make.jax.jacrev(lambda u: model.output(whitening.to_z(u), model.x))(whitening.to_u(z)))
    shares = np.linalg.eigvalsh(slopes.T @ slopes / NOISE_VAR)  # G - I, whitened: v / (1 + v)
    assert shares.max() < 1.0 and shares.max() > 0.99


def test_probability_is_averaged_over_the_draws_of_its_logit(make):
    logits = np.random.default_rng(0).normal(1.0, 3.0, size=(2, 50, 4))
    found = make.summary(logits, is_logit=True)
    np.testing.assert_allclose(found["p_mean"], (1 / (1 + np.exp(-logits))).reshape(100, 4).mean(0), rtol=1e-5)
    np.testing.assert_allclose(found["f_std"], logits.reshape(100, 4).std(0), rtol=1e-5)
    assert "p_mean" not in make.summary(logits, is_logit=False)


@pytest.mark.slow
def test_made_reference_can_be_read(make, tmp_path, monkeypatch):
    monkeypatch.setattr(make, "PILOT_WARMUP", 50)
    monkeypatch.setattr(make, "PILOT_SAMPLES", 5)
    monkeypatch.setattr(make, "MAX_TREE_DEPTH", 6)
    make.make_reference(TINY, chains=2, warmup=50, samples=20, seed=0, path=tmp_path / "tiny.npz")
    reference = truth.Reference.load(tmp_path / "tiny.npz", TINY)
    assert reference.chain_stds.shape == (2, 81) and np.all(reference.f_std > 0)
