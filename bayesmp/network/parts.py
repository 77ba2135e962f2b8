"""What a network may be made of: the layers and heads that files know, checks of what users give, and hints."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import isabstract
from typing import Any

import torch

from bayesmp import layers as all_layers
from bayesmp.heads import Argmax, Head, Regression, Softmax
from bayesmp.layers.base import Layer

_exported = {name: getattr(all_layers, name) for name in all_layers.__all__}
LAYERS = {  # that files may name: all that bayesmp.layers exports
    name: part for name, part in _exported.items() if isinstance(part, type) and not isabstract(part)
}
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


def given_priors(layer: Layer) -> list[str]:
    """Names of the weights of a layer whose prior was given."""
    return [name for name in layer.weight_shapes() if getattr(layer, f"{name}_prior", None) is not None]


def check_layers(layers: Any) -> list[Layer]:
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
    if not any(layer.weight_shapes() for layer in found):
        raise ValueError("a network needs at least one layer with weights (Linear or Conv2d)")
    return found


def check_head(head: Any) -> None:
    """Raise unless it is a head."""
    if not isinstance(head, Head):
        raise ValueError(f"head must be Regression(noise_var), Softmax() or Argmax(), got {head!r}")
