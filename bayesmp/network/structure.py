"""What a network is before anything is believed about its weights: layers in order, a head, and shapes that fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor

from bayesmp.basics import persistence
from bayesmp.heads import Argmax, Head, Regression, Softmax
from bayesmp.heads.base import P
from bayesmp.layers import AvgPool2d, Conv2d, Flatten, LeakyReLU, Linear, MaxPool2d, ReLU
from bayesmp.layers.base import Layer
from bayesmp.messages.gaussian import Gaussian
from bayesmp.network.flat_weights import FlatWeights, Slot
from bayesmp.network.graph import Graph
from bayesmp.network.shapes import ImageSizeError, find_input_shape, shapes_along

LAYERS = {cls.__name__: cls for cls in (AvgPool2d, Conv2d, Flatten, LeakyReLU, Linear, MaxPool2d, ReLU)}  # in files
HEADS = {cls.__name__: cls for cls in (Argmax, Regression, Softmax)}


ELSEWHERE = {  # what people who know PyTorch look for here
    "fit": "train it with bayesmp.fit(net, x, y), or a bayesmp.Trainer",
    "train": "train it with bayesmp.fit(net, x, y); there are no modes",
    "eval": "there are no modes: net.predict(x)",
    "forward": "net.predict(x), or net(x)",
    "parameters": "weights are beliefs: net.marginal holds them, net.weights() layer by layer; bayesmp.to_torch(net) "
    "makes a module",
    "named_parameters": "weights are beliefs: net.weights() holds them layer by layer; bayesmp.to_torch(net) makes a "
    "module",
    **dict.fromkeys(("children", "modules", "named_modules"), "net.layers holds its layers, in order"),
    "apply": "net.layers holds its layers, in order; net.prior and net.start hold what training starts with",
    **dict.fromkeys(
        ("zero_grad", "requires_grad_"), "training passes messages, and keeps no gradients to set or clear"
    ),
    "half": "beliefs need the precision of net.float() or net.double()",
    "state_dict": "net.save(path) writes a file",
    "load_state_dict": "bayesmp.load(path) reads what net.save wrote; bayesmp.from_torch takes a module's weights",
    "predict_proba": "net.predict(x).probs; MPClassifier has predict_proba",
    "score": "bayesmp.metrics has scores of predictions; net.diagnose(x, y) looks at all of them",
}


class Structure(Generic[P]):
    """Layers, a head, and the order of all weights; P is the type of the head's predictions.

    Attributes:
        layers, head: as given; the head as it suits these layers.
        input_shape: of one example.
        shapes: shapes[k] is that of the input of layer k, the last one that of the outputs.
        n_outputs: of the head.
        graph: nodes between edges (graph.py).
        flat: all weights as one vector (flat_weights.py).
    """

    def __init__(self, layers: Sequence[Layer], head: Head[P], *, input_shape: Sequence[int] | None = None) -> None:
        self.layers = _check_layers(layers)
        _check_parts(self.layers, head)
        self.head = head.suited_to(self.layers)
        self._asks_data = input_shape is None  # for the size of images, where layers fit several
        self.input_shape = find_input_shape(self.layers, input_shape)
        self.shapes = shapes_along(self.layers, self.input_shape)
        self.n_outputs = head.n_outputs(self.shapes[-1])
        self.graph = Graph(self.layers)
        self.flat = FlatWeights(self.layers, self.graph)

    @property
    def n_weights(self) -> int:
        return len(self.flat)

    @property
    def products_per_example(self) -> int:
        """Multiplications of one sweep out for one example: every weight as often as it is used."""
        return sum((slot.stop - slot.start) * math.prod(self.shapes[slot.layer + 1][1:]) for slot in self.slots)

    @property
    def slots(self) -> list[Slot]:
        """Where each weight tensor lives in the flat vector."""
        return self.flat.slots

    def take_shape(self, shape: Sequence[int]) -> None:
        """Take the size of images from the training data, where it was not given and all layers fit it as well; if only
        a Linear behind them does not, a ValueError that says which one would."""
        if not self._asks_data or len(shape) == 0:
            return
        try:
            shapes = shapes_along(self.layers, tuple(shape))
        except ImageSizeError:
            raise
        except ValueError:
            return  # `checks.check_inputs` says what is wrong
        self.input_shape, self.shapes = shapes[0], shapes

    def unpack(self, flat: Tensor) -> list[dict[str, Tensor]]:
        """One dict of weight tensors per layer, as views of a flat vector."""
        return self.flat.unpack(flat)

    def pack(self, messages: Sequence[dict[str, Gaussian]]) -> Gaussian:
        """The flat Gaussian of per-layer messages to weights; inverse of unpacking."""
        return self.flat.pack_messages(messages)

    def pack_tensors(self, tensors: Sequence[dict[str, Tensor]]) -> Tensor:
        """The flat vector of per-layer tensors."""
        return self.flat.pack(tensors)

    if not TYPE_CHECKING:  # type checkers say by themselves what is not there

        def __getattr__(self, name: str) -> Any:
            if name not in ELSEWHERE:
                return object.__getattribute__(self, name)  # raises, and says why where a property has failed
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}; {ELSEWHERE[name]}")

    def parts(self) -> dict[str, Any]:
        """What makes the structure again, as JSON holds it."""
        found = []
        for layer in self.layers:
            found.append({**persistence.describe(layer, LAYERS), "given_priors": given_priors(layer)})
        return {"layers": found, "head": persistence.describe(self.head, HEADS), "input_shape": self.input_shape}

    def lines(self) -> list[str]:
        """The input and each layer, one line each: what comes out, and how many weights it has."""
        found = [f"  input {' x '.join(map(str, self.input_shape))}"]
        for index, layer in enumerate(self.layers):
            n_own, shape = self.flat.size_of(index), " x ".join(map(str, self.shapes[index + 1]))
            line = f"  {layer!r:<34} -> {shape:<16}" + (f"{n_own:>12,} weights" if n_own else "")
            found.append(line.rstrip())
        return found


def given_priors(layer: Layer) -> list[str]:
    """Names of the weights of a layer whose prior was given."""
    return [name for name in layer.weight_shapes() if getattr(layer, f"{name}_prior", None) is not None]


def _check_layers(layers: Any) -> list[Layer]:
    """A list of layers, or an error that says what to do with what came instead."""
    if isinstance(layers, (Layer, torch.nn.Module)) or not isinstance(layers, Iterable):
        remedy = "bayesmp.from_torch takes modules" if isinstance(layers, torch.nn.Module) else "write [layer]"
        raise ValueError(f"layers must be a list of layers such as [Linear(2, 3)], got {layers!r}; {remedy}")
    found = list(layers)
    for index, layer in enumerate(found):
        if isinstance(layer, Layer):
            continue
        is_class = isinstance(layer, type) and issubclass(layer, Layer)
        hint = "; bayesmp.from_torch takes modules" if isinstance(layer, torch.nn.Module) else ""
        hint = f"; write {layer.__name__}(...)" if is_class else hint
        raise ValueError(f"layer {index} must be a bayesmp layer such as Linear(2, 3), got {layer!r}{hint}")
    return found


def _check_parts(layers: list[Layer], head: Head) -> None:
    if not any(layer.weight_shapes() for layer in layers):
        raise ValueError("a network needs at least one layer with weights (Linear or Conv2d)")
    if not isinstance(head, Head):
        raise ValueError(f"head must be Regression(noise_var), Softmax() or Argmax(), got {head!r}")
