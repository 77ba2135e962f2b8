"""From PyTorch and back: an `nn.Sequential` as a Bayesian network, and a network's means as an `nn.Sequential`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from bayesmp.heads.base import Head, P
from bayesmp.layers import AvgPool2d, Conv2d, Flatten, LeakyReLU, Linear, MaxPool2d, ReLU, Softplus
from bayesmp.layers.base import Layer
from bayesmp.messages.gaussian import Gaussian
from bayesmp.network.network import Network

STARTS = ("start", "prior", None)
WEIGHTS = ("mean", "sample")
TAKEN = (
    "Linear, Conv2d, ReLU, LeakyReLU, Softplus, MaxPool2d, AvgPool2d, Flatten, and AdaptiveAvgPool2d(1) or "
    "AdaptiveMaxPool2d(1)"
)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
WEIGHT_HOOKS = (WeightNorm, SpectralNorm, BasePruningMethod)  # they only make a layer's weights of other parameters
_USE_RELU = "use nn.ReLU() or nn.LeakyReLU() in its place and train again"
_FOLD = "in eval mode, fold it into the layer before it: torch.nn.utils.fusion.fuse_conv_bn_eval or fuse_linear_bn_eval"
_NO_NORM = "there are no normalising layers here yet: leave it out and train again"
_HEAD = "leave it out: the head makes probabilities of the outputs, e.g. head=bayesmp.Softmax()"
ADVICE: dict[type[nn.Module], str] = {
    **dict.fromkeys((nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.SELU, nn.CELU), _USE_RELU),
    **dict.fromkeys((nn.Hardswish, nn.Hardtanh, nn.ReLU6, nn.PReLU, nn.RReLU), _USE_RELU),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax, nn.Softmax2d), _HEAD),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), _FOLD),
    **dict.fromkeys((nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d, nn.RMSNorm), _NO_NORM),
    **dict.fromkeys((nn.Conv1d, nn.Conv3d, nn.ConvTranspose2d), "use nn.Conv2d on images (channels, height, width)"),
}


# --- from PyTorch ----------------------------------------------------------------------------------------------------


def from_torch(
    module: nn.Sequential,
    head: Head[P],
    *,
    weights: str | None = "start",
    seed: int = 0,
    input_shape: Sequence[int] | None = None,
) -> Network[P]:
    """The network with the layers of an `nn.Sequential`, in float64 if the module is, else in float32, on its device.

    Nested Sequentials are taken apart, Identity is left out, and so is Dropout, with a warning: a belief about the
    weights does what it is there for. Any other module, an option that has no counterpart here, a forward of one's own
    and a hook are errors that say which one, where, and what to use.

    Args:
        module: of Linear, Conv2d, ReLU, LeakyReLU, Softplus, MaxPool2d, AvgPool2d, Flatten; not changed, and shares no
            memory with the network.
        head: Regression(noise_var), Softmax() or Argmax(). It makes probabilities, so the module gives logits.
        weights: what the module's weights are good for.
            "start": training starts at them, under the usual prior. For weights that were trained on the data that
            `fit` will see: it goes on from there, and says how sure it is; the data are counted once, by `fit`. The
            sequential schedule, which has no starting means, takes no notice of them.
            "prior": they are the means of the prior, and training starts at them, too; its variances are the usual
            ones. For weights that were trained on other data of the same kind, and few data to `fit`: where these say
            nothing, the network stays what it was. Not for the data it was trained on: they would be counted twice.
            The usual variances are wide; `network.prior = Gaussian.from_moments(network.prior.mean, 0.01 *
            network.prior.var)` before `fit` trusts the weights more.
            None: not used; the layers alone. For modules that were not trained: PyTorch's random weights are a worse
            start than the network's own.
        seed: as in Network.
        input_shape: as in Network, for images whose size the layers do not tell.

    Note:
        A classifier's outputs are logits in PyTorch. Here they are of order one: a unit is worth 6 logits at first, so
        the last weights are divided by 6, and `to_torch` multiplies them again. Without this, training would first
        have to shrink the outputs, and lose what was learned. Training looks for the mean of a posterior, not for the
        lowest loss, so some accuracy may be lost in the first epoch or two and come back in the next: give it five.
        Argmax() holds a start better than Softmax(), for which examples that are fitted well say next to nothing.
    """
    if not isinstance(module, nn.Sequential):
        raise TypeError(
            f"from_torch takes an nn.Sequential, got {type(module).__name__}; put its layers into one, in order (skip "
            "connections and branches have no counterpart here yet)"
        )
    if weights not in STARTS:
        raise ValueError(f"weights must be one of {STARTS}, got {weights!r}")
    layers: list[Layer] = []
    sources: list[nn.Module] = []
    for name, part in _leaves(module):
        if isinstance(part, DROPOUTS):
            warnings.warn(
                f"module {name}, {part}, is left out: the network is trained as a belief about its weights, which "
                "needs no random zeros to keep it from being too sure",
                stacklevel=2,
            )
            continue
        layers.append(_as_layer(part, name))
        sources.append(part)
    _check_once(sources)
    network = Network(layers, head, seed=seed, input_shape=input_shape)
    floats = [part for part in module.parameters() if part.is_floating_point()]
    if floats:
        network.to(floats[0].device, torch.float64 if floats[0].dtype == torch.float64 else torch.float32)
    if weights is None:
        return network
    trained = [
        {name: _weight(source, name).detach().to("cpu", torch.float64) for name in layer.weight_shapes()}
        for layer, source in zip(layers, sources, strict=True)
    ]
    start = network.flat.pack(_scaled(network.layers, trained, 1.0 / head.logits_per_output()))
    if not bool(start.isfinite().all()):
        raise ValueError("the module has weights that are NaN or infinite; its training must have diverged")
    if weights == "prior":
        rho = network.exact_prior.rho
        network.prior = Gaussian(start * rho, rho)
        network.reset()
    network.start = start
    return network


def _leaves(module: nn.Sequential, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """All modules in order, one that is there several times as often as it is, with the names that Sequentials give."""
    _check_plain(module, prefix)
    for name, part in module._modules.items():  # `named_children` leaves out what was there before
        assert part is not None
        path = prefix + name
        if isinstance(part, nn.Sequential):
            yield from _leaves(part, path + ".")
            continue
        _check_hooks(part, f"module {path}, {part}")
        if type(part).forward is not nn.Identity.forward:
            yield path, part


def _check_plain(module: nn.Sequential, prefix: str) -> None:
    """Raise unless the Sequential does nothing but call its parts in order."""
    where = f"module {prefix[:-1]}, a {type(module).__name__}," if prefix else f"the {type(module).__name__}"
    if type(module).forward is not nn.Sequential.forward:
        raise ValueError(
            f"{where} has a forward of its own, of which from_torch would know nothing; put its layers into a plain "
            "nn.Sequential, and what else it does before or behind the network"
        )
    _check_hooks(module, where)


def _check_hooks(module: nn.Module, where: str) -> None:
    """Raise if calls of the module run code that it does not show; a lazy one's own says that its size is unknown."""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    for hook in hooks:
        is_lazy = getattr(hook, "__self__", None) is module and isinstance(module, nn.modules.lazy.LazyModuleMixin)
        if not is_lazy and not isinstance(hook, WEIGHT_HOOKS):
            raise ValueError(
                f"{where} has a forward hook, {getattr(hook, '__name__', type(hook).__name__)}, of which from_torch "
                "would know nothing; call remove() of the handle that registering it gave"
            )


