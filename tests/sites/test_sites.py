"""The store of sites: what it gives back, what it sums to, where it lives, and what it costs."""

import errno
import gc
import math
import os

import pytest
import torch

import bayesmp as bmp
from bayesmp.messages.gaussian import Gaussian
from bayesmp.sites import sites as module
from bayesmp.sites.sites import Sites, format_bytes, plan_storage
from tests.helpers import blobs, linear_data, mlp

CPU = torch.device("cpu")


def store(n=3, w=4, *, place="device", dtype=torch.float64, site_dtype=None) -> Sites:
    plan = plan_storage(n, w, dtype=dtype, device=CPU, place=place, site_dtype=site_dtype)
    return Sites(n, w, 2, plan=plan, dtype=dtype, device=CPU)


def random_rows(n=3, w=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, w, generator=generator, dtype=torch.float64), torch.rand(
        n, w, generator=generator, dtype=torch.float64
    )


@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_a_replaced_site_is_given_back_and_the_others_stay(place):
    sites, (slope, rho) = store(place=place), random_rows()
    for row in range(3):
        sites.replace(sites.index(row), slope[row], rho[row])
    sites.replace(sites.index(1), 2 * slope[1], 3 * rho[1])
    for row, (a, b) in enumerate([(1, 1), (2, 3), (1, 1)]):
        found = sites.get(sites.index(row))
        assert torch.equal(found[0], a * slope[row]) and torch.equal(found[1], b * rho[row])


@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_the_posterior_is_prior_times_all_sites_at_any_origin_shift_and_offset(place):
    sites, (slope, rho) = store(place=place), random_rows()
    for row in range(3):
        sites.replace(sites.index(row), slope[row], rho[row])
    sites.origin.copy_(torch.tensor([1.0, -2.0, 0.5, 3.0]))
    sites.shift.copy_(torch.tensor([0.1, 0.2, -0.3, 0.0]))
    sites.offset.copy_(torch.tensor([0.5, 0.0, -0.7, 4.0]))
    prior = Gaussian(torch.ones(4, dtype=torch.float64), torch.full((4,), 2.0, dtype=torch.float64))
    by_hand = prior
    for row in range(3):
        by_hand = by_hand * Gaussian(slope[row] + sites.shift + rho[row] * (sites.origin + sites.offset), rho[row])
    product = prior
    for row in range(3):
        product = product * sites.site(row)
    for found in (sites.posterior(prior), product):
        torch.testing.assert_close(found.tau, by_hand.tau)
        torch.testing.assert_close(found.rho, by_hand.rho)


def test_a_change_of_all_slopes_is_shared_out_as_precisions_are():
    """The sum changes by what was asked for. A batch that says nothing takes its part of the prior's precision only."""
    sites, (slope, rho) = store(), random_rows()
    rho[1] = 0.0
    for row in range(3):
        sites.replace(sites.index(row), slope[row], rho[row])
    before = [sites.site(row).tau for row in range(3)]
    own, change = torch.full((4,), 2.0, dtype=torch.float64), torch.tensor([1.0, -2.0, 0.0, 3.0]).double()
    sites.share_out(change, own + rho.sum(0), own)
    changes = [sites.site(row).tau - tau for row, tau in enumerate(before)]
    torch.testing.assert_close(sum(changes), change)
    for row in range(3):
        torch.testing.assert_close(changes[row], change * (rho[row] + own / 3) / (own + rho.sum(0)))


def test_fill_gives_every_batch_the_same_site():
    sites = store()
    rho, head, origin = torch.arange(4.0).double(), torch.tensor([0.5, -0.5]).double(), torch.ones(4).double()
    sites.shift.fill_(3.0)
    sites.offset.fill_(2.0)
    sites.fill(rho, head, origin=origin)
    for row in range(3):
        site = sites.site(row)
        torch.testing.assert_close(site.tau, rho * origin)
        torch.testing.assert_close(site.rho, rho)
    torch.testing.assert_close(sites.head_posterior(torch.zeros(2)), torch.tensor([0.0, -3.0]).double())


def test_the_belief_about_the_constant_is_a_sum_with_largest_entry_0():
    sites = store()
    sites.head.copy_(torch.tensor([[1.0, 2.0], [3.0, 1.0], [0.0, 0.5]]))
    torch.testing.assert_close(sites.head_posterior(torch.tensor([0.0, 1.0])), torch.tensor([-0.5, 0.0]).double())


