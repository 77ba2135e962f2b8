"""What from_torch and to_torch refuse, or must not miss: errors that name the module, its place and a way out."""

import pytest
import torch
from torch import nn

import bayesmp as bmp
from bayesmp.layers import Layer
from bayesmp.network.torch_bridge import as_torch

torch.set_num_threads(1)


def mlp(bias=True):
    return nn.Sequential(nn.Linear(5, 8, bias=bias), nn.ReLU(), nn.Linear(8, 6), nn.LeakyReLU(0.2), nn.Linear(6, 3))


@pytest.fixture
def seeded():
    torch.manual_seed(0)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "part, words",
    [
        (nn.BatchNorm1d(4), r"module 1, BatchNorm1d.*fuse_linear_bn_eval"),
        (nn.Tanh(), r"module 1, Tanh\(\) has no counterpart here; use nn.ReLU"),
        (nn.Softmax(dim=1), "the head makes probabilities"),
        (nn.LayerNorm(4), "no normalising layers"),
        (nn.Conv1d(1, 1, 1), r"use nn.Conv2d"),
        (nn.Bilinear(4, 4, 4), "from_torch takes Linear, Conv2d"),
        (Doubled(4, 4), "module 1, Doubled.*no counterpart"),
        (nn.LazyLinear(4), "call the nn.Sequential once"),
        (nn.LeakyReLU(1.5), r"module 1, LeakyReLU.*leak must lie in \[0, 1\)"),
        (nn.Conv2d(2, 2, 3, dilation=2), r"module 1, Conv2d.*dilation=\(2, 2\).*use dilation=1"),
        (nn.Conv2d(2, 2, 3, groups=2), "groups=2 has no counterpart here; use groups=1"),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), "padding_mode='reflect'"),
        (nn.Conv2d(2, 2, 2, padding="same"), "even kernel"),
        (nn.MaxPool2d(3, padding=1), "padding=1.*use padding=0"),
        (nn.MaxPool2d(2, dilation=2), "dilation=2"),
        (nn.MaxPool2d(2, ceil_mode=True), "ceil_mode=True.*use ceil_mode=False"),
        (nn.MaxPool2d(2, return_indices=True), "return_indices"),
        (nn.AvgPool2d(2, padding=1), "padding=1"),
        (nn.AvgPool2d(2, divisor_override=3), "divisor_override=3"),
        (nn.AdaptiveAvgPool2d(2), "output_size=2.*use output_size=1"),
        (nn.Flatten(start_dim=2), "start_dim=2.*use start_dim=1"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_has_no_counterpart_is_named_with_its_place_and_a_way_out(part, words):
    with pytest.raises(ValueError, match=words):
        bmp.from_torch(nn.Sequential(nn.Linear(4, 4), part), bmp.Argmax())


def test_places_inside_nested_sequentials_are_named_as_torch_names_them():
    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.GELU()))
    assert "1.1" in dict(module.named_modules())
    with pytest.raises(ValueError, match=r"module 1\.1, GELU"):
        bmp.from_torch(module, bmp.Argmax())


class Twice(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


class Named(nn.Sequential):
    """A Sequential by another name does what any does."""


class Half(nn.Identity):
    def forward(self, x):
        return x / 2


@pytest.mark.usefixtures("seeded")
def test_a_forward_of_ones_own_is_not_left_out_in_silence():
    """The factor 2 was ignored, and so was that of an Identity that is none."""
    with pytest.raises(ValueError, match=r"the Twice has a forward of its own.*a plain nn\.Sequential"):
        bmp.from_torch(Twice(nn.Linear(2, 2)), bmp.Argmax())
    with pytest.raises(ValueError, match=r"module 1\.0, a Twice, has a forward of its own"):
        bmp.from_torch(nn.Sequential(nn.Linear(2, 2), Named(Twice(nn.Linear(2, 2)))), bmp.Argmax())
    with pytest.raises(ValueError, match=r"module 1, Half\(\) has no counterpart"):
        bmp.from_torch(nn.Sequential(nn.Linear(2, 2), Half()), bmp.Argmax())
    assert len(bmp.from_torch(Named(nn.Linear(2, 2), Named(nn.ReLU(), nn.Linear(2, 2))), bmp.Argmax()).layers) == 3


@pytest.mark.parametrize(
    "where, words", [("", "the Sequential"), ("1", "module 1, a Sequential,"), ("1.0", r"ReLU\(\)")]
)
@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_are_refused_until_they_are_removed(where, words, register):
    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()), nn.Linear(2, 2))

    def halved(*_):
        return None

    handle = getattr(module.get_submodule(where), register)(halved)
    with pytest.raises(ValueError, match=rf"{words} has a forward hook, halved, .*call remove\(\) of the handle"):
        bmp.from_torch(module, bmp.Argmax())
    handle.remove()
    assert len(bmp.from_torch(module, bmp.Argmax()).layers) == 3