def _weight(module: nn.Module, name: str) -> Tensor:
    """The weights that a call would have; where a hook makes them of others, those at hand are of the last call."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm) and hook.name == name:
            return torch.as_tensor(hook.compute_weight(module))
        if isinstance(hook, SpectralNorm) and hook.name == name:
            return hook.compute_weight(module, do_power_iteration=False)
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name:
            return torch.as_tensor(hook.apply_mask(module))
    return torch.as_tensor(getattr(module, name))


def _check_once(modules: Sequence[nn.Module]) -> None:
    """Raise if weights are used in several places: here each place has weights of its own."""
    seen: set[int] = set()
    for module in modules:
        if id(module) in seen and any(True for _ in module.parameters()):
            raise ValueError(
                f"{module} is in several places of the module, which has no counterpart here; give each place a layer "
                "of its own (copy.deepcopy keeps its weights)"
            )
        seen.add(id(module))


def _as_layer(module: nn.Module, name: str) -> Layer:
    """The layer for a module, or a ValueError that names the module, its place and a way out."""
    where = f"module {name}, {module}"
    try:
        layer = _translate(module)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if layer is None:
        advice = next((text for kind, text in ADVICE.items() if isinstance(module, kind)), f"from_torch takes {TAKEN}")
        raise ValueError(f"{where} has no counterpart here; {advice}")
    return layer


def _translate(module: nn.Module) -> Layer | None:
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        raise ValueError("its size is not known yet; call the nn.Sequential once with an example before from_torch")
    for kind, make in _FROM_TORCH.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:  # not a subclass that does more
            return make(module)
    return None


def _expect(module: nn.Module, **options: Any) -> None:
    """Raise unless the module has these options: those that have a counterpart here."""
    for name, expected in options.items():
        found = getattr(module, name)
        if found not in (expected, (expected, expected)):
            raise ValueError(f"{name}={found!r} has no counterpart here; use {name}={expected!r}")


def _from_linear(module: nn.Linear) -> Linear:
    return Linear(module.in_features, module.out_features, bias=module.bias is not None)


def _from_conv(module: nn.Conv2d) -> Conv2d:
    _expect(module, dilation=1, groups=1, padding_mode="zeros")
    kernel, stride = _pair(module.kernel_size), _pair(module.stride)
    padding = module.padding
    if padding == "same":
        if kernel[0] % 2 == 0 or kernel[1] % 2 == 0:
            raise ValueError("padding='same' of an even kernel is lopsided and has no counterpart here; use a number")
        padding = (kernel[0] // 2, kernel[1] // 2)
    elif padding == "valid":
        padding = (0, 0)
    bias = module.bias is not None
    return Conv2d(module.in_channels, module.out_channels, kernel, stride=stride, padding=_pair(padding), bias=bias)


def _from_max_pool(module: nn.MaxPool2d) -> MaxPool2d:
    _expect(module, padding=0, dilation=1, ceil_mode=False, return_indices=False)
    return MaxPool2d(_pair(module.kernel_size), stride=_pair(module.stride))


def _from_avg_pool(module: nn.AvgPool2d) -> AvgPool2d:
    _expect(module, padding=0, ceil_mode=False, divisor_override=None)
    return AvgPool2d(_pair(module.kernel_size), stride=_pair(module.stride))


def _from_global_max_pool(module: nn.AdaptiveMaxPool2d) -> MaxPool2d:
    _expect(module, output_size=1, return_indices=False)
    return MaxPool2d()


def _from_global_avg_pool(module: nn.AdaptiveAvgPool2d) -> AvgPool2d:
    _expect(module, output_size=1)
    return AvgPool2d()


def _from_flatten(module: nn.Flatten) -> Flatten:
    _expect(module, start_dim=1, end_dim=-1)
    return Flatten()


def _pair(value: Any) -> tuple[int, int]:
    height, width = (value, value) if isinstance(value, int) else value
    return (height, width)


_FROM_TORCH: dict[type[nn.Module], Any] = {
    nn.Linear: _from_linear,
    nn.Conv2d: _from_conv,
    nn.ReLU: lambda module: ReLU(),
    nn.LeakyReLU: lambda module: LeakyReLU(module.negative_slope),
    nn.Softplus: lambda module: Softplus(module.beta),
    nn.MaxPool2d: _from_max_pool,
    nn.AvgPool2d: _from_avg_pool,
    nn.AdaptiveMaxPool2d: _from_global_max_pool,
    nn.AdaptiveAvgPool2d: _from_global_avg_pool,
    nn.Flatten: _from_flatten,
}


def _scaled(layers: Sequence[Layer], tensors: list[dict[str, Tensor]], factor: float) -> list[dict[str, Tensor]]:
    """Per-layer weights of a network whose outputs are `factor` times those of the given one: what follows the last
    weights, if anything, is a pool, a Flatten or an activation with a kink, and carries a positive factor on.
    """
    last = max(index for index, part in enumerate(tensors) if part)
    if factor != 1.0 and any(isinstance(layer, Softplus) for layer in layers[last:]):
        raise ValueError("a Softplus behind the last weights bends logits in PyTorch elsewhere than here: leave it out")
    return [
        {name: part * factor for name, part in own.items()} if index == last else own
        for index, own in enumerate(tensors)
    ]


# --- to PyTorch ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def to_torch(network: Network, weights: str = "mean", *, seed: int = 0) -> nn.Sequential:
    """The network's layers as an `nn.Sequential`, in its dtype and on its device; a copy, for PyTorch to go on with.

    It gives the outputs before the head, for classes as logits, as PyTorch's losses take them: the last weights are
    multiplied by what a unit of output is worth in logits. That is near what `predict` says, not equal to it: `predict`
    averages over the weights on its way through activations and pools, and over the outputs at the end.

    Args:
        network: of the layers that `from_torch` makes; before training, at the means at which it would start, so that
            `to_torch(from_torch(module))` is the module.
        weights: "mean" for the marginal means, or "sample" for one draw from the joint belief. The belief is about the
            network linearised around its means: an average over sampled networks is much worse than the mean alone. A
            sample is for looking at weights; for functions that the data allow take `network.sample_functions`.
        seed: of the draw.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {WEIGHTS}, got {weights!r}")
    is_new = not network.has_learned
    values = network.start if is_new else network.marginal.mean.double()
    found = [dict(tensors) for tensors in network.unpack(values)]
    if weights == "sample":
        if network.belief is None:
            raise ValueError("there is no joint belief to draw from yet; train the network first (bayesmp.fit)")
        draws = network.belief.sample(torch.Generator().manual_seed(seed))
        for node, draw in zip(network.graph.weight_nodes, draws, strict=True):
            for name, part in node.layer.from_matrix(draw.to(values)).items():
                found[node.index][name] = found[node.index][name] + part
    found = _scaled(network.layers, found, network.head.logits_per_output(None if is_new else network.head_log_weights))
    module = as_torch(network.layers, device="meta")  # there, PyTorch's initial weights cost nothing
    like = network.marginal.tau
    state = {
        f"{k}.{name}": part.to(like, copy=True) for k, tensors in enumerate(found) for name, part in tensors.items()
    }
    module.load_state_dict(state, assign=True)
    return module