def test_bfloat16_rounds_and_says_so():
    """What replace returns is what the store holds, so that a running posterior stays prior x (rounded) sites."""
    sites = store(dtype=torch.float32, site_dtype="bfloat16")
    value = torch.tensor([1.001, 0.3333333, -7.77777, 1e-3])
    slope, rho = sites.replace(sites.index(0), value, value.abs())
    assert slope.dtype == torch.float32 and not torch.equal(slope, value)
    torch.testing.assert_close(slope, value, rtol=2**-8, atol=0.0)
    found = sites.get(sites.index(0))
    assert torch.equal(found[0], slope) and torch.equal(found[1], rho)


def test_a_store_on_disk_takes_its_room_at_once_and_gives_it_back():
    """A map of a file that has no room on its disk ends the process at the first write; so room is taken before."""
    sites = store(n=40, w=1000, place="disk")
    found = os.fstat(sites._holder._file.fileno())
    assert found.st_size == sites.plan.n_bytes <= 512 * found.st_blocks
    closed = sites._holder._close
    del sites
    gc.collect()
    assert not closed.alive


def test_a_disk_that_fills_up_while_room_is_taken_is_told_as_one_that_is_full(monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ValueError, match=r"96 B in float64 on disk do not fit.*set TMPDIR"):
        store(w=2, place="disk")


# --- training with each ----------------------------------------------------------------------------------------------


def posterior(schedule="parallel", *, head="regression", epochs=5, network_seed=0, **options):
    if head == "regression":
        (x, y), network = linear_data(40), mlp([3, 6, 1], bmp.Regression(0.09), seed=network_seed)
    else:
        (x, y), network = blobs(40), mlp([2, 6, 3], bmp.Argmax(), seed=network_seed)
    trainer = bmp.Trainer(network, x, y, batch_size=8, schedule=schedule, debug=True, **options)
    trainer.run(epochs if schedule == "parallel" else 2)
    return trainer, network.predict(x)


@pytest.mark.parametrize("place", ["host", "disk", "auto"])
@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_where_sites_live_does_not_change_the_posterior(schedule, place):
    expected, found = (posterior(schedule, site_store=where)[0] for where in ("device", place))
    assert torch.equal(found.network.marginal.tau, expected.network.marginal.tau)
    assert torch.equal(found.network.marginal.rho, expected.network.marginal.rho)


@pytest.mark.parametrize("head", ["regression", "argmax"])
def test_sites_in_bfloat16_give_nearly_the_same_predictions(head):
    """For independent weights. With shares of sums the sums are sharper and the first epochs branch earlier: a start
    that is nudged by as little as bfloat16 rounds, in a run of full precision, then moves argmax's variances by half.
    """
    (_, exact), (trainer, rounded) = (
        posterior(head=head, epochs=30, joint=False, site_dtype=kind) for kind in ("float32", "bfloat16")
    )
    assert trainer.check_invariant() < 1e-3
    assert trainer.sites.rho.dtype == torch.bfloat16
    std = exact.epistemic_var.sqrt()
    assert ((rounded.mean - exact.mean).abs() / std).mean() < 0.2
    assert (rounded.epistemic_var / exact.epistemic_var).log().abs().mean() < 0.1


@pytest.mark.parametrize("head", ["regression", "argmax"])
def test_sites_in_bfloat16_matter_less_than_the_order_of_batches(head):
    """With shares of sums, on average over three draws of the starting means: how far predictions move, in stds."""
    moved = {"rounding": 0.0, "order": 0.0}
    for network_seed in range(3):
        _, exact = posterior(head=head, epochs=20, network_seed=network_seed, joint=True)
        for cause, options in (("rounding", {"site_dtype": "bfloat16"}), ("order", {"seed": 1})):
            trainer, other = posterior(head=head, epochs=20, network_seed=network_seed, joint=True, **options)
            assert (trainer.network.sum_share < 0.9).any() and trainer.check_invariant() < 1e-3
            moved[cause] += ((other.mean - exact.mean).abs() / exact.epistemic_var.sqrt()).mean().item() / 3
    assert moved["rounding"] < moved["order"]


