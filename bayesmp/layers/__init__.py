"""Layers: the boxes of the factor graph. They hold sizes and options; weights live in the Network."""

from bayesmp.layers.activation import LeakyReLU, ReLU
from bayesmp.layers.base import Layer, Weights
from bayesmp.layers.conv import Conv2d
from bayesmp.layers.linear import Linear
from bayesmp.layers.pooling import AvgPool2d, MaxPool2d
from bayesmp.layers.reshape import Flatten
from bayesmp.layers.scale import Scale
from bayesmp.layers.softplus import Softplus

__all__ = [
    "AvgPool2d",
    "Conv2d",
    "Flatten",
    "Layer",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "ReLU",
    "Scale",
    "Softplus",
    "Weights",
]
