"""Shapes along the layers of a network, and the shape of one input where it is not given."""

from __future__ import annotations

from collections.abc import Sequence

from bayesmp import checks
from bayesmp.layers import Conv2d, Linear
from bayesmp.layers.base import Layer, Shape
from bayesmp.layers.pooling import Pool2d

LARGEST_IMAGE = 1024  # how far the search for the image size behind a Flatten goes


def shapes_along(layers: list[Layer], shape: Shape) -> list[Shape]:
    """Shapes of one example before each layer and behind the last, or a ValueError that names the layer."""
    shapes = [shape]
    for index, layer in enumerate(layers):
        try:
            shapes.append(layer.output_shape(shapes[-1]))
        except ValueError as error:
            raise ValueError(f"layer {index} does not fit: {error}") from None
    return shapes


def find_input_shape(layers: list[Layer], given: Sequence[int] | None) -> Shape:
    """The shape of one example: given, or read off the first layer, for images by trying sizes until all layers fit."""
    if given is not None:
        return tuple(checks.check_positive_int(size, "each entry of input_shape") for size in given)
    first = next(layer for layer in layers if layer.weight_shapes())
    before = layers[: layers.index(first)]
    if isinstance(first, Linear) and not any(isinstance(layer, Pool2d) for layer in before):
        return (first.n_in,)
    if isinstance(first, Conv2d) and any(isinstance(layer, Linear) for layer in layers):
        until = next(index for index, layer in enumerate(layers) if isinstance(layer, Linear))
        sizes = (size for size in range(1, LARGEST_IMAGE + 1) if _fits(layers[: until + 1], (first.c_in, size, size)))
        if (size := next(sizes, None)) is not None:
            return (first.c_in, size, size)
    raise ValueError(
        "the shape of one input cannot be found from the layers; pass input_shape, e.g. input_shape=(3, 32, 32)"
    )


def _fits(layers: list[Layer], shape: Shape) -> bool:
    """Whether images of this shape fit all layers, and their size shows behind all but the last: larger ones would
    change what comes out there.
    """
    try:
        shapes = shapes_along(layers, shape)
    except ValueError:
        return False
    larger = (shape[0], 2 * shape[1] + 1, 2 * shape[2] + 1)
    return shapes_along(layers[:-1], larger)[-1] != shapes[-2]
