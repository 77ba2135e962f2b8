"""Loaders over data directories made on the fly, in every layout they know."""

import numpy as np
import pytest
from scipy.io import savemat

from benchmarks import datasets
from benchmarks.datasets import sources
from benchmarks.datasets.download import RemoteFile, checksum
from tests.benchmarks.datasets import makers


def serve(file: RemoteFile, folder) -> RemoteFile:
    """The same file, offered by a local folder, with the checksum it has there."""
    path = folder / file.name
    return RemoteFile(file.name, (path.as_uri(),), f"sha256:{checksum(path, 'sha256')}")


@pytest.mark.parametrize("folder", ["mnist", ".", "MNIST/raw"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_found_in_its_folder_and_beside_it(tmp_path, folder, suffix):
    files = makers.write_mnist(tmp_path / folder, suffix=suffix)
    mnist = datasets.mnist(tmp_path)
    np.testing.assert_array_equal(mnist.x_train[:, 0], files["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(mnist.y_test, files["t10k-labels-idx1-ubyte"])
    assert mnist.x_train.shape == (5, 1, 28, 28)
    assert (mnist.x_test.dtype, mnist.y_train.dtype, mnist.name) == (np.uint8, np.int64, "mnist")
    assert repr(mnist) == "Dataset('mnist', x_train=(5, 1, 28, 28), x_test=(3, 1, 28, 28))"


def test_mnist_files_that_do_not_match_are_refused(tmp_path):
    makers.write_mnist(tmp_path)
    makers.write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.zeros(2, dtype=np.uint8))
    with pytest.raises(ValueError, match=r"test files .* do not match"):
        datasets.mnist(tmp_path)


def test_mnist_is_downloaded_when_asked_for(tmp_path, monkeypatch):
    files = makers.write_mnist(tmp_path / "host")
    monkeypatch.setattr(sources, "MNIST_FILES", tuple(serve(file, tmp_path / "host") for file in sources.MNIST_FILES))
    mnist = datasets.mnist(tmp_path / "data", download=True)
    np.testing.assert_array_equal(mnist.y_train, files["train-labels-idx1-ubyte"])
    assert datasets.mnist(tmp_path / "data").x_test.shape == (3, 1, 28, 28)


@pytest.mark.parametrize("form", ["compact", "folder", "archive"])
@pytest.mark.parametrize("folder", ["cifar10", "."])
def test_cifar10_is_read_in_each_form(tmp_path, form, folder):
    place = tmp_path / "data" / folder
    if form == "compact":
        batches = makers.cifar_batches()
        names = [*(f"train_{i}.npz" for i in range(1, 6)), "test.npz"]
        for name, (x, y) in zip(names, batches.values(), strict=True):
            makers.write_compact_rgb(place / name, x, y)
    elif form == "folder":
        batches = makers.write_cifar_folder(place / "cifar-10-batches-py")
    else:
        batches = makers.write_cifar_archive(place / "cifar-10-python.tar.gz", tmp_path / "scratch")
    cifar = datasets.cifar10(tmp_path / "data")
    *train, (x_test, y_test) = batches.values()
    np.testing.assert_array_equal(cifar.x_train, np.concatenate([x for x, _ in train]))
    np.testing.assert_array_equal(cifar.y_train, np.concatenate([y for _, y in train]))
    np.testing.assert_array_equal(cifar.x_test, x_test)
    np.testing.assert_array_equal(cifar.y_test, y_test)
    assert (cifar.x_train.dtype, cifar.y_train.dtype) == (np.uint8, np.int64)


def test_cifar10_is_downloaded_when_asked_for(tmp_path, monkeypatch):
    makers.write_cifar_archive(tmp_path / "host" / "cifar-10-python.tar.gz", tmp_path / "scratch")
    monkeypatch.setattr(sources, "CIFAR10_FILE", serve(sources.CIFAR10_FILE, tmp_path / "host"))
    assert datasets.cifar10(tmp_path / "data", download=True).x_train.shape == (20, 3, 32, 32)


@pytest.mark.parametrize("form", ["compact", "matlab", "download"])
def test_svhn_has_a_test_part_only(tmp_path, form, monkeypatch):
    x, y = makers.images(4)
    if form == "compact":
        makers.write_compact_rgb(tmp_path / "svhn" / "test.npz", x, y)
    else:
        folder = tmp_path / ("svhn" if form == "matlab" else "host")
        folder.mkdir()
        savemat(folder / "test_32x32.mat", {"X": x.transpose(2, 3, 1, 0), "y": np.where(y == 0, 10, y)[:, None]})
        if form == "download":
            monkeypatch.setattr(sources, "SVHN_TEST_FILE", serve(sources.SVHN_TEST_FILE, folder))
    svhn = datasets.svhn_test(tmp_path, download=form == "download")
    np.testing.assert_array_equal(svhn.x_test, x)
    np.testing.assert_array_equal(svhn.y_test, y)
    assert svhn.x_train.shape == (0, 3, 32, 32)
    assert svhn.y_train.shape == (0,)


def write_npz(directory, content):
    (directory / "uci").mkdir()
    np.savez(directory / "uci" / "boston.npz", **content)


TABLE_LAYOUTS = {
    "compact": write_npz,
    "uci/UCI_Datasets": lambda d, c: makers.write_table_text(d / "uci/UCI_Datasets/bostonHousing/data", c),
    "uci": lambda d, c: makers.write_table_text(d / "uci/bostonHousing/data", c),
    "UCI_Datasets": lambda d, c: makers.write_table_text(d / "UCI_Datasets/bostonHousing/data", c),
}


@pytest.mark.parametrize("name", ["boston", "bostonHousing"])
@pytest.mark.parametrize("layout", TABLE_LAYOUTS)
def test_uci_tables_and_their_splits(tmp_path, layout, name):
    content = makers.table(n=10, n_splits=4)
    TABLE_LAYOUTS[layout](tmp_path, content)
    table = datasets.uci(name, tmp_path)
    assert (table.name, table.n_splits, table.x.shape) == ("boston", 4, (10, 3))
    split = table.split(2)
    np.testing.assert_array_equal(split.x_train, content["X"][content["train_idx"][2]])
    np.testing.assert_array_equal(split.y_test, content["y"][content["test_idx"][2]])
    assert split.name == "boston/2"
    for k in (-1, 4):
        with pytest.raises(ValueError, match="splits 0 to 3"):
            table.split(k)


def test_a_uci_set_is_downloaded_and_its_numbers_checked(tmp_path, monkeypatch):
    content = makers.table()
    makers.write_table_text(tmp_path / "host" / "yacht" / "data", content)
    monkeypatch.setattr(sources, "UCI_URL", (tmp_path / "host").as_uri())
    with pytest.raises(datasets.ChecksumError, match=r"yacht .* not the published ones"):
        datasets.uci("yacht", tmp_path / "data", download=True)
    with pytest.raises(datasets.MissingDataError):  # nothing of the refused files was kept
        datasets.uci("yacht", tmp_path / "data")
    digest = sources.table_digest(content["X"], content["y"], content["train_idx"], content["test_idx"])
    monkeypatch.setitem(sources.UCI_DIGESTS, "yacht", digest)
    table = datasets.uci("yacht", tmp_path / "data", download=True)
    np.testing.assert_array_equal(table.x, content["X"])
    assert datasets.uci("yacht", tmp_path / "data").n_splits == 20


def test_a_uci_set_without_known_content_is_not_downloaded(tmp_path):
    with pytest.raises(ValueError, match="kin8nm has no known checksum"):
        datasets.uci("kin8nm", tmp_path, download=True)


def test_an_unknown_uci_set_names_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="known: boston, concrete"):
        datasets.uci("bosten", tmp_path)


def test_find_sets_tells_where_each_set_lies_without_reading_it(tmp_path):
    assert set(datasets.find_sets(tmp_path).values()) == {None}
    makers.write_mnist(tmp_path / "mnist")
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn" / "test_32x32.mat").write_bytes(b"not read")
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"not read")
    makers.write_table_text(tmp_path / "uci/UCI_Datasets/yacht/data", makers.table())
    found = {name: path for name, path in datasets.find_sets(tmp_path).items() if path is not None}
    assert found == {
        "mnist": tmp_path / "mnist",
        "cifar10": tmp_path / "cifar-10-python.tar.gz",
        "svhn_test": tmp_path / "svhn" / "test_32x32.mat",
        "uci/yacht": tmp_path / "uci/UCI_Datasets/yacht/data/data.txt",
    }


@pytest.mark.parametrize(
    "load, expected, call",
    [
        (datasets.mnist, "mnist/train-images-idx3-ubyte.gz", "mnist(download=True)"),
        (datasets.cifar10, "cifar10/cifar-10-python.tar.gz", "cifar10(download=True)"),
        (datasets.svhn_test, "svhn/test_32x32.mat", "svhn_test(download=True)"),
        (lambda d: datasets.uci("energy", d), "uci/UCI_Datasets/energy/data/data.txt", "uci('energy', download=True)"),
    ],
)
def test_a_missing_set_says_where_it_was_expected_and_how_to_get_it(tmp_path, load, expected, call):
    with pytest.raises(datasets.MissingDataError) as caught:
        load(tmp_path)
    message = str(caught.value)
    assert str(tmp_path / expected) in message
    assert f"benchmarks.datasets.{call}" in message
    assert "BAYESMP_DATA" in message
    assert isinstance(caught.value, FileNotFoundError)


def test_a_missing_set_that_cannot_be_downloaded_does_not_offer_it(tmp_path):
    with pytest.raises(datasets.MissingDataError) as caught:
        datasets.uci("kin8nm", tmp_path)
    assert "download" not in str(caught.value)
