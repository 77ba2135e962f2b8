"""The three products of a linear map are adjoint to each other; patches and fold give the same map, spelled out."""

import pytest
import torch

from bayesmp.messages.linear_maps import ConvMap, DenseMap

GEOMETRIES = {  # size_in, kernel, stride, padding
    "plain": ((6, 6), (3, 3), (1, 1), (0, 0)),
    "odd": ((7, 5), (3, 2), (1, 1), (0, 0)),
    "stride leaves a rest": ((8, 7), (3, 3), (2, 2), (0, 0)),
    "padding": ((5, 6), (3, 3), (1, 1), (1, 1)),
    "stride and padding, all different": ((9, 6), (3, 4), (2, 3), (1, 2)),
    "1x1": ((4, 3), (1, 1), (1, 1), (0, 0)),
    "one position": ((3, 4), (3, 4), (1, 1), (0, 0)),
    "stride beyond kernel": ((7, 7), (2, 2), (3, 3), (0, 0)),
}


def conv_map(name):
    size, kernel, stride, padding = GEOMETRIES[name]
    out = tuple((s + 2 * p - k) // d + 1 for s, k, d, p in zip(size, kernel, stride, padding, strict=True))
    return ConvMap(size, out, kernel, stride, padding)


def tensors(name):
    """(map, x, w, z) of fitting shapes."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if name == "dense":
        return DenseMap(), randn(3, 5), randn(4, 5), randn(3, 4)
    linear_map = conv_map(name)
    return (
        linear_map,
        randn(2, 3, *linear_map.size_in),
        randn(4, 3, *linear_map.kernel),
        randn(2, 4, *linear_map.size_out),
    )


MAPS = ["dense", *GEOMETRIES]


@pytest.mark.parametrize("name", MAPS)
def test_the_three_products_are_adjoint(name):
    linear_map, x, w, z = tensors(name)
    out = linear_map.op(x, w)
    assert out.shape == z.shape
    to_input, to_weight = linear_map.op_input(z, w), linear_map.op_weight(x, z)
    assert to_input.shape == x.shape and to_weight.shape == w.shape
    torch.testing.assert_close((to_input * x).sum(), (out * z).sum())
    torch.testing.assert_close((to_weight * w).sum(), (out * z).sum())


@pytest.mark.parametrize("name", MAPS)
def test_products_are_the_gradients_of_the_map(name):
    linear_map, x, w, z = tensors(name)
    x.requires_grad_(True)
    w.requires_grad_(True)
    (linear_map.op(x, w) * z).sum().backward()
    torch.testing.assert_close(linear_map.op_input(z, w.detach()), x.grad)
    torch.testing.assert_close(linear_map.op_weight(x.detach(), z), w.grad)


@pytest.mark.parametrize("name", MAPS)
def test_patches_times_flat_weights_are_the_rows_of_the_output(name):
    linear_map, x, w, _ = tensors(name)
    by_patches = linear_map.patches(x) @ linear_map.flat_weight(w).t()  # (b, p, o)
    torch.testing.assert_close(by_patches, linear_map.rows(linear_map.op(x, w)))


@pytest.mark.parametrize("name", MAPS)
def test_fold_is_the_adjoint_of_patches(name):
    linear_map, x, _, _ = tensors(name)
    patches = linear_map.patches(x)
    other = torch.randn(patches.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    folded = linear_map.fold(other)
    assert folded.shape == x.shape
    torch.testing.assert_close((folded * x).sum(), (other * patches).sum())


@pytest.mark.parametrize("name", MAPS)
def test_channel_sum_is_the_adjoint_of_spread(name):
    linear_map, _, w, z = tensors(name)
    per_unit = torch.arange(1.0, w.shape[0] + 1.0, dtype=torch.float64)
    torch.testing.assert_close((linear_map.channel_sum(z) * per_unit).sum(), (linear_map.spread(per_unit) * z).sum())


@pytest.mark.parametrize("with_one", [False, True])
@pytest.mark.parametrize("n_channels", [2, 40])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_second_moments_are_those_of_the_patches(name, n_channels, with_one):
    """Also in more columns than are multiplied at once (SMALL_GRAM)."""
    conv = conv_map(name)
    x = torch.randn(4, n_channels, *conv.size_in, dtype=torch.float64)
    for linear_map, part in ((conv, x), (conv, x.to(memory_format=torch.channels_last)), (DenseMap(), x.flatten(1))):
        rows = linear_map.patches(part).flatten(0, 1)
        rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], 1) if with_one else rows
        found = linear_map.second_moments(part, with_one=with_one)
        torch.testing.assert_close(found, rows.t() @ rows / len(rows))
