"""All heads pass the contract, with every option."""

import pytest
import torch

from bayesmp.heads import Argmax, Regression, Softmax
from tests.heads.contract import check_head

REAL = torch.tensor([[0.3], [-2.0], [5.0], [0.0]])
LABELS = torch.tensor([0, 2, 1, 2])
HEADS = [
    (Regression(0.05), 1, REAL),
    (Regression(2.0), 3, REAL * torch.tensor([1.0, -1.0, 10.0])),
    (Regression("learn"), 1, REAL[:, 0]),
    (Regression("learn"), 2, REAL.expand(4, 2)),
    (Softmax(), 3, LABELS),
    (Softmax(scale=None), 3, LABELS),
    (Softmax(scale=2.5), 4, LABELS),
    (Softmax(gain=0.7), 3, LABELS),
    (Argmax(), 3, LABELS),
    (Argmax(scale=None), 3, LABELS),
    (Argmax(scale=4.0, noise=0.1, target=2.0, target_var=0.5), 5, LABELS),
    (Argmax(), 2, LABELS.clamp_max(1)),
]


@pytest.mark.parametrize("head, n_outputs, targets", HEADS, ids=[f"{head!r}-{n}" for head, n, _ in HEADS])
def test_head_keeps_the_contract(head, n_outputs, targets):
    check_head(head, n_outputs, targets)
