"""Many networks along one axis against each of them alone, by the library's own visit."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import bayesmp as bmp
from bayesmp.training.schedules.sequential import SequentialVisit
from benchmarks import datasets
from experiments.stacked import StackedVisit, visit_all


def networks(n, widths=(1, 5, 4, 1)):
    layers = []
    for n_in, n_out in pairwise(widths):
        layers += [bmp.Linear(n_in, n_out), bmp.LeakyReLU(0.1)]
    return [
        bmp.Network(layers[:-1], bmp.Regression(0.01), seed=seed, prior="paper").to(torch.float64) for seed in range(n)
    ]


def test_stacked_networks_learn_what_each_learns_alone():
    """Three rounds in different orders, different data for each; the library's visit is the independent road."""
    nets = networks(3)
    draws = [datasets.sine(6, seed=seed) for seed in range(3)]
    x, y = (torch.as_tensor(np.stack(part)) for part in zip(*draws, strict=True))
    orders = [[3, 1, 5, 0, 2, 4], [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]]
    stacked = StackedVisit(nets, x, y[..., None])
    for order in orders:
        stacked.iterate(order)
    for k, network in enumerate(nets):
        alone = SequentialVisit(network, network.prior, x[k], y[k][:, None], network.head_log_weights)
        with torch.inference_mode():
            for order in orders:
                alone.iterate(order)
        moved = (alone.marginal.mean - network.prior.mean).abs().max()
        assert moved > 0.01, "the data must say something"
        torch.testing.assert_close(stacked.marginal.tau[k], alone.marginal.tau, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(stacked.marginal.rho[k], alone.marginal.rho, rtol=1e-7, atol=1e-9)


def test_a_visit_that_was_ended_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """To the same end, bit for bit, as one that was not; the process ends in the fifth of eight rounds."""
    draws = [datasets.sine(5, seed=seed) for seed in range(2)]
    x, y = (torch.as_tensor(np.stack(part)) for part in zip(*draws, strict=True))
    whole, ended, scratch = networks(2), networks(2), tmp_path / "new" / "visit.state"
    visit_all(whole, x, y, iterations=8)

    iterate, calls = StackedVisit.iterate, []

    def stop_in_the_fifth(self, order):
        calls.append(order)
        if len(calls) == 5:
            raise KeyboardInterrupt
        iterate(self, order)

    monkeypatch.setattr(StackedVisit, "iterate", stop_in_the_fifth)
    with pytest.raises(KeyboardInterrupt):
        visit_all(ended, x, y, iterations=8, scratch=scratch, save_every=0.0)
    assert scratch.exists()
    visit_all(ended, x, y, iterations=8, scratch=scratch, save_every=0.0)
    assert len(calls) == 5 + 4, "four rounds were kept"
    for one, other in zip(whole, ended, strict=True):
        assert torch.equal(one.marginal.tau, other.marginal.tau) and torch.equal(one.marginal.rho, other.marginal.rho)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_a_compiled_sweep_is_the_same_sweep(capsys):
    """Up to rounding, also at the second sweep of an example, when messages arrive from the first one."""
    draws = [datasets.sine(4, seed=seed) for seed in range(2)]
    x, y = (torch.as_tensor(np.stack(part)) for part in zip(*draws, strict=True))
    plain, compiled = (StackedVisit(networks(2, (1, 3, 1)), x, y[..., None]) for _ in range(2))
    compiled.expect(10**6)
    assert "not compiled" not in capsys.readouterr().out
    for visit in (plain, compiled):
        visit.iterate([0, 1, 2, 3])
        visit.iterate([3, 1, 0, 2])
    torch.testing.assert_close(compiled.marginal.tau, plain.marginal.tau, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(compiled.marginal.rho, plain.marginal.rho, rtol=1e-9, atol=1e-10)


def test_without_a_compiler_sweeps_go_on_uncompiled(monkeypatch, capsys):
    """And say so: the result is the same, only later."""

    def no_compiler(*_, **__):
        def fail(*_):
            raise RuntimeError("no C++ compiler")

        return fail

    monkeypatch.setattr(torch, "compile", no_compiler)
    x, y = (torch.as_tensor(part)[None] for part in datasets.sine(3, seed=0))
    visit = StackedVisit(networks(1, (1, 3, 1)), x, y[..., None])
    visit.expect(10**6)
    assert "no C++ compiler" in capsys.readouterr().out
    before = visit.marginal.rho.clone()
    visit.iterate([0, 1, 2])
    assert (visit.marginal.rho > before).any()
