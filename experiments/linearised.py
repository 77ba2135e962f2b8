"""Variances of a linearised network's outputs under a Kronecker-factored Gaussian, without its Jacobians.

laplace-torch forms the slopes of all outputs in all weights: 36 MB per image for CIFAR-10's network, by a backward pass
through the whole batch for each output of each image, so that memory grows with the square of the batch (250 images
want more than 140 GB). But the slopes of a layer are products of its inputs and of the slopes in its outputs, and the
eigenvectors of the Gaussian can be applied to these two one by one. What comes out is the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

Block = tuple[Sequence[Tensor], Sequence[Tensor], Tensor]  # eigenvectors, eigenvalues, prior precision


def probit_probabilities(model: nn.Module, precision: Any, x: Tensor) -> Tensor:
    r"""Class probabilities softmax(mean / sqrt(1 + pi/8 var)) of the linearised network, (b, c).

    Args:
        model: at the mean of the Gaussian; its weights are those of linear and convolutional layers.
        precision: laplace-torch's `posterior_precision` of all weights, Kronecker-factored and without damping.
        x: inputs, (b, ...).
    """
    mean, var = output_moments(model, precision, x)
    return (mean / (1.0 + math.pi / 8.0 * var).sqrt()).softmax(dim=1)


def output_moments(model: nn.Module, precision: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of each output, (b, c): f(x) and J_c S J_c^T, with S the inverse of the precision.

    A layer's slopes are J_c = D_c P^T: D_c (o, l), slopes of output c in the layer's outputs, at each of its l places;
    P (i, l), the inputs that go into each place. With the layer's precision (Q_1 x Q_2) diag(l_1 l_2^T + delta)
    (Q_1 x Q_2)^T, the variance is the sum over (o, i) of ((Q_1^T D_c) (Q_2^T P)^T)^2 / (l_1 l_2^T + delta).
    """
    assert not precision.damping, "laplace-torch's damping is another precision"
    layers = [module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    blocks: list[Block] = list(zip(precision.eigenvectors, precision.eigenvalues, precision.deltas, strict=True))
    owned = [parameter for layer in layers for parameter in layer.parameters()]
    if len(owned) != len(blocks) or len(owned) != len(list(model.parameters())):
        raise ValueError(f"{len(blocks)} blocks of precision for {len(owned)} weights and biases of known layers")
    inputs, slopes, mean = _slopes(model, layers, x)
    var = torch.zeros_like(mean)
    for layer, m_in, slope in zip(layers, inputs, slopes, strict=True):
        var += _weight_variance(blocks.pop(0), _patches(layer, m_in), slope)
        if layer.bias is not None:
            (vectors,), (values,), delta = blocks.pop(0)
            var += ((slope.sum(3) @ vectors).square() / (values + delta)).sum(2)
    return mean, var


def _slopes(model: nn.Module, layers: Sequence[nn.Module], x: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """What goes into each layer, the slopes of all outputs in its outputs (b, c, o, l), and the outputs (b, c)."""
    inputs: dict[nn.Module, Tensor] = {}
    outputs: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        inputs[layer], outputs[layer] = arguments[0].detach(), output

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        with torch.enable_grad():
            mean = model(x)
            totals = mean.sum(0).unbind()  # examples do not meet in the network: the slope of a sum is that of each
    finally:
        for hook in hooks:
            hook.remove()
    inside = [outputs[layer] for layer in layers]
    per_class = [torch.autograd.grad(total, inside, retain_graph=True) for total in totals]
    stacked = [torch.stack(each, dim=1) for each in zip(*per_class, strict=True)]
    slopes = [slope.reshape(*slope.shape[:3], -1) for slope in stacked]
    return [inputs[layer] for layer in layers], slopes, mean.detach()


def _patches(layer: nn.Module, m_in: Tensor) -> Tensor:
    """The inputs of each place of a layer's output, (b, i, l); a linear layer has one place."""
    if isinstance(layer, nn.Conv2d):
        if layer.groups != 1 or isinstance(layer.padding, str):
            raise ValueError(f"only convolutions without groups and with padding in numbers are known, got {layer}")
        return unfold(m_in, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return m_in[..., None]


def _weight_variance(block: Block, patches: Tensor, slope: Tensor) -> Tensor:
    """What the weights (o, i) of a layer contribute to the variance of each output, (b, c)."""
    (left, right), (left_values, right_values), delta = block
    weights = 1.0 / (torch.outer(left_values, right_values) + delta)  # (o, i)
    turned = torch.einsum("op,bcol->bcpl", left, slope)
    patches = torch.einsum("ij,bil->bjl", right, patches)
    if patches.shape[2] == 1:  # a product of two vectors, which need not be formed
        return torch.einsum("bcp,bp->bc", turned[..., 0].square(), patches[..., 0].square() @ weights.T)
    product = torch.einsum("bcpl,bjl->bcpj", turned, patches)
    return torch.einsum("bcpj,pj->bc", product.square(), weights)
