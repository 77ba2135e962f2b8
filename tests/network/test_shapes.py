"""Layers that do not fit each other or the images: errors that say which ones would."""

import pytest
import torch

import bayesmp as bmp


def pooled(n_in):
    return [bmp.Conv2d(1, 6, 5), bmp.ReLU(), bmp.MaxPool2d(2), bmp.Flatten(), bmp.Linear(n_in, 10)]


def count_behind(size):
    """The numbers that PyTorch's layers give for an image of this size."""
    parts = (torch.nn.Conv2d(1, 6, 5), torch.nn.MaxPool2d(2), torch.nn.Flatten())
    return torch.nn.Sequential(*parts)(torch.zeros(1, 1, size, size)).shape[1]


def test_a_linear_that_does_not_fit_the_images_is_told_which_one_would():
    """On all roads: a given shape, the first fit, a module of PyTorch's; what is written instead fits."""
    n = count_behind(28)
    told = rf"layer 4 .*Linear\(600, 10\).*images of 28 x 28 give {n} numbers here: write Linear\({n}, 10\)"
    x, y = torch.zeros(4, 1, 28, 28), torch.arange(4)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 5), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(600, 10)
    )
    with pytest.raises(ValueError, match=told):
        bmp.Network(pooled(600), bmp.Argmax(), input_shape=(1, 28, 28))
    with pytest.raises(ValueError, match=told):
        bmp.fit(bmp.Network(pooled(600), bmp.Argmax()), x, y, epochs=1)
    with pytest.raises(ValueError, match=told.replace("layer 4", "layer 3")):
        bmp.from_torch(module, head=bmp.Argmax(), input_shape=(1, 28, 28))
    with pytest.raises(ValueError, match=told.replace("layer 4", "layer 3")):
        bmp.fit(bmp.from_torch(module, head=bmp.Argmax()), x, y, epochs=1)
    assert bmp.Network(pooled(n), bmp.Argmax(), input_shape=(1, 28, 28)).n_outputs == 10


def test_a_linear_that_fits_no_square_image_is_told_the_nearest():
    below, above = count_behind(20), count_behind(22)
    assert below < 401 < above
    told = (
        rf"Linear\(401, 10\) fits no square image: 20 x 20 gives {below} numbers, 22 x 22 gives {above}; .*input_shape"
    )
    with pytest.raises(ValueError, match=told):
        bmp.Network(pooled(401), bmp.Argmax())
    with pytest.raises(ValueError, match=r"fits no square image: 3 x 3 gives 4 numbers, 4 x 4 gives 16"):
        bmp.Network([bmp.Conv2d(1, 4, 3), bmp.Flatten(), bmp.Linear(5, 2)], bmp.Softmax())


@pytest.mark.parametrize(
    "layers, told",
    [
        ([bmp.Linear(4, 10), bmp.Linear(11, 2)], r"got \(10,\); write Linear\(10, 2\)"),
        ([bmp.Linear(4, 10), bmp.Linear(11, 2, bias=False)], r"write Linear\(10, 2, bias=False\)"),
        ([bmp.Conv2d(1, 6, 5), bmp.Linear(7, 2)], r"put a Flatten\(\) before it, and write Linear\(96, 2\)"),
        ([bmp.Conv2d(1, 6, 5), bmp.Linear(96, 2)], r"put a Flatten\(\) before it$"),
    ],
)
def test_a_layer_that_does_not_fit_the_one_before_is_told_what_would(layers, told):
    shape = (1, 8, 8) if isinstance(layers[0], bmp.Conv2d) else None
    with pytest.raises(ValueError, match=told):
        bmp.Network(layers, bmp.Softmax(), input_shape=shape)


def test_a_network_that_begins_with_a_flatten_takes_images():
    """It asked for flat rows, and advised to begin with a Flatten layer."""
    x, y = torch.randn(12, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    layers = [bmp.Flatten(), bmp.Linear(16, 8), bmp.LeakyReLU(), bmp.Linear(8, 3)]
    images, flat = (bmp.Network(layers, bmp.Argmax()) for _ in range(2))
    bmp.fit(images, x, y, epochs=3)
    bmp.fit(flat, x.flatten(1), y, epochs=3)
    assert images.input_shape == (1, 4, 4) and flat.input_shape == (16,)
    torch.testing.assert_close(images.predict(x).probs, flat.predict(x.flatten(1)).probs)
    with pytest.raises(ValueError, match=r"images of 5 x 5 give 25 numbers here: write Linear\(25, 8\)"):
        bmp.fit(bmp.Network(layers, bmp.Argmax()), torch.zeros(12, 1, 5, 5), y, epochs=1)
