"""Products of convolutions in compiled loops against torch's in float64: shapes of every kind, threads, and when they
keep out.
"""

import pytest
import torch

from bayesmp import kernels
from bayesmp.kernels import build, compiled, convs
from bayesmp.layers.windows import window_count
from bayesmp.messages.linear_maps import ConvMap

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="needs a C++ compiler")

CASES = {  # channels in and out, size of an image, window
    "square": (16, 12, (7, 9), (3, 3)),
    "one pixel": (16, 7, (4, 5), (1, 1)),
    "flat window": (48, 5, (6, 11), (1, 3)),
    "tall window": (16, 1, (11, 6), (3, 1)),
    "large window": (32, 8, (12, 13), (5, 4)),
    "three positions": (16, 6, (3, 5), (3, 3)),  # fewer than the window has: no loops for patches
    "half a step": (8, 4, (6, 7), (2, 2)),  # likewise; rows of patches still are one step
    "long rows": (16, 20, (5, 120), (2, 3)),
}


@pytest.fixture(autouse=True)
def _asked_for():
    """A failure shows as itself, not as a fallback."""
    kernels.set_backend("fused")


def make(name: str, *, n_images: int = 3, **options):
    c, o, size, kernel = CASES[name]
    stride, padding = options.get("stride", (1, 1)), options.get("padding", (0, 0))
    out = window_count(size, kernel, stride, padding, name)
    maps = [kind(size, out, kernel, stride, padding) for kind in (ConvMap, kernels.FastConvMap)]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n_images, c, *size, generator=generator) + 0.5
    return *maps, x, torch.randn(n_images, o, *out, generator=generator)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", CASES)
def test_slopes_in_weights_are_those_of_the_convolution(name, layout, monkeypatch):
    plain, fast, x, z = make(name)
    calls, entry_of = [], convs.entry_of
    monkeypatch.setattr(convs, "entry_of", lambda entry: calls.append(entry) or entry_of(entry))
    found = fast.op_weight(x.contiguous(memory_format=layout), z.contiguous(memory_format=layout))
    assert calls == ["conv_to_weight"]
    torch.testing.assert_close(found.double(), plain.op_weight(x.double(), z.double()), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", CASES)
def test_slopes_in_inputs_are_those_of_the_convolution(name, layout):
    plain, fast, _, z = make(name)
    w = torch.randn(CASES[name][1], CASES[name][0], *CASES[name][3], generator=torch.Generator().manual_seed(1))
    found = fast.op_input(z.contiguous(memory_format=layout), w.contiguous(memory_format=layout))
    torch.testing.assert_close(found.double(), plain.op_input(z.double(), w.double()), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("with_one", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_moments_are_those_of_the_patches(name, with_one):
    plain, fast, x, _ = make(name)
    found = fast.second_moments(x.to(memory_format=torch.channels_last), with_one=with_one)
    rows = plain.patches(x.double()).flatten(0, 1)
    rows = torch.cat([rows, rows.new_ones(len(rows), int(with_one))], 1)
    torch.testing.assert_close(found.double(), rows.t() @ rows / len(rows), rtol=1e-5, atol=1e-5)
    assert torch.equal(found, found.t())


def test_wider_processors_compute_the_same(unbuilt, monkeypatch):
    """The loops that a processor with AVX-512 would run, on this one."""
    text = compiled.source()
    assert text.count("#ifdef __AVX512F__") == 1
    monkeypatch.setattr(compiled, "source", lambda: text.replace("#ifdef __AVX512F__", "#if 1"))
    for name in ("square", "flat window", "large window"):
        plain, fast, x, z = make(name)
        w = plain.op_weight(x, z)
        torch.testing.assert_close(fast.op_weight(x, z), w, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(fast.op_input(z, w), plain.op_input(z, w), rtol=1e-4, atol=1e-2)
        torch.testing.assert_close(fast.patch_products(x), plain.patch_products(x), rtol=1e-4, atol=1e-3)


def test_patches_have_loops_where_images_are_larger_than_windows():
    has = {name: convs.has_products(make(name)[1], CASES[name][0]) for name in CASES}
    assert [name for name in has if not has[name]] == ["three positions", "half a step"]


@pytest.mark.parametrize("name", ["square", "large window"])
def test_threads_add_up_the_same(name, monkeypatch):
    _, fast, x, z = make(name, n_images=7)
    w = torch.randn(CASES[name][1], CASES[name][0], *CASES[name][3], generator=torch.Generator().manual_seed(1))
    alone = fast.op_weight(x, z), fast.patch_products(x), fast.op_input(z, w)
    before = torch.get_num_threads()
    monkeypatch.setattr(convs, "LEAST_PRODUCTS", 1)
    torch.set_num_threads(3)
    try:
        shared = fast.op_weight(x, z), fast.patch_products(x), fast.op_input(z, w)
        again = fast.op_weight(x, z)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(shared[0], again) and torch.equal(shared[1], alone[1]) and torch.equal(shared[2], alone[2])
    torch.testing.assert_close(shared[0], alone[0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("options", [{"stride": (2, 1)}, {"padding": (0, 1)}], ids=str)
def test_strides_and_padding_are_left_to_torch(options, monkeypatch):
    plain, fast, x, z = make("square", **options)
    monkeypatch.setattr(convs, "entry_of", lambda name: pytest.fail(name))
    w = plain.op_weight(x, z)
    assert torch.equal(fast.op_weight(x, z), w) and torch.equal(fast.op_input(z, w), plain.op_input(z, w))
    assert torch.equal(fast.patch_products(x), plain.patch_products(x))


def test_double_precision_and_derivatives_are_left_to_torch(monkeypatch):
    plain, fast, x, z = make("square")
    monkeypatch.setattr(convs, "entry_of", lambda name: pytest.fail(name))
    wide = fast.op_weight(x.double(), z.double())
    assert torch.equal(wide, plain.op_weight(x.double(), z.double()))
    assert torch.equal(fast.op_input(z.double(), wide), plain.op_input(z.double(), wide))
    z.requires_grad_()
    found = fast.op_weight(x, z)
    assert torch.equal(found, plain.op_weight(x, z))
    assert fast.op_input(z, found.detach()).requires_grad


def test_no_images_say_nothing():
    _, fast, x, z = make("square", n_images=0)
    assert fast.op_input(z, torch.ones(12, 16, 3, 3)).shape == x.shape
    assert not fast.op_weight(x, z).any() and not fast.patch_products(x).any()
