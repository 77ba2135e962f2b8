"""The benchmark of whole runs, on data so few that it takes seconds."""

import time

import pytest
import torch

from benchmarks import end_to_end


def test_a_row_tells_seconds_of_both_and_how_far_leave_one_out_is_off():
    images = end_to_end.made_up(None, torch.device("cpu"), n=150)
    row = end_to_end.compare((12, 5, 10), images, epochs=3, clock=time.process_time)
    assert row["ratio"] == pytest.approx(row["seconds"] / row["AdamW's"])
    assert 0.0 < row["in refreshes"] < 1.0 and row["refreshes"] == 3
    assert 0.0 <= row["accuracy"] <= 1.0 and row["NLL"] > 0.0 and abs(row["gap"]) < 5.0
