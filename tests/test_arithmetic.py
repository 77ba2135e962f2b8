"""Settings of a run are put back when it ends."""

from __future__ import annotations

import pytest
import torch

from bayesmp.arithmetic import SMALL_WORK, few_threads


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