@pytest.mark.parametrize(
    "change",
    [
        nn.utils.parametrizations.weight_norm,
        pytest.param(nn.utils.weight_norm, marks=pytest.mark.filterwarnings("ignore::FutureWarning")),
        nn.utils.spectral_norm,
        lambda layer: nn.utils.prune.random_unstructured(layer, "weight", 0.5),
    ],
)
@pytest.mark.usefixtures("seeded")
def test_weights_that_are_made_of_others_are_taken_as_they_are(change):
    """Also where they were changed, and those at hand are of the last call."""
    module = nn.Sequential(change(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 1)).eval()
    with torch.no_grad():
        for part in module.parameters():
            part.mul_(1.5)
    x = torch.randn(5, 3)
    torch.testing.assert_close(bmp.to_torch(bmp.from_torch(module, bmp.Regression(0.1)))(x), module(x))


@pytest.mark.usefixtures("seeded")
def test_one_activation_in_several_places_is_there_as_often():
    """PyTorch lists a module once: the second place had none, and two Linears had nothing between them."""
    relu, linear = nn.ReLU(), nn.Linear(4, 4)
    module = nn.Sequential(nn.Linear(3, 4), relu, linear, relu, nn.Linear(4, 1))
    network, x = bmp.from_torch(module, bmp.Regression(0.1)), torch.randn(5, 3)
    assert [type(layer).__name__ for layer in network.layers] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    torch.testing.assert_close(bmp.to_torch(network)(x), module(x))
    with pytest.raises(ValueError, match=r"Linear\(.*\) is in several places .*a layer of its own"):
        bmp.from_torch(nn.Sequential(nn.Linear(3, 4), relu, linear, relu, linear), bmp.Argmax())


@pytest.mark.usefixtures("seeded")
def test_other_mistakes_are_named_too():
    with pytest.raises(TypeError, match=r"takes an nn\.Sequential, got Linear"):
        bmp.from_torch(nn.Linear(2, 2), bmp.Argmax())
    with pytest.raises(ValueError, match="weights must be one of"):
        bmp.from_torch(mlp(), bmp.Argmax(), weights="mean")
    with pytest.raises(ValueError, match="weights must be one of"):
        bmp.to_torch(bmp.from_torch(mlp(), bmp.Argmax()), "median")
    broken = mlp()
    nn.init.constant_(broken[0].bias, float("nan"))
    with pytest.raises(ValueError, match="NaN or infinite"):
        bmp.from_torch(broken, bmp.Argmax())

    class Own(Layer):
        def output_shape(self, shape_in):
            return shape_in

        def sweep(self, *_, **__):
            raise NotImplementedError

    with pytest.raises(ValueError, match=r"layer 1, .*Own.* has no module in PyTorch"):
        as_torch([bmp.Linear(2, 2), Own()])


def test_a_softplus_behind_the_last_weights_is_refused_where_logits_are_scaled():
    module = nn.Sequential(nn.Linear(3, 2), nn.Softplus())
    with pytest.raises(ValueError, match="Softplus behind the last weights"):
        bmp.from_torch(module, bmp.Argmax())
    bmp.from_torch(module, bmp.Regression(0.1))
