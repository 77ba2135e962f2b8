"""Sliding windows: counts, entries in order, and scatter as the adjoint of gather."""

import pytest
import torch

from bayesmp.layers.windows import pair, window_count
from bayesmp.messages.windows import gather_windows, scatter_windows

GEOMETRIES = [  # (height, width), kernel, stride
    ((4, 6), (2, 2), (2, 2)),
    ((5, 7), (2, 2), (2, 2)),  # a rest that no window reaches
    ((5, 6), (3, 2), (3, 2)),
    ((5, 5), (3, 3), (1, 1)),  # overlapping
    ((7, 6), (3, 2), (2, 1)),
    ((7, 7), (2, 2), (3, 3)),  # gaps between windows
    ((3, 4), (3, 4), (3, 4)),  # global
    ((4, 4), (1, 1), (1, 1)),
]


@pytest.mark.parametrize("size, kernel, stride", GEOMETRIES)
def test_gather_lists_the_entries_of_each_window_row_by_row(size, kernel, stride):
    x = torch.arange(2.0 * 3 * size[0] * size[1]).view(2, 3, *size)
    windows = gather_windows(x, kernel, stride)
    rows, columns = window_count(size, kernel, stride, (0, 0), "test")
    assert windows.shape == (2, 3, kernel[0] * kernel[1], rows, columns)
    for row in range(rows):
        for column in range(columns):
            top, left = row * stride[0], column * stride[1]
            expected = x[:, :, top : top + kernel[0], left : left + kernel[1]].flatten(2)
            assert torch.equal(windows[..., row, column], expected)


@pytest.mark.parametrize("size, kernel, stride", GEOMETRIES)
def test_scatter_is_the_adjoint_of_gather(size, kernel, stride):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, *size, generator=generator, dtype=torch.float64)
    windows = gather_windows(x, kernel, stride)
    other = torch.randn(windows.shape, generator=generator, dtype=torch.float64)
    back = scatter_windows(other, size, kernel, stride)
    assert back.shape == x.shape
    torch.testing.assert_close((windows * other).sum(), (x * back).sum())


@pytest.mark.parametrize("size, kernel, stride", GEOMETRIES)
def test_scatter_counts_how_often_each_entry_is_used(size, kernel, stride):
    ones = torch.ones_like(gather_windows(torch.zeros(1, 1, *size), kernel, stride))
    expected = torch.zeros(size)
    rows, columns = window_count(size, kernel, stride, (0, 0), "test")
    for row in range(rows):
        for column in range(columns):
            top, left = row * stride[0], column * stride[1]
            expected[top : top + kernel[0], left : left + kernel[1]] += 1
    assert torch.equal(scatter_windows(ones, size, kernel, stride)[0, 0], expected)


def test_window_count_says_when_no_window_fits():
    assert window_count((5, 4), (3, 3), (2, 1), (1, 0), "Conv2d") == (3, 2)
    with pytest.raises(ValueError, match=r"Conv2d.*\(3, 3\).*\(2, 5\)"):
        window_count((2, 5), (3, 3), (1, 1), (0, 0), "Conv2d")


@pytest.mark.parametrize("value", [0, -1, 1.5, None, (1, 0), (1, 2, 3), (1.0, 2)])
def test_pair_refuses_what_is_not_a_size(value):
    with pytest.raises(ValueError, match="kernel"):
        pair(value, "kernel", least=1)


def test_pair_takes_an_int_or_two():
    assert pair(3, "kernel", least=1) == (3, 3)
    assert pair((2, 3), "kernel", least=1) == (2, 3)
    assert pair(0, "padding", least=0) == (0, 0)
