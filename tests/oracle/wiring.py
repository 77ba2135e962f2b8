"""From the plain spec of a layer to its factors and output variables, for one example."""

from dataclasses import dataclass, field
from typing import Any

from .leaky_relu import LeakyRelu
from .sums import AveragePool, InnerProduct, MaxPool, ObservedSum
from .trees import leaves, nest, shape_of
from .variables import Variable, Weight


@dataclass
class Signal:
    """The values between two layers: variables, or the known numbers of the input; last index fastest."""

    cells: list[Any]
    shape: tuple[int, ...]

    @property
    def is_known(self) -> bool:
        return not isinstance(self.cells[0], Variable)

    def nested(self, function: Any) -> list:
        return nest([function(cell) for cell in self.cells], self.shape)


@dataclass
class Layer:
    """The factors of one layer in one example, the variables around them and the weights they use."""

    kind: str
    inputs: Signal
    outputs: Signal
    example: int
    factors: list[Any] = field(default_factory=list)
    weights: dict[str, Any] | None = None  # nested Weight objects, shared with the other examples

    def forward(self) -> None:
        for factor in self.factors:
            factor.forward()

    def backward(self) -> None:
        """New messages to the inputs and, at once, to the weights of this layer."""
        if not self.factors:  # flatten: inputs and outputs are the same variables
            return
        if not self.inputs.is_known:
            for cell in self.inputs.cells:
                cell.reset_backward()
        for factor in self.factors:
            factor.backward()
        for weight in leaves(self.weights):
            weight.replace_message(self.example)


def new_signal(shape: tuple[int, ...]) -> Signal:
    n_cells = 1
    for size in shape:
        n_cells *= size
    return Signal([Variable() for _ in range(n_cells)], shape)


def sum_factor(terms: list[tuple[Any, Weight]], bias: Weight | None, output: Variable, layer: Layer) -> Any:
    """The exact sum where the inputs are known numbers, else the inner product."""
    kind = ObservedSum if layer.inputs.is_known else InnerProduct
    return kind(terms, bias, output, layer.example)


def wire_linear(layer: Layer, n_in: int, n_out: int, has_bias: bool) -> None:
    r"""z_o = \sum_i a_i w_{oi} + bias_o."""
    assert layer.inputs.shape == (n_in,), f"linear needs a flat input of {n_in}, got {layer.inputs.shape}"
    assert shape_of(layer.weights["weight"]) == (n_out, n_in)
    layer.outputs = new_signal((n_out,))
    for o, output in enumerate(layer.outputs.cells):
        terms = list(zip(layer.inputs.cells, layer.weights["weight"][o], strict=True))
        layer.factors.append(sum_factor(terms, layer.weights["bias"][o] if has_bias else None, output, layer))


def wire_conv(layer: Layer, c_in: int, c_out: int, kernel: int, stride: int, padding: int, has_bias: bool) -> None:
    r"""z_{o,y,x} = \sum_{c,p,q} a_{c, y stride + p - padding, x stride + q - padding} w_{o,c,p,q} + bias_o.

    A padded cell is a known zero: it has no term, hence no message.
    """
    channels, height, width = layer.inputs.shape
    assert channels == c_in and shape_of(layer.weights["weight"]) == (c_out, c_in, kernel, kernel)
    rows = (height + 2 * padding - kernel) // stride + 1
    columns = (width + 2 * padding - kernel) // stride + 1
    layer.outputs = new_signal((c_out, rows, columns))
    for o in range(c_out):
        bias = layer.weights["bias"][o] if has_bias else None
        for y in range(rows):
            for x in range(columns):
                terms = []
                for c in range(c_in):
                    for p in range(kernel):
                        for q in range(kernel):
                            row, column = y * stride + p - padding, x * stride + q - padding
                            if 0 <= row < height and 0 <= column < width:
                                cell = layer.inputs.cells[(c * height + row) * width + column]
                                terms.append((cell, layer.weights["weight"][o][c][p][q]))
                output = layer.outputs.cells[(o * rows + y) * columns + x]
                layer.factors.append(sum_factor(terms, bias, output, layer))


def wire_pool(layer: Layer, pool: type, window: int) -> None:
    """Windows of window x window cells that do not overlap; rows and columns left over are dropped."""
    channels, height, width = layer.inputs.shape
    rows, columns = height // window, width // window
    layer.outputs = new_signal((channels, rows, columns))
    for c in range(channels):
        for y in range(rows):
            for x in range(columns):
                inputs = [
                    layer.inputs.cells[(c * height + y * window + p) * width + x * window + q]
                    for p in range(window)
                    for q in range(window)
                ]
                layer.factors.append(pool(inputs, layer.outputs.cells[(c * rows + y) * columns + x]))


def wire(spec: tuple, inputs: Signal, weights: dict[str, Any] | None, example: int) -> Layer:
    """The layer of one example that a spec such as ("lrelu", 0.1) asks for, on the given inputs."""
    kind, *options = spec
    layer = Layer(kind, inputs, inputs, example, weights=weights)
    if kind == "flatten":
        layer.outputs = Signal(inputs.cells, (len(inputs.cells),))
    elif kind == "linear":
        wire_linear(layer, *options)
    elif kind == "conv":
        wire_conv(layer, *options)
    elif kind not in ("lrelu", "maxpool", "avgpool"):
        raise ValueError(f"unknown layer {kind!r}")
    elif inputs.is_known:
        raise ValueError(f"{kind} before the first weight layer: its inputs are known numbers, apply it to the data")
    elif kind == "lrelu":
        layer.outputs = new_signal(inputs.shape)
        pairs = zip(inputs.cells, layer.outputs.cells, strict=True)
        layer.factors = [LeakyRelu(z, a, options[0]) for z, a in pairs]
    else:
        wire_pool(layer, MaxPool if kind == "maxpool" else AveragePool, options[0])
    return layer
