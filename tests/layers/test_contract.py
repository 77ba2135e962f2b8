"""All layers pass the contract, with every option."""

import pytest

from bayesmp.layers import AvgPool2d, Conv2d, Flatten, LeakyReLU, Linear, MaxPool2d, ReLU, Scale, Softplus
from tests.layers.contract import check_layer

LAYERS = [
    (Linear(1, 3), (1,)),
    (Linear(5, 4), (5,)),
    (Linear(5, 1, bias=False), (5,)),
    (Linear(20, 3), (20,)),
    (Linear(6, 3, bias=False), (6,)),
    (Linear(40, 3), (40,)),
    (Conv2d(2, 3, 3), (2, 6, 5)),
    (Conv2d(1, 2, (2, 3), stride=(2, 1), padding=(1, 0), bias=False), (1, 5, 4)),
    (Conv2d(1, 2, (3, 2), stride=2, padding=1), (1, 5, 6)),
    (LeakyReLU(), (4,)),
    (LeakyReLU(0.5), (2, 3, 3)),
    (ReLU(), (7,)),
    (Softplus(), (4,)),
    (Softplus(5.0), (2, 3, 3)),
    (Scale(4), (4,)),
    (Scale(2), (2, 3, 4)),
    (AvgPool2d(2), (2, 4, 6)),
    (AvgPool2d(2), (2, 5, 7)),
    (AvgPool2d((3, 2), stride=(2, 1)), (1, 5, 4)),
    (AvgPool2d(), (2, 3, 4)),
    (MaxPool2d(2), (2, 4, 6)),
    (MaxPool2d(3, stride=2), (1, 5, 6)),
    (MaxPool2d((1, 3), stride=(2, 1)), (2, 3, 5)),
    (MaxPool2d(), (2, 3, 2)),
    (MaxPool2d(2, noise=0.0), (1, 4, 4)),
    (Flatten(), (2, 3, 4)),
    (Flatten(), (5,)),
]


@pytest.mark.parametrize("layer, shape_in", LAYERS, ids=[f"{layer!r}-{shape}" for layer, shape in LAYERS])
def test_layer_keeps_the_contract(layer, shape_in):
    check_layer(layer, shape_in)
