"""Shapes along the layers of a network, and the shape of one input where it is not given."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bayesmp.basics import checks
from bayesmp.layers import Conv2d, Linear
from bayesmp.layers.base import Layer, Shape

LARGEST_IMAGE = 1024  # how far the search for the image size behind a Flatten goes


class ImageSizeError(ValueError):
    """Images fit all layers up to a Linear behind them, which needs another number of inputs."""


def shapes_along(layers: list[Layer], shape: Shape) -> list[Shape]:
    """Shapes of one example before each layer and behind the last, or a ValueError that names the layer."""
    shapes = [shape]
    for index, layer in enumerate(layers):
        try:
            shapes.append(layer.output_shape(shapes[-1]))
        except ValueError as error:
            fault = ImageSizeError if isinstance(layer, Linear) and _images_behind(shapes) else ValueError
            raise fault(f"layer {index} does not fit: {error}{_fitting(layer, shapes)}") from None
    return shapes


def _fitting(layer: Layer, shapes: list[Shape]) -> str:
    """The Linear that would fit where this one does not, behind these shapes, as the end of a sentence."""
    if not isinstance(layer, Linear):
        return ""
    n = math.prod(shapes[-1])
    fitting = f"Linear({n}, {layer.n_out}{'' if layer.has_bias else ', bias=False'})"
    if len(shapes[-1]) > 1:
        return "" if n == layer.n_in else f", and write {fitting}"
    behind = _images_behind(shapes)
    return f"; images of {behind} give {n} numbers here: write {fitting}" if behind else f"; write {fitting}"


def _images_behind(shapes: list[Shape]) -> str:
    """Height and width of the images that these shapes begin with, if the last one holds their numbers in a row."""
    is_flattened = len(shapes[-1]) == 1 and all(len(shape) == 3 or shape == shapes[-1] for shape in shapes)
    return f"{shapes[0][1]} x {shapes[0][2]}" if is_flattened and len(shapes[0]) == 3 else ""


def find_input_shape(layers: list[Layer], given: Sequence[int] | None) -> Shape:
    """The shape of one example: given, or read off the first layer, for images by trying sizes until all layers fit."""
    if given is not None:
        return tuple(checks.check_positive_int(size, "each entry of input_shape") for size in given)
    first = next((layer for layer in layers if isinstance(layer, (Linear, Conv2d))), None)
    before = [] if first is None else layers[: layers.index(first)]
    if isinstance(first, Linear) and _keep_shape(before, (first.n_in,)):
        return (first.n_in,)
    if isinstance(first, Conv2d) and any(isinstance(layer, Linear) for layer in layers):
        until = next(index for index, layer in enumerate(layers) if isinstance(layer, Linear))
        sizes = (size for size in range(1, LARGEST_IMAGE + 1) if _fits(layers[: until + 1], (first.c_in, size, size)))
        if (size := next(sizes, None)) is not None:
            return (first.c_in, size, size)
        if near := _near_sizes(layers[:until], first.c_in, layers[until]):
            raise ValueError(
                f"layer {until} does not fit: {layers[until]!r} fits no square image: {near}; change it, or pass "
                "input_shape, e.g. input_shape=(3, 32, 48), if your images are not square"
            )
    raise ValueError(
        "the shape of one input cannot be found from the layers; pass input_shape, e.g. input_shape=(3, 32, 32)"
    )


def _keep_shape(layers: list[Layer], shape: Shape) -> bool:
    """Whether inputs of this shape pass all layers and keep it."""
    try:
        return all(layer.output_shape(shape) == shape for layer in layers)
    except ValueError:
        return False


def _near_sizes(layers: list[Layer], n_channels: int, linear: Layer) -> str:
    """The square images that give as many numbers behind these layers as would nearly fit, in words; nothing where the
    size of images does not show there.
    """
    assert isinstance(linear, Linear)
    given: dict[int, int] = {}  # numbers, and the smallest size that gives them
    for size in range(1, LARGEST_IMAGE + 1):
        try:
            last = shapes_along(layers, (n_channels, size, size))[-1]
        except ValueError:
            continue
        if len(last) == 1:
            given.setdefault(last[0], size)
    if len(given) < 2 or linear.n_in in given:
        return ""
    below = [n for n in given if n < linear.n_in]
    above = [n for n in given if n > linear.n_in]
    near = ([max(below)] if below else []) + ([min(above)] if above else [])
    said = [f"{given[n]} x {given[n]} gives {n}" for n in near]
    return ", ".join([f"{said[0]} numbers", *said[1:]])


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
