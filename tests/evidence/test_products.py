"""Products of slopes without rows written out, against rows written out."""

import pytest
import torch

from bayesmp.evidence import products
from bayesmp.evidence.function import Slopes
from bayesmp.layers.base import Gradient

SHAPES = [(4, 3), (5, 5), (2, 6)]


def slopes_of(n, k, *, positions=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(n + k)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    gradients = [Gradient(draw(n, positions, n_in), draw(k, n, positions, n_out)) for n_out, n_in in SHAPES]
    return Slopes(draw(n, k), gradients)


def covariance():
    w = sum(n_out * n_in for n_out, n_in in SHAPES)
    root = torch.randn(w, w, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return root @ root.T / w


@pytest.mark.parametrize("n", [1, 7])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_they_are_those_of_rows(n, k, monkeypatch):
    """Some examples at a time, too."""
    monkeypatch.setattr(products, "NUMBERS_AT_ONCE", 100)
    part, own = slopes_of(n, k), covariance()
    rows = part.flat()  # (k n, w)
    torch.testing.assert_close(products.gram(part), rows.T @ rows)
    each = rows.view(k, n, -1).transpose(0, 1)
    torch.testing.assert_close(products.held(part, own), each @ own @ each.mT)


@pytest.mark.parametrize("positions, k", [(1, 1), (1, 3), (2, 3)])
def test_pulls_are_slopes_of_what_is_held(positions, k):
    part, own = slopes_of(4, k, positions=positions), covariance()
    moving = [Gradient(g.inputs.clone().requires_grad_(), g.slopes.clone().requires_grad_()) for g in part.gradients]
    rows = Slopes(part.outputs, moving).flat()
    half = 0.5 * ((rows @ own) * rows).sum()
    truth = torch.autograd.grad(half, [tensor for g in moving for tensor in (g.inputs, g.slopes)])
    found = products.met_each(part, own, given=[])
    for (to_inputs, to_slopes), inputs, slopes in zip(found, truth[::2], truth[1::2], strict=True):
        torch.testing.assert_close(to_inputs, inputs)
        torch.testing.assert_close(to_slopes, slopes)


@pytest.mark.parametrize("positions, k", [(1, 1), (1, 3), (2, 3)])
def test_nothing_is_said_of_inputs_that_are_given(positions, k):
    part = slopes_of(4, k, positions=positions)
    found = products.met_each(part, covariance(), given=[0, 2])
    assert [inputs is None for inputs, _ in found] == [True, False, True]


def test_rows_are_written_out_only_where_they_must_be():
    assert products.has_structure(slopes_of(3, 2))
    assert not products.has_structure(slopes_of(3, 1)), "one number per example: rows are as small as it gets"
    assert not products.has_structure(slopes_of(3, 2, positions=2)), "weights are shared over positions"
