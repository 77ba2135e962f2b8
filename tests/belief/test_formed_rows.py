"""Rows of slopes in half precision: products against float64, and a small variance left over from two large ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bayesmp.belief import formed_rows
from bayesmp.belief.formed_rows import FormedRows
from bayesmp.layers.base import Gradient
from bayesmp.messages.linear_maps import ConvMap, DenseMap

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """CUDA as it is; on the CPU its products in half precision with sums in float32 are put in place."""
    if request.param == "cpu":
        plain = {name: getattr(torch, name) for name in ("mm", "bmm")}

        def wide(name: str) -> Any:
            def product(a: Tensor, b: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
                found: Tensor = plain[name](a.to(out_dtype or a.dtype), b.to(out_dtype or b.dtype))
                return found

            return product

        for name in plain:
            monkeypatch.setattr(torch, name, wide(name))
        monkeypatch.setattr(formed_rows, "has_wide_sums", lambda device: True)
    return torch.device(request.param)


def slopes_of(n: int, *, device: torch.device, sizes: tuple[float, float] = (1.0, 1.0), seed: int = 0) -> Gradient:
    """Of 3 outputs in 7 x 29 weights at 50 positions, n examples."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 50, 29, generator=generator) * sizes[0]
    slopes = torch.randn(3, n, 50, 7, generator=generator) * sizes[1]
    return Gradient(inputs.to(device), slopes.to(device))


def explicit(gradient: Gradient, var: Tensor) -> Tensor:
    """J var^{1/2} (b, k, o i) in float64."""
    rows = torch.einsum("kbpo,bpi->bkoi", gradient.slopes.double(), gradient.inputs.double() * var.double().sqrt())
    return rows.flatten(2)


@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize("sizes", [(1.0, 1.0), (1e6, 1e-8), (1e-12, 1e3), (1e15, 1e15)])
def test_products_agree_with_float64_at_any_size(device: torch.device, sizes: tuple[float, float]) -> None:
    gradient = slopes_of(5, device=device, sizes=sizes)
    var = torch.rand(29, generator=torch.Generator().manual_seed(1)).to(device) * 1e-3
    anchors = torch.randn(11, 7 * 29, generator=torch.Generator().manual_seed(2)).to(device)
    rows, truth = FormedRows.of(gradient, var), explicit(gradient, var)
    assert rows.values.dtype == torch.half
    along, own = truth @ anchors.double().T, truth @ truth.transpose(1, 2)
    assert float((rows.along(anchors) - along).norm() / along.norm()) < 1e-3
    if max(sizes) < 1e15:  # its square is above float32's range
        assert float((rows.own() - own).norm() / own.norm()) < 1e-3


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_what_anchors_explain_is_taken_from_the_same_row(device: torch.device) -> None:
    """Anchors that are nearly parallel, and rows in their span but for a thousandth: what is left over is right."""
    generator = torch.Generator().manual_seed(3)
    var = torch.full((29,), 0.5, device=device)
    near = torch.randn(1, 7 * 29, generator=generator, dtype=torch.float64)
    anchors = (near + 0.05 * torch.randn(40, 7 * 29, generator=generator, dtype=torch.float64)).float().to(device)
    turn = torch.linalg.inv(torch.linalg.cholesky(0.5 * anchors.double() @ anchors.double().T)).T

    mixes = torch.randn(6, 3, 40, generator=generator, dtype=torch.float64).to(device)
    rest = 0.03 * torch.randn(6, 3, 7 * 29, generator=generator, dtype=torch.float64).to(device)
    rows = (mixes @ anchors.double() + rest).unflatten(2, (7, 29))  # as slopes at 29 positions, one per input
    inputs = torch.eye(29, device=device).expand(6, 29, 29)
    gradient = Gradient(inputs, rows.permute(1, 0, 3, 2).float())

    truth = explicit(gradient, var)
    part = truth @ (0.5**0.5 * anchors.double()).T @ turn
    left = (truth.square().sum(2) - part.square().sum(2)) / truth.square().sum(2)
    assert float(left.max()) < 2e-3  # little is left, so digits are lost
    found = FormedRows.of(gradient, var)
    along = found.along(0.5**0.5 * anchors).double() @ turn
    found_left = found.own().diagonal(dim1=1, dim2=2).double() - along.square().sum(2)
    torch.testing.assert_close(found_left / truth.square().sum(2), left, rtol=0.03, atol=2e-6)


def test_plain_rows_where_there_are_no_tensor_cores_or_a_variance_per_weight() -> None:
    gradient, var = slopes_of(4, device=torch.device("cpu")), torch.rand(29)
    plain = FormedRows.of(gradient, var)
    assert plain.size is None and plain.values.dtype == torch.float32
    torch.testing.assert_close(plain.values.double(), explicit(gradient, var), rtol=1e-5, atol=1e-4)
    each = FormedRows.of(gradient, var.expand(7, 29))
    torch.testing.assert_close(each.values, plain.values, rtol=1e-4, atol=1e-4)


def test_a_one_stands_behind_each_patch() -> None:
    x = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(4))
    conv = ConvMap((5, 6), (3, 3), (3, 3), (1, 2), (0, 1))
    with_one = conv.patches(x, with_one=True)
    assert torch.equal(with_one[..., :-1], conv.patches(x)) and bool((with_one[..., -1] == 1).all())
    assert DenseMap().patches(x.flatten(1), with_one=True).shape == (2, 1, 91)
