"""Sites beside the GPU: recorded visits with rows that come and go; needs a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import bayesmp as bmp

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="only a CUDA device has memory beside the host's")


def trained(place: str, *, epochs: int = 6, schedule: str = "parallel", batch_size: int = 16) -> bmp.Trainer:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 8, generator=generator), torch.randint(0, 3, (100,), generator=generator)
    network = bmp.Network([bmp.Linear(8, 32), bmp.LeakyReLU(), bmp.Linear(32, 3)], bmp.Argmax(), seed=1).to("cuda")
    trainer = bmp.Trainer(network, x, y, batch_size=batch_size, site_store=place, schedule=schedule, debug=True)
    trainer.run(epochs, progress=False)
    return trainer


@pytest.mark.parametrize("place", ["host", "disk"])
@pytest.mark.parametrize("batch_size", [16, 50, 100])  # seven sites, two, one: rows come back before they have left
def test_where_sites_live_does_not_change_the_posterior(place, batch_size):
    expected, found = (trained(where, batch_size=batch_size) for where in ("device", place))
    assert found.check_invariant() < 1e-4
    torch.testing.assert_close(found.sites.rho.cuda(), expected.sites.rho, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.sites.slope.cuda(), expected.sites.slope, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(found.network.marginal.rho, expected.network.marginal.rho, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.network.marginal.mean, expected.network.marginal.mean, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("place", ["host", "disk"])
def test_the_running_sum_is_that_of_the_rows(place):
    trainer = trained(place)
    running = trainer.sites.posterior(trainer.network.prior)
    trainer.sites.recount()
    exact = trainer.sites.posterior(trainer.network.prior)
    torch.testing.assert_close(running.rho, exact.rho, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(running.tau, exact.tau, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", ["host", "disk"])
def test_a_saved_run_goes_on(place, tmp_path: Path):
    trainer = trained(place, epochs=3)
    trainer.save(tmp_path / "run.safetensors")
    loaded = bmp.Trainer.load(tmp_path / "run.safetensors", trainer.x, trainer.y)
    for run in (trainer, loaded):
        run.run(3, progress=False)
    assert loaded.check_invariant() < 1e-4
    torch.testing.assert_close(loaded.network.marginal.mean, trainer.network.marginal.mean, rtol=1e-2, atol=1e-2)


def test_the_sequential_schedule_takes_them_too():
    expected, found = (trained(where, epochs=2, schedule="sequential") for where in ("device", "host"))
    torch.testing.assert_close(found.network.marginal.mean, expected.network.marginal.mean, rtol=1e-2, atol=1e-2)
