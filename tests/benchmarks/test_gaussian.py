"""The benchmark of small regressions, on a table so small that it takes seconds."""

import pytest
import torch

from benchmarks import gaussian
from benchmarks.honesty import friedman1


def test_a_row_tells_how_far_leave_one_out_is_off():
    row = gaussian.score(friedman1(0, n_train=40, n_held_out=200), 0, torch.device("cpu"))
    assert row["gap"] == pytest.approx(row["leave-one-out NLL"] - row["NLL"])
    assert 0.0 < row["coverage of 90 %"] <= 1.0
    assert row["noise std / true"] > 0.0