def test_sites_in_float64_for_a_float32_network():
    (_, single), (trainer, double) = (posterior(site_dtype=kind) for kind in (None, "float64"))
    assert trainer.sites.rho.dtype == torch.float64 and trainer.network.dtype == torch.float32
    torch.testing.assert_close(double.mean, single.mean, rtol=1e-2, atol=1e-3)


# --- plan ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "site_dtype, dtype, size",
    [(None, torch.float32, 4), (None, torch.float64, 8), ("bfloat16", torch.float32, 2), ("float64", torch.float32, 8)],
)
def test_a_plan_counts_its_bytes(site_dtype, dtype, size):
    plan = plan_storage(10, 1000, dtype=dtype, device=CPU, site_dtype=site_dtype)
    assert plan.n_bytes == 2 * 10 * 1000 * size and plan.dtype.itemsize == size and plan.place == "device"


def test_auto_moves_to_disk_when_the_host_is_full(monkeypatch):
    monkeypatch.setattr(module, "_free_host_memory", lambda: 1e5)
    places = [plan_storage(n, 1000, dtype=torch.float32, device=CPU).place for n in (5, 20)]
    assert places == ["device", "disk"]
    assert plan_storage(20, 1000, dtype=torch.float32, device=CPU, place="host").place == "host", "asked for by name"


@pytest.mark.parametrize(
    "device_free, host_free, place", [(1e6, 1e6, "device"), (1e5, 1e6, "host"), (1e5, 1e5, "disk"), (1e6, 10, "device")]
)
def test_auto_on_a_gpu_takes_the_first_place_with_room(monkeypatch, device_free, host_free, place):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (device_free, 10 * device_free))
    monkeypatch.setattr(module, "_free_host_memory", lambda: host_free)
    assert plan_storage(20, 1000, dtype=torch.float32, device=torch.device("cuda")).place == place  # 160 kB


def test_free_memory_is_positive_and_infinite_where_unknown(monkeypatch):
    assert module._free_host_memory() > 0

    def no_such_file(*_, **__):
        raise OSError

    monkeypatch.setattr("builtins.open", no_such_file)
    assert module._free_host_memory() == math.inf


def test_a_plan_tells_what_it_takes():
    plan = plan_storage(352, 1_000_000, dtype=torch.float32, device=CPU, place="host", site_dtype="bfloat16")
    assert str(plan) == "sites: 1.41 GB in bfloat16 on host"


@pytest.mark.parametrize(
    "n_bytes, text", [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2.8e9, "2.8 GB"), (5e12, "5 TB"), (123456, "123 kB")]
)
def test_bytes_are_shown_in_a_unit_one_can_read(n_bytes, text):
    assert format_bytes(n_bytes) == text


@pytest.mark.parametrize(
    "options, words",
    [({"place": "gpu"}, "site_store must be one of.*got 'gpu'"), ({"site_dtype": "float16"}, "site_dtype.*float16")],
)
def test_an_unknown_place_or_precision_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        plan_storage(1, 1, dtype=torch.float32, device=CPU, **options)


@pytest.mark.parametrize("place", ["host", "disk", "device"])
def test_a_prefetched_row_is_the_row_as_it_is_when_asked_for(place):
    """Two rows under way at once; one that is replaced, or refilled, after it was fetched is fetched again."""
    plan = plan_storage(3, 4, dtype=torch.float32, device=torch.device("cpu"), place=place)
    sites = Sites(3, 4, 1, plan=plan, dtype=torch.float32, device=torch.device("cpu"))
    for row in range(3):
        sites.replace(sites.index(row), torch.full((4,), float(row)), torch.full((4,), 10.0 + row))
    for row in (0, 1):
        sites.prefetch(row)
    sites.replace(sites.index(1), torch.full((4,), 7.0), torch.full((4,), 17.0))
    for row, slope in ((0, 0.0), (1, 7.0), (2, 2.0)):
        found, rho = sites.get(sites.index(row))
        assert (found == slope).all() and (rho == slope + 10.0).all()
    sites.prefetch(2)
    sites.fill(torch.ones(4), torch.zeros(1), origin=torch.zeros(4))
    assert (sites.get(sites.index(2))[1] == 1.0).all()
