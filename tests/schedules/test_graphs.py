"""Recorded visits against plain ones; needs a GPU, because CUDA graphs exist nowhere else."""

from __future__ import annotations

import pytest
import torch

import bayesmp as bmp

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")


def fitted(*, records: bool, moves: bool = False) -> bmp.Network:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 8, generator=generator), torch.randint(0, 3, (100,), generator=generator)
    network = bmp.Network([bmp.Linear(8, 32), bmp.LeakyReLU(), bmp.Linear(32, 3)], bmp.Argmax(), seed=1).to("cuda")
    trainer = bmp.Trainer(network, x, y, batch_size=16)  # the last batch is smaller
    trainer.schedule.records = records
    trainer.run(6)
    if moves:
        network.to("cuda")  # replaces the tensors that graphs were recorded with
    trainer.run(6)
    return network


@pytest.mark.parametrize("moves", [False, True])
def test_recorded_visits_do_what_plain_ones_do(moves):
    plain, recorded = fitted(records=False), fitted(records=True, moves=moves)
    torch.testing.assert_close(recorded.marginal.rho, plain.marginal.rho, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(recorded.marginal.mean, plain.marginal.mean, rtol=1e-2, atol=1e-2)
