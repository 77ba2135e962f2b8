"""Settings of a run are put back when it ends."""

from __future__ import annotations

import math

import pytest
import torch

import bayesmp as bmp
from bayesmp.basics import arithmetic
from bayesmp.basics.arithmetic import SMALL_WORK, few_threads
from bayesmp.evidence.refresh import refresh
from tests.helpers import linear_data, mlp


@pytest.mark.parametrize("n_products, is_small", [(SMALL_WORK - 1, True), (SMALL_WORK, False)])
def test_small_networks_use_one_thread_and_give_the_others_back(n_products, is_small):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with few_threads(torch.device("cpu"), n_products=n_products):
            assert torch.get_num_threads() == (1 if is_small else 2)
        assert torch.get_num_threads() == 2
        with pytest.raises(KeyError):
            run_that_fails(n_products)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def run_that_fails(n_products: int) -> None:
    with few_threads(torch.device("cpu"), n_products=n_products):
        raise KeyError("in the middle of a run")


@pytest.mark.skipif(arithmetic._glibc() is None, reason="needs glibc")
def test_memory_that_is_freed_is_kept_for_the_next_visit():
    """Page faults of a hundred megabytes that are allocated and freed again: with glibc's own choice, some 25,000."""
    resource = pytest.importorskip("resource")

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        parts = [torch.ones(1_000_000) for _ in range(25)]
        assert len(parts) == 25
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with arithmetic.kept_memory():
        faults()
        assert min(faults() for _ in range(3)) < 2_000


def test_without_glibc_memory_is_left_alone(monkeypatch):
    monkeypatch.setattr(arithmetic, "_glibc", lambda: None)
    with arithmetic.kept_memory():
        torch.ones(10)


def test_a_small_refresh_is_done_by_one_thread(monkeypatch):
    """Where a part of it was not, 200 rows, 2-50-1, 40 epochs on two busy cores took 60 s instead of one."""
    x, y = linear_data(30)
    trainer = bmp.Trainer(mlp([3, 4, 1], bmp.Regression("learn")), x, y, joint=True)
    seen = []

    def watched(*args, **options):
        seen.append(torch.get_num_threads())
        return refresh(*args, **options)

    monkeypatch.setattr("bayesmp.training.belief_maker.refresh", watched)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        trainer.run(2, progress=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(n_threads)
    assert seen == [1, 1, 1], "after both epochs, and at the end"


def test_eigenvectors_are_found_in_float64_where_float32_does_not_converge(monkeypatch):
    plain, asked = torch.linalg.eigh, []

    def eigh(matrix):
        asked.append(matrix.dtype)
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("linalg.eigh: the algorithm failed to converge")
        return plain(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", eigh)
    root = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    matrix = root @ root.transpose(1, 2)
    values, vectors = arithmetic.eigh(matrix)
    assert asked == [torch.float32, torch.float64] and values.dtype == vectors.dtype == torch.float32
    torch.testing.assert_close((vectors * values[:, None, :]) @ vectors.transpose(1, 2), matrix, rtol=1e-4, atol=1e-5)
    for hopeless in (matrix.double().fill_(math.nan), matrix.fill_(math.nan)):
        monkeypatch.setattr(torch.linalg, "eigh", lambda _: (_ for _ in ()).throw(torch.linalg.LinAlgError("no")))
        with pytest.raises(torch.linalg.LinAlgError):
            arithmetic.eigh(hopeless)