def as_torch(layers: Sequence[Layer], *, device: str | torch.device | None = None) -> nn.Sequential:
    """The same layers in PyTorch, one module each, with PyTorch's own initial weights."""
    return nn.Sequential(*(_as_module(layer, index, device) for index, layer in enumerate(layers)))


def _as_module(layer: Layer, index: int, device: str | torch.device | None) -> nn.Module:
    match layer:
        case Linear():
            return nn.Linear(layer.n_in, layer.n_out, bias=layer.has_bias, device=device)
        case Conv2d():
            sizes = (layer.c_in, layer.c_out, layer.kernel, layer.stride, layer.padding)
            return nn.Conv2d(*sizes, bias=layer.has_bias, device=device)
        case ReLU():
            return nn.ReLU()
        case LeakyReLU():
            return nn.LeakyReLU(layer.leak)
        case Softplus():
            return nn.Softplus(layer.beta)
        case MaxPool2d():
            return nn.AdaptiveMaxPool2d(1) if layer.kernel is None else nn.MaxPool2d(layer.kernel, layer.stride)
        case AvgPool2d():
            return nn.AdaptiveAvgPool2d(1) if layer.kernel is None else nn.AvgPool2d(layer.kernel, layer.stride)
        case Flatten():
            return nn.Flatten()
    raise ValueError(f"layer {index}, {layer!r}, has no module in PyTorch that this library knows of")
