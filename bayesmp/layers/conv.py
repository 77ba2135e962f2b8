"""Two-dimensional convolution: an inner product on patches, with weights shared over positions."""

from __future__ import annotations

from typing import Any

from bayesmp import kernels
from bayesmp.basics import checks
from bayesmp.layers import priors
from bayesmp.layers.base import Message, Shape
from bayesmp.layers.linear import WeightLayer
from bayesmp.layers.windows import pair, short, window_count
from bayesmp.messages.linear_maps import ConvMap
from bayesmp.messages.windows import Pair


class Conv2d(WeightLayer):
    """Convolution c_in -> c_out with zero padding; weight (o, c, k, k), bias (o).

    Args:
        c_in, c_out: channels.
        kernel, stride, padding: an int, or a pair (height, width).
        bias: whether each output channel has a bias.
        weight_prior, bias_prior: (mean, var) in place of the default prior, numbers or broadcastable tensors.
    """

    def __init__(
        self,
        c_in: int,
        c_out: int,
        kernel: int | Pair,
        *,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        bias: bool = True,
        weight_prior: priors.PriorLike | None = None,
        bias_prior: priors.PriorLike | None = None,
    ) -> None:
        self.c_in = checks.check_positive_int(c_in, "c_in of Conv2d")
        self.c_out = checks.check_positive_int(c_out, "c_out of Conv2d")
        self.kernel = pair(kernel, "kernel", least=1)
        self.stride = pair(stride, "stride", least=1)
        self.padding = pair(padding, "padding", least=0)
        super().__init__(
            fan_in=c_in * self.kernel[0] * self.kernel[1],
            bias=bias,
            weight_prior=weight_prior,
            bias_prior=bias_prior,
        )

    def config(self) -> dict[str, Any]:
        windows = {"kernel": self.kernel, "stride": self.stride, "padding": self.padding}
        return {"c_in": self.c_in, "c_out": self.c_out, **windows, "bias": self.has_bias}

    def weight_shapes(self) -> dict[str, Shape]:
        return {"weight": (self.c_out, self.c_in, *self.kernel)} | ({"bias": (self.c_out,)} if self.has_bias else {})

    def output_shape(self, shape_in: Shape) -> Shape:
        if len(shape_in) != 3 or shape_in[0] != self.c_in:
            raise ValueError(f"{self!r} takes images of shape ({self.c_in}, height, width), got {shape_in}")
        return (self.c_out, *window_count(shape_in[1:], self.kernel, self.stride, self.padding, repr(self)))

    def linear_map(self, m_in: Message) -> ConvMap:
        height, width = m_in.shape[2:]
        out = window_count((height, width), self.kernel, self.stride, self.padding, "Conv2d")
        return kernels.FastConvMap((height, width), out, self.kernel, self.stride, self.padding)

    def __repr__(self) -> str:
        options = f", stride={short(self.stride)}" if self.stride != (1, 1) else ""
        options += f", padding={short(self.padding)}" if self.padding != (0, 0) else ""
        options += "" if self.has_bias else ", bias=False"
        return f"Conv2d({self.c_in}, {self.c_out}, {short(self.kernel)}{options})"
