"""A site replaced and the means moved: in one pass as by tensors, and whole visits on every backend."""

import pytest
import torch

import bayesmp as bmp
from bayesmp import kernels
from bayesmp.kernels import build
from bayesmp.messages.gaussian import Gaussian
from bayesmp.training.schedules.site_step import move_means, take_site

needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="needs a C++ compiler")


@pytest.fixture
def on_backend():
    yield kernels.set_backend
    kernels.set_backend("auto")


def begun(**options) -> bmp.Trainer:
    """A run after one epoch: sites, shift and origin hold ordinary numbers."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 5, generator=generator)
    network = bmp.Network([bmp.Linear(5, 20), bmp.LeakyReLU(), bmp.Linear(20, 2)], bmp.Regression(0.01))
    trainer = bmp.Trainer(network, x, torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2]], 1), batch_size=16, **options)
    trainer.run(1, progress=False)
    return trainer


def step_by_hand(trainer: bmp.Trainer) -> dict[str, torch.Tensor]:
    """Both steps on given numbers, which move some precisions by more than they may; everything they change."""
    generator = torch.Generator().manual_seed(1)
    network, sites = trainer.network, trainer.sites
    w = network.n_weights
    scale = torch.randn(3, w, generator=generator)
    fresh = Gaussian(20.0 * scale[0], (scale[1] * 2.0).exp() * network.marginal.rho / 3.0)
    with torch.inference_mode():
        innovation = take_site(sites, sites.index(1), fresh, network.marginal.rho, factor=2.0)
        change = move_means(sites, network, innovation, 0.1 * scale[2], torch.tensor(0.7))
    found = {**sites.state(), "tau": network.marginal.tau, "marginal": network.marginal.rho}
    return {**{name: part.clone() for name, part in found.items()}, "innovation": innovation, "change": change}


@needs_compiler
@pytest.mark.parametrize("options", [{}, {"site_store": "host"}, {"site_dtype": "bfloat16"}])
def test_one_pass_does_what_tensors_do(on_backend, options):
    found = {}
    trainers = [begun(**options), begun(**options)]
    for name, trainer in zip(("torch", "fused"), trainers, strict=True):
        on_backend(name)
        found[name] = step_by_hand(trainer)
    for name, plain in found["torch"].items():
        torch.testing.assert_close(found["fused"][name], plain, rtol=1e-5, atol=1e-5 * float(plain.abs().max()))
    assert trainers[1].check_invariant() < 1e-5


@needs_compiler
def test_what_is_not_finite_stays_so(on_backend):
    """A largest change that compares by `<` alone would leave a NaN out, and a run that burst would look calm."""
    on_backend("fused")
    trainer = begun()
    network, sites = trainer.network, trainer.sites
    with torch.inference_mode():
        for value, looks in ((torch.nan, torch.isnan), (torch.inf, torch.isinf)):
            direction = torch.zeros(network.n_weights)
            direction[3] = value
            assert looks(move_means(sites, network, torch.zeros_like(direction), direction, torch.tensor(1.0)))
            sites.origin.zero_()


def test_no_precision_moves_by_more_than_its_factor(on_backend):
    for name in ("torch", *(["fused"] if build.find_compiler() else [])):
        on_backend("auto")
        trainer = begun()
        on_backend(name)
        before = trainer.network.marginal.rho.clone()
        step_by_hand(trainer)
        ratio = trainer.network.marginal.rho / before
        assert ratio.min() > 0.5 - 1e-4 and ratio.max() < 2.0 + 1e-4
        assert ratio.min() < 0.51 and ratio.max() > 1.99  # some would have


@needs_compiler
@pytest.mark.parametrize("make", ["dense", "images"])
def test_a_run_is_the_same_on_every_backend(on_backend, make):
    """After three visits, before rounding is amplified: marginals, steps and counts of rejected messages."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for name in ("torch", "fused"):
        on_backend(name)
        if make == "dense":
            x = torch.randn(90, 40, generator=generator.manual_seed(0))
            layers = [bmp.Linear(40, 30), bmp.LeakyReLU(), bmp.Linear(30, 8), bmp.LeakyReLU(), bmp.Linear(8, 3)]
        else:
            x = torch.randn(90, 1, 8, 8, generator=generator.manual_seed(0))
            layers = [bmp.Conv2d(1, 4, 3), bmp.LeakyReLU(), bmp.MaxPool2d(2), bmp.Flatten(), bmp.Linear(36, 3)]
        y = x.flatten(1)[:, :3].argmax(1)
        network = bmp.Network(layers, bmp.Argmax(), input_shape=x.shape[1:])
        history = bmp.Trainer(network, x, y, batch_size=30).run(1, progress=False)
        found.append((network.marginal, history[0]))
    (one, first), (other, second) = found
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(one.rho, other.rho, rtol=1e-3, atol=1e-4)
    assert first.steps == pytest.approx(second.steps, rel=1e-4)
    assert first.max_change == pytest.approx(second.max_change, rel=1e-3)
    assert abs(first.n_rejected - second.n_rejected) <= 2
